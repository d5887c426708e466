"""A query to the solver: question, effort allowed, and the best answer so far."""

import math
import time
from dataclasses import dataclass
from typing import Literal

from bursar.planning.problem import PlanningProblem
from bursar.planning.schedule import Schedule

Objective = Literal["makespan", "cost"]


Crossing = Literal["all", "needed"]


SAME = 1e-9
"""Relative. Sums of floats that differ by less are the same: they depend on the order."""


CLOSE = 1e-5
"""Share of the objective by which the best schedule may exceed the bound."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExactSolution:
    """
    The best schedule found, and how good any can be.

    Parameters
    ----------
    schedule
        Best schedule found; within the deadline and the budget.
    makespan
        Seconds.
    cost
        Currency units; NaN when a price is unknown.
    bound
        Proven lower bound of the objective within deadline and budget, seconds or currency units.
        None when nothing is proven of the whole problem.
    optimal
        Whether nothing better exists: where times or prices had to be rounded,
        nothing better by one part in 10^5.
    """

    schedule: Schedule
    makespan: float
    cost: float
    bound: float | None
    optimal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverQuery:
    minimise: Objective
    deadline: float
    budget: float

    @property
    def priced(self) -> bool:
        """Whether cost matters."""
        return self.minimise == "cost" or self.budget < math.inf

    def of(self, makespan: float, cost: float) -> float:
        """Return the value of the objective: makespan in seconds, or cost."""
        return makespan if self.minimise == "makespan" else cost

    def is_met(self, makespan: float, cost: float) -> bool:
        """Whether a schedule keeps the deadline and the budget."""
        if makespan > self.deadline * (1 + SAME):
            return False
        return not self.priced or cost <= self.budget * (1 + SAME)


@dataclass(frozen=True, slots=True)
class SolverEffort:
    """Until when to work, on :func:`time.monotonic`'s clock, with how many threads."""

    until: float
    workers: int
    seed: int

    @property
    def left(self) -> float:
        """Seconds of solving that are left."""
        return self.until - time.monotonic()

    def share(self, part: float) -> "SolverEffort":
        """Return an effort that may take a part, from 0 to 1, of the time that is left."""
        return SolverEffort(time.monotonic() + part * self.left, self.workers, self.seed)


class Incumbent:
    """The best schedule so far that keeps deadline and budget."""

    def __init__(self, problem: PlanningProblem, question: SolverQuery) -> None:
        self.problem = problem
        self.question = question
        self.schedule: Schedule | None = None
        self.makespan = math.inf
        self.cost = math.inf

    @property
    def objective(self) -> float:
        return self.question.of(self.makespan, self.cost)

    def offer(self, schedule: Schedule) -> None:
        """Take the schedule if better than the best so far; of equal makespans the cheaper."""
        makespan, cost = schedule.makespan, cost_of(self.problem, schedule)
        found = (self.question.of(makespan, cost), cost)
        better = self.schedule is None or found < (self.objective, self.cost)
        if better and self.question.is_met(makespan, cost):
            self.schedule, self.makespan, self.cost = schedule, makespan, cost

    def reaches(self, bound: float | None) -> bool:
        """Whether nothing can be better."""
        if bound is None or self.schedule is None:
            return False
        return self.objective <= bound + CLOSE * abs(bound)

    def as_exact(self, bound: float | None) -> ExactSolution | None:
        if self.schedule is None:
            return None
        return ExactSolution(
            schedule=self.schedule,
            makespan=self.makespan,
            cost=self.cost,
            # A sum of floats may end below what it is a sum of.
            bound=None if bound is None else min(bound, self.objective),
            optimal=self.reaches(bound),
        )


def cost_of(problem: PlanningProblem, schedule: Schedule) -> float:
    """Return the cost of the schedule, currency units; NaN when a price is unknown."""
    slots = problem.offers.arrays
    paid = slots.unit_price * schedule.paid + slots.fixed_price
    return math.fsum(paid[schedule.used].tolist())
