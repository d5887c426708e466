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

CREATED, ADDED, ENDED, FORGOT, UNWANTED, LOST, DESTROYED, NUMBERS, SPENT = range(1, 10)
"""Kinds."""

_RUNS = re.compile(rb"(.)\1*", re.DOTALL)

MACHINE = f"{sys.byteorder}-{struct.calcsize('I')}"
"""What columns of numbers depend on."""


class InstanceCreated(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of an instance's creation.

    Parameters
    ----------
    number
        By which its other records name it; never used again.
    handle, user, label, agreement, keep, created
        See :class:`bursar.remote.messages.InstanceInfo`.
    key
        By which it was asked for; empty: none.
    folder
        Name of its home.
    digest
        SHA-256 digest of what was asked for with the key; empty: there is no key, or an earlier
        version of the service made it.
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


class TasksAdded(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of a submission, or of its tasks that are still needed.

    Parameters
    ----------
    number
        Of the instance.
    first, count
        Their numbers.
    key, at
        By which they were submitted, and when.
    which
        Those that follow, less ``first``; empty: all.
    processors, limits, tries, runtimes
        Columns; a limit or runtime that was not given is NaN.
    bodies
        See :mod:`bursar.service.engine.bodies`.
    labels
        Of those that have one, by task.
    digest
        SHA-256 digest of all that was submitted with the key; empty as in :class:`InstanceCreated`.
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


class ResultsRecorded(msgspec.Struct, frozen=True, array_like=True):
    """
    Record of results that were written together.

    Parameters
    ----------
    number
        Of the instance.
    first
        Cursor of the first.
    at
        When.
    tasks, states
        Columns.
    lines
        JSON of each.
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
    """What is kept in memory of :class:`ResultsRecorded`; its lines are only measured."""

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
        Of the instance.
    through
        The cursor.
    at
        When the last of them was recorded.
    runs
        Their tasks, and how these ended: first, count and state of each run.
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
    """Record of how often a task was lost with its worker."""

    number: int
    task: int
    times: int


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
        Numbers of instances: a worker may come back with the tasks of one that is gone.
    """

    machine: str
    below: int


def pack_column(kind: str, data: bytes) -> "array[int]":
    """Return whole numbers as the bytes of an array."""
    values: array[int] = array(kind)
    values.frombytes(data)
    return values


def encode_stated_runs(tasks: Iterable[int], states: bytearray | None = None) -> bytes:
    """
    Runs of tasks.

    Parameters
    ----------
    tasks
        Ascending.
    states
        Of all tasks: then a run is of one state, which stands third.
    """
    runs: array[int] = array("I")
    start = count = state = 0
    for task in tasks:
        now = states[task] if states is not None else 0
        if count and task == start + count and now == state:
            count += 1
            continue
        if count:
            runs.extend((start, count) if states is None else (start, count, state))
        start, count, state = task, 1, now
    if count:
        runs.extend((start, count) if states is None else (start, count, state))
    return runs.tobytes()


def encode_final_runs(states: bytearray, least: int) -> bytes:
    """Runs, with states, of all tasks whose state is this one or a later one."""
    runs: array[int] = array("I")
    for run in _RUNS.finditer(states):
        state = states[run.start()]
        if state >= least:
            runs.extend((run.start(), run.end() - run.start(), state))
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
        yield runs[i], runs[i + 1], runs[i + 2]
