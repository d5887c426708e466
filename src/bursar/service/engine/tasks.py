"""The tasks of an instance, in columns: some hundred bytes each, whatever their number."""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

from bursar.remote.messages import TaskSpec, TaskState
from bursar.service.engine.records import TasksAdded, pack_column

BITS = 32
"""Bits of a task's number within the instance; the bits above hold the instance's number."""

MASK = (1 << BITS) - 1

NO_TIME = math.nan
"""Value in a column of seconds where nothing was stated."""


class ServiceTaskState(IntEnum):
    """State of a task in the engine."""

    ABSENT = 0
    """No task has this number: the submission could not be written."""
    HELD = 1
    """The submission is not durable yet, or a worker may run the task since before a restart."""
    READY = 2
    """The task may start."""
    CLAIMED = 3
    """A worker has the task."""
    ENDING = 4
    """The task has ended; the result is being written."""
    SUCCEEDED = 5
    FAILED = 6
    TIMED_OUT = 7
    CANCELLED = 8


ABSENT, HELD, READY, CLAIMED, ENDING = range(5)  # plain numbers, for what is hot
SUCCEEDED, FAILED, TIMED_OUT, CANCELLED = range(5, 9)

NAMES: tuple[TaskState, ...] = (
    "waiting",
    "waiting",
    "waiting",
    "running",
    "running",
    "succeeded",
    "failed",
    "timed-out",
    "cancelled",
)
"""Names of the states as clients see them, by number."""


class ReadyQueue:
    """
    Ready tasks of one width, in the order of the task numbers; returned tasks come first.

    A task that has left the queue in another way, as by cancellation, stays in ``waiting`` and is
    skipped when it comes up; ``ready`` does not count it.
    """

    __slots__ = ("longest", "ready", "unknown", "waiting", "work")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.ready = 0
        # The demand told to the provisioner: seconds of the ready tasks that were submitted with a
        # runtime, the number of ready tasks without one, and the longest of these runtimes.
        self.work = 0.0
        self.unknown = 0
        self.longest = 0.0


