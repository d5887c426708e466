"""Free slots: what a machine's schedule leaves, in pieces that can be offered."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.machine import Machine
from bursar.compiling import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlot:
    """
    Processors that are free from the same moment to the same moment.

    Parameters
    ----------
    start, end
        Seconds on the machine's clock.
    processors
        Number of processors.
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
        """Length of the slot, seconds."""
        return self.end - self.start


def slot_horizon(machine: Machine) -> float:
    """Return the first multiple of 24 hours from now strictly after all that is planned."""
    return _horizon_after(_last_end(machine), machine.now)


def offered_slots(machine: Machine, horizon: float | None = None) -> list[FreeSlot]:
    """
    Return what the machine can offer (HPDC'07 section 4), by start.

    Parameters
    ----------
    horizon
        End of the slots that are offered, seconds; None: :func:`slot_horizon`.
    """
    planned = machine.schedule()
    if horizon is None:
        horizon = _horizon_after(max(planned[1].tolist(), default=machine.now), machine.now)
    return free_slots(machine.processors, machine.now, horizon, *planned)


def free_area(machine: Machine) -> list[FreeSlot]:
    """
    Return the free slots up to the last planned end (e-Science 2006, section 4), by start.

    The rectangles are cut as by :func:`offered_slots`, but none ends past the last planned
    end, and none may be divided or extended. There are none when nothing is planned.
    """
    slots = offered_slots(machine, _last_end(machine))
    return [replace(slot, divisible=False, extensible=False) for slot in slots]


def free_slots(
    processors: int,
    now: float,
    horizon: float,
    begin: FloatArray,
    end: FloatArray,
    width: IntArray,
) -> list[FreeSlot]:
    """
    Return the free windows of each processor by start; equal windows become one slot.

    Which processor runs what decides how the free area is cut. Everything
    planned takes, in order of start, the processors of the lowest numbers that
    are free then; for counts that fit, this always succeeds.

    Parameters
    ----------
    now, horizon
        Seconds; the area between is cut into slots.
    begin, end, width
        Times and processors of everything that runs or is planned, each of shape ``(n,)``; at no
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
    """Return start and end of the free windows of all processors; jobs are sorted by start."""
    until = np.full(processors, now)
    room = processors + int(width.sum())
    starts, ends = np.empty(room), np.empty(room)
    count = 0
    for i in range(len(begin)):
        left = width[i]
        for p in range(processors):
            if left == 0:
                break
            # First fit by number: what is planned fits the count at every moment, so enough
            # processors are found.
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


def _last_end(machine: Machine) -> float:
    """Return when the last of what is planned ends; now when nothing is."""
    return float(max(machine.schedule()[1].tolist(), default=machine.now))


def _horizon_after(last: float, now: float) -> float:
    return now + DAY * (math.floor((last - now) / DAY) + 1)
