"""
A task: what to run, what it needs and makes, and the outcomes of attempts to run it.

One form serves every source. A shell line of a TOML campaign is one
:class:`Shell`; a Nimrod task block becomes the steps of its commands; a
recorded workflow task becomes a stand-in made of the same steps. Steps are
tagged structs so that they travel to the worker as they are.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bursar.model.matching import Matching
from bursar.model.surroundings import CondaEnvironment, Container, Modules, UvEnvironment

# What a task does: a sequence of steps, carried out in its working directory.


class Exec(msgspec.Struct, frozen=True, tag="exec"):
    """Runs a program without a shell. ``argv[0]`` is looked up on ``PATH``."""

    argv: tuple[str, ...]


class Shell(msgspec.Struct, frozen=True, tag="shell"):
    """Runs one line by ``/bin/sh -c``."""

    line: str


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """
    Copies a file or, recursively, a folder.

    Either end may be on the task's node (its working directory) or at the
    root (the campaign's folder to read from; the run's ``files/`` shadows it,
    and is where everything copied to the root is written).
    """

    source: str
    target: str
    source_at_root: bool
    target_at_root: bool


class Redirect(msgspec.Struct, frozen=True, tag="redirect"):
    """From here on, ``stream`` ("stdout" or "stderr") goes to ``path``; None: captured again."""

    stream: str
    path: str | None
    append: bool = False


class StandardInput(msgspec.Struct, frozen=True, tag="stdin"):
    """
    From here on, programs read this as their standard input; without it, nothing.

    Parameters
    ----------
    path
        File in the working directory; None: the text.
    text
        Text that each task reads from its beginning.
    """

    path: str | None = None
    text: str = ""


class Inherit(msgspec.Struct, frozen=True, tag="inherit"):
    """From here on, programs get only those variables of the worker's that match a pattern."""

    names: tuple[str, ...]


class Secret(msgspec.Struct, frozen=True, tag="secret"):
    """
    Names variables whose values are known only to the run's process and to the task's.

    Parameters
    ----------
    names
        Names of the variables.
    file
        Path of a file with values that the environment of the run lacks; empty: none.
    """

    names: tuple[str, ...]
    file: str = ""


class OnError(msgspec.Struct, frozen=True, tag="onerror"):
    """Chooses whether later failing steps are ignored or (the default) fail the task."""

    ignore: bool


