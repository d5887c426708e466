"""Service files: what ``bursar serve --config`` reads, and what the environment may say instead."""

import os
import pwd
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from bursar.formats.sites_toml import read_sites, site_of
from bursar.formats.tables import Amount, Duration, Size
from bursar.formats.toml_reading import at_line, decode_table, joined, parse_toml, read_text
from bursar.formats.units import parse_amount, parse_duration, parse_share, parse_size
from bursar.market.trade_server import PROTOCOLS, NegotiationProtocol
from bursar.model.errors import InputError, spelling_hint
from bursar.model.site import SiteFacts
from bursar.service.config import (
    PORT,
    Address,
    CertificateFiles,
    LogSettings,
    MarketSettings,
    SealingFiles,
    Security,
    ServiceConfig,
    TaskSettings,
    UserSettings,
)
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.http_limits import HttpLimits
from bursar.service.interfaces import Scope
from bursar.service.quota import Quota
from bursar.sites.local import this_machine

PREFIX = "BURSAR_SERVICE__"
"""Of variables that say something in the file's place: ``BURSAR_SERVICE__SECTION__KEY``."""

T = TypeVar("T")


class ServiceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The service itself."""

    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=100)] | None,
        Meta(description="Of the site, the owner in its deals; the site's own."),
    ] = None
    folder: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Where all that it keeps lies, relative to this file; the user's state."),
    ] = None
    listen: Annotated[str, Meta(description='Where clients reach it: "HOST:PORT".')] = (
        f"127.0.0.1:{PORT}"
    )
    worker_listen: Annotated[
        str | None, Meta(description="Where workers on other machines reach it, over TLS.")
    ] = None
    names: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(description="Further names and addresses by which clients call it."),
    ] = []
    security: Annotated[
        Security,
        Meta(
            description='"none", on this machine only; "tls", clients have tokens; "mutual", they '
            "have certificates."
        ),
    ] = "none"
    certificate: Annotated[str | None, Meta(description="File of its certificate, PEM.")] = None
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
        str | None, Meta(description="File of its key, which only the workers read, PEM.")
    ] = None
    owner: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)],
        Meta(description="Who everybody on this machine is, without security."),
    ] = "owner"
    only_listed_users: Annotated[
        bool, Meta(description="Whether a user's certificate needs a table [users.NAME].")
    ] = False
    scrapers: Annotated[
        list[str], Meta(description="Users who may read the metrics without being administrators.")
    ] = []
    sites: Annotated[
        str | None, Meta(description="A sites file that has its site, in place of [site].")
    ] = None
    site: Annotated[str | None, Meta(description="Which of the file's sites.")] = None


class MarketTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How it deals; what it asks is said in [site]."""

    protocols: Annotated[
        list[NegotiationProtocol], Meta(description="By which it sells; none: it sells nothing.")
    ] = msgspec.field(default_factory=lambda: list(PROTOCOLS))
    must_buy: Annotated[bool, Meta(description="Whether tasks run only under an agreement.")] = (
        False
    )
    price_shared: Annotated[
        bool, Meta(description="Whether shared processors cost their posted price, too.")
    ] = False
    credit: Annotated[
        Amount | None,
        Meta(description="That each user has from the start; without it: as much as they like."),
    ] = None
    validity: Annotated[Duration, Meta(description="For which a quote holds.")] = "10 min"
    floor: Annotated[
        str | int | float, Meta(description="Share of the price down to which it bargains.")
    ] = 0.8
    holds: Annotated[bool, Meta(description="Whether a quote sets its processors aside.")] = False


class UserTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user."""

    local_user: Annotated[
        str, Meta(description="Account of this machine under which the tasks run.")
    ] = ""
    scopes: Annotated[list[Scope], Meta(description="What a certificate of the user's allows.")] = (
        msgspec.field(default_factory=lambda: ["submit", "read"])
    )
    groups: Annotated[list[str], Meta(description="That the prices count the user among.")] = []
    credit: Annotated[
        Amount | None, Meta(description="That the user has from the start; as [market] says.")
    ] = None
    limits: Annotated[
        dict[str, Any], Meta(description="That are the user's own, in place of those in [limits].")
    ] = {}


class TasksTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tasks may do, and may take."""

    directories: Annotated[
        list[str], Meta(description="Folders in which a task may be told to run, absolute.")
    ] = []
    limit: Annotated[
        Duration | None, Meta(description="After which a task is killed that names no limit.")
    ] = None
    local_user: Annotated[
        str, Meta(description="Account under which tasks of users run that have none of their own.")
    ] = ""
    python: Annotated[
        str, Meta(description="Interpreter of workers, which the local users can run.")
    ] = ""
    outlives: Annotated[
        Duration, Meta(description="For which tasks and workers go on without the service.")
    ] = "10 min"
    memory: Annotated[Size | None, Meta(description="Address space of each program; no limit.")] = (
        None
    )
    file_size: Annotated[Size | None, Meta(description="Of the largest file; no limit.")] = None
    open_files: Annotated[
        Annotated[int, Meta(ge=16)] | None, Meta(description="Of each program.")
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=16)] | None, Meta(description="Of a local user.")
    ] = None
    cgroups: Annotated[
        bool, Meta(description="Whether the kernel holds workers to their processors.")
    ] = True


class LimitsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much users may have, and ask."""

    tasks: Annotated[dict[str, Any], Meta(description="Of instances, tasks and results.")] = {}
    requests: Annotated[dict[str, Any], Meta(description="Of requests, and their size.")] = {}


class LogTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What it writes to its standard error, a line of JSON each."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="The least of it.")
    ] = "info"
    requests: Annotated[bool, Meta(description="Whether each request is a line.")] = False


class ServiceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service file."""

    service: Annotated[dict[str, Any], Meta(description="The service itself.")] = {}
    site: Annotated[
        dict[str, Any] | None,
        Meta(description="The processors it has, as in a sites file; those of this machine."),
    ] = None
    market: Annotated[dict[str, Any], Meta(description="How it deals.")] = {}
    users: Annotated[dict[str, Any], Meta(description="Users, by name.")] = {}
    tasks: Annotated[dict[str, Any], Meta(description="What tasks may do and take.")] = {}
    limits: Annotated[dict[str, Any], Meta(description="How much of it users may have.")] = {}
    log: Annotated[dict[str, Any], Meta(description="What it writes.")] = {}


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
    file = decode_table(document, ServiceFile, "")
    table = decode_table(file.service, ServiceTable, "service")
    site = _site(file, table, folder)
    listen = _address(table.listen, "service.listen")
    certificates = _certificates(table, folder)
    if table.security == "none" and not listen.is_loopback:
        raise InputError(
            f'without security nobody from elsewhere is listened to, and "{table.listen}" is not '
            "of this machine alone",
            where="service.listen",
            hint='set security = "tls" or "mutual", or listen on 127.0.0.1',
        )
    if table.only_listed_users and table.security != "mutual":
        raise InputError(
            'goes with security = "mutual"; tokens are for whom they were made',
            where="service.only_listed_users",
        )
    worker_listen = None
    if table.worker_listen is not None:
        worker_listen = _address(table.worker_listen, "service.worker_listen")
        if not worker_listen.port:
            raise InputError(
                "workers are to find it again: expected a port", where="service.worker_listen"
            )
    elif site.batch is not None:
        raise InputError(
            "workers come from other machines, and are to find it somewhere",
            where="service.worker_listen",
            hint='set worker_listen = "0.0.0.0:7481"',
        )
    users = {name: _user(name, raw, site) for name, raw in file.users.items()}
    return ServiceConfig(
        name=site.name,
        folder=(folder / Path(table.folder).expanduser()) if table.folder else state_folder(),
        site=site,
        listen=listen,
        worker_listen=worker_listen,
        names=tuple(table.names),
        security=table.security,
        certificates=certificates,
        sealed=_sealed(table, folder),
        owner=table.owner,
        users=users,
        only_listed_users=table.only_listed_users,
        selling=_selling(file.market),
        scrapers=frozenset(table.scrapers),
        tasks=_task_rules(file.tasks, site),
        limits=_engine_limits(file),
        http=_http_limits(file),
        log=_log(file.log),
    )


def _site(file: ServiceFile, table: ServiceTable, folder: Path) -> SiteFacts:
    """The site, under the service's name if it has one."""
    if file.site is not None and table.sites is not None:
        raise InputError("there is a [site] already", where="service.sites")
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
    elif table.site is not None:
        raise InputError("names a site, and there is no sites file", where="service.site")
    elif file.site is not None:
        site = site_of(file.site, "site", folder, table.name or "local")
    else:
        site = this_machine()
    if site.kind not in ("local", "batch"):
        raise InputError(
            f"{site.kind} sites cannot be served, expected a local one or a batch scheduler",
            where="site.kind" if table.sites is None else "service.site",
        )
    return replace(site, name=table.name) if table.name else site


def _address(text: str, place: str) -> Address:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f'expected "HOST:PORT", got "{_short(text)}"', where=place)
    return Address(host, int(port))


def _certificates(table: ServiceTable, folder: Path) -> CertificateFiles | None:
    given = {key: getattr(table, key) for key in ("certificate", "key", "authorities", "revoked")}
    if table.security == "none":
        for key, value in given.items():
            if value is not None:
                raise InputError(
                    'goes with security = "tls" or "mutual"', where=joined("service", key)
                )
        return None
    needed = ("certificate", "key", *(["authorities"] if table.security == "mutual" else []))
    for key in needed:
        if given[key] is None:
            raise InputError(
                f'security = "{table.security}" needs a file here',
                where=joined("service", key),
                hint="bursar certs makes it",
            )
    files = {key: _file(value, f"service.{key}", folder) for key, value in given.items() if value}
    return CertificateFiles(**files)


