"""
The policies that open and close leases: for a batch cluster, and for a machine of our own.

On a batch cluster a job is submitted for each agreement; it begins and ends with the agreement.
For shared tasks the pool of :mod:`bursar.provisioning` decides, by the rules of the site, on
the processors that are not sold.

On a machine that only the service uses, sold processors come first: an agreement has its
processors from its start to its end. The rest is divided among pools with waiting tasks, each
as much as it needs, and none more than another pool that needs as much (max-min fairness).
Processors that no pool needs stay with the workers that have been started, so that the next
task need not wait for a worker to start.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from bursar.model.allocation import Allocation, AllocationLoss, AllocationRequest
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import (
    AllocationRelease,
    PoolDecision,
    PoolSite,
    PoolSnapshot,
)
from bursar.service.interfaces import SHARED, WorkerDemand, is_shared

# Data on which a lease policy decides.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningView:
    """
    Everything that a decision rests on.

    Parameters
    ----------
    now
        Seconds since the epoch.
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


# The interface of the policies by which the provisioner opens and closes leases.


class LeasePolicy(Protocol):
    """Decides which leases to open and close; keeps no clock and does no I/O."""

    def decide(self, view: ProvisioningView) -> list[PoolDecision]:
        """Return the leases to open and to close now; nothing while the view is unchanged."""

    @property
    def wake(self) -> float:
        """Time of the next decision without an event, seconds since the epoch; infinite: never."""

    def opened(self, name: str, lease: AllocationRequest, now: float) -> None:
        """Note that a lease was requested, and the name of the lease."""

    def began(self, name: str, now: float) -> None:
        """Note that the site has granted the processors of a lease."""

    def pilot_ended(self, name: str, now: float, loss: AllocationLoss, reason: str) -> None:
        """Note that a lease has ended or was refused."""


# The lease policy for a cluster with a batch scheduler.


class ClusterLeasePolicy:
    """
    Decides on the leases of a cluster with a batch scheduler.

    Parameters
    ----------
    seen
        Returns the current state of the site: its name, processors and rules.
    """

    def __init__(self, seen: Callable[[], PoolSite]) -> None:
        self._seen = seen
        self._pool = PilotPool()
        self._wake = math.inf

    @property
    def wake(self) -> float:
        """Time of the next decision without an event, seconds since the epoch; infinite: never."""
        return min(self._wake, self._pool.wake)

    def opened(self, name: str, lease: AllocationRequest, now: float) -> None:
        """Note that a lease was requested, and the name of the lease."""
        if is_shared(lease.pool):
            self._pool.asked(name, replace(lease, site=self._seen().name), now)

    def began(self, name: str, now: float) -> None:
        """Note that the site has granted the processors of a lease."""
        self._pool.began(name, now)

    def pilot_ended(self, name: str, now: float, loss: AllocationLoss, reason: str) -> None:
        """Note that a lease has ended or was refused."""
        self._pool.ended(name, now, loss, reason)

    def decide(self, view: ProvisioningView) -> list[PoolDecision]:
        """
        Return the leases to open and to close now.

        See :class:`bursar.service.provisioner.lease_policies.LeasePolicy`.
        """
        self._wake = math.inf
        return [*self._agreements(view), *self._shared(view)]

    def _agreements(self, view: ProvisioningView) -> list[PoolDecision]:
        decisions: list[PoolDecision] = []
        held = dict.fromkeys(view.wanted, 0)
        for lease in view.leases:
            if is_shared(lease.pool):
                continue
            wanted = view.wanted.get(lease.pool)
            if wanted is None or view.now >= wanted.until:
                # Once: the decision stays the same until the lease is gone, and stopping it again
                # says nothing new.
                if not lease.stopped:
                    decisions.append(
                        AllocationRelease(
                            name=lease.name, reason="its agreement is over", at_once=True
                        )
                    )
            elif not lease.leaving:
                held[lease.pool] += lease.processors
        for pool, wanted in sorted(view.wanted.items(), key=lambda x: (x[1].start, x[0])):
            self._wake = min(self._wake, wanted.until)
            missing = wanted.processors - held[pool]
            if missing > 0 and view.now < wanted.until:
                # Opened ahead of the start, so that the site can reserve the processors, or its
                # queue be joined early enough.
                start = wanted.start if wanted.start > view.now else None
                decisions.append(
                    AllocationRequest(
                        pool=pool, processors=missing, start=start, until=wanted.until
                    )
                )
        return decisions

    def _shared(self, view: ProvisioningView) -> list[PoolDecision]:
        site = self._seen()
        # A shared lease that is opened now may last until then, and must not be in the way of an
        # agreement that begins before.
        soon = view.now + site.rules.longest
        sold = [w for w in view.wanted.values() if w.start <= soon and view.now < w.until]
        room = view.processors - sum(wanted.processors for wanted in sold)
        leases = [x for x in view.leases if is_shared(x.pool)]
        decisions: list[PoolDecision] = []
        staying = []
        # Busy leases keep their processors first; among idle ones the oldest.
        for lease in sorted(leases, key=lambda x: (-x.workload.busy, x.asked, x.name)):
            if not lease.leaving and lease.processors <= room:
                room -= lease.processors
                staying.append(lease)
            elif not lease.leaving:
                decisions.append(
                    AllocationRelease(name=lease.name, reason="its processors are sold")
                )
        if room + sum(lease.processors for lease in staying) <= 0:
            return decisions
        limited = replace(
            site, processors=room + sum(lease.processors for lease in staying), batch=True
        )
        shown = PoolSnapshot(
            now=view.now,
            demand=view.demand.get(SHARED, ProcessorDemand()),
            allocations=tuple(_observed(lease, site.name) for lease in staying),
            sites={site.name: limited},
        )
        for decision in self._pool.decide(shown):
            if isinstance(decision, AllocationRequest):
                decision = replace(decision, pool=SHARED)
            decisions.append(decision)
        return decisions


