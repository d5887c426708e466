"""OptorSim's grid configuration: computing and storage of each site, and a matrix of links."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.file_text import read_text
from bursar.model.errors import InputError
from bursar.model.network import BandwidthProfile, Duplex, NetworkLink, Topology
from bursar_papers.optorsim.lines import (
    MEGABIT_PER_SECOND,
    MEGABYTE,
    at,
    lines_of,
    number_in,
    shown,
    whole_in,
)

_MOST = 1e12
"""Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridNode:
    """
    A site, or a router: a node with neither workers nor storage.

    Parameters
    ----------
    name
        As the comments of the file have it, else ``"Site0"`` and so on.
    workers
        Worker nodes, each of one processor.
    power
        Of a worker, kSI2000.
    storage
        Size of each storage element, bytes.
    """

    name: str
    workers: int
    power: float
    storage: tuple[int, ...]

    @property
    def is_router(self) -> bool:
        """Whether nothing is there."""
        return not self.workers and not self.storage


@dataclass(frozen=True, slots=True, kw_only=True)
class OptorSimGrid:
    """
    The sites and links of an OptorSim configuration.

    Parameters
    ----------
    nodes
        In the order of the file.
    bandwidth
        From the node of the row to that of the column, bytes per second; 0: no link.
    """

    nodes: tuple[GridNode, ...]
    bandwidth: tuple[tuple[float, ...], ...]

    def topology(
        self,
        *,
        duplex: Duplex = "half",
        profiles: Mapping[tuple[int, int], BandwidthProfile] | None = None,
    ) -> Topology:
        """
        The network.

        As in OptorSim, data take the widest way, of these that with the fewest links, and
        both directions of a link share its bandwidth. Where the matrix says another
        bandwidth back than there, each direction has its own; OptorSim takes one of them for
        both and complains.

        Parameters
        ----------
        duplex
            ``"full"``: the directions of all links have the bandwidth each.
        profiles
            What others leave of the bandwidth from one node to another, by their numbers. A
            link that both directions share has that of its later row, as in OptorSim, where
            it is the last to be read.
        """
        given = profiles or {}
        wires: list[NetworkLink] = []
        for i, row in enumerate(self.bandwidth):
            for j in range(i):
                there, back = row[j], self.bandwidth[j][i]
                if there and there == back and duplex == "half":
                    wires.append(self._wire(i, j, there, "half", given.get((i, j))))
                    continue
                if there:
                    wires.append(self._wire(i, j, there, "one-way", given.get((i, j))))
                if back:
                    wires.append(self._wire(j, i, back, "one-way", given.get((j, i))))
        return Topology(
            nodes=tuple(node.name for node in self.nodes),
            wires=tuple(wires),
            routers=frozenset(node.name for node in self.nodes if node.is_router),
            routing="widest",
        )

    def _wire(
        self,
        source: int,
        target: int,
        bandwidth: float,
        duplex: Duplex,
        profile: BandwidthProfile | None,
    ) -> NetworkLink:
        return NetworkLink(
            source=self.nodes[source].name,
            target=self.nodes[target].name,
            bandwidth=bandwidth,
            duplex=duplex,
            profile=profile,
        )


def read_grid(path: Path) -> OptorSimGrid:
    """
    A grid configuration file.

    A line for each node: worker nodes, kSI2000 of each, number of storage elements, the size
    of each in MB, and the bandwidth to every node in Mbit/s, 0 where there is no link; what
    stands for the node itself is passed over.

    Raises
    ------
    InputError
        With the file and the line.
    """
    rows: list[tuple[int, int, float, tuple[int, ...], tuple[float, ...]]] = []
    content = read_text(path)
    for line, text in lines_of(content):
        with at(path, line):
            rows.append((line, *_row(text.split())))
    if not rows:
        raise InputError("has no site", where=str(path))
    for line, *_, links in rows:
        if len(links) != len(rows):
            raise InputError(
                f"has {len(links)} bandwidths, expected {len(rows)}, one for each site",
                where=f"{path}:{line}",
            )
    names = _names(content, len(rows))
    return OptorSimGrid(
        nodes=tuple(
            GridNode(name=name, workers=workers, power=power, storage=storage)
            for name, (_, workers, power, storage, _) in zip(names, rows, strict=True)
        ),
        bandwidth=tuple(links for *_, links in rows),
    )


def _row(words: list[str]) -> tuple[int, float, tuple[int, ...], tuple[float, ...]]:
    if len(words) < 3:
        raise InputError(
            "expected worker nodes, kSI2000, storage elements, their sizes and bandwidths, "
            f'got "{shown(" ".join(words))}"'
        )
    workers = whole_in(words[0], "a number of worker nodes")
    power = number_in(words[1], "kSI2000 of a worker node")
    if workers and not power:
        raise InputError("expected a positive power of its worker nodes, got 0")
    count = whole_in(words[2], "a number of storage elements")
    sizes, links = words[3 : 3 + count], words[3 + count :]
    if len(sizes) < count:
        raise InputError(f"has the sizes of {len(sizes)} storage elements, expected {count}")
    return (
        workers,
        power,
        tuple(whole_in(word, "a size in MB") * MEGABYTE for word in sizes),
        tuple(_bandwidth(word) for word in links),
    )


def _bandwidth(word: str) -> float:
    return number_in(word, "a bandwidth in Mbit/s", most=_MOST) * MEGABIT_PER_SECOND


_NAMED = re.compile(r"(\d+)\)\s*([^\d\s)][^)]*?)\s*(?=\d+\)|$)")


def _names(text: str, count: int) -> list[str]:
    """
    Names of the nodes: ``# Sites are 0) Caltech 1) Bristol``, if the comments name each once.
    """
    found: dict[int, str] = {}
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            for number, name in _NAMED.findall(line.strip()):
                if name.isprintable():
                    found.setdefault(int(number), name)
    names = [found.get(number, "") for number in range(count)]
    if all(names) and len(set(names)) == count == len(found):
        return names
    return [f"Site{number}" for number in range(count)]
