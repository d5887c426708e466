"""
The folder of a store: one process at a time, a reserve for a full disk, and small files.

SQLite reads and writes the database itself, through the VFS that the disk names. All blocking work
goes through :meth:`Disk.run`, one piece after another, so that only the caller waits.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from bursar.locking import LockHeldElsewhere, take_lock
from bursar.model.errors import InputError
from bursar.sqlite_file import FULL_ERRNOS

log = logging.getLogger("bursar.store")
log.addHandler(logging.NullHandler())  # whoever does not configure it hears nothing

T = TypeVar("T")

DATABASE = "store.sqlite"
"""Name of the database in the folder; SQLite keeps its write-ahead log beside it."""

SAFE = 4096
"""Offset of a durable note in the file of noted bytes: no sector holds this and the start."""

_LOCK, _RESERVE, _HEAD, _NEW = ".lock", ".reserve", "store.head", ".new-"


class DiskFull(Exception):
    """The disk is full: nothing of what was to be written together is there."""


class DiskBroken(Exception):
    """A write or sync has failed otherwise: the state of the disk is unknown."""


class DatabaseFiles(Protocol):
    """
    A database that one process at a time may write, and the small files beside the database.

    All methods may block; they raise :class:`DiskFull` or :class:`DiskBroken`.
    """

    @property
    def database(self) -> str:
        """Path of the database, for SQLite."""

    @property
    def vfs(self) -> str:
        """Name of SQLite's virtual file system; empty: the operating system's files."""

    def note(self, data: bytes, *, durably: bool = False) -> None:
        """
        Write some bytes over those noted before.

        A durable note is also written at :data:`SAFE`, in a sector that later notes leave alone,
        and has reached the disk on return.
        """

    def noted(self) -> bytes:
        """
        Return the bytes noted last, and at :data:`SAFE` those noted durably; none at first.

        After a power cut the first may be of an earlier note, or damaged.
        """

    def reserve(self, size: int) -> bool:
        """Reserve bytes for essential writes on a full disk (0: none); return whether they fit."""

    def close(self) -> None:
        """Let other processes write the database."""


class Disk(DatabaseFiles, Protocol):
    """
    A folder that one process at a time may write, with a database.

    All methods but :meth:`run` may block, and are called through :meth:`run`.
    """

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Do blocking work outside the event loop, after all that was asked for before."""

    def prepare(self) -> None:
        """Make the database's file, readable by its owner only, unless it is there."""

    def names(self) -> list[str]:
        """Return the names of all files, sorted, without hidden ones."""

    def load(self, name: str) -> bytes | None:
        """Return a small file's content; None: there is no such file."""

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""

    def free(self) -> int:
        """Return the bytes that can still be written."""


class RealFiles:
    """
    A database of the operating system, held by a lock, and the small files beside it.

    Parameters
    ----------
    database
        Path of the database.
    head, reserve, lock
        Names of the file of noted bytes, of the file that only takes room, and of the lock's file,
        in the folder of the database.
    mode
        Mode of the file of noted bytes.

    Raises
    ------
    LockHeldElsewhere
        When another process uses the database.
    OSError
        When the lock's file cannot be written.
    """

    def __init__(
        self, database: Path, *, head: str, reserve: str, lock: str, mode: int = 0o600
    ) -> None:
        self.folder = database.parent
        self._database, self._reserve, self._mode = database, self.folder / reserve, mode
        self._head_path = self.folder / head
        self._head = -1
        self._lock = take_lock(self.folder / lock)

    @property
    def database(self) -> str:
        """Path of the database."""
        return str(self._database)

    @property
    def vfs(self) -> str:
        """Return the empty name: SQLite uses the operating system's files."""
        return ""

    def close(self) -> None:
        """Release the lock. May be repeated."""
        for file in (self._head, self._lock):
            if file >= 0:
                os.close(file)
        self._head = self._lock = -1

    def note(self, data: bytes, *, durably: bool = False) -> None:
        """Write some bytes over those noted before, in one write, and mostly without a sync."""
        with self._translated(self._head_path.name):
            if self._head < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._head = os.open(self._head_path, flags, self._mode)
            os.pwrite(self._head, data, 0)
            if durably:
                # One after the other: a power cut damages one of the two at the most.
                os.fsync(self._head)
                os.pwrite(self._head, data, SAFE)
                os.fsync(self._head)
                self._sync_folder()

    def noted(self) -> bytes:
        """Return the bytes noted last; none at first."""
        with self._translated(self._head_path.name):
            try:
                return self._head_path.read_bytes()
            except FileNotFoundError:
                return b""

    def reserve(self, size: int) -> bool:
        """
        Reserve bytes of the disk for essential writes on a full disk; 0: give the reserve up.

        A file that is never read takes the room. On file systems that never overwrite in place
        (btrfs, ZFS) removing the file may free less room than it took.
        """
        path = self._reserve
        with self._translated(path.name):
            if size == 0:
                path.unlink(missing_ok=True)
                self._sync_folder()
                return True
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.ftruncate(fd, min(size, os.fstat(fd).st_size))
                # Blocks and not a sparse file, which would reserve nothing.
                os.posix_fallocate(fd, 0, size)
                os.fsync(fd)
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                # A part of the reserve only takes room from others.
                path.unlink()
                return False
            finally:
                os.close(fd)
            return True

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """
        Raise errors of the operating system as :class:`DiskFull` or :class:`DiskBroken`.

        What is raised may reach users, who are not told where the service keeps its things.
        """
        try:
            yield
        except OSError as error:
            log.error("%s: %s", self.folder / name, error.strerror)
            kind = DiskFull if error.errno in FULL_ERRNOS else DiskBroken
            raise kind(f"{name}: {error.strerror}") from error


class RealDisk(RealFiles):
    """
    A folder of the operating system.

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
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A folder that was there already may be open to others.
            folder.chmod(0o700)
            super().__init__(folder / DATABASE, head=_HEAD, reserve=_RESERVE, lock=_LOCK)
            for left in folder.glob(f"{_NEW}*"):  # of a replacement that was cut short
                left.unlink()
        except LockHeldElsewhere as error:
            raise InputError(f"is in use by {error.holder}", where=str(folder)) from None
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(folder)) from None
        # One thread: SQLite's connection is used by one piece of work at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Do blocking work in the thread of the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        """Wait until work under way has ended, and release the folder."""
        self._thread.shutdown()
        super().close()

    def prepare(self) -> None:
        """Make the database's file with mode 0600; a link in its place is not followed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._translated(DATABASE):
            # SQLite gives its log the mode of the database.
            os.close(os.open(self.folder / DATABASE, flags, 0o600))
            self._sync_folder()

    def names(self) -> list[str]:
        """Return the names of all files, sorted, without hidden ones."""
        with self._translated("the folder"):
            return sorted(path.name for path in self.folder.iterdir() if path.name[0] != ".")

    def load(self, name: str) -> bytes | None:
        """Return a small file's content; None: there is no such file."""
        with self._translated(name):
            try:
                return (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""
        path, fresh = self.folder / name, self.folder / f"{_NEW}{name}"
        with self._translated(name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                # Content is on disk before the name: a power cut leaves the old content or the
                # new.
                fresh.replace(path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
            self._sync_folder()

    def free(self) -> int:
        """Return the bytes that can still be written."""
        with self._translated("the folder"):
            room = os.statvfs(self.folder)
            return room.f_bavail * room.f_frsize
