"""
Networks shared by max-min fairness: how many transfers a second are simulated.

Tables:

networks
    Transfers a second of wall time, on a backbone of four points with 16 and with 170 sites,
    so many flows at a time: each that ends is followed by another between two sites at random.
plain
    The same with rates found by progressive filling in plain Python, flow by flow at each
    change, with the ratio. Both must end at the same simulated time; the runs are short, as a
    busy network multiplies what was rounded.

Use::

    python benchmarks/flows.py
"""

import heapq
import itertools
import math
import random
import time
from collections.abc import Callable

from figures import Benchmark

from bursar.model.network import NetworkLink, Topology
from bursar.simulation.flow_network import Flow, FlowNetwork
from bursar.simulation.virtual_loop import VirtualLoop

RATE = 34e6 / 8
SIZE = 1e8
AIM = 1e5 / 60
"""Transfers a second: 100,000 in a minute."""


def backbone(sites: int) -> Topology:
    """Four points joined each to each, and sites in turn at each."""
    points = [f"point-{i}" for i in range(4)]
    wires = [
        NetworkLink(source=a, target=b, bandwidth=RATE)
        for a, b in itertools.combinations(points, 2)
    ]
    wires += [
        NetworkLink(source=f"site-{i}", target=points[i % 4], bandwidth=RATE) for i in range(sites)
    ]
    return Topology(
        nodes=(*points, *(f"site-{i}" for i in range(sites))),
        wires=tuple(wires),
        routers=frozenset(points),
    )


def draws(topology: Topology, transfers: int) -> list[tuple[str, str, float]]:
    """Source, target and bytes of each transfer."""
    rng = random.Random(1)
    return [
        (*rng.sample(topology.sites, 2), rng.expovariate(1 / SIZE))  # type: ignore[misc]
        for _ in range(transfers)
    ]


def ours(topology: Topology, work: list[tuple[str, str, float]], at_once: int) -> float:
    """The simulated time at which the last transfer ends."""
    loop = VirtualLoop()
    network = FlowNetwork(topology, loop)
    left = iter(work)
    running = 0

    def begin(ended: Flow | None = None) -> None:
        nonlocal running
        running -= ended is not None
        following = next(left, None)
        if following is not None:
            running += 1
            network.send(*following, begin)
        elif not running:
            loop.stop()

    loop.call_soon(lambda: [begin() for _ in range(at_once)])
    loop.run_forever()
    end = loop.time()
    loop.close()
    return end


def plain(topology: Topology, work: list[tuple[str, str, float]], at_once: int) -> float:
    """The same, as one would write it down."""
    capacity = [channel.bandwidth for channel in topology.channels]
    waiting = list(reversed(work))
    active: dict[int, tuple[tuple[int, ...], float]] = {}
    now = 0.0
    number = 0
    while active or waiting:
        while waiting and len(active) < at_once:
            source, target, size = waiting.pop()
            active[number] = (topology.route(source, target).channels, size)
            number += 1
        rates = fair_rates(capacity, {i: hops for i, (hops, _) in active.items()})
        step, first = min((left / rates[i], i) for i, (_, left) in active.items())
        now += step
        active = {
            i: (hops, left - rates[i] * step) for i, (hops, left) in active.items() if i != first
        }
    return now


def fair_rates(capacity: list[float], flows: dict[int, tuple[int, ...]]) -> dict[int, float]:
    """Progressive filling with a heap of the channels' levels."""
    room = list(capacity)
    through: dict[int, set[int]] = {}
    for i, hops in flows.items():
        for c in hops:
            through.setdefault(c, set()).add(i)
    heap = [(room[c] / len(members), c) for c, members in through.items()]
    heapq.heapify(heap)
    rates: dict[int, float] = {}
    while heap:
        level, c = heapq.heappop(heap)
        members = through[c]
        if not members:
            continue
        if room[c] / len(members) > level:  # it has risen since it was put there
            heapq.heappush(heap, (room[c] / len(members), c))
            continue
        for i in list(members):
            rates[i] = level
            for other in flows[i]:
                room[other] -= level
                through[other].discard(i)
    return rates


def seconds(call: Callable[[], float]) -> tuple[float, float]:
    """How long it took, and what it returned."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def show_networks(bench: Benchmark, share: int) -> None:
    """Transfers a second by sites and flows at once."""
    table = bench.table(
        "transfers over shared networks", "sites", "at once", "transfers/s", "aim, /s", "met"
    )
    for sites, at_once, transfers in (
        (16, 10, 50_000),
        (16, 100, 50_000),
        (16, 1000, 50_000),
        (16, 5000, 50_000),
        (170, 100, 20_000),
        (170, 1000, 20_000),
        (170, 5000, 10_000),
    ):
        topology = backbone(sites)
        transfers = max(100, transfers // share)
        work = draws(topology, transfers)
        took, _ = seconds(lambda t=topology, w=work, n=at_once: ours(t, w, n))  # type: ignore[misc]
        speed = transfers / took
        table.add(f"{sites}", at_once, speed, AIM, speed >= AIM)


def show_plain(bench: Benchmark, share: int) -> None:
    """Against plain Python."""
    table = bench.table(
        "against plain Python", "sites", "at once", "plain, transfers/s", "ours over it"
    )
    for sites, at_once, transfers in (
        (16, 10, 1000),
        (16, 100, 1000),
        (16, 1000, 1100),
        (170, 1000, 1100),
    ):
        topology = backbone(sites)
        transfers = max(100, transfers // share)
        work = draws(topology, transfers)
        slow, expected = seconds(lambda t=topology, w=work, n=at_once: plain(t, w, n))  # type: ignore[misc]
        fast, found = seconds(lambda t=topology, w=work, n=at_once: ours(t, w, n))  # type: ignore[misc]
        if not math.isclose(found, expected, rel_tol=1e-6):
            raise SystemExit(f"they differ: {found} and {expected} s of simulated time")
        table.add(f"{sites}", at_once, transfers / slow, slow / fast)


def main() -> None:
    """Measure both tables."""
    bench = Benchmark(__file__, __doc__)
    ours(backbone(4), draws(backbone(4), 10), 2)  # compiles
    share = bench.of(1, 10, 1_000)
    show_networks(bench, share)
    show_plain(bench, share)
    bench.write()


if __name__ == "__main__":
    main()
