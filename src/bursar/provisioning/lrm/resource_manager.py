"""The interface to a local resource manager (LRM), as a plain user has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

JobState = Literal["pending", "held", "running", "ended", "unknown"]
"""Waiting; waiting and not to be started; on its processors; at its end, however it came; and
nobody can say."""

JobEnding = Literal[
    "completed", "failed", "cancelled", "timeout", "node-fail", "preempted", "rejected", "unknown"
]
"""Ways in which a job ends; rejected: by the scheduler, after it had taken it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerCapabilities:
    """
    What a manager can do for a plain user.

    Parameters
    ----------
    arrays
        Many equal jobs by one submission.
    node_ranges
        A job that starts on as many nodes as there are, between two numbers.
    time_ranges
        A job whose time may be cut, down to a least, so that it starts sooner.
    start_estimates
        Says when a job would start, without submitting it.
    reservations
        Keeps processors for a time to come. Whether this user may is known by trying.
    begin
        Lets a job wait for a moment before it may start.
    shrinks
        Takes nodes from a job that runs.
    accounting
        Knows of jobs that are gone.
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
    A job, or several that are alike.

    Parameters
    ----------
    name
        For people; letters, digits, ``-`` and ``_``.
    processors
        Of each job; with ``nodes``, on each node.
    seconds
        Wall-clock limit.
    script
        Body of the job script: lines of POSIX shell, without directives. It is run once for
        each job, on the first of its nodes, with BURSAR_ELEMENT set to the number of the job
        among those that are alike, from 0 on.
    folder
        Where it is started and what it prints is kept; on the machine that submits.
    copies
        How many jobs.
    nodes
        Fewest and most nodes; None: as many as the processors take.
    together
        Whether all processors have to be of one node.
    least_seconds
        The limit may be cut down to this; None: not at all.
    begin
        Seconds since the epoch before which it is not to start; None: none.
    reservation
        That it runs in; None: none.
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
    What is known of one job.

    Parameters
    ----------
    id
        As :meth:`ResourceManager.submit` gave it.
    state
        Where it stands.
    how
        How it ended; None while it has not.
    reason
        In the scheduler's own words: why it waits, or how it ended, or what was wrong with
        what was said of it.
    began, ended
        Seconds since the epoch; None: not yet, or unknown. A job that is running and has an end
        has stopped, is charged up to then, and its processors are not free yet.
    until
        When its wall-clock limit is over, seconds since the epoch; None where unknown.
    processors
        That it has, or asks for; None where unknown.
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
    Parameters
    ----------
    name
        Of the node.
    processors
        That it has, and that jobs hold.
    allocated
        Of these, held by jobs.
    up
        Whether jobs can start on it.
    state
        In the scheduler's own words.
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
    A job of anybody's, as a plain user sees it.

    Parameters
    ----------
    id
        Of the scheduler.
    running
        Or waiting.
    processors
        That it has or asks for.
    submitted
        Seconds since the epoch; None where unknown.
    began
        The same; None while it waits.
    seconds
        Its wall-clock limit; None: without, or unknown.
    own
        Whether it is this user's.
    held
        Whether it is not to be started.
    nodes
        Names, while it runs and where they are known.
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
    Processors that are kept from others for a time.

    Parameters
    ----------
    name
        Of the reservation.
    start, seconds
        Seconds since the epoch, and how long.
    processors
        How many.
    own
        Whether this user may use it.
    """

    name: str
    start: float
    seconds: float
    processors: int
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """
    A queue and its nodes at one moment.

    Parameters
    ----------
    at
        Seconds since the epoch.
    nodes, jobs, windows
        What there is. Jobs in the order in which the scheduler considers them, running ones
        first.
    longest
        Most seconds that a job of this queue may ask for; None: no limit, or unknown.
    up
        Whether the queue starts jobs.
    odd
        What was said and could not be read, a line each, for the log.
    """

    at: float
    nodes: tuple[ClusterNode, ...]
    jobs: tuple[QueuedJob, ...] = ()
    windows: tuple[QueueReservation, ...] = ()
    longest: float | None = None
    up: bool = True
    odd: tuple[str, ...] = ()

    @property
    def processors(self) -> int:
        """Of nodes that are up."""
        return sum(node.processors for node in self.nodes if node.up)

    @property
    def free(self) -> int:
        """Processors on which a job could start now."""
        return sum(node.processors - node.allocated for node in self.nodes if node.up)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """
    What a job took, by the scheduler's own record.

    Parameters
    ----------
    id
        Of the job.
    processors, seconds
        That it held, and how long.
    how
        It ended; None: it runs.
    is_whole
        Whether the seconds hold the times before the job was put back into the queue, if it was.
    """

    id: str
    processors: int
    seconds: float
    how: JobEnding | None
    is_whole: bool = False

    @property
    def cpu_seconds(self) -> float:
        """Processor-seconds."""
        return self.processors * self.seconds


class ResourceManager(Protocol):
    """
    A local resource manager.

    Every method raises :class:`bursar.model.errors.SiteError`: in the scheduler's own words, and
    with a hint what to change, when the scheduler says no; with ``transient`` set when it does
    not answer, or answers nonsense: then nobody knows, and asking again is right.
    """

    @property
    def abilities(self) -> ManagerCapabilities:
        """What it can do."""

    async def submit(self, request: JobRequest) -> list[str]:
        """Hands in jobs; an id for each. When it raises SiteError, none was taken."""

    async def cancel(self, ids: Sequence[str]) -> None:
        """Ends jobs, by one command for all; such as have ended already are no error."""

    async def look(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """
        Where jobs stand, by one command for all, and one more for those that are not listed.

        An answer for each id: an odd one spoils no other, and one that is no longer listed is
        looked up in the records; what is in none is ``"unknown"``, never ``"ended"``.
        """

    async def queue(self) -> QueueState:
        """The queue, its nodes and its reservations."""

    async def expected_start(self, request: JobRequest) -> float | None:
        """When a request would start, seconds since the epoch; None where nobody can say."""

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Keeps processors for this user; start in seconds since the epoch."""

    async def unreserve(self, name: str) -> None:
        """Keeps them no more; of one that is not there nothing is said."""

    async def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """A job that runs keeps these nodes only."""

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """What jobs took, by the scheduler's own record; such as it does not know are left out."""
