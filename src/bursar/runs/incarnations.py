"""The incarnations of a run, which may be stopped or killed and resumed later."""

import math
from collections.abc import Sequence

from bursar.dispatch.journal_records import RunEvent

BEGIN, END = "begin", "end"
"""Kinds of the events at the begin and at the end of an incarnation."""

RunIncarnation = tuple[float, float]
"""Begin and end, seconds since the epoch; an infinite end: killed, or still running."""


def incarnations_of(events: Sequence[RunEvent]) -> list[RunIncarnation]:
    """Return all incarnations in order; a killed one ends where the next begins, at the latest."""
    incarnations: list[RunIncarnation] = []
    for event in events:
        if event.kind == BEGIN:
            if incarnations and math.isinf(incarnations[-1][1]):
                # It was killed, and wrote no end: it ended before this begin.
                incarnations[-1] = (incarnations[-1][0], event.time)
            incarnations.append((event.time, math.inf))
        elif event.kind == END and incarnations:
            incarnations[-1] = (incarnations[-1][0], event.time)
    return incarnations
