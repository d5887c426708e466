"""Whole schedules: every task in its turn."""

import numpy as np

from bursar.compiling import compiled, compiled_part
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.placing import (
    NOWHERE,
    ScheduleDraft,
    TaskArrays,
    cheapest,
    commit,
    first_within,
    new_draft,
    payment,
    soonest,
)

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
    due: FloatArray,
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
    weight, worth, due
        Of ``TOTAL``; see :func:`bursar.planning.kernels.placing.cheapest`; ``due``
        has shape ``(n_tasks,)``.
    """
    draft = new_draft(tasks, slots, caps)
    makespan = 0.0
    for task in priority:
        if rule == FINISH:
            place = soonest(tasks, slots, draft, task)
        elif rule == MAKESPAN:
            place = first_within(tasks, slots, draft, task, makespan)
        else:
            place = cheapest(tasks, slots, draft, task, makespan, weight, worth, due[task])
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
    weights: FloatArray,
    worth: float,
    due: FloatArray,
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
        Tasks in the order to take them, shape ``(n, n_tasks)``, or ``(1, n_tasks)``
        for all.
    weights
        Weights of the cost under ``TOTAL``, shape ``(n,)``.
    worth
        Worth of a second of makespan under ``TOTAL``, currency units.
    due
        Moments to finish by under ``TOTAL``, shape ``(n, n_tasks)``, or ``(1, n_tasks)`` for all.
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
        draft = in_order(
            tasks,
            slots,
            caps[i],
            priorities[i % len(priorities)],
            rule,
            weights[i],
            worth,
            due[i % len(due)],
        )
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
