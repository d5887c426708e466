"""Sites files: the processors one may use, what they cost, and how data pass between them."""

import datetime
import math
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import msgspec
from msgspec import Meta

from bursar.formats.cloud_table import CloudSiteTable
from bursar.formats.decoding import TomlTable, decode, file_schema
from bursar.formats.exchange import ExchangeTable
from bursar.formats.file_text import joined, read_toml
from bursar.formats.offer_tables import SlotPrices
from bursar.formats.quantities import Bandwidth, Duration, Schema
from bursar.formats.site_tables import (
    AdvertisedSiteTable,
    LeasedSiteTable,
    LocalSiteTable,
    Processors,
    SimulatedSiteTable,
    SiteTable,
    Text,
    check_private,
    existing_file,
)
from bursar.formats.ssh_tables import SshSiteTable
from bursar.model.cloud import plain_word
from bursar.model.errors import InputError, spelling_hint
from bursar.model.network import Link
from bursar.model.provisioning import BatchScheduler, Manager
from bursar.model.site import (
    REMOTE_PATIENCE,
    DaskEndpoint,
    RemoteEndpoint,
    SealLevel,
    SiteFacts,
    Trust,
)

# The tables of sites that others share: batch schedulers, Dask clusters and other Bursars.

_NO_NUMBER = "how many processors may be held there at a time?"

_DASK_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}")


