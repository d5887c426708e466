"""
Protocols between the parts of the service.

``HTTP -> Engine -> Journal -> Store``, with billing, which charges, and a provisioner, which starts
workers. All parts run on one loop, read the time from a clock that was passed in and draw random
bytes from a source that was passed in, so that a simulation can run the whole service.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from bursar.model.allocation import Allocation, AllocationLoad
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.remote import messages as api
from bursar.remote.admin_messages import Overview
from bursar.sites.protocol import HeldProcessors
from bursar.store import Position, RecordOwner
from bursar.worker.launch import Endpoint, PilotAdmission

Clock = Callable[[], float]
"""Seconds since the epoch, never going back while the service lives."""

Entropy = Callable[[int], bytes]
"""Takes a number of bytes; returns that many random bytes, fit for secrets."""

Scope = Literal["submit", "read", "sell", "admin"]

SCOPES: tuple[Scope, ...] = ("submit", "read", "sell", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """
    The authenticated sender of a request.

    Parameters
    ----------
    user
        Name of the user at this service.
    scopes
        Scopes that the request may use.
    means
        How the sender was authenticated: ``"token"``, ``"certificate"`` or ``"loopback"``.
    """

    user: str
    scopes: frozenset[str]
    means: str


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


# The journal.


class ServiceJournal(Protocol):
    """
    Records, durable together: all that is appended between two syncs shares the second.

    What is appended and killed between two ``await`` is there whole after a crash, or not at all,
    and never without what came before it. Nothing that was appended is taken back while the
    service lives: where it cannot be written it waits, unacknowledged, so that what is in memory
    is always what is on disk and what will be.
    """

    def register(self, kinds: Sequence[int], owner: RecordOwner) -> None:
        """Register the owner of some kinds of records, before the journal is opened."""

    async def open(self) -> list[str]:
        """Restore every record to its owner; return lines on what had to be repaired."""

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Position:
        """
        Append a record, which is durable once :meth:`durable` has returned.

        Parameters
        ----------
        essential
            Whether the record belongs to accepted work (a result, a charge, an end) and is
            written even when the disk is full for new work, to room reserved for such records.

        Raises
        ------
        ServiceError
            507, when the disk is full: nothing was appended. Never for an essential record.
        """

    async def durable(self) -> None:
        """
        Wait until all that was appended and killed so far survives a power cut.

        Raises
        ------
        ServiceError
            507, when even the reserve is used up: what was appended stays, and the next call
            tries again to write it. Owners of records undo nothing, and acknowledge nothing.
            503, when the disk has failed: nothing will be written any more, see :meth:`failed`.
        """

    async def read(self, position: Position) -> bytes:
        """
        Return the payload of a living record, durable or not.

        Raises
        ------
        KeyError
            When no living record is there.
        BursarError
            When the record is damaged.
        """

    def kill(self, position: Position) -> None:
        """Kill a record, which is durable like an append; killing a dead record changes nothing."""

    async def failed(self) -> str:
        """Wait until the disk has failed and return the reason: the service must end then."""

    @property
    def size(self) -> int:
        """Size of the database in bytes, without its write-ahead log."""

    @property
    def problem(self) -> str:
        """Why new work cannot be written; empty: it can."""

    async def close(self) -> None:
        """Write and sync what is left."""


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


class UsageBilling(Protocol):
    """Decides what may run, and charges what was used."""

    def pool_of(self, user: str, agreement: str) -> str | Refusal:
        """
        Return the pool of workers that run an instance's tasks, or why no pool may.

        Parameters
        ----------
        agreement
            Agreement of the instance; empty: shared processors.
        """

    def may_run(self, pool: str, user: str, now: float) -> float | Refusal:
        """Return for how many seconds a task may run in a pool, or why no task of the user may."""

    def width(self, pool: str, user: str) -> int | None:
        """Return the processors that a task in a pool may hold; None: as many as the site has."""

    def used(self, pool: str, user: str, what: str, processors: int, seconds: float) -> None:
        """Charge the usage of shared processors that have a price; in the journal on return."""

    def came_to(self, user: str, what: str) -> int:
        """Return the cost so far of a user's instance on shared processors, in micro-units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDemand:
    """
    Workers that an agreement is owed.

    Parameters
    ----------
    user
        User whose tasks the workers run.
    processors
        Number of processors of all these workers.
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


class ExecutionEngine(Protocol):
    """
    Instances, tasks and results of all users.

    Every method that changes something returns when the change is durable. A handle of another
    user raises ServiceError 404, like a handle that never existed.
    """

    async def create(self, user: str, new: api.NewInstance, key: str) -> api.InstanceInfo:
        """Make an instance, or return the one that was made with the same key. Empty key: none."""

    def instances(self, user: str) -> list[api.InstanceInfo]:
        """Return the instances of a user."""

    def instance(self, user: str, handle: str) -> api.InstanceInfo:
        """Return one instance of a user."""

    async def destroy(self, user: str, handle: str) -> None:
        """Cancel an instance's tasks and delete the instance with all results and files."""

    async def submit(
        self, user: str, handle: str, tasks: Sequence[api.TaskSpec], key: str
    ) -> api.Submitted:
        """Add tasks; repeating a key adds nothing."""

    def tasks(self, user: str, handle: str, after: int, limit: int) -> api.TaskPage:
        """Return the states of tasks, from number ``after`` on."""

    async def cancel(
        self,
        user: str,
        handle: str,
        tasks: Sequence[int] | None,
        grace: float | None = None,
        *,
        unstarted: bool = False,
    ) -> api.Cancelled:
        """Cancel tasks, or only those that no worker has; a cancelled task gets a result, too."""

    async def results(
        self, user: str, handle: str, after: int, limit: int, wait: float
    ) -> ResultBatch:
        """Return results after a cursor; wait so many seconds for the first if there is none."""

    async def forget(self, user: str, handle: str, through: int) -> None:
        """Forget results up to a cursor, which the client has stored."""

    def changes(self, user: str, handle: str) -> AsyncIterator[api.InstanceInfo]:
        """Yield an instance after each change, at a limited rate."""

    def demand(self) -> Mapping[str, ProcessorDemand]:
        """Return the demand of tasks for processors, by pool."""

    def overview(self) -> Overview:
        """Return the state of the whole service, for administrators."""


# Protocols of the parts of the service that the worker provisioner uses.


class WorkerAdmission(PilotAdmission, Protocol):
    """Admits workers by lease; the worker server implements this protocol."""

    def expect(self, lease: str, *, pool: str, site: str, processors: int) -> str:
        """Admit a lease's workers from now on; return their token, the same each time."""

    def gathered(self) -> None:
        """Note that all restored leases have been announced by :meth:`expect`."""

    def dismiss(self, lease: str) -> None:
        """Give no more tasks to a lease's workers, and let each leave when no task is left."""

    def leases(self) -> Mapping[str, AllocationLoad]:
        """Return the occupancy of connected workers by lease."""


class TaskDemand(Protocol):
    """Demand of waiting and running tasks for processors."""

    def demand(self) -> Mapping[str, ProcessorDemand]:
        """Return the demand of tasks for processors, by pool."""


class AgreementDemand(Protocol):
    """Demand of agreements for workers."""

    def pools(self, now: float) -> Mapping[str, WorkerDemand]:
        """Return the workers that agreements want now or soon, by pool."""

    def ready(self, pool: str, processors: int) -> None:
        """Note how many processors of an agreement have workers now."""


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
