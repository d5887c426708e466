"""Readings of an index at one time, with the age of each status."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from bursar.model.status import SiteStatus, StatusReading


class StatusSnapshot:
    """
    An immutable set of statuses by site.

    Parameters
    ----------
    statuses
        Statuses by site; not copied, so the caller must not change the mapping.
    """

    __slots__ = ("_published", "statuses")

    def __init__(self, statuses: Mapping[str, SiteStatus]) -> None:
        self.statuses = statuses
        self._published: NDArray[np.float64] | None = None

    @property
    def published_at(self) -> NDArray[np.float64]:
        """Publication time of each site's status, in order, seconds; computed once."""
        if self._published is None:
            made = np.fromiter(
                (status.at for status in self.statuses.values()),
                dtype=np.float64,
                count=len(self.statuses),
            )
            made.flags.writeable = False
            self._published = made
        return self._published


class StatusReadings(Mapping[str, StatusReading]):
    """
    Readings by site: the statuses of one version, with their ages at the time of reading.

    Reading costs the same however many sites there are: ages are computed on access.

    Parameters
    ----------
    knowledge
        Snapshot of the index's statuses.
    now
        Time of reading, seconds.
    """

    __slots__ = ("_knowledge", "now")

    def __init__(self, knowledge: StatusSnapshot, now: float) -> None:
        self._knowledge = knowledge
        self.now = now

    @property
    def statuses(self) -> Mapping[str, SiteStatus]:
        """Status of each site; the same object as long as the version is the same."""
        return self._knowledge.statuses

    @property
    def ages(self) -> NDArray[np.float64]:
        """Ages of all statuses, seconds, in the order of the statuses."""
        return self.now - self._knowledge.published_at

    def __getitem__(self, site: str) -> StatusReading:
        status = self._knowledge.statuses[site]
        return StatusReading(status, self.now - status.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._knowledge.statuses)

    def __len__(self) -> int:
        return len(self._knowledge.statuses)
