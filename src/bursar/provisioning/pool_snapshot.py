"""Data types of a pool's input and of its decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bursar.model.allocation import Allocation, AllocationRequest
from bursar.model.provisioning import AcquisitionPolicy, ProcessorDemand
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSite:
    """
    A site as the pool sees it now.

    Parameters
    ----------
    per_node
        Most processors of one node; None where the site has no nodes.
    spans_nodes
        Whether one request may hold processors of several nodes.
    speed
        Work per second, relative to what estimates hold for.
    unit_price, fixed_price
        Currency units per processor-second, and for each request; None when unknown.
    batch
        Whether requests wait in a queue and have an end; otherwise processors are given at once and
        without a limit of time.
    free
        Processors that the scheduler says are free now; None: it does not say.
    backfill_windows
        Processors that no job holds for a while, now and later, by the scheduler's queue; starts
        are seconds from now. Empty: unknown.
    probed
        Seconds until one processor would be available, by the scheduler's estimate; None: no
        estimate.
    waiting
        Number of other users' jobs in the queue.
    longest
        Longest time that the queue lets a job ask for, seconds; None: no limit.
    arrays, node_ranges, time_ranges, shrinks
        Capabilities of the scheduler, see
        :class:`bursar.provisioning.lrm.resource_manager.ManagerCapabilities`.
    unwatched
        Seconds for which an allocation may be held, and charged, after the run was killed: money
        for them is set aside with each request.
    most_unit_price
        Highest price of a processor-second that the site may ask for; None: ``unit_price``.
    smallest
        Processors of the smallest unit that the site sells.
    refused
        Why the site will grant nothing more, whatever is asked for; empty: it may.
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
    backfill_windows: tuple[Slot, ...] = ()
    probed: float | None = None
    waiting: int = 0
    longest: float | None = None
    arrays: bool = False
    node_ranges: bool = False
    time_ranges: bool = False
    shrinks: bool = False
    unwatched: float = 0.0
    most_unit_price: float | None = None
    smallest: int = 1
    refused: str = ""


def view_at_once(facts: SiteFacts, free: int, per_node: int | None = None) -> PoolSite:
    """
    Return the view of a site that gives processors at once and without an end.

    Parameters
    ----------
    free
        Number of processors that nobody holds.
    per_node
        Processors of the largest worker; None: a task may hold all processors.
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
    All data that a decision rests on.

    Parameters
    ----------
    now
        Seconds on the pool's clock.
    until_deadline
        Seconds left to the campaign's deadline; None: no deadline.
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
class AllocationRelease:
    """
    A decision to release an allocation, waiting or held.

    Parameters
    ----------
    at_once
        Whether running tasks are stopped, to run again elsewhere; False: they end first.
    """

    name: str
    reason: str
    at_once: bool = False


PoolDecision = AllocationRequest | AllocationRelease
