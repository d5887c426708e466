"""Interfaces of all schemes: a copy to read and a copy to write."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Protocol

from bursar.replicas.failures import CopyCancelled, SourceFailed
from bursar.replicas.urls import redact_urls


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
