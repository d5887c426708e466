"""
The lease policy for a cluster with a batch scheduler.

For each agreement a job is submitted that begins and ends with the agreement. For shared tasks
the pool of :mod:`bursar.provisioning` decides, by the rules of the site, on the processors that
are not sold.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from bursar.model.allocation import Allocation, AllocationLoad, AllocationLoss, AllocationRequest
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolSite, PoolSnapshot
from bursar.service.interfaces import SHARED, is_shared
from bursar.service.provisioner.provisioning_view import (
    CloseLease,
    LeaseDecision,
    LeaseView,
    OpenLease,
    ProvisioningView,
)


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

    def opened(self, name: str, lease: OpenLease, now: float) -> None:
        """Note that a lease was requested, and the name of the lease."""
        if is_shared(lease.pool):
            self._pool.asked(name, self._ask(lease, now), now)

    def began(self, name: str, now: float) -> None:
        """Note that the site has granted the processors of a lease."""
        self._pool.began(name, now)

    def pilot_ended(self, name: str, now: float, loss: AllocationLoss, reason: str) -> None:
        """Note that a lease has ended or was refused."""
        self._pool.ended(name, now, loss, reason)

    def decide(self, view: ProvisioningView) -> list[LeaseDecision]:
        """
        Return the leases to open and to close now.

        See :class:`bursar.service.provisioner.lease_policy.LeasePolicy`.
        """
        self._wake = math.inf
        return [*self._agreements(view), *self._shared(view)]

    def _agreements(self, view: ProvisioningView) -> list[LeaseDecision]:
        decisions: list[LeaseDecision] = []
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
                        CloseLease(name=lease.name, reason="its agreement is over", at_once=True)
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
                    OpenLease(pool=pool, processors=missing, start=start, until=wanted.until)
                )
        return decisions

    def _shared(self, view: ProvisioningView) -> list[LeaseDecision]:
        site = self._seen()
        # A shared lease that is opened now may last until then, and must not be in the way of an
        # agreement that begins before.
        soon = view.now + site.rules.longest
        sold = [w for w in view.wanted.values() if w.start <= soon and view.now < w.until]
        room = view.processors - sum(wanted.processors for wanted in sold)
        leases = [x for x in view.leases if is_shared(x.pool)]
        decisions: list[LeaseDecision] = []
        staying = []
        # Busy leases keep their processors first; among idle ones the oldest.
        for lease in sorted(leases, key=lambda x: (-x.busy, x.asked, x.name)):
            if not lease.leaving and lease.processors <= room:
                room -= lease.processors
                staying.append(lease)
            elif not lease.leaving:
                decisions.append(CloseLease(name=lease.name, reason="its processors are sold"))
        if room + sum(lease.processors for lease in staying) <= 0:
            return decisions
        limited = replace(
            site, processors=room + sum(lease.processors for lease in staying), batch=True
        )
        shown = PoolSnapshot(
            now=view.now,
            demand=view.demand.get(SHARED, ProcessorDemand()),
            allocations=tuple(self._allocation(lease, site.name) for lease in staying),
            sites={site.name: limited},
        )
        for decision in self._pool.decide(shown):
            match decision:
                case AllocationRequest():
                    decisions.append(
                        OpenLease(
                            pool=SHARED,
                            processors=decision.processors,
                            until=view.now + decision.duration,
                            least_processors=decision.least_processors,
                            least_seconds=decision.least_duration,
                            bundle=decision.bundle,
                            fits=decision.fits,
                        )
                    )
                case AllocationRelease():
                    decisions.append(CloseLease(name=decision.name, reason=decision.reason))
        return decisions

    def _ask(self, lease: OpenLease, now: float) -> AllocationRequest:
        return AllocationRequest(
            site=self._seen().name,
            processors=lease.processors,
            duration=lease.until - now,
            least_duration=lease.least_seconds,
            least_processors=lease.least_processors,
            bundle=lease.bundle,
            fits=lease.fits,
        )

    def _allocation(self, lease: LeaseView, site: str) -> Allocation:
        """Return a lease of the service as the pool policy of a run sees it."""
        return Allocation(
            name=lease.name,
            site=site,
            processors=lease.processors,
            asked=lease.asked,
            duration=lease.until - lease.asked,
            granted=lease.began,
            # Without an end while it waits: its walltime runs from its start only, and the batch
            # queue may keep it past the end that was planned when it was requested.
            until=math.inf if lease.began is None else lease.until,
            load=AllocationLoad(
                ready=lease.ready,
                busy=lease.busy,
                idle_since=lease.idle_since if lease.ready else lease.began,
            ),
            leaving=lease.leaving,
        )
