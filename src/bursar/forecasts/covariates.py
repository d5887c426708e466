"""
Which parameters and sizes of inputs explain how long tasks of one kind run.

Run times are compared as logarithms, since they differ by factors. A feature is taken if it lowers
the absolute error of run times that the fit has not seen (cross-validation); so a feature that
explains nothing costs nothing but the time to try it. Run times are held against those of the same
execution, since executions differ as wholes; only a feature that never differs within an execution,
such as a number of threads that is stated anew for each, is held against whole executions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FOLDS = 5
"""Parts of the cross-validation."""

FEWEST = 12
"""Run times of a kind, at least, from which features are looked for."""

MOST = 3
"""Features of a kind, at most."""

GAIN = 0.03
"""Part of the error, at least, that a further feature must take away."""

NEWEST = 2000
"""Run times that a fit looks at, the last ones."""

EXTRAPOLATED = 0.25
"""Part of the observed range of a feature by which its effect is believed beyond that range."""

EXECUTIONS = 3
"""Executions, with as many values of a feature, from which differences between them are learned."""

LEFT = 0.35
"""
Part of the error of executions, at most, that such a feature may leave.

Of features without an effect 8 in 100 are taken with three executions, 2 with four, 1 with five.
"""

LEAST_EFFECT = 0.2
"""Effect of such a feature over its observed range, at least (logarithm)."""

_RIDGE = 1.0
_ROUNDS = 6
_FAR = 1.5  # deviations from which on an observation counts less (Huber)


@dataclass(frozen=True, slots=True)
class CovariateFit:
    """
    Linear effect of features on the logarithm of a run time.

    Parameters
    ----------
    chosen
        Numbers of the features.
    centre
        Value of each at which the effect is 0.
    slope
        Change of the logarithm for each unit of the feature.
    low, high
        Range in which the effect is believed; beyond, it is that at the nearer end.
    """

    chosen: tuple[int, ...] = ()
    centre: tuple[float, ...] = ()
    slope: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def effect(self, features: FloatArray) -> FloatArray:
        """Return the effect of each row of features, shape ``(n,)``; 0 where one is unknown."""
        total = np.zeros(len(features))
        parts = zip(self.chosen, self.centre, self.slope, self.low, self.high, strict=True)
        for column, centre, slope, low, high in parts:
            moved = slope * (np.clip(features[:, column], low, high) - centre)
            total += np.where(np.isfinite(moved), moved, 0.0)
        return total


def fit_covariates(
    logarithms: FloatArray, features: FloatArray, executions: IntArray
) -> CovariateFit:
    """
    Choose the features that explain run times, and fit their effect.

    Parameters
    ----------
    logarithms
        Natural logarithms of the run times, shape ``(n,)``.
    features
        Numbers that may explain them, shape ``(n, f)``; NaN where unknown.
    executions
        Number of the execution of each, which has a level of its own.
    """
    n = len(logarithms)
    if n > NEWEST:
        newest = slice(n - NEWEST, n)
        logarithms, features = logarithms[newest], features[newest]
        executions = executions[newest]
        n = NEWEST
    if n < FEWEST or features.shape[1] == 0:
        return CovariateFit()
    y = _without_levels(logarithms, executions)
    usable = [
        column
        for column in range(features.shape[1])
        if np.isfinite(features[:, column]).all() and np.ptp(features[:, column]) > 1e-9
    ]
    # Neighbours in a sweep are alike, so that folds of neighbours would have to extrapolate; folds
    # by turns do not.
    fold = np.arange(n) % FOLDS
    chosen: list[int] = []
    best = _error(y, np.empty((n, 0)), fold)
    while usable and len(chosen) < MOST:
        errors = [_error(y, features[:, [*chosen, column]], fold) for column in usable]
        least = int(np.argmin(errors))
        if not errors[least] < best * (1 - GAIN):
            break
        best = errors[least]
        chosen.append(usable.pop(least))
    used = features[:, chosen]
    slope = _slopes(y, used - used.mean(axis=0))
    rest = logarithms - (used - used.mean(axis=0)) @ slope
    between = _between_executions(rest, features, usable, executions)
    if between is not None:
        chosen.append(between[0])
        slope = np.append(slope, between[1])
        used = features[:, chosen]
    if not chosen:
        return CovariateFit()
    centre = used.mean(axis=0)
    # What was learned on a range says little far beyond: an exponential would soon be absurd.
    beyond = EXTRAPOLATED * np.ptp(used, axis=0)
    return CovariateFit(
        chosen=tuple(chosen),
        centre=tuple(map(float, centre)),
        slope=tuple(map(float, slope)),
        low=tuple(map(float, used.min(axis=0) - beyond)),
        high=tuple(map(float, used.max(axis=0) + beyond)),
    )


def numeric_features(values: Sequence[Any]) -> tuple[FloatArray, ...]:
    """
    Return the features that one parameter gives: itself and, where positive, its logarithm.

    A parameter of words gives one feature for each word but the first, if these are few.

    Parameters
    ----------
    values
        The parameter of each task; None where a task lacks the parameter.
    """
    numbers = [
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in values
    ]
    if all(number is not None for number in numbers):
        plain = np.array(numbers, dtype=np.float64)
        if np.isfinite(plain).all():
            return (plain, np.log(plain)) if (plain > 0).all() else (plain,)
    words = sorted({str(value) for value in values})
    if len(words) > 20:
        return ()
    texts = np.array([str(value) for value in values])
    return tuple((texts == word).astype(np.float64) for word in words[1:])


def _without_levels(values: FloatArray, groups: IntArray) -> FloatArray:
    _, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, weights=values)
    return values - (sums / np.bincount(place))[place]


def _between_executions(
    values: FloatArray, features: FloatArray, usable: Sequence[int], executions: IntArray
) -> tuple[int, float] | None:
    """
    Return the feature that explains how executions differ, and its slope; None if none does.

    Each execution in turn is predicted from the other ones.
    """
    _, first, place = np.unique(executions, return_index=True, return_inverse=True)
    if len(first) < EXECUTIONS:
        return None
    level = np.bincount(place, weights=values) / np.bincount(place)
    found: tuple[int, float] | None = None
    least = LEFT
    for column in usable:
        x = features[first, column]
        if len(np.unique(x)) < EXECUTIONS or np.any(features[:, column] != x[place]):
            continue
        without, left = 0.0, 0.0
        for out in range(len(x)):
            others = np.arange(len(x)) != out
            apart = level[out] - level[others].mean()
            moved = _line(x[others], level[others]) * (x[out] - x[others].mean())
            without, left = without + abs(apart), left + abs(apart - moved)
        slope = _line(x, level)
        if left < least * without and abs(slope) * np.ptp(x) > LEAST_EFFECT:
            least, found = left / without, (column, slope)
    return found


def _line(x: FloatArray, y: FloatArray) -> float:
    """Return the slope of the line of least squares; 0 where all points have one place."""
    apart = x - x.mean()
    return float(apart @ y / max(float(apart @ apart), 1e-12))


def _error(y: FloatArray, x: FloatArray, fold: IntArray) -> float:
    errors = np.empty(len(y))
    for part in range(FOLDS):
        out = fold == part
        centre = x[~out].mean(axis=0)
        level = float(np.median(y[~out]))
        slope = _slopes(y[~out] - level, x[~out] - centre)
        errors[out] = np.abs(y[out] - level - (x[out] - centre) @ slope)
    return float(errors.mean())


def _slopes(y: FloatArray, x: FloatArray) -> FloatArray:
    """Return the slopes of a ridge regression that gives far observations less weight (Huber)."""
    if x.shape[1] == 0:
        return np.zeros(0)
    scale = x.std(axis=0)
    scale[scale == 0] = 1.0
    z = x / scale
    weight = np.ones(len(y))
    slope = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        weighted = z * weight[:, None]
        slope = np.linalg.solve(weighted.T @ z + _RIDGE * np.eye(z.shape[1]), weighted.T @ y)
        rest = np.abs(y - z @ slope)
        usual = 1.4826 * float(np.median(rest))
        if usual <= 0:
            break
        weight = np.minimum(1.0, _FAR * usual / np.maximum(rest, 1e-12))
    return np.asarray(slope / scale)
