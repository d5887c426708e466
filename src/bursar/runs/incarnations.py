"""The incarnations of a run, which may be stopped or killed and resumed later."""

import math
from collections.abc import Sequence

from bursar.dispatch.journal import RunEvent

BEGIN, END = "begin", "end"
"""Kinds of the events at either end of a life."""

RunIncarnation = tuple[float, float]
"""Begin and end, seconds since the epoch; an infinite end: it goes on."""


def incarnations_of(events: Sequence[RunEvent]) -> list[RunIncarnation]:
    """Return all incarnations in order; a killed one ends where the next begins, at the latest."""
    lives: list[RunIncarnation] = []
    for event in events:
        if event.kind == BEGIN:
            if lives and math.isinf(lives[-1][1]):
                lives[-1] = (lives[-1][0], event.time)
            lives.append((event.time, math.inf))
        elif event.kind == END and lives:
            lives[-1] = (lives[-1][0], event.time)
    return lives
