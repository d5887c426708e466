"""Makes skewed and drifting clocks for the parties of a simulation."""

import random

from bursar.service.interfaces import Clock

BEGIN = 1_000_000_000.0
"""Seconds since the epoch at which every simulation begins."""


def skewed_clock(now: Clock, chance: random.Random, *, skew: float, drift: float) -> Clock:
    """
    Return a clock with a random skew and drift, which never goes back.

    Parameters
    ----------
    now
        Virtual time of the loop.
    skew
        Largest clock skew, seconds.
    drift
        Largest clock drift, as a share of the time.
    """
    begin = BEGIN + chance.uniform(-skew, skew)
    rate = 1.0 + chance.uniform(-drift, drift)
    return lambda: begin + rate * now()
