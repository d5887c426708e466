"""Service files: what ``bursar serve --config`` reads, and what the environment may say instead."""

import os
import pwd
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode, file_schema
from bursar.formats.file_text import at_line, joined, parse_toml, read_text
from bursar.formats.quantities import Duration, Schema
from bursar.formats.sites_toml import AnySiteTable, read_sites, site_facts, with_default_kind
from bursar.formats.units import at_field
from bursar.model.errors import InputError, spelling_hint
from bursar.model.site import SiteFacts
from bursar.service.config import (
    PORT,
    Address,
    CertificateFiles,
    ExchangeSettings,
    GroupSettings,
    HttpLimits,
    LogSettings,
    MarketSettings,
    SealingFiles,
    Security,
    ServiceConfig,
    TaskSettings,
    UserSettings,
)
from bursar.service.engine.engine_limits import EngineLimits
from bursar.sites.local import this_machine

PREFIX = "BURSAR_SERVICE__"
"""Prefix of environment variables in place of the file's keys: ``BURSAR_SERVICE__SECTION__KEY``."""

_CERTIFICATES = ("certificate", "key", "authorities", "revoked")


class ServiceTable(TomlTable, frozen=True):
    """The service itself."""

    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=100)] | None,
        Meta(description="Name of the service, the owner in its deals; default: the site's name."),
    ] = None
    folder: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Folder of the service's state, relative to this file."),
    ] = None
    listen: Annotated[
        str, Meta(description='Address where clients reach the service: "HOST:PORT".')
    ] = f"127.0.0.1:{PORT}"
    worker_listen: Annotated[
        str | None,
        Meta(description="Address where workers on other machines reach the service, over TLS."),
    ] = None
    names: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="Further names and addresses by which clients reach the service."),
    ] = ()
    security: Annotated[
        Security,
        Meta(
            description='"none", on this machine only; "tls", clients have tokens; "mutual", they '
            "have certificates."
        ),
    ] = "none"
    certificate: Annotated[
        str | None, Meta(description="File of the service's certificate, PEM.")
    ] = None
    key: Annotated[str | None, Meta(description="File of the certificate's key, PEM.")] = None
    authorities: Annotated[
        str | None, Meta(description="File of the CAs of users and workers, PEM.")
    ] = None
    revoked: Annotated[
        str | None, Meta(description="File of the list of certificates revoked, PEM.")
    ] = None
    seal_certificate: Annotated[
        str | None, Meta(description="File of the certificate that tasks are sealed to, PEM.")
    ] = None
    seal_key: Annotated[
        str | None,
        Meta(description="File of that certificate's key, which only the workers read, PEM."),
    ] = None
    owner: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)],
        Meta(description="The user that everybody on this machine is, without security."),
    ] = "owner"
    only_listed_users: Annotated[
        bool, Meta(description="Whether a user's certificate needs a table [users.NAME].")
    ] = False
    scrapers: Annotated[
        tuple[str, ...],
        Meta(description="Users who may read the metrics without being administrators."),
    ] = ()
    sites: Annotated[
        str | None, Meta(description="A sites file with the service's site, in place of [site].")
    ] = None
    site: Annotated[str | None, Meta(description="Name of the site in that file.")] = None

    def __post_init__(self) -> None:
        self.listen_address()
        self._check_certificates()
        if (self.seal_certificate is None) != (self.seal_key is None):
            lacks = "seal_certificate" if self.seal_certificate is None else "seal_key"
            raise InputError("goes together with the other file", where=lacks)
        if self.security == "none" and not self.listen_address().is_loopback:
            raise InputError(
                f'without security nobody from elsewhere is listened to, and "{self.listen}" is '
                "not of this machine alone",
                where="listen",
                hint='set security = "tls" or "mutual", or listen on 127.0.0.1',
            )
        if self.only_listed_users and self.security != "mutual":
            raise InputError(
                'goes with security = "mutual"; tokens are for whom they were made',
                where="only_listed_users",
            )
        workers = self.worker_address()
        if workers is not None and not workers.port:
            raise InputError("workers are to find it again: expected a port", where="worker_listen")
        if self.site is not None and self.sites is None:
            raise InputError("names a site, and there is no sites file", where="site")

    def _check_certificates(self) -> None:
        if self.security == "none":
            for key in _CERTIFICATES:
                if getattr(self, key) is not None:
                    raise InputError('goes with security = "tls" or "mutual"', where=key)
            return
        for key in ("certificate", "key", *(["authorities"] if self.security == "mutual" else [])):
            if getattr(self, key) is None:
                raise InputError(
                    f'security = "{self.security}" needs a file here',
                    where=key,
                    hint="bursar certs makes it",
                )

    def listen_address(self) -> Address:
        """
        Return the address where clients reach the service.

        Raises
        ------
        InputError
            When the text is none.
        """
        return at_field("listen", read_address, self.listen)

    def worker_address(self) -> Address | None:
        """
        Return the address where workers on other machines reach the service, or None.

        Raises
        ------
        InputError
            When the text is none.
        """
        if self.worker_listen is None:
            return None
        return at_field("worker_listen", read_address, self.worker_listen)

    def certificates(self, folder: Path) -> CertificateFiles | None:
        """
        Return the files of certificates; None without security.

        Raises
        ------
        InputError
            When a file is missing.
        """
        if self.security == "none":
            return None
        paths = {key: getattr(self, key) for key in _CERTIFICATES}
        return CertificateFiles(**{k: _file(k, v, folder) for k, v in paths.items() if v})

    def sealing(self, folder: Path) -> SealingFiles | None:
        """
        Return the files by which tasks are sealed; None: tasks cannot be sealed.

        Raises
        ------
        InputError
            When a file is missing.
        """
        if self.seal_certificate is None or self.seal_key is None:
            return None
        return SealingFiles(
            certificate=_file("seal_certificate", self.seal_certificate, folder),
            key=_file("seal_key", self.seal_key, folder),
        )


