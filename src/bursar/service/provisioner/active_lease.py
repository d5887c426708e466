"""A lease as the journal keeps it, and as the provisioner carries it."""

import asyncio
import math
from dataclasses import dataclass, field

import msgspec

from bursar.service.interfaces import Position
from bursar.sites.protocol import HeldProcessors


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Processors that are requested or held; written to the journal before the request.

    Parameters
    ----------
    name
        Never used again, in any life of the service.
    pool
        For whose tasks.
    processors
        How many.
    asked
        When, seconds since the epoch.
    account
        Local account of its workers; empty: the service's own.
    start
        When it is to begin at the soonest; None: when the site lets it.
    until
        When it ends; None: when it is not needed any more.
    began
        When it got its processors; None: it waits for them, in a queue maybe.
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


@dataclass(slots=True, eq=False)
class ActiveLease:
    """
    A lease between its opening and its end.

    Attributes
    ----------
    record
        What it is; with as many processors as it got.
    position
        Of the record in the journal.
    leaving, stopped
        Whether it is on its way out, and whether its tasks have been stopped, too.
    held
        Its processors; for an adopted one its place in the queue, as long as it has not begun.
    expected
        Until when workers from before a restart may come back with their tasks; seconds
        since the epoch. None: nobody is waited for.
    news
        Set when something of this has changed, or a worker has come or gone.
    """

    record: LeaseRecord
    position: Position
    leaving: bool = False
    stopped: bool = False
    held: HeldProcessors | None = None
    expected: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
