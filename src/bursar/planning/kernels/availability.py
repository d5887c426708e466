"""
Free processors over time: what a schedule under construction looks up and changes.

Each slot has a row, which is a profile (:mod:`bursar.profile_kernel`) in which nothing is
free after the slot's end. After the slots each site has a row, the sum of its slots, where a
task may need several of them at once.

Processors of one slot are interchangeable, so counts are enough here; which
processor a task holds is decided afterwards (:mod:`bursar.planning.building`).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled_part
from bursar.profile_kernel import change, least_free

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
        Currency units per processor-second and per slot, shape ``(n_slots,)``; NaN is unknown.
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
            times[at], free[at] = 0.0, 0
            end = at + 1
            for slot in range(low, high):
                begin, last = slots.begin[slot], slots.last[slot]
                end, _ = change(times, free, at, end, begin, last, caps[slot])
            steps[row] = end - at
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
def least_in(board: AvailabilityProfile, row: int, start: float, finish: float) -> int:
    """Fewest processors of a row free at once from ``start`` to ``finish``."""
    low = board.base[row]
    least, _ = least_free(board.times, board.free, low, low + board.steps[row], start, finish)
    return least


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
    low = board.base[row]
    high, least = change(
        board.times, board.free, low, low + board.steps[row], start, finish, -width
    )
    board.steps[row] = high - low
    return least


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
