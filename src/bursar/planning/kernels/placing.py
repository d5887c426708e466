"""
Places one task in the slots: finds the candidates, prices them and commits one.

A task of several processors runs within one site. It takes them from one slot
where it can, else, or when that is sooner, from several slots of the site that
overlap in time (HPDC'07 section 5, *cross-slot scheduling*): each of its
processors is free from its start to its finish in the slot it belongs to.
"""

from typing import NamedTuple

import numpy as np

from bursar.compiling import compiled, compiled_part
from bursar.planning.kernels.availability import (
    AvailabilityProfile,
    FloatArray,
    IntArray,
    SlotArrays,
    empty_profile,
    least_in,
    occupy,
    put,
)
from bursar.profile_kernel import earliest_start, least_free

NOWHERE = -3
IDLE = -2
"""Slot of a task without duration, which holds no processors."""
TOGETHER = -1
"""Slot of a task that takes several slots of the site at once."""


class TaskArrays(NamedTuple):
    """
    Holds the tasks to be placed; see :class:`bursar.planning.problem.PlanningProblem`.

    Parameters
    ----------
    runtimes
        Seconds, shape ``(n_tasks, n_sites)``; infinite where a task cannot run.
    widths
        Processors a task holds, shape ``(n_tasks,)``.
    parent_start, parent_index, parent_bytes
        Parents of task ``i`` are ``parent_index[parent_start[i]:parent_start[i + 1]]``;
        an edge is a position in ``parent_index``.
    latency, pace
        Seconds, and seconds per byte, from site to site, shape ``(n_sites, n_sites)``;
        not used within a site.
    """

    runtimes: FloatArray
    widths: IntArray
    parent_start: IntArray
    parent_index: IntArray
    parent_bytes: FloatArray
    latency: FloatArray
    pace: FloatArray


class ScheduleDraft(NamedTuple):
    """
    A schedule under construction.

    Parameters
    ----------
    board
        The slots.
    site
        Index of each task's site, shape ``(n_tasks,)``; -1 where it is not placed.
    start, finish
        Seconds, shape ``(n_tasks,)``.
    held_first, held_count
        Holdings of task ``i`` are ``held_first[i]`` and the next, ``held_count[i]`` of
        them, shape ``(n_tasks,)``.
    held_slot, held_width
        Slot of each holding, and how many of its processors.
    held
        How many holdings there are, shape ``(1,)``.
    open_sites
        Whether any processor of the site may be used, shape ``(n_sites,)``.
    wide
        Tasks still to be placed that may take several slots together, shape ``(1,)``.
        The rows of the sites are kept as long as there are any.
    """

    board: AvailabilityProfile
    site: IntArray
    start: FloatArray
    finish: FloatArray
    held_first: IntArray
    held_count: IntArray
    held_slot: IntArray
    held_width: IntArray
    held: IntArray
    open_sites: IntArray
    wide: IntArray


class CandidatePlacement(NamedTuple):
    """Describes a place for a task; the slot may be ``TOGETHER``, ``IDLE`` or ``NOWHERE``."""

    site: int
    slot: int
    start: float
    finish: float
    price: float


