"""Data on which a lease policy decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bursar.model.allocation import Allocation
from bursar.model.provisioning import ProcessorDemand
from bursar.service.interfaces import WorkerDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningView:
    """
    Everything that a decision rests on.

    Parameters
    ----------
    now
        Seconds since the epoch.
    processors
        Processors of the site.
    wanted
        Workers owed to agreements, now or soon, by pool.
    demand
        Demand of waiting and running tasks, by pool.
    leases
        All allocations that are not over, with the load of their workers.
    """

    now: float
    processors: int
    wanted: Mapping[str, WorkerDemand] = field(default_factory=dict)
    demand: Mapping[str, ProcessorDemand] = field(default_factory=dict)
    leases: Sequence[Allocation] = ()
