"""The backlog keeps the jobs that have not been sent, by size."""

import heapq
import math
from collections.abc import Sequence

import numpy as np

from bursar.broker.packing import JobSizeClasses


class Backlog:
    """
    Keeps jobs in classes of like size; the first of a class is found and put back in log n.

    Parameters
    ----------
    sizes
        Size of every job of the campaign.
    by_size
        Whether jobs of different sizes are told apart; otherwise they come as they are
        listed.
    """

    def __init__(self, sizes: Sequence[float], *, by_size: bool) -> None:
        self._sizes = sizes
        self._by_size = by_size
        classes = JobSizeClasses.of(sizes)
        self._size, self._within = classes.size, classes.within
        self._class = np.zeros(len(sizes), dtype=np.int64)
        order = np.argsort(-np.asarray(sizes, dtype=np.float64), kind="stable")
        # Ranks by size, ties by number: the classes of JobSizeClasses in the jobs' own order.
        self._class[order] = np.repeat(np.arange(len(classes.size)), classes.count)
        self._count = np.zeros(len(classes.size), dtype=np.int64)
        self._heaps: list[list[int]] = [[] for _ in (self._size if by_size else (0,))]
        self._work = 0.0
        self.jobs = 0
        self._later: list[tuple[float, int]] = []  # when jobs that failed are sent again

    def add(self, task: int) -> None:
        """Add a job that is to be sent, or sent again."""
        heapq.heappush(self._heaps[self._class[task] if self._by_size else 0], task)
        self._count[self._class[task]] += 1
        self._work += self._sizes[task]
        self.jobs += 1

    def add_later(self, task: int, when: float) -> None:
        """Have :meth:`take_up` add a job from a moment on."""
        heapq.heappush(self._later, (when, task))

    def take_up(self, now: float) -> None:
        """Add the jobs whose moment has come."""
        while self._later and self._later[0][0] <= now:
            self.add(heapq.heappop(self._later)[1])

    @property
    def next_up(self) -> float:
        """Time at which :meth:`take_up` has something to do next; infinite for never."""
        return self._later[0][0] if self._later else math.inf

    def take(self, size_class: int = 0) -> int:
        """
        Remove and return the first job of a class; of all jobs where sizes are not told apart.
        """
        task = heapq.heappop(self._heaps[size_class])
        self._count[self._class[task]] -= 1
        self._work -= self._sizes[task]
        self.jobs -= 1
        return task

    def has(self, size_class: int) -> bool:
        """Whether a job of a class is left."""
        return bool(self._heaps[size_class])

    def next_class(self, given: list[int]) -> int | None:
        """Return the first class of which a site gets jobs; set classes without jobs to 0."""
        for k, count in enumerate(given):
            if count > 0:
                if self.has(k):
                    return k
                given[k] = 0
        return None

    @property
    def mean(self) -> float:
        """Mean size of the jobs left; of all jobs where none is left."""
        if self.jobs:
            return max(self._work / self.jobs, 1e-9)
        return float(np.mean(self._sizes)) if len(self._sizes) else 1.0

    @property
    def sizes(self) -> JobSizeClasses:
        """Size classes for the optimisation, including those without a job."""
        return JobSizeClasses(self._size, self._count.copy(), self._within)
