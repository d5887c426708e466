"""Interfaces by which the resource broker learns of sites, files and jobs; times of files."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar.broker.matchmaking.choice import FloatArray
from bursar.model.matching import Matching, Replica, SiteStatus, StatusReading
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.task import Task

# Interfaces by which the resource broker learns of sites, files and jobs.

Seconds = Sequence[float] | NDArray[np.float64]
"""One for each site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerJob:
    """
    A job in the broker's view.

    Parameters
    ----------
    number
        Number of the job, unique at a broker.
    runtime
        Estimate at speed 1, seconds; None when unknown.
    memory
        Bytes of memory that the job needs; None when unknown.
    data
        Logical names of the job's input files.
    """

    number: int
    matching: Matching
    processors: int = 1
    runtime: float | None = None
    memory: int | None = None
    data: tuple[str, ...] = ()


def broker_job(number: int, task: Task) -> BrokerJob:
    """Return a task in the broker's view."""
    return BrokerJob(
        number=number,
        matching=task.matching,
        processors=task.processors,
        runtime=task.runtime,
        memory=task.memory,
        data=task.data,
    )


class IndexReader(Protocol):
    """The information index: facts that may be old (section 2.1)."""

    @property
    def version(self) -> int:
        """Counter of changes of the index's content."""

    def read(self) -> Mapping[str, StatusReading]:
        """Return the readings by site, without expired ones."""


class DirectSiteQuery(Protocol):
    """Asks a site directly for the present status."""

    def status(self, site: str) -> SiteStatus | None:
        """Return the present status of a site; None when the site gives no sensible answer."""


class FileTimes(Protocol):
    """
    Estimates the times of a job's files from the replica catalogue and the network (equation 3).
    """

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> Seconds:
        """
        For each site, seconds until what it lacks of these files has been brought there;
        infinite where a file has no copy that could be.
        """

    def access_times(self, data: tuple[str, ...], sites: Sequence[str]) -> Seconds:
        """For each site, seconds it takes to read these files there, once they are there."""


# Estimate how long the files of jobs take at sites, by where copies are and how sites are linked.

OUTSIDE = Link(latency=1.0, bandwidth=10e6)
"""Link assumed for copies held by no site, whose network path is unknown."""


class LinkedFileTimes:
    """
    The two terms of equation 3 (Cavalieri et al. 2003), by the links of a sites file.

    Files come one after the other, each from the copy that is there first; from a copy at a site by
    the link from there, and at once where there is none, for then the two share their files (as
    :meth:`bursar.model.site.SiteFacts.delay_to` has it). A size that is not known counts nothing.

    Parameters
    ----------
    sites
        Sites, with links and the read rates of storages.
    copies
        Returns the copies of a logical file, by its name.
    outside
        Link over which copies outside all sites come.
    """

    def __init__(
        self,
        sites: Sequence[SiteFacts],
        copies: Callable[[str], Sequence[Replica]],
        outside: Link = OUTSIDE,
    ) -> None:
        self._sites = {site.name: site for site in sites}
        self._copies = copies
        self._outside = outside

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """
        Return for each site the seconds until the missing files have been brought there.

        Infinite where a file has no copy.
        """
        total = np.zeros(len(sites))
        for name in data:
            soonest = np.full(len(sites), math.inf)
            for replica in self._copies(name):
                size = replica.size or 0
                for place, site in enumerate(sites):
                    link = self._link(replica.site, site)
                    seconds = 0.0 if link is None else link.latency + size / link.bandwidth
                    soonest[place] = min(soonest[place], seconds)
            # One after the other: files of one job share the same way into the site.
            total += soonest
        return total

    def access_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """Return for each site the seconds to read the files after the transfer."""
        size = sum(
            next((copy.size for copy in self._copies(name) if copy.size is not None), 0)
            for name in data
        )
        rates = (self._sites[site].storage_rate for site in sites)
        return np.array([0.0 if rate is None else size / rate for rate in rates])

    def _link(self, source: str, target: str) -> Link | None:
        """Return the link from one site to another; None where both share files."""
        holder = self._sites.get(source)
        if holder is None:
            return self._outside
        return None if source == target else holder.links.get(target)
