"""The key of sealed tasks as its file currently holds it."""

import os
from pathlib import Path

Version = tuple[int, int, int]


class SealKeyFile:
    """
    Reads the seal key for workers that may not read its file themselves.

    A key that is renewed, or a user who is revoked, is in it from one moment to the next. A file
    that cannot be read changes nothing.

    Parameters
    ----------
    path
        See :class:`bursar.sealing.opener.TaskOpenerFile`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: Version | None = None
        self._pem = ""

    @property
    def pem(self) -> str:
        """Content of the file at the last call of :meth:`poll`. Secret."""
        return self._pem

    def poll(self) -> Version | None:
        """
        Read the file again if it has changed.

        Returns
        -------
        tuple or None
            Another one each time that it has changed; None: it could never be read.
        """
        try:
            if _version_of(os.stat(self._path)) != self._version:
                with open(self._path, encoding="ascii") as file:
                    version = _version_of(os.fstat(file.fileno()))
                    self._pem, self._version = file.read(), version
        except (OSError, UnicodeDecodeError):
            pass
        return self._version


def _version_of(status: os.stat_result) -> Version:
    return status.st_mtime_ns, status.st_size, status.st_ino
