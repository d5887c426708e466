"""
Failures of copies: of the source, of the target, or by cancellation.

After a failure of the source another one is tried; a failure of the target ends the copy.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from bursar.model.errors import SiteError


class SourceFailed(Exception):
    """
    A source could not deliver the file.

    Parameters
    ----------
    reason
        One line for people, without secrets.
    bad
        Whether the copy's content is wrong or missing: trying again cannot help.
    transient
        Whether trying again may help.
    """

    def __init__(self, reason: str, *, bad: bool = False, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.bad = bad
        self.transient = transient


class CopyCancelled(Exception):
    """The copy was cancelled."""


class TargetFailed(SiteError):
    """The file cannot be written to the target: the disk is full, or access is denied."""


class StorageFull(TargetFailed):
    """A storage has reached the limit; other files may be evicted later."""


class FileUnreachable(SiteError):
    """No copy of a file could be brought; the message says from where and why not."""


class CancellationToken:
    """Cancels a copy in another thread, whose waits and reads end at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._closers: list[Callable[[], object]] = []

    def ask(self) -> None:
        """Cancel the copy."""
        self._asked.set()
        with self._lock:
            # A copy of the list: leaving by() takes the lock, too, and closers may take their time.
            closers = list(self._closers)
        for close in closers:
            with contextlib.suppress(Exception):
                close()

    def check(self) -> None:
        """
        Raise an exception if the copy was cancelled.

        Raises
        ------
        CopyCancelled
            When :meth:`ask` was called.
        """
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        """Wait so many seconds; raises CopyCancelled as :meth:`check` does."""
        if self._asked.is_set() or (seconds > 0 and self._asked.wait(seconds)):
            raise CopyCancelled

    @contextlib.contextmanager
    def by(self, close: Callable[[], object]) -> Iterator[None]:
        """Call ``close`` from the cancelling thread if the copy is cancelled in this context."""
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
