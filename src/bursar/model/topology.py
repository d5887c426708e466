"""A network: its nodes, the wires between them, and which way data take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from bursar.model.errors import InputError, spelling_hint
from bursar.model.network_link import BandwidthProfile, NetworkLink
from bursar.model.routing import (
    Arc,
    Routing,
    path_from_tree,
    shortest_path_tree,
    widest_path_bandwidths,
)


@dataclass(frozen=True, slots=True)
class Channel:
    """
    A capacity that flows share: a direction of a wire, or both of a half-duplex one.

    Parameters
    ----------
    name
        For people: ``"Milano > Roma"``, or ``"Milano = Roma"`` for both directions.
    bandwidth
        Bytes per second.
    profile
        Share of the bandwidth that others leave; None: all.
    """

    name: str
    bandwidth: float
    profile: BandwidthProfile | None


@dataclass(frozen=True, slots=True)
class Route:
    """
    The way from one node to another.

    Parameters
    ----------
    nodes
        Nodes of the route, both ends included; a single one where the ends are equal.
    channels
        Numbers of the capacities that it uses, in :attr:`Topology.channels`.
    latency
        Latency of all wires on the route, seconds.
    bandwidth
        Bandwidth of the narrowest wire on the route, bytes per second; infinite within a node.
    """

    nodes: tuple[str, ...]
    channels: tuple[int, ...]
    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """
    Nodes joined by wires; every node passes data on, and a router is a node without a site.

    Parameters
    ----------
    nodes
        Names, each once.
    wires
        At most one between two nodes in each direction.
    routers
        Those of the nodes where no site is.
    routing
        ``"latency"``: data take the way with the least latency, of these that with the
        fewest hops, of these that with the least sum of the times a byte takes on each wire.
        ``"widest"``: that with the greatest bandwidth at its narrowest, of these as before.
        What is equal even then goes by the order of the wires.

    Raises
    ------
    ValueError
        When a node is named twice or not at all, or two wires join the same nodes in the
        same direction.
    """

    nodes: tuple[str, ...]
    wires: tuple[NetworkLink, ...]
    routers: frozenset[str] = frozenset()
    routing: Routing = "latency"
    channels: tuple[Channel, ...] = field(init=False, repr=False, compare=False)
    """The capacities, in the order of the wires."""
    _arcs: Mapping[str, list[Arc]] = field(init=False, repr=False, compare=False)
    _widths: dict[str, dict[str, float]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _last: dict[tuple[str, float], dict[str, Arc]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _routes: dict[tuple[str, str], Route | None] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if self.routing not in get_args(Routing):
            raise ValueError(f'routing must be "latency" or "widest", got "{self.routing}"')
        known = set(self.nodes)
        if "" in known:
            raise ValueError("the name of a node must not be empty")
        if len(known) < len(self.nodes):
            twice = next(node for i, node in enumerate(self.nodes) if node in self.nodes[:i])
            raise ValueError(f'there are two nodes "{twice}"')
        for router in sorted(self.routers - known):
            raise ValueError(f'no node "{router}"')
        channels: list[Channel] = []
        arcs: dict[str, list[Arc]] = {node: [] for node in self.nodes}
        for wire in self.wires:
            for end in (wire.source, wire.target):
                if end not in known:
                    raise ValueError(f'no node "{end}"')
            for source, target in _directions(wire):
                if any(arc.target == target for arc in arcs[source]):
                    raise ValueError(f'there are two wires from "{source}" to "{target}"')
                # A half-duplex wire is one channel that both directions share.
                if wire.duplex != "half" or source == wire.source:
                    sign = "=" if wire.duplex == "half" else ">"
                    channels.append(
                        Channel(f"{source} {sign} {target}", wire.bandwidth, wire.profile)
                    )
                number = len(channels) - 1
                arcs[source].append(Arc(source, target, number, wire.bandwidth, wire.latency))
        object.__setattr__(self, "channels", tuple(channels))
        object.__setattr__(self, "_arcs", arcs)

    @property
    def sites(self) -> tuple[str, ...]:
        """The nodes that are no routers."""
        return tuple(node for node in self.nodes if node not in self.routers)

    def route(self, source: str, target: str) -> Route:
        """
        The way from one node to another; found once, then kept.

        Raises
        ------
        InputError
            When there is no such node, or no way.
        """
        route = self.find(source, target)
        if route is None:
            raise InputError(f'there is no way from "{source}" to "{target}"')
        return route

    def find(self, source: str, target: str) -> Route | None:
        """
        Return what :meth:`route` returns, or None where no path exists.

        Raises
        ------
        InputError
            When there is no such node.
        """
        try:
            return self._routes[source, target]
        except KeyError:
            pass
        for node in (source, target):
            if node not in self._arcs:
                raise InputError(f'no node "{node}"', hint=spelling_hint(node, self.nodes))
        way = self._way(source, target)
        route = None if way is None else _route(source, way)
        self._routes[source, target] = route
        return route

    def _way(self, source: str, target: str) -> list[Arc] | None:
        if source == target:
            return []
        least = 0.0
        if self.routing == "widest":
            if source not in self._widths:
                # The greatest bottleneck first, then the shortest way among those that have it:
                # two criteria in one search would miss ways, as the best way to a node on the way
                # need not be as wide.
                self._widths[source] = widest_path_bandwidths(self._arcs, source)
            least = self._widths[source].get(target, 0.0)
        # One search serves all targets, so that a grid of many sites needs a search for each
        # source only.
        if (source, least) not in self._last:
            self._last[source, least] = shortest_path_tree(self._arcs, source, least=least)
        return path_from_tree(self._last[source, least], source, target)


def _directions(wire: NetworkLink) -> list[tuple[str, str]]:
    there, back = (wire.source, wire.target), (wire.target, wire.source)
    return [there] if wire.duplex == "one-way" else [there, back]


def _route(source: str, way: list[Arc]) -> Route:
    return Route(
        nodes=(source, *(arc.target for arc in way)),
        channels=tuple(arc.channel for arc in way),
        latency=math.fsum(arc.latency for arc in way),
        bandwidth=min((arc.bandwidth for arc in way), default=math.inf),
    )