@compiled_part
def new_draft(tasks: TaskArrays, slots: SlotArrays, caps: IntArray) -> ScheduleDraft:
    """Return a draft without tasks; ``caps`` are the processors of each slot that may be used."""
    n_tasks, n_sites = tasks.runtimes.shape
    n_slots = len(caps)
    most = 0
    for s in range(n_sites):
        most = max(most, slots.first[s + 1] - slots.first[s])
    holdings = 0
    wide = 0
    for task in range(n_tasks):
        # From each slot at least one processor, all of one site: the arrays need never grow.
        holdings += min(tasks.widths[task], most)
        wide += tasks.widths[task] > 1 and most > 1
    open_sites = np.zeros(n_sites, dtype=np.int64)
    for slot in range(n_slots):
        open_sites[slots.site[slot]] += caps[slot]
    return ScheduleDraft(
        empty_profile(slots, caps, holdings, wide > 0),
        np.full(n_tasks, -1),
        np.zeros(n_tasks),
        np.zeros(n_tasks),
        np.zeros(n_tasks, dtype=np.int64),
        np.zeros(n_tasks, dtype=np.int64),
        np.empty(holdings, dtype=np.int64),
        np.empty(holdings, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        open_sites,
        np.array([wide]),
    )


@compiled_part
def ready_at(tasks: TaskArrays, draft: ScheduleDraft, task: int, s: int) -> float:
    """Return the moment at which the outputs of all parents have arrived at site ``s``."""
    ready = 0.0
    for edge in range(tasks.parent_start[task], tasks.parent_start[task + 1]):
        parent = tasks.parent_index[edge]
        arrival = draft.finish[parent]
        origin = draft.site[parent]
        if origin != s:
            arrival += tasks.latency[origin, s] + tasks.parent_bytes[edge] * tasks.pace[origin, s]
        ready = max(ready, arrival)
    return ready


@compiled_part
def earliest_in(
    slots: SlotArrays,
    board: AvailabilityProfile,
    slot: int,
    ready: float,
    duration: float,
    width: int,
    give_up: float,
) -> float:
    """Return the earliest start in one slot; infinite when the end would be after ``give_up``."""
    if board.caps[slot] < width or slots.last[slot] < ready + duration:
        return np.inf
    start = max(ready, board.open_from[slot])
    if start + duration > give_up:
        return np.inf
    end = board.base[slot] + board.steps[slot]
    # Earlier steps have nothing free, and a full slot may have many of them.
    low = board.base[slot] + board.open_step[slot]
    return earliest_start(board.times, board.free, low, end, start, duration, width, give_up)


@compiled_part
def earliest_together(
    slots: SlotArrays,
    board: AvailabilityProfile,
    s: int,
    ready: float,
    duration: float,
    width: int,
    give_up: float,
) -> float:
    """
    Earliest start with the processors from any slots of site ``s``.

    Infinite when the task would not end before ``give_up``. The sum of the
    slots' free processors tells where it is worth looking.
    """
    times, free, base, steps = board.times, board.free, board.base, board.steps
    caps, begin, last = board.caps, slots.begin, slots.last
    low, high = slots.first[s], slots.first[s + 1]
    row = len(caps) + s
    row_end = base[row] + steps[row]
    start = ready
    while True:
        # Necessary, not sufficient: processors freed in one slot while another's are taken count in
        # the sum, but a task cannot move between slots. So slots are counted one by one.
        start = earliest_start(times, free, base[row], row_end, start, duration, width, give_up)
        if start + duration >= give_up:
            return np.inf
        found = 0
        later = np.inf
        for slot in range(low, high):
            if caps[slot] == 0:
                continue
            if begin[slot] > start:
                # Slots lie by start: all that follow begin later still.
                later = min(later, begin[slot])
                break
            if last[slot] >= start + duration:
                least, over = least_free(
                    times, free, base[slot], base[slot] + steps[slot], start, start + duration
                )
                found += least
                # A slot with nothing in it gives no more later, so it is no reason to try again.
                if least < caps[slot]:
                    later = min(later, over)
        if found >= width:
            return start
        if later == np.inf:
            return np.inf
        start = later


@compiled_part
def price_in(
    slots: SlotArrays,
    board: AvailabilityProfile,
    slot: int,
    start: float,
    finish: float,
    width: int,
) -> float:
    """Return the rise of the payment for the slot through one more task, currency units."""
    unit = slots.unit_price[slot]
    fresh = board.uses[slot] == 0
    price = slots.fixed_price[slot] if fresh else 0.0
    if slots.leased[slot]:
        least = least_in(board, slot, start, finish)
        # A lease is one rectangle: a wider peak or a later end pays from the slot's start on.
        peak = max(board.peak[slot], board.caps[slot] - least + width)
        until = max(board.until[slot], finish)
        before = board.peak[slot] * (board.until[slot] - slots.start[slot])
        return float(price + unit * (peak * (until - slots.start[slot]) - before))
    if slots.divisible[slot]:
        return float(price + unit * width * (finish - start))
    # The first task pays for the whole slot; later ones only for an extension.
    paid = slots.start[slot] if fresh else max(slots.end[slot], board.until[slot])
    end = max(slots.end[slot], finish)
    return float(price + unit * slots.processors[slot] * max(0.0, end - paid))


@compiled_part
def shares_of(
    slots: SlotArrays, board: AvailabilityProfile, s: int, start: float, finish: float, width: int
) -> tuple[IntArray, IntArray]:
    """
    Return the slots that host a task together, and the processors of each.

    Those in use already come first, then those with the most to give, then those that start first.
    """
    low, high = slots.first[s], slots.first[s + 1]
    free = np.zeros(high - low, dtype=np.int64)
    for slot in range(low, high):
        if slots.begin[slot] > start:
            break
        if board.caps[slot] > 0 and slots.last[slot] >= finish:
            free[slot - low] = least_in(board, slot, start, finish)
    taken = np.empty(min(width, high - low), dtype=np.int64)
    counts = np.empty(min(width, high - low), dtype=np.int64)
    n = 0
    left = width
    while left > 0:
        best = -1
        for k in range(high - low):
            if free[k] > 0 and (
                best < 0
                # A slot in use has its fixed price paid already.
                or (board.uses[low + k] > 0) > (board.uses[low + best] > 0)
                or (
                    (board.uses[low + k] > 0) == (board.uses[low + best] > 0)
                    and free[k] > free[best]
                )
            ):
                best = k
        taken[n] = low + best
        counts[n] = min(left, free[best])
        left -= counts[n]
        free[best] = 0
        n += 1
    return taken[:n], counts[:n]


@compiled_part
def first_late(last: FloatArray, by_last: IntArray, low: int, high: int, moment: float) -> int:
    """First of the positions ``low`` to ``high`` of a slot that is open until ``moment``."""
    while low < high:
        middle = (low + high) // 2
        if last[by_last[middle]] < moment:
            low = middle + 1
        else:
            high = middle
    return low


@compiled_part
def soonest(
    tasks: TaskArrays, slots: SlotArrays, draft: ScheduleDraft, task: int
) -> CandidatePlacement:
    """
    Return the place where the task finishes earliest.

    Of equal finishes the site named first; there one slot before several, a slot
    in use before others, then the slot that starts first.
    """
    board = draft.board
    times, free, base, steps = board.times, board.free, board.base, board.steps
    caps, open_step, open_from, uses = board.caps, board.open_step, board.open_from, board.uses
    last, by_last, first = slots.last, slots.by_last, slots.first
    width = tasks.widths[task]
    site, best, begins, ends = -1, NOWHERE, 0.0, np.inf
    in_use = False
    for s in range(tasks.runtimes.shape[1]):
        duration = tasks.runtimes[task, s]
        if duration == np.inf or draft.open_sites[s] == 0:
            continue
        ready = ready_at(tasks, draft, task, s)
        if duration == 0.0:
            if draft.open_sites[s] >= width and ready < ends:
                site, best, begins, ends = s, IDLE, ready, ready
                in_use = True
            continue
        # Slots that end too early for the task are many where much time has passed.
        low, high = first[s], first[s + 1]
        late = first_late(last, by_last, low, high, ready + duration)
        for k in range(late, high):
            slot = by_last[k]
            from_ = max(ready, open_from[slot])
            finish = from_ + duration
            # Most slots are ruled out by `open_from`, the earliest, without a look at their steps.
            if finish > ends or caps[slot] < width or last[slot] < finish:
                continue
            used = uses[slot] > 0
            if finish == ends and site == s and (in_use, -best) >= (used, -slot):
                continue
            # Sites come in their order, so an equal finish stays with the site named first.
            if finish == ends and site != s:
                continue
            step, end = base[slot] + open_step[slot], base[slot] + steps[slot]
            start = earliest_start(times, free, step, end, from_, duration, width, ends)
            finish = start + duration
            if finish < ends or (
                finish == ends < np.inf and site == s and (used, -slot) > (in_use, -best)
            ):
                site, best, begins, ends = s, slot, start, finish
                in_use = used
        if draft.wide[0] > 0 and width > 1:
            start = earliest_together(slots, board, s, ready, duration, width, ends)
            if start + duration < ends:
                site, best, begins, ends = s, TOGETHER, start, start + duration
                in_use = True
    return CandidatePlacement(site, best, begins, ends, 0.0)


@compiled_part
def first_within(
    tasks: TaskArrays, slots: SlotArrays, draft: ScheduleDraft, task: int, makespan: float
) -> CandidatePlacement:
    """
    Return the place where the task raises the makespan least, of equal places the first.

    Sites in their order, slots by start, several slots together last.
    """
    board = draft.board
    times, free, base, steps = board.times, board.free, board.base, board.steps
    caps, open_step, open_from = board.caps, board.open_step, board.open_from
    begin, last, first = slots.begin, slots.last, slots.first
    width = tasks.widths[task]
    best = CandidatePlacement(-1, NOWHERE, 0.0, np.inf, 0.0)
    for s in range(tasks.runtimes.shape[1]):
        duration = tasks.runtimes[task, s]
        if duration == np.inf or draft.open_sites[s] == 0:
            continue
        ready = ready_at(tasks, draft, task, s)
        if duration == 0.0:
            if draft.open_sites[s] >= width and max(ready, makespan) < max(best.finish, makespan):
                best = CandidatePlacement(s, IDLE, ready, ready, 0.0)
            continue
        for slot in range(first[s], first[s + 1]):
            if best.finish <= makespan or begin[slot] + duration >= best.finish:
                break
            from_ = max(ready, open_from[slot])
            if caps[slot] < width or last[slot] < from_ + duration:
                continue
            low, end = base[slot] + open_step[slot], base[slot] + steps[slot]
            start = earliest_start(times, free, low, end, from_, duration, width, best.finish)
            if max(start + duration, makespan) < max(best.finish, makespan):
                best = CandidatePlacement(s, slot, start, start + duration, 0.0)
        if draft.wide[0] > 0 and width > 1 and best.finish > makespan:
            start = earliest_together(slots, board, s, ready, duration, width, best.finish)
            if start + duration < best.finish:
                best = CandidatePlacement(s, TOGETHER, start, start + duration, 0.0)
    return best


@compiled_part
def cheapest(
    tasks: TaskArrays,
    slots: SlotArrays,
    draft: ScheduleDraft,
    task: int,
    makespan: float,
    weight: float,
    worth: float,
) -> CandidatePlacement:
    """
    Return the place where the total cost rises least (e-Science'06 equation 5).

    The total is weight x allocation cost + (1 - weight) x worth x makespan. Each slot is judged at
    the task's earliest start in it. Of equal totals the one that finishes first, then the first.
    """
    board = draft.board
    times, free, base, steps = board.times, board.free, board.base, board.steps
    caps, open_step, open_from = board.caps, board.open_step, board.open_from
    last, first = slots.last, slots.first
    width = tasks.widths[task]
    best = CandidatePlacement(-1, NOWHERE, 0.0, np.inf, np.inf)
    for s in range(tasks.runtimes.shape[1]):
        duration = tasks.runtimes[task, s]
        if duration == np.inf or draft.open_sites[s] == 0:
            continue
        ready = ready_at(tasks, draft, task, s)
        if duration == 0.0:
            if draft.open_sites[s] >= width:
                total = (1 - weight) * worth * max(makespan, ready)
                if better(total, ready, best):
                    best = CandidatePlacement(s, IDLE, ready, ready, total)
            continue
        for slot in range(first[s], first[s + 1]):
            from_ = max(ready, open_from[slot])
            if caps[slot] < width or last[slot] < from_ + duration:
                continue
            low, end = base[slot] + open_step[slot], base[slot] + steps[slot]
            start = earliest_start(times, free, low, end, from_, duration, width, np.inf)
            if start == np.inf:
                continue
            finish = start + duration
            price = price_in(slots, board, slot, start, finish, width)
            total = weight * price + (1 - weight) * worth * max(makespan, finish)
            if better(total, finish, best):
                best = CandidatePlacement(s, slot, start, finish, total)
        if draft.wide[0] > 0 and width > 1:
            start = earliest_together(slots, board, s, ready, duration, width, np.inf)
            if start < np.inf:
                finish = start + duration
                price = price_together(slots, board, s, start, finish, width)
                total = weight * price + (1 - weight) * worth * max(makespan, finish)
                if better(total, finish, best):
                    best = CandidatePlacement(s, TOGETHER, start, finish, total)
    return best


@compiled_part
def better(total: float, finish: float, than: CandidatePlacement) -> bool:
    """Whether a place comes before another in the order of :func:`cheapest`."""
    return total < than.price or (total == than.price and finish < than.finish)


@compiled_part
def price_together(
    slots: SlotArrays, board: AvailabilityProfile, s: int, start: float, finish: float, width: int
) -> float:
    """Return the rise of the payments through a task that takes several slots."""
    taken, counts = shares_of(slots, board, s, start, finish, width)
    price = 0.0
    for k in range(len(taken)):
        price += price_in(slots, board, taken[k], start, finish, counts[k])
    return price


@compiled_part
def commit(
    tasks: TaskArrays, slots: SlotArrays, draft: ScheduleDraft, task: int, place: CandidatePlacement
) -> None:
    """Put a task at the place chosen."""
    board = draft.board
    width = tasks.widths[task]
    draft.site[task] = place.site
    draft.start[task] = place.start
    draft.finish[task] = place.finish
    draft.held_first[task] = draft.held[0]
    if place.slot == IDLE:
        lease_idle(slots, board, place.site, place.finish, width)
    elif place.slot == TOGETHER:
        taken, counts = shares_of(slots, board, place.site, place.start, place.finish, width)
        for k in range(len(taken)):
            hold(draft, task, taken[k], counts[k], place.start, place.finish)
    else:
        hold(draft, task, place.slot, width, place.start, place.finish)
    if draft.wide[0] > 0:
        # Rows of sites serve wide tasks only. When the last of these is placed, the rows are no
        # longer kept, which saves the second of two updates for each task after it.
        draft.wide[0] -= width > 1
        if place.finish > place.start:
            occupy(board, len(board.caps) + place.site, place.start, place.finish, width)


@compiled_part
def hold(
    draft: ScheduleDraft, task: int, slot: int, count: int, start: float, finish: float
) -> None:
    """Give a task processors of a slot."""
    at = draft.held[0]
    draft.held_slot[at] = slot
    draft.held_width[at] = count
    draft.held[0] += 1
    draft.held_count[task] += 1
    put(draft.board, slot, start, finish, count)


@compiled_part
def lease_idle(
    slots: SlotArrays, board: AvailabilityProfile, s: int, finish: float, width: int
) -> None:
    """
    Widen a lease to a task without duration, which holds no processors.
    """
    for slot in range(slots.first[s], slots.first[s + 1]):
        there = slots.begin[slot] <= finish <= slots.last[slot]
        if slots.leased[slot] and there and board.caps[slot] >= width:
            board.uses[slot] += 1
            board.until[slot] = max(board.until[slot], finish)
            board.peak[slot] = max(board.peak[slot], width)
            return


@compiled_part
def payment(slots: SlotArrays, board: AvailabilityProfile, whole: bool, shortest: float) -> float:
    """
    Allocation cost of what is placed, currency units; NaN when a price is unknown.

    Parameters
    ----------
    whole
        Whether indivisible slots that may be used are paid though nothing runs in them.
    shortest
        A lease is paid for at least so many seconds.
    """
    total = 0.0
    for slot in range(len(board.caps)):
        if board.uses[slot] > 0 or (whole and board.caps[slot] > 0 and not slots.divisible[slot]):
            total += slots.fixed_price[slot]
            total += slots.unit_price[slot] * processor_seconds(slots, board, slot, shortest)
    return total


@compiled_part
def processor_seconds(
    slots: SlotArrays, board: AvailabilityProfile, slot: int, shortest: float
) -> float:
    """Return the processor time that is paid for a slot, seconds."""
    if slots.leased[slot]:
        return float(board.peak[slot] * max(board.until[slot] - slots.start[slot], shortest))
    if slots.divisible[slot]:
        return float(board.area[slot])
    span = max(slots.end[slot], board.until[slot]) - slots.start[slot]
    return float(slots.processors[slot] * span)


@compiled
def seconds_paid(slots: SlotArrays, board: AvailabilityProfile, shortest: float) -> FloatArray:
    """Processor time paid of each slot that is used, shape ``(n_slots,)``; see :func:`payment`."""
    paid = np.zeros(len(board.caps))
    for slot in range(len(board.caps)):
        if board.uses[slot] > 0:
            paid[slot] = processor_seconds(slots, board, slot, shortest)
    return paid
