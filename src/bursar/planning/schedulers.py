"""
How tasks are placed on what was bought, in time and with time turned round.

``heft``
    By falling upward rank, the longest path from the task to the end with run
    and transfer times averaged over the sites bought; each where it finishes
    earliest, in gaps too [1]_. Only sites where a task fits count in its average.
``greedy``
    In topological order, each in the first place that raises the makespan least
    (HPDC'07 section 3).
``minmin``, ``maxmin``
    Level by level; of a level's tasks the one that can finish first, or whose earliest finish is
    last, goes first, where it finishes earliest (HPDC'07 section 3).
``list``
    In topological order, each where it finishes earliest (e-Science'06 figure 3).
``list-cost``
    In topological order, each where it adds least to the total cost, weight x
    allocation cost + (1 - weight) x worth x makespan (e-Science'06 section 4).

Ties are decided, so that a plan repeats: tasks of equal rank in the workflow's topological order;
of places with equal finish the site named first, there a slot in use before another, then the slot
that starts first; ``greedy`` takes the first place as such. From ``MANY_SERIAL`` tasks on, all of
one processor, ``heft`` and ``list`` keep gaps for each processor, which is several times faster and
breaks ties within a site in another way (:mod:`bursar.planning.kernels.serial`). Where such tasks
do not depend on each other either, a heap of processors for each slot gives the schedule that
profiles give (:mod:`bursar.planning.kernels.bags`).

Read from its end, a schedule is one of the reversed workflow on slots that begin where they ended.
Scheduling that, tasks that finish last first, closes gaps that the forward schedule left; read
forward again, its starts are an order of the tasks that is seldom worse and often better
(*forward-backward improvement*, Tormos and Lova 2001, Annals of Operations Research 102: 65-81).

References
----------
.. [1] Topcuoglu, Hariri, Wu (2002). Performance-effective and low-complexity
   task scheduling for heterogeneous computing. IEEE TPDS 13(3): 260-274.
"""

import heapq
import itertools
from dataclasses import replace

import numpy as np

from bursar.planning.kernels import bags, lists, ranks, serial
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray, SlotArrays
from bursar.planning.kernels.placing import ScheduleDraft, seconds_paid
from bursar.planning.kernels.ranks import after_others
from bursar.planning.policy import PlacementPolicy, Scheduler, ScheduleRecipe
from bursar.planning.problem import OfferedSlots, PlanningProblem
from bursar.planning.schedule import Schedule

# List schedulers over slots: where and when each task runs on what is bought.

RULES: dict[Scheduler, int] = {
    "heft": lists.FINISH,
    "list": lists.FINISH,
    "greedy": lists.MAKESPAN,
    "list-cost": lists.TOTAL,
}
MANY_SERIAL = 2000
"""Number of tasks from which on, if all are of one processor, gaps are kept by processor."""
MANY_SLOTS = 256
"""Number of slots beyond which many independent tasks of one processor have gaps by processor."""
SHORTEST = 1e-6
"""Seconds. A slot has a length, so this is leased where all tasks take no time."""


def schedule(
    problem: PlanningProblem,
    caps: IntArray,
    policy: PlacementPolicy = PlacementPolicy(),  # noqa: B008 (a frozen value)
    *,
    priority: IntArray | None = None,
) -> Schedule:
    """
    Schedule the tasks on the slots bought; incomplete when a task fits nowhere.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``.
    priority
        Tasks, parents before children, shape ``(n_tasks,)``; None: the order of the policy's
        scheduler.
    """
    used = np.empty((1, problem.n_slots), dtype=np.bool_)
    priority = priority_of(problem, caps, policy.scheduler) if priority is None else priority
    made = run(
        problem,
        caps[None, :],
        policy,
        priority[None, :],
        False,
        (np.empty(1), np.empty(1), used, np.empty((1, problem.n_slots))),
    )
    if isinstance(made, Schedule):
        return made
    return (
        from_draft(problem, made) if isinstance(made, ScheduleDraft) else _from_rota(problem, made)
    )


Outputs = tuple[FloatArray, FloatArray, BoolArray, FloatArray]
"""Makespan, cost, slots used and their processor-seconds: what the kernels write."""


