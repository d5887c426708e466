"""
The small optimisation under our own strategy: jobs into the time that processors have left.

Jobs come in classes of like size. A *bay* is a site, or a site for as long as one of its
prices holds. Filling the cheapest bays first, the largest jobs first, up to a moment, costs
least among jobs of one size and is first-fit decreasing among several; the earliest moment at
which everything fits within a budget is found by bisection.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

CLASSES = 12
"""Largest number of size classes."""

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePool:
    """
    Processors that take jobs, at one price.

    Parameters
    ----------
    seconds
        Seconds that a job of size 1 takes. Positive.
    cost
        Cost of a job of size 1, currency units.
    fixed
        Fixed cost of each job, currency units.
    free_at
        When each processor is free, seconds from now; one at the least.
    until
        When the price ends, seconds from now; infinite: never.
    """

    seconds: float
    cost: float
    fixed: float = 0.0
    free_at: tuple[float, ...]
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class PackingResult:
    """
    Result of packing jobs into bays.

    Parameters
    ----------
    given
        Number of jobs of each class in each bay, shape ``(n_classes, n_bays)``.
    left
        Number of jobs of each class that found no place, shape ``(n_classes,)``.
    cost
        Cost of the jobs that did, currency units.
    """

    given: Counts
    left: Counts
    cost: float

    @property
    def is_whole(self) -> bool:
        """Whether every job found a place."""
        return not self.left.any()


@dataclass(frozen=True)
class JobSizeClasses:
    """
    Classes of jobs by size, the largest first.

    Parameters
    ----------
    size
        Mean size of each class, shape ``(n_classes,)``.
    count
        Number of jobs in each class, shape ``(n_classes,)``.
    within
        Most by which a job is larger than its class's mean.
    """

    size: Floats
    count: Counts
    within: float = 0.0

    @classmethod
    def of(cls, sizes: Sequence[float] | Floats) -> "JobSizeClasses":
        """Group jobs by equal size, or into classes of equal numbers where sizes are many."""
        ordered = np.sort(np.asarray(sizes, dtype=np.float64))[::-1]
        if not len(ordered):
            return cls(np.zeros(0), np.zeros(0, dtype=np.int64))
        starts = np.flatnonzero(np.diff(ordered, prepend=np.inf))
        if len(starts) > CLASSES:
            starts = np.unique(np.linspace(0, len(ordered), CLASSES, endpoint=False).astype(int))
        count = np.diff(starts, append=len(ordered))
        mean = np.add.reduceat(ordered, starts) / count
        # Each class counts as its mean: its largest job is what a margin must cover.
        within = float((ordered[starts] - mean).max())
        return cls(mean, count, within if within > _CLOSE * float(mean.max()) else 0.0)

    @cached_property
    def jobs(self) -> int:
        """Number of jobs."""
        return int(self.count.sum())

    @cached_property
    def work(self) -> float:
        """Sum of all sizes."""
        return float(self.size @ self.count)


class JobPacking:
    """Packs jobs into bays."""

    def __init__(self, pools: Sequence[ResourcePool], sizes: JobSizeClasses) -> None:
        self._sizes = sizes
        mean = sizes.work / max(1, sizes.jobs)
        # By the price of a mean job, fixed charge included: the order of bays in every packing
        # below.
        self._order = sorted(
            range(len(pools)), key=lambda b: (pools[b].cost * mean + pools[b].fixed, b)
        )
        ordered = [pools[b] for b in self._order]
        widths = [len(pool.free_at) for pool in ordered]
        self._starts = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)[:-1]
        self._of = np.repeat(np.arange(len(ordered)), widths)
        self._free = np.array([free for pool in ordered for free in pool.free_at], dtype=np.float64)
        self._seconds = np.array([pool.seconds for pool in ordered], dtype=np.float64)
        self._cost = np.array([pool.cost for pool in ordered], dtype=np.float64)
        self._fixed = np.array([pool.fixed for pool in ordered], dtype=np.float64)
        self._until = np.array([pool.until for pool in ordered], dtype=np.float64)[self._of]
        self._each = self._seconds[self._of]
        # Of each class that has jobs: how many, and seconds and cost of one on each processor.
        self._classes = [
            (int(n), size * self._each, (size * self._cost + self._fixed)[self._of])
            for size, n in zip(sizes.size, sizes.count, strict=True)
            if n
        ]

    def by(self, moment: float) -> PackingResult:
        """
        Pack all jobs that fit until a given time, cheapest bays first.

        Parameters
        ----------
        moment
            Seconds from now.
        """
        count = self._sizes.count
        given = np.zeros((len(count), len(self._order)), dtype=np.int64)
        left = count.copy()
        if len(self._order) and len(count):
            room = self._room(moment)
            for k in np.flatnonzero(count):
                given[k], room = self._place(float(self._sizes.size[k]), int(count[k]), room)
            left = count - given.sum(axis=1)
        return self._result(given, left)

    def within(self, moment: float, budget: float) -> PackingResult:
        """Pack as many jobs as fit until a given time and into a budget, the smallest first."""
        everything = self.by(moment)
        if everything.is_whole and everything.cost <= budget * (1 + _CLOSE):
            return everything
        count = self._sizes.count
        given = np.zeros((len(count), len(self._order)), dtype=np.int64)
        if not len(self._order):
            return self._result(given, count.copy())
        room = self._room(moment)
        # Classes run from large to small: backwards, the smallest jobs first, to finish as many as
        # money allows.
        for k in range(len(count) - 1, -1, -1):
            size = float(self._sizes.size[k])
            placed, after = self._place(size, int(count[k]), room)
            price = self._cost * size + self._fixed
            paid = np.cumsum(placed * price)
            before = paid - placed * price
            with np.errstate(divide="ignore", invalid="ignore"):
                affordable = np.where(
                    price > 0, np.floor((budget - before) / price * (1 + _CLOSE) + _CLOSE), placed
                )
            some = np.clip(affordable, 0, placed).astype(np.int64)
            given[k] = some
            budget -= float(some @ price)
            # The money is used up: larger jobs cost more still.
            if (some < placed).any():
                break
            room = after
        return self._result(given, count - given.sum(axis=1))

    def earliest(self, budget: float, limit: float = math.inf) -> float | None:
        """
        Return the earliest moment by which all jobs are done within a budget.

        Parameters
        ----------
        budget
            Currency units.
        limit
            Latest moment that counts, seconds from now.

        Returns
        -------
        float or None
            Seconds from now, to a thousandth of a job; None where there is none.
        """
        if not self._sizes.jobs:
            return 0.0
        if not len(self._free):
            return None
        high = min(limit, self._longest)
        if not self._suffices(high, budget):
            return None
        low = min(high, self._least)
        if self._suffices(low, budget):
            return low
        return self._bisected(low, high, lambda moment: self._suffices(moment, budget))

    def ends(self, filled: PackingResult) -> float:
        """
        Return when the last job ends, seconds from now, with the largest first in each bay.

        Precision: a thousandth of a job.
        """
        given = filled.given[:, self._order]
        used = given.sum(axis=0)[self._of] > 0
        if not used.any():
            return 0.0
        low, high = float(self._free[used].min()), self._longest
        if not self._holds(given, high):
            return high  # in another order they do
        return self._bisected(low, high, lambda moment: self._holds(given, moment))

    @cached_property
    def _least(self) -> float:
        """Lower bound of the end: the work shared evenly from the first free processor on."""
        rate = float((1.0 / self._each).sum())
        return float(self._free.min()) + self._sizes.work / rate

    @cached_property
    def _longest(self) -> float:
        """Upper bound of the end: each processor could do all jobs, or its price has ended."""
        serial = self._free + self._sizes.work * self._each
        return float(np.minimum(serial, self._until).max()) * (1 + _CLOSE) + _CLOSE

    def _bisected(self, low: float, high: float, is_enough: Callable[[float], bool]) -> float:
        """Bisect for the least sufficient moment between an insufficient and a sufficient one."""
        smallest = float(self._sizes.size[self._sizes.count > 0].min())
        # Finer than a thousandth of the smallest job changes no packing; the second bound ends the
        # loop where floats are coarser than that.
        precision = max(1e-3 * smallest * float(self._seconds.min()), 1e-9 * high)
        while high - low > precision:
            middle = (low + high) / 2
            if is_enough(middle):
                high = middle
            else:
                low = middle
        return high

    def _room(self, moment: float) -> Floats:
        """Seconds that each processor has until a moment."""
        if math.isinf(moment):
            moment = self._longest
        return np.maximum(np.minimum(self._until, moment) - self._free, 0.0)

    def _suffices(self, moment: float, budget: float) -> bool:
        """Whether all jobs are done by a moment, within a budget."""
        room, cost = self._room(moment), 0.0
        for jobs, seconds, price in self._classes:
            fits = np.floor(room / seconds + _CLOSE)
            before = fits.cumsum()
            if before[-1] < jobs:
                return False
            used = np.minimum(np.maximum(jobs - before + fits, 0.0), fits)
            cost += float(used @ price)
            room = np.maximum(room - used * seconds, 0.0)
        return cost <= budget * (1 + _CLOSE) + _CLOSE

    def _holds(self, given: Counts, moment: float) -> bool:
        """Whether each bay finishes the given jobs by a given time, the largest first."""
        room = self._room(moment)
        for wanted, size in zip(given, self._sizes.size, strict=True):
            seconds = size * self._each
            fits = np.floor(room / seconds + _CLOSE)
            total = np.add.reduceat(fits, self._starts)
            if (total < wanted).any():
                return False
            # Places on earlier processors of the same bay: sums over all, less those of the bays
            # before.
            earlier = fits.cumsum() - fits - (total.cumsum() - total)[self._of]
            used = np.minimum(np.maximum(wanted[self._of] - earlier, 0.0), fits)
            room = np.maximum(room - used * seconds, 0.0)
        return True

    def _place(self, size: float, jobs: int, room: Floats) -> tuple[Counts, Floats]:
        """Place jobs of one size; return how many each bay takes, and the room that is left."""
        seconds = size * self._each
        fits = np.floor(room / seconds + _CLOSE)
        # Processor by processor, those of the cheapest bay first.
        used = np.minimum(np.maximum(jobs - (fits.cumsum() - fits), 0.0), fits)
        taken = np.add.reduceat(used, self._starts).astype(np.int64)
        return taken, np.maximum(room - used * seconds, 0.0)

    def _result(self, given: Counts, left: Counts) -> PackingResult:
        work = self._sizes.size @ given if len(given) else np.zeros(len(self._order))
        cost = float(work @ self._cost + given.sum(axis=0) @ self._fixed)
        back = np.zeros_like(given)
        back[:, self._order] = given
        return PackingResult(back, left, cost)


_CLOSE = 1e-9
"""Relative tolerance for rounding errors."""
