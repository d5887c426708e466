"""The work that waits for processors, and how those of batch sites are acquired and released."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Shares = TypeVar("Shares", float, "NDArray[np.float64]")

# The work that waits for processors, in numbers.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorDemand:
    """
    The work that waits for processors.

    Parameters
    ----------
    tasks
        Tasks that could start now if there were processors.
    processors
        Processors that these tasks would hold.
    widest
        Processors of the widest of them.
    work
        Processor-seconds of these at speed 1; those without an estimate count as the mean of
        what ended so far, or a guess.
    longest
        Seconds of the longest of them at speed 1, likewise.
    running
        Processors that tasks hold now.
    later
        Tasks that cannot start yet: others come before them, or they are withheld.
    withheld
        Whether any of the later tasks is withheld, by a service that has restarted or drains.
        Which processors these tasks need is unknown meanwhile: requests that wait in a queue are
        kept for them, and none are made.
    """

    tasks: int = 0
    processors: int = 0
    widest: int = 0
    work: float = 0.0
    longest: float = 0.0
    running: int = 0
    later: int = 0
    withheld: bool = False


# How the processors of a batch-scheduled site are acquired and released.

Acquisition = Literal[
    "adaptive",
    "optimal",
    "one-at-a-time",
    "all-at-once",
    "additive",
    "exponential",
    "array",
    "node-range",
]
"""What requests are made for so many processors: ours, the five of DRP section 3.1, one job array,
and one job over a range of nodes."""

ACQUISITIONS: tuple[Acquisition, ...] = get_args(Acquisition)

Release = Literal["adaptive", "idle", "no-tasks", "queue"]
"""When processors go back: distributed, when a worker was idle for a time; centralised, when
there are no tasks, or fewer than so many are queued (DRP section 3.1). Ours: as the first, but at
once when no task waits and none will come."""

Manager = Literal["slurm", "gridengine", "pbs", "lsf", "flux"]
"""Local resource managers."""

PATIENCE = 60.0
"""Seconds for which a pilot looks for a run that it has lost; then it ends by itself."""

STARTING = 30.0
"""
Seconds that are added to what tasks ask for in a batch queue, or of another Bursar: workers start
in this time.
"""

ENDING = 30.0
"""
Seconds, at the most, that a pilot takes to see that its run is lost and, once it looks no more,
to end, and its scheduler to count it as ended: a connection that is just silent is given up after
15 s, and Slurm kills after 30 s (KillWait) what does not end when it is told to.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquisitionPolicy:
    """
    The rules by which a pool acquires and releases processors of one site.

    Parameters
    ----------
    acquisition
        Rule by which requests are made.
    fewest, most
        Processors that are held at the least while a campaign runs, and at the most; None: all
        that the site has.
    shortest, longest
        Seconds of one allocation.
    trigger
        Waiting tasks from which on more processors are acquired.
    release
        When they go back.
    idle
        Seconds for which a worker is idle before it goes, with ``"adaptive"`` and ``"idle"``.
    below
        With ``"queue"``: processors go back when fewer tasks than this are queued.
    max_pending
        Requests that wait in the site's queue at a time, at most.
    max_racing
        Of these, such as others elsewhere may take the place of.
    probe_every
        Seconds between looks at the queue while nothing of ours changes there, and for which a
        request waits at the least before another takes its place in what has become free.
    """

    acquisition: Acquisition = "adaptive"
    fewest: int = 0
    most: int | None = None
    shortest: float = 60.0
    longest: float = 3600.0
    trigger: int = 1
    release: Release = "adaptive"
    idle: float = 30.0
    below: int = 1
    max_pending: int = 64
    max_racing: int = 2
    probe_every: float = 30.0

    def __post_init__(self) -> None:
        if self.acquisition not in ACQUISITIONS:
            raise ValueError(f"unknown acquisition {self.acquisition!r}")
        if self.fewest < 0:
            raise ValueError(f"fewest must not be negative, got {self.fewest}")
        if self.most is not None and self.most < max(1, self.fewest):
            raise ValueError(f"most must be at least 1 and fewest, got {self.most}")
        if not 0 < self.shortest <= self.longest < math.inf:
            raise ValueError(
                f"0 < shortest <= longest must hold, got {self.shortest} and {self.longest}"
            )
        for name in ("trigger", "below", "max_pending"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("idle", "probe_every", "max_racing"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStartUp:
    """
    Times until workers joined, as earlier runs have seen them.

    They count from the purchase of a cloud's machine, or from the begin of a batch job.

    Parameters
    ----------
    median, high
        Median and 90 % quantile, seconds.
    count
        Starts that they rest on. Positive.
    """

    median: float
    high: float
    count: int

    def __str__(self) -> str:
        starts = "start" if self.count == 1 else f"{self.count} starts"
        return f"starts in {self.median:.3g} s, 90 % within {self.high:.3g} s (last {starts})"


class WorkerStarts(NamedTuple):
    """
    Distribution of the time from when processors are held until their workers take tasks.

    Most workers start soon, and some late: times grow with the square of the share of starts that
    are sooner, so that half of them take a quarter of the way from the soonest to the latest.

    Parameters
    ----------
    soonest, latest
        Seconds; not negative, and not falling.
    """

    soonest: float
    latest: float

    @classmethod
    def of_seen(cls, learned: LearnedStartUp) -> "WorkerStarts":
        """Return the distribution with the median and the 90 % quantile that were seen."""
        # 0.5 ** 2 and 0.9 ** 2 of the range lie between the soonest and these.
        reach = (learned.high - learned.median) / (0.9**2 - 0.5**2)
        soonest = max(learned.median - 0.5**2 * reach, 0.0)
        return cls(soonest, soonest + reach)

    def at(self, share: Shares) -> Shares:
        """Return the seconds within which a share of all workers start, or each of some shares."""
        return self.soonest + (self.latest - self.soonest) * share**2


AT_ONCE = WorkerStarts(0.0, 0.0)
"""Workers that take tasks as soon as processors are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScheduler:
    """
    Describes a site's batch scheduler, and how jobs are submitted there.

    Parameters
    ----------
    queue
        Partition or queue; None: the scheduler's default.
    account, qos
        Account charged for jobs, and quality of service of jobs; None: the user's default.
    directives
        Further ones, each as in a job script without its ``#SBATCH`` or the like.
    setup
        Lines of shell that a job runs first, such as loading modules.
    environment
        Variables of the scheduler's commands, such as SLURM_CONF.
    ssh
        Login node on which the commands are run, as ssh knows it; None: this machine.
    python
        Interpreter on the nodes that has this package; None: the one that runs this.
    folder
        Where files of pilots lie, on this machine and on the nodes; None: in the run's folder.
    reach
        Host or address under which the nodes find this machine; None: its name.
    learned
        How long workers took to join after the begin of their jobs; None: no run has seen it.
    """

    manager: Manager
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    ssh: str | None = None
    python: str | None = None
    folder: str | None = None
    reach: str | None = None
    learned: LearnedStartUp | None = field(default=None, compare=False)


# Plain machines that are reached by ssh.


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHost:
    """
    Describes one machine of a site of kind ``"ssh"``.

    Parameters
    ----------
    name
        The host as ssh knows it, ``"user@host"`` or ``"host"``.
    processors, memory
        Processors that may be used there, and bytes; None: the host is asked.
    port
        Port of its ssh server; None: what ssh's configuration says.
    """

    name: str
    processors: int | None = None
    memory: int | None = None
    port: int | None = None

    @property
    def label(self) -> str:
        """The name with the port, where one is stated; unique among the hosts of a site."""
        return self.name if self.port is None else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHosts:
    """
    Describes the machines of a site of kind ``"ssh"``, and how they are reached.

    Parameters
    ----------
    jump
        Host or hosts over which the connections go, as ``ssh -J`` takes them; None: none.
    identity_file
        Private key; None: what ssh's configuration and agent offer.
    options
        Further arguments of ssh.
    python
        Interpreter at the hosts that has this package; None: the one that runs this.
    reach
        Host or address under which the hosts find this machine; None: its name.
    reverse
        Whether workers come back through the ssh connection, as the hosts cannot reach this
        machine.
    shared
        Whether other runs of the user may use the same processors at the same time.
    shared_folder
        Whether the hosts see the run's folder; None: each host is asked. Files are carried to and
        from a host that does not.
    """

    hosts: tuple[SshHost, ...]
    jump: str | None = None
    identity_file: str | None = None
    options: tuple[str, ...] = ()
    python: str | None = None
    reach: str | None = None
    reverse: bool = False
    shared: bool = True
    shared_folder: bool | None = None
