"""
Min-Min on total cost, e-Science'06 figures 1 and 2.

One pass makes one plan, for one weight of cost against makespan; a front comes
from several weights. It never goes back on a choice, so it may come to a point
where no task that is ready fits any slot: the schedule is then incomplete.
"""

from collections.abc import Sequence

import numpy as np

from bursar.planning.front import EvaluatedPlan
from bursar.planning.kernels import minmin as kernel
from bursar.planning.kernels.availability import IntArray
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, ScheduleRecipe
from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import from_draft

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
