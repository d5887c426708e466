"""
The real disk: a folder for data that the service must not lose.

Writing and syncing happen in separate threads, so that only the caller waits for the disk; data
in the page cache are read at once.
"""

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from bursar.locking import LockHeldElsewhere, take_lock
from bursar.model.errors import InputError
from bursar.service.disk import DiskBroken, DiskFull
from bursar.service.logs import LOGGER

log = logging.getLogger(f"{LOGGER}.disk")

T = TypeVar("T")

_LOCK, _BALLAST, _NEW = ".lock", ".reserve", ".new-"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""Errors that go away with more room on disk or for open files."""

_THREADS = 2
"""Number of threads: one writes while the other reads."""


class RealDisk:
    """
    A folder that one process at a time may write.

    Parameters
    ----------
    folder
        Path of the folder, which is made if missing, with mode 0700.

    Raises
    ------
    InputError
        When the folder cannot be made or written, or another process uses it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A folder that was there already may be open to others.
            folder.chmod(0o700)
            self._lock = _take_lock(folder)
            for left in folder.glob(f"{_NEW}*"):  # of a replacement that was cut short
                left.unlink()
            # A killed process may have made a file whose name is not durable yet.
            _sync_folder(folder)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(folder)) from None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk")

    async def names(self) -> list[str]:
        """Return the names of all files, sorted, without hidden ones."""
        return await self._run(self._names)

    async def open(self, name: str, *, create: bool = False) -> "RealFile":
        """Open a file; with ``create`` a new, empty one, whose name is durable on return."""
        fd = await self._run(self._open, name, create)
        return RealFile(self.folder / name, fd, self._threads)

    async def remove(self, name: str) -> None:
        """Remove a file durably; do nothing if there is none."""
        await self._run(self._remove, name)

    async def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""
        await self._run(self._replace, name, data)

    async def load(self, name: str) -> bytes | None:
        """Return a small file's content; None: there is no such file."""
        return await self._run(self._load, name)

    async def free(self) -> int:
        """Return the bytes that can still be written."""
        return await self._run(self._free)

    async def reserve(self, size: int) -> bool:
        """
        Reserve bytes of the disk for essential writes on a full disk; 0: give the reserve up.

        A file that is never read takes the room. On file systems that never overwrite in place
        (btrfs, ZFS) removing the file may free less room than it took.
        """
        return await self._run(self._reserve, size)

    def close(self) -> None:
        """Wait until writes under way have ended, and release the folder."""
        self._threads.shutdown()
        os.close(self._lock)

    # Each in a thread.

    async def _run(self, do: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, do, *arguments)

    def _names(self) -> list[str]:
        with _translated_disk_errors(self.folder):
            return sorted(
                entry.name
                for entry in os.scandir(self.folder)
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
            )

    def _open(self, name: str, create: bool) -> int:
        path = self.folder / name
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with _translated_disk_errors(path):
            if not create:
                return os.open(path, flags)
            fd = os.open(path, flags | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _sync_folder(self.folder)
            except BaseException:
                os.close(fd)
                raise
            return fd

    def _remove(self, name: str) -> None:
        with _translated_disk_errors(self.folder / name), contextlib.suppress(FileNotFoundError):
            (self.folder / name).unlink()
            _sync_folder(self.folder)

    def _replace(self, name: str, data: bytes) -> None:
        path, fresh = self.folder / name, self.folder / f"{_NEW}{name}"
        with _translated_disk_errors(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(fresh, flags, 0o600)
            try:
                try:
                    _write_all(fd, data)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                # Content is on disk before the name: a power cut leaves the old content or the
                # new.
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
            _sync_folder(self.folder)

    def _load(self, name: str) -> bytes | None:
        path = self.folder / name
        with _translated_disk_errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def _free(self) -> int:
        with _translated_disk_errors(self.folder):
            room = os.statvfs(self.folder)
            return room.f_bavail * room.f_frsize

    def _reserve(self, size: int) -> bool:
        path = self.folder / _BALLAST
        with _translated_disk_errors(path):
            if size == 0:
                path.unlink(missing_ok=True)
                _sync_folder(self.folder)
                return True
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(fd, min(size, os.fstat(fd).st_size))
                # Blocks and not a sparse file, which would reserve nothing.
                os.posix_fallocate(fd, 0, size)
                os.fsync(fd)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                # A part of the reserve only takes room from others.
                path.unlink()
                return False
            finally:
                os.close(fd)
            return True


class RealFile:
    """
    An open file; made by :meth:`RealDisk.open`.

    Parameters
    ----------
    path
        Path of the file, for messages.
    fd
        Descriptor, closed by this object.
    threads
        Threads for calls that may block.
    """

    def __init__(self, path: Path, fd: int, threads: ThreadPoolExecutor) -> None:
        self._path = path
        self._fd = fd
        self._threads = threads
        self._size = os.fstat(fd).st_size

    @property
    def size(self) -> int:
        """Size of the file in bytes, unsynced ones included."""
        return self._size

    async def append(self, data: bytes) -> None:
        """Write at the end; not durable before :meth:`sync`."""
        await self._run(self._append, data)

    async def sync(self) -> None:
        """Wait until all that was appended survives a power cut."""
        await self._run(self._sync)

    async def read(self, offset: int, size: int) -> bytes:
        """Return bytes from an offset; fewer at the end."""
        buffer = bytearray(size)
        try:
            # RWF_NOWAIT never waits for the disk, so that the event loop can read from the page
            # cache itself, without a thread.
            count = os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError:  # not in the page cache, or the file system cannot tell
            count = -1
        if count == size:
            return bytes(buffer)
        return await self._run(self._read, offset, size)

    async def truncate(self, size: int) -> None:
        """Cut the file to a size, durably."""
        await self._run(self._truncate, size)

    async def close(self) -> None:
        """Close the file."""
        await self._run(os.close, self._fd)

    # Each in a thread.

    async def _run(self, do: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, do, *arguments)

    def _append(self, data: bytes) -> None:
        with _translated_disk_errors(self._path):
            try:
                _write_all(self._fd, data, self._size)
            finally:
                # Asked and not computed: after a failure any part of the data may have been
                # written.
                self._size = os.fstat(self._fd).st_size

    def _sync(self) -> None:
        with _translated_disk_errors(self._path):
            # fdatasync: content and size, but not the times, which would cost another write.
            os.fdatasync(self._fd)

    def _read(self, offset: int, size: int) -> bytes:
        parts, end = [], offset + size
        with _translated_disk_errors(self._path):
            while offset < end and (part := os.pread(self._fd, end - offset, offset)):
                parts.append(part)
                offset += len(part)
        return b"".join(parts)

    def _truncate(self, size: int) -> None:
        with _translated_disk_errors(self._path):
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)
            self._size = size


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes, offset: int = 0) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, offset)
        rest, offset = rest[count:], offset + count


def _take_lock(folder: Path) -> int:
    try:
        return take_lock(folder / _LOCK)
    except LockHeldElsewhere as error:
        raise InputError(f"is in use by {error.holder}", where=str(folder)) from None


@contextlib.contextmanager
def _translated_disk_errors(path: Path) -> Iterator[None]:
    """
    Raise errors of the operating system as :class:`DiskFull` or :class:`DiskBroken`.

    What is raised may reach users, who are not told where the service keeps its things.
    """
    try:
        yield
    except OSError as error:
        problem = f"{path.name}: {error.strerror}"
        if error.errno in _FULL:
            log.warning("%s: %s", path, error.strerror)
            raise DiskFull(problem) from error
        log.error("%s: %s", path, error.strerror)
        raise DiskBroken(problem) from error
