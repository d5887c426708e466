"""What all schemes offer: a file to read, a file to write."""

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
        """Bytes in all, as the source says; None when it does not."""

    @property
    def start(self) -> int:
        """Offset of the first byte that it gives."""

    @property
    def tag(self) -> str:
        """Changes with the content; empty when nothing tells."""

    @property
    def chunk(self) -> int:
        """Bytes to read at a time."""

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""

    def close(self) -> None:
        """Lets go of it."""


class ReplicaUpload(Protocol):
    """A copy that is being written. Its methods raise :class:`SourceFailed`."""

    def write(self, data: bytes) -> None:
        """Adds bytes."""

    def finish(self) -> None:
        """Makes it the file that it should be, in one step."""

    def discard(self) -> None:
        """Leaves nothing of it behind."""


NOT_THERE = "is not there"
SILENT = "does not answer"


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Errors of the operating system, and of time, as a failure of the source."""
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
