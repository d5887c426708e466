"""Keep the latest status of each site until it is too old."""

import math
from collections.abc import Iterable

from bursar.broker.directory.status_readings import StatusSnapshot
from bursar.model.status import SiteStatus


class StatusEntries:
    """
    The last status of each site.

    A reader keeps the snapshot that it was given: the statuses are copied before they change, once
    for all changes until the next reading.

    Parameters
    ----------
    expiry
        Seconds after which what a site said counts no more.
    """

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._statuses: dict[str, SiteStatus] = {}
        self._knowledge: StatusSnapshot | None = None
        self._oldest = math.inf  # nothing is older; a lower bound, so that it costs nothing
        self.version = 0

    @property
    def knowledge(self) -> StatusSnapshot:
        """All of it; the same object until something changes."""
        if self._knowledge is None:
            self._knowledge = StatusSnapshot(self._statuses)
        return self._knowledge

    def put(self, status: SiteStatus) -> None:
        """A site said something; what it said later stays."""
        self.merge((status,))

    def merge(self, statuses: Iterable[SiteStatus]) -> None:
        """Several said something; it is one change, if any."""
        stored = self._statuses
        changed = False
        for status in statuses:
            old = stored.get(status.site)
            if old is not None and (
                status is old or status.at < old.at or (status.at == old.at and status == old)
            ):
                continue
            if not changed:
                changed = True
                stored = self._changing()
            stored[status.site] = status
            self._oldest = min(self._oldest, status.at)

    def drop_expired(self, now: float) -> None:
        """Remove statuses that are too old."""
        if now - self._oldest <= self._expiry:
            return
        expired = [s.site for s in self._statuses.values() if now - s.at > self._expiry]
        if expired:
            stored = self._changing()
            for site in expired:
                del stored[site]
        self._oldest = min((s.at for s in self._statuses.values()), default=math.inf)

    def _changing(self) -> dict[str, SiteStatus]:
        """Statuses in a copy that no reader holds."""
        if self._knowledge is not None:
            self._statuses = dict(self._statuses)
            self._knowledge = None
        self.version += 1
        return self._statuses
