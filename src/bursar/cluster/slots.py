"""Free slots: what a machine's schedule leaves, in pieces that can be offered."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.machine import Machine
from bursar.compiling import compiled
from bursar.model.slot import Slot

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DAY = 86_400.0


def slot_horizon(machine: Machine) -> float:
    """Return the first multiple of 24 hours from now strictly after all that is planned."""
    return _horizon_after(_last_end(machine), machine.now)


def offered_slots(
    machine: Machine,
    horizon: float | None = None,
    *,
    since: float = 0.0,
    site: str = "",
    unit_price: float | None = None,
) -> list[Slot]:
    """
    Return what the machine can offer (HPDC'07 section 4), by start.

    Slots that end at the horizon are divisible and extensible: a part of them may be taken, and
    used past the end. Those that end where something is planned are neither.

    Parameters
    ----------
    horizon
        End of the slots that are offered, seconds; None: :func:`slot_horizon`.
    since
        Moment on the machine's clock from which the starts of the slots count, seconds.
    site, unit_price
        The site's name and the price in the slots.
    """
    planned = machine.schedule()
    if horizon is None:
        horizon = _horizon_after(max(planned[1].tolist(), default=machine.now), machine.now)
    windows = free_slots(machine.processors, machine.now, horizon, *planned)
    return [
        Slot(
            site=site,
            start=start - since,
            duration=end - start,
            processors=processors,
            unit_price=unit_price,
            divisible=end >= horizon,
            extensible=end >= horizon,
        )
        for start, end, processors in windows
    ]


def free_area(machine: Machine) -> list[Slot]:
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
) -> Iterator[tuple[float, float, int]]:
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

    Returns
    -------
    iterator of tuple
        Start and end of each window, seconds, and how many processors have it.
    """
    begin = np.maximum(begin, now)
    relevant = (end > now) & (begin < horizon)
    order = np.lexsort((end, begin))
    order = order[relevant[order]]
    starts, ends = free_windows(processors, now, horizon, begin[order], end[order], width[order])
    order = np.lexsort((ends, starts))
    starts, ends = starts[order], ends[order]
    fresh = (np.diff(starts) != 0) | (np.diff(ends) != 0)
    firsts = np.flatnonzero(np.concatenate((np.ones(len(starts[:1]), dtype=np.bool_), fresh)))
    counts = np.diff(np.concatenate((firsts, [len(starts)])))
    return zip(starts[firsts].tolist(), ends[firsts].tolist(), counts.tolist(), strict=True)


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
