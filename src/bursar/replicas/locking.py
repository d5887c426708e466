"""Files that are locked while somebody uses them; the lock ends with the process."""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path


class FileInUse(Exception):
    """Somebody is at this file already."""


def open_locked(path: Path) -> int:
    """
    Opens a file, made where there is none, and locks it.

    Raises
    ------
    Busy
        When it is locked.
    OSError
        When it cannot be opened.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise FileInUse from None
        # Who had it may have renamed or deleted it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)


class LivenessLock:
    """
    A sign of life in a folder.

    Parameters
    ----------
    folder
        Where others look for it.

    Attributes
    ----------
    token
        By which they know it.
    """

    def __init__(self, folder: Path) -> None:
        for path in folder.glob("*.lock"):
            is_owner_alive(folder, path.stem)  # what others left behind goes
        self.token = secrets.token_hex(8)
        self._path = _path(folder, self.token)
        self._lock = open_locked(self._path)

    def close(self) -> None:
        """No life any more. Doing it again does nothing."""
        if self._lock >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def is_owner_alive(folder: Path, token: str) -> bool:
    """Whether an owner is; of one who is not, nothing is left."""
    path = _path(folder, token)
    if not path.exists():
        return False
    try:
        lock = open_locked(path)
    except FileInUse:
        return True
    path.unlink(missing_ok=True)
    os.close(lock)
    return False


def _path(folder: Path, token: str) -> Path:
    return folder / f"{token}.lock"
