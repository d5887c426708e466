"""
Purchases built step by step: along a few orders of the slots, or by Min-Min on total cost.

In a *family* the slots join one after the other. With the slots ordered by price per unit of work
(unknown prices last), by speed of their site, or by start, the families are all the slots in each
of these orders, and each site's by start. A leased slot joins processor by processor: of a few
every number is tried, of many the lower half densely and then in ever wider, geometric steps, both
ends always. More than its tasks can use at all is not tried.

One pass makes one plan, for one weight of cost against makespan; a front comes
from several weights. It never goes back on a choice, so it may come to a point
where no task that is ready fits any slot: the schedule is then incomplete.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bursar.planning.front import EvaluatedPlan
from bursar.planning.kernels import minmin as kernel
from bursar.planning.kernels.availability import IntArray
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, ScheduleRecipe
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import from_draft, schedule

# Tries purchases along a few orders of the slots, without searching.

EVALUATIONS = 96
"""Purchases tried, about, shared among the families; each has at least ``LEAST``."""
LEAST = 8


def sweep(search: PlanSearch, processors: Sequence[int] | None = None) -> None:
    """
    Schedules the purchases of all families.

    Parameters
    ----------
    processors
        Numbers of processors of a leased slot to try; None: all, or of many some dozens.
    """
    rows = list(purchases(search.problem, processors))
    if rows:
        search.total = len(rows)
        search.recipes(np.array(rows))


def purchases(problem: PlanningProblem, processors: Sequence[int] | None = None) -> list[IntArray]:
    """Return the processors of each slot for every purchase worth trying, each purchase once."""
    orders = list(_orders(problem))
    limit = max(LEAST, EVALUATIONS // len(orders))
    seen: dict[bytes, IntArray] = {}
    for order in orders:
        for row in _along(problem, order, limit, processors):
            seen.setdefault(row.tobytes(), row)
    return list(seen.values())


def widths(lowest: int, highest: int, limit: int) -> list[int]:
    """
    About ``limit`` numbers from ``lowest`` to ``highest``, both included.

    All of them when few enough; else half of them dense from the lowest on, the
    others at equal ratios.
    """
    if highest - lowest < limit:
        return list(range(lowest, highest + 1))
    dense = range(lowest, lowest + limit // 2)
    steps = limit - len(dense)
    ratio = (highest / dense[-1]) ** (1 / steps)
    sparse = (round(dense[-1] * ratio**k) for k in range(1, steps))
    return sorted({*dense, *sparse, highest})


def _orders(problem: PlanningProblem) -> Iterator[list[int]]:
    """Orders in which the slots join, each once."""
    slots = problem.offers.slots
    site = problem.offers.arrays.site
    speed = problem.speeds[site]
    everyone = list(range(problem.n_slots))

    def price(i: int) -> tuple[float, float, float]:
        unit, fixed = slots[i].unit_price, slots[i].fixed_price
        if unit is None or fixed is None:
            return (np.inf, np.inf, -speed[i])
        return (unit / speed[i], fixed, -speed[i])

    # Several sites: their own slots alone first.
    by_site = [[i for i in everyone if site[i] == s] for s in range(problem.n_sites)]
    orders = [
        *by_site,
        sorted(everyone, key=price),
        sorted(everyone, key=lambda i: -speed[i]),
        sorted(everyone, key=lambda i: slots[i].start),
    ]
    yield from (list(order) for order in dict.fromkeys(map(tuple, orders)) if order)


def _along(
    problem: PlanningProblem, order: list[int], limit: int, processors: Sequence[int] | None
) -> Iterator[IntArray]:
    slots = problem.offers.slots
    base = np.zeros(problem.n_slots, dtype=np.int64)
    leased = [i for i in order if slots[i].leased]
    whole = [i for i in order if not slots[i].leased]
    if not leased:
        counts = set(widths(1, len(whole), limit))
        for k, i in enumerate(whole, 1):
            base[i] = slots[i].processors
            if k in counts:
                yield base.copy()
        return
    if whole:  # mixed: leases join at full width
        leased = []
    for i in order:
        if i not in leased:
            base[i] = slots[i].processors
            yield base.copy()
            continue
        row = base.copy()
        # The full width is scheduled once to learn how many processors the tasks can use at all.
        row[i] = slots[i].processors
        made = schedule(problem, row)
        if made.complete:
            usable = max(1, int(made.peak[i]))
            lowest = 1 if base.any() else int(problem.widths.max())
            for n in _asked(slots[i].processors, usable, processors) or widths(
                lowest, max(usable, lowest), limit
            ):
                row[i] = n
                yield row.copy()
        base[i] = slots[i].processors


def _asked(offered: int, usable: int, processors: Sequence[int] | None) -> list[int]:
    """Return the numbers asked for that the slot has; of numbers past the usable, the least."""
    if processors is None:
        return []
    within = [n for n in processors if n <= min(offered, usable)]
    past = [n for n in processors if usable < n <= offered]
    return [*within, *past[:1]]


# Min-Min on total cost, e-Science'06 figures 1 and 2.

WEIGHTS = tuple(k / 10 for k in range(11))
"""Weights of the cost that are tried, as in figure 5 of e-Science'06."""


def minmin(search: PlanSearch, weights: Sequence[float]) -> list[Schedule]:
    """
    A plan for each weight; answers the schedules, of which some may be incomplete.

    Those that are complete join the archive.
    """
    problem = search.problem
    search.total = len(weights)
    prices = problem.offers.arrays
    schedules: list[Schedule] = []
    for weight in weights:
        if search.out_of_time and schedules:
            break
        made = minmin_schedule(problem, problem.everything, weight, search.evaluator.policy.worth)
        schedules.append(made)
        search.evaluator.count += 1
        if made.complete:
            paid = np.where(made.used, made.paid * prices.unit_price + prices.fixed_price, 0.0)
            cost = float(paid.sum())
            search.tried.append(np.array([[made.makespan, cost]]))
            recipe = ScheduleRecipe(
                caps=tuple(np.where(made.used, problem.everything, 0).tolist()),
                policy=PlacementPolicy(weight=weight, worth=search.evaluator.policy.worth),
                schedule=made,
            )
            search.archive.add(EvaluatedPlan(made.makespan, cost, recipe))
        search.report_progress()
    return schedules


def minmin_schedule(
    problem: PlanningProblem, caps: IntArray, weight: float, worth: float
) -> Schedule:
    """
    Schedule the tasks by Min-Min on total cost; the result may be incomplete.

    Parameters
    ----------
    caps
        Processors of each slot that may be used, shape ``(n_slots,)``.
    weight, worth
        Weight of the cost, 0 to 1, and worth of a second of makespan, currency units, in the total
        cost.
    """
    position = np.empty(problem.n_tasks, dtype=np.int64)
    position[problem.order] = np.arange(problem.n_tasks)
    child_start, child_index = problem.children
    draft = kernel.minmin_total(
        problem.tasks,
        problem.offers.arrays,
        caps,
        position,
        child_start,
        child_index,
        float(weight),
        float(worth),
    )
    return from_draft(problem, draft)
