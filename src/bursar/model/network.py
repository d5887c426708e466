"""A network: its nodes, the links between them and between sites, and which way data take."""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from bursar.model.errors import InputError, spelling_hint

# How data pass from one site to another.


@dataclass(frozen=True, slots=True)
class Link:
    """
    A network link from one site to another, in this direction only.

    Parameters
    ----------
    latency
        Seconds before the first byte. Not negative.
    bandwidth
        Bytes per second; infinite when size does not matter. Positive.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        if not (0 <= self.latency < math.inf):
            raise ValueError(f"latency must be finite and not negative, got {self.latency}")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {self.bandwidth}")


# Links of a network, and profiles of the bandwidth left over time.

Duplex = Literal["full", "half", "one-way"]
"""Whether each direction of a wire has its bandwidth, both share it, or only one has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthProfile:
    """
    Share of a wire's bandwidth that others leave over time: constant for a step, then the next.

    Parameters
    ----------
    shares
        Share of the bandwidth in each step; after the last comes the first again. From 0
        to 1, and at least one.
    step
        Seconds that each holds; the first begins at time 0. Positive.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    shares: tuple[float, ...]
    step: float

    def __post_init__(self) -> None:
        if not self.shares:
            raise ValueError("a profile has at least one share")
        for share in self.shares:
            if not 0 <= share <= 1:
                raise ValueError(f"a share must be between 0 and 1, got {share:g}")
        if not 0 < self.step < math.inf:
            raise ValueError(f"step must be finite and positive, got {self.step:g}")

    def share_at(self, time: float) -> float:
        """The share that holds at a moment, seconds, not negative."""
        return self.shares[self._step_of(time) % len(self.shares)]

    def change_after(self, time: float) -> float:
        """The first later moment at which another step begins, seconds."""
        return (self._step_of(time) + 1) * self.step

    def _step_of(self, time: float) -> int:
        number = math.floor(time / self.step)
        # The quotient is rounded: at the very moment of a change it may lie below it.
        return number + 1 if (number + 1) * self.step <= time else number


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLink:
    """
    A link that joins two nodes of a network.

    Parameters
    ----------
    source, target
        Names of the nodes; which is which only matters for ``"one-way"``.
    bandwidth
        Bytes per second; infinite where size does not matter. Positive.
    latency
        Seconds before the first byte is there. Not negative.
    duplex
        ``"full"``: each direction has the bandwidth; ``"half"``: both share it;
        ``"one-way"``: from source to target only.
    profile
        Share of the bandwidth that others leave; None: all.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    source: str
    target: str
    bandwidth: float
    latency: float = 0.0
    duplex: Duplex = "full"
    profile: BandwidthProfile | None = None

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(f'a wire joins two nodes, got "{self.source}" twice')
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {self.bandwidth:g}")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency must be finite and not negative, got {self.latency:g}")
        if self.duplex not in get_args(Duplex):
            raise ValueError(f'duplex must be "full", "half" or "one-way", got "{self.duplex}"')
        if self.profile is not None and math.isinf(self.bandwidth):
            raise ValueError("a wire with a profile has a finite bandwidth")


# Ways through a network: the quickest, or the widest.

Routing = Literal["latency", "widest"]
"""Criterion of the best route."""

_TICKS = 1e9
"""Latencies are added as whole nanoseconds, so that ties do not hang on the order of a sum."""


@dataclass(frozen=True, slots=True)
class Arc:
    """
    One direction of a wire.

    Parameters
    ----------
    source, target
        Names of nodes.
    channel
        Number of the capacity that it uses; both directions of a half-duplex wire have one.
    bandwidth
        Bytes per second.
    latency
        Seconds.
    """

    source: str
    target: str
    channel: int
    bandwidth: float
    latency: float


Arcs = Mapping[str, Sequence[Arc]]
"""The arcs that leave each node, in the order of their wires."""


def shortest_path_tree(arcs: Arcs, source: str, *, least: float = 0.0) -> dict[str, Arc]:
    """
    The last arc of the best way to each node that can be reached.

    The best way has the least latency, of these the fewest hops, of these the least sum of the
    times that a byte takes on each wire, of these the wires that stand first. Dijkstra's algorithm.

    Parameters
    ----------
    source
        Where the ways begin; it has no last arc itself.
    least
        Bandwidth below which an arc is not used.
    """
    best: dict[str, tuple[int, int, float]] = {source: (0, 0, 0.0)}
    last: dict[str, Arc] = {}
    left = [(best[source], 0, source)]
    settled: set[str] = set()
    pushed = 0
    while left:
        (ticks, hops, byte), _, node = heapq.heappop(left)
        if node in settled:
            continue
        settled.add(node)
        for arc in arcs.get(node, ()):
            if arc.bandwidth < least:
                continue
            far = (ticks + round(arc.latency * _TICKS), hops + 1, byte + 1 / arc.bandwidth)
            # Strictly better only: of equal ways the one whose wires stand first stays.
            if arc.target not in best or far < best[arc.target]:
                best[arc.target] = far
                last[arc.target] = arc
                pushed += 1
                # By number before name, so that ties go by the order of the wires.
                heapq.heappush(left, (far, pushed, arc.target))
    return last


def path_from_tree(last: Mapping[str, Arc], source: str, target: str) -> list[Arc] | None:
    """
    Return the arcs from source to target in order of travel; None when there is no way.

    Parameters
    ----------
    last
        Last arc of the way from the source to each node that can be reached.
    """
    way: list[Arc] = []
    node = target
    while node != source:
        if node not in last:
            return None
        way.append(last[node])
        node = last[node].source
    return way[::-1]


def widest_path_bandwidths(arcs: Arcs, source: str) -> dict[str, float]:
    """
    Return the bandwidth of the widest way to each node that can be reached, bytes per second.

    A way is as wide as its narrowest wire; that to the source itself is infinitely wide.
    Dijkstra's algorithm with the narrowest wire as the distance. Which of several such ways
    is the quickest must be asked anew, of :func:`shortest_path_tree` over the arcs that are wide
    enough: the beginning of that way need not be the widest way there.
    """
    found: dict[str, float] = {}
    left = [(-math.inf, source)]
    while left:
        width, node = heapq.heappop(left)
        if node in found:
            continue
        found[node] = -width
        for arc in arcs.get(node, ()):
            if arc.target not in found:
                heapq.heappush(left, (max(width, -arc.bandwidth), arc.target))
    return found


# A network: its nodes, the wires between them, and which way data take.


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
