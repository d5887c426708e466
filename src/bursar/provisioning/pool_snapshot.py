"""What a pool decides upon, and what it decides: data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bursar.model.demand import ProcessorDemand
from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.site import SiteFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """
    Processors of one request that were asked for, or are held.

    Parameters
    ----------
    name
        Unique in a run; of its lease.
    site
        Name of the site.
    processors
        Asked for; once held, that it has.
    asked
        When, seconds on the pool's clock.
    seconds
        That it asked for.
    began
        When it got them; None while it waits.
    until
        When its time is over; infinite while it waits, or without an end.
    ready
        Processors whose workers are connected now.
    joined
        The most processors whose workers were ever connected at one time; None where nobody
        counts them, and then no processor of the allocation is ever taken to be silent.
    silent_since
        When the last worker went away of those that are still missing and did not take leave;
        None while none is.
    busy
        Processors with tasks.
    idle_since
        Since when none of it is busy; None while some is, or while it waits.
    leaving
        Whether it is on its way out already.
    bundle
        Of the allocations of one submission; empty: it is alone.
    race
        Of the allocations of which the first to start is kept; empty: none.
    """

    name: str
    site: str
    processors: int
    asked: float
    seconds: float
    began: float | None = None
    until: float = float("inf")
    ready: int = 0
    joined: int | None = None
    silent_since: float | None = None
    busy: int = 0
    idle_since: float | None = None
    leaving: bool = False
    bundle: str = ""
    race: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillWindow:
    """
    Processors that nobody holds for a while.

    Parameters
    ----------
    start
        Seconds from now.
    seconds
        How long; infinite: without an end in sight.
    processors
        How many.
    """

    start: float
    seconds: float
    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSite:
    """
    A site as the pool sees it now.

    Parameters
    ----------
    name
        Of the site.
    rules
        By which it acquires and releases there.
    processors
        That the site has.
    per_node
        Processors of its nodes, the most of one; None where it has no nodes.
    spans_nodes
        Whether one request may hold processors of several nodes.
    speed
        Work per second, relative to what estimates hold for.
    unit_price, fixed_price
        Currency units per processor-second, and for each request; None when unknown.
    batch
        Whether requests wait in a queue and have an end; otherwise it gives at once, and for as
        long as one likes.
    free
        Processors that are free now by what the scheduler says; None: it does not say.
    holes
        What is free, now and later, by the scheduler's queue; empty: nobody knows.
    probed
        Seconds until one processor would be there, as the scheduler said when it was asked; None:
        it was not, or does not say.
    waiting
        Jobs of others in the queue.
    longest
        Seconds that the queue lets a job ask for; None: as long as one likes.
    arrays, node_ranges, time_ranges, shrinks
        What its scheduler can do.
    unwatched
        Seconds for which an allocation may be held, and charged, after the run was killed: money
        for them is set aside with each request.
    """

    name: str
    rules: AcquisitionPolicy
    processors: int
    per_node: int | None = None
    spans_nodes: bool = True
    speed: float = 1.0
    unit_price: float | None = None
    fixed_price: float | None = 0.0
    batch: bool = True
    free: int | None = None
    holes: tuple[BackfillWindow, ...] = ()
    probed: float | None = None
    waiting: int = 0
    longest: float | None = None
    arrays: bool = False
    node_ranges: bool = False
    time_ranges: bool = False
    shrinks: bool = False
    unwatched: float = 0.0


def view_at_once(facts: SiteFacts, free: int, per_node: int | None = None) -> PoolSite:
    """
    A site that gives its processors at once, and without an end.

    Parameters
    ----------
    free
        Processors that nobody holds.
    per_node
        Processors of its largest worker; None: a task may hold all that there are.
    """
    return PoolSite(
        name=facts.name,
        rules=facts.acquiring,
        processors=facts.processors,
        per_node=per_node,
        speed=facts.speed,
        unit_price=facts.unit_price,
        fixed_price=facts.fixed_price,
        batch=False,
        free=free,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """
    Everything that a decision rests on.

    Parameters
    ----------
    now
        Seconds on the pool's clock.
    demand
        What waits.
    allocations
        What was asked for and is held.
    sites
        By name.
    until_deadline
        Seconds left to the campaign's deadline; None: it has none.
    affordable
        Currency units that are not spent or promised; None: there is no budget.
    settling
        Whether money is set aside for processors that were given back, until their providers
        have said what they came to: some of it may become free.
    """

    now: float
    demand: ProcessorDemand
    allocations: tuple[Allocation, ...] = ()
    sites: Mapping[str, PoolSite] = field(default_factory=dict)
    until_deadline: float | None = None
    affordable: float | None = None
    settling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """
    Processors are to be asked for.

    Parameters
    ----------
    site
        Of whom.
    processors
        How many.
    seconds
        For how long; infinite only of a site without a queue.
    least_seconds
        Or for less, down to this, if that is sooner; None: not less.
    least_processors
        Or as few as this, if they are sooner; None: not fewer. Both then are of whole nodes.
    bundle
        Those with the same one are one submission, and go back together.
    race
        Of those with the same one, the first to start is kept and the others are withdrawn.
    fits
        Whether the request should start at once, as far as the scheduler's queue tells.
    """

    site: str
    processors: int
    seconds: float
    least_seconds: float | None = None
    least_processors: int | None = None
    bundle: str = ""
    race: str = ""
    fits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRelease:
    """
    An allocation goes back, waiting or held.

    Parameters
    ----------
    name
        Of the allocation.
    reason
        For people and the journal.
    """

    name: str
    reason: str


PoolDecision = AllocationRequest | AllocationRelease


AllocationLoss = Literal["refused", "unreachable", "ended", "lost"]
"""Why an allocation is gone: the scheduler did not take it; it could not be asked; its time was
over or it was given back; and it broke down."""
