"""What the resource broker knows of the world, and whom it asks."""

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
    A job as the broker sees it.

    Parameters
    ----------
    number
        Unique among the jobs of a broker.
    matching
        What it asks for.
    processors
        That it holds.
    runtime
        Estimate at speed 1, seconds; None when unknown.
    memory
        Bytes it needs; None when unknown.
    data
        Logical names of the files it reads.
    """

    number: int
    matching: Matching
    processors: int = 1
    runtime: float | None = None
    memory: int | None = None
    data: tuple[str, ...] = ()


def broker_job(number: int, task: Task) -> BrokerJob:
    """A task as the broker sees it."""
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
        """Changes whenever anything in it does."""

    def read(self) -> Mapping[str, StatusReading]:
        """What it knows, by site; what has expired is not there."""


class DirectSiteQuery(Protocol):
    """Asking a site itself."""

    def status(self, site: str) -> SiteStatus | None:
        """What it says now; None when it does not answer, or not sensibly."""


class FileTimes(Protocol):
    """What the replica catalogue and the network say of the files of a job (equation 3)."""

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> Seconds:
        """
        For each site, seconds until what it lacks of these files has been brought there;
        infinite where a file has no copy that could be.
        """

    def access_times(self, data: tuple[str, ...], sites: Sequence[str]) -> Seconds:
        """For each site, seconds it takes to read these files there, once they are there."""
