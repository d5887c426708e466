"""
What the parts of the service share: clock, senders, errors, kinds of records and pools.

``HTTP -> Engine -> Journal -> Store``, with billing, which charges, and a provisioner, which starts
workers. All parts run on one loop, read the time from a clock that was passed in and draw random
bytes from a source that was passed in, so that a simulation can run the whole service.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from bursar.model.allocation import Allocation
from bursar.sites.protocol import HeldProcessors
from bursar.worker.launch import Endpoint

Clock = Callable[[], float]
"""Seconds since the epoch, never going back while the service lives."""

Entropy = Callable[[int], bytes]
"""Takes a number of bytes; returns that many random bytes, fit for secrets."""

Scope = Literal["submit", "read", "sell", "admin"]

SCOPES: tuple[Scope, ...] = ("submit", "read", "sell", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """
    A user, and what the user may do: the owner of a token, or the sender of a request.
    """

    user: str
    scopes: frozenset[str]


class ServiceError(Exception):
    """
    A client's request cannot be granted; becomes a problem document.

    Parameters
    ----------
    kind
        Last part of the problem's type: ``"not-found"``, ``"too-large"``, ``"over-quota"``.
    status
        HTTP status: 4xx; 507 for a full disk, 503 while draining or starting.
    detail
        Description of this case, one line.
    where
        Field of the request; empty: no single one.
    retry_after
        Seconds after which the request may be granted; None: waiting does not help.
    allow
        Methods that the address has, for 405.
    """

    def __init__(
        self,
        kind: str,
        status: int,
        detail: str,
        *,
        where: str = "",
        retry_after: float | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.status = status
        self.detail = detail
        self.where = where
        self.retry_after = retry_after
        self.allow = allow


# Kinds of records, by participant.
ENGINE_KINDS = range(1, 20)
BILLING_KINDS = range(20, 40)
PROVISIONER_KINDS = range(40, 50)
TOKEN_KINDS = range(50, 60)


# Paying.

SHARED = "shared"
"""
Pool of the processors that are not sold; ``"shared:USER"`` for a user with a local account.
"""

_SHARED_BY_ACCOUNT = f"{SHARED}:"


def is_shared(pool: str) -> bool:
    """Return whether a pool has shared processors, which belong to no agreement."""
    return pool == SHARED or pool.startswith(_SHARED_BY_ACCOUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemand:
    """
    Workers that an agreement is owed.

    Parameters
    ----------
    start, until
        Start and end of the agreement, seconds since the epoch.
    """

    user: str
    processors: int
    start: float
    until: float


# The engine.


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBatch:
    """
    Results after a cursor.

    Parameters
    ----------
    lines
        JSON of an :class:`bursar.remote.messages.Result` each, without line ends.
    next, done
        See :class:`bursar.remote.messages.ResultPage`.
    """

    lines: Sequence[bytes]
    next: int
    done: bool


@runtime_checkable
class ReattachableSite(Protocol):
    """A site whose processors outlive the service and can be adopted after a restart."""

    async def adopt(
        self,
        pilots: Sequence[Allocation],
        endpoints: Mapping[str, Endpoint],
        notify: Callable[[str], None],
    ) -> Mapping[str, HeldProcessors]:
        """
        Reattach processors held before a restart; return the reattached ones by pilot name.

        Parameters
        ----------
        pilots
            Pilots that were held before the restart.
        endpoints
            Addresses to which their workers connect, by the names of the pilots.
        notify
            Called with one line for people on what becomes of each pilot.

        Raises
        ------
        SiteError
            When the site cannot be asked.
        """

    async def end_others(self, pilots: Collection[str]) -> None:
        """End all processors held before the restart, except for the named pilots."""

    async def leave(self) -> None:
        """Detach from the held processors, which stay as the service stops."""