def _observed(allocation: Allocation, site: str) -> Allocation:
    """Return an allocation as the pool of a run sees it: without workers it is idle, too."""
    load = allocation.workload
    if not load.ready:
        load = replace(load, idle_since=allocation.granted)
    return replace(allocation, site=site, workload=load)


# The lease policy for a machine that only the service uses.

AHEAD = 2.0
"""Seconds before an agreement's start in which shared workers on its processors get no tasks."""

SETTLING = 1.0
"""Seconds for which a worker that was just started, or has just become idle, is not released."""

TURN = 60.0
"""Seconds for which one pool is served first when there is not enough for all pools."""

_NOTHING = ProcessorDemand()


@dataclass(slots=True)
class _LeasePlan:
    """The leases after the decisions taken so far."""

    view: ProvisioningView
    decisions: list[PoolDecision]
    closed: set[str]

    def staying(self, pool: str | None = None) -> list[Allocation]:
        """Return the leases of a pool, or of all shared pools, that are not on the way out."""
        return [
            lease
            for lease in self.view.leases
            if not lease.leaving
            and lease.name not in self.closed
            and (is_shared(lease.pool) if pool is None else lease.pool == pool)
        ]

    def held(self, pool: str | None = None) -> int:
        """Return the processors of the leases that :meth:`staying` returns."""
        return sum(lease.processors for lease in self.staying(pool))

    @property
    def free(self) -> int:
        """Processors that no lease holds; leases on the way out still hold theirs."""
        opened = sum(d.processors for d in self.decisions if isinstance(d, AllocationRequest))
        return self.view.processors - sum(x.processors for x in self.view.leases) - opened

    def opened(self, pool: str | None = None) -> int:
        """Return the processors of leases that are being opened now."""
        return sum(
            d.processors
            for d in self.decisions
            if isinstance(d, AllocationRequest)
            and (is_shared(d.pool) if pool is None else d.pool == pool)
        )

    def close(self, lease: Allocation, reason: str, *, at_once: bool = False) -> None:
        self.closed.add(lease.name)
        self.decisions.append(AllocationRelease(name=lease.name, reason=reason, at_once=at_once))


