"""What sites say of themselves: to the information index, and to who asks them."""

from collections.abc import Callable, Mapping
from functools import partial

from bursar.broker.directory.hierarchy import build_hierarchy
from bursar.model.status import SiteStatus
from bursar.simulation.datagrid.computing_elements import SimulatedElement
from bursar.simulation.datagrid.scenario import GridServices
from bursar.simulation.virtual_loop import VirtualLoop


class InformationService:
    """
    The information index of a simulation, refreshed on its clock.

    Parameters
    ----------
    services
        Levels of the index, and when what a site said expires.
    loop
        Whose time it takes.
    elements
        Of the sites, by name.
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
        """From now on the index is refreshed when it is due."""
        self._refresh()

    def status(self, site: str) -> SiteStatus | None:
        """What a site says now; None when it does not answer."""
        if site in self.gone or site in self._mute:
            return None
        return self._elements[site].status()

    def _refresh(self) -> None:
        if not self._is_needed():
            return
        self.index.refresh(self._loop.time())
        self._loop.call_at(self.index.next_due, self._refresh)
