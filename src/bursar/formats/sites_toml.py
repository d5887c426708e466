"""Sites files: the processors one may use, what they cost, and how data pass between them."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.quantities import Bandwidth, Duration, Schema
from bursar.formats.schema import file_schema
from bursar.formats.shared_site_tables import (
    DaskSiteTable,
    FluxSiteTable,
    GridEngineSiteTable,
    LsfSiteTable,
    PbsSiteTable,
    RemoteSiteTable,
    SlurmSiteTable,
)
from bursar.formats.site_tables import (
    AdvertisedSiteTable,
    LocalSiteTable,
    SimulatedSiteTable,
    SiteTable,
)
from bursar.formats.toml_reading import joined, read_toml
from bursar.model.errors import InputError, spelling_hint
from bursar.model.link import Link
from bursar.model.site import SiteFacts

AnySiteTable = (
    LocalSiteTable
    | AdvertisedSiteTable
    | SimulatedSiteTable
    | DaskSiteTable
    | RemoteSiteTable
    | SlurmSiteTable
    | GridEngineSiteTable
    | PbsSiteTable
    | LsfSiteTable
    | FluxSiteTable
)
"""A site, told from the others by its ``kind``."""


class CustomerTable(TomlTable, frozen=True):
    """The customer who buys."""

    groups: Annotated[
        tuple[str, ...], Meta(description="Groups to which the owners assign the buyer.")
    ] = ()


class LinkTable(TomlTable, frozen=True):
    """How data pass between two sites."""

    from_: Annotated[str, Meta(description="Name of a site.")] = msgspec.field(name="from")
    to: Annotated[str, Meta(description="Name of another site.")]
    latency: Annotated[Duration, Meta(description="Time until the first byte arrives.")] = 0.0
    bandwidth: Annotated[
        Bandwidth | None, Meta(description="Bandwidth; without a value, sizes do not matter.")
    ] = None
    one_way: Annotated[
        bool,
        Meta(description="Whether the link is in this direction only, rather than in both alike."),
    ] = False

    def __post_init__(self) -> None:
        if self.from_ == self.to:
            raise InputError("expected two different sites", where="to")


class SitesFile(TomlTable, frozen=True):
    """A sites file: [site.NAME] tables, or [[site]] tables with names."""

    schema_rules: ClassVar[Schema] = {"required": ["site"]}

    site: Annotated[
        Annotated[
            dict[str, AnySiteTable],
            Meta(
                extra_json_schema={
                    "minProperties": 1,
                    "propertyNames": {"minLength": 1},
                    "additionalProperties": {"not": {"required": ["name"]}},
                }
            ),
        ]
        | Annotated[
            list[AnySiteTable],
            Meta(
                extra_json_schema={
                    "minItems": 1,
                    "items": {"required": ["name"], "properties": {"name": {"minLength": 1}}},
                }
            ),
        ],
        Meta(description="The sites."),
    ] = msgspec.field(default_factory=dict)
    customer: Annotated[
        CustomerTable, Meta(description="The customer, for the owners' prices.")
    ] = msgspec.field(default_factory=CustomerTable)
    link: Annotated[
        tuple[LinkTable, ...],
        Meta(description="Links on which data take time; all other sites share their files."),
    ] = ()


def read_sites(path: Path) -> tuple[SiteFacts, ...]:
    """
    Read the sites in a TOML file, in the order of the file.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field. Also when
        the sites count in different currencies: nothing here converts them.
    """
    path = Path(path)
    sites = read_toml(path, lambda document: _sites(document, path.parent))
    return tuple(replace(site, source=str(path.resolve())) for site in sites)


def sites_schema() -> Schema:
    """Return the JSON Schema of sites files."""
    return file_schema("Bursar sites", SitesFile)


def with_default_kind(site: object) -> object:
    """
    Return the table of a site with the kind filled in: a table that does not state one is local.
    """
    return {"kind": "local"} | site if isinstance(site, dict) else site


def site_facts(table: SiteTable, name: str, folder: Path, place: str) -> SiteFacts:
    """
    Return what a table says of a site.

    Parameters
    ----------
    name
        Name of the site.
    folder
        Folder that relative paths are relative to.
    place
        Path of the table, for errors.

    Raises
    ------
    InputError
        At the field.
    """
    if not name:
        raise InputError("expected a name", where=joined(place, "name"))
    if not name.isprintable():
        raise InputError("expected printable characters", where=joined(place, "name"))
    try:
        return table.facts(name, folder)
    except InputError as error:
        raise InputError(error.message, where=f"{place}.{error.where}", hint=error.hint) from None


def _sites(document: dict[str, Any], folder: Path) -> tuple[SiteFacts, ...]:
    """
    Return the sites of a sites file in its order, each with its links and the customer's groups.

    Parameters
    ----------
    document
        The file as read from TOML.
    folder
        Folder to which paths in the file are relative.

    Raises
    ------
    InputError
        When there is no site, a name is used twice, or the sites count in several currencies.
    """
    sites = document.get("site")
    if isinstance(sites, dict):
        sites = {name: with_default_kind(table) for name, table in sites.items()}
    elif isinstance(sites, list):
        sites = [with_default_kind(table) for table in sites]
    file = decode(document | ({} if sites is None else {"site": sites}), SitesFile)
    if not file.site:
        raise InputError("has no site, expected [site.NAME] or [[site]]")
    found: list[SiteFacts] = []
    for place, name, table in _tables(file.site):
        if name is not None and table.name is not None:
            raise InputError("the table's heading is the name already", where=f"{place}.name")
        facts = site_facts(table, (table.name or "") if name is None else name, folder, place)
        if any(other.name == facts.name for other in found):
            raise InputError(f'duplicate site "{facts.name}"', where=place)
        if found and facts.currency != found[0].currency:
            raise InputError(
                f'counts in {facts.currency} and "{found[0].name}" in {found[0].currency}, '
                "expected one currency for all sites",
                where=joined(place, "currency"),
            )
        found.append(facts)
    links = _links(file.link, [site.name for site in found])
    groups = frozenset(file.customer.groups)
    return tuple(replace(site, links=links[site.name], groups=groups) for site in found)


def _tables(
    sites: dict[str, AnySiteTable] | list[AnySiteTable],
) -> Iterator[tuple[str, str | None, SiteTable]]:
    """Yield the tables, each with the path and the name in the heading."""
    if isinstance(sites, dict):
        yield from ((joined("site", name), name, table) for name, table in sites.items())
    else:
        yield from ((joined("site", i), None, table) for i, table in enumerate(sites))


def _links(tables: tuple[LinkTable, ...], names: list[str]) -> dict[str, dict[str, Link]]:
    """Return the links of each site, by the names of the target sites."""
    links: dict[str, dict[str, Link]] = {name: {} for name in names}
    for i, table in enumerate(tables):
        place = joined("link", i)
        for key, name in (("from", table.from_), ("to", table.to)):
            if name not in links:
                shown = "".join(c if c.isprintable() else "?" for c in name)[:60]
                raise InputError(
                    f'unknown site "{shown}"',
                    where=joined(place, key),
                    hint=spelling_hint(name, names),
                )
        bandwidth = math.inf if table.bandwidth is None else table.bandwidth
        link = Link(table.latency, bandwidth)
        ways = [(table.from_, table.to), (table.to, table.from_)][: 1 if table.one_way else 2]
        for source, target in ways:
            if target in links[source]:
                raise InputError(f'duplicate link from "{source}" to "{target}"', where=place)
            links[source][target] = link
    return links
