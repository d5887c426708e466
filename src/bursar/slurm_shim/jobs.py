"""Jobs as Slurm's commands know them, and the words of Slurm for where a task stands."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bursar.remote.messages import Result

JobState = Literal[
    "PENDING",
    "RUNNING",
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "CANCELLED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
]

COMPACT: Mapping[JobState, str] = {
    "PENDING": "PD",
    "RUNNING": "R",
    "COMPLETED": "CD",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "CANCELLED": "CA",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
}
"""States and their short forms."""

UNENDED: tuple[JobState, ...] = ("PENDING", "RUNNING")
"""States of jobs that have not ended."""

PrerequisiteKind = Literal["afterok", "afterany", "afternotok", "aftercorr", "singleton"]
"""How an element has to end for a job that waits for it, in the words of ``--dependency``."""


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """
    An element of another job that a job waits for; each element for its own with ``aftercorr``.
    """

    kind: PrerequisiteKind
    job: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """
    Facts of a job that are known from its submission.

    Parameters
    ----------
    name, user, partition, account, comment
        As stated to ``sbatch``; partition and account have defaults.
    folder
        Working folder.
    command
        Path of the script; ``(null)``: there was none.
    output, error
        Patterns of the files' names.
    processors, memory, limit
        Of each element: processors, bytes (None: not stated), seconds (None: no limit).
    tres
        GPUs as Slurm says them, such as ``gres:gpu:2``, by ``node``, ``job`` or ``task``: what
        they were stated for.
    licenses
        As stated; empty: none.
    array
        The indices as stated; empty: no array job.
    at_once
        Elements of an array that may run at a time; 0: any number.
    after
        Elements of other jobs that it waits for.
    requeues
        Whether ``scontrol requeue`` may have it begin anew.
    """

    name: str
    user: str
    folder: str
    command: str
    partition: str = "bursar"
    account: str = ""
    comment: str = ""
    output: str = ""
    error: str = ""
    processors: int = 1
    memory: int | None = None
    limit: float | None = None
    tres: Mapping[str, str] = field(default_factory=dict)
    licenses: str = ""
    array: str = ""
    at_once: int = 0
    after: tuple[Prerequisite, ...] = ()
    requeues: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobElement:
    """
    One element of an array job, or the one of another job, and where it stands.

    Parameters
    ----------
    job
        Number of the job.
    position
        Position among the elements, from 0.
    index
        Index in the array; None: no array job.
    submitted, start, end
        Seconds since the epoch; 0: not yet.
    exit_code
        Of the script; negative: the signal that ended it.
    max_rss, user_seconds, system_seconds
        What it used: bytes, seconds of processor time.
    reason
        Why it waits or did not succeed, a word of Slurm's.
    restarts
        How often it was put back to begin anew.
    """

    job: int
    position: int
    index: int | None
    facts: JobFacts
    submitted: float
    state: JobState = "PENDING"
    start: float = 0.0
    end: float = 0.0
    exit_code: int = 0
    host: str = ""
    max_rss: int = 0
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    reason: str = "None"
    restarts: int = 0

    @property
    def number(self) -> int:
        """Number of the element among all jobs, as ``SLURM_JOB_ID`` has it."""
        return self.job + self.position

    @property
    def id(self) -> str:
        """Number of the job, with the index of an array's element."""
        return str(self.job) if self.index is None else f"{self.job}_{self.index}"

    @property
    def has_ended(self) -> bool:
        """Whether its state is final."""
        return self.state not in UNENDED

    @property
    def exit_pair(self) -> str:
        """Exit status and signal, as ``0:9``."""
        return f"0:{-self.exit_code}" if self.exit_code < 0 else f"{self.exit_code}:0"

    def elapsed(self, now: float) -> float:
        """Return for how many seconds it has run."""
        return max(0.0, (self.end or now) - self.start) if self.start else 0.0


def state_of(result: Result) -> tuple[JobState, str]:
    """Return the state and the reason, in Slurm's words, of a task that has ended."""
    match result.state:
        case "succeeded":
            return "COMPLETED", "None"
        case "timed-out":
            return "TIMEOUT", "TimeLimit"
        case "cancelled":
            return "CANCELLED", "None"
        case "skipped":
            return "CANCELLED", "DependencyNeverSatisfied"
    if result.lost:
        return "NODE_FAIL", "NodeDown"
    if re.search(r"\bmemory allows\b", result.reason):
        return "OUT_OF_MEMORY", "OutOfMemory"
    return "FAILED", "NonZeroExitCode"
