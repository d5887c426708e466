"""Leases: the record in the journal, and the state while a lease is open."""

import asyncio
import math
from dataclasses import dataclass, field

import msgspec

from bursar.model.allocation import Allocation
from bursar.service.interfaces import is_shared
from bursar.service.provisioner.provisioning_view import OpenLease
from bursar.sites.protocol import HeldProcessors
from bursar.store import Position


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Processors that are requested or held; written to the journal before the request.

    Parameters
    ----------
    name
        Name of the lease; random, so that no lease of another life of the service has the same.
    pool
        Pool whose tasks it runs.
    processors
        Number of processors.
    asked
        Time of the request, seconds since the epoch.
    account
        Local account of the workers; empty: the service's own.
    start
        Earliest begin, seconds since the epoch; None: as soon as the site lets it.
    until
        End of the lease; None: when it is no longer needed.
    began
        When the site granted the processors, seconds since the epoch; None while the lease waits.
    """

    name: str
    pool: str
    processors: int
    asked: float
    account: str = ""
    start: float | None = None
    until: float | None = None
    began: float | None = None

    @property
    def end(self) -> float:
        """End of the lease; infinite: when the lease is no longer needed."""
        return math.inf if self.until is None else self.until

    @property
    def ends(self) -> float:
        """End of the lease; infinite while a shared lease waits for processors."""
        return math.inf if self.began is None and is_shared(self.pool) else self.end

    def opened(self) -> OpenLease:
        """Return the decision that opened the lease."""
        return OpenLease(
            pool=self.pool, processors=self.processors, start=self.start, until=self.end
        )

    def pilot(self, site: str, now: float) -> Allocation:
        """Return the lease as a pilot of the site, without a price: billing charges for use."""
        return Allocation(
            name=self.name,
            site=site,
            processors=self.processors,
            start=None if self.start is None else max(0.0, self.start - now),
            duration=max(0.0, self.end - max(now, self.start or now)),
            unit_price=None,
            fixed_price=None,
        )


@dataclass(slots=True, eq=False)
class ActiveLease:
    """
    A lease that is open: requested, waiting, held or on the way out.

    Attributes
    ----------
    record
        The record in the journal, with as many processors as the site granted.
    position
        Position of the record in the journal.
    leaving, stopped
        Whether the lease gets no more tasks, and whether its tasks have been stopped, too.
    held
        Processors from the site; an adopted lease may still wait in the site's queue. None: the
        site has not granted any.
    expected
        Until when workers from before a restart may come back with tasks, seconds since the
        epoch. None: no worker is awaited.
    changed
        Set when another attribute has changed, or a worker has come or gone.
    """

    record: LeaseRecord
    position: Position
    leaving: bool = False
    stopped: bool = False
    held: HeldProcessors | None = None
    expected: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
