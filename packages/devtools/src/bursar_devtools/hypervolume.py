"""Hypervolume, the measure by which benchmarks compare fronts of makespan and cost."""

from collections.abc import Sequence

import numpy as np

from bursar.planning.front import nondominated
from bursar.planning.kernels.availability import FloatArray


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
