"""Group rows: mean, deviation, interval and number, and how they are written."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.simulation.datagrid.grid_outcome import half_interval

Row = dict[str, Any]
"""Factors and measures by name: numbers, strings, or None."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, standard deviation and size of a sample."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise values that are numbers; without any, the mean is not a number."""
        if not len(values):
            return cls(float("nan"), float("nan"), 0)
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), deviation, len(values))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / float(np.sqrt(self.count)) if self.count else float("nan")

    @property
    def half_width(self) -> float:
        """Half the 95 % confidence interval of the mean (Student); infinite for one value."""
        return half_interval(self.error, self.count)

    def scaled(self, factor: float, offset: float = 0.0) -> "Summary":
        """Return the sample of all values times a factor, plus an offset."""
        return Summary(factor * self.mean + offset, abs(factor) * self.deviation, self.count)

    def __str__(self) -> str:
        """Return the mean and half the 95 % interval as text."""
        return f"{rounded(self.mean, 4)} ± {rounded(self.half_width)}"


def rounded(value: float, digits: int = 2) -> str:
    """
    Write a figure with so many digits and no exponent; "?" for what is infinite.

    Examples
    --------
    >>> rounded(51874.3, 4), rounded(0.0123), rounded(1e-13), rounded(float("inf"))
    ('51,870', '0.012', '0', '?')
    """
    if not math.isfinite(value):
        return "?"
    shown = float(f"{value:.{digits}g}")
    return "0" if abs(shown) < 1e-9 else f"{shown:,.10g}"


def grouped(rows: Sequence[Row], by: Sequence[str], value: str) -> dict[tuple[Any, ...], Summary]:
    """One measure of the rows that have it, by some factors, in the order met."""
    values: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row.get(value) is not None:
            values[tuple(row.get(name) for name in by)].append(float(row[value]))
    return {key: Summary.of(found) for key, found in values.items()}


def selected(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Rows of these factors."""
    return [row for row in rows if all(row.get(k) == v for k, v in wanted.items())]


def clustered(rows: Sequence[Row], by: Sequence[str], value: str) -> Summary:
    """
    Summarise the means of groups, where the rows of one group depend on each other.

    Parameters
    ----------
    by
        What the rows of a group share: a seed, mostly.
    """
    return Summary.of([each.mean for each in grouped(rows, by, value).values()])


def deviation_ratio(first: Sequence[float], second: Sequence[float]) -> Summary:
    """
    Summarise by how much the logarithm of one standard deviation is above another's.

    Parameters
    ----------
    first, second
        Pairs of measurements, of equal length. With fewer than three pairs, or where one
        sample does not vary, nothing can be said.

    References
    ----------
    .. [1] Miller (1968). Jackknifing variances. Annals of Mathematical Statistics 39(2): 567-582.
    """
    n = len(first)
    if n < 3 or min(np.std(first), np.std(second)) == 0.0:
        return Summary.of([])
    whole = _log_ratio(np.asarray(first), np.asarray(second))
    without = [_log_ratio(np.delete(first, i), np.delete(second, i)) for i in range(n)]
    return Summary.of([n * whole - (n - 1) * each for each in without])


def _log_ratio(first: np.ndarray, second: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        return float(np.log(np.std(first, ddof=1)) - np.log(np.std(second, ddof=1)))


def paired(rows: Sequence[Row], on: Sequence[str], value: str, first: Row, second: Row) -> Summary:
    """
    Summarise the ratios of a measure in pairs of rows of two kinds, first over second.

    A row of the first kind without a partner or without a value is left out.

    Parameters
    ----------
    on
        Names of the factors that a pair has in common, such as the seed.
    value
        Name of the measure.
    first, second
        Factors and values that a row of the first or second kind has.

    Raises
    ------
    ValueError
        When two of the second kind have all of that in common.
    """
    below: dict[tuple[Any, ...], Any] = {}
    for row in selected(rows, **second):
        key = tuple(row[k] for k in on)
        if key in below:
            raise ValueError(f"{', '.join(on)} do not tell the rows apart: {key} comes twice")
        below[key] = row[value]
    ratios = [
        float(r[value]) / float(below[tuple(r[k] for k in on)])
        for r in selected(rows, **first)
        if tuple(r[k] for k in on) in below and r[value] is not None
    ]
    return Summary.of(ratios)
