"""Clocks that are wrong: each party has one of its own in each of its lives."""

import random

from bursar.service.interfaces import Clock

BEGIN = 1_000_000_000.0
"""Seconds since the epoch at which every simulation begins."""


def skewed_clock(now: Clock, chance: random.Random, *, skew: float, drift: float) -> Clock:
    """
    A clock that goes wrong by a constant and a share, but never back.

    Parameters
    ----------
    now
        The loop's time.
    skew
        Seconds by which it is off at the most.
    drift
        Share of the time by which it goes too fast or too slow at the most.
    """
    begin = BEGIN + chance.uniform(-skew, skew)
    rate = 1.0 + chance.uniform(-drift, drift)
    return lambda: begin + rate * now()
