"""Estimate a job's wait at each site, from the site's status and what was sent there since."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bursar.compiling import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class UncountedJobs(NamedTuple):
    """
    Our own unfinished jobs that a site's published status may not count yet.

    Attributes
    ----------
    site
        Number of each job's site.
    processors
        Processors that each job holds.
    runtime
        Seconds at speed 1; nan where that is not known.
    due
        Time when the job's files should be there, seconds.
    arrived, began
        Times when the job reached the site's queue and began there; infinite before.
    """

    site: IntArray
    processors: FloatArray
    runtime: FloatArray
    due: FloatArray
    arrived: FloatArray
    began: FloatArray


class PublishedStatus(NamedTuple):
    """
    Last published status of the sites, in columns.

    Attributes
    ----------
    at
        Time of the reading, seconds.
    wait
        Estimated traversal time, seconds; nan where unknown.
    free
        Number of processors that no job held.
    waiting
        Number of waiting jobs.
    """

    at: FloatArray
    wait: FloatArray
    free: FloatArray
    waiting: FloatArray


@compiled
def expected_waits(
    now: float,
    own: UncountedJobs,
    statuses: PublishedStatus,
    width: FloatArray,
    speed: FloatArray,
    usual: float,
    processors: float,
    runtime: float,
    arrival: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """
    Estimate the seconds until a job would begin at each site, not counting file transfers.

    A reading knows the jobs that came before its moment. Those of ours that came since, or
    will come before this job does, are put behind what it knows.

    Where the site was busy, the published wait has grown shorter since, and what we sent
    makes it longer by its work over the processors::

        wait = max(0, published - age) + (work + (processors - 1) runtime) / n

    the last term for a job that needs several processors at once, of which the published
    wait is for the first. A site that publishes none, though no processor is free, is taken
    to have a queue of jobs of the usual length.

    Where f processors were free, our jobs have taken these first, so a job waits only for
    k = (processors of ours and its own) - f of them, of the mean length of what is ahead.
    Until the first job of ours ends, only the n - f processors of others become free, at even
    intervals; from then on all do::

        k <= 0:                      0
        k mean <= first (n - f):     k mean / (n - f)
        otherwise:                   first + (k mean - first (n - f)) / n

    Parameters
    ----------
    now
        Seconds.
    own
        Jobs to count.
    statuses
        Last published status of the sites.
    width, speed
        Number of processors of each site, and their speed.
    usual
        Seconds at speed 1 assumed for a job whose runtime is unknown.
    processors, runtime
        Processors that the job holds, and the job's seconds at speed 1.
    arrival
        Arrival of the job's files at each site, seconds.

    Returns
    -------
    waits
        Seconds.
    ours
        Processors that the counted jobs hold or wait for, by site.
    """
    sites = len(width)
    ours = np.zeros(sites)
    work = np.zeros(sites)
    first = np.full(sites, np.inf)
    for j in range(len(own.site)):
        s = own.site[j]
        # Arrival at the very moment of the reading: it may have been made before.
        if own.arrived[j] < statuses.at[s] or min(own.due[j], own.arrived[j]) > arrival[s]:
            continue
        length = (usual if np.isnan(own.runtime[j]) else own.runtime[j]) / speed[s]
        begin = own.began[j]
        if np.isinf(begin):
            # Not begun yet as far as anybody knows: all its work is still ahead.
            begin = now if own.arrived[j] <= now else max(now, own.due[j])
        left = max(0.0, length - max(0.0, now - begin))
        ours[s] += own.processors[j]
        work[s] += own.processors[j] * left
        first[s] = min(first[s], max(begin, now) + left - now)
    waits = np.empty(sites)
    for s in range(sites):
        length = runtime / speed[s]
        # `not >` also holds for nan: a site that publishes no wait but has free processors has
        # none.
        if statuses.free[s] > 0 and not statuses.wait[s] > 0:
            lacking = ours[s] + processors - statuses.free[s]
            if lacking <= 0:
                waits[s] = 0.0
                continue
            ahead = lacking * (work[s] + processors * length) / (ours[s] + processors)
            others = max(0.0, width[s] - statuses.free[s])
            if ahead <= first[s] * others:
                waits[s] = ahead / others if others > 0 else 0.0
            else:
                waits[s] = first[s] + (ahead - first[s] * others) / width[s]
        else:
            published = statuses.wait[s]
            if np.isnan(published):
                published = (statuses.waiting[s] + 1) * usual / speed[s] / width[s]
            left = max(0.0, published - max(0.0, now - statuses.at[s]))
            waits[s] = left + (work[s] + (processors - 1) * length) / width[s]
    return waits, ours
