"""Configuration of a service, of its HTTP interface, and of single users: checked values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.quantities import Credit, Duration, Price, Share, Size, Use
from bursar.market.trade_server import PROTOCOLS, NegotiationProtocol
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.surroundings import ContainerPolicy
from bursar.service.engine.engine_limits import EngineLimits, Number
from bursar.service.interfaces import Scope

# Settings of the HTTP interface: sizes, rates, timeouts and numbers of connections.

MiB = 1 << 20


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Limits that the service sets its clients.

    Parameters
    ----------
    json_bytes, submission_bytes, file_bytes, archive_bytes
        Bytes of one request's body: in general; of a submission; of a file; of a packed archive.
    unpacked_bytes, members, ratio
        Limits of an archive: bytes of all unpacked files, their number, and the ratio of unpacked
        to packed bytes (not applied to small archives).
    instance_bytes
        Bytes of all files that a client may put into one instance.
    user_bytes
        Bytes of all that a user's instances keep on disk: files, working directories and output of
        tasks. Beyond it the user's uploads are refused; tasks may go on writing.
    spare_bytes
        Bytes of the disk that uploads leave free. The journal, and with it every task and result,
        needs 64 MiB; twice as much is the least that makes sense here.
    buffered_bytes
        Bytes of all request bodies that are being read into memory; half of them for one user.
    answered_bytes
        Bytes of all replies with results that wait in memory to be read; half of them, or a single
        reply, for one user.
    header_bytes
        Bytes of a request's line and headers.
    header_seconds
        Seconds within which these must have arrived.
    body_rate
        Bytes per second at which a body must arrive, on average over ``body_seconds``.
    body_seconds
        Seconds between two checks of the rate.
    idle_seconds
        Seconds after which a connection without a request is closed.
    send_seconds
        Seconds within which a client must read some of what is sent to it.
    connections, connections_per_address
        Connections at a time, in all and from one subnet.
    rate, burst
        Requests per second of one user, and requests at once.
    unauthenticated_rate, unauthenticated_burst
        Unauthenticated requests per second of one address, and at once.
    failure_rate, failure_burst
        Failed authentications per second of one address, and at once.
    requests, streams
        Requests that a user may have under way at a time; those of them that are streams.
    stream_seconds
        Seconds after which a stream ends; the client then opens another one.
    heartbeat
        Seconds after which a silent stream sends a heartbeat.
    """

    json_bytes: int = MiB
    submission_bytes: int = 32 * MiB
    file_bytes: int = 4096 * MiB
    archive_bytes: int = 1024 * MiB
    unpacked_bytes: int = 8192 * MiB
    members: int = 100_000
    ratio: int = 100
    instance_bytes: int = 16_384 * MiB
    user_bytes: int = 65_536 * MiB
    spare_bytes: int = 256 * MiB
    buffered_bytes: int = 256 * MiB
    answered_bytes: int = 256 * MiB
    header_bytes: int = 32 * 1024
    header_seconds: float = 10.0
    body_rate: float = 1024.0
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    send_seconds: float = 60.0
    connections: int = 4096
    connections_per_address: int = 2048
    rate: float = 1000.0
    burst: float = 2000.0
    unauthenticated_rate: float = 50.0
    unauthenticated_burst: float = 200.0
    failure_rate: float = 0.5
    failure_burst: float = 20.0
    requests: int = 256
    streams: int = 64
    stream_seconds: float = 600.0
    heartbeat: float = 15.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")


# Limits of one user, where they differ from those of all users.

L = TypeVar("L", EngineLimits, HttpLimits)

