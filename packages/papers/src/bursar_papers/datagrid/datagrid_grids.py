"""
The grids and jobs of Cavalieri, Monforte and Scibilia (2003), and what had to be assumed.

The paper leaves much open; each assumption stands here with its reason, and those that might
decide an outcome are varied (:data:`VARIANTS`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from bursar.broker.status_feeds import IndexLevel
from bursar.model.matching import RankWeights, Replica
from bursar.model.network import Topology
from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.scenario import (
    CURRENT,
    BrokerPolicy,
    DataGrid,
    GridJobClass,
    GridServices,
    GridWorkload,
    poisson,
)
from bursar_papers.datagrid.garr import garr_network

Thing = TypeVar("Thing")

LARGE, SMALL = "large", "small"

POWERS = (300, 200, 100)
"""MIPS: high, medium, low. Speeds are MIPS here, and work is millions of instructions."""

ELEMENTS = {300: 5, 200: 6, 100: 5}
"""Sixteen elements as evenly as they go ("uniformly distributed all over the grid")."""

PROCESSORS = 1
"""Of each of the sixteen. The paper says so of none. With one, the grid could do a job each
40 s if nothing were lost, which goes with the saturation "at 50 s" that it states."""

RATES = (20e6, 10e6, 5e6)
"""Bytes per second at which storages are read, in turn: disk servers of the day, good and
poor, and a tape robot's cache. Reading 1.05 GB takes 53 to 210 s, "comparable" to the 333 to
1,000 s that a job computes, as the paper has it. Were they all alike, beta would not matter."""

HEAVY_POWERS = (120, 160, 200, 240, 280)
HEAVY_PROCESSORS = (20, 23, 25, 27, 30)
"""Evenly over the intervals stated: the middle of each fifth of 100 to 300 MIPS, and 20 to 30
processors. All of them together could do a job each 400 s."""

OVERHEAD = 5.0
"""Seconds that the job submission service takes for a job, one at a time."""

WARM_UP = 0.25
"""Share of the jobs, the first ones, that counts for nothing."""

PAPER = ("current", "deterministic", "stochastic")
OURS = ("completion", "softmax", "best-of-d", "edg-2001", "glite-mid", "glite-2012", "random")
POLICIES = (*PAPER, *OURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridAssumptions:
    """
    Assumptions made where the paper is silent.

    Parameters
    ----------
    copies
        Copies of each file, in all; None: every site has one of the two files.
    keeps
        Whether transferred files stay at the site.
    refresh
        Seconds between two refreshes of the index; None: the mean time between submissions,
        as the paper states of figure 5.
    direct
        Whether the broker asks the sites themselves for the values in ranks.
    processors
        Processors of each computing element.
    alike
        Whether all storages are read at the middle rate.
    overhead
        See :data:`OVERHEAD`.
    widening
        Factor on the bandwidth of all links.
    """

    copies: int | None = None
    keeps: bool = False
    refresh: float | None = None
    direct: bool = False
    processors: int = PROCESSORS
    alike: bool = False
    overhead: float = OVERHEAD
    widening: float = 1.0


VARIANTS = {
    "as assumed": GridAssumptions(),
    "four copies of each file": GridAssumptions(copies=4),
    "one copy of each file": GridAssumptions(copies=1),
    "copies stay where they were brought": GridAssumptions(keeps=True),
    "index refreshed each 300 s": GridAssumptions(refresh=300.0),
    "sites asked themselves": GridAssumptions(direct=True),
    "four processors each": GridAssumptions(processors=4),
    "storages alike": GridAssumptions(alike=True),
    "submission takes no time": GridAssumptions(overhead=0.0),
    "submission takes 30 s": GridAssumptions(overhead=30.0),
    "links ten times as wide": GridAssumptions(widening=10.0),
}


def policy(name: str, alpha: float, beta: float, *, direct: bool = False) -> BrokerPolicy:
    """
    Return a policy by the name used in figures.

    The paper's own broker does not count its jobs on their way, so neither does it here.
    """
    if name == "current":
        return replace(CURRENT, direct=direct)
    # The paper's name for taking the best rank.
    choice = {"deterministic": "best"}.get(name, name)
    return BrokerPolicy(
        choice=choice, weights=RankWeights(alpha=alpha, beta=beta), direct=direct, as_published=True
    )


def services(
    gap: float, *, slow: float = 1.0, variant: GridAssumptions | None = None
) -> GridServices:
    """
    Return the grid services at a load.

    Parameters
    ----------
    gap
        Mean seconds between two submissions.
    slow
        Submissions between two refreshes of the index.
    """
    variant = variant or GridAssumptions()
    refresh = gap * slow if variant.refresh is None else variant.refresh
    return GridServices(
        levels=(IndexLevel(every=refresh),),
        overhead=variant.overhead,
        channels=1,
        keeps=variant.keeps,
    )


def light(
    data: Path, seed: int, *, unbalanced: bool, variant: GridAssumptions | None = None
) -> DataGrid:
    """
    Sixteen elements, each with one of the two files of 1 GB and 50 MB (figures 3 and 4).

    Balanced, each file is at half of the sites of each power. Unbalanced, the large one is at
    the eight most powerful sites ("the higher the computational power of a site, the larger
    the size of the file neighbouring to such a site"). A job must thus have one file brought,
    wherever it runs. Which place in the network has which power, and which storage, is dealt
    at random: no outcome shall hang on one deal.

    Parameters
    ----------
    data
        Folder with the links of GARR-B; a built-in table where it has none.
    seed
        Of the deal.
    """
    variant = variant or GridAssumptions()
    rng = np.random.default_rng([seed, 1])
    network = _network(data, variant.widening)
    powers = [power for power in POWERS for _ in range(ELEMENTS[power])]
    # A generator of its own for the deal: variants of one seed differ in the variant alone.
    names = _dealt(rng, network.sites)[: len(powers)]
    rates = [RATES[1]] * len(names) if variant.alike else _dealt(rng, _in_turn(RATES, len(names)))
    sites = [
        _site(name, variant.processors, power, rate)
        for name, power, rate in zip(names, powers, rates, strict=True)
    ]
    holders: dict[str, list[str]] = {LARGE: [], SMALL: []}
    for i, name in enumerate(names):
        first = i < len(names) // 2 if unbalanced else i % 2 == 0
        holders[LARGE if first else SMALL].append(name)
    return DataGrid(
        sites=tuple(sites),
        replicas=_replicas(holders, {LARGE: 10**9, SMALL: 50 * 10**6}, variant.copies),
        topology=network,
    )


def light_load(seed: int, gap: float, jobs: int) -> GridWorkload:
    """Jobs of 10^5 million instructions that read both files."""
    kind = GridJobClass(runtime=1e5, data=(LARGE, SMALL))
    return poisson(np.random.default_rng(seed), [kind], gap=gap, jobs=jobs)


def heavy(data: Path, seed: int) -> DataGrid:
    """
    Five sites of 20 to 30 processors, of 100 to 300 MIPS each; files of 1 MB and 300 kB.

    Three sites have the larger one, two the other. Powers, processors and storages are dealt
    at random to five places in the network.
    """
    rng = np.random.default_rng([seed, 1])
    network = _network(data, 1.0)
    count = len(HEAVY_POWERS)
    names = _dealt(rng, network.sites)[:count]
    sites = [
        _site(name, processors, power, rate)
        for name, processors, power, rate in zip(
            names,
            _dealt(rng, HEAVY_PROCESSORS),
            _dealt(rng, HEAVY_POWERS),
            _dealt(rng, _in_turn(RATES, count)),
            strict=True,
        )
    ]
    holders = {LARGE: names[::2], SMALL: names[1::2]}
    return DataGrid(
        sites=tuple(sites),
        replicas=_replicas(holders, {LARGE: 10**6, SMALL: 300_000}, None),
        topology=network,
    )


def heavy_load(seed: int, gap: float, jobs: int) -> GridWorkload:
    """Jobs of 10^7 million instructions that read both files."""
    kind = GridJobClass(runtime=1e7, data=(LARGE, SMALL))
    return poisson(np.random.default_rng(seed), [kind], gap=gap, jobs=jobs)


def _site(name: str, processors: int, power: float, rate: float) -> SiteFacts:
    return SiteFacts(
        name=name,
        kind="simulated",
        processors=processors,
        speed=power,
        storage=f"/{name}",
        storage_rate=rate,
    )


def _dealt(rng: np.random.Generator, things: Sequence[Thing]) -> list[Thing]:
    return [things[i] for i in rng.permutation(len(things))]


def _in_turn(things: Sequence[float], count: int) -> list[float]:
    return list(islice(cycle(things), count))


def _replicas(
    holders: dict[str, list[str]], sizes: dict[str, int], copies: int | None
) -> tuple[Replica, ...]:
    found = []
    for name, sites in holders.items():
        step = 1 if copies is None else max(1, len(sites) // copies)
        for site in sites[::step][:copies]:
            found.append(Replica(name=name, site=site, url=f"/{site}/{name}", size=sizes[name]))
    return tuple(found)


def _network(data: Path, widening: float) -> Topology:
    topology = garr_network(data if data.is_dir() else None)
    if widening == 1.0:
        return topology
    wires = tuple(replace(wire, bandwidth=wire.bandwidth * widening) for wire in topology.wires)
    return replace(topology, wires=wires)