class TasksTable(TaskSettings, frozen=True):
    """Limits and environment of tasks, and the folders in which they may run."""

    directories: Annotated[
        tuple[str, ...], Meta(description="Folders in which a task may be told to run, absolute.")
    ] = ()
    limit: Annotated[
        Duration | None, Meta(description="Time after which a task is killed that names no limit.")
    ] = None

    def __post_init__(self) -> None:
        for i, name in enumerate(self.directories):
            if not name.startswith("/"):
                raise InputError("expected an absolute path", where=f"directories[{i}]")
        if self.limit == 0:
            raise InputError("must be positive", where="limit")
        if self.python and not (self.python.startswith("/") and os.access(self.python, os.X_OK)):
            raise InputError(f'no program "{_short(self.python)}"', where="python")


class LimitsTable(TomlTable, frozen=True):
    """Limits of what users may have, and of what they may ask."""

    schema_rules: ClassVar[Schema] = {
        "properties": {
            "tasks": {"properties": dict.fromkeys(("limit", "directories", "containers"), False)}
        }
    }

    tasks: Annotated[EngineLimits, Meta(description="Limits of instances, tasks and results.")] = (
        msgspec.field(default_factory=EngineLimits)
    )
    requests: Annotated[HttpLimits, Meta(description="Limits of requests and their size.")] = (
        msgspec.field(default_factory=HttpLimits)
    )

    def __post_init__(self) -> None:
        plain = EngineLimits()
        for key in ("limit", "directories", "containers"):
            if getattr(self.tasks, key) != getattr(plain, key):
                raise InputError("is said in [tasks]", where=f"tasks.{key}")


