"""Free processors of an owner, as slots."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from bursar.market.committed_capacity import CommittedCapacity


class FreeInterval(NamedTuple):
    """Processors that are free from start to end, seconds since the epoch; end None: no end."""

    start: float
    end: float | None
    processors: int


def free_slots(capacity: CommittedCapacity, now: float) -> list[FreeInterval]:
    """
    Return the processors free from now on as long slots, in the order of their starts.

    Processors are taken in layers: what is always free is one slot without an end, what is free
    besides between two commitments lies above it. Slots overlap in time but share no processor.
    Times are in seconds since the epoch; an end of None: for ever.
    """
    steps = list(_steps(capacity, now))
    levels = sorted({free for _, _, free in steps if free > 0})
    found = []
    # Between two neighbouring levels the number of free processors never lies, so each layer is
    # either free or not: a slot goes on for as long as it is.
    for low, high in pairwise([0, *levels]):
        begin: float | None = None
        for start, end, free in steps:
            if free >= high and begin is None:
                begin = start
            if begin is not None and (free < high or end is None):
                until = start if free < high else None
                found.append(FreeInterval(begin, until, high - low))
                begin = None
    return sorted(found, key=lambda slot: slot.start)


def _steps(capacity: CommittedCapacity, now: float) -> Iterator[tuple[float, float | None, int]]:
    """Free processors from one change to the next; the last step has no end."""
    changes = {now: 0}
    for commitment in capacity.commitments:
        start, end = max(commitment.start, now), min(commitment.end, commitment.until)
        if end > start:
            # A sweep over the changes: what begins and ends at the same moment cancels out.
            changes[start] = changes.get(start, 0) + commitment.processors
            changes[end] = changes.get(end, 0) - commitment.processors
    moments = sorted(changes)
    taken = 0
    for index, moment in enumerate(moments):
        following = moments[index + 1] if index + 1 < len(moments) else None
        taken += changes[moment]
        yield moment, following, max(0, capacity.processors - taken)
