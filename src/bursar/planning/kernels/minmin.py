"""Min-Min on total cost: task and slot chosen together, among all that are ready."""

import numpy as np

from bursar.compiling import compiled, compiled_part
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.placing import (
    IDLE,
    TOGETHER,
    CandidatePlacement,
    ScheduleDraft,
    TaskArrays,
    commit,
    earliest_in,
    earliest_together,
    new_draft,
    price_in,
    price_together,
    ready_at,
)


@compiled
def minmin_total(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    position: IntArray,
    child_start: IntArray,
    child_index: IntArray,
    weight: float,
    worth: float,
) -> ScheduleDraft:
    """
    Places, again and again, the ready task and slot that raise the total cost least.

    The total cost is weight x allocation cost + (1 - weight) x worth x makespan (e-Science'06
    figures 1 and 2). Stops where no ready task fits any slot: the schedule may be incomplete. A
    task goes to its earliest start in each slot; of equal totals the one that finishes first, then
    the task, the site and the slot that come first. What a task would cost in a slot is worked out
    anew only where the slot has changed.

    Parameters
    ----------
    position
        Position of each task in the order that breaks ties, shape ``(n_tasks,)``.
    child_start, child_index
        Children of task ``i`` are ``child_index[child_start[i]:child_start[i + 1]]``.
    """
    draft = new_draft(tasks, slots, caps)
    n_tasks, n_sites = tasks.runtimes.shape
    n_slots = len(caps)
    columns = n_slots + n_sites  # each slot, then several slots of each site together
    waiting = np.diff(tasks.parent_start)
    ready = np.empty(n_tasks, dtype=np.int64)
    n_ready = 0
    row_of = np.full(n_tasks, -1)
    free_rows = np.empty(n_tasks, dtype=np.int64)
    n_free = 0
    room = 16
    begin = np.empty((room, columns))
    finish = np.empty((room, columns))
    price = np.empty((room, columns))
    used_rows = 0
    makespan = 0.0

    for task in range(n_tasks):
        if waiting[task] == 0:
            ready[n_ready] = task
            n_ready += 1
    fresh_from = 0
    changed = np.zeros(n_slots, dtype=np.bool_)
    changed_site = -1
    while n_ready > 0:
        for k in range(n_ready):
            task = ready[k]
            # Tasks that have become ready stand behind all others; they have no row of figures yet.
            fresh = k >= fresh_from
            if fresh:
                if n_free > 0:
                    n_free -= 1
                    row_of[task] = free_rows[n_free]
                else:
                    if used_rows == room:
                        room *= 2
                        begin = doubled(begin)
                        finish = doubled(finish)
                        price = doubled(price)
                    row_of[task] = used_rows
                    used_rows += 1
            row = row_of[task]
            for s in range(n_sites):
                if fresh or s == changed_site:
                    judge(
                        tasks, slots, draft, task, s, fresh, changed,
                        begin[row], finish[row], price[row],
                    )  # fmt: skip
        best_total, best_finish, best_k, best_column = np.inf, np.inf, -1, -1
        for k in range(n_ready):
            task = ready[k]
            row = row_of[task]
            for column in range(columns):
                ends = finish[row, column]
                if ends == np.inf:
                    continue
                # Kept are price and finish, not the total: the makespan in it grows with each step.
                total = weight * price[row, column] + (1 - weight) * worth * max(makespan, ends)
                if total > best_total:
                    continue
                if (
                    total < best_total
                    or ends < best_finish
                    or (ends == best_finish and position[task] < position[ready[best_k]])
                ):
                    best_total, best_finish, best_k, best_column = total, ends, k, column
        if best_k < 0:
            break
        task = ready[best_k]
        place = chosen_place(
            tasks, slots, best_column, n_slots, task, begin[row_of[task], best_column], best_finish
        )
        before = draft.held[0]
        commit(tasks, slots, draft, task, place)
        changed[:] = False
        for k in range(before, draft.held[0]):
            changed[draft.held_slot[k]] = True
        if place.slot == IDLE:  # it may have opened a lease
            for slot in range(slots.first[place.site], slots.first[place.site + 1]):
                changed[slot] = slots.leased[slot]
        changed_site = place.site
        makespan = max(makespan, best_finish)
        # Rows are used again, so that memory follows the tasks that are ready at once, not all
        # tasks.
        free_rows[n_free] = row_of[task]
        n_free += 1
        # Not by moving the last one into the gap: `fresh_from` relies on the order.
        for k in range(best_k, n_ready - 1):
            ready[k] = ready[k + 1]
        n_ready -= 1
        fresh_from = n_ready
        for c in range(child_start[task], child_start[task + 1]):
            child = child_index[c]
            waiting[child] -= 1
            if waiting[child] == 0:
                ready[n_ready] = child
                n_ready += 1
    return draft


@compiled_part
def judge(
    tasks: TaskArrays,
    slots: SlotArrays,
    draft: ScheduleDraft,
    task: int,
    s: int,
    fresh: bool,
    changed: BoolArray,
    begin: FloatArray,
    finish: FloatArray,
    price: FloatArray,
) -> None:
    """
    Write the finish of a task in each slot of a site, and the rise of the payment there.

    Where it is not ``fresh``, only for the slots that have changed.
    """
    board = draft.board
    n_slots = len(board.caps)
    width = tasks.widths[task]
    duration = tasks.runtimes[task, s]
    ready = ready_at(tasks, draft, task, s)
    possible = duration < np.inf and draft.open_sites[s] >= width
    for slot in range(slots.first[s], slots.first[s + 1]):
        if not (fresh or changed[slot]):
            continue
        finish[slot] = np.inf
        if possible and duration > 0:
            start = earliest_in(slots, board, slot, ready, duration, width, np.inf)
            if start < np.inf:
                begin[slot] = start
                finish[slot] = start + duration
                price[slot] = price_in(slots, board, slot, start, start + duration, width)
    together = n_slots + s
    finish[together] = np.inf
    if possible and duration == 0:
        begin[together] = ready
        finish[together] = ready
        price[together] = 0.0
    elif possible and draft.wide[0] > 0 and width > 1:
        start = earliest_together(slots, board, s, ready, duration, width, np.inf)
        if start < np.inf:
            begin[together] = start
            finish[together] = start + duration
            price[together] = price_together(slots, board, s, start, start + duration, width)


@compiled_part
def chosen_place(
    tasks: TaskArrays,
    slots: SlotArrays,
    column: int,
    n_slots: int,
    task: int,
    start: float,
    finish: float,
) -> CandidatePlacement:
    """Return the placement for which a column stands."""
    if column < n_slots:
        return CandidatePlacement(slots.site[column], column, start, finish, 0.0)
    s = column - n_slots
    return CandidatePlacement(
        s, IDLE if tasks.runtimes[task, s] == 0 else TOGETHER, start, finish, 0.0
    )


@compiled_part
def doubled(rows: FloatArray) -> FloatArray:
    """Return the rows in an array of twice the room."""
    larger = np.empty((2 * rows.shape[0], rows.shape[1]))
    larger[: rows.shape[0]] = rows
    return larger