def _sealed(table: ServiceTable, folder: Path) -> SealingFiles | None:
    if table.seal_certificate is None and table.seal_key is None:
        return None
    if table.seal_certificate is None or table.seal_key is None:
        lacks = "seal_certificate" if table.seal_certificate is None else "seal_key"
        raise InputError("goes together with the other file", where=f"service.{lacks}")
    return SealingFiles(
        certificate=_file(table.seal_certificate, "service.seal_certificate", folder),
        key=_file(table.seal_key, "service.seal_key", folder),
    )


def _file(name: str, place: str, folder: Path) -> Path:
    path = folder / Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"no file {path}", where=place)
    return path


def _user(name: str, raw: object, site: SiteFacts) -> UserSettings:
    place = joined("users", name)
    if not name or len(name) > 200 or not name.isprintable():
        raise InputError("expected a name", where=place)
    table = decode_table(raw, UserTable, place)
    if table.local_user:
        _check_local_user(table.local_user, f"{place}.local_user", site)
    return UserSettings(
        local_user=table.local_user,
        scopes=frozenset(table.scopes),
        groups=frozenset(table.groups),
        credit=_amount(table.credit, f"{place}.credit"),
        quota=decode_table(table.limits, Quota, f"{place}.limits"),
    )


def _check_local_user(account: str, place: str, site: SiteFacts) -> None:
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


def _selling(raw: object) -> MarketSettings:
    table = decode_table(raw, MarketTable, "market")
    floor = _parsed(parse_share, table.floor, "market.floor")
    validity = _seconds(table.validity, "market.validity")
    if not validity:
        raise InputError("must be positive", where="market.validity")
    return MarketSettings(
        protocols=tuple(dict.fromkeys(table.protocols)),
        must_buy=table.must_buy,
        price_shared=table.price_shared,
        credit=_amount(table.credit, "market.credit"),
        validity=validity,
        floor=floor,
        holds=table.holds,
    )


def _task_rules(raw: object, site: SiteFacts) -> TaskSettings:
    table = decode_table(raw, TasksTable, "tasks")
    if table.local_user:
        _check_local_user(table.local_user, "tasks.local_user", site)
    return TaskSettings(
        local_user=table.local_user,
        python=_interpreter(table.python),
        outlives=_seconds(table.outlives, "tasks.outlives") or 0.0,
        memory=_size(table.memory, "tasks.memory"),
        file_size=_size(table.file_size, "tasks.file_size"),
        open_files=table.open_files,
        processes=table.processes,
        cgroups=table.cgroups,
    )


def _interpreter(name: str) -> str:
    if name and not (name.startswith("/") and os.access(name, os.X_OK)):
        raise InputError(f'no program "{_short(name)}"', where="tasks.python")
    return name


def _engine_limits(file: ServiceFile) -> EngineLimits:
    """Those of [limits.tasks], and what [tasks] says of all tasks."""
    raw = decode_table(file.limits, LimitsTable, "limits").tasks
    for key in ("limit", "directories"):
        if key in raw:
            raise InputError("is said in [tasks]", where=joined("limits.tasks", key))
    limits = decode_table(raw, EngineLimits, "limits.tasks")
    tasks = decode_table(file.tasks, TasksTable, "tasks")
    for i, name in enumerate(tasks.directories):
        if not name.startswith("/"):
            raise InputError("expected an absolute path", where=f"tasks.directories[{i}]")
    limit = _seconds(tasks.limit, "tasks.limit")
    if limit == 0:
        raise InputError("must be positive", where="tasks.limit")
    return msgspec.structs.replace(limits, limit=limit, directories=tuple(tasks.directories))


def _http_limits(file: ServiceFile) -> HttpLimits:
    raw = decode_table(file.limits, LimitsTable, "limits").requests
    return decode_table(raw, HttpLimits, "limits.requests")


def _log(raw: object) -> LogSettings:
    table = decode_table(raw, LogTable, "log")
    return LogSettings(level=table.level, requests=table.requests)


def _seconds(value: object, place: str) -> float | None:
    return None if value is None else _parsed(parse_duration, value, place)


def _size(value: object, place: str) -> int | None:
    return None if value is None else _parsed(parse_size, value, place)


def _amount(value: object, place: str) -> float | None:
    return None if value is None else _parsed(parse_amount, value, place)[0]


def _parsed(parse: Callable[[object], T], value: object, place: str) -> T:
    try:
        return parse(value)
    except InputError as error:
        raise InputError(error.message, where=place, hint=error.hint) from None


def _short(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:60]
