"""The interface to a local resource manager (LRM), with the rights of a plain user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

JobState = Literal["pending", "held", "running", "ended", "unknown"]
"""States of a job: waiting; on hold; on its processors; ended, in whatever way; and not known to
anybody."""

JobEnding = Literal[
    "completed", "failed", "cancelled", "timeout", "node-fail", "preempted", "rejected", "unknown"
]
"""Ways in which a job ends; rejected: by the scheduler, after the job had been accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerCapabilities:
    """
    Capabilities of a resource manager for a plain user.

    Parameters
    ----------
    arrays
        Whether one submission can be many equal jobs.
    node_ranges
        Whether a job can start on any number of nodes within a range.
    time_ranges
        Whether a job's time may be cut, down to a minimum, so that it starts sooner.
    start_estimates
        Whether the manager says when a job would start without submitting it.
    reservations
        Whether it reserves processors; only a trial shows whether this user may.
    begin
        Whether a job can be given an earliest start.
    shrinks
        Whether the jobs of one bundle may be given back one by one.
    accounting
        Whether the scheduler keeps records of finished jobs.
    """

    arrays: bool = False
    node_ranges: bool = False
    time_ranges: bool = False
    start_estimates: bool = False
    reservations: bool = False
    begin: bool = False
    shrinks: bool = False
    accounting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """
    A request for one job, or for several alike.

    Parameters
    ----------
    name
        Name for people: letters, digits, ``-`` and ``_``.
    processors
        Number for each job; with ``nodes``, on each node.
    seconds
        Wall-clock limit, seconds.
    script
        Body of the job script: lines of POSIX shell, without directives. It is run once for
        each job, on the first of its nodes, with BURSAR_ELEMENT set to the number of the job
        among those that are alike, from 0 on.
    folder
        Working directory, where output is kept too, on the machine that submits.
    nodes
        Fewest and most nodes; None: as many as the processors take.
    together
        Whether all processors must be on one node.
    least_seconds
        Seconds down to which the limit may be cut; None: no cut allowed.
    begin
        Earliest start, seconds since the epoch; None: any.
    reservation
        Name of the reservation in which the job runs; None: no reservation.
    """

    name: str
    processors: int
    seconds: float
    script: str
    folder: str
    copies: int = 1
    nodes: tuple[int, int] | None = None
    together: bool = False
    least_seconds: float | None = None
    begin: float | None = None
    reservation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """
    State of one job.

    Parameters
    ----------
    id
        Id that :meth:`ResourceManager.submit` returned.
    how
        Ending of the job; None before the end.
    reason
        Reason in the scheduler's own words: of the wait, of the ending, or of an unreadable
        listing.
    began, ended
        Seconds since the epoch; None: not yet, or unknown. A job that is running and has an end
        has stopped, is charged up to then, and its processors are not free yet.
    until
        When its wall-clock limit is over, seconds since the epoch; None where unknown.
    processors
        Number of processors held or requested; None where unknown.
    nodes
        Names of its nodes, where known.
    expected
        When the scheduler expects it to start, seconds since the epoch; None: it does not say.
    """

    id: str
    state: JobState
    how: JobEnding | None = None
    reason: str = ""
    began: float | None = None
    ended: float | None = None
    until: float | None = None
    processors: int | None = None
    nodes: tuple[str, ...] = ()
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """
    A node of a cluster.

    Parameters
    ----------
    allocated
        Number of processors that jobs hold.
    state
        State in the scheduler's own words.
    memory
        Bytes; None where unknown.
    """

    name: str
    processors: int
    allocated: int
    up: bool
    state: str
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """
    A job of any user, as a plain user sees it.

    Parameters
    ----------
    running
        Whether the job runs; otherwise the job waits.
    processors
        Number that it has or asks for.
    submitted
        Seconds since the epoch; None where unknown.
    began
        Start, seconds since the epoch; None for a waiting job.
    seconds
        Wall-clock limit; None: no limit, or unknown.
    held
        Whether the job is on hold and must not start.
    nodes
        Names of its nodes, while it runs and where known.
    """

    id: str
    running: bool
    processors: int
    submitted: float | None = None
    began: float | None = None
    seconds: float | None = None
    own: bool = False
    held: bool = False
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReservation:
    """
    Processors that are kept from other users for a time.

    Parameters
    ----------
    start, seconds
        Start, seconds since the epoch, and duration.
    own
        Whether this user may use the reservation.
    """

    name: str
    start: float
    seconds: float
    processors: int
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """
    A queue and its nodes at one time.

    Parameters
    ----------
    at
        Seconds since the epoch.
    nodes, jobs, windows
        Nodes, jobs and reservations. Jobs come in the order in which the scheduler considers them,
        running ones first.
    longest
        Most seconds that a job of this queue may ask for; None: no limit, or unknown.
    """

    at: float
    nodes: tuple[ClusterNode, ...]
    jobs: tuple[QueuedJob, ...] = ()
    windows: tuple[QueueReservation, ...] = ()
    longest: float | None = None
    up: bool = True

    @property
    def processors(self) -> int:
        """Number of processors of nodes that are up."""
        return sum(node.processors for node in self.nodes if node.up)

    @property
    def free(self) -> int:
        """Processors on which a job could start now."""
        return sum(node.processors - node.allocated for node in self.nodes if node.up)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """
    Usage of a job by the scheduler's record.

    Parameters
    ----------
    processors, seconds
        Number of processors held, and the seconds for which they were held.
    how
        Ending of the job; None while the job runs.
    is_whole
        Whether the seconds hold the times before the job was put back into the queue, if it was.
    """

    id: str
    processors: int
    seconds: float
    how: JobEnding | None
    is_whole: bool = False


class ResourceManager(Protocol):
    """
    A local resource manager.

    Every method raises :class:`bursar.model.errors.SiteError`: in the scheduler's own words, and
    with a hint what to change, when the scheduler says no; with ``transient`` set when it does
    not answer, or answers nonsense: then nobody knows, and asking again is right.
    """

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the manager."""

    async def submit(self, request: JobRequest) -> list[str]:
        """Submit jobs and return an id for each; a SiteError means that none was accepted."""

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs by one command; jobs that have ended already are no error."""

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """
        Report where jobs stand, by one command for all and one more for those not listed.

        Each id has an answer: an unreadable one spoils no other, and a job that is no longer
        listed is looked up in the records; one in no record is ``"unknown"``, never ``"ended"``.
        """

    async def queue(self) -> QueueState:
        """Return the queue with nodes, jobs and reservations."""

    async def expected_start(self, request: JobRequest) -> float | None:
        """Expected start of a request, seconds since the epoch; None where unknown."""

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Reserve processors for this user; start in seconds since the epoch."""

    async def unreserve(self, name: str) -> None:
        """Delete a reservation; a missing one is no error."""

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return usage of jobs by the scheduler's record; jobs without a record are left out."""
