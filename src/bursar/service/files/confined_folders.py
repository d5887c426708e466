"""Checks of file names given by users, and opening of folders without following links."""

import errno
import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from bursar.service.interfaces import ServiceError
from bursar.worker.confined_files import FOLDER, descend

LONGEST_NAME = 4096
"""Greatest length of a name in bytes, folders included."""

LONGEST_PART = 255
"""Greatest length of one folder's or file's own name in bytes."""

DEEPEST = 64
"""Greatest number of parts of a name."""

UNFINISHED = ".bursar-upload-"
"""Reserved prefix of the names of unfinished uploads."""


_MISLEADING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of text: a name that holds one reads as another name."""

_CONTROL = frozenset({"Cc", "Zl", "Zp"})
"""Unicode categories of control characters, and of line and paragraph separators."""


def file_not_found(what: str) -> ServiceError:
    """Return a 404 that does not tell a missing file from a forbidden one."""
    return ServiceError("not-found", 404, f"there is no {what}")


@contextmanager
def translated_file_errors() -> Iterator[None]:
    """
    Turn errors of the file system into service errors; others pass unchanged.

    Raises
    ------
    ServiceError
        507 when the disk is full; 409 when a task has made the operation impossible.
    """
    try:
        yield
    except OSError as error:
        # The disk is full, or a quota or limit of the account that runs the service is reached.
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
        404, when the folder does not exist; 409, with ``make``, when a part of the path exists and
        is no folder.
    """
    try:
        # A duplicate, since descend() closes each folder that it leaves.
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
            # A durable file needs durable folders above it.
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
    # After the folder was opened without following links: a task may have put a link in its place,
    # and must not have the link's target given to it.
    if made:
        inherit_owner(deeper, here)
    return deeper


def inherit_owner(made: int, folder: int) -> None:
    """Give a new file or folder the owner of the parent folder, the account of tasks."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        # By descriptor: the name may stand for another file by now.
        os.fchown(made, owner.st_uid, owner.st_gid)


def is_own_file(entry: os.stat_result, owner: int) -> bool:
    """
    Return whether a file is plain and of the instance's owner.

    A hard link to another user's file would be read with the service's rights.
    """
    return stat.S_ISREG(entry.st_mode) and entry.st_uid == owner


def parse_name(text: str, where: str = "name") -> tuple[str, ...]:
    """
    Split a relative name into parts and check each part.

    Raises
    ------
    ServiceError
        400, when the name is absolute, leads upwards, is too long or too deep, or holds control
        characters.
    """

    def bad(why: str) -> ServiceError:
        return ServiceError("bad-name", 400, why, where=where)

    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise bad("is not text in UTF-8") from None
    if not size:
        raise bad("expected the name of a file")
    if size > LONGEST_NAME:
        raise bad(f"is longer than {LONGEST_NAME} bytes")
    # Nearly all names are printable ASCII and skip the look at each character.
    if not text.isascii() or not text.isprintable():
        if any(unicodedata.category(character) in _CONTROL for character in text):
            raise bad("holds a control character")
        if not _MISLEADING.isdisjoint(text):
            raise bad("holds a character that changes the direction of text")
    parts = tuple(text.split("/"))
    if len(parts) > DEEPEST:
        raise bad(f"is more than {DEEPEST} folders deep")
    for part in parts:
        if part in ("", ".", ".."):
            raise bad('expected a relative name without empty parts, "." and ".."')
        if len(part.encode()) > LONGEST_PART:
            raise bad(f"a part of it is longer than {LONGEST_PART} bytes")
        if part.startswith(UNFINISHED):
            raise bad(f'names that begin with "{UNFINISHED}" are the service\'s own')
    return parts