class BatchSiteTable(LeasedSiteTable, frozen=True, kw_only=True):
    """A cluster whose processors come through a batch scheduler."""

    noun: ClassVar[str] = "a batch scheduler"
    site_kind: ClassVar[str] = "batch"
    needed: ClassVar = {"processors": _NO_NUMBER}

    processors: Annotated[
        Processors, Meta(description="Greatest number of processors held there at a time.")
    ]
    queue: Annotated[
        Text | None, Meta(description="Partition or queue; default: the scheduler's.")
    ] = None
    account: Annotated[
        Text | None, Meta(description="Account that jobs are charged to; default: the user's.")
    ] = None
    qos: Annotated[
        Text | None,
        Meta(description="Quality of service of the jobs; default: the user's."),
    ] = None
    directives: Annotated[
        tuple[Text, ...],
        Meta(description="Directives for job scripts, without #SBATCH or the like."),
    ] = ()
    setup: Annotated[tuple[str, ...], Meta(description="Lines of shell that jobs run first.")] = ()
    environment: Annotated[
        dict[str, str], Meta(description="Environment variables of the scheduler's commands.")
    ] = msgspec.field(default_factory=dict)
    ssh: Annotated[
        Text | None,
        Meta(
            description="Login node where the scheduler's commands are run; default: this machine."
        ),
    ] = None
    python: Annotated[
        Text | None,
        Meta(description="Interpreter on the nodes that has Bursar; default: the one in use here."),
    ] = None
    folder: Annotated[
        Text | None,
        Meta(
            description="Folder of pilots' files, seen alike by this machine and the nodes; "
            "default: in the run's folder."
        ),
    ] = None
    reach: Annotated[
        Text | None,
        Meta(
            description="Host or address by which the nodes reach this machine; default: its name."
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        words = ("queue", "account", "qos")
        texts = (*words, "directives", "setup", "ssh", "python", "folder", "reach")
        for key in texts:
            value = getattr(self, key)
            for line in value if isinstance(value, tuple) else [value or ""]:
                # A line end would begin another directive or command in the job script.
                if set(line) & set("\n\r\0"):
                    raise InputError("expected single lines", where=key)
        for key in words:
            if any(c.isspace() for c in getattr(self, key) or ""):
                raise InputError("expected a word", where=key)
        # ssh would take it for an option, and options can run programs (ProxyCommand).
        if self.ssh and self.ssh.startswith("-"):
            raise InputError("expected a host", where="ssh")
        if self.ssh and self.folder and not self.folder.startswith("/"):
            raise InputError(
                "expected a path from the root, as the login node has it", where="folder"
            )

    def endpoint(self, folder: Path) -> dict[str, Any]:
        pilots = self.folder
        if pilots is not None and not self.ssh:
            pilots = str((folder / pilots).absolute())
        own = {field.name for field in fields(BatchScheduler)} - {"manager", "learned"}
        given = {name: getattr(self, name) for name in own} | {"folder": pilots}
        manager = cast(Manager, self.__struct_config__.tag)
        return {
            "processors": self.processors,
            "batch": BatchScheduler(manager=manager, **given),
        }


class SlurmSiteTable(BatchSiteTable, frozen=True, tag="slurm"):
    """A cluster of Slurm."""


class GridEngineSiteTable(BatchSiteTable, frozen=True, tag="gridengine"):
    """A cluster of Grid Engine."""


class PbsSiteTable(BatchSiteTable, frozen=True, tag="pbs"):
    """A cluster of PBS."""


class LsfSiteTable(BatchSiteTable, frozen=True, tag="lsf"):
    """A cluster of LSF."""


class FluxSiteTable(BatchSiteTable, frozen=True, tag="flux"):
    """A cluster of Flux."""


class TlsSiteTable(LeasedSiteTable, frozen=True):
    """A site that is reached over TLS."""

    ca: Annotated[
        Text | None,
        Meta(description="Authority that signed the other end's certificate, a PEM file."),
    ] = None
    certificate: Annotated[
        Text | None, Meta(description="Our own certificate, a PEM file, relative to this file.")
    ] = None
    key: Annotated[
        Text | None, Meta(description="Key of our certificate, a PEM file, relative to this file.")
    ] = None


class DaskSiteTable(TlsSiteTable, frozen=True, tag="dask", kw_only=True):
    """A Dask cluster that is there."""

    noun: ClassVar[str] = "a Dask cluster"
    site_kind: ClassVar[str] = "dask"
    needed: ClassVar = {
        "processors": _NO_NUMBER,
        "scheduler": (
            "expected the address of its scheduler, as tcp://host:8786 or tls://host:8786"
        ),
    }
    refused: ClassVar = {"trust": "Dask's own protocol loads pickles whatever is said here"}

    scheduler: Annotated[
        str, Meta(description="Address of the scheduler: tcp://host:port or tls://host:port.")
    ]
    processors: Annotated[
        Processors, Meta(description="Greatest number of processors held there at a time.")
    ]

    def __post_init__(self) -> None:
        super().__post_init__()
        found = _DASK_ADDRESS.fullmatch(self.scheduler)
        if found is None or not 0 < int(found[3]) < 65536:
            raise InputError(self.needed["scheduler"], where="scheduler")
        for key in ("ca", "certificate", "key"):
            given = getattr(self, key) is not None
            if found[1] == "tls" and not given:
                raise InputError("a tls:// scheduler needs it", where=key)
            if found[1] != "tls" and given:
                raise InputError("goes with a tls:// scheduler only", where=key)

    def endpoint(self, folder: Path) -> dict[str, Any]:
        endpoint = DaskEndpoint(
            scheduler=self.scheduler,
            **{
                key: existing_file(key, getattr(self, key), folder)
                for key in ("ca", "certificate", "key")
            },
        )
        return {"processors": self.processors, "dask": endpoint}


class RemoteSiteTable(TlsSiteTable, frozen=True, tag="remote", kw_only=True):
    """Another Bursar that serves."""

    noun: ClassVar[str] = "another Bursar"
    site_kind: ClassVar[str] = "remote"
    needed: ClassVar = {
        "processors": _NO_NUMBER,
        "url": "expected its address, https://HOST:PORT",
    }

    url: Annotated[str, Meta(description="Address of the service: https://host:port.")]
    processors: Annotated[
        Processors, Meta(description="Greatest number of processors held there at a time.")
    ]
    token_file: Annotated[
        Text | None,
        Meta(description="File with our token for the service, which nobody else may read."),
    ] = None
    fingerprint: Annotated[
        Text | None, Meta(description="SHA-256 of the other Bursar's certificate, hexadecimal.")
    ] = None
    seal: Annotated[
        SealLevel | bool,
        Meta(
            description="Seal tasks and results, so that the other Bursar cannot read them: by one "
            "key for all (also true), or by one key for each."
        ),
    ] = False
    patience: Annotated[
        Duration,
        Meta(
            description="How long it may be unreachable before its processors count as lost; 30 s."
        ),
    ] = REMOTE_PATIENCE
    trust: Annotated[
        Trust,
        Meta(
            description='Results of Python calls come back as "data", which can run no code here, '
            'or as "pickle", by which it can.'
        ),
    ] = "data"
    agreement: Annotated[
        Text | None,
        Meta(
            description="Id of an agreement that was made there before: runs have its processors, "
            "and buy nothing else there."
        ),
    ] = None
    give_back: Annotated[
        bool,
        Meta(description="Whether a run that has ended gives the agreement back before its end."),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agreement is not None and self.market != "posted":
            raise InputError("is bought already, so that no market is asked", where="agreement")
        if self.give_back and self.agreement is None:
            raise InputError("goes with an agreement only", where="give_back")
        if not _URL.fullmatch(self.url):
            raise InputError(self.needed["url"], where="url")
        tls = ("ca", "certificate", "key", "fingerprint", "seal")
        for key in tls if self.url.startswith("http:") else ():
            if getattr(self, key):
                raise InputError("goes with an https:// address only", where=key)
        if self.fingerprint is not None and not _FINGERPRINT.fullmatch(self.fingerprint):
            raise InputError("expected a SHA-256, 64 hexadecimal digits", where="fingerprint")
        if self.key is not None and self.certificate is None:
            raise InputError("a private key needs its certificate", where="key")
        if self.seal and not (self.ca and self.certificate):
            raise InputError('needs "ca" and "certificate"', where="seal")

    def endpoint(self, folder: Path) -> dict[str, Any]:
        files = ("token_file", "ca", "certificate", "key")
        paths = {key: existing_file(key, getattr(self, key), folder) for key in files}
        if paths["token_file"]:
            check_private(paths["token_file"], "token_file")
        endpoint = RemoteEndpoint(
            url=self.url.rstrip("/"),
            fingerprint=self.fingerprint or "",
            seal="conversation" if self.seal is True else self.seal or None,
            patience=self.patience,
            trust=self.trust,
            **paths,
        )
        return {"processors": self.processors, "remote": endpoint}

    def own_facts(
        self, name: str, prices: SlotPrices, folder: Path
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        own, currencies = super().own_facts(name, prices, folder)
        buying = replace(own["buying"], agreement=self.agreement or "", gives_back=self.give_back)
        return {**own, "buying": buying}, currencies


AnySiteTable = (
    LocalSiteTable
    | AdvertisedSiteTable
    | SimulatedSiteTable
    | DaskSiteTable
    | RemoteSiteTable
    | SshSiteTable
    | CloudSiteTable
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
    exchange: Annotated[
        ExchangeTable | None,
        Meta(description="Currency of plans and bills, where sites state prices in several."),
    ] = None
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
        With the file, the line where it can be told, and the field. Also when the sites count in
        different currencies, and the file does not say what these are worth.
    """
    path = Path(path)
    today = datetime.datetime.now(datetime.UTC).date()
    sites = read_toml(path, lambda document: _sites(document, path.parent, today))
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


def _sites(document: dict[str, Any], folder: Path, today: datetime.date) -> tuple[SiteFacts, ...]:
    """
    Return the sites of a file in its order, each with its links and the customer's groups.

    The exchange rates of ``today`` apply.
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
        if file.exchange is not None:
            try:
                facts = file.exchange.converted(facts, today)
            except InputError as error:
                where = f"{place}.{error.where}"
                raise InputError(error.message, where=where, hint=error.hint) from None
        _check_clouds(facts, found, place)
        if found and facts.currency != found[0].currency:
            raise InputError(
                f'counts in {facts.currency} and "{found[0].name}" in {found[0].currency}, '
                "expected one currency for all sites, or [exchange]",
                where=joined(place, "currency"),
            )
        found.append(facts)
    links = _links(file.link, [site.name for site in found])
    groups = frozenset(file.customer.groups)
    return tuple(replace(site, links=links[site.name], groups=groups) for site in found)


def _check_clouds(facts: SiteFacts, found: list[SiteFacts], place: str) -> None:
    """Refuse a cloud that would take the machines of another for its own, and end them."""
    cloud = facts.cloud
    for other in found:
        if cloud is None or other.cloud is None:
            continue
        if plain_word(facts.name) == plain_word(other.name):
            raise InputError(f'is too much like the name of the cloud "{other.name}"', where=place)
        same = (cloud.provider, cloud.owner) == (other.cloud.provider, other.cloud.owner)
        # EC2 lists the machines of one region, other drivers may list those of an account.
        if same and (cloud.provider != "ec2" or cloud.region == other.cloud.region):
            raise InputError(
                f'buys of the same provider as "{other.name}", for the same owner',
                where=joined(place, "owner"),
                hint='give each an owner = "..." of its own',
            )


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
