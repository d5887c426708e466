"""Jobs that users submit: kinds, and the times at which one comes after another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bursar.model.errors import InputError
from bursar.model.matching import Matching

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

RuntimeSpread = Literal["fixed", "exponential"]
EstimateRule = Literal["exact", "mean", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridJobClass:
    """
    Jobs that are alike.

    Parameters
    ----------
    name
        For people.
    runtime
        Mean seconds at speed 1; where speeds are MIPS, millions of instructions.
    spread
        Whether all take that (``"fixed"``) or an exponential time of that mean.
    told
        Estimate that broker and sites are told: the exact time, the mean, or nothing.
    processors
        Processors that one job holds.
    memory
        Bytes it needs; None when unknown.
    data
        Logical names of the files it reads.
    matching
        Requirements, rank and weights for the broker.

    Raises
    ------
    InputError
        When a value is out of range.
    """

    name: str = "job"
    runtime: float
    spread: RuntimeSpread = "fixed"
    told: EstimateRule = "exact"
    processors: int = 1
    memory: int | None = None
    data: tuple[str, ...] = ()
    matching: Matching = field(default_factory=Matching)

    def __post_init__(self) -> None:
        if not (0 <= self.runtime < math.inf):
            raise InputError(f"runtime must be finite and not negative, got {self.runtime:g}")
        if self.processors < 1:
            raise InputError(f"processors must be at least 1, got {self.processors}")

    def estimate(self, work: float) -> float | None:
        """Return the estimate that is stated for a job of so many seconds at speed 1."""
        if self.told == "nothing":
            return None
        return work if self.told == "exact" else self.runtime


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GridWorkload:
    """
    Submissions, by time.

    Parameters
    ----------
    kinds
        Classes of jobs.
    at
        When each is submitted, seconds. Ascending, not negative.
    kind
        Number of its kind.
    work
        Seconds at speed 1 that it takes.

    Raises
    ------
    InputError
        When the arrays differ in length, times go back, or a kind is not there.
    """

    kinds: tuple[GridJobClass, ...]
    at: FloatArray
    kind: IntArray
    work: FloatArray

    def __post_init__(self) -> None:
        if not len(self.at) == len(self.kind) == len(self.work):
            raise InputError("times, kinds and work of the submissions differ in number")
        if not len(self.at):
            raise InputError("a load needs at least one submission")
        if self.at[0] < 0 or (np.diff(self.at) < 0).any() or not np.isfinite(self.at).all():
            raise InputError("submissions must be in order of time, from 0 on")
        if self.kind.min() < 0 or self.kind.max() >= len(self.kinds):
            raise InputError(f"there are {len(self.kinds)} kinds of job, and others are submitted")
        if not (np.isfinite(self.work).all() and self.work.min() >= 0):
            raise InputError("the work of a job must be finite and not negative")

    def __len__(self) -> int:
        return len(self.at)


def poisson(
    rng: np.random.Generator,
    kinds: Sequence[GridJobClass],
    *,
    gap: float,
    jobs: int,
    shares: Sequence[float] | None = None,
) -> GridWorkload:
    """
    User interfaces whose submissions come at exponential intervals (section 2.3).

    Several of them together are one of their summed rate.

    Parameters
    ----------
    kinds
        Classes of jobs.
    gap
        Mean seconds between two submissions. Positive.
    jobs
        How many. Positive.
    shares
        Shares of the kinds, in any unit; None: equal shares.

    Raises
    ------
    InputError
        When an argument is out of range.
    """
    if not (0 < gap < math.inf):
        raise InputError(f"the mean time between submissions must be positive, got {gap:g}")
    if jobs < 1:
        raise InputError(f"at least one job is needed, got {jobs}")
    weights = np.ones(len(kinds)) if shares is None else np.asarray(shares, dtype=np.float64)
    if len(weights) != len(kinds) or not weights.sum() > 0 or (weights < 0).any():
        raise InputError("each kind of job needs a share, and not all of them 0")
    # Drawn in this order, equal seeds give the same submissions at any gap, closer or wider.
    at = np.cumsum(rng.exponential(1.0, jobs)) * gap
    kind = rng.choice(len(kinds), size=jobs, p=weights / weights.sum()).astype(np.int64)
    factor = rng.exponential(1.0, jobs)
    fixed = np.array([k.spread == "fixed" for k in kinds])[kind]
    mean = np.array([k.runtime for k in kinds])[kind]
    return GridWorkload(
        kinds=tuple(kinds), at=at, kind=kind, work=mean * np.where(fixed, 1.0, factor)
    )