def run(
    problem: PlanningProblem,
    caps: IntArray,
    policy: PlacementPolicy,
    priorities: IntArray,
    whole: bool,
    outputs: Outputs,
) -> ScheduleDraft | serial.SerialSchedule | Schedule:
    """
    Schedules many purchases, and answers the last schedule; the interpreter is free meanwhile.

    Parameters
    ----------
    caps, priorities, whole
        See :func:`bursar.planning.kernels.lists.evaluate`; with ``minmin`` and
        ``maxmin`` the priorities do not count.
    """
    tasks, slots = problem.tasks, problem.offers.arrays
    if policy.scheduler in ("minmin", "maxmin"):
        longest = policy.scheduler == "maxmin"
        order, first = problem.by_level, problem.level_first
        return lists.evaluate_levels(
            tasks, slots, caps, longest, order, first, whole, SHORTEST, *outputs
        )
    rule = RULES[policy.scheduler]
    if rule == lists.FINISH and is_bag_on_one_lease(problem) and (caps > 0).all():
        return _evaluate_bag(problem, caps, priorities, outputs)
    if rule == lists.FINISH and is_bag(problem):
        return bags.evaluate_bag(tasks, slots, caps, priorities, whole, SHORTEST, *outputs)
    if rule == lists.FINISH and many_serial(problem):
        return serial.evaluate_serial(tasks, slots, caps, priorities, whole, *outputs)
    weight, worth = policy.weight, policy.worth
    return lists.evaluate(
        tasks, slots, caps, rule, priorities, weight, worth, whole, SHORTEST, *outputs
    )


def is_bag(problem: PlanningProblem) -> bool:
    """Whether slots are kept as heaps of processors: see :mod:`bursar.planning.kernels.bags`."""
    bag = not problem.has_dependencies and problem.widths.max() == 1
    # Each task looks at every slot; gaps by processor are found among many slots by a search.
    return bool(bag and (problem.n_slots <= MANY_SLOTS or not many_serial(problem)))


def many_serial(problem: PlanningProblem) -> bool:
    """Whether gaps are kept by processor: see the module."""
    serial_tasks = problem.n_tasks >= MANY_SERIAL and problem.widths.max() == 1
    return bool(serial_tasks and not problem.offers.arrays.leased.any())


def is_bag_on_one_lease(problem: PlanningProblem) -> bool:
    """
    Whether independent tasks of one processor share one endless lease, as most sweeps do.

    Such tasks take the processor that is free first, which a heap knows. The kernels give the
    same schedule, but to load their machine code takes half a second, and to run them as plain
    Python thirty times as long as the heap.
    """
    slots = problem.offers.arrays
    return bool(
        problem.n_slots == 1
        and slots.leased[0]
        and slots.start[0] <= 0
        and np.isinf(slots.end[0])
        and not problem.has_dependencies
        and (problem.widths == 1).all()
        and (problem.runtimes > 0).all()
        and np.isfinite(problem.runtimes).all()
    )


def _evaluate_bag(
    problem: PlanningProblem, caps: IntArray, priorities: IntArray, outputs: Outputs
) -> Schedule:
    """Do as :func:`run` does, for :func:`is_bag_on_one_lease`; caps are positive."""
    slots, n = problem.offers.arrays, problem.n_tasks
    makespan, cost, used, area = outputs
    start, finish = np.empty(n), np.empty(n)
    for i, processors in enumerate(caps[:, 0].tolist()):
        order, width = priorities[i % len(priorities)], min(processors, n)
        durations = problem.runtimes[order, 0]
        start[order] = begins = _first_free(durations.tolist(), float(slots.begin[0]), width)
        finish[order] = begins + durations
        makespan[i] = finish.max()
        paid = width * max(makespan[i] - slots.start[0], SHORTEST)
        cost[i] = slots.fixed_price[0] + slots.unit_price[0] * paid
        used[i] = True
        # One after the other, as the kernels add: pairwise sums differ in the last digit.
        area[i] = np.cumsum((finish - start)[order])[-1]
    return Schedule(
        site=np.zeros(n, dtype=np.int64),
        start=start,
        finish=finish,
        held_first=np.arange(n),
        held_count=np.ones(n, dtype=np.int64),
        held_slot=np.zeros(n, dtype=np.int64),
        held_width=np.ones(n, dtype=np.int64),
        used=np.array([True]),
        until=np.array([finish.max()]),
        peak=np.array([width]),
        paid=np.array([paid]),
    )