class Substitute(msgspec.Struct, frozen=True, tag="substitute"):
    """
    Copies a text template, replacing ``$name`` and ``${name}`` by parameter values.

    Unknown names stay as they stand. Paths are in the working directory.
    """

    source: str
    target: str
    values: dict[str, str]


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Writes a text into a file of the working directory."""

    path: str
    text: str


INPUTS_FILE = "bursar-inputs.txt"
"""File in the working directory of a task that gathers: its inputs that are there, one a line."""


class Gather(msgspec.Struct, frozen=True, tag="gather"):
    """
    Brings those of some files that are there into the working directory.

    They are listed in :data:`INPUTS_FILE`; the variable ``BURSAR_INPUTS`` names this file, and
    ``BURSAR_ABSENT`` the files that are not there, one a line.
    """

    files: tuple[str, ...]


MOST_TOLD = 65536
"""Characters of ``BURSAR_ABSENT``; a variable of a program has room for twice as much."""


def gathering_variables(absent: Sequence[str]) -> dict[str, str]:
    """Return the variables that tell a task which gathers what of its inputs is absent."""
    names = "\n".join(absent)
    if len(names) > MOST_TOLD:
        names = names[:MOST_TOLD].rpartition("\n")[0]
    return {"BURSAR_ABSENT": names, "BURSAR_INPUTS": INPUTS_FILE}


class Call(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """
    Calls a pickled Python function and returns its result.

    Only :class:`bursar.Executor` makes these: the payload is this process's
    own, never read from a campaign file.

    Parameters
    ----------
    payload
        The function and its arguments, pickled.
    as_data
        Whether the result returns as data (:mod:`bursar.worker.call_results`), which can run no
        code where it is read, or as a pickle, which can.
    """

    payload: bytes
    as_data: bool = False


Step = (
    Exec
    | Shell
    | Copy
    | Redirect
    | StandardInput
    | Inherit
    | Secret
    | Container
    | CondaEnvironment
    | UvEnvironment
    | Modules
    | OnError
    | Substitute
    | Write
    | Gather
    | Call
)


# A task: what to run, what it needs, what it makes.

GPU = "gpu"
"""Name of the countable resource whose holders are told which devices are theirs."""

Value = str | int | float | bool
"""A parameter value."""


@dataclass(frozen=True, slots=True)
class File:
    """
    A file, named in the campaign's name space.

    Parameters
    ----------
    name
        Relative path, ``/`` between parts, never leaving its folder. Kept in its
        shortest form: ``./a//b`` is ``a/b``.
    size
        Bytes; None when unknown. Not negative.
    """

    name: str
    size: int | None = None

    def __post_init__(self) -> None:
        parts = self.name.split("/")
        shortest = "/".join(part for part in parts if part not in ("", "."))
        if not shortest or self.name.startswith("/") or ".." in parts or "\0" in self.name:
            raise ValueError(f'file name must be a relative path without "..", got "{self.name}"')
        if shortest != self.name:
            object.__setattr__(self, "name", shortest)
        if self.size is not None and self.size < 0:
            raise ValueError(f'file "{self.name}": size must not be negative, got {self.size}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    A rigid task: it holds ``processors`` processors of one site from start to end.

    Parameters
    ----------
    id
        Unique in its workflow, never empty.
    name
        Kind of task (the program, the recorded type); for reports.
    steps
        Steps to carry out. Empty for a task that only exists in a plan.
    inputs, outputs
        Files it reads and files it must have made when it ends.
    after
        Ids of further tasks that must have succeeded before it starts. The
        makers of its inputs are parents without being named here.
    processors
        Positive.
    runtime
        Estimate at speed 1, seconds; None when unknown. Not negative.
    learned
        Whether ``runtime`` was found from earlier tasks, so that it is no word of the user's.
    wall_limit
        Seconds after which it is killed; None for no limit. Positive.
    memory
        Bytes it needs; None when unknown.
    resources
        Countable resources of the site that it holds, such as licences: numbers by name, each
        positive.
    environment
        Variables added to the worker's.
    matching
        Requirements, rank and weights for the broker.
    data
        Logical names of files that it reads, to be found by the replica catalogue; put
        into its working directory under these names.
    registers
        Outputs that are registered in the replica catalogue when it succeeds: their
        logical names, by name.
    retries
        How often it is tried again after a failure; None for the campaign's default.
    needs
        Share of its parents that must have succeeded before it starts, which is when all of them
        have ended, 0 to 1; at least one of them whatever the share. None: all.
    parameters
        The point of the sweep it stands for, or empty.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    id: str
    name: str = ""
    steps: tuple[Step, ...] = ()
    inputs: tuple[File, ...] = ()
    outputs: tuple[File, ...] = ()
    after: tuple[str, ...] = ()
    processors: int = 1
    runtime: float | None = None
    learned: bool = False
    wall_limit: float | None = None
    memory: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    matching: Matching = field(default_factory=Matching)
    data: tuple[str, ...] = ()
    registers: Mapping[str, str] = field(default_factory=dict)
    retries: int | None = None
    needs: float | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id or "\0" in self.id:
            raise ValueError("id must not be empty")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if self.runtime is not None and not (0 <= self.runtime < math.inf):
            raise ValueError(f"runtime must be finite and not negative, got {self.runtime}")
        if self.wall_limit is not None and not (0 < self.wall_limit < math.inf):
            raise ValueError(f"wall_limit must be finite and positive, got {self.wall_limit}")
        if self.memory is not None and self.memory < 0:
            raise ValueError(f"memory must not be negative, got {self.memory}")
        if any(count < 1 for count in self.resources.values()):
            raise ValueError(f"resources must be at least 1 each, got {dict(self.resources)}")
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries must not be negative, got {self.retries}")
        if self.needs is not None and not (0 <= self.needs <= 1):
            raise ValueError(f"needs must be a share between 0 and 1, got {self.needs}")

    def without_steps(self) -> "Task":
        """Return the task without what it does, as far as plans and bills look at it."""
        # Without the checks, which the task has passed: executors do this for each call.
        made = object.__new__(Task)
        for name in Task.__slots__:
            object.__setattr__(made, name, getattr(self, name))
        object.__setattr__(made, "steps", ())
        return made


# Outcomes of attempts to run tasks.


class Status(enum.StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """A step exited with a status other than 0, could not start, or an output is missing."""
    TIMED_OUT = "timed-out"
    """Killed at its wall-time limit."""
    LOST = "lost"
    """Its worker went away."""
    CANCELLED = "cancelled"
    """Stopped on request; it may be tried again without counting as a failure."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """
    One attempt's end, as the worker reports it.

    Parameters
    ----------
    task
        Index into the workflow's tasks.
    attempt
        1 for the first.
    exit_code
        Of the last step that ran; negative for a signal; None when none ran.
    start, end
        Seconds since the epoch.
    stdout, stderr
        What it printed, up to the spill limit. Past that, empty, and
        ``stdout_size`` or ``stderr_size`` tell how much lies in the log file.
    stdout_size, stderr_size
        Bytes printed.
    user_seconds, system_seconds
        Processor time of all its processes that were waited for.
    max_rss
        Largest resident set, bytes.
    reason
        One line for people when it did not succeed.
    value
        Result of a call, as data or as a pickle, as the call asks; empty otherwise.
    sealed
        Of a sealed task: an envelope with its exit code, streams, reason and value, which are
        not told otherwise.
    bytes_in, bytes_out
        Bytes that the attempt brought to its machine, and that go back from there; counted only
        where data have a price.
    """

    task: int
    attempt: int
    status: Status
    exit_code: int | None = None
    start: float = 0.0
    end: float = 0.0
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_size: int = 0
    stderr_size: int = 0
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    max_rss: int = 0
    reason: str = ""
    value: bytes = b""
    sealed: bytes = b""
    bytes_in: int = 0
    bytes_out: int = 0
