"""
Schedules many tasks of one processor each; every processor has gaps of its own.

A *gap* is a time during which a processor is free. The gaps of a site lie in blocks by their start,
and the blocks in groups, each with the latest end and the longest gap in it, so that those that
cannot hold a task are passed over together. A task goes where it finishes earliest: into the gap
that began last of those open when its inputs have arrived, else into the first later one that is
long enough. Of equal finishes the site named first.

What this gives up beside :mod:`bursar.planning.kernels.placing`: a task keeps the processor that it
was given, so a time that is free first on one processor and then on another is no place for it; and
of equal finishes a slot in use is not preferred as such. Slots are not leased here.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled, inlined
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.placing import TaskArrays

FULL = 64
"""Gaps that a block has room for."""
GROUP = 16
"""Blocks in a group."""
ROUNDING = 1e-6
"""Seconds. Blocks are passed over only when a gap misses by more."""

GAP = np.dtype([("start", "f8"), ("end", "f8"), ("slot", "i8")], align=True)
"""A processor of a slot that is free, seconds."""
BLOCK = np.dtype(
    [("base", "i8"), ("count", "i8"), ("lower", "f8"), ("latest", "f8"), ("longest", "f8")],
    align=True,
)
"""
Gaps ``base`` to ``base + count``, their latest end and greatest length, seconds.

