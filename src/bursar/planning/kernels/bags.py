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
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.lists import measure
from bursar.planning.kernels.placing import (
    IDLE,
    NOWHERE,
    ScheduleDraft,
    TaskArrays,
    lease_idle,
    new_draft,
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
    k = 0
    below = 1
    while below < size:
        if below + 1 < size and heap[base + below + 1] < heap[base + below]:
            below += 1
        if heap[base + below] >= moment:
            break
        heap[base + k] = heap[base + below]
        k = below
        below = 2 * k + 1
    heap[base + k] = moment


@compiled_part
def in_order(
    tasks: TaskArrays, slots: SlotArrays, caps: IntArray, priority: IntArray
) -> ScheduleDraft:
    """
    Place the tasks one after the other, each where its finish is earliest.

    Of equal finishes the site named first; there a slot in use before others, then the slot that
    starts first. Stops at the first that fits nowhere; it and those after it have site -1. The
    steps of the draft's slots are not kept.
    """
    draft = new_draft(tasks, slots, caps)
    board = draft.board
    # Moment from which some processor of the slot is free: its begin while one is unused, then the
    # least of the heap.
    open_from, uses, last, first = board.open_from, board.uses, slots.last, slots.first
    n_tasks, n_sites = tasks.runtimes.shape
    base = np.empty(len(caps), dtype=np.int64)
    size = np.zeros(len(caps), dtype=np.int64)
    room = 0
    for slot in range(len(caps)):
        base[slot] = room
        room += min(caps[slot], n_tasks)  # more are never used
    heap = np.empty(room)
    for task in priority:
        site, best, begins, ends = -1, NOWHERE, 0.0, np.inf
        for s in range(n_sites):
            duration = tasks.runtimes[task, s]
            if duration == np.inf or draft.open_sites[s] == 0:
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
            break
        at = draft.held[0]
        draft.site[task] = site
        draft.start[task] = begins
        draft.finish[task] = ends
        draft.held_first[task] = at
        if best == IDLE:
            lease_idle(slots, board, site, ends, 1)
            continue
        draft.held_slot[at] = best
        draft.held_width[at] = 1
        draft.held[0] = at + 1
        draft.held_count[task] = 1
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
    return draft


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
    :func:`bursar.planning.kernels.lists.evaluate` with ``FINISH``.
    """
    for i in range(len(caps)):
        draft = in_order(tasks, slots, caps[i], priorities[i % len(priorities)])
        one = slice(i, i + 1)
        measure(slots, draft, whole, shortest, makespan[one], cost[one], used[i], area[i])
    return draft
