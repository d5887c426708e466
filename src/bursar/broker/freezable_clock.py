"""A clock gives one time to all that is decided together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class FreezableClock:
    """
    A clock that can be stopped at a fixed time.

    To match a burst of jobs takes real time. Were each job matched at a later moment than the
    one before, those that begin after all of them are matched would seem to be late, and every
    site would work out its queue anew for every job.

    Parameters
    ----------
    clock
        Underlying clock, seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: float | None = None
        self._times = 0

    @property
    def number(self) -> int | None:
        """Number of the present standstill; None while the clock runs."""
        return None if self._held is None else self._times

    def __call__(self) -> float:
        """Return the present time or, while frozen, the frozen time, seconds."""
        return self._clock() if self._held is None else self._held

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop the clock while the context lasts; an inner context changes nothing."""
        if self._held is not None:
            yield
            return
        self._held = self._clock()
        self._times += 1
        try:
            yield
        finally:
            self._held = None
