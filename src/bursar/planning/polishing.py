"""
Improves the plans of a front by CP-SAT, and proves bounds.

The fastest plan first, then plans evenly far apart along the front: each is
handed to the solver as a hint, and asked to be cheaper at the same deadline. A
bound on the cost at a deadline holds for every plan that is as fast.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bursar.planning.front import EvaluatedPlan
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import ScheduleRecipe
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import replay

POINTS = 5
"""Plans of the front that are polished, the fastest twice."""


@dataclass(frozen=True, slots=True)
class ProvenBounds:
    """
    Bounds that the solver has proven.

    Parameters
    ----------
    makespan
        No plan is shorter, seconds; None when nothing is proven.
    costs
        Deadline, seconds, and the least cost of a plan that meets it, currency units.
    note
        One line for the user; empty when there is nothing to say.
    """

    makespan: float | None = None
    costs: Sequence[tuple[float, float]] = field(default_factory=tuple)
    note: str = ""

    def least_cost(self, makespan: float) -> float:
        """Return the least cost of any plan as fast, currency units; 0 where nothing is proven."""
        slack = makespan * (1 - 1e-9)
        return max((bound for deadline, bound in self.costs if deadline >= slack), default=0.0)


def polish_front(search: PlanSearch, seconds: float) -> ProvenBounds:
    """
    Add the solver's plans to the archive, and return the bounds that the solver proves.

    Parameters
    ----------
    seconds
        Time to spend, about.

    Raises
    ------
    InputError
        When OR-Tools is not installed.
    """
    # Late: plans are made without the solver unless it is asked for.
    from bursar.planning.exact import polish, reason_not_solved

    problem, archive = search.problem, search.archive
    reason = reason_not_solved(problem)
    if reason is not None:
        return ProvenBounds(note=f"not polished by CP-SAT: {reason}")
    if not len(archive):
        return ProvenBounds()
    ends = time.monotonic() + seconds
    workers, seed = search.evaluator.threads, search.limits.seed

    fastest = archive[0]
    found = polish(
        problem,
        minimise="makespan",
        hint=replay(problem, fastest.recipe),
        time_limit=seconds / (POINTS + 1),
        workers=workers,
        seed=seed,
    )
    makespan = None if found is None else found.bound
    better = 0
    if found is not None:
        better += archive.add(_found(search, found.makespan, found.cost, found.schedule))
    costs: list[tuple[float, float]] = []
    # All chosen before the first is polished: each better plan changes the archive.
    chosen = np.unique(np.linspace(0, len(archive) - 1, POINTS).astype(int))
    targets = [archive[int(i)] for i in chosen]
    for number, target in enumerate(targets):
        left = ends - time.monotonic()
        found = polish(
            problem,
            minimise="cost",
            deadline=target.makespan,
            hint=replay(problem, target.recipe),
            # What one question does not use is left to the others.
            time_limit=max(0.0, left / (len(targets) - number)),
            workers=workers,
            seed=seed,
        )
        if found is None:
            continue
        better += archive.add(_found(search, found.makespan, found.cost, found.schedule))
        if found.bound is not None:
            costs.append((target.makespan, found.bound))
        search.report_progress()
    plans = f"{better} plan{'' if better == 1 else 's'}"
    return ProvenBounds(
        makespan, tuple(costs), f"CP-SAT made {plans} of the front in {seconds:g} s"
    )


def _found(search: PlanSearch, makespan: float, cost: float, made: Schedule) -> EvaluatedPlan:
    caps = np.where(made.used, search.problem.everything, 0)
    recipe = ScheduleRecipe(
        caps=tuple(caps.tolist()), policy=search.evaluator.policy, schedule=made
    )
    return EvaluatedPlan(makespan, cost, recipe)