class TaskColumns:
    """
    Tasks of an instance in columns, one entry for each task.

    Attributes
    ----------
    states
        :class:`ServiceTaskState`.
    processors, limits, tries, runtimes
        As submitted; limits and runtimes in seconds, NaN where none was given.
    losses
        How often each task was lost with a worker.
    bodies
        What the worker needs; empty once a task has ended.
    labels
        Labels of unfinished tasks, by task; tasks without a label are left out.
    counts
        Number of tasks in each state.
    size
        Bytes of all bodies.
    lanes
        Ready tasks by width, which is the number of processors; no lane is empty.
    """

    def __init__(self) -> None:
        self.states = bytearray()
        self.processors: array[int] = array("I")
        self.limits: array[float] = array("d")
        self.runtimes: array[float] = array("f")
        self.tries = bytearray()
        self.losses = bytearray()
        self.bodies: list[bytes] = []
        self.labels: dict[int, str] = {}
        self.counts = [0] * len(ServiceTaskState)
        self.size = 0
        self.lanes: dict[int, ReadyQueue] = {}

    def __len__(self) -> int:
        return len(self.states)

    @property
    def total(self) -> int:
        """Number of tasks."""
        return len(self.states) - self.counts[ABSENT]

    @property
    def unfinished(self) -> int:
        """Number of tasks without a recorded result."""
        counts = self.counts
        return counts[HELD] + counts[READY] + counts[CLAIMED] + counts[ENDING]

    @property
    def ready(self) -> int:
        """Number of tasks that may start."""
        return self.counts[READY]

    def grow(self, count: int) -> None:
        """Extend all columns to ``count`` tasks; the new ones are absent."""
        more = count - len(self.states)
        if more > 0:
            self.states.extend(bytes(more))
            self.processors.frombytes(bytes(4 * more))
            self.limits.extend([NO_TIME] * more)
            self.runtimes.extend([NO_TIME] * more)
            self.tries.extend(bytes(more))
            self.losses.extend(bytes(more))
            self.bodies.extend([b""] * more)
            self.counts[ABSENT] += more

    def place(self, added: TasksAdded) -> Sequence[int]:
        """
        Enter the tasks of a submission that are absent so far, in the state HELD.

        Returns
        -------
        sequence of int
            Numbers of the tasks that were entered.
        """
        end = added.first + added.count
        self.grow(end)
        states, bodies = self.states, self.bodies
        processors = pack_column("I", added.processors)
        limits, runtimes = array("d"), array("f")
        limits.frombytes(added.limits)
        runtimes.frombytes(added.runtimes)
        new: list[int] = []
        for row, offset in enumerate(_offsets(added)):
            task = added.first + offset
            # A result or a forgotten run was restored first and has said how the task ended;
            # records come in any order.
            if states[task] != ABSENT:
                continue
            states[task] = HELD
            body = added.bodies[row]
            bodies[task] = body
            self.size += len(body)
            self.processors[task] = processors[row]
            self.limits[task] = limits[row]
            self.runtimes[task] = runtimes[row]
            self.tries[task] = added.tries[row]
            new.append(task)
        self.counts[ABSENT] -= len(new)
        self.counts[HELD] += len(new)
        for task, label in added.labels.items():
            if states[task] == HELD:
                self.labels[task] = label
        return new

    def move(self, task: int, state: int) -> None:
        """Change a task's state; see also :meth:`queue` and :meth:`unqueue`."""
        self.counts[self.states[task]] -= 1
        self.counts[state] += 1
        self.states[task] = state

    def close(self, task: int, state: int) -> int:
        """
        Record that the result of a task is durable, and free what was needed to run the task.

        Returns
        -------
        int
            Bytes that the task's body took.
        """
        self.move(task, state)
        freed = len(self.bodies[task])
        self.bodies[task] = b""
        self.size -= freed
        # Most instances have no labels; the test saves a look-up for each of a million tasks.
        if self.labels:
            self.labels.pop(task, None)
        return freed

    def what_is_left(
        self, number: int, first: int, count: int, key: str, at: float, digest: bytes
    ) -> TasksAdded:
        """Return a submission's record without the tasks whose results are recorded."""
        states = self.states
        left = [t for t in range(first, first + count) if ABSENT < states[t] < SUCCEEDED]
        return TasksAdded(
            number,
            first,
            count,
            key,
            at,
            # Offsets, which stay small; none where all tasks are there, as in most records.
            b"" if len(left) == count else array("I", [t - first for t in left]).tobytes(),
            array("I", [self.processors[t] for t in left]).tobytes(),
            array("d", [self.limits[t] for t in left]).tobytes(),
            bytes([self.tries[t] for t in left]),
            array("f", [self.runtimes[t] for t in left]).tobytes(),
            [self.bodies[t] for t in left],
            {t: self.labels[t] for t in left if t in self.labels} if self.labels else {},
            digest,
        )

    def fix(self, first: int, count: int, state: int) -> None:
        """Enter a final state for all tasks of a run that are absent so far."""
        self.grow(first + count)
        for task in range(first, first + count):
            if self.states[task] == ABSENT:
                self.move(task, state)

    # Lanes.

    def queue(self, task: int, *, first: bool = False) -> None:
        """Queue a task that may start, behind or before the others of the same width."""
        self.move(task, READY)
        width = self.processors[task]
        lane = self.lanes.get(width)
        if lane is None:
            lane = self.lanes[width] = ReadyQueue()
        # A task that comes back was before those still waiting, and goes before them again.
        if first:
            lane.waiting.appendleft(task)
        else:
            lane.waiting.append(task)
        lane.ready += 1
        runtime = self.runtimes[task]
        if runtime == runtime:
            lane.work += runtime
            lane.longest = max(lane.longest, runtime)
        else:
            lane.unknown += 1

    def queue_all(self, tasks: Iterable[int]) -> None:
        """Queue tasks that may start."""
        for task in tasks:
            self.queue(task)

    def unqueue(self, task: int, state: int) -> None:
        """Move a ready task to another state; head() skips the entry in the lane."""
        self.move(task, state)
        width = self.processors[task]
        lane = self.lanes[width]
        # The task stays in the deque, from whose middle it could be taken only in linear time;
        # head() skips it by its state.
        lane.ready -= 1
        runtime = self.runtimes[task]
        if runtime == runtime:
            lane.work -= runtime
        else:
            lane.unknown -= 1
        # With the lane goes what is stale in it, and the rounding errors of its sum of runtimes.
        if not lane.ready:
            del self.lanes[width]

    def head(self, width: int) -> int:
        """Return the first ready task of a width that has some."""
        waiting, states = self.lanes[width].waiting, self.states
        # Ends at a ready task: a lane exists only while one is in it.
        while states[waiting[0]] != READY:
            waiting.popleft()
        return waiting[0]

    def firsts(self, width: int, depth: int) -> Iterator[int]:
        """Yield the first ready tasks of a width; look at ``depth`` entries of the lane at most."""
        lane = self.lanes.get(width)
        if lane is None:
            return
        states = self.states
        for i, task in enumerate(lane.waiting):
            # Stale entries count as well, so that one look costs no more than the depth.
            if i >= depth:
                return
            if states[task] == READY:
                yield task


def columns_of(
    number: int,
    first: int,
    key: str,
    at: float,
    specs: Sequence[TaskSpec],
    bodies: list[bytes],
    digest: bytes = b"",
) -> TasksAdded:
    """Return submitted tasks as columns."""
    limits = array("d", [NO_TIME if s.limit is None else s.limit for s in specs])
    runtimes = array("f", [NO_TIME if s.hints.runtime is None else s.hints.runtime for s in specs])
    return TasksAdded(
        number,
        first,
        len(specs),
        key,
        at,
        b"",
        array("I", [s.processors for s in specs]).tobytes(),
        limits.tobytes(),
        bytes([s.tries for s in specs]),
        runtimes.tobytes(),
        bodies,
        {first + i: s.label for i, s in enumerate(specs) if s.label},
        digest,
    )


def _offsets(added: TasksAdded) -> Sequence[int]:
    """Return the offsets, from the first number, of the tasks in a submission's columns."""
    if added.which or not added.bodies:
        return pack_column("I", added.which)
    return range(added.count)
