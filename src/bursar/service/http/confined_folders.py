"""The way to users' files that no link can lead astray, and what is said when there is none."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from bursar.dispatch.confined_files import FOLDER, descend
from bursar.service.interfaces import ServiceError


def file_not_found(what: str) -> ServiceError:
    """There is no such file, or none that may be touched: nobody is told which."""
    return ServiceError("not-found", 404, f"there is no {what}")


@contextmanager
def translated_file_errors() -> Iterator[None]:
    """
    Turns what the file system says into what the client is told.

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
    """The disk is full."""
    return ServiceError("disk-full", 507, "there is no room on the disk", retry_after=30.0)


def disk_low() -> ServiceError:
    """What room there is is for tasks and results."""
    detail = "the disk is nearly full: no files are taken, while tasks and results go on"
    return ServiceError("disk-low", 507, detail, retry_after=30.0)


def name_conflict(why: str) -> ServiceError:
    """What is there already does not allow it."""
    return ServiceError("conflict", 409, why, where="name")


@contextmanager
def folder(root: str | int, parts: tuple[str, ...], *, make: bool = False) -> Iterator[int]:
    """
    A descriptor of a folder below another one, found step by step and never through a link.

    A task may put a link anywhere, and change it at any time: what has been opened stays what
    it was, whatever becomes of its name.

    Parameters
    ----------
    root
        Path of the folder to begin at, or a descriptor of it.
    make
        Whether folders that are not there are made, as their parent's owner's.

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
    """What has just been made in a folder belongs to the folder's owner: a task's account."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        # By its descriptor: the name may be another one's by now.
        os.fchown(made, owner.st_uid, owner.st_gid)


def is_own_file(entry: os.stat_result, owner: int) -> bool:
    """
    Whether this is a file that is its instance's own.

    A hard link to somebody else's would be read with the service's rights.
    """
    return stat.S_ISREG(entry.st_mode) and entry.st_uid == owner
