"""What the broker is told of files: how long it takes to bring them, and to read them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.storage import ReplicaCatalogue
from bursar.simulation.datagrid.transport import GridTransport

FloatArray = NDArray[np.float64]


class GridFileTimes:
    """
    The two terms of equation 3, by the replica catalogue and the network's capacities.

    Parameters
    ----------
    catalogue
        Where copies are.
    transport
        What bringing them takes when nothing else is under way: the bandwidths are measured
        once, as in section 2.3.
    sites
        Facts of each.
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
        """Seconds to bring what is not there: one after the other, each from the nearest copy."""
        if self._catalogue.version != self._version:
            self._version = self._catalogue.version
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
