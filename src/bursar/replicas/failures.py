"""
How a copy can fail: by its source, by its target, or because it is not wanted any more.

What goes wrong at a source is tried elsewhere; what goes wrong at the target is not.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from bursar.model.errors import SiteError


class SourceFailed(Exception):
    """
    A source did not give the file.

    Parameters
    ----------
    reason
        One line for people, without secrets.
    bad
        Whether the copy is not what it should be: trying again cannot help.
    transient
        Whether trying again may help.
    """

    def __init__(self, reason: str, *, bad: bool = False, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.bad = bad
        self.transient = transient


class CopyCancelled(Exception):
    """The copy is not wanted any more."""


class TargetFailed(SiteError):
    """The file cannot be put where it should go: the disk is full, or it is forbidden."""


class StorageFull(TargetFailed):
    """A storage has no room under its limit; it may have some later."""


class FileUnreachable(SiteError):
    """No copy of a file could be brought: one line says from where, and why not."""


class CancellationToken:
    """Asks a copy in another thread to end; its waits and reads end at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._closers: list[Callable[[], object]] = []

    def ask(self) -> None:
        """Makes the copy end."""
        self._asked.set()
        with self._lock:
            closers = list(self._closers)
        for close in closers:
            with contextlib.suppress(Exception):
                close()

    def check(self) -> None:
        """
        Raises
        ------
        Stopped
            When it was asked to.
        """
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        """Lets time pass; as :meth:`check`."""
        if self._asked.is_set() or (seconds > 0 and self._asked.wait(seconds)):
            raise CopyCancelled

    @contextlib.contextmanager
    def by(self, close: Callable[[], object]) -> Iterator[None]:
        """While this is entered, asking calls ``close``, from another thread."""
        with self._lock:
            self._closers.append(close)
        try:
            self.check()
            yield
        except CopyCancelled:
            raise
        except Exception:
            self.check()  # what closing it raised is no failure of the source
            raise
        finally:
            with self._lock:
                self._closers.remove(close)
