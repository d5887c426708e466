"""Ways through a network: the quickest, or the widest."""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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

    The best way has the least latency, of these the fewest hops, of these the least sum of
    the times that a byte takes on each wire, of these the wires that stand first. Dijkstra's
    algorithm.

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
