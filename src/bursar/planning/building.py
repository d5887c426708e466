"""
Builds purchases from a schedule, and the plan with the place and processors of every task.

A schedule counts processors. As those of one site are interchangeable and a
task may hold any of them, numbers can always be given afterwards: in order of
start, each task takes the lowest that are free.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from bursar.memory import collector_paused
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.slot import Slot
from bursar.planning.front import PlanOption
from bursar.planning.kernels.availability import IntArray
from bursar.planning.policy import ScheduleRecipe
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import SHORTEST, replay

# Which processors each task holds.

Interval = tuple[float, float, int]
"""Start, finish and width of a task."""


def number_processors(intervals: Sequence[Interval]) -> list[tuple[int, ...]]:
    """
    Return processor numbers, ascending, for each of a site's tasks.

    Parameters
    ----------
    intervals
        Tasks of one site. An end frees processors before a start takes them.

    Returns
    -------
    list
        One tuple per interval. No two that overlap share a number, and the numbers stay below the
        most held at once. A task without duration takes the lowest, whoever holds them.
    """
    order = sorted(range(len(intervals)), key=lambda i: (intervals[i][:2], i))
    numbers: list[tuple[int, ...]] = [()] * len(intervals)
    free: list[int] = []
    used = 0  # numbers given so far are 0 .. used - 1
    running: list[tuple[float, int]] = []
    for i in order:
        start, finish, width = intervals[i]
        # Ends at a start's moment first, or two tasks that follow one another would need two
        # processors.
        while running and running[0][0] <= start:
            _, ended = heapq.heappop(running)
            for number in numbers[ended]:
                heapq.heappush(free, number)
        if finish <= start:
            numbers[i] = tuple(range(width))
            continue
        # The lowest free numbers, and a new one only when none is free: so no more numbers are
        # used than are held at once.
        taken = [heapq.heappop(free) for _ in range(min(width, len(free)))]
        taken += range(used, used + width - len(taken))
        used = max(used, max(taken) + 1)
        numbers[i] = tuple(taken)
        heapq.heappush(running, (finish, i))
    return numbers


def consecutive_runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return first number and length of each run of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return found


# Builds purchases from a schedule, and the plan with the place of every task.


def build_option(
    problem: PlanningProblem,
    recipe: ScheduleRecipe,
    *,
    whole: bool = False,
    priority: IntArray | None = None,
) -> PlanOption:
    """
    Build the plan option of a recipe; the option's bounds are left open.

    Parameters
    ----------
    whole
        Whether indivisible slots that nothing runs in are bought as well.
    priority
        Tasks in the order of a recipe that has none of its own, shape ``(n_tasks,)``; None: it is
        computed.
    """
    schedule = replay(problem, recipe, priority)
    if not schedule.complete:
        raise ValueError("the schedule leaves out tasks")
    purchases = tuple(p for _, p in _purchases(problem, schedule, recipe, whole))
    costs = [purchase.cost for purchase in purchases]
    held = float((schedule.finish - schedule.start) @ problem.widths)
    paid = math.fsum(p.processor_seconds for p in purchases)
    return PlanOption(
        makespan=schedule.makespan,
        cost=None if None in costs else math.fsum(c for c in costs if c is not None),
        currency=problem.sites[0].currency,
        purchases=purchases,
        utilisation=held / paid if paid else None,
        recipe=recipe,
    )


def build_plan(
    problem: PlanningProblem, option: PlanOption, algorithm: str, *, whole: bool = False
) -> Plan:
    """Return the option as a plan, with the place of every task."""
    schedule = replay(problem, option.recipe)
    bought = _purchases(problem, schedule, option.recipe, whole)
    with collector_paused():
        placements = tuple(_placements(problem, schedule, bought))
    return Plan(
        purchases=option.purchases,
        placements=placements,
        makespan=option.makespan,
        cost=option.cost,
        currency=option.currency,
        utilisation=option.utilisation,
        algorithm=algorithm,
    )


def _purchases(
    problem: PlanningProblem, schedule: Schedule, recipe: ScheduleRecipe, whole: bool
) -> list[tuple[int, Purchase]]:
    """Return the purchases, each with the index of the slot bought."""
    begins = np.full(problem.n_slots, np.inf)
    slots = problem.offers.arrays
    # Of other slots the times that are paid do not follow from the tasks' starts.
    if (schedule.used & slots.divisible & ~slots.leased).any():
        task, slot_of, _ = schedule.holdings
        np.minimum.at(begins, slot_of, schedule.start[task])
    bought = []
    for i, slot in enumerate(problem.offers.slots):
        if schedule.used[i]:
            bought.append((i, _purchase(slot, schedule, i, float(begins[i]))))
        # Paid although nothing runs there: the accounting of HPDC'07.
        elif whole and recipe.caps[i] and not slot.divisible:
            bought.append((i, Purchase(slot=slot)))
    return bought


def _purchase(slot: Slot, schedule: Schedule, i: int, begins: float) -> Purchase:
    until, peak = float(schedule.until[i]), int(schedule.peak[i])
    if slot.leased:
        return Purchase(slot=_cut(slot, slot.start, max(until - slot.start, SHORTEST), peak))
    if slot.divisible:
        span = _cut(slot, begins, until - begins, peak)
        return Purchase(slot=span, part=float(schedule.paid[i]))
    if until <= slot.end:
        return Purchase(slot=slot)
    return Purchase(slot=_cut(slot, slot.start, until - slot.start, slot.processors))


def _cut(slot: Slot, start: float, duration: float, processors: int) -> Slot:
    return Slot(
        site=slot.site,
        start=start,
        duration=duration,
        processors=processors,
        unit_price=slot.unit_price,
        fixed_price=slot.fixed_price,
        divisible=slot.divisible,
        extensible=slot.extensible,
        leased=slot.leased,
    )


def _placements(
    problem: PlanningProblem, schedule: Schedule, bought: list[tuple[int, Purchase]]
) -> list[Placement]:
    """Return where each task runs, in order of start."""
    start, finish = schedule.start.tolist(), schedule.finish.tolist()
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    holdings = (column.tolist() for column in schedule.holdings)
    for task, slot, width in zip(*holdings, strict=True):
        parts[slot].append((task, width))
    idle = np.flatnonzero(schedule.finish <= schedule.start).tolist()

    held: list[list[int]] = [[] for _ in range(problem.n_tasks)]
    # A site's purchases own its processor numbers one after the other, as the validator counts
    # them.
    offset: dict[str, int] = defaultdict(int)
    for slot, purchase in bought:
        site = purchase.slot.site
        rows = parts[slot]
        numbers = number_processors([(start[t], finish[t], width) for t, width in rows])
        for (task, _), given in zip(rows, numbers, strict=True):
            held[task].extend(offset[site] + n for n in given)
        if purchase.slot.leased:
            for task in idle:  # they hold nothing, but run where there is room
                width = int(problem.widths[task])
                here = problem.sites[schedule.site[task]].name == site and not held[task]
                span = purchase.slot
                if here and width <= span.processors and span.start <= start[task] <= span.end:
                    held[task].extend(range(offset[site], offset[site] + width))
        offset[site] += purchase.slot.processors
    placements = [
        Placement(
            task,
            problem.sites[schedule.site[task]].name,
            start[task],
            finish[task],
            tuple(sorted(held[task])),
        )
        for task in range(problem.n_tasks)
    ]
    return sorted(placements, key=lambda p: (p.start, p.task))
