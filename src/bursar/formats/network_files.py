"""
Files of `bursar tune`: topology and links of a network, and weights of a rank.

The heading names the columns, in any order: ``from`` and ``to``; ``mbit_per_s``, a number,
or ``bandwidth`` with its unit; ``latency`` where it is wanted. Other columns are kept as
they are, for who knows what they say.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import joined, read_toml
from bursar.formats.offer_tables import read_rows, short
from bursar.formats.quantities import Bandwidth, Duration, Share
from bursar.formats.units import at_field, parse_bandwidth, parse_duration
from bursar.model.errors import BursarError, InputError, spelling_hint
from bursar.model.matching import Fact, RankWeights
from bursar.model.network import BandwidthProfile, NetworkLink, Routing, Topology

# Links of a network as a table of comma-separated values, one in a row.

_ENDS = ("from", "to")
_RATES = ("mbit_per_s", "bandwidth")
_KNOWN = (*_ENDS, *_RATES, "latency")
_MEGABIT = 125_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """
    A row of a table of links.

    Parameters
    ----------
    wire
        Link described by the row, each direction with the stated bandwidth.
    others
        Cells of the other columns, by column name.
    """

    line: int
    wire: NetworkLink
    others: Mapping[str, str]


def read_links(path: Path) -> tuple[LinkRow, ...]:
    """
    Read the rows of a table of links.

    Raises
    ------
    InputError
        With the file, the line and the column.
    """
    return tuple(read_rows(path, "links", _check_heading, _row))


def _check_heading(cells: list[str]) -> None:
    for name in cells:
        if cells.count(name) > 1:
            raise InputError(f'has the column "{short(name)}" twice')
    for name in _ENDS:
        if name not in cells:
            raise InputError(f'has no column "{name}"', hint=spelling_hint(name, cells))
    if sum(name in cells for name in _RATES) != 1:
        raise InputError('expected one column "mbit_per_s" or "bandwidth"')


def _row(values: dict[str, str], line: int) -> LinkRow:
    for name in _ENDS:
        if not values[name] or not values[name].isprintable():
            raise InputError("expected the name of a node", where=name)
    if values["from"] == values["to"]:
        raise InputError(f'joins "{short(values["to"])}" to itself', where="to")
    if "bandwidth" in values:
        bandwidth = at_field("bandwidth", parse_bandwidth, values["bandwidth"])
    else:
        bandwidth = at_field("mbit_per_s", _megabits, values["mbit_per_s"])
    return LinkRow(
        line=line,
        wire=NetworkLink(
            source=values["from"],
            target=values["to"],
            bandwidth=bandwidth,
            latency=at_field("latency", parse_duration, values.get("latency") or 0),
        ),
        others={name: cell for name, cell in values.items() if name not in _KNOWN},
    )


def _megabits(cell: object) -> float:
    try:
        rate = float(str(cell)) * _MEGABIT
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise InputError(f'expected a positive number of Mbit/s, got "{short(str(cell))}"')
    return rate


# Topology files: the nodes of a network, and the links between them.


class NodeTable(TomlTable, frozen=True):
    """A node. One that a link names need not be given."""

    router: Annotated[bool, Meta(description="No site is here.")] = False


class WireTable(TomlTable, frozen=True):
    """A link that joins two nodes."""

    between: Annotated[
        Annotated[list[str], Meta(min_length=2, max_length=2)],
        Meta(description="Names of the two nodes."),
    ]
    bandwidth: Annotated[Bandwidth | None, Meta(description="Without it sizes do not matter.")] = (
        None
    )
    latency: Annotated[Duration, Meta(description="Until the first byte is there.")] = 0.0
    duplex: Annotated[
        Literal["full", "half", "one-way"],
        Meta(
            description='"full": each direction has the bandwidth; "half": both share it; '
            '"one-way": from the first node to the second only.'
        ),
    ] = "full"
    profile: Annotated[
        list[Share] | None,
        Meta(description="Shares of the bandwidth that others leave, one step after the other."),
    ] = None
    step: Annotated[
        Duration | None, Meta(description="How long each share of the profile holds; an hour.")
    ] = None

    def __post_init__(self) -> None:
        source, target = self.between
        for name in (source, target):
            if not name or not name.isprintable():
                raise InputError("expected printable names of nodes", where="between")
        if source == target:
            raise InputError(f'joins "{source}" to itself', where="between")
        if self.profile is None and self.step is not None:
            raise InputError("goes with a profile", where="step")
        if self.profile is not None and self.bandwidth is None:
            raise InputError("goes with a bandwidth", where="profile")
        if self.profile is not None and not self.profile:
            raise InputError("expected at least one share", where="profile")
        if self.step == 0:
            raise InputError("must be positive, got 0", where="step")

    def wire(self) -> NetworkLink:
        """Return the link of the network."""
        source, target = self.between
        profile = None
        if self.profile is not None:
            step = 3600.0 if self.step is None else self.step
            profile = BandwidthProfile(shares=tuple(self.profile), step=step)
        return NetworkLink(
            source=source,
            target=target,
            bandwidth=math.inf if self.bandwidth is None else self.bandwidth,
            latency=self.latency,
            duplex=self.duplex,
            profile=profile,
        )


class TopologyFile(TomlTable, frozen=True):
    """A topology file: [node.NAME] and [[link]] tables."""

    routing: Annotated[
        Literal["latency", "widest"],
        Meta(
            description='Which way data take: "latency", that with the least latency, of these '
            'that with the fewest links; "widest", that with the greatest bandwidth at its '
            "narrowest."
        ),
    ] = "latency"
    node: Annotated[dict[str, NodeTable], Meta(description="The nodes, by name.")] = msgspec.field(
        default_factory=dict
    )
    link: Annotated[tuple[WireTable, ...], Meta(description="What joins them.")] = ()


def read_topology(path: Path) -> Topology:
    """
    Read the network in a TOML file, or in a CSV file where the name ends in ``.csv``.

    In a CSV file no node is a router, and the directions of each link have its bandwidth each.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field.
    """
    path = Path(path)
    if path.suffix.lower() == ".csv":
        links = read_links(path)
        return _topology(
            [(f"{path}:{link.line}", link.wire) for link in links], {}, "latency", str(path)
        )
    return read_toml(path, _read)


def _read(document: dict[str, Any]) -> Topology:
    file = decode(document, TopologyFile)
    for name in file.node:
        if not name or not name.isprintable():
            raise InputError("expected a printable name", where=joined("node", name))
    wires = [(joined("link", i), table.wire()) for i, table in enumerate(file.link)]
    routers = {name: table.router for name, table in file.node.items()}
    return _topology(wires, routers, file.routing, "")


def _topology(
    wires: list[tuple[str, NetworkLink]], routers: dict[str, bool], routing: Routing, whole: str
) -> Topology:
    """Make one network of the wires; nodes are numbered in the order of appearance."""
    joins: set[tuple[str, str]] = set()
    for place, wire in wires:
        both = [(wire.source, wire.target), (wire.target, wire.source)]
        for pair in both[:1] if wire.duplex == "one-way" else both:
            if pair in joins:
                raise InputError(
                    f'there is a link from "{pair[0]}" to "{pair[1]}" already', where=place
                )
            joins.add(pair)
    ends = (end for _, wire in wires for end in (wire.source, wire.target))
    nodes = tuple(dict.fromkeys([*routers, *ends]))
    if not nodes:
        raise InputError("has no node, expected [node.NAME] or [[link]]", where=whole)
    return Topology(
        nodes=nodes,
        wires=tuple(wire for _, wire in wires),
        routers=frozenset(name for name, is_router in routers.items() if is_router),
        routing=routing,
    )


# Files of weights: what the terms of a rank weigh, and how that was found.

Weight = Annotated[float, Meta(ge=0, le=1)]


class WeightsTable(TomlTable, frozen=True):
    """The weights of a rank, and how they were found."""

    alpha: Annotated[Weight, Meta(description="Of the rank expression, against the files.")]
    beta: Annotated[Weight, Meta(description="Of access to files, against bringing them.")]


class WeightsFile(TomlTable, frozen=True):
    """A file of weights."""

    weights: Annotated[WeightsTable, Meta(description="The weights.")]
    found: Annotated[
        dict[str, Any] | None, Meta(description="How they were found; for people.")
    ] = None


def read_weights(path: Path) -> RankWeights:
    """
    Read the weights in a TOML file.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field.
    """
    path = Path(path)
    weights = read_toml(path, lambda document: decode(document, WeightsFile)).weights
    return RankWeights(alpha=float(weights.alpha), beta=float(weights.beta))


def write_weights(
    path: Path, weights: RankWeights, found: Mapping[str, Fact] | None = None
) -> None:
    """
    Writes a file that :func:`read_weights` reads.

    Parameters
    ----------
    path
        File to write; an existing file is replaced.
    found
        Circumstances of the search, by name; for readers only.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    document: dict[str, Any] = {"weights": {"alpha": weights.alpha, "beta": weights.beta}}
    if found:
        document["found"] = dict(found)
    path = Path(path)
    try:
        path.write_text(_as_toml(document))
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def _as_toml(document: Mapping[str, Mapping[str, Fact]]) -> str:
    """Tables of plain values."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{_key(k)} = {_written(v)}\n" for k, v in table.items())
        for name, table in document.items()
    )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _written(name)


def _written(value: Fact) -> str:
    """Write a value as JSON does: TOML agrees but for 0x7f and infinite numbers."""
    if isinstance(value, float):
        return repr(value)
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
