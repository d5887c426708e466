"""
The folder of a store: one process at a time, a reserve for a full disk, and small files.

SQLite reads and writes the database itself, through the VFS that the disk names. All blocking work
goes through :meth:`Disk.run`, one piece after another, so that only the caller waits.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from bursar.database_files import DatabaseFiles, RealFiles
from bursar.locking import LockHeldElsewhere
from bursar.model.errors import InputError

T = TypeVar("T")

DATABASE = "store.sqlite"
"""Name of the database in the folder; SQLite keeps its write-ahead log beside it."""

_LOCK, _RESERVE, _HEAD, _NEW = ".lock", ".reserve", "store.head", ".new-"


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
