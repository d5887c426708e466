"""The grid explorer finds the sites that a campaign can use (Nimrod/G section 2)."""

from collections.abc import Sequence

from bursar.broker.estimates import RuntimeEstimates
from bursar.model.site import SiteFacts

PATIENCE = 3
"""Failures to give a processor after which a site is no longer asked."""


class GridExplorer:
    """
    Finds the sites that can be used, and leaves out those that fail.

    Parameters
    ----------
    sites
        Sites that are known.
    estimates
        Observed results of jobs at the sites.
    """

    def __init__(self, sites: Sequence[SiteFacts], estimates: RuntimeEstimates) -> None:
        self._sites = {site.name: site for site in sites}
        self._estimates = estimates
        self._faults: dict[str, int] = {}

    @property
    def sites(self) -> list[SiteFacts]:
        """Sites that can be used now."""
        return [site for name, site in self._sites.items() if self.is_usable(name)]

    def site(self, name: str) -> SiteFacts | None:
        """Return the site of a name, usable or not."""
        return self._sites.get(name)

    def is_usable(self, name: str) -> bool:
        """Whether a site gives processors and is not the only one at which all jobs fail."""
        return self._faults.get(name, 0) < PATIENCE and not self._estimates.is_broken(name)

    def failed(self, name: str) -> bool:
        """Record that a site gave no processor; return whether the site is left out from now on."""
        self._faults[name] = self._faults.get(name, 0) + 1
        # Equal, not at least: the caller tells of it once.
        return self._faults[name] == PATIENCE

    def worked(self, name: str) -> None:
        """Clear a site's faults after a success."""
        self._faults.pop(name, None)
