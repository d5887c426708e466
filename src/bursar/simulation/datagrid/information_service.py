"""Tells a simulated broker the status of sites, and how long files take."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bursar.broker.directory.hierarchy import build_hierarchy
from bursar.model.site import SiteFacts
from bursar.model.status import SiteStatus
from bursar.simulation.datagrid.computing_elements import SimulatedElement
from bursar.simulation.datagrid.scenario import GridServices
from bursar.simulation.datagrid.storage import ReplicaCatalogue
from bursar.simulation.datagrid.transport import GridTransport
from bursar.simulation.virtual_loop import VirtualLoop


class InformationService:
    """
    Keeps the information index of a simulation, refreshed on virtual time.

    Parameters
    ----------
    services
        Levels of the index, and when what a site said expires.
    loop
        Loop that provides the time.
    elements
        Computing elements of the sites, by name.
    mute
        Sites that answer nobody.
    is_needed
        Whether the broker may still look at the index; once not, never again.
    """

    def __init__(
        self,
        services: GridServices,
        loop: VirtualLoop,
        elements: Mapping[str, SimulatedElement],
        mute: frozenset[str],
        is_needed: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._elements = elements
        self._mute = mute
        self._is_needed = is_needed
        self.gone: set[str] = set()
        """Sites that are not there at the moment."""
        sources: dict[str, Callable[[], SiteStatus | None]] = {
            name: partial(self.status, name) for name in elements
        }
        self.index = build_hierarchy(
            services.levels, sources, clock=loop.time, expiry=services.expiry
        ).top

    def start(self) -> None:
        """Begin to refresh the index whenever due."""
        self._refresh()

    def status(self, site: str) -> SiteStatus | None:
        """Return the status of a site now; None when the site does not answer."""
        if site in self.gone or site in self._mute:
            return None
        return self._elements[site].status()

    def _refresh(self) -> None:
        if not self._is_needed():
            return
        self.index.refresh(self._loop.time())
        self._loop.call_at(self.index.next_due, self._refresh)


FloatArray = NDArray[np.float64]


class GridFileTimes:
    """
    Computes the two terms of equation 3 from the replica catalogue and network capacities.

    Parameters
    ----------
    catalogue
        Where copies are.
    transport
        Network, for transfer times without other traffic: bandwidths are measured once, as in
        section 2.3.
    sites
        Description of each site.
    """

    def __init__(
        self, catalogue: ReplicaCatalogue, transport: GridTransport, sites: Sequence[SiteFacts]
    ) -> None:
        self._catalogue = catalogue
        self._transport = transport
        self._sites = {site.name: site for site in sites}
        self._version = catalogue.version
        self._transfers: dict[tuple[tuple[str, ...], tuple[str, ...]], FloatArray] = {}

    def transfer_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """Return seconds to bring the missing files one by one, each from the nearest copy."""
        if self._catalogue.version != self._version:
            self._version = self._catalogue.version
            # Any copy that comes or goes may be the nearest one for many jobs.
            self._transfers.clear()
        key = data, tuple(sites)
        found = self._transfers.get(key)
        if found is None:
            found = np.array([sum(self._bringing(name, site) for name in data) for site in sites])
            self._transfers[key] = found
        return found

    def access_times(self, data: tuple[str, ...], sites: Sequence[str]) -> FloatArray:
        """Seconds to read the files from each site's storage."""
        size = sum(self._catalogue.size(name) for name in data)
        return np.array([read_seconds(self._sites[site], size) for site in sites])

    def _bringing(self, name: str, site: str) -> float:
        size = self._catalogue.size(name)
        holders = self._catalogue.sites(name)
        if site in holders:
            return 0.0
        return min(
            (self._transport.seconds(source, site, size) for source in holders),
            default=float("inf"),
        )


def read_seconds(site: SiteFacts, size: float) -> float:
    """Seconds to read so many bytes from a site's storage."""
    return 0.0 if site.storage_rate is None else size / site.storage_rate
