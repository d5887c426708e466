"""
Heterogeneous earliest finish time over the processors that are bought.

HEFT ranks the tasks by the longest path from each to the end, run and transfer
times averaged over the sites bought, and gives each in turn the site and gap
where it finishes earliest [1]_. Here a site is many processors, a task may hold
several of them at once, and only sites where it fits count in its average.

Ties are decided, so that a plan repeats: tasks of equal rank in the workflow's
topological order, sites of equal finish in the order they are named.

References
----------
.. [1] Topcuoglu, Hariri, Wu (2002). Performance-effective and low-complexity
   task scheduling for heterogeneous computing. IEEE TPDS 13(3): 260-274.
"""

from dataclasses import dataclass

import numpy as np

from bursar.planning import kernels
from bursar.planning.problem import FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """
    Where and when each task runs.

    Parameters
    ----------
    site
        Index into the problem's sites, shape ``(n_tasks,)``.
    start, finish
        Seconds, shape ``(n_tasks,)``.
    peak
        Processors that the tasks of each site need, shape ``(n_sites,)``.
    """

    site: IntArray
    start: FloatArray
    finish: FloatArray
    peak: IntArray

    @property
    def ends(self) -> FloatArray:
        """Last finish on each site, seconds, shape ``(n_sites,)``; 0 where nothing runs."""
        ends = np.zeros(len(self.peak))
        np.maximum.at(ends, self.site, self.finish)
        return ends

    @property
    def makespan(self) -> float:
        """Last finish, seconds; the first task starts at 0."""
        return float(self.finish.max())


def mean_runtimes(problem: Problem, bought: IntArray) -> FloatArray:
    """
    Mean over the bought sites where the task fits, seconds, shape ``(n_tasks,)``.

    Infinite for a task that fits on none.
    """
    runtimes = np.where(problem.widths[:, None] <= bought, problem.runtimes, np.inf)
    usable = np.isfinite(runtimes) & (bought > 0)
    counts = usable.sum(axis=1)
    sums = np.where(usable, problem.runtimes, 0.0).sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)


def mean_transfers(problem: Problem, bought: IntArray) -> FloatArray:
    """Mean over the pairs of different sites bought, seconds, shape ``(n_edges,)``."""
    used = np.flatnonzero(bought)
    pairs = len(used) * (len(used) - 1)
    if pairs == 0:
        return np.zeros(len(problem.parent_bytes))
    latency = problem.latency[np.ix_(used, used)].sum() / pairs
    pace = problem.seconds_per_byte[np.ix_(used, used)].sum() / pairs
    return np.asarray(latency + problem.parent_bytes * pace)


def upward_ranks(problem: Problem, bought: IntArray) -> FloatArray:
    """Longest remaining path of each task, seconds, shape ``(n_tasks,)``."""
    return kernels.upward_ranks(
        mean_runtimes(problem, bought),
        mean_transfers(problem, bought),
        problem.order,
        problem.parent_start,
        problem.parent_index,
    )


def heft(problem: Problem, bought: IntArray) -> Schedule | None:
    """
    The schedule on the bought processors; None when a task fits on none of them.

    Parameters
    ----------
    bought
        Processors of each site, shape ``(n_sites,)``.
    """
    ranks = upward_ranks(problem, bought)
    if np.isinf(ranks).any():
        return None
    # Stable: equal ranks stay in topological order, parents first.
    priority = problem.order[np.argsort(-ranks[problem.order], kind="stable")]
    if len(problem.parent_index) == 0 and (problem.widths == 1).all():
        return Schedule(*kernels.place_bag(priority, problem.runtimes, bought))
    return Schedule(
        *kernels.place(
            priority,
            problem.runtimes,
            problem.widths,
            bought,
            problem.parent_start,
            problem.parent_index,
            problem.parent_bytes,
            problem.latency,
            problem.seconds_per_byte,
        )
    )
