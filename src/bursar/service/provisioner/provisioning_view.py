"""Data on which a lease policy decides, and the decisions of the policy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bursar.model.provisioning import ProcessorDemand
from bursar.service.interfaces import WorkerDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """
    A lease as policies see leases: processors that are held for a pool, or requested.

    Times are in seconds since the epoch.

    Parameters
    ----------
    pool
        Pool whose tasks the lease runs.
    processors
        Number of processors, all of one worker on a machine of our own.
    asked
        When the lease was requested.
    began
        When the site granted the processors; None while the lease waits.
    until
        End of the lease; infinite: when it is no longer needed.
    ready, busy
        Processors of connected workers, and how many of these have tasks.
    idle_since
        Since when no worker has a task; None while any has.
    leaving
        Whether the lease gets no more tasks.
    stopped
        Whether its tasks have been stopped, too.
    """

    name: str
    pool: str
    processors: int
    asked: float = 0.0
    began: float | None = None
    until: float = math.inf
    ready: int = 0
    busy: int = 0
    idle_since: float | None = None
    leaving: bool = False
    stopped: bool = False


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
        All leases that have not ended.
    """

    now: float
    processors: int
    wanted: Mapping[str, WorkerDemand] = field(default_factory=dict)
    demand: Mapping[str, ProcessorDemand] = field(default_factory=dict)
    leases: Sequence[LeaseView] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLease:
    """
    The decision to open a lease.

    Parameters
    ----------
    pool
        Pool whose tasks the lease is to run.
    start
        Earliest start, seconds since the epoch; None: as soon as the site can.
    until
        Latest end, seconds since the epoch; infinite: when it is no longer needed.
    least_processors, least_seconds
        Smaller size and shorter time that would do if granted sooner; None: no less than asked.
    bundle
        Common name of leases that are requested together; empty: this one is alone.
    fits
        Whether the lease should begin at once, as far as the scheduler's queue tells.
    """

    pool: str
    processors: int
    start: float | None = None
    until: float = math.inf
    least_processors: int | None = None
    least_seconds: float | None = None
    bundle: str = ""
    fits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLease:
    """
    The decision to close a lease.

    Parameters
    ----------
    reason
        Reason, for people.
    at_once
        Whether running tasks are stopped, to run again elsewhere; False: they end first.
    """

    name: str
    reason: str
    at_once: bool = False


LeaseDecision = OpenLease | CloseLease
