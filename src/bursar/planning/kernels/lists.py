"""Whole schedules: every task in its turn, or level by level."""

import numpy as np

from bursar.compiling import compiled, compiled_part
from bursar.planning.kernels.availability import (
    BoolArray,
    FloatArray,
    IntArray,
    SlotArrays,
    least_in,
)
from bursar.planning.kernels.placing import (
    NOWHERE,
    TOGETHER,
    CandidatePlacement,
    ScheduleDraft,
    TaskArrays,
    cheapest,
    commit,
    first_within,
    new_draft,
    payment,
    ready_at,
    soonest,
)

# Whole schedules: every task in its turn.

FINISH = 0
"""Rule: a task goes where its finish is earliest."""
MAKESPAN = 1
"""Rule: a task goes to the first place that raises the makespan least."""
TOTAL = 2
"""Rule: a task goes where the total cost rises least."""


@compiled_part
def in_order(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    priority: IntArray,
    rule: int,
    weight: float,
    worth: float,
) -> ScheduleDraft:
    """
    Places the tasks one after the other.

    Stops at the first that fits nowhere; it and those after it have site -1.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``.
    priority
        Tasks, parents before children, shape ``(n_tasks,)``.
    rule
        ``FINISH``, ``MAKESPAN`` or ``TOTAL``.
    weight, worth
        Weight of the cost and worth of a second of makespan, currency units, under ``TOTAL``; see
        :func:`bursar.planning.kernels.placing.cheapest`.
    """
    draft = new_draft(tasks, slots, caps)
    makespan = 0.0
    for task in priority:
        if rule == FINISH:
            place = soonest(tasks, slots, draft, task)
        elif rule == MAKESPAN:
            place = first_within(tasks, slots, draft, task, makespan)
        else:
            place = cheapest(tasks, slots, draft, task, makespan, weight, worth)
        if place.slot == NOWHERE:
            break
        commit(tasks, slots, draft, task, place)
        makespan = max(makespan, place.finish)
    return draft


@compiled
def evaluate(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    rule: int,
    priorities: IntArray,
    weight: float,
    worth: float,
    whole: bool,
    shortest: float,
    makespan: FloatArray,
    cost: FloatArray,
    used: BoolArray,
    area: FloatArray,
) -> ScheduleDraft:
    """
    Makespan and allocation cost of many purchases; answers the schedule of the last.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n, n_slots)``, n positive.
    rule
        ``FINISH``, ``MAKESPAN`` or ``TOTAL``.
    priorities
        Tasks in the order to take them, shape ``(n, n_tasks)``, or ``(1, n_tasks)`` for all.
    weight, worth
        See :func:`in_order`.
    whole, shortest
        See :func:`bursar.planning.kernels.placing.payment`.
    makespan, cost
        Written, shape ``(n,)``; infinite where a task fits nowhere.
    used
        Written: the slots in which something runs, shape ``(n, n_slots)``.
    area
        Written: processor-seconds in use of each slot, shape ``(n, n_slots)``.
    """
    for i in range(len(caps)):
        priority = priorities[i % len(priorities)]
        draft = in_order(tasks, slots, caps[i], priority, rule, weight, worth)
        one = slice(i, i + 1)
        measure(slots, draft, whole, shortest, makespan[one], cost[one], used[i], area[i])
    return draft


@compiled_part
def measure(
    slots: SlotArrays,
    draft: ScheduleDraft,
    whole: bool,
    shortest: float,
    makespan: FloatArray,
    cost: FloatArray,
    used: BoolArray,
    area: FloatArray,
) -> None:
    """Writes what one schedule comes to, as in :func:`evaluate`."""
    makespan[0] = 0.0
    for task in range(len(draft.site)):
        if draft.site[task] < 0:
            makespan[0] = np.inf
        makespan[0] = max(makespan[0], draft.finish[task])
    cost[0] = payment(slots, draft.board, whole, shortest) if makespan[0] < np.inf else np.inf
    for slot in range(len(draft.board.caps)):
        used[slot] = draft.board.uses[slot] > 0
        area[slot] = draft.board.area[slot]


# Whole schedules level by level: Min-Min and Max-Min.


@compiled
def evaluate_levels(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    longest: bool,
    levels: IntArray,
    level_first: IntArray,
    whole: bool,
    shortest: float,
    makespan: FloatArray,
    cost: FloatArray,
    used: BoolArray,
    area: FloatArray,
) -> ScheduleDraft:
    """
    Evaluate purchases like :func:`bursar.planning.kernels.lists.evaluate`, with :func:`by_level`.
    """
    for i in range(len(caps)):
        draft = by_level(tasks, slots, caps[i], levels, level_first, longest)
        one = slice(i, i + 1)
        measure(slots, draft, whole, shortest, makespan[one], cost[one], used[i], area[i])
    return draft


