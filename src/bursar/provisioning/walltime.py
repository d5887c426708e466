"""Choose for how long processors are requested, and how many work in time for a deadline."""

import math
from collections.abc import Iterable

from bursar.model.allocation import Allocation
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool_snapshot import PoolSite

MARGIN = 1.25
"""Factor on the estimate that a task may take."""

START = 30.0
"""Seconds of each request that are allowed for the worker's start."""


def longest_walltime(site: PoolSite) -> float:
    """Return the seconds of a site's longest allocation, by our rules and the queue's."""
    return min(site.rules.longest, math.inf if site.longest is None else site.longest)


def mean_seconds(demand: ProcessorDemand, site: PoolSite) -> float:
    """Return the mean seconds of waiting tasks at a site; 0 while none waits."""
    return demand.work / demand.processors / site.speed if demand.processors else 0.0


def has_time(demand: ProcessorDemand, site: PoolSite) -> bool:
    """
    Whether the longest task fits into the longest allocation, estimates taken without a margin.
    """
    return not site.batch or demand.longest / site.speed <= longest_walltime(site)


def wanted_seconds(demand: ProcessorDemand, site: PoolSite, processors: int) -> float:
    """
    Return the seconds to request so that these processors do all the work that waits.

    So each runs as many tasks as there are for it, and these share the wait for it (DRP section
    3.2, at its end). Never less than the longest task needs nor than the rules' shortest, and
    never more than the rules and the queue allow. Tasks that are to come count as long as those
    that wait. Infinite of a site without a queue.

    Parameters
    ----------
    processors
        Processors that will share the work.
    """
    if not site.batch:
        return math.inf
    if not demand.tasks:  # kept for tasks to come
        return longest_walltime(site)
    work = demand.work * (demand.tasks + demand.later) / demand.tasks
    share = work * MARGIN / (site.speed * max(processors, 1)) + START
    return _bounded(max(share, _longest(demand, site)), site)


def least_seconds(demand: ProcessorDemand, site: PoolSite, wanted: float) -> float:
    """
    Return the seconds below which an allocation is not worth its wait: what the longest task needs.

    Parameters
    ----------
    wanted
        Upper bound of the result; see :func:`wanted_seconds`.
    """
    if not site.batch:
        return math.inf
    return min(_bounded(_longest(demand, site), site), wanted)


def least_in_window(demand: ProcessorDemand, site: PoolSite, wanted: float) -> float:
    """
    Return the seconds below which a backfill window is too short to be requested.

    The longest task's estimate counts as it is, without the margin of :func:`least_seconds`: that
    would leave holes empty into which a task fits.

    Parameters
    ----------
    wanted
        See :func:`wanted_seconds`; the result is never more.
    """
    if not site.batch:
        return math.inf
    return min(_bounded(demand.longest / site.speed + START, site), wanted)


def short_for_deadline(
    demand: ProcessorDemand,
    allocations: Iterable[Allocation],
    speeds: dict[str, float],
    left: float,
) -> int:
    """
    Return how many processors are missing for the work to be done in time; not negative.

    Work that waits and is to come, with a margin, less what the processors at hand can do until
    then. Where even the longest task alone is late, every processor helps: as many as waiting
    tasks hold.

    Parameters
    ----------
    allocations
        Allocations that work on it: held or waiting, without those being released.
    speeds
        Work per second of each site, by name.
    left
        Seconds to the deadline.
    """
    if not demand.tasks:
        return 0
    slowest = min(speeds.values(), default=1.0)
    usable = left - START
    if usable <= demand.longest * MARGIN / slowest:
        return demand.processors
    work = demand.work * (demand.tasks + demand.later) / demand.tasks * MARGIN
    for one in allocations:  # to the deadline: another takes the place of one that ends before
        work -= one.processors * usable * speeds.get(one.site, slowest)
    # What runs now takes its share of these; half of it is done on average.
    work += demand.running * demand.work / demand.processors / 2
    return max(0, math.ceil(work / (usable * slowest)))


def _longest(demand: ProcessorDemand, site: PoolSite) -> float:
    return demand.longest * MARGIN / site.speed + START


def _bounded(seconds: float, site: PoolSite) -> float:
    most = longest_walltime(site)
    return min(max(float(math.ceil(seconds)), site.rules.shortest), most)
