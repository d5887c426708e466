"""One moment for all that is decided at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class FreezableClock:
    """
    A clock that can be made to stand still.

    To match a burst of jobs takes real time. Were each job matched at a later moment than the
    one before, those that begin after all of them are matched would seem to be late, and every
    site would work out its queue anew for every job.

    Parameters
    ----------
    clock
        Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: float | None = None
        self._times = 0

    @property
    def number(self) -> int | None:
        """Of the time for which it stands still; None while it goes on."""
        return None if self._held is None else self._times

    def __call__(self) -> float:
        """Now, or the moment that is held; seconds."""
        return self._clock() if self._held is None else self._held

    @contextmanager
    def held(self) -> Iterator[None]:
        """It stands still meanwhile; within another such time, as it does already."""
        if self._held is not None:
            yield
            return
        self._held = self._clock()
        self._times += 1
        try:
            yield
        finally:
            self._held = None
