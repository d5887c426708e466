"""Configuration of a service: values that have been checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from bursar.market.trade_server import PROTOCOLS, NegotiationProtocol
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
        """Whether only this machine can reach the address."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketSettings:
    """
    Settings for selling processors.

    Parameters
    ----------
    protocols
        By which it sells; none: it sells nothing.
    must_buy
        Whether tasks run only under an agreement.
    price_shared
        Whether processors that are shared cost their posted price, too.
    credit
        Currency units that each user has from the start; None: as much as they like, on account.
    validity
        Seconds that a quote holds.
    floor
        Share of the price down to which it bargains.
    holds
        Whether a quote sets its processors aside.
    """

    protocols: tuple[NegotiationProtocol, ...] = PROTOCOLS
    must_buy: bool = False
    price_shared: bool = False
    credit: float | None = None
    validity: float = 600.0
    floor: float = 0.8
    holds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """
    A user who is known by name; what is not said here is as for all others.

    Parameters
    ----------
    local_user
        Account of this machine under which the tasks run; empty: that of all tasks.
    scopes
        What a certificate of the user's allows; tokens say it themselves.
    groups
        That the prices count the user among.
    credit
        Currency units that the user has from the start; None: as all others.
    quota
        What the user may have and ask.
    """

    local_user: str = ""
    scopes: frozenset[Scope] = frozenset({"submit", "read"})
    groups: frozenset[str] = frozenset()
    credit: float | None = None
    quota: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """
    Limits and environment of tasks.

    Parameters
    ----------
    local_user
        Account of this machine under which tasks of users run that have none of their own; empty:
        the service's own, whose files they can read then.
    python
        Interpreter of workers, which the accounts must be able to run; empty: the service's own.
    outlives
        Seconds for which tasks and their workers go on without the service.
    memory
        Bytes of address space of each program; None: no limit.
    file_size
        Bytes of the largest file a task may write; None: no limit.
    open_files, processes
        Of each program, and of all of one local user; None: the system's own limit.
    cgroups
        Whether workers are held to their processors by the kernel, where it can do that.
    """

    local_user: str = ""
    python: str = ""
    outlives: float = OUTLIVES
    memory: int | None = None
    file_size: int | None = None
    open_files: int | None = None
    processes: int | None = None
    cgroups: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """
    Parameters
    ----------
    level
        The least of what is written.
    requests
        Whether each request is a line.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: bool = False


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
    selling: MarketSettings = MarketSettings()
    scrapers: frozenset[str] = frozenset()
    tasks: TaskSettings = TaskSettings()
    limits: EngineLimits = field(default_factory=EngineLimits)
    http: HttpLimits = field(default_factory=HttpLimits)
    log: LogSettings = LogSettings()

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