class ServiceFile(TomlTable, frozen=True):
    """A service file."""

    service: Annotated[ServiceTable, Meta(description="The service itself.")] = msgspec.field(
        default_factory=ServiceTable
    )
    site: Annotated[
        AnySiteTable | None,
        Meta(description="The processors, as in a sites file; default: those of this machine."),
    ] = None
    market: Annotated[MarketSettings, Meta(description="Rules for selling processors.")] = (
        msgspec.field(default_factory=MarketSettings)
    )
    users: Annotated[dict[str, UserSettings], Meta(description="Users, by name.")] = msgspec.field(
        default_factory=dict
    )
    groups: Annotated[
        dict[str, GroupSettings], Meta(description="Groups of users that have a weight, by name.")
    ] = msgspec.field(default_factory=dict)
    tasks: Annotated[TasksTable, Meta(description="Limits and environment of tasks.")] = (
        msgspec.field(default_factory=TasksTable)
    )
    limits: Annotated[LimitsTable, Meta(description="Limits of what users may have and ask.")] = (
        msgspec.field(default_factory=LimitsTable)
    )
    log: Annotated[LogSettings, Meta(description="Logging.")] = msgspec.field(
        default_factory=LogSettings
    )

    def __post_init__(self) -> None:
        if self.site is not None and self.service.sites is not None:
            raise InputError("there is a [site] already", where="service.sites")


def service_schema() -> Schema:
    """Return the JSON Schema of service files."""
    return file_schema("Bursar service", ServiceFile)


def read_service(path: Path, environment: Mapping[str, str] | None = None) -> ServiceConfig:
    """
    Read the configuration of a service from its file and the environment.

    Parameters
    ----------
    environment
        Variables ``BURSAR_SERVICE__SECTION__KEY`` stand in place of the file's; None: those of
        this process.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field; or with the variable.
    """
    path = Path(path)
    text = read_text(path)
    try:
        document = parse_toml(text)
    except InputError as error:
        raise at_line(error, text, path) from None
    return _read(document, path.absolute().parent, environment, lambda e: at_line(e, text, path))


def default_service(environment: Mapping[str, str] | None = None) -> ServiceConfig:
    """
    Return the configuration without a file: this machine, for all its users.

    Raises
    ------
    InputError
        When a variable is wrong.
    """
    return _read({}, Path.cwd(), environment, lambda error: error)


def with_exchange(config: ServiceConfig) -> ServiceConfig:
    """Return a configuration with an exchange, by default settings if it has none."""
    if config.selling.exchange is not None:
        return config
    selling = msgspec.structs.replace(config.selling, exchange=ExchangeSettings())
    return replace(config, selling=selling)


