"""Lists, reads, writes and deletes files of an instance by checked names, following no links."""

import errno
import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Any

from bursar.remote.messages import FileInfo
from bursar.service.interfaces import ServiceError
from bursar.worker.confined_files import FOLDER, PLAIN, descend

# Checks of file names given by users, and opening of folders without following links.

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


# Blocking functions that list, read, write and delete the files of an instance.

MOST_LISTED = 200_000
"""Greatest number of directory entries that a listing or a count looks at."""

READ = os.O_RDONLY | PLAIN
"""Flags with which files are opened for reading."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class FileUpload:
    """
    A file that is being written under a temporary, reserved name.

    Parameters
    ----------
    spare
        Bytes of the disk that stay free.
    """

    directory: int
    file: int
    unfinished: str
    name: str
    spare: int
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def write(self, data: bytes) -> None:
        """
        Append bytes.

        Raises
        ------
        ServiceError
            507, when the disk is full.
        """
        view = memoryview(data)
        with translated_file_errors():
            check_free_space(self.directory, self.spare, len(data))
            while view:
                view = view[os.write(self.file, view) :]
        self.size += len(data)
        self._digest.update(data)

    def finish(self, *, durable: bool = True) -> FileInfo:
        """
        Rename the file to the final name, in place of a file of that name.

        Parameters
        ----------
        durable
            Whether content and name are synced to the disk before the return. False: the caller
            syncs them, for many files at once.
        """
        with translated_file_errors():
            # Content before name: after a power cut the name stands for the old file or the whole
            # new one.
            if durable:
                os.fsync(self.file)
            try:
                os.rename(
                    self.unfinished,
                    self.name,
                    src_dir_fd=self.directory,
                    dst_dir_fd=self.directory,
                )
            except IsADirectoryError:
                raise name_conflict(f'"{self.name}" is there, and a folder') from None
            # And the name before the acknowledgement.
            if durable:
                os.fsync(self.directory)
        return FileInfo(name=self.name, size=self.size, sha256=self._digest.hexdigest())


@contextmanager
def create_upload(
    root: str | int, parts: tuple[str, ...], *, executable: bool, spare: int
) -> Iterator[FileUpload]:
    """
    Create a file for writing; no trace is left unless the upload is finished.

    Parameters
    ----------
    spare
        Bytes of the disk that stay free.

    Raises
    ------
    ServiceError
        409, when something else is in the way; 507, when the disk is full.
    """
    with translated_file_errors(), folder(root, parts[:-1], make=True) as here:
        # A name that tasks cannot foresee, and O_EXCL: no link of theirs is written through.
        unfinished = f"{UNFINISHED}{os.urandom(8).hex()}"
        file = os.open(unfinished, _NEW, 0o700 if executable else 0o600, dir_fd=here)
        try:
            inherit_owner(file, here)
            yield FileUpload(here, file, unfinished, parts[-1], spare)
        finally:
            os.close(file)
            with suppress(FileNotFoundError):  # finished: the file has its final name
                os.unlink(unfinished, dir_fd=here)


def open_file(root: str, parts: tuple[str, ...]) -> tuple[int, os.stat_result]:
    """
    Open a file for reading; return descriptor and status of the file.

    Parameters
    ----------
    root
        Folder of the instance's files.
    parts
        Parts of the file's name, from the outermost folder on.

    Raises
    ------
    ServiceError
        404, when no plain file of the instance has the name.
    """
    with translated_file_errors(), folder(root, ()) as top, folder(top, parts[:-1]) as here:
        try:
            file = os.open(parts[-1], READ, dir_fd=here)
        except OSError as error:
            # No descriptors left: a fault of the service's, not a missing file.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise file_not_found("file of this name") from None
        # Of the open file: what the name stands for may change at any time.
        found = os.fstat(file)
        if not is_own_file(found, os.fstat(top).st_uid):
            os.close(file)
            raise file_not_found("file of this name")
        return file, found


def delete_file(root: str, parts: tuple[str, ...]) -> None:
    """
    Delete a file, a link or an empty folder, durably.

    Raises
    ------
    ServiceError
        404, when there is none; 409, when it is a folder that is not empty.
    """
    with translated_file_errors(), folder(root, parts[:-1]) as here:
        try:
            # A link itself is removed, never its target. If a task swaps folder and file after
            # this, the call below fails, and that is all.
            found = os.stat(parts[-1], dir_fd=here, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(parts[-1], dir_fd=here)
            else:
                os.unlink(parts[-1], dir_fd=here)
        except FileNotFoundError:
            raise file_not_found("file of this name") from None
        os.fsync(here)


def list_files(root: str, after: str, limit: int) -> list[FileInfo]:
    """
    List at most ``limit`` files, in the order of names, after a name.

    Links, and files whose names the API does not allow, are left out.
    """
    with translated_file_errors(), folder(root, ()) as top:
        found = (entry for entry in _files(top) if entry[0] > after and _is_addressable(entry[0]))
        # A page's worth of names in memory, however many files there are.
        return [FileInfo(name=name, size=size) for name, size in nsmallest(limit, found)]


def total_size(root: str) -> int:
    """Return the bytes of all files, unfinished ones too; 0 when the folder is gone."""
    with translated_file_errors():
        try:
            top = os.open(root, FOLDER)
        except FileNotFoundError:
            return 0
        try:
            return sum(size for _, size in _files(top))
        finally:
            os.close(top)


def _files(top: int) -> Iterator[tuple[str, int]]:
    """Yield name and size of each file, down to the deepest folder a name may have."""
    owner = os.fstat(top).st_uid
    left = MOST_LISTED

    def below(here: int, path: str, depth: int) -> Iterator[tuple[str, int]]:
        nonlocal left
        folders = []
        with os.scandir(here) as entries:
            for entry in entries:
                left -= 1
                # A task may make files without end; a listing must come to one.
                if left < 0:
                    return
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:  # gone meanwhile
                    continue
                if stat.S_ISDIR(found.st_mode):
                    # Entered after the scan is closed: one descriptor for each level, not two.
                    folders.append(entry.name)
                elif is_own_file(found, owner):
                    yield path + entry.name, found.st_size
        for name in folders if depth < DEEPEST else ():
            try:
                deeper = os.open(name, FOLDER, dir_fd=here)
            except OSError:  # gone meanwhile, or a link now
                continue
            try:
                yield from below(deeper, f"{path}{name}/", depth + 1)
            finally:
                os.close(deeper)

    yield from below(top, "", 1)


def _is_addressable(name: str) -> bool:
    try:
        parse_name(name)
    except ServiceError:
        return False
    return True


def check_free_space(file: int, spare: int, size: int) -> None:
    """
    Refuse a write that would leave less than ``spare`` bytes of the disk free.

    Parameters
    ----------
    file
        Descriptor of any file on the disk.
    spare
        Bytes that must stay free.
    size
        Bytes to be written.

    Raises
    ------
    ServiceError
        507.
    """
    room = os.fstatvfs(file)
    if room.f_bavail * room.f_frsize - size < spare:
        raise disk_low()
