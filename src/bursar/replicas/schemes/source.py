"""Interfaces of all schemes, a copy to read and a copy to write, and files of this machine."""

import contextlib
import io
import os
import socket
import stat
from collections.abc import Iterator
from typing import Protocol

from bursar.replicas.content import CopyCancelled, SourceFailed, redact_urls

# Interfaces of all schemes: a copy to read and a copy to write.


class ReplicaSource(Protocol):
    """A copy that is being read. Its methods raise :class:`SourceFailed`."""

    @property
    def size(self) -> int | None:
        """Size in bytes by the source; None: not stated."""

    @property
    def start(self) -> int:
        """Offset of the first byte that :meth:`read` returns."""

    @property
    def tag(self) -> str:
        """Version of the content; empty: unknown."""

    @property
    def chunk(self) -> int:
        """Bytes to read at a time."""

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""

    def close(self) -> None:
        """Close the copy."""


class ReplicaUpload(Protocol):
    """A copy that is being written. Its methods raise :class:`SourceFailed`."""

    def write(self, data: bytes) -> None:
        """Append bytes."""

    def finish(self) -> None:
        """Make the copy visible under the final name, in one step."""

    def discard(self) -> None:
        """Delete what was written."""


NOT_THERE = "is not there"
SILENT = "does not answer"


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Turn errors of the operating system and timeouts into :class:`SourceFailed`."""
    try:
        yield
    except (SourceFailed, CopyCancelled):
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise SourceFailed(NOT_THERE, bad=True) from None
    except IsADirectoryError:
        raise SourceFailed("is a folder, no file", bad=True) from None
    except PermissionError:
        raise SourceFailed("may not be read or written") from None
    except TimeoutError:
        raise SourceFailed(SILENT, transient=True) from None
    except socket.gaierror:
        raise SourceFailed("its host is not known", transient=True) from None
    except ConnectionRefusedError:
        raise SourceFailed("refuses connections", transient=True) from None
    except (ConnectionError, EOFError):
        raise SourceFailed("broke the connection off", transient=True) from None
    except OSError as error:
        reason = error.strerror or redact_urls(str(error))
        raise SourceFailed(reason, transient=True) from None


# Files of this machine.


class LocalSource:
    """A copy read from a file of this machine, links followed."""

    chunk = 256 * 1024  # what is read is still in the processor when it is hashed and written

    def __init__(self, path: str, offset: int) -> None:
        with failing():
            # Not blocking, as a named pipe without a writer would.
            self._file = io.FileIO(path, "rb", opener=_open)
            about = os.fstat(self._file.fileno())
            if not stat.S_ISREG(about.st_mode):
                self._file.close()
                raise SourceFailed("is no regular file", bad=True)
            self.size = about.st_size
            self.tag = f"{about.st_ino}-{about.st_mtime_ns}-{about.st_size}"
            self.start = min(offset, self.size)
            self._file.seek(self.start)

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        with failing():
            return self._file.read(size) or b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
