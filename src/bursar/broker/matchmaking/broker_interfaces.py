"""Interfaces by which the resource broker learns of sites, files and jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bursar.model.matching import Matching
from bursar.model.status import SiteStatus, StatusReading
from bursar.model.task import Task

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
    matching
        Requirements, rank and choice of the job.
    processors
        Number of processors that the job holds.
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
