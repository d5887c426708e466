"""
Plans that no other beats in both makespan and cost.

Differences below one part in 10^9 do not count: they are a float's own error.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bursar.planning.kernels.availability import FloatArray, IntArray
from bursar.planning.policy import ScheduleRecipe


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedPlan:
    """A plan that was tried: makespan, seconds; cost, currency units; how to make it."""

    makespan: float
    cost: float
    recipe: ScheduleRecipe


class ParetoArchive:
    """
    Keeps the plans found so far that no other beats, fastest first.

    Of equal plans the first found stays.
    """

    def __init__(self) -> None:
        self._makespans: list[float] = []
        self._found: list[EvaluatedPlan] = []

    def __iter__(self) -> Iterator[EvaluatedPlan]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> EvaluatedPlan:
        return self._found[index]

    @property
    def points(self) -> FloatArray:
        """Makespan and cost of each plan, shape ``(n, 2)``."""
        return np.array([(f.makespan, f.cost) for f in self._found]).reshape(-1, 2)

    def would_keep(self, makespan: float, cost: float) -> bool:
        """Whether no plan here is as fast and as cheap."""
        # Kept plans get cheaper as they get slower, so the slowest that is no slower is the
        # cheapest of these: one comparison decides.
        at = bisect.bisect_right(self._makespans, rounded(makespan))
        return at == 0 or rounded(self._found[at - 1].cost) > rounded(cost)

    def add(self, found: EvaluatedPlan) -> bool:
        """Keep an unbeaten plan and drop the plans beaten by this one; False when not kept."""
        if not np.isfinite(found.makespan) or not self.would_keep(found.makespan, found.cost):
            return False
        makespan, cost = rounded(found.makespan), rounded(found.cost)
        at = bisect.bisect_left(self._makespans, makespan)
        end = at
        # For the same reason the plans beaten are neighbours.
        while end < len(self._found) and rounded(self._found[end].cost) >= cost:
            end += 1
        self._found[at:end] = [found]
        self._makespans[at:end] = [makespan]
        return True


def at_trade_off(points: FloatArray, weight: float) -> int:
    """
    Which of the plans a trade-off factor picks (HPDC'07 equation 8); of equal ones the first.

    Parameters
    ----------
    points
        Makespan and cost of plans that no other beats, shape ``(n, 2)``, n positive.
    weight
        Weight of the cost, from 0 to 1.
    """
    span = np.ptp(points, axis=0)
    scaled = (points - points.min(axis=0)) / np.where(span > 0, span, 1.0)
    return int(np.argmin(np.round((1 - weight) * scaled[:, 0] + weight * scaled[:, 1], 12)))


def rounded(value: float) -> float:
    """Nine digits, so that a float's own error decides nothing."""
    return float(f"{value:.9e}")


def nondominated(points: FloatArray) -> IntArray:
    """
    Indices of the points that no other beats, by the first objective.

    Parameters
    ----------
    points
        Objectives to be small, shape ``(n, 2)``. Of equal points the first is taken.
    """
    order = np.lexsort((points[:, 1], points[:, 0]))
    kept: list[int] = []
    least = np.inf
    for i in order:
        if points[i, 1] < least:
            least = points[i, 1]
            kept.append(int(i))
    return np.array(kept, dtype=np.int64)
