"""Computes confidence intervals of simulated means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """
    Holds a mean and half the width of the confidence interval.

    Parameters
    ----------
    mean
        Mean of the sample.
    half
        Half the interval; infinite for a single value.
    """

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high


def interval(
    values: Sequence[float] | NDArray[np.float64], level: float = LEVEL
) -> ConfidenceInterval:
    """Return the interval for the mean of independent values, by Student's distribution."""
    count = len(values)
    if count < 2:
        return ConfidenceInterval(float(np.mean(values)) if count else math.nan, math.inf)
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    return ConfidenceInterval(float(np.mean(values)), half_interval(error, count, level))


def half_interval(error: float, count: int, level: float = LEVEL) -> float:
    """
    Half the confidence interval of a mean, by Student's distribution.

    Parameters
    ----------
    error
        Standard error of the mean.
    count
        Number of values; with fewer than two the interval is infinite.
    """
    from scipy.special import stdtrit

    if count < 2:
        return math.inf
    return float(stdtrit(count - 1, (1 + level) / 2)) * error


def batch_means(
    values: NDArray[np.float64], batches: int, level: float = LEVEL
) -> ConfidenceInterval:
    """
    Return the interval for the mean of correlated values, by batch means.

    Batches must be long against the time over which values hang together.

    References
    ----------
    .. [1] Law, Kelton (2000). Simulation modeling and analysis, 3rd edition, section 9.5.3.
    """
    size = len(values) // batches
    return interval(values[: size * batches].reshape(batches, size).mean(axis=1), level)