@compiled_part
def by_level(
    tasks: TaskArrays,
    slots: SlotArrays,
    caps: IntArray,
    levels: IntArray,
    level_first: IntArray,
    longest: bool,
) -> ScheduleDraft:
    """
    Min-Min or Max-Min: level by level, the task that can finish first, or last, goes first.

    Tasks of a level that find free processors from the same moments on and are equally wide form a
    queue, shorter runtimes first for Min-Min, longer for Max-Min: only its head can be next. A
    place that is still free stays the best for its head, as placing tasks never makes another one
    better; so only places that were taken are sought again.

    Parameters
    ----------
    levels, level_first
        Tasks of level ``k`` are ``levels[level_first[k]:level_first[k + 1]]``; of
        equal finishes the one that comes first here goes first.
    longest
        Max-Min: the task whose earliest finish is last goes first.
    """
    draft = new_draft(tasks, slots, caps)
    board = draft.board
    n_tasks = len(tasks.widths)
    position = np.empty(n_tasks, dtype=np.int64)
    for i in range(n_tasks):
        position[levels[i]] = i
    site = np.empty(n_tasks, dtype=np.int64)
    slot = np.empty(n_tasks, dtype=np.int64)
    start = np.empty(n_tasks)
    finish = np.empty(n_tasks)
    stale = np.zeros(n_tasks, dtype=np.bool_)
    for k in range(len(level_first) - 1):
        waiting = levels[level_first[k] : level_first[k + 1]]
        following, heads, n = queues(tasks, slots, draft, waiting, longest)
        for q in range(n):
            seek(tasks, slots, draft, heads[q], site, slot, start, finish)
        while n > 0:
            chosen = 0
            for q in range(n):
                a, b = finish[heads[q]], finish[heads[chosen]]
                if ((a > b) if longest else (a < b)) or (
                    a == b and position[heads[q]] < position[heads[chosen]]
                ):
                    chosen = q
            task = heads[chosen]
            # Its place was taken, so its finish can only have become later: under Min-Min it is
            # sought again when the task is about to be chosen, and not before.
            if stale[task]:
                seek(tasks, slots, draft, task, site, slot, start, finish)
                stale[task] = False
                continue
            if slot[task] == NOWHERE:
                return draft
            place = CandidatePlacement(site[task], slot[task], start[task], finish[task], 0.0)
            in_use = slots_in_use(slots, draft, place.site)
            commit(tasks, slots, draft, task, place)
            fresh = slots_in_use(slots, draft, place.site) > in_use
            if following[task] >= 0:
                heads[chosen] = following[task]
                seek(tasks, slots, draft, heads[chosen], site, slot, start, finish)
            else:
                n -= 1
                heads[chosen] = heads[n]
            for q in range(n):
                other = heads[q]
                if stale[other]:
                    continue
                if fresh:
                    stale[other] = True  # a slot in use wins ties that it lost before
                elif slot[other] == TOGETHER or place.slot == TOGETHER:
                    stale[other] = site[other] == place.site
                elif slot[other] == place.slot >= 0 and (
                    start[other] < place.finish and finish[other] > place.start
                ):
                    least = least_in(board, slot[other], start[other], finish[other])
                    stale[other] = least < tasks.widths[other]
                # Max-Min picks the latest finish, and a finish that is out of date is too early:
                # the task could be passed over.
                if longest and stale[other]:
                    seek(tasks, slots, draft, other, site, slot, start, finish)
                    stale[other] = False
    return draft


@compiled_part
def seek(
    tasks: TaskArrays,
    slots: SlotArrays,
    draft: ScheduleDraft,
    task: int,
    site: IntArray,
    slot: IntArray,
    start: FloatArray,
    finish: FloatArray,
) -> None:
    """Write the place where the task finishes earliest."""
    place = soonest(tasks, slots, draft, task)
    site[task], slot[task] = place.site, place.slot
    start[task], finish[task] = place.start, place.finish


@compiled_part
def queues(
    tasks: TaskArrays, slots: SlotArrays, draft: ScheduleDraft, waiting: IntArray, longest: bool
) -> tuple[IntArray, IntArray, int]:
    """
    Group the tasks of a level in queues; within a queue an earlier task always goes first.

    Return the follower of each task (-1: none), the heads, and the number of queues.
    """
    n_sites = tasks.runtimes.shape[1]
    least = np.empty(len(waiting))
    for i in range(len(waiting)):
        shortest = np.inf
        for s in range(n_sites):
            shortest = min(shortest, tasks.runtimes[waiting[i], s])
        least[i] = -shortest if longest else shortest
    # Stable, so that ties keep the order of the level.
    order = np.argsort(least, kind="mergesort")
    ready = np.empty((len(waiting), n_sites))
    following = np.full(len(tasks.widths), -1)
    heads = np.empty(len(waiting), dtype=np.int64)
    tails = np.empty(len(waiting), dtype=np.int64)
    n = 0
    for i in order:
        task = waiting[i]
        for s in range(n_sites):
            ready[n, s] = free_from(slots, draft, s, ready_at(tasks, draft, task, s))
        found = False
        for q in range(n):
            last = tails[q]
            if tasks.widths[last] != tasks.widths[task]:
                continue
            alike = True
            for s in range(n_sites):
                a, b = tasks.runtimes[last, s], tasks.runtimes[task, s]
                alike = alike and ready[q, s] == ready[n, s] and ((a >= b) if longest else (a <= b))
            if alike:
                following[last] = task
                tails[q] = task
                found = True
                break
        if not found:
            heads[n] = task
            tails[n] = task
            n += 1
    return following, heads, n


@compiled_part
def free_from(slots: SlotArrays, draft: ScheduleDraft, s: int, ready: float) -> float:
    """
    Return when any processor of the site is free; a task that is ready before gains nothing.
    """
    open_from, last = draft.board.open_from, slots.last
    moment = np.inf
    for slot in range(slots.first[s], slots.first[s + 1]):
        if last[slot] > ready:
            moment = min(moment, open_from[slot])
    return max(ready, moment)


@compiled_part
def slots_in_use(slots: SlotArrays, draft: ScheduleDraft, s: int) -> int:
    """Return how many slots of the site host a task."""
    count = 0
    for slot in range(slots.first[s], slots.first[s + 1]):
        count += draft.board.uses[slot] > 0
    return count
