"""
Free processors over time: what a schedule under construction looks up and changes.

The free processors of a row over time are a *profile*: ``times[i]`` is when step
``i`` begins, ``free[i]`` how many processors are free until the next step. The
last step never ends; in a slot that ends nothing is free in it. Neighbours
differ. Each slot has a row, and after the slots each site has one, the sum of
its slots, where a task may need several of them at once.

Processors of one slot are interchangeable, so counts are enough here; which
processor a task holds is decided afterwards (:mod:`bursar.planning.numbering`).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled_part

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ROOM = 6
"""Steps for which a slot's row has room at first; a full row moves to twice the room."""


class SlotArrays(NamedTuple):
    """
    Holds the slots on offer as arrays, site after site, by start within a site.

    Parameters
    ----------
    first
        Slots of site ``s`` are ``first[s]:first[s + 1]``, shape ``(n_sites + 1,)``.
    site
        Index, shape ``(n_slots,)``.
    start
        Seconds, shape ``(n_slots,)``.
    begin
        First moment of use, no earlier than 0, shape ``(n_slots,)``.
    end
        Seconds, shape ``(n_slots,)``.
    last
        Last moment of use: the end, infinite where extensible, shape ``(n_slots,)``.
    by_last
        Slots of each site by ``last``, shape ``(n_slots,)``.
    processors
        Shape ``(n_slots,)``.
    unit_price, fixed_price
        Currency units per processor-second and per slot, shape ``(n_slots,)``; NaN
        is unknown.
    divisible, leased
        Shape ``(n_slots,)``.
    """

    first: IntArray
    site: IntArray
    start: FloatArray
    begin: FloatArray
    end: FloatArray
    last: FloatArray
    by_last: IntArray
    processors: IntArray
    unit_price: FloatArray
    fixed_price: FloatArray
    divisible: BoolArray
    leased: BoolArray


class AvailabilityProfile(NamedTuple):
    """
    Holds the free processors of slots and sites over time, while tasks are placed.

    Parameters
    ----------
    times, free
        Steps of all rows, each row's together.
    base, steps, room
        Where each row begins, how many steps it has and has room for, shape
        ``(n_slots + n_sites,)``.
    tail
        First entry of ``times`` that no row has, shape ``(1,)``.
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``.
    open_step, open_from
        First step of the slot in which something is free, counted from the row's
        first, and when it begins, infinite when there is none, shape ``(n_slots,)``.
    uses
        Number of times that a task was put into the slot, shape ``(n_slots,)``.
    area
        Processor-seconds in use, shape ``(n_slots,)``.
    until
        Last finish, shape ``(n_slots,)``; the slot's start where nothing runs.
    peak
        Most processors in use at once, shape ``(n_slots,)``.
    """

    times: FloatArray
    free: IntArray
    base: IntArray
    steps: IntArray
    room: IntArray
    tail: IntArray
    caps: IntArray
    open_step: IntArray
    open_from: FloatArray
    uses: IntArray
    area: FloatArray
    until: FloatArray
    peak: IntArray