def state_folder() -> Path:
    """Return the default folder of a service's state."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "bursar" / "service"


def _read(
    document: dict[str, Any],
    folder: Path,
    environment: Mapping[str, str] | None,
    located: Callable[[InputError], InputError],
) -> ServiceConfig:
    settings = _overlay(document, os.environ if environment is None else environment)
    try:
        return _service(document, folder)
    except InputError as error:
        for place, variable in settings.items():
            if error.where == place or error.where.startswith((f"{place}.", f"{place}[")):
                raise InputError(error.message, where=variable, hint=error.hint) from None
        raise located(error) from None


def _overlay(document: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """
    Put values of environment variables into the document; return which variable set what.

    A value is read as TOML, and taken as text where it is none.
    """
    settings: dict[str, str] = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        *tables, key = variable.removeprefix(PREFIX).lower().split("__")
        if not tables or not key or not all(tables):
            raise InputError(f"expected {PREFIX}SECTION__KEY", where=variable)
        place, table = "", document
        for name in tables:
            place = joined(place, name)
            inner = table.setdefault(name, {})
            if not isinstance(inner, dict):
                raise InputError(f"{place} is no table", where=variable)
            table = inner
        table[key] = _value(environment[variable])
        settings[joined(place, key)] = variable
    return settings


def _value(text: str) -> object:
    if "\n" in text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _service(document: dict[str, Any], folder: Path) -> ServiceConfig:
    if "site" in document:
        document = document | {"site": with_default_kind(document["site"])}
    file = decode(document, ServiceFile)
    table = file.service
    site = _site(file, folder)
    try:
        certificates, sealed = table.certificates(folder), table.sealing(folder)
    except InputError as error:
        raise InputError(error.message, where=f"service.{error.where}") from None
    if table.worker_listen is None and site.batch is not None:
        raise InputError(
            "workers come from other machines, and are to find it somewhere",
            where="service.worker_listen",
            hint='set worker_listen = "0.0.0.0:7481"',
        )
    _check_market(file.market, site)
    _check_local_user(file.tasks.local_user, "tasks.local_user", site)
    for name, user in file.users.items():
        place = joined("users", name)
        if not name or len(name) > 200 or not name.isprintable():
            raise InputError("expected a name", where=place)
        _check_local_user(user.local_user, f"{place}.local_user", site)
    used = frozenset[str]().union(*(user.groups for user in file.users.values()))
    for name in file.groups.keys() - used:
        raise InputError("no user is in this group", where=joined("groups", name))
    return ServiceConfig(
        name=site.name,
        folder=(folder / Path(table.folder).expanduser()) if table.folder else state_folder(),
        site=site,
        listen=table.listen_address(),
        worker_listen=table.worker_address(),
        names=table.names,
        security=table.security,
        certificates=certificates,
        sealed=sealed,
        owner=table.owner,
        users=file.users,
        groups=file.groups,
        only_listed_users=table.only_listed_users,
        selling=file.market,
        scrapers=frozenset(table.scrapers),
        tasks=file.tasks,
        limits=msgspec.structs.replace(
            file.limits.tasks,
            limit=file.tasks.limit,
            directories=file.tasks.directories,
            containers=file.tasks.containers,
        ),
        http=file.limits.requests,
        log=file.log,
    )


def _check_market(market: MarketSettings, site: SiteFacts) -> None:
    for key in ("processors", "processors_per_user"):
        if (getattr(market, key) or 0) > site.processors:
            raise InputError(f"the site has {site.processors}", where=f"market.{key}")
    prices = {"market.reserve": market.reserve}
    for i, auction in enumerate(market.auctions):
        prices[f"market.auctions[{i}].reserve"] = auction.reserve
    for place, price in prices.items():
        if price is not None and price[1] not in (None, site.currency):
            raise InputError(f"is in {price[1]}, the site counts in {site.currency}", where=place)
    for i, auction in enumerate(market.auctions):
        most = market.processors or site.processors
        if auction.processors > most:
            raise InputError(f"{most} are sold at once", where=f"market.auctions[{i}].processors")
        if auction.reserve is not None and auction.reserve[0] < market.reserve_price:
            raise InputError("is below market.reserve", where=f"market.auctions[{i}].reserve")
        if auction.rule == "share" and market.reserve_price > 0:
            raise InputError(
                "sells at any price, which market.reserve forbids", where=f"market.auctions[{i}]"
            )


def _site(file: ServiceFile, folder: Path) -> SiteFacts:
    """Return the site, under the service's name if it has one."""
    table = file.service
    if table.sites is not None:
        known = {site.name: site for site in read_sites(folder / table.sites)}
        if table.site is None and len(known) == 1:
            (site,) = known.values()
        elif table.site is None:
            listed = ", ".join(f'"{name}"' for name in known)
            raise InputError(f"expected one of {listed}", where="service.site")
        elif table.site not in known:
            raise InputError(
                f'no site "{table.site}" is in {table.sites}',
                where="service.site",
                hint=spelling_hint(table.site, known),
            )
        else:
            site = known[table.site]
    elif file.site is not None:
        site = site_facts(file.site, table.name or "local", folder, "site")
    else:
        site = this_machine()
    if site.kind not in ("local", "batch"):
        raise InputError(
            f"{site.kind} sites cannot be served, expected a local one or a batch scheduler",
            where="site.kind" if table.sites is None else "service.site",
        )
    return replace(site, name=table.name) if table.name else site


def read_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f'expected "HOST:PORT", got "{_short(text)}"')
    return Address(host, int(port))


def _file(key: str, name: str, folder: Path) -> Path:
    path = folder / Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"no file {path}", where=key)
    return path


def _check_local_user(account: str, place: str, site: SiteFacts) -> None:
    if not account:
        return
    if site.kind != "local":
        raise InputError("tasks are of another user on this machine only", where=place)
    try:
        entry = pwd.getpwnam(account)
    except (KeyError, ValueError):
        raise InputError(f'no account "{_short(account)}" on this machine', where=place) from None
    if entry.pw_uid == os.geteuid():
        return
    if entry.pw_uid == 0:
        raise InputError("tasks are never run as root for somebody", where=place)
    if os.geteuid() != 0:
        raise InputError("only a service that runs as root may switch users", where=place)


def _short(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:60]
