"""
Ranks of sites (Cavalieri et al. 2003, equations 1 to 3).

The greatest rank is the best one. The paper says so of the broker it starts from (section 2.1),
and its own ranks are minus times; where it says that the deterministic strategy takes "the
lower value of the rank" (section 2.2) it must mean the least of these times.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

T = TypeVar("T", float, FloatArray)

DEFAULT_RANK = "-other.EstimatedTraversalTime"
"""Equation 2."""

DEFAULT_RANKS = frozenset(
    f"-{scope}{name}"
    for scope in ("", "other.", "target.")
    for name in ("estimatedtraversaltime", "gluecestateestimatedresponsetime")
)
"""Ways to write the same, in lower case and without spaces."""


def file_rank(access: T, transfer: T, beta: float) -> T:
    """
    Rank sites by the access and transfer times of a job's files (equation 3).

    Parameters
    ----------
    access
        Seconds to read the files at each site.
    transfer
        Seconds until the files have been brought to each site.
    beta
        Weight of access.
    """
    return -(beta * access + (1 - beta) * transfer)


def rank(expression: T, files: T, alpha: float) -> T:
    """
    Rank of sites (equation 1).

    Parameters
    ----------
    expression
        Value of the rank expression; by default minus the estimated traversal time
        (equation 2). What is undefined is nan, and so is the rank then.
    files
        By equation 3.
    alpha
        Weight of the expression. With 0 it is not looked at, so that it may be undefined.
    """
    if alpha == 0:
        return files
    if alpha == 1:
        return expression
    return alpha * expression + (1 - alpha) * files