def _first_free(durations: list[float], begin: float, processors: int) -> FloatArray:
    """Return the start of each task, when each in turn takes the processor that is free first."""
    free = [begin] * processors
    starts = []
    for duration in durations:
        moment = free[0]
        starts.append(moment)
        heapq.heapreplace(free, moment + duration)
    return np.array(starts)


def replay(
    problem: PlanningProblem, recipe: ScheduleRecipe, priority: IntArray | None = None
) -> Schedule:
    """
    Return the schedule that a recipe makes.

    Parameters
    ----------
    priority
        Tasks in the order of the recipe's scheduler, where the caller has it; it counts only for a
        recipe without an order of its own.
    """
    if recipe.schedule is not None:
        return recipe.schedule
    caps = np.array(recipe.caps, dtype=np.int64)
    if recipe.priority is not None:
        priority = np.array(recipe.priority, dtype=np.int64)
    return schedule(problem, caps, recipe.policy, priority=priority)


def from_draft(problem: PlanningProblem, draft: ScheduleDraft) -> Schedule:
    """Make a schedule from the arrays that a kernel filled."""
    slots = problem.offers.arrays
    board = draft.board
    return Schedule(
        site=draft.site,
        start=draft.start,
        finish=draft.finish,
        held_first=draft.held_first,
        held_count=draft.held_count,
        held_slot=draft.held_slot,
        held_width=draft.held_width,
        used=board.uses > 0,
        until=board.until,
        peak=board.peak,
        paid=seconds_paid(slots, board, SHORTEST),
    )


def _from_rota(problem: PlanningProblem, rota: serial.SerialSchedule) -> Schedule:
    slots = problem.offers.arrays
    held = np.flatnonzero(rota.slot >= 0)
    slot, start, finish = rota.slot[held], rota.start[held], rota.finish[held]
    area = np.bincount(slot, finish - start, minlength=problem.n_slots)
    until = slots.start.copy()
    np.maximum.at(until, slot, finish)
    whole = slots.processors * (np.maximum(slots.end, until) - slots.start)
    used = area > 0
    return Schedule(
        site=rota.site,
        start=rota.start,
        finish=rota.finish,
        held_first=np.cumsum(rota.slot >= 0) - (rota.slot >= 0),
        held_count=(rota.slot >= 0).astype(np.int64),
        held_slot=slot,
        held_width=np.ones(len(held), dtype=np.int64),
        used=used,
        until=until,
        peak=_most_at_once(slot, start, finish, problem.n_slots),
        paid=np.where(used, np.where(slots.divisible, area, whole), 0.0),
    )


def _most_at_once(slot: IntArray, start: FloatArray, finish: FloatArray, n_slots: int) -> IntArray:
    """Most of the intervals of each slot that overlap, shape ``(n_slots,)``."""
    times = np.concatenate((start, finish))
    change = np.repeat((1, -1), len(slot))
    slots = np.tile(slot, 2)
    order = np.lexsort((change, times, slots))  # of one moment, ends come first
    running = np.cumsum(change[order])  # 0 after each slot
    peak = np.zeros(n_slots, dtype=np.int64)
    np.maximum.at(peak, slots[order], running)
    return peak


def priority_of(problem: PlanningProblem, caps: IntArray, scheduler: Scheduler) -> IntArray:
    """Return the tasks in the scheduler's order, shape ``(n_tasks,)``."""
    if scheduler != "heft":
        return problem.order
    ranked = upward_ranks(problem, by_site(problem, caps))
    # Stable: equal ranks stay in topological order, parents first.
    return problem.order[np.argsort(-ranked[problem.order], kind="stable")]


