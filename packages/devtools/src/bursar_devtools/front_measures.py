"""Measures of fronts of makespan and cost, for studies and benchmarks."""

import math
from collections.abc import Sequence

import numpy as np

from bursar.planning.kernels.availability import FloatArray, IntArray


def hypervolume(points: FloatArray, reference: Sequence[float]) -> float:
    """
    Return the area that points dominate, up to a reference point (Zitzler and Thiele 1999).

    Parameters
    ----------
    points
        Objectives to be minimised, shape ``(n, 2)``.
    reference
        A point that is worse than any point worth counting, one value for each objective.
    """
    inside = points[(points[:, 0] < reference[0]) & (points[:, 1] < reference[1])]
    front = inside[nondominated(inside)] if len(inside) else inside
    rights = np.append(front[1:, 0], reference[0])
    return float(((rights - front[:, 0]) * (reference[1] - front[:, 1])).sum())


def at_trade_off(points: FloatArray, weight: float) -> int:
    """
    Return the plan that a trade-off factor picks (HPDC'07 equation 8); of equal ones the first.

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


def nondominated(points: FloatArray) -> IntArray:
    """
    Return indices of the points that no other beats, by the first objective.

    Parameters
    ----------
    points
        Objectives to be minimised, shape ``(n, 2)``. Of equal points the first is taken.
    """
    order = np.lexsort((points[:, 1], points[:, 0]))
    kept: list[int] = []
    least = math.inf
    for i in order:
        if points[i, 1] < least:
            least = points[i, 1]
            kept.append(int(i))
    return np.array(kept, dtype=np.int64)
