"""A run's part in sharing processors with other runs: what it could use, and what it may use."""

from collections.abc import Mapping

from msgspec.structs import replace

from bursar.engine.dispatcher import Dispatcher
from bursar.market.guard import BudgetGuard
from bursar.runs.allocation_provisioner import AllocationProvisioner
from bursar.sites.processor_shares import ShareDemand
from bursar.sites.protocol import Site, TaskSharingSite
from bursar.sites.shared_leases import RunningLease


class ProcessorSharing:
    """
    Keeps the tasks of a run within its shares of the sites that other runs use, too.

    Parameters
    ----------
    guard
        Guard of the run's budget, which pays for no more than the run's part.
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        dispatcher: Dispatcher,
        provision: AllocationProvisioner,
        guard: BudgetGuard,
    ) -> None:
        self._sites = sites
        self._dispatcher = dispatcher
        self._provision = provision
        self._guard = guard

    def update(self) -> None:
        """Ask for the shares of the moment, and start tasks on no more; called by each tick."""
        for name, site in self._sites.items():
            if not isinstance(site, TaskSharingSite):
                continue
            share = site.share(self._demand_at(name), self._leases_at(name))
            if share is not None:
                self._dispatcher.limit(name, share)
            for key, seconds in site.lent().items():
                lease = self._guard.find(key)
                if lease is not None:
                    self._guard.credit(replace(lease, credit=lease.share(max(0.0, seconds))))

    def _leases_at(self, site: str) -> dict[str, RunningLease]:
        """Return the leases that have begun at a site, and cost something."""
        now, found = self._dispatcher.now(), {}
        for allocation in self._provision.allocations():
            lease = self._guard.find(allocation.name)
            # One that is over is paid already, or about to be.
            if allocation.site != site or allocation.granted is None or allocation.is_over:
                continue
            if lease is not None and lease.unit_price and lease.start <= now:
                found[lease.id] = RunningLease(
                    processors=lease.processors, price=lease.unit_price, age=now - lease.start
                )
        return found

    def _demand_at(self, site: str) -> ShareDemand:
        figures = self._dispatcher.figures
        used = figures.busy().get(site, 0)
        if figures.awaits_workers:
            # They may use all that they have, and no other run may take what they use.
            leases_open = [self._guard.find(name) for name in self._guard.leases]
            used = max(used, sum(one.processors for one in leases_open if one and one.site == site))
        here = [a for a in self._provision.allocations() if a.site == site and not a.is_over]
        ready = dict(figures.widths_ready({a.name for a in here if a.copy_of is None}))
        # A copy for which processors were bought is as good as a ready task.
        busy = figures.busy_leases()
        for one in here:
            if one.copy_of is not None and one.granted is not None and one.name not in busy:
                ready[one.processors] = ready.get(one.processors, 0) + 1
        return ShareDemand(
            wanted=used + sum(width * count for width, count in ready.items()),
            narrowest=min(ready, default=0),
            widest=max(ready, default=0),
            used=used,
        )