def by_site(problem: PlanningProblem, caps: IntArray) -> IntArray:
    """Processors that may be used of each site's slots together, shape ``(n_sites,)``."""
    first = problem.offers.arrays.first
    return np.array([caps[a:b].sum() for a, b in itertools.pairwise(first)])


def upward_ranks(problem: PlanningProblem, bought: IntArray) -> FloatArray:
    """
    Longest remaining path of each task, seconds, shape ``(n_tasks,)``.

    Parameters
    ----------
    bought
        Processors of each site, shape ``(n_sites,)``.
    """
    runtimes = mean_runtimes(problem, bought)
    if not problem.has_dependencies:
        return runtimes
    return ranks.upward_ranks(
        runtimes,
        mean_transfers(problem, bought),
        problem.order,
        problem.parent_start,
        problem.parent_index,
    )


def mean_runtimes(problem: PlanningProblem, bought: IntArray) -> FloatArray:
    """
    Mean over the bought sites where the task fits, seconds, shape ``(n_tasks,)``.

    Infinite for a task that fits on none.
    """
    usable = np.isfinite(problem.runtimes) & (problem.widths[:, None] <= bought) & (bought > 0)
    counts = usable.sum(axis=1)
    sums = np.where(usable, problem.runtimes, 0.0).sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def mean_transfers(problem: PlanningProblem, bought: IntArray) -> FloatArray:
    """Mean over the pairs of different sites bought, seconds, shape ``(n_edges,)``."""
    used = np.flatnonzero(bought)
    pairs = len(used) * (len(used) - 1)
    if pairs == 0:
        return np.zeros(len(problem.parent_bytes))
    latency = problem.latency[np.ix_(used, used)].sum() / pairs
    pace = problem.seconds_per_byte[np.ix_(used, used)].sum() / pairs
    return np.asarray(latency + problem.parent_bytes * pace)


# Time turned round: a schedule pushed as late as it can be, then early again.


class TimeReversedProblem:
    """Schedules a problem backwards in time."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._back = problem.turned()

    def latest_starts(
        self, caps: IntArray, finish: FloatArray, makespan: float
    ) -> FloatArray | None:
        """
        Return the starts of the tasks pushed late, seconds, shape ``(n_tasks,)``.

        None where not all of them find a place when taken in this order; starts may be before 0.

        Parameters
        ----------
        caps
            Processors of each slot that may be used, shape ``(n_slots,)``.
        finish
            Finish of each task in the schedule to be pushed, seconds, shape ``(n_tasks,)``.
        makespan
            The moment that becomes 0, seconds.
        """
        back = self._back
        keys = after_others(-finish, back.order, back.parent_start, back.parent_index)
        priority = back.order[np.argsort(keys[back.order], kind="stable")]
        where, turned = self._turned(makespan)
        made = schedule(turned, caps[where], PlacementPolicy(scheduler="list"), priority=priority)
        return makespan - made.finish if made.complete else None

    def _turned(self, makespan: float) -> tuple[IntArray, PlanningProblem]:
        """Return the original index of each slot, and the problem with time reversed."""
        problem = self._problem
        slots = problem.offers.arrays
        # A slot that begins after the end of the schedule has no time left when time is turned
        # round.
        closed = slots.begin >= makespan
        begin = np.where(closed, 0.0, makespan - np.minimum(slots.last, makespan))
        last = np.where(closed, 0.0, makespan - slots.begin)
        spans = list(itertools.pairwise(slots.first))
        where = np.concatenate([a + np.argsort(begin[a:b], kind="stable") for a, b in spans])
        begin, last = begin[where], last[where]
        by_last = np.concatenate([a + np.argsort(last[a:b], kind="stable") for a, b in spans])
        arrays = SlotArrays(
            first=slots.first,
            site=slots.site,
            start=begin,
            begin=begin,
            end=last,
            last=last,
            by_last=by_last,
            processors=slots.processors[where],
            unit_price=slots.unit_price[where],
            fixed_price=slots.fixed_price[where],
            divisible=slots.divisible[where],
            leased=slots.leased[where],
        )
        offers = OfferedSlots(tuple(problem.offers.slots[i] for i in where), arrays)
        return where, replace(self._back, offers=offers)