class MachineLeasePolicy:
    """
    Decides on the leases of this machine.

    Parameters
    ----------
    unit
        Processors of one worker, where no task is wider.
    warm
        Whether workers for shared tasks are kept although none waits.
    idle
        Seconds without a task after which other workers are released.
    """

    def __init__(self, *, unit: int = 1, warm: bool = True, idle: float = 30.0) -> None:
        self._unit = unit
        self._warm = warm
        self._idle = idle
        self._wake = math.inf

    @property
    def wake(self) -> float:
        """Time of the next decision without an event, seconds since the epoch; infinite: never."""
        return self._wake

    def opened(self, name: str, lease: AllocationRequest, now: float) -> None:
        """Do nothing: this policy keeps no state of leases."""

    def began(self, name: str, now: float) -> None:
        """Do nothing: this policy keeps no state of leases."""

    def pilot_ended(self, name: str, now: float, loss: AllocationLoss, reason: str) -> None:
        """Do nothing: this policy keeps no state of leases."""

    def decide(self, view: ProvisioningView) -> list[PoolDecision]:
        """
        Return the leases to open and to close now.

        See :class:`bursar.service.provisioner.lease_policies.LeasePolicy`.
        """
        self._wake = math.inf
        plan = _LeasePlan(view, [], set())
        self._end_agreements(plan)
        self._serve_agreements(plan)
        self._serve_shared(plan)
        return plan.decisions

    def _wake_at(self, moment: float, now: float) -> None:
        # A moment that has passed would make the provisioner decide without end.
        if moment > now:
            self._wake = min(self._wake, moment)

    # Agreements.

    def _end_agreements(self, plan: _LeasePlan) -> None:
        """Close at once, busy or not, the leases of agreements that have ended or are unknown."""
        now = plan.view.now
        for lease in plan.view.leases:
            if is_shared(lease.pool) or lease.stopped:
                continue
            wanted = plan.view.wanted.get(lease.pool)
            if wanted is None or now >= wanted.until:
                plan.close(lease, "its agreement is over", at_once=True)

    def _serve_agreements(self, plan: _LeasePlan) -> None:
        now = plan.view.now
        due = []
        for pool, wanted in _by_start(plan.view):
            for moment in (wanted.start - AHEAD, wanted.start, wanted.until):
                self._wake_at(moment, now)
            if not wanted.start <= now < wanted.until:
                continue
            due.append((pool, wanted))
            # The newest go first.
            for lease in reversed(plan.staying(pool)):
                if plan.held(pool) > wanted.processors:
                    plan.close(lease, "its agreement is for fewer", at_once=True)
            self._make_wide(plan, pool, wanted.processors)
        # Once for all agreements that are due: a processor that becomes free must not be counted
        # for two of them.
        _end_blocking_leases(plan, sum(wanted.processors - plan.held(pool) for pool, wanted in due))
        for pool, wanted in due:
            missing = min(wanted.processors - plan.held(pool), plan.free)
            self._open(plan, pool, wanted.processors, missing, until=wanted.until)

    # What is shared.

    def _serve_shared(self, plan: _LeasePlan) -> None:
        view = plan.view
        owed = {
            pool: wanted
            for pool, wanted in view.wanted.items()
            # From a little before the start: tasks on these processors then end by themselves, as
            # far as they are short, and fewer are stopped at the start.
            if wanted.start - AHEAD <= view.now < wanted.until
        }
        room = view.processors - sum(wanted.processors for wanted in owed.values())
        pools = {d: view.demand[d] for d in sorted(view.demand) if is_shared(d)}
        if self._warm:
            pools.setdefault(SHARED, _NOTHING)
        shares = fair_shares(pools, max(room, 0), first=int(view.now // TURN))
        # Some pool gets less than it needs: when its turn comes there is a decision without any
        # event.
        if sum(shares.values()) < sum(_needs(demand) for demand in pools.values()):
            self._wake_at((view.now // TURN + 1) * TURN, view.now)
        for lease in plan.staying():
            self._wake_at(_settled_at(lease), view.now)
        self._leave_idle(plan, pools)
        _release_sold_processors(plan, max(room, 0), shares)
        _release_unfair_excess(plan, max(room, 0), shares)
        spare = max(room, 0) - sum(shares.values())
        for pool in sorted(pools, key=lambda pool: (plan.held(pool) - shares[pool], pool)):
            target = shares[pool] + (spare if pool == SHARED and self._warm else 0)
            self._make_wide(plan, pool, target)
            missing = target - plan.held(pool)
            others = sum(max(0, w.processors - plan.held(p)) for p, w in owed.items())
            # Processors that have become free for an agreement are not given to shared tasks in
            # the same decision, even if the agreement's lease is opened only in a later one.
            owed_now = others - sum(plan.opened(p) for p in owed)
            left = max(room, 0) - plan.held() - plan.opened()
            self._open(plan, pool, target, min(missing, plan.free - owed_now, left))

    def _leave_idle(self, plan: _LeasePlan, pools: Mapping[str, ProcessorDemand]) -> None:
        for lease in plan.staying():
            if lease.workload.idle_since is None or pools.get(lease.pool, _NOTHING).processors:
                continue
            # Kept, so that a single task finds a worker that has been started.
            if self._warm and lease.pool == SHARED:
                continue
            end = lease.workload.idle_since + self._idle
            if plan.view.now >= end:
                plan.close(lease, f"idle for {self._idle:g} s")
            else:
                self._wake_at(end, plan.view.now)

    # How they are cut.

    def _make_wide(self, plan: _LeasePlan, pool: str, target: int) -> None:
        """
        Close small leases of a pool so that its widest task gets one worker that is wide enough.

        Nothing is closed when such a worker is there, or the missing processors suffice for it.

        Parameters
        ----------
        target
            Processors that the pool is to have in all.
        """
        widest = _widest(plan, pool, target)
        missing = target - plan.held(pool)
        if not widest or missing >= widest:
            return
        # Small idle workers make way; their processors come back as one wide worker, once all of
        # them are gone.
        for lease in sorted(plan.staying(pool), key=_by_loss):
            if missing >= widest:
                break
            plan.close(lease, "a task needs more processors of one worker")
            missing += lease.processors

    def _open(
        self, plan: _LeasePlan, pool: str, target: int, processors: int, until: float = math.inf
    ) -> None:
        widest = _widest(plan, pool, target)
        if widest:
            if processors < widest:
                return  # those that make room for it are on their way out
            plan.decisions.append(AllocationRequest(pool=pool, processors=widest, until=until))
            processors -= widest
        while processors > 0:
            size = min(self._unit, processors)
            plan.decisions.append(AllocationRequest(pool=pool, processors=size, until=until))
            processors -= size


def fair_shares(
    pools: Mapping[str, ProcessorDemand], room: int, *, first: int = 0
) -> dict[str, int]:
    """
    Divide the room among pools by max-min fairness: each gets what it needs or an equal share.

    Parameters
    ----------
    room
        Processors to be divided.
    first
        Index of the pool that is served first, modulo the number of pools.

    Returns
    -------
    dict
        Processors of each pool, at most ``room`` in all. A pool gets nothing rather than less
        than its widest task, unless that task does not fit into the room at all.
    """
    shares = dict.fromkeys(pools, 0)
    names = list(pools)
    turns = [(0, (i - first) % len(names), name) for i, name in enumerate(names)]
    heapq.heapify(turns)
    left = room
    while turns:
        share, turn, name = heapq.heappop(turns)
        needs = _needs(pools[name])
        # First the widest task as a whole, then one processor at a time to whoever has least
        # (progressive filling). Half of a wide task's processors would be of no use to anybody.
        widest = pools[name].widest
        piece = min(widest, needs) if not share and 1 < widest <= room else 1
        # A pool whose next piece does not fit drops out; the others go on.
        if share < needs and piece <= left:
            left -= piece
            shares[name] = share + piece
            heapq.heappush(turns, (share + piece, turn, name))
    return shares


def _needs(demand: ProcessorDemand) -> int:
    return demand.processors + demand.running


def _widest(plan: _LeasePlan, pool: str, target: int) -> int:
    """Return the width of the worker that a pool lacks; 0: the present workers are wide enough."""
    widest = plan.view.demand.get(pool, _NOTHING).widest
    there = [lease.processors for lease in plan.staying(pool)]
    there += [
        d.processors for d in plan.decisions if isinstance(d, AllocationRequest) and d.pool == pool
    ]
    return widest if max(there, default=1) < widest <= target else 0


def _end_blocking_leases(plan: _LeasePlan, missing: int) -> None:
    """
    Close shared leases, busy or not, that hold processors of agreements that have begun.

    Parameters
    ----------
    missing
        Processors that these agreements lack. Free ones, and those of leases that end at once
        anyway, are counted first.
    """
    at_once = {d.name for d in plan.decisions if isinstance(d, AllocationRelease) and d.at_once}
    coming = plan.free
    for lease in plan.view.leases:
        if lease.stopped or lease.name in at_once:
            coming += lease.processors
    # Those on their way out first (see the key below): they are lost to shared tasks anyway.
    in_the_way = [x for x in plan.view.leases if is_shared(x.pool) and not x.stopped]
    for lease in sorted(in_the_way, key=lambda x: (not x.leaving, *_by_loss(x))):
        if coming >= missing:
            return
        plan.close(lease, "its processors are sold from now on", at_once=True)
        coming += lease.processors


def _release_sold_processors(plan: _LeasePlan, room: int, shares: Mapping[str, int]) -> None:
    """
    Close shared leases once their tasks have ended, until the others fit into the room.

    Parameters
    ----------
    room
        Processors that agreements leave to shared tasks.
    shares
        Fair share of each pool, in processors; leases of pools above theirs go first.
    """
    over = {pool: plan.held(pool) - share for pool, share in shares.items()}
    leases = sorted(
        plan.staying(), key=lambda x: (over.get(x.pool, x.processors) <= 0, *_by_loss(x))
    )
    for lease in leases:
        if plan.held() <= room:
            return
        plan.close(lease, "its processors are sold")


def _release_unfair_excess(plan: _LeasePlan, room: int, shares: Mapping[str, int]) -> None:
    """Release workers of pools with more than a fair share for pools with less."""
    unmet = sum(max(0, share - plan.held(pool)) for pool, share in shares.items())
    # Processors on their way out, or free, serve the pools that lack some: only what is missing
    # beyond them is taken from others.
    leaving = sum(x.processors for x in plan.view.leases if x.leaving and is_shared(x.pool))
    missing = unmet - leaving - max(0, room - plan.held() - leaving)
    for lease in sorted(plan.staying(), key=_by_loss):
        if missing <= 0:
            return
        if plan.held(lease.pool) - lease.processors < shares.get(lease.pool, 0):
            continue
        if lease.workload.busy or _settled_at(lease) <= plan.view.now:
            plan.close(lease, "others wait for its processors")
            missing -= lease.processors


def _settled_at(lease: Allocation) -> float:
    """Return when an idle worker may be released: a next task may be on the way until then."""
    return math.inf if lease.workload.idle_since is None else lease.workload.idle_since + SETTLING


def _by_loss(lease: Allocation) -> tuple[bool, int, int, str]:
    """Sort key by which idle leases are closed before busy ones, and small before large ones."""
    return lease.workload.busy > 0, lease.workload.busy, lease.processors, lease.name


def _by_start(view: ProvisioningView) -> Iterable[tuple[str, WorkerDemand]]:
    return sorted(view.wanted.items(), key=lambda item: (item[1].start, item[0]))
