"""The incarnations of a run, which may be stopped or killed and resumed later."""

import math
from collections.abc import Sequence

from bursar.dispatch.journal_records import RunEvent

BEGIN, END = "begin", "end"
"""Kinds of the events at either end of a life."""

RunIncarnation = tuple[float, float]
"""Begin and end, seconds since the epoch; an infinite end: it goes on."""


def incarnations_of(events: Sequence[RunEvent]) -> list[RunIncarnation]:
    """Return all incarnations in order; a killed one ends where the next begins, at the latest."""
    incarnations: list[RunIncarnation] = []
    for event in events:
        if event.kind == BEGIN:
            if incarnations and math.isinf(incarnations[-1][1]):
                incarnations[-1] = (incarnations[-1][0], event.time)
            incarnations.append((event.time, math.inf))
        elif event.kind == END and incarnations:
            incarnations[-1] = (incarnations[-1][0], event.time)
    return incarnations
