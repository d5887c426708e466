"""A run's part in sharing processors with other runs: what it could use, and what it may use."""

from collections.abc import Mapping

from bursar.engine.dispatcher import Dispatcher
from bursar.runs.allocation_provisioner import AllocationProvisioner
from bursar.sites.processor_shares import ShareDemand
from bursar.sites.protocol import Site, TaskSharingSite


class ProcessorSharing:
    """
    Keeps the tasks of a run within its shares of the sites that other runs use, too.

    Parameters
    ----------
    sites
        Sites of the run by name.
    dispatcher
        Dispatcher whose workers get the tasks.
    provision
        Holder of the run's allocations.
    """

    def __init__(
        self, sites: Mapping[str, Site], dispatcher: Dispatcher, provision: AllocationProvisioner
    ) -> None:
        self._sites = {n: site for n, site in sites.items() if isinstance(site, TaskSharingSite)}
        self._dispatcher = dispatcher
        self._provision = provision

    def update(self) -> None:
        """Ask for the shares of the moment, and start tasks on no more; called by each tick."""
        for name, site in self._sites.items():
            share = site.share(self._demand_at(name))
            if share is not None:
                self._dispatcher.limit(name, share)

    def _demand_at(self, site: str) -> ShareDemand:
        figures = self._dispatcher.figures
        used = figures.busy().get(site, 0)
        leases = {a.name for a in self._provision.allocations() if a.site == site}
        ready = figures.widths_ready(leases)
        return ShareDemand(
            wanted=used + sum(width * count for width, count in ready.items()),
            narrowest=min(ready, default=0),
            widest=max(ready, default=0),
            used=used,
        )
