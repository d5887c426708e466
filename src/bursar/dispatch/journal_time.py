"""
The time of a run's journal, mapped from a loop's clock: all spans and charges are measured in it.

Within one incarnation of a run, journal time follows the loop's clock, which is monotonic: the
time of day is read once, at the start, and may be set back or put forward afterwards. From one
incarnation to the next, journal time never goes back behind what the journal has seen. A time of
day that is behind is not believed; one that is ahead makes the break between the incarnations look
longer, and nothing is charged for a break.
"""

import asyncio
import time

from msgspec.structs import replace

from bursar.model.task import Outcome


def epoch_of(loop: asyncio.AbstractEventLoop, last_seen: float = 0.0) -> float:
    """
    Return what the loop's time 0 is, seconds since the epoch.

    A loop whose time is not that of the day says so by an attribute ``epoch``.

    Parameters
    ----------
    last_seen
        Latest time in the journal, seconds since the epoch: the present is not before it.
    """
    epoch: float | None = getattr(loop, "epoch", None)
    if epoch is None:
        epoch = time.time() - loop.time()
    return max(epoch, last_seen - loop.time())


def placed(outcome: Outcome, since: float, now: float) -> Outcome:
    """
    Return an outcome whose begin and end lie between two moments of a journal's time.

    The clock of the worker's host may be wrong, or the journal's time ahead of the time of day.
    How long the attempt took is kept, as far as there was time for it; it has just ended then.

    Parameters
    ----------
    since, now
        When the worker came, and the present, seconds since the epoch.
    """
    if since <= outcome.start <= outcome.end <= now:
        return outcome
    seconds = min(max(0.0, outcome.end - outcome.start), max(0.0, now - since))
    return replace(outcome, start=now - seconds, end=now)
