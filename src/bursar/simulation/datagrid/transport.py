"""Transfers files between sites, over a topology or over the sites' own links."""

import asyncio
import math
from collections.abc import Callable

from bursar.model.network_link import NetworkLink
from bursar.model.topology import Topology
from bursar.simulation.datagrid.scenario import DataGrid
from bursar.simulation.flow_network import Flow, FlowNetwork
from bursar.simulation.virtual_loop import VirtualLoop

GridTransfer = Flow | asyncio.TimerHandle
"""A transfer under way."""


class GridTransport:
    """
    Carries files between sites.

    Parameters
    ----------
    grid
        With its topology. Without one, each link between two sites has its own capacity,
        and sites without a link between them share their files.
    loop
        Loop that provides the time.
    """

    def __init__(self, grid: DataGrid, loop: VirtualLoop) -> None:
        self._loop = loop
        self._grid = grid
        self._linked = (
            {(site.name, other) for site in grid.sites for other in site.links}
            if grid.topology is None
            else None
        )
        self._topology = _topology_of_links(grid) if grid.topology is None else grid.topology
        self._network = FlowNetwork(self._topology, loop)
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def seconds(self, source: str, target: str, size: float) -> float:
        """Return the seconds for so many bytes in an idle network; infinite without a route."""
        known = self._known.get((source, target))
        if known is None:
            known = self._known[source, target] = self._look_up(source, target)
        latency, bandwidth = known
        return latency + size / bandwidth

    def _look_up(self, source: str, target: str) -> tuple[float, float]:
        if self._is_shared(source, target):
            return 0.0, math.inf
        route = self._topology.find(*self._ends(source, target))
        return (math.inf, math.inf) if route is None else (route.latency, route.bandwidth)

    def send(self, source: str, target: str, size: float, done: Callable[[], None]) -> GridTransfer:
        """
        Send bytes between two sites.

        Parameters
        ----------
        done
            Called once they are there; never before this returns.
        """
        if self._is_shared(source, target):
            # Not at once: whoever sends is not ready to be told from within the call.
            return self._loop.call_later(0.0, done)
        return self._network.send(*self._ends(source, target), size, lambda _: done())

    def stop(self, carriage: GridTransfer) -> None:
        """Stop a transfer; the bytes sent so far are lost."""
        if isinstance(carriage, Flow):
            self._network.cancel(carriage)
        else:
            carriage.cancel()

    def _is_shared(self, source: str, target: str) -> bool:
        if source == target:
            return True
        return self._linked is not None and (source, target) not in self._linked

    def _ends(self, source: str, target: str) -> tuple[str, str]:
        if self._linked is None:
            return self._grid.node(source), self._grid.node(target)
        return _end(source, target, source), _end(source, target, target)


def _topology_of_links(grid: DataGrid) -> Topology:
    """Return a topology with a wire for each link and separate ends, so that no links share."""
    pairs = [(site, other) for site in grid.sites for other in site.links]
    return Topology(
        nodes=tuple(
            _end(site.name, other, end) for site, other in pairs for end in (site.name, other)
        ),
        wires=tuple(
            NetworkLink(
                source=_end(site.name, other, site.name),
                target=_end(site.name, other, other),
                bandwidth=site.links[other].bandwidth,
                latency=site.links[other].latency,
                duplex="one-way",
            )
            for site, other in pairs
        ),
    )


def _end(source: str, target: str, end: str) -> str:
    return f"{source} > {target}: {end}"
