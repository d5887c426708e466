"""The current key of sealed tasks, read from a file."""

import os
from pathlib import Path

Version = tuple[int, int, int]


class SealKeyFile:
    """
    Reads the seal key for workers without access to the file.

    The file is replaced when a key is renewed or a user is revoked. A file that cannot be read
    changes nothing: the last content holds.

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
        Read the file again if the file has changed.

        Returns
        -------
        tuple or None
            Version of the content, different after each change; None: the file could not be read
            so far.
        """
        try:
            if _version_of(os.stat(self._path)) != self._version:
                with open(self._path, encoding="ascii") as file:
                    # Of the opened file and not of the path, which may be replaced between the two
                    # calls.
                    version = _version_of(os.fstat(file.fileno()))
                    self._pem, self._version = file.read(), version
        except (OSError, UnicodeDecodeError):
            pass
        return self._version


def _version_of(status: os.stat_result) -> Version:
    return status.st_mtime_ns, status.st_size, status.st_ino
