"""File locks that show that a process uses a file, and that end with the process."""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path


class FileInUse(Exception):
    """Another process or thread has locked the file."""


def open_locked(path: Path) -> int:
    """
    Open a file, made when missing, and lock the file.

    Raises
    ------
    FileInUse
        When it is locked.
    OSError
        When it cannot be opened.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            # flock, not fcntl's record locks: a record lock belongs to the process, so two threads
            # would not exclude each other, and closing any other descriptor of the file would
            # release it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise FileInUse from None
        # The former holder may have renamed or deleted the file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)


class LivenessLock:
    """
    A locked file in a folder that shows other processes that this one is alive.

    Parameters
    ----------
    folder
        Folder of the lock files of all processes.

    Attributes
    ----------
    token
        Random name of the owner, by which others look it up.
    """

    def __init__(self, folder: Path) -> None:
        for path in folder.glob("*.lock"):
            is_owner_alive(folder, path.stem)  # what others left behind goes
        self.token = secrets.token_hex(8)
        self._path = _path(folder, self.token)
        self._lock = open_locked(self._path)

    def close(self) -> None:
        """Delete the lock file; a second call does nothing."""
        if self._lock >= 0:
            # Deleted while still locked: nobody else can have locked this very file, so no other
            # owner loses a lock.
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def is_owner_alive(folder: Path, token: str) -> bool:
    """Return whether an owner's process is alive; a dead one's lock file is deleted."""
    path = _path(folder, token)
    if not path.exists():
        return False
    try:
        # Makes the file anew if its owner deletes it just now; it is deleted again below.
        lock = open_locked(path)
    except FileInUse:
        return True
    path.unlink(missing_ok=True)
    os.close(lock)
    return False


def _path(folder: Path, token: str) -> Path:
    return folder / f"{token}.lock"
