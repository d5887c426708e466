"""Free slots: what a machine's schedule leaves, in pieces that can be offered."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar.compiling import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlot:
    """
    Processors that are free from the same moment to the same moment.

    Parameters
    ----------
    start, end
        Seconds on the machine's clock.
    processors
        How many.
    divisible, extensible
        Whether a part may be taken, and whether it may be used past its end:
        both true of slots that end at the horizon, both false of those that
        end where something is planned (HPDC'07 section 4).
    """

    start: float
    end: float
    processors: int
    divisible: bool
    extensible: bool

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start


def free_slots(
    processors: int,
    now: float,
    horizon: float,
    begin: FloatArray,
    end: FloatArray,
    width: IntArray,
) -> list[FreeSlot]:
    """
    Windows of each processor, those with the same start and end together, by start.

    Which processor runs what decides how the free area is cut. Everything
    planned takes, in order of start, the processors of the lowest numbers that
    are free then; for counts that fit, this always succeeds.

    Parameters
    ----------
    now, horizon
        Seconds; the area between is cut into slots.
    begin, end, width
        Of everything that runs or is planned, each of shape ``(n,)``; at no
        moment wider together than the machine.
    """
    begin = np.maximum(begin, now)
    relevant = (end > now) & (begin < horizon)
    order = np.lexsort((end, begin))
    order = order[relevant[order]]
    starts, ends = free_windows(processors, now, horizon, begin[order], end[order], width[order])
    order = np.lexsort((ends, starts))
    starts, ends = starts[order], ends[order]
    if not len(starts):
        return []
    fresh = np.flatnonzero((np.diff(starts) != 0) | (np.diff(ends) != 0)) + 1
    firsts = np.concatenate(([0], fresh))
    counts = np.diff(np.concatenate((firsts, [len(starts)])))
    return [
        FreeSlot(start=s, end=e, processors=n, divisible=e >= horizon, extensible=e >= horizon)
        for s, e, n in zip(
            starts[firsts].tolist(), ends[firsts].tolist(), counts.tolist(), strict=True
        )
    ]


@compiled
def free_windows(
    processors: int,
    now: float,
    horizon: float,
    begin: FloatArray,
    end: FloatArray,
    width: IntArray,
) -> tuple[FloatArray, FloatArray]:
    """Start and end of every processor's free windows; what is planned comes by start."""
    until = np.full(processors, now)
    room = processors + int(width.sum())
    starts, ends = np.empty(room), np.empty(room)
    count = 0
    for i in range(len(begin)):
        left = width[i]
        for p in range(processors):
            if left == 0:
                break
            if until[p] <= begin[i]:
                if until[p] < begin[i]:
                    starts[count], ends[count] = until[p], begin[i]
                    count += 1
                until[p] = end[i]
                left -= 1
    for p in range(processors):
        if until[p] < horizon:
            starts[count], ends[count] = until[p], horizon
            count += 1
    return starts[:count], ends[:count]
