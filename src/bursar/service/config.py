"""Configuration of a service: values that have been checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.quantities import Credit, Duration, Share, Size
from bursar.market.trade_server import PROTOCOLS, NegotiationProtocol
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.http_limits import HttpLimits
from bursar.service.interfaces import Scope
from bursar.service.quota import Quota

Security = Literal["none", "tls", "mutual"]
"""How clients and the service know each other; what is said is in clear only with ``"none"``."""

PORT = 7480
"""Where a service listens that was told nothing else."""

OUTLIVES = 600.0
"""Seconds for which workers go on without the service, and look for it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host, or its address, and a port; 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """
    PEM files with the service's certificate and the authorities that it trusts.

    Parameters
    ----------
    certificate, key
        Of the service.
    authorities
        Whose users and workers are trusted; None: nobody comes with a certificate.
    revoked
        List of certificates that are not good any more; None: all are.
    """

    certificate: Path
    key: Path
    authorities: Path | None = None
    revoked: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealingFiles:
    """Files of the workers' certificate and key, by which tasks are sealed and opened, PEM."""

    certificate: Path
    key: Path


class MarketSettings(TomlTable, frozen=True):
    """Settings for selling processors; the prices are said in [site]."""

    protocols: Annotated[
        tuple[NegotiationProtocol, ...],
        Meta(description="Protocols by which processors are sold; none: nothing is sold."),
    ] = PROTOCOLS
    must_buy: Annotated[bool, Meta(description="Whether tasks run only under an agreement.")] = (
        False
    )
    price_shared: Annotated[
        bool, Meta(description="Whether shared processors cost their posted price, too.")
    ] = False
    credit: Annotated[
        Credit | None,
        Meta(description="Credit that each user has from the start; default: unlimited."),
    ] = None
    validity: Annotated[Duration, Meta(description="How long a quote holds; 10 min.")] = 600.0
    floor: Annotated[
        Share, Meta(description="Share of the price down to which the service bargains.")
    ] = 0.8
    holds: Annotated[bool, Meta(description="Whether a quote sets its processors aside.")] = False

    def __post_init__(self) -> None:
        if not self.validity:
            raise InputError("must be positive", where="validity")
        msgspec.structs.force_setattr(self, "protocols", tuple(dict.fromkeys(self.protocols)))


class UserSettings(TomlTable, frozen=True):
    """A user who is known by name; what is not said here is as for all others."""

    local_user: Annotated[
        str, Meta(description="Account of this machine under which the user's tasks run.")
    ] = ""
    scopes: Annotated[
        frozenset[Scope],
        Meta(description="Scopes of the user's certificate; default: submit and read."),
    ] = msgspec.field(default_factory=lambda: frozenset[Scope]({"submit", "read"}))
    groups: Annotated[
        frozenset[str], Meta(description="Groups to which the prices assign the user.")
    ] = frozenset()
    credit: Annotated[
        Credit | None,
        Meta(description="Credit that the user has from the start; default: as [market] says."),
    ] = None
    quota: Annotated[
        Quota, Meta(description="The user's own limits, in place of those in [limits].")
    ] = msgspec.field(default_factory=Quota, name="limits")


class TaskSettings(TomlTable, frozen=True):
    """Limits and environment of tasks."""

    local_user: Annotated[
        str, Meta(description="Account under which tasks of users run that have none of their own.")
    ] = ""
    python: Annotated[
        str,
        Meta(description="Interpreter of workers that the local users can run; default: ours."),
    ] = ""
    outlives: Annotated[
        Duration, Meta(description="How long tasks and workers go on without the service; 10 min.")
    ] = OUTLIVES
    memory: Annotated[
        Size | None, Meta(description="Address space of each program; default: no limit.")
    ] = None
    file_size: Annotated[
        Size | None, Meta(description="Size of the largest file; default: no limit.")
    ] = None
    open_files: Annotated[
        Annotated[int, Meta(ge=16)] | None, Meta(description="Open files of each program.")
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=16)] | None, Meta(description="Processes of a local user.")
    ] = None
    cgroups: Annotated[
        bool, Meta(description="Whether the kernel holds workers to their processors.")
    ] = True


class LogSettings(TomlTable, frozen=True):
    """Logging to standard error, a line of JSON for each event."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least level that is written."),
    ] = "info"
    requests: Annotated[bool, Meta(description="Whether each request is a line.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """
    Configuration of a service.

    Parameters
    ----------
    name
        Of the site, the owner in its deals.
    folder
        Where all that it keeps lies, absolute.
    site
        The processors that it has, and what they cost.
    listen
        Where clients reach it.
    worker_listen
        Where workers on other machines reach it; None: there are none.
    names
        Further names and addresses by which clients call it.
    security
        See :data:`Security`.
    certificates
        None without security.
    sealed
        None: tasks cannot be sealed.
    owner
        The user whom everybody on this machine is, without security.
    users
        By name.
    only_listed_users
        Whether a certificate is no way in for users whom ``users`` does not name.
    scrapers
        Users who may read the metrics without being administrators.
    selling, tasks, limits, http, log
        See there.
    """

    name: str
    folder: Path
    site: SiteFacts
    listen: Address = Address("127.0.0.1", PORT)
    worker_listen: Address | None = None
    names: tuple[str, ...] = ()
    security: Security = "none"
    certificates: CertificateFiles | None = None
    sealed: SealingFiles | None = None
    owner: str = "owner"
    users: Mapping[str, UserSettings] = field(default_factory=dict)
    only_listed_users: bool = False
    selling: MarketSettings = field(default_factory=MarketSettings)
    scrapers: frozenset[str] = frozenset()
    tasks: TaskSettings = field(default_factory=TaskSettings)
    limits: EngineLimits = field(default_factory=EngineLimits)
    http: HttpLimits = field(default_factory=HttpLimits)
    log: LogSettings = field(default_factory=LogSettings)

    def local_user(self, user: str) -> str:
        """Return the local account of a user's tasks; empty: the service's own."""
        known = self.users.get(user)
        return known.local_user if known and known.local_user else self.tasks.local_user

    def scopes_of(self, user: str) -> frozenset[Scope]:
        """Return the scopes of a user's certificate."""
        known = self.users.get(user)
        if known is None:
            return frozenset() if self.only_listed_users else UserSettings().scopes
        return known.scopes

    def own_limits(self) -> dict[str, EngineLimits]:
        """Engine limits of the users who have their own, by name."""
        return {name: user.quota.within(self.limits) for name, user in self.users.items()}

    def own_http(self) -> dict[str, HttpLimits]:
        """HTTP limits of the users who have their own, by name."""
        return {name: user.quota.within(self.http) for name, user in self.users.items()}