Pace = Annotated[float, Meta(gt=0)]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A user's own limits; None: as for all others.

    Parameters
    ----------
    instances, unfinished, tasks, task_bytes, result_bytes
        See :class:`~bursar.service.engine.engine_limits.EngineLimits`.
    instance_bytes, user_bytes, rate, burst, requests, streams
        See :class:`~bursar.service.config.HttpLimits`.
    """

    instances: Number | None = None
    unfinished: Number | None = None
    tasks: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    task_bytes: Number | None = None
    result_bytes: Number | None = None
    instance_bytes: Number | None = None
    user_bytes: Number | None = None
    rate: Pace | None = None
    burst: Annotated[float, Meta(ge=1)] | None = None
    requests: Number | None = None
    streams: Number | None = None

    def within(self, limits: L) -> L:
        """Return the user's limits, given those of all users."""
        own = {key: value for key, value in msgspec.structs.asdict(self).items() if value}
        given = {key: own[key] for key in limits.__struct_fields__ if key in own}
        return msgspec.structs.replace(limits, **given)


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


class AuctionSettings(TomlTable, frozen=True, kw_only=True):
    """Processors that the service auctions again and again."""

    rule: Annotated[
        Literal["english", "dutch", "first-price", "vickrey", "share"],
        Meta(description="Kind of auction."),
    ]
    processors: Annotated[int, Meta(description="Number of processors of the lot.", ge=1)]
    duration: Annotated[Duration, Meta(description="For how long the lot is sold.")]
    every: Annotated[
        Duration, Meta(description="Time from one opening to the next; whole multiples since 1970.")
    ]
    lasts: Annotated[
        Duration, Meta(description="For how long bids are taken; the lot begins then.")
    ]
    reserve: Annotated[
        Price | None,
        Meta(
            description="Least price at which the lot is sold; default: the floor of the posted "
            "price. Shares have none."
        ),
    ] = None
    step: Annotated[
        Share,
        Meta(description="Step of open prices, as a share of the reserve; 0.05."),
    ] = 0.05
    first: Annotated[
        float,
        Meta(description="Opening price of a Dutch auction, as a multiple of the reserve.", ge=1),
    ] = 2.0

    def __post_init__(self) -> None:
        for key in ("duration", "every", "lasts"):
            if not getattr(self, key) > 0:
                raise InputError("must be positive", where=key)
        if self.lasts >= self.every:
            raise InputError("must be shorter than every", where="lasts")
        if not self.step > 0:
            raise InputError("must be positive", where="step")
        if self.rule == "share" and self.reserve is not None:
            raise InputError("shares have no reserve", where="reserve")

    @property
    def reserve_price(self) -> float | None:
        """Least price, currency units per processor-second; None: the floor of the posted price."""
        return None if self.reserve is None else self.reserve[0]


class ExchangeSettings(TomlTable, frozen=True, kw_only=True):
    """Exchange at which users sell processors of services to each other, cleared on a schedule."""

    rule: Annotated[
        Literal["double", "share"],
        Meta(description="Double auction, at one price for all, or proportional shares; double."),
    ] = "double"
    every: Annotated[
        Duration,
        Meta(description="Time between two clearings; whole multiples since 1970; 1 h."),
    ] = 3_600.0
    confirm: Annotated[
        Duration,
        Meta(
            description="Time from a clearing to the processors' start, within which sellers "
            "confirm; 10 min."
        ),
    ] = 600.0
    duration: Annotated[Duration, Meta(description="For how long processors are traded; 1 h.")] = (
        3_600.0
    )
    k: Annotated[
        Share,
        Meta(
            description="Where the double auction's price lies between the prices best for buyers "
            "(0) and for sellers (1)."
        ),
    ] = 0.5

    def __post_init__(self) -> None:
        for key in ("every", "confirm", "duration"):
            if not getattr(self, key) > 0:
                raise InputError("must be positive", where=key)


