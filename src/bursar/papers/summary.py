"""Rows in groups: mean, deviation and number, and how they are written."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.papers.experiment import Row


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and standard deviation of a sample, and its size."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Of values that are numbers; of none, not a number."""
        if not len(values):
            return cls(float("nan"), float("nan"), 0)
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), deviation, len(values))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / float(np.sqrt(self.count)) if self.count else float("nan")

    def __str__(self) -> str:
        spread = float(f"{self.deviation:.2g}")  # two digits, and no exponent
        return f"{self.mean:,.4g} ± {spread:,.10g} (n = {self.count})"


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


def paired(rows: Sequence[Row], on: Sequence[str], value: str, first: Row, second: Row) -> Summary:
    """
    The ratio of one measure in two kinds of rows that share some factors, first over second.

    Parameters
    ----------
    on
        What a pair has in common: a submission, a load.
    first, second
        Factors that tell the two kinds.

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
