"""The time of day that a service goes by: it never goes back."""

import time
from collections.abc import Callable

AHEAD = 1.0
"""Seconds that the machine's clock may be ahead before it is followed."""


class SteadyClock:
    """
    Seconds since the epoch.

    It runs by the machine's steady clock. Where the time of day is put forward, as after a
    suspended machine wakes up, it follows; where that is put back, it goes on.

    Parameters
    ----------
    steady, wall
        The machine's clocks.
    """

    def __init__(
        self,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._steady = steady
        self._wall = wall
        self._epoch = wall() - steady()

    def __call__(self) -> float:
        """The present moment."""
        now, wall = self._epoch + self._steady(), self._wall()
        if wall > now + AHEAD:
            self._epoch += wall - now
            return wall
        return now
