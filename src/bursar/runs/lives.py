"""The lives of a run: it may be stopped, or killed, and go on later."""

import math
from collections.abc import Sequence

from bursar.dispatch.journal import Event

BEGIN, END = "begin", "end"
"""Kinds of the events at either end of a life."""

Life = tuple[float, float]
"""Begin and end, seconds since the epoch; an infinite end: it goes on."""


def lives_of(events: Sequence[Event]) -> list[Life]:
    """Every life there was, in order; one that was killed ends where the next begins, at most."""
    lives: list[Life] = []
    for event in events:
        if event.kind == BEGIN:
            if lives and math.isinf(lives[-1][1]):
                lives[-1] = (lives[-1][0], event.time)
            lives.append((event.time, math.inf))
        elif event.kind == END and lives:
            lives[-1] = (lives[-1][0], event.time)
    return lives
