"""
Schedules bags: independent tasks of one processor each.

No task waits for another, so a processor is never idle before its last task: it is free from some
moment on, until its slot ends. The processor of a slot that is free first is the best of the slot
for every task, and where a task would end too late there it would on any other. So a slot is a heap
of the moments from which its processors are free, and the schedule is that of
:func:`bursar.planning.kernels.lists.in_order` with ``FINISH``, to the last bit.
"""

import numpy as np

from bursar.compiling import compiled, compiled_part
from bursar.planning.kernels.availability import (
    AvailabilityProfile,
    BoolArray,
    FloatArray,
    IntArray,
    SlotArrays,
    empty_profile,
)
from bursar.planning.kernels.placing import (
    IDLE,
    NOWHERE,
    ScheduleDraft,
    TaskArrays,
    lease_idle,
    new_draft,
    payment,
)


@compiled_part
def push(heap: FloatArray, base: int, size: int, moment: float) -> None:
    """Adds a moment to the heap of ``size`` moments from ``heap[base]`` on, the least first."""
    k = size
    while k > 0:
        above = (k - 1) // 2
        if heap[base + above] <= moment:
            break
        heap[base + k] = heap[base + above]
        k = above
    heap[base + k] = moment


@compiled_part
def replace_least(heap: FloatArray, base: int, size: int, moment: float) -> None:
    """Puts a moment in the place of the least of such a heap; it is no less than that."""
    # Down to a leaf first, then up: most moments that come in are late, so that to compare them on
    # the way down would be in vain.
    k = 0
    below = 1
    while below + 1 < size:
        below += heap[base + below + 1] < heap[base + below]
        heap[base + k] = heap[base + below]
        k = below
        below = 2 * k + 1
    if below < size:
        heap[base + k] = heap[base + below]
        k = below
    push(heap, base, k, moment)


@compiled_part
def in_order(
    runtimes: FloatArray,
    slots: SlotArrays,
    board: AvailabilityProfile,
    kept: bool,
    priority: IntArray,
    draft: ScheduleDraft,
) -> float:
    """
    Place the tasks one after the other, each where its finish is earliest, and return the makespan.

    Of equal finishes the site named first; there a slot in use before others, then the slot that
    starts first. Stops at the first that fits nowhere; the makespan is infinite then.

    Parameters
    ----------
    runtimes
        Seconds of each task in its turn, shape ``(n_tasks, n_sites)``; infinite where it cannot
        run.
    board
        The slots, empty; written, but for their steps.
    kept, priority, draft
        Whether the place of each task is written into the draft, and the tasks in their turn.
    """
    # Moment from which some processor of the slot is free: its begin while one is unused, then the
    # least of the heap.
    open_from, uses, caps = board.open_from, board.uses, board.caps
    last, first = slots.last, slots.first
    n_tasks, n_sites = runtimes.shape
    base = np.empty(len(caps), dtype=np.int64)
    size = np.zeros(len(caps), dtype=np.int64)
    room = 0
    open_sites = np.zeros(n_sites, dtype=np.bool_)
    for slot in range(len(caps)):
        base[slot] = room
        room += min(caps[slot], n_tasks)  # more are never used
        open_sites[slots.site[slot]] |= caps[slot] > 0
    heap = np.empty(room)
    makespan = 0.0
    for turn in range(n_tasks):
        site, best, begins, ends = -1, NOWHERE, 0.0, np.inf
        for s in range(n_sites):
            duration = runtimes[turn, s]
            if duration == np.inf or not open_sites[s]:
                continue
            if duration == 0.0:
                if ends > 0.0:
                    site, best, begins, ends = s, IDLE, 0.0, 0.0
                continue
            for slot in range(first[s], first[s + 1]):
                finish = open_from[slot] + duration
                if finish > ends or finish > last[slot]:
                    continue
                if finish < ends or (site == s and uses[slot] > 0 and uses[best] == 0):
                    site, best, begins, ends = s, slot, open_from[slot], finish
        if best == NOWHERE:
            return np.inf
        makespan = max(makespan, ends)
        if kept:
            task, at = priority[turn], draft.held[0]
            draft.site[task] = site
            draft.start[task] = begins
            draft.finish[task] = ends
            draft.held_first[task] = at
            if best >= 0:
                draft.held_slot[at] = best
                draft.held_width[at] = 1
                draft.held[0] = at + 1
                draft.held_count[task] = 1
        if best == IDLE:
            lease_idle(slots, board, site, ends, 1)
            continue
        uses[best] += 1
        board.area[best] += ends - begins
        board.until[best] = max(board.until[best], ends)
        # A runtime may be lost beside a late begin; such a task leaves its processor as it was.
        if ends > begins:
            if size[best] < caps[best]:
                push(heap, base[best], size[best], ends)
                size[best] += 1
            else:
                replace_least(heap, base[best], size[best], ends)
            if size[best] == caps[best]:
                open_from[best] = heap[base[best]]
        # All that are ever used are in use together when the slot begins.
        board.peak[best] = max(board.peak[best], size[best], 1)
    return makespan


@compiled
def evaluate_bag(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    priorities: IntArray,
    whole: bool,
    shortest: float,
    makespan: FloatArray,
    cost: FloatArray,
    used: BoolArray,
    area: FloatArray,
) -> ScheduleDraft:
    """
    Makespan and allocation cost of many purchases; answers the schedule of the last.

    The tasks hold one processor each and have no parents; else as
    :func:`bursar.planning.kernels.lists.evaluate` with ``FINISH``. The steps of the draft's slots
    are not kept.
    """
    n_tasks, n_sites = tasks.runtimes.shape
    runtimes = np.empty((n_tasks, n_sites))
    draft = new_draft(tasks, slots, caps[len(caps) - 1])
    for i in range(len(caps)):
        priority = priorities[i % len(priorities)]
        if i == 0 or len(priorities) > 1:
            # In the order of their use: tasks in a random order would be cache misses each time.
            for turn in range(n_tasks):
                runtimes[turn] = tasks.runtimes[priority[turn]]
        kept = i == len(caps) - 1
        board = draft.board if kept else empty_profile(slots, caps[i], 0, False)
        makespan[i] = in_order(runtimes, slots, board, kept, priority, draft)
        cost[i] = payment(slots, board, whole, shortest) if makespan[i] < np.inf else np.inf
        for slot in range(len(board.caps)):
            used[i, slot] = board.uses[slot] > 0
            area[i, slot] = board.area[slot]
    return draft
