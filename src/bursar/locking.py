"""Locks on files that say which process holds them."""

import fcntl
import os
import socket
import time
from typing import NamedTuple

_RETRY_INTERVAL = 0.005  # seconds between two tries
_LONGEST_CHECK = 10.0  # seconds; nobody who only looks takes as long


class LockHolder(NamedTuple):
    """
    The process that holds a lock.

    Parameters
    ----------
    process
        Number of the process on its machine.
    host
        Name of the machine: folders may be shared by several, and so are locks.
    """

    process: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether the process runs on this machine, where its number means something."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        """Return the process as messages name it: ``process 4711``."""
        return f"process {self.process}" + ("" if self.is_here else f" on {self.host}")


class LockHeldElsewhere(Exception):
    """
    Another process holds the lock.

    Parameters
    ----------
    holder
        Who, for a message: ``process 4711``, or ``another process`` where that is not known.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"is held by {holder}")
        self.holder = holder


def take_lock(path: str | os.PathLike[str], *, wait: float = 0.0) -> int:
    """
    Take the lock of a file, which is made where it is not there, and write our process into it.

    The lock ends with the process, however that ends.

    Parameters
    ----------
    path
        No link, lest it lead to a file of somebody else, whose content would be lost.
    wait
        Seconds to wait for whoever holds it.

    Returns
    -------
    int
        A descriptor; the lock is given back when it is closed.

    Raises
    ------
    HeldElsewhere
        When another process still holds it then.
    OSError
        When the file cannot be opened or written.
    """
    give_up = time.monotonic() + wait
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while not _locks(lock, fcntl.LOCK_EX):
            # Whoever only looks whether it is held, as is_locked does, has it for a moment, too.
            is_held = not _locks(lock, fcntl.LOCK_SH)
            fcntl.flock(lock, fcntl.LOCK_UN)
            if time.monotonic() >= give_up + (0 if is_held else _LONGEST_CHECK):
                raise LockHeldElsewhere(_holder_in(lock))
            time.sleep(_RETRY_INTERVAL)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process holds the lock of a file; no where there is no such file."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locks(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def lock_holder(path: str | os.PathLike[str]) -> LockHolder | None:
    """Return the process that holds the lock of a file, where that is known."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if _locks(lock, fcntl.LOCK_SH):
            return None
        return _written_in(lock)
    finally:
        os.close(lock)


def _locks(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_in(lock: int) -> str:
    """Name the process that holds a lock, as far as the holder has already written its number."""
    holder = _written_in(lock)
    return "another process" if holder is None else str(holder)


def _written_in(lock: int) -> LockHolder | None:
    process, _, host = os.pread(lock, 300, 0).decode(errors="replace").partition(" ")
    return LockHolder(int(process), host) if process.isdigit() and host else None
