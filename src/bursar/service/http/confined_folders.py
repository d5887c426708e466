"""Opens folders of instances so that no link leads out, and says what failed."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from bursar.dispatch.confined_files import FOLDER, descend
from bursar.service.interfaces import ServiceError


def file_not_found(what: str) -> ServiceError:
    """Return a 404 that does not tell a missing file from a forbidden one."""
    return ServiceError("not-found", 404, f"there is no {what}")


@contextmanager
def translated_file_errors() -> Iterator[None]:
    """
    Turn errors of the file system into service errors.

    Raises
    ------
    ServiceError
        507, when the disk is full; 409, when a task has seen to it that nothing can be done here.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise disk_full() from None
        if error.errno in _CONFLICT_ERRORS:
            raise name_conflict(f"this cannot be done here: {error.strerror}") from None
        raise


_CONFLICT_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
        errno.EXDEV,
    }
)


def disk_full() -> ServiceError:
    """Return the 507 for a full disk."""
    return ServiceError("disk-full", 507, "there is no room on the disk", retry_after=30.0)


def disk_low() -> ServiceError:
    """Return the 507 for uploads when the free space is reserved for tasks and results."""
    detail = "the disk is nearly full: no files are taken, while tasks and results go on"
    return ServiceError("disk-low", 507, detail, retry_after=30.0)


def name_conflict(why: str) -> ServiceError:
    """Return the 409 for a name that is taken or cannot be used."""
    return ServiceError("conflict", 409, why, where="name")


@contextmanager
def folder(root: str | int, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
    """
    Open a folder below another one, step by step and never through a link.

    A task may put a link anywhere and change it at any time; a descriptor stays that of the folder
    that was opened.

    Parameters
    ----------
    root
        Path or descriptor of the folder to begin at.
    make
        Whether missing folders are made, with the owner of their parent.

    Raises
    ------
    ServiceError
        404, when it is not there; 409, when a part of the way is no folder and was to be one.
    """
    try:
        top = os.dup(root) if isinstance(root, int) else os.open(root, FOLDER)
    except FileNotFoundError:
        raise file_not_found("file of this name") from None
    here = descend(top, parts, partial(_enter, make=make))
    try:
        yield here
    finally:
        os.close(here)


def _enter(here: int, part: str, *, make: bool) -> int:
    made = False
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, 0o700, dir_fd=here)
            os.fsync(here)
            made = True
    try:
        deeper = os.open(part, FOLDER, dir_fd=here)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EACCES):
            raise
        if make:
            raise name_conflict(f'"{part}" is there, and no folder') from None
        raise file_not_found("file of this name") from None
    if made:
        inherit_owner(deeper, here)
    return deeper


def inherit_owner(made: int, folder: int) -> None:
    """Give a new file or folder the owner of its parent folder, the account of tasks."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        # By its descriptor: the name may be another one's by now.
        os.fchown(made, owner.st_uid, owner.st_gid)


def is_own_file(entry: os.stat_result, owner: int) -> bool:
    """
    Return whether a file is plain and of the instance's owner.

    A hard link to another user's file would be read with the service's rights.
    """
    return stat.S_ISREG(entry.st_mode) and entry.st_uid == owner
