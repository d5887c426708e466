"""
The files of a database that one process writes: the lock, the head, and a reserve for a full disk.

A module of its own, without asyncio: commands that only read a run begin sooner.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bursar.locking import take_lock
from bursar.sqlite_file import FULL_ERRNOS

log = logging.getLogger("bursar.store")
log.addHandler(logging.NullHandler())  # whoever does not configure it hears nothing

SAFE = 4096
"""Offset of a durable note in the file of noted bytes: no sector holds this and the start."""


_PIECE = 1 << 20  # bytes


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

    def rewrite_log(self) -> None:
        """
        Write SQLite's write-ahead log again as it is, and wait for the disk.

        To be called before the database is opened. A process that was killed before a sync, or
        whose sync failed, leaves transactions that can be read and that a power cut would still
        take back; whoever opens the database would acknowledge them.
        """

    def reserve(self, size: int) -> bool:
        """Reserve bytes for essential writes on a full disk (0: none); return whether they fit."""

    def close(self) -> None:
        """Let other processes write the database."""


class RealFiles:
    """
    A database of the operating system, held by a lock, and the small files beside it.

    Parameters
    ----------
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

    def rewrite_log(self) -> None:
        """Write SQLite's write-ahead log again as it is, and wait for the disk."""
        path = self.folder / f"{self._database.name}-wal"
        with self._translated(path.name):
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return
            try:
                at = 0
                # Written anew, since the system may hold bytes of a failed sync to be on the disk.
                # In place, so that a full disk has room.
                while piece := os.pread(fd, _PIECE, at):
                    at += os.pwrite(fd, piece, at)
                os.fsync(fd)
            finally:
                os.close(fd)
            self._sync_folder()

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
