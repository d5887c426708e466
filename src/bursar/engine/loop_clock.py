"""The engine's time: the journal's seconds since the epoch, and callbacks at moments of it."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from bursar.dispatch.journal_records import epoch_of


class EngineTimer(Protocol):
    """A callback that will be called."""

    def cancel(self) -> None:
        """Do not call it any more."""


class EngineClock(Protocol):
    """Tells the time and calls back; all that the engine asks of an event loop."""

    def now(self) -> float:
        """Return the journal's time, seconds since the epoch."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once the present burst of events is taken in."""

    def at(self, moment: float, callback: Callable[[], None]) -> EngineTimer:
        """Call back at a time, seconds since the epoch."""


class FunctionClock:
    """
    Time that a function tells, with callbacks of the running loop.

    Parameters
    ----------
    now
        Returns the present time, seconds since the epoch.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now

    def soon(self, callback: Callable[[], None]) -> None:
        """Have a function called in the next turn of the loop."""
        asyncio.get_running_loop().call_soon(callback)

    def at(self, moment: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Have a function called at a time, seconds since the epoch; return the timer."""
        return asyncio.get_running_loop().call_later(max(0.0, moment - self.now()), callback)


class LoopClock:
    """An asyncio loop's time as a journal's; see :mod:`bursar.dispatch.journal_records`."""

    def __init__(self) -> None:
        self._epoch = 0.0

    def start(self, last_seen: float, epoch: float | None = None) -> None:
        """
        Begin in the running loop.

        Parameters
        ----------
        last_seen
            Last moment that the journal has seen, seconds since the epoch: time goes on from
            there when the time of day is behind it.
        epoch
            What the loop's time 0 is, seconds since the epoch; None: by the time of day.
        """
        self._loop = asyncio.get_running_loop()
        self._epoch = epoch_of(self._loop, last_seen) if epoch is None else epoch

    @property
    def epoch(self) -> float:
        """What the loop's time 0 is, seconds since the epoch."""
        return self._epoch

    def now(self) -> float:
        """Return the present time, seconds since the epoch."""
        return self._epoch + self._loop.time()

    def soon(self, callback: Callable[[], None]) -> None:
        """Have a function called in the next turn of the loop."""
        self._loop.call_soon(callback)

    def at(self, moment: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Have a function called at a time, seconds since the epoch; return the timer."""
        return self._loop.call_at(moment - self._epoch, callback)
