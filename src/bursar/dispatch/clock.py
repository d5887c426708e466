"""The time of day by a loop's clock."""

import asyncio
import time


def epoch_of(loop: asyncio.AbstractEventLoop) -> float:
    """
    What the loop's time 0 is, seconds since the epoch.

    A loop whose time is not that of the day says so by an attribute ``epoch``.
    """
    epoch: float | None = getattr(loop, "epoch", None)
    return time.time() - loop.time() if epoch is None else epoch
