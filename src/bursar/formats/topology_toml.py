"""Topology files: the nodes of a network, and the links between them."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from bursar.formats.link_table import Bandwidth, parse_bandwidth
from bursar.formats.links_csv import read_links
from bursar.formats.slot_table import at_field
from bursar.formats.tables import Duration
from bursar.formats.toml_reading import at_line, decode_table, joined, parse_toml, read_text
from bursar.formats.units import parse_duration, parse_share
from bursar.model.errors import InputError
from bursar.model.network_link import BandwidthProfile, NetworkLink
from bursar.model.routing import Routing
from bursar.model.topology import Topology


class NodeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node. One that a link names need not be given."""

    router: Annotated[bool, Meta(description="No site is here.")] = False


class WireTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins two nodes."""

    between: Annotated[
        Annotated[list[str], Meta(min_length=2, max_length=2)],
        Meta(description="Names of the two nodes."),
    ]
    bandwidth: Annotated[Bandwidth | None, Meta(description="Without it sizes do not matter.")] = (
        None
    )
    latency: Annotated[Duration, Meta(description="Until the first byte is there.")] = 0
    duplex: Annotated[
        Literal["full", "half", "one-way"],
        Meta(
            description='"full": each direction has the bandwidth; "half": both share it; '
            '"one-way": from the first node to the second only.'
        ),
    ] = "full"
    profile: Annotated[
        list[str | float] | None,
        Meta(description="Shares of the bandwidth that others leave, one step after the other."),
    ] = None
    step: Annotated[
        Duration | None, Meta(description="How long each share of the profile holds; an hour.")
    ] = None


class TopologyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topology file: [node.NAME] and [[link]] tables."""

    routing: Annotated[
        Literal["latency", "widest"],
        Meta(
            description='Which way data take: "latency", that with the least latency, of these '
            'that with the fewest links; "widest", that with the greatest bandwidth at its '
            "narrowest."
        ),
    ] = "latency"
    node: Annotated[dict[str, Any], Meta(description="The nodes, by name.")] = {}
    link: Annotated[list[Any], Meta(description="What joins them.")] = []


def read_topology(path: Path) -> Topology:
    """
    The network in a TOML file, or in a CSV file where the name ends in ``.csv``.

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
    text = read_text(path)
    try:
        return _read(parse_toml(text))
    except InputError as error:
        raise at_line(error, text, path) from None


def _read(document: dict[str, Any]) -> Topology:
    file = decode_table(document, TopologyFile, "")
    routers: dict[str, bool] = {}
    for name, raw in file.node.items():
        here = joined("node", name)
        if not name or not name.isprintable():
            raise InputError("expected a printable name", where=here)
        routers[name] = decode_table(raw, NodeTable, here).router
    wires: list[tuple[str, NetworkLink]] = []
    for i, raw in enumerate(file.link):
        here = joined("link", i)
        table = decode_table(raw, WireTable, here)
        try:
            wires.append((here, _wire(table)))
        except InputError as error:
            raise InputError(
                error.message, where=joined(here, error.where), hint=error.hint
            ) from None
    return _topology(wires, routers, file.routing, "")


def _wire(table: WireTable) -> NetworkLink:
    source, target = table.between
    for name in (source, target):
        if not name or not name.isprintable():
            raise InputError("expected printable names of nodes", where="between")
    if source == target:
        raise InputError(f'joins "{source}" to itself', where="between")
    bandwidth = None
    if table.bandwidth is not None:
        bandwidth = at_field("bandwidth", parse_bandwidth, table.bandwidth)
    profile = None
    if table.profile is not None:
        if bandwidth is None:
            raise InputError("goes with a bandwidth", where="profile")
        if not table.profile:
            raise InputError("expected at least one share", where="profile")
        step = at_field("step", parse_duration, "1h" if table.step is None else table.step)
        if not step > 0:
            raise InputError("must be positive, got 0", where="step")
        shares = tuple(at_field("profile", parse_share, share) for share in table.profile)
        profile = BandwidthProfile(shares=shares, step=step)
    elif table.step is not None:
        raise InputError("goes with a profile", where="step")
    return NetworkLink(
        source=source,
        target=target,
        bandwidth=math.inf if bandwidth is None else bandwidth,
        latency=at_field("latency", parse_duration, table.latency),
        duplex=table.duplex,
        profile=profile,
    )


def _topology(
    wires: list[tuple[str, NetworkLink]], routers: dict[str, bool], routing: Routing, whole: str
) -> Topology:
    """The wires and where each stands, made one network; nodes in the order in which they come."""
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
