"""Blocking functions that list, read, write and delete the files of an instance."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from bursar.remote.messages import FileInfo
from bursar.service.files.confined_folders import (
    DEEPEST,
    UNFINISHED,
    disk_low,
    file_not_found,
    folder,
    inherit_owner,
    is_own_file,
    name_conflict,
    parse_name,
    translated_file_errors,
)
from bursar.service.interfaces import ServiceError
from bursar.worker.confined_files import FOLDER, PLAIN

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
    directory, file
        Descriptors of the folder and the file.
    unfinished, name
        The temporary and the final name.
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
