"""
A network like GARR-B of Italian research, which connects sixteen sections of INFN.

What public text states of it is in a table: "Il punto su GARR-B" (P. Tentoni, Bollettino del
CILEA 66, February 1999) has the four points of presence of the backbone, joined each to each
by ATM at 34 Mbit/s, and the access of five sections. No map of the network that the paper
measured was found. The rest is assumed here, and named so: which other sections there are
(seven of them stand in the CMS testbed of OptorSim, about 2003, whose faster accesses are of
another network), to which point each goes (the nearest), access at 34 Mbit/s as all stated
ones but Rome's have it, and the latencies.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bursar.formats.network_files import read_links
from bursar.model.errors import InputError
from bursar.model.network import NetworkLink, Topology

POINTS = ("Milano", "Roma", "Bologna", "Napoli")
"""Points of presence of the backbone."""

BACKBONE = 34.0
"""Mbit/s between any two of them, as stated."""

STATED: Mapping[str, tuple[str, float]] = {
    "INFN-Milano": ("Milano", 34.0),
    "INFN-Torino": ("Torino", 34.0),
    "INFN-CNAF": ("Bologna", 34.0),
    "INFN-Roma1": ("Roma", 68.0),
    "INFN-Napoli": ("Napoli", 34.0),
}
"""Point of presence and Mbit/s of the sections whose access is stated."""

ASSUMED: Mapping[str, str] = {
    "INFN-Genova": "Milano",
    "INFN-Pavia": "Milano",
    "INFN-Bologna": "Bologna",
    "INFN-Padova": "Bologna",
    "INFN-Firenze": "Bologna",
    "INFN-Pisa": "Bologna",
    "INFN-Perugia": "Roma",
    "INFN-Frascati": "Roma",
    "INFN-Bari": "Napoli",
    "INFN-Catania": "Napoli",
    "INFN-Lecce": "Napoli",
}
"""Point of presence of the others; an assumption."""

ASSUMED_ACCESS = 34.0
"""Mbit/s of theirs, and of the way from Torino's point of presence to Milano's."""

BACKBONE_LATENCY = 0.005
"""Seconds; an assumption."""
ACCESS_LATENCY = 0.002
"""Seconds; an assumption."""

SITES = (*STATED, *ASSUMED)
"""The sixteen sections: nodes of the network."""

_SOURCE = "bollettino-cilea-66"
_TABLE = "datagrid/garr_links.csv"
_MEGABIT = 125_000.0
_PREFIX = "GARR-B PoP "


def garr_network(links: Path | None = None) -> Topology:
    """
    The network.

    Parameters
    ----------
    links
        A table of links from which to take what is stated (its rows of the source
        ``bollettino-cilea-66``), or the folder of the reference data, which may have one.
        Otherwise the same figures stand here.

    Raises
    ------
    InputError
        When the table lacks what is needed.
    """
    if links is not None and links.is_dir():
        links = links / _TABLE if (links / _TABLE).is_file() else None
    stated = _facts() if links is None else _facts_in(links)
    assumed = [
        _wire(section, point, ASSUMED_ACCESS, ACCESS_LATENCY) for section, point in ASSUMED.items()
    ]
    torino = _wire("Torino", "Milano", ASSUMED_ACCESS, BACKBONE_LATENCY)
    return Topology(
        nodes=(*POINTS, "Torino", *SITES),
        wires=(*stated, torino, *assumed),
        routers=frozenset((*POINTS, "Torino")),
    )


def _facts() -> list[NetworkLink]:
    backbone = [
        _wire(one, other, BACKBONE, BACKBONE_LATENCY)
        for i, one in enumerate(POINTS)
        for other in POINTS[i + 1 :]
    ]
    access = [_wire(name, point, rate, ACCESS_LATENCY) for name, (point, rate) in STATED.items()]
    return backbone + access


def _facts_in(path: Path) -> list[NetworkLink]:
    """The stated wires as a table has them, with the names and in the order of ours."""
    found: dict[tuple[str, str], NetworkLink] = {}
    for row in read_links(path):
        if row.others.get("source_id") == _SOURCE:
            ends = (_plain(row.wire.source), _plain(row.wire.target))
            found[ends] = found[ends[::-1]] = row.wire
    wires: list[NetworkLink] = []
    for wire in _facts():
        there = found.get((wire.source, wire.target))
        if there is None:
            raise InputError(
                f'has no link between "{wire.source}" and "{wire.target}" of the source '
                f'"{_SOURCE}"',
                where=str(path),
            )
        wires.append(replace(wire, bandwidth=there.bandwidth))
    return wires


def _plain(name: str) -> str:
    """``GARR-B PoP Roma`` is ``Roma``, ``INFN-Napoli/Universita Napoli`` is ``INFN-Napoli``."""
    return name.removeprefix(_PREFIX).partition("/")[0]


def _wire(source: str, target: str, megabits: float, latency: float) -> NetworkLink:
    return NetworkLink(source=source, target=target, bandwidth=megabits * _MEGABIT, latency=latency)
