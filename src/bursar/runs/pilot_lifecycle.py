"""State of a pilot between agreement and end, and the observer of begins and ends."""

import asyncio
import math
from dataclasses import dataclass, field

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.sites.protocol import HeldProcessors


class PilotObserver:
    """Observer of pilots' begins and ends, which does nothing; subclasses override the methods."""

    def began(self, pilot: Allocation, since: float) -> None:
        """Note that a pilot has held processors since a time (seconds since the epoch)."""

    def pilot_ended(self, pilot: Allocation, loss: AllocationLoss, reason: str) -> None:
        """Note that a pilot has ended or was never granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """
    Terms common to all leases of a run.

    Parameters
    ----------
    run
        Identity of the run, by which worker processes are recognised.
    currency
        Currency of all prices.
    rigid
        Whether some task may hold several processors.
    """

    run: str
    currency: str
    rigid: bool


@dataclass(slots=True, eq=False)
class PilotLifecycle:
    """State of a pilot between agreement and end."""

    pilot: Allocation
    begun: asyncio.Future[None]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    awaited: bool = False
    held: HeldProcessors | None = None
    lost: tuple[AllocationLoss, str] | None = None  # when it went by itself
    since: float = 0.0
    is_asked: bool = False  # of its site
    until: float = math.inf
    has_room: bool = False  # of what was booked: no other pilot of ours holds its processors
    is_late: bool = False  # we are: its processors are kept, and paid, from its begin on
    more: float = 0.0  # seconds of the next extension
    task: asyncio.Task[None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self) -> None:
        """Mark the pilot as not needed any more."""
        self.over.set()
        # Wakes the wait for a moment, too, which looks at both.
        self.changed.set()