class SaleQuota(TomlTable, frozen=True, kw_only=True):
    """Use that customers may agree on in a period."""

    amount: Annotated[Use, Meta(description="Use that may be agreed on in a period.")]
    every: Annotated[
        Duration, Meta(description="Period; periods begin at whole multiples of it since 1970.")
    ]
    users: Annotated[frozenset[str], Meta(description="Users who have the amount together.")] = (
        frozenset()
    )
    groups: Annotated[
        frozenset[str],
        Meta(
            description="Groups whose members have the amount together; default, without users, "
            "too: each user has the amount alone."
        ),
    ] = frozenset()

    def __post_init__(self) -> None:
        for key in ("amount", "every"):
            if not getattr(self, key) > 0:
                raise InputError("must be positive", where=key)

    @property
    def is_shared(self) -> bool:
        """Whether several users have the amount together."""
        return bool(self.users or self.groups)

    def counts(self, user: str, groups: frozenset[str]) -> bool:
        """Return whether what a user of some groups buys counts."""
        return not self.is_shared or user in self.users or bool(self.groups & groups)


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
    reserve: Annotated[
        Price | None,
        Meta(description="Price below which nothing is sold, by whatever rule; default: none."),
    ] = None
    buyers: Annotated[
        frozenset[str],
        Meta(description="Users who may buy; default, without buyer_groups, too: everybody."),
    ] = frozenset()
    buyer_groups: Annotated[frozenset[str], Meta(description="Groups whose members may buy.")] = (
        frozenset()
    )
    processors: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most processors that are sold at once; default: all."),
    ] = None
    processors_per_user: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most processors that are sold to one user at once; default: all."),
    ] = None
    quotas: Annotated[
        tuple[SaleQuota, ...],
        Meta(description="Use that users may agree on in a period."),
    ] = ()
    holds: Annotated[bool, Meta(description="Whether a quote sets its processors aside.")] = False
    penalty: Annotated[
        Share,
        Meta(
            description="What the service pays for agreed time that it does not deliver, as a "
            "share of the price of that time; 0."
        ),
    ] = 0.0
    auctions: Annotated[
        tuple[AuctionSettings, ...],
        Meta(description="Auctions that are held on a schedule."),
    ] = ()
    exchange: Annotated[
        ExchangeSettings | None,
        Meta(description="Exchange that the service holds; default: none."),
    ] = None

    def __post_init__(self) -> None:
        if not self.validity:
            raise InputError("must be positive", where="validity")
        msgspec.structs.force_setattr(self, "protocols", tuple(dict.fromkeys(self.protocols)))

    @property
    def reserve_price(self) -> float:
        """Price below which nothing is sold, currency units per processor-second; 0: none."""
        return 0.0 if self.reserve is None else self.reserve[0]


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


class GroupSettings(TomlTable, frozen=True):
    """A group of users, a project: how much of the shared processors it gets when others wait."""

    weight: Annotated[
        float,
        Meta(
            description="Share of the processors beside other groups whose tasks wait; 1.",
            gt=0,
            le=1e6,
        ),
    ] = 1.0


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
    containers: Annotated[
        ContainerPolicy,
        Meta(
            description="Containers that tasks may ask for: all, those without binds and options "
            "of their own, or none."
        ),
    ] = "allowed"
    forecasts: Annotated[
        bool, Meta(description="Whether the end and cost of instances are forecast.")
    ] = True
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
    sealed
        None: tasks cannot be sealed.
    certificates
        None without security.
    owner
        The user whom everybody on this machine is, without security.
    only_listed_users
        Whether a certificate is no way in for users whom ``users`` does not name.
    groups
        Weights of groups; users of no group that has one count one each.
    scrapers
        Users who may read the metrics without being administrators.
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
    groups: Mapping[str, GroupSettings] = field(default_factory=dict)
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

    def project_of(self, user: str) -> tuple[str, float]:
        """
        Return the project of a user and the project's weight.

        The project is the heaviest of the user's groups that have a weight; a user of no such
        group is a project of one.
        """
        known = self.users.get(user)
        weighted = self.groups.keys() & known.groups if known is not None else set[str]()
        if not weighted:
            return f"user {user}", 1.0
        group = max(weighted, key=lambda name: (self.groups[name].weight, name))
        return f"group {group}", self.groups[group].weight

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