@compiled_part
def empty_profile(
    slots: SlotArrays, caps: IntArray, holdings: int, summed: bool
) -> AvailabilityProfile:
    """
    Return the profile of slots in which nothing is placed.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``.
    holdings
        Number of times, at most, that a task is put into a slot.
    summed
        Whether the rows of the sites are kept.
    """
    n_slots = len(caps)
    n_sites = len(slots.first) - 1
    rows = n_slots + n_sites
    # A row that outgrows its room moves into twice the room; what all rows ever
    # have is at most four times the steps they end with, three for each slot and
    # two more for each holding, in the slot's row and in the site's.
    size = 8 * holdings + 24 * n_slots + 16 * n_sites + 64
    if summed:
        size += 8 * holdings
    times = np.empty(size)
    free = np.empty(size, dtype=np.int64)
    base = np.zeros(rows, dtype=np.int64)
    steps = np.zeros(rows, dtype=np.int64)
    room = np.zeros(rows, dtype=np.int64)
    open_from = np.empty(n_slots)
    at = 0
    for slot in range(n_slots):
        base[slot] = at
        room[slot] = ROOM
        times[at] = slots.begin[slot]
        free[at] = caps[slot]
        steps[slot] = 1
        open_from[slot] = slots.begin[slot] if caps[slot] > 0 else np.inf
        if slots.last[slot] < np.inf:
            times[at + 1] = max(slots.last[slot], slots.begin[slot])
            free[at + 1] = 0
            steps[slot] = 2
            if slots.last[slot] <= slots.begin[slot]:
                free[at] = 0
                steps[slot] = 1
                open_from[slot] = np.inf
        at += ROOM
    if summed:
        for s in range(n_sites):
            row = n_slots + s
            base[row] = at
            low, high = slots.first[s], slots.first[s + 1]
            room[row] = 2 * (high - low) + 6
            steps[row] = sum_of(slots, caps, low, high, times, free, at)
            at += room[row]
    return AvailabilityProfile(
        times,
        free,
        base,
        steps,
        room,
        np.array([at]),
        caps,
        np.zeros(n_slots, dtype=np.int64),
        open_from,
        np.zeros(n_slots, dtype=np.int64),
        np.zeros(n_slots),
        slots.start.copy(),
        np.zeros(n_slots, dtype=np.int64),
    )


@compiled_part
def sum_of(
    slots: SlotArrays,
    caps: IntArray,
    low: int,
    high: int,
    times: FloatArray,
    free: IntArray,
    at: int,
) -> int:
    """Write the sum of the empty slots ``low`` to ``high`` at ``at``; return the step count."""
    times[at] = 0.0
    free[at] = 0
    steps = 1
    i, j = low, low
    while i < high:
        if j == high or slots.begin[i] < slots.last[slots.by_last[j]]:
            moment, change = slots.begin[i], caps[i]
            if slots.last[i] <= slots.begin[i]:
                change = 0
            i += 1
        else:
            slot = slots.by_last[j]
            moment, change = slots.last[slot], -caps[slot]
            if slots.last[slot] <= slots.begin[slot]:
                change = 0
            j += 1
        steps = change_at(times, free, at, steps, moment, change)
    while j < high and slots.last[slots.by_last[j]] < np.inf:
        slot = slots.by_last[j]
        if slots.last[slot] > slots.begin[slot]:
            steps = change_at(times, free, at, steps, slots.last[slot], -caps[slot])
        j += 1
    return steps


@compiled_part
def change_at(
    times: FloatArray, free: IntArray, at: int, steps: int, moment: float, change: int
) -> int:
    """Change the last step of a row from ``moment`` on; return the row's number of steps."""
    if change == 0:
        return steps
    if times[at + steps - 1] == moment:
        free[at + steps - 1] += change
        if steps > 1 and free[at + steps - 1] == free[at + steps - 2]:
            steps -= 1
        return steps
    times[at + steps] = moment
    free[at + steps] = free[at + steps - 1] + change
    return steps + 1


@compiled_part
def step_at(times: FloatArray, low: int, end: int, moment: float) -> int:
    """Which of the steps ``low`` to ``end`` holds ``moment``, which is not before the first."""
    if low + 1 == end or times[low + 1] > moment:  # as so often
        return low
    while end - low > 1:
        middle = (low + end) // 2
        if times[middle] <= moment:
            low = middle
        else:
            end = middle
    return low


@compiled_part
def earliest_start(
    times: FloatArray,
    free: IntArray,
    low: int,
    end: int,
    ready: float,
    duration: float,
    width: int,
    give_up: float,
) -> float:
    """
    First moment from ``ready`` on with ``width`` processors free for ``duration``.

    Infinite when there is none, or the task would end after ``give_up``. The row's
    steps are ``low`` to ``end``; ``ready`` is not before the first.
    """
    start = ready
    for i in range(step_at(times, low, end, ready), end):
        if start + duration > give_up:
            break
        # A window that meets a step with too little free can begin after that step at the
        # earliest: so one pass over the steps is enough.
        if free[i] < width:
            if i + 1 == end:
                break
            start = times[i + 1]
        elif i + 1 == end or times[i + 1] >= start + duration:
            return start
    return np.inf