No gap of it or of a later block of the site begins before ``lower``.
"""
REACH = np.dtype([("latest", "f8"), ("longest", "f8")], align=True)
"""Latest end and greatest length of the gaps of a group of blocks, seconds."""
Records = npt.NDArray[np.void]


class IdleGaps(NamedTuple):
    """
    The gaps of all sites.

    Few arrays of records, because each array that is handed to a function costs time.

    Parameters
    ----------
    gap
        ``GAP``; each block has ``FULL`` of them.
    block
        ``BLOCK``, those of a site together, by start.
    group
        ``REACH`` of each ``GROUP`` blocks.
    span
        Where the blocks of each site begin, and how many it has, shape ``(n_sites, 2)``.
    """

    gap: Records
    block: Records
    group: Records
    span: IntArray


class SerialSchedule(NamedTuple):
    """
    Site, slot and times of each task, shape ``(n_tasks,)``.

    The site is -1 where a task is not placed; the slot is -1 there, and where a task takes no time.
    """

    site: IntArray
    slot: IntArray
    start: FloatArray
    finish: FloatArray


@inlined
def empty_gaps(slots: SlotArrays, caps: IntArray, n_tasks: int) -> IdleGaps:
    """Return the gaps of slots in which nothing is placed."""
    n_sites = len(slots.first) - 1
    span = np.ones((n_sites, 2), dtype=np.int64)
    room = 0
    for s in range(n_sites):
        span[s, 0] = room
        offered = 0
        for slot in range(slots.first[s], slots.first[s + 1]):
            offered += min(caps[slot], n_tasks)  # more are never used
        # Half filled at first, and a full one is split in two halves.
        room += (2 * (offered + n_tasks) // FULL + 3 + GROUP) // GROUP * GROUP
    gaps = IdleGaps(
        np.empty(room * FULL, dtype=GAP),
        np.empty(room, dtype=BLOCK),
        np.empty(room // GROUP, dtype=REACH),
        span,
    )
    for b in range(room):
        gaps.block[b]["base"] = b * FULL
        gaps.block[b]["count"] = 0
        gaps.block[b]["lower"] = -np.inf
        gaps.block[b]["latest"] = -np.inf
        gaps.block[b]["longest"] = -np.inf
    for s in range(n_sites):
        b = span[s, 0]
        for slot in range(slots.first[s], slots.first[s + 1]):
            if slots.last[slot] <= slots.begin[slot]:
                continue
            for _ in range(min(caps[slot], n_tasks)):
                if gaps.block[b]["count"] == FULL // 2:
                    b += 1
                    gaps.block[b]["lower"] = slots.begin[slot]
                new = gaps.gap[b * FULL + gaps.block[b]["count"]]
                new["start"] = slots.begin[slot]
                new["end"] = slots.last[slot]
                new["slot"] = slot
                gaps.block[b]["count"] += 1
        span[s, 1] = b + 1 - span[s, 0]
        for place in range(span[s, 0], b + 1):
            sum_up(gaps, place)
    for group in range(len(gaps.group)):
        sum_up_group(gaps, group)
    return gaps


@inlined
def sum_up(gaps: IdleGaps, place: int) -> None:
    """Writes the latest end and the greatest length of the block at ``place``."""
    gap, block = gaps.gap, gaps.block[place]
    latest, longest = -np.inf, -np.inf
    for at in range(block["base"], block["base"] + block["count"]):
        end = gap[at]["end"]
        length = end - gap[at]["start"]
        if end > latest:
            latest = end
        if length > longest:
            longest = length
    block["latest"] = latest
    block["longest"] = longest


@inlined
def sum_up_group(gaps: IdleGaps, group: int) -> None:
    """Writes the latest end and the greatest length of a group."""
    block = gaps.block
    latest, longest = -np.inf, -np.inf
    for place in range(group * GROUP, (group + 1) * GROUP):
        latest = max(latest, block[place]["latest"])
        longest = max(longest, block[place]["longest"])
    gaps.group[group]["latest"] = latest
    gaps.group[group]["longest"] = longest


@inlined
def block_at(gaps: IdleGaps, s: int, moment: float) -> int:
    """Place of the last block of site ``s`` in which a gap may begin at ``moment``."""
    block = gaps.block
    low = gaps.span[s, 0]
    high = low + gaps.span[s, 1]
    while high - low > 1:
        middle = (low + high) // 2
        if block[middle]["lower"] <= moment:
            low = middle
        else:
            high = middle
    return int(low)


@inlined
def gap_for(
    gaps: IdleGaps, s: int, ready: float, duration: float, give_up: float
) -> tuple[int, int]:
    """
    Where a task finishes earliest on site ``s``: place of the block, and the gap.

    -1 and -1 when it would not finish before ``give_up``.
    """
    finish = ready + duration
    if finish >= give_up:
        return -1, -1
    gap, block, group = gaps.gap, gaps.block, gaps.group
    here = block_at(gaps, s, ready)
    first, over = gaps.span[s, 0], gaps.span[s, 0] + gaps.span[s, 1]
    place = here
    # Backwards from the arrival of the inputs: the gap that began last of those open wastes the
    # least time before the task.
    while place >= first:
        if group[place // GROUP]["latest"] < finish:
            place = place // GROUP * GROUP - 1
            continue
        if block[place]["latest"] >= finish:
            base = block[place]["base"]
            for at in range(base + block[place]["count"] - 1, base - 1, -1):
                if gap[at]["end"] >= finish and gap[at]["start"] <= ready:
                    return place, at
        place -= 1
    place = here
    # No gap is open: forwards, to the first that begins later and is long enough.
    while place < over and block[place]["lower"] + duration < give_up:
        if group[place // GROUP]["longest"] + ROUNDING < duration:
            place = (place // GROUP + 1) * GROUP
            continue
        if block[place]["longest"] + ROUNDING >= duration:
            base = block[place]["base"]
            for at in range(base, base + block[place]["count"]):
                begins = gap[at]["start"]
                if begins > ready and begins + duration <= gap[at]["end"]:
                    return (place, at) if begins + duration < give_up else (-1, -1)
        place += 1
    return -1, -1


@inlined
def take(gaps: IdleGaps, s: int, place: int, at: int, begins: float, finish: float) -> int:
    """
    Run a task in a gap, keep what is left of the gap before and after, and return its slot.

    The gap is ``gaps.gap[at]``, in block ``place`` of site ``s`` (see :func:`gap_for`); the task
    runs from ``begins`` to ``finish``, seconds, both within the gap.
    """
    gap, block = gaps.gap, gaps.block
    start, over, slot = gap[at]["start"], gap[at]["end"], gap[at]["slot"]
    greatest = over >= block[place]["latest"] or over - start >= block[place]["longest"]
    if begins > start:
        gap[at]["end"] = begins
    else:
        block[place]["count"] -= 1
        for k in range(at, block[place]["base"] + block[place]["count"]):
            gap[k]["start"] = gap[k + 1]["start"]
            gap[k]["end"] = gap[k + 1]["end"]
            gap[k]["slot"] = gap[k + 1]["slot"]
    # Only the gap with the latest end or the greatest length can have lowered the block's
    # figures; otherwise they still hold, and up to `FULL` gaps need no second look.
    if greatest:
        sum_up(gaps, place)
        sum_up_group(gaps, place // GROUP)
    if over > finish:
        insert(gaps, s, finish, over, slot)
    return int(slot)


@inlined
def insert(gaps: IdleGaps, s: int, begins: float, over: float, slot: int) -> None:
    """Adds a gap to site ``s``."""
    gap, block = gaps.gap, gaps.block
    place = block_at(gaps, s, begins)
    if block[place]["count"] == FULL:
        split(gaps, s, place)
        place += block[place + 1]["lower"] <= begins
    base = block[place]["base"]
    at = base + block[place]["count"]
    while at > base and gap[at - 1]["start"] > begins:
        gap[at]["start"] = gap[at - 1]["start"]
        gap[at]["end"] = gap[at - 1]["end"]
        gap[at]["slot"] = gap[at - 1]["slot"]
        at -= 1
    gap[at]["start"] = begins
    gap[at]["end"] = over
    gap[at]["slot"] = slot
    block[place]["count"] += 1
    # `lower` stays as it is: `block_at` gave a block whose bound is no later than this gap.
    block[place]["latest"] = max(block[place]["latest"], over)
    block[place]["longest"] = max(block[place]["longest"], over - begins)
    group = gaps.group[place // GROUP]
    group["latest"] = max(group["latest"], over)
    group["longest"] = max(group["longest"], over - begins)


@inlined
def split(gaps: IdleGaps, s: int, place: int) -> None:
    """Move the second half of a block into a new block that follows."""
    gap, block = gaps.gap, gaps.block
    new = gaps.span[s, 0] + gaps.span[s, 1]
    fresh = block[new]["base"]
    # Only the records of blocks move; gaps stay where they are, and `base` leads to them.
    for k in range(new, place, -1):
        block[k] = block[k - 1]
    half = FULL // 2
    middle = block[place]["base"] + half
    for k in range(half):
        gap[fresh + k] = gap[middle + k]
    block[place]["count"] = half
    block[place + 1]["count"] = half
    block[place + 1]["base"] = fresh
    block[place + 1]["lower"] = gap[fresh]["start"]
    gaps.span[s, 1] += 1
    sum_up(gaps, place)
    sum_up(gaps, place + 1)
    # Each block behind has moved by one, and some of them over a group's border.
    for group in range(place // GROUP, new // GROUP + 1):
        sum_up_group(gaps, group)


@inlined
def in_order(
    tasks: TaskArrays, slots: SlotArrays, caps: IntArray, priority: IntArray
) -> SerialSchedule:
    """
    Place the tasks one after the other, each where its finish is earliest.

    Stops at the first that fits nowhere.
    """
    runtimes, bytes_, latency, pace = tasks.runtimes, tasks.parent_bytes, tasks.latency, tasks.pace
    parent_start, parent_index = tasks.parent_start, tasks.parent_index
    n_tasks, n_sites = runtimes.shape
    site = np.full(n_tasks, -1)
    slot = np.full(n_tasks, -1)
    start = np.zeros(n_tasks)
    finish = np.zeros(n_tasks)
    gaps = empty_gaps(slots, caps, n_tasks)
    open_ = np.zeros(n_sites, dtype=np.bool_)
    for k in range(len(caps)):
        open_[slots.site[k]] |= caps[k] > 0
    for task in priority:
        best, ends, begins = -1, np.inf, 0.0
        place, index = -1, -1
        for s in range(n_sites):
            duration = runtimes[task, s]
            if duration == np.inf or not open_[s]:
                continue
            ready = 0.0
            for edge in range(parent_start[task], parent_start[task + 1]):
                parent = parent_index[edge]
                arrival = finish[parent]
                origin = site[parent]
                if origin != s:
                    arrival += latency[origin, s] + bytes_[edge] * pace[origin, s]
                ready = max(ready, arrival)
            # A task without duration needs no processor, so it takes no gap and is not paid.
            if duration == 0.0:
                if ready < ends:
                    best, begins, ends, place = s, ready, ready, -1
                continue
            p, i = gap_for(gaps, s, ready, duration, ends)
            if p >= 0:
                from_ = max(ready, gaps.gap[i]["start"])
                best, begins, ends, place, index = s, from_, from_ + duration, p, i
        if best < 0:
            break
        site[task], start[task], finish[task] = best, begins, ends
        if place >= 0:
            slot[task] = take(gaps, best, place, index, begins, ends)
    return SerialSchedule(site, slot, start, finish)


@compiled
def evaluate_serial(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    priorities: IntArray,
    whole: bool,
    makespan: FloatArray,
    cost: FloatArray,
    used: BoolArray,
    area: FloatArray,
) -> SerialSchedule:
    """
    Makespan and allocation cost of many purchases; answers the schedule of the last.

    The tasks hold one processor each, and no slot is leased; else as
    :func:`bursar.planning.kernels.lists.evaluate` with ``FINISH``.
    """
    for i in range(len(caps)):
        rota = in_order(tasks, slots, caps[i], priorities[i % len(priorities)])
        until = slots.end.copy()
        used[i] = False
        area[i] = 0.0
        makespan[i] = 0.0
        for task in range(len(rota.site)):
            makespan[i] = max(makespan[i], rota.finish[task] if rota.site[task] >= 0 else np.inf)
            slot = rota.slot[task]
            if slot >= 0:
                used[i, slot] = True
                area[i, slot] += rota.finish[task] - rota.start[task]
                until[slot] = max(until[slot], rota.finish[task])
        cost[i] = np.inf
        if makespan[i] < np.inf:
            cost[i] = 0.0
            for slot in range(len(until)):
                if used[i, slot] or (whole and caps[i, slot] > 0 and not slots.divisible[slot]):
                    held = slots.processors[slot] * (until[slot] - slots.start[slot])
                    seconds = area[i, slot] if slots.divisible[slot] else held
                    cost[i] += slots.fixed_price[slot] + slots.unit_price[slot] * seconds
    return rota
