"""Keeps the state of a search: schedules made, plans kept, progress, time left."""

import time
from dataclasses import dataclass, field

import numpy as np

from bursar.planning.evaluation import PurchaseEvaluator, PurchaseScores
from bursar.planning.front import EvaluatedPlan, ParetoArchive
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.policy import (
    OnProgress,
    ScheduleRecipe,
    SearchLimits,
    SearchProgress,
)
from bursar.planning.problem import PlanningProblem


@dataclass(slots=True, eq=False)
class PlanSearch:
    """
    One search: the evaluator, the archive, the random numbers and the clock.

    Parameters
    ----------
    evaluator
        Makes the schedules.
    limits
        How far to go.
    total
        Schedules that will be made, for the progress.
    on_progress
        Told after each batch.
    """

    evaluator: PurchaseEvaluator
    limits: SearchLimits = field(default_factory=SearchLimits)
    total: int = 0
    on_progress: OnProgress | None = None
    archive: ParetoArchive = field(default_factory=ParetoArchive)
    tried: list[FloatArray] = field(default_factory=list)
    """Makespan and cost of all feasible plans tried, arrays of shape ``(n, 2)``."""
    _seen: dict[bytes, tuple[float, float, BoolArray, FloatArray]] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    @property
    def problem(self) -> PlanningProblem:
        """The planning problem that is searched."""
        return self.evaluator.problem

    @property
    def points(self) -> FloatArray:
        """Makespan and cost of all feasible plans tried, shape ``(n, 2)``."""
        return np.concatenate(self.tried) if self.tried else np.empty((0, 2))

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        limit = self.limits.time_limit
        return limit is not None and time.monotonic() - self._began >= limit

    def rng(self) -> np.random.Generator:
        """Return a random generator at the seed of the search."""
        return np.random.default_rng(self.limits.seed)

    def bits(self, bits: BoolArray) -> PurchaseScores:
        """Schedule purchases of whole slots; the same purchase is scheduled only once."""
        caps = np.where(bits, self.problem.everything, 0)
        keys = [np.packbits(row).tobytes() for row in bits]
        fresh: dict[bytes, int] = {}
        for i, key in enumerate(keys):
            if key not in self._seen:
                fresh.setdefault(key, i)
        if fresh:
            scores = self.recipes(caps[list(fresh.values())])
            for k, key in enumerate(fresh):
                self._seen[key] = (
                    float(scores.makespan[k]),
                    float(scores.cost[k]),
                    scores.used[k],
                    scores.area[k],
                )
        found = [self._seen[key] for key in keys]
        return PurchaseScores(
            makespan=np.array([f[0] for f in found]),
            cost=np.array([f[1] for f in found]),
            used=np.array([f[2] for f in found]),
            area=np.array([f[3] for f in found]),
        )

    def recipes(self, caps: IntArray, *, priorities: IntArray | None = None) -> PurchaseScores:
        """Schedule purchases and keep the best; see :meth:`PurchaseEvaluator.evaluate`."""
        scores = self.evaluator.evaluate(caps, priorities=priorities)
        feasible = np.flatnonzero(scores.feasible)
        self.tried.append(np.column_stack((scores.makespan, scores.cost))[feasible])
        for i in feasible.tolist():
            makespan, cost = float(scores.makespan[i]), float(scores.cost[i])
            # Most plans are beaten: their recipes, with an order of all tasks, are not even made.
            if not self.archive.would_keep(makespan, cost):
                continue
            recipe = ScheduleRecipe(
                caps=tuple(caps[i].tolist()),
                policy=self.evaluator.policy,
                priority=None
                if priorities is None
                else tuple(priorities[i % len(priorities)].tolist()),
            )
            self.archive.add(EvaluatedPlan(makespan, cost, recipe))
        self.report_progress()
        return scores

    def report_progress(self) -> None:
        """Report the schedules made so far and the front."""
        if self.on_progress is not None:
            done = self.evaluator.count
            front = tuple((found.makespan, found.cost) for found in self.archive)
            self.on_progress(SearchProgress(done, max(self.total, done), front))
