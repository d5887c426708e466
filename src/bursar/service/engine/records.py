"""
Records of the engine in the journal.

Columns of numbers are arrays in the machine's own byte order, as they lie in memory: the journal
stays on its machine. The state of an instance is the union of what its records say, so any order
will do.
"""

import re
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator

import msgspec

from bursar.engine.task_states import SUCCEEDED

CREATED, ADDED, ENDED, FORGOT, UNWANTED, LOST, DESTROYED, NUMBERS, SPENT = range(1, 10)
"""Kinds of the engine's records in the journal; the numbers must never change."""

_CODE = SUCCEEDED - 5
"""What the states in memory are ahead of those in records, whose numbers must never change."""

_RUNS = re.compile(rb"(.)\1*", re.DOTALL)

MACHINE = f"{sys.byteorder}-{struct.calcsize('I')}"
"""Byte order and size of whole numbers, on which the bytes of columns depend."""


class InstanceCreated(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of an instance's creation.

    Parameters
    ----------
    number
        Number by which all other records name the instance; never used again.
    handle, user, label, agreement, keep, created
        See :class:`bursar.remote.messages.InstanceInfo`.
    key
        Idempotency key of the request; empty: none.
    folder
        Name of the instance's home.
    digest
        SHA-256 digest of what was asked for with the key; empty: there is no key, or an earlier
        version of the service made it.
    deadline, budget
        See :class:`bursar.remote.messages.NewInstance`.
    """

    number: int
    handle: str
    user: str
    label: str
    agreement: str
    keep: float
    created: float
    key: str
    folder: str
    digest: bytes = b""
    deadline: float | None = None
    budget: int | None = None


class TasksAdded(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of a submission, whole or reduced to the tasks that have no result yet.

    Parameters
    ----------
    number
        Number of the instance.
    first, count
        First task number of the submission, and number of tasks submitted.
    key, at
        Idempotency key (empty: none), and time of the submission in seconds since the epoch.
    which
        Offsets from ``first`` of the tasks in the columns; empty: all tasks are there.
    processors, limits, tries, runtimes
        Columns; a limit or runtime that was not given is NaN.
    bodies
        See :mod:`bursar.service.engine.bodies`.
    labels
        Labels by task number, without empty ones.
    digest
        SHA-256 digest of all that was submitted with the key; empty as in :class:`InstanceCreated`.
    after
        Numbers of the tasks that must succeed first, by task that has any.
    retries
        How often a task is tried again after a failure, and the seconds before each such try, by
        task that is.
    memory
        Bytes that tasks need, by task that states them.
    spares
        How many of the tasks in ``after`` may end without success, by task that can spare any.
    resources
        Countable resources that tasks hold, by task that holds any: pairs of a name and a number.
    groups
        Name of its group and how many tasks of that may run at a time, by task that has one.
    """

    number: int
    first: int
    count: int
    key: str
    at: float
    which: bytes
    processors: bytes
    limits: bytes
    tries: bytes
    runtimes: bytes
    bodies: list[bytes]
    labels: dict[int, str]
    digest: bytes = b""
    after: dict[int, tuple[int, ...]] = {}
    retries: dict[int, tuple[int, float]] = {}
    memory: dict[int, int] = {}
    spares: dict[int, int] = {}
    resources: dict[int, tuple[tuple[str, int], ...]] = {}
    groups: dict[int, tuple[str, int]] = {}


class ResultsRecorded(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of results that were written together.

    Parameters
    ----------
    number
        Number of the instance.
    first
        Cursor of the first result.
    at
        Time of recording, seconds since the epoch.
    tasks, states
        Columns: task numbers and final states.
    lines
        Each result as JSON.
    logs
        Serial of the attempt whose long streams are in files, by task.
    """

    number: int
    first: int
    at: float
    tasks: bytes
    states: bytes
    lines: list[bytes]
    logs: dict[int, int] = {}


class ResultsRecordedIndex(msgspec.Struct, frozen=True, array_like=True):
    """A :class:`ResultsRecorded` whose lines are measured but not decoded, for the index."""

    number: int
    first: int
    at: float
    tasks: bytes
    states: bytes
    lines: list[msgspec.Raw]
    logs: dict[int, int] = {}


class ResultsForgotten(msgspec.Struct, frozen=True, array_like=True):
    """
    Record that the client has the results up to a cursor.

    Parameters
    ----------
    number
        Number of the instance.
    through
        Cursor of the last result that the client has.
    at
        When the last forgotten result was recorded, seconds since the epoch.
    runs
        Tasks of the forgotten results: first task, count and final state of each run.
    """

    number: int
    through: int
    at: float
    runs: bytes


class TasksCancelled(msgspec.Struct, frozen=True, array_like=True):
    """Record of cancelled tasks: first and count of each run."""

    number: int
    runs: bytes


class TaskLost(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of how often a task was lost together with a worker, and how often it failed.

    Parameters
    ----------
    serials
        Attempts among these whose outcomes a worker reported, and may report again.
    """

    number: int
    task: int
    times: int
    failures: int = 0
    serials: tuple[int, ...] = ()


class InstanceDestroyed(msgspec.Struct, frozen=True, array_like=True):
    """Record of a destroyed instance whose home is still to be deleted."""

    folder: str


class KeySpent(msgspec.Struct, frozen=True, array_like=True):
    """Record of a user's key whose instance was destroyed, and which is not to make another."""

    user: str
    key: str
    at: float


class NumbersUsed(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of the instance numbers that are never to be used again.

    Parameters
    ----------
    machine
        See :data:`MACHINE`.
    below
        All numbers below this one are taken: a worker may come back with tasks of an instance
        that is gone, and no other instance may have its number by then.
    """

    machine: str
    below: int


def pack_column(kind: str, data: bytes) -> "array[int]":
    """Return the array of whole numbers whose bytes are given."""
    values: array[int] = array(kind)
    values.frombytes(data)
    return values


def encode_stated_runs(tasks: Iterable[int], states: bytearray | None = None) -> bytes:
    """
    Encode tasks as runs of consecutive numbers: first and count of each run.

    Parameters
    ----------
    tasks
        Task numbers, ascending.
    states
        States of all tasks: then a run has one state, which is its third number. None: runs
        without states.
    """
    runs: array[int] = array("I")
    start = count = state = 0
    for task in tasks:
        now = states[task] - _CODE if states is not None else 0
        if count and task == start + count and now == state:
            count += 1
            continue
        if count:
            runs.extend((start, count) if states is None else (start, count, state))
        start, count, state = task, 1, now
    if count:
        runs.extend((start, count) if states is None else (start, count, state))
    return runs.tobytes()


def encode_states(states: Iterable[int]) -> bytes:
    """Encode final states as a column of a record."""
    return bytes([state - _CODE for state in states])


def decode_states(data: bytes) -> Iterator[int]:
    """Decode a column of :func:`encode_states`."""
    return (code + _CODE for code in data)


def encode_final_runs(states: bytearray, least: int) -> bytes:
    """Encode, as runs with states, all tasks whose state is ``least`` or a later one."""
    runs: array[int] = array("I")
    # A regular expression finds runs of equal bytes at the speed of C; there is one byte for each
    # task that an instance ever had.
    for run in _RUNS.finditer(states):
        state = states[run.start()]
        if state >= least:
            runs.extend((run.start(), run.end() - run.start(), state - _CODE))
    return runs.tobytes()


def decode_runs(data: bytes) -> Iterator[range]:
    """Decode runs of :func:`encode_stated_runs` without states."""
    runs = pack_column("I", data)
    for i in range(0, len(runs), 2):
        yield range(runs[i], runs[i] + runs[i + 1])


def decode_stated_runs(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Decode runs of :func:`encode_stated_runs`: first, count and state of each."""
    runs = pack_column("I", data)
    for i in range(0, len(runs), 3):
        yield runs[i], runs[i + 1], runs[i + 2] + _CODE