@compiled_part
def least_free(
    times: FloatArray, free: IntArray, low: int, end: int, start: float, finish: float
) -> tuple[int, float]:
    """
    Fewest processors free at once from ``start`` to ``finish``, and when that is over.

    The second is the earliest later start at which there may be more; infinite
    when there is none. The row's steps are ``low`` to ``end``; ``start`` is not
    before the first.
    """
    i = step_at(times, low, end, start)
    least = free[i]
    at = i
    while i + 1 < end and times[i + 1] < finish:
        i += 1
        # The last of several equal ones: until it is over, a later start finds no more.
        if free[i] <= least:
            least = free[i]
            at = i
    return least, times[at + 1] if at + 1 < end else np.inf


@compiled_part
def least_in(board: AvailabilityProfile, row: int, start: float, finish: float) -> int:
    """Fewest processors of a row free at once from ``start`` to ``finish``."""
    low = board.base[row]
    least, _ = least_free(board.times, board.free, low, low + board.steps[row], start, finish)
    return least


@compiled_part
def split_at(board: AvailabilityProfile, row: int, moment: float) -> int:
    """Make a step of the row begin at ``moment``; return the step's index. The row has room."""
    times, free = board.times, board.free
    i = step_at(times, board.base[row], board.base[row] + board.steps[row], moment)
    if times[i] == moment:
        return i
    for k in range(board.base[row] + board.steps[row], i + 1, -1):
        times[k] = times[k - 1]
        free[k] = free[k - 1]
    times[i + 1] = moment
    free[i + 1] = free[i]
    board.steps[row] += 1
    return i + 1


@compiled_part
def merge_at(board: AvailabilityProfile, row: int, i: int) -> None:
    """Drop step ``i`` of a row if as many processors are free as in the step before."""
    times, free = board.times, board.free
    if i == board.base[row] or free[i] != free[i - 1]:
        return
    for k in range(i, board.base[row] + board.steps[row] - 1):
        times[k] = times[k + 1]
        free[k] = free[k + 1]
    board.steps[row] -= 1


@compiled_part
def occupy(board: AvailabilityProfile, row: int, start: float, finish: float, width: int) -> int:
    """
    Take processors of a row from ``start`` to ``finish``.

    Return the fewest that are left at once.
    """
    # Two splits make at most two steps more. The row moves to the end of the arrays; its old
    # place stays unused, which `empty_profile` has allowed for.
    if board.steps[row] + 2 > board.room[row]:
        base, at, steps = board.base[row], board.tail[0], board.steps[row]
        for k in range(steps):
            board.times[at + k] = board.times[base + k]
            board.free[at + k] = board.free[base + k]
        board.base[row] = at
        board.room[row] *= 2
        board.tail[0] += board.room[row]
    first = split_at(board, row, start)
    # In this order: a step made at the finish lies behind `first` and does not move it.
    last = split_at(board, row, finish)
    least = board.free[first]
    for i in range(first, last):
        board.free[i] -= width
        least = min(least, board.free[i])
    merge_at(board, row, last)  # the later one first: it moves nothing before it
    merge_at(board, row, first)
    return int(least)


@compiled_part
def put(board: AvailabilityProfile, slot: int, start: float, finish: float, width: int) -> None:
    """Take processors of a slot for a task, or for its part of a task."""
    least = occupy(board, slot, start, finish, width)
    board.uses[slot] += 1
    board.area[slot] += width * (finish - start)
    board.until[slot] = max(board.until[slot], finish)
    board.peak[slot] = max(board.peak[slot], board.caps[slot] - least, width)
    # What begins later leaves the first open step as it is.
    if start <= board.open_from[slot]:
        i = board.base[slot] + board.open_step[slot]
        end = board.base[slot] + board.steps[slot]
        while i < end and board.free[i] == 0:
            i += 1
        board.open_step[slot] = min(i, end - 1) - board.base[slot]
        board.open_from[slot] = board.times[i] if i < end else np.inf
