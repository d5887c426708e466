"""Keep the last status of the sites in columns."""

import math
from collections.abc import Iterable, Mapping, Set

import numpy as np

from bursar.broker.directory.status_readings import StatusReadings
from bursar.broker.matchmaking.ads import (
    REQUIREMENTS,
    Attributes,
    changing_attributes,
    is_wait,
)
from bursar.broker.matchmaking.site_registry import SiteRegistry
from bursar.broker.matchmaking.wait_estimates import PublishedStatus
from bursar.classad import UNDEFINED, Ad, Expression, Table
from bursar.classad.analysis import EVERYTHING
from bursar.model.status import SiteStatus, StatusReading

OPEN = "production"
"""State, in lower case, of a site that takes jobs."""

_ABSENT: Attributes = {}


class SiteStatusTable:
    """
    The last status of each site.

    The columns that every job needs are kept up to date. Ads, and the table that expressions
    go over, follow when an expression first asks for what changes: most jobs ask for nothing.

    Parameters
    ----------
    registry
        The sites.

    Attributes
    ----------
    statuses
        Status of each site, by number; None where unknown.
    published
        The same statuses in columns.
    is_open
        Mask of the sites that are known and take jobs.
    openings
        Counter of changes of ``is_open``.
    tick
        Counter of changes of any status.
    """

    def __init__(self, registry: SiteRegistry) -> None:
        sites = len(registry)
        self._registry = registry
        self.statuses: list[SiteStatus | None] = [None] * sites
        self.published = PublishedStatus(
            np.full(sites, -math.inf), np.full(sites, math.nan), np.zeros(sites), np.zeros(sites)
        )
        self.is_open = np.zeros(sites, dtype=np.bool_)
        self.openings = 0
        self.tick = 0
        self._table: Table | None = None
        self._changing: list[Attributes] = [_ABSENT] * sites
        self._outdated: set[int] = set()
        self._shown: set[str] = set()  # what the table keeps up with
        self._changed: dict[str, int] = {}  # when an attribute changed last, in ticks

    def learn(self, readings: Mapping[str, StatusReading]) -> None:
        """Replace all statuses by the index's statuses; sites unknown to the index have none."""
        # Ages are not looked at here, and our own index reckons them only where they are.
        statuses: Mapping[str, SiteStatus] = (
            readings.statuses
            if isinstance(readings, StatusReadings)
            else {name: reading.status for name, reading in readings.items()}
        )
        for i, (name, old) in enumerate(zip(self._registry.names, self.statuses, strict=True)):
            status = statuses.get(name)
            # Identity, not equality: the index keeps the very object until a site says something
            # else.
            if status is not old:
                self.put(i, status)

    def put(self, i: int, status: SiteStatus | None) -> None:
        """Store the status of one site; None: unknown."""
        if status is self.statuses[i]:
            return
        self.statuses[i] = status
        self.tick += 1
        self._outdated.add(i)
        published = self.published
        if status is None:
            published.at[i], published.wait[i], published.free[i] = -math.inf, math.nan, 0.0
            is_open = False
        else:
            wait = status.traversal_time
            published.at[i] = status.at
            published.wait[i] = wait if wait is not None and is_wait(wait) else math.nan
            published.free[i] = status.free_processors
            published.waiting[i] = status.waiting
            is_open = status.state.lower() == OPEN
        if is_open != self.is_open[i]:
            self.is_open[i] = is_open
            self.openings += 1

    def stamp(self, names: Iterable[str]) -> int:
        """
        Return the tick at which any of some attributes last changed; 0: never.

        Parameters
        ----------
        names
            Names of attributes, in lower case.
        """
        self._catch_up()
        if EVERYTHING in names:
            return self.tick
        changed = self._changed
        return max((changed.get(name, 0) for name in names), default=0)

    def table(self, names: Set[str]) -> Table:
        """
        Return the table of all sites' ClassAds.

        Parameters
        ----------
        names
            Attributes in lower case that will be looked at; others may be out of date.
        """
        self._catch_up()
        if EVERYTHING in names or REQUIREMENTS in names:
            names = self._changed.keys()
        if self._table is None:
            self._table = Table([self.ad(i) for i in range(len(self.statuses))])
            self._shown.update(names)
        for name in self._changed.keys() & names - self._shown:
            self._shown.add(name)
            for i in range(len(self.statuses)):
                self._show(i, name)
        return self._table

    def ad(self, i: int) -> Ad:
        """Return a site's ClassAd."""
        self._catch_up()
        ad: dict[str, object] = self._registry.constant[i] | self._changing[i]
        expression: Expression | None = self._registry.requirements.get(i)
        if expression is not None:
            ad[REQUIREMENTS] = expression
        return Ad(ad)

    def _catch_up(self) -> None:
        for i in self._outdated:
            status, old = self.statuses[i], self._changing[i]
            new = self._changing[i] = _ABSENT if status is None else changing_attributes(status)
            for name in old.keys() | new.keys():
                value, before = new.get(name, UNDEFINED), old.get(name, UNDEFINED)
                # Types, too: to ClassAd expressions 1, 1.0 and true differ, though Python calls
                # them equal.
                if value == before and type(value) is type(before):
                    continue
                self._changed[name] = self.tick
                if name in self._shown:
                    self._show(i, name)
        self._outdated.clear()

    def _show(self, i: int, name: str) -> None:
        """Write an attribute of a site into the table."""
        assert self._table is not None
        value = self._changing[i].get(name, UNDEFINED)
        if value is UNDEFINED:
            value = self._registry.constant[i].get(name, UNDEFINED)
        self._table.set(name, i, value)
