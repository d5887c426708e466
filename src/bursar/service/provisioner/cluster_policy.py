"""
The lease policy for a cluster with a batch scheduler.

For each agreement a job is submitted that begins and ends with the agreement. For shared tasks
the pool of :mod:`bursar.provisioning` decides, by the rules of the site, on the processors that
are not sold.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from bursar.model.allocation import Allocation, AllocationLoss, AllocationRequest
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import (
    AllocationRelease,
    PoolDecision,
    PoolSite,
    PoolSnapshot,
)
from bursar.service.interfaces import SHARED, is_shared
from bursar.service.provisioner.provisioning_view import ProvisioningView


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

        See :class:`bursar.service.provisioner.lease_policy.LeasePolicy`.
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
