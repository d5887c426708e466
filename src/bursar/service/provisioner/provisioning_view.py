"""Data on which the provisioner's policy decides, and the decisions it returns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bursar.model.demand import ProcessorDemand
from bursar.service.interfaces import WorkerDemand


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """
    A lease as a policy sees it: processors that are held for a pool, or requested.

    Parameters
    ----------
    name
        Of the lease.
    pool
        For whose tasks.
    processors
        How many; one worker has them all.
    asked
        When, seconds since the epoch.
    began
        When it got them; None while it waits.
    until
        When its time is over.
    ready, busy
        Processors whose workers are there, and that have tasks.
    idle_since
        Since when none has.
    leaving
        Whether it is on its way out.
    stopped
        And whether its tasks have been stopped.
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
        That there are in all.
    wanted
        By pool: what agreements are owed, or soon will be.
    demand
        By pool: the tasks that wait or run.
    leases
        All that are not gone.
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
        For whose tasks.
    processors
        How many.
    start
        When at the soonest, seconds since the epoch; None: when the site lets it.
    until
        When it ends at the latest.
    least_processors, least_seconds
        What it may have less of if that is sooner; None: nothing.
    bundle
        Of those that are asked for together.
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
    name
        Of the lease.
    reason
        For people.
    at_once
        Whether its tasks are stopped, and run again elsewhere; else they end first.
    """

    name: str
    reason: str
    at_once: bool = False


LeaseDecision = OpenLease | CloseLease
