"""What a service keeps of an instance's tasks beside their states: bodies, labels, submissions."""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.task_dependencies import TaskGroups
from bursar.engine.task_states import ABSENT, ENDING, HELD, SUCCEEDED, WAITING
from bursar.model.campaign import spare_parents
from bursar.remote.messages import TaskSpec, TaskState
from bursar.service.engine.body_column import BodyColumn
from bursar.service.engine.records import TaskLost, TasksAdded, pack_column

NO_TIME = math.nan
"""Value in a record's column of seconds where nothing was stated."""

EDGE = 48
"""Bytes that an entry of ``after`` takes: its number, the reference to it, and the edge."""

NAMES: tuple[TaskState, ...] = (
    "waiting",
    "waiting",
    "waiting",
    "waiting",
    "waiting",
    "running",
    "running",
    "succeeded",
    "failed",
    "timed-out",
    "cancelled",
    "skipped",
)
"""Names of the states as clients see them, by number."""


class SubmittedTasks(InstanceTasks):
    """
    Tasks of an instance of a service: some hundred bytes each, whatever their number.

    Attributes
    ----------
    after
        Tasks that must succeed first, by task that is not at its end.
    allowed
        How many of these may end without success, by task that can spare any and is not at its
        end.
    retries
        By task, how often it is tried again after a failure, and the seconds before each such try;
        tasks that are not are left out.
    bodies
        What the worker needs; empty once a task has ended.
    labels
        Labels of unfinished tasks, by task; tasks without a label are left out.
    size
        Bytes of all bodies, labels, names of groups and entries of ``after``, as :func:`size_of`
        counts them.
    """

    # Until the result is durable: nobody is told, and nobody is given the task.
    state_of_success = ENDING

    def __init__(self) -> None:
        super().__init__()
        self.most_losses: bytearray = bytearray()
        self.after: dict[int, tuple[int, ...]] = {}
        self.allowed: dict[int, int] = {}
        self.retries: dict[int, tuple[int, float]] = {}
        self.bodies = BodyColumn()
        self.labels: dict[int, str] = {}
        self.size = 0
        # Kept between two portions: numbers of tasks, as a queue of iterators would take more.
        self._unstartable: deque[int] = deque()
        self._unsuccessful: deque[int] = deque()
        self._children: Iterator[int] = iter(())

    @property
    def total(self) -> int:
        """Number of tasks."""
        return len(self.states) - self.counts[ABSENT]

    def grow(self, count: int) -> None:
        """Extend all columns to ``count`` tasks; the new ones are absent."""
        more = count - len(self.states)
        if more > 0:
            super().grow(count)
            self.most_losses.extend(bytes(more))
            self.bodies.grow(more)

    def place(self, added: TasksAdded, *, is_restored: bool = False) -> Sequence[int]:
        """
        Enter the tasks of a submission that are absent so far, in the state HELD.

        Parameters
        ----------
        is_restored
            Whether workers may have the tasks since before a restart.

        Returns
        -------
        sequence of int
            Numbers of the tasks that were entered.
        """
        first, end = added.first, added.first + added.count
        self.grow(end)
        states = self.states
        new: Sequence[int] = range(first, end)
        widths: Sequence[int] = pack_column("I", added.processors)
        limits: Sequence[float] = array("d", added.limits)
        runtimes: Sequence[float] = array("f", added.runtimes)
        losses, bodies = added.tries, added.bodies
        if len(bodies) == added.count == states.count(ABSENT, first, end):
            self.most_losses[first:end] = losses
            self.size += self.bodies.fill(first, bodies)
        else:
            # A result or a forgotten run was restored first and has said how the task ended;
            # records come in any order.
            offsets = _offsets(added)
            rows = [row for row, at in enumerate(offsets) if states[first + at] == ABSENT]
            new = [first + offsets[row] for row in rows]
            widths = [widths[row] for row in rows]
            limits = [limits[row] for row in rows]
            runtimes = [runtimes[row] for row in rows]
            for task, row in zip(new, rows, strict=True):
                self.most_losses[task] = losses[row]
                self.size += self.bodies.fill(task, [bodies[row]])
        # NaN, the only value that differs from itself, stands for what was not given.
        estimates = [runtime if runtime == runtime else math.inf for runtime in runtimes]
        if not all(map(math.isnan, limits)):
            for task, limit in zip(new, limits, strict=True):
                if limit == limit:
                    self.set_limit(task, limit)
        self.enter(new, widths, estimates, memory=added.memory, resources=added.resources)
        for task, label in added.labels.items():
            if states[task] == HELD:
                self.labels[task] = label
                self.size += len(label)
        for task, again in added.retries.items():
            if states[task] == HELD:
                self.retries[task] = again
        for task, parents in added.after.items():
            if states[task] == HELD:
                self.after[task] = parents
                self.size += EDGE * len(parents)
                spare = added.spares.get(task, 0)
                if spare:
                    self.allowed[task] = spare
                self.follow(task, parents, spare)
        for task, (name, most) in added.groups.items():
            if states[task] == HELD:
                if self.groups is None:
                    self.groups = TaskGroups(states, self.dependencies)
                self.groups.add(task, name, most, is_restored=is_restored)
                self.size += len(name)
        return new

    def start_all(self, tasks: Iterable[int]) -> None:
        """Let held tasks start as soon as they may; see :meth:`end_some` for those that cannot."""
        barred = self.start(tasks)
        for task in barred:
            self.move(task, WAITING)
        self._unstartable.extend(barred)

    def bar_children(self, task: int) -> None:
        """Note that a task ended without success; :meth:`end_some` ends all that follow."""
        self._unsuccessful.append(task)

    def end(self, task: int, state: int) -> None:
        """Note that a task has ended without success; what follows ends when that is durable."""
        self.move(task, ENDING)

    def end_some(self, most: int, edges: int) -> tuple[list[int], bool]:
        """
        End waiting tasks that cannot start, as one that they come after did not succeed.

        Parameters
        ----------
        most, edges
            Number of tasks that are ended, and of dependencies that are looked at, at most.

        Returns
        -------
        tuple
            These tasks, which are ENDING, each behind the one that it comes after; and whether
            there may be more to end.
        """
        ended: list[int] = []
        while len(ended) < most and edges:
            if self._unstartable:
                task = self._unstartable.popleft()
            else:
                child = next(self._children, None)
                if child is None:
                    if not self._unsuccessful:
                        return ended, False
                    self._children = self.dependencies.children(self._unsuccessful.popleft())
                    continue
                task = child
            edges -= 1
            if self.spares.get(task):
                self._spare_parent(task)
            # Reached over several parents a task ends once.
            elif self.states[task] == WAITING:
                self.move(task, ENDING)
                ended.append(task)
                self._unsuccessful.append(task)
            elif self.states[task] == HELD:
                self.barred.add(task)
        return ended, True

    def _rule_of(self, task: int, failures: int) -> tuple[int, float]:
        # After a restart no delay is known any more: the task is tried at once.
        retries, delay = self.retries.get(task, (0, 0.0))
        return retries + 1, delay

    def note_attempts(self, number: int, task: int) -> TaskLost:
        """Return the record of a task's attempts so far; ``number`` is that of the instance."""
        losses, failures = self.losses.get(task, 0), self.failures.get(task, 0)
        return TaskLost(number, task, losses, failures, self.counted.get(task, ()))

    def close(self, tasks: Sequence[int], states: Sequence[int]) -> int:
        """
        Record that results of tasks are durable, and free what was needed to run the tasks.

        Parameters
        ----------
        states
            Final state of each task.

        Returns
        -------
        int
            Bytes of the tasks that were counted in :attr:`size`.
        """
        self._move_all(tasks, states)
        freed = self.bodies.clear(tasks)
        if self.labels:
            freed += sum(len(self.labels.get(task, "")) for task in tasks)
        if self.after:
            freed += EDGE * sum(len(self.after.get(task, ())) for task in tasks)
        if self.groups is not None:
            freed += sum(map(self.groups.forget, tasks))
        self.size -= freed
        few = (self.labels, self.after, self.allowed, self.spares, self.retries)
        for column in (*few, self.losses, self.failures, self.counted):
            # Most instances have none; the test saves look-ups for each of a million tasks.
            if column:
                for task in tasks:
                    column.pop(task, None)
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
            array("d", [_stated(self.limit(t)) for t in left]).tobytes(),
            bytes([self.most_losses[t] for t in left]),
            array("f", [_stated(self.estimates[t]) for t in left]).tobytes(),
            [bytes(self.bodies[t]) for t in left],
            {t: self.labels[t] for t in left if t in self.labels} if self.labels else {},
            digest,
            {t: self.after[t] for t in left if t in self.after} if self.after else {},
            {t: self.retries[t] for t in left if t in self.retries} if self.retries else {},
            {t: need for t in left if (need := self.ready_tasks.bucket_of(t).memory)}
            if self.ready_tasks.states_memory
            else {},
            {t: self.allowed[t] for t in left if t in self.allowed} if self.allowed else {},
            {t: held for t in left if (held := self.ready_tasks.bucket_of(t).resources)}
            if self.ready_tasks.states_resources
            else {},
            {} if self.groups is None else self.groups.limits(left),
        )

    def fix(self, first: int, count: int, state: int) -> None:
        """Enter a final state for all tasks of a run that are absent so far."""
        self.grow(first + count)
        for task in range(first, first + count):
            if self.states[task] == ABSENT:
                # Not moved: a task that was never entered lies in no bucket.
                self.states[task] = state
                self.counts[ABSENT] -= 1
                self.counts[state] += 1


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
        {first + i: tuple(sorted(set(s.after))) for i, s in enumerate(specs) if s.after},
        {first + i: (s.retries, s.retry_delay) for i, s in enumerate(specs) if s.retries},
        {first + i: s.memory for i, s in enumerate(specs) if s.memory is not None},
        {first + i: spare for i, s in enumerate(specs) if (spare := _spare_parents(s))},
        {first + i: tuple(sorted(s.resources.items())) for i, s in enumerate(specs) if s.resources},
        {first + i: (s.group, s.at_once) for i, s in enumerate(specs) if s.at_once is not None},
    )


def _spare_parents(task: TaskSpec) -> int:
    """Return how many of the tasks that a task comes after may end without success."""
    parents = len(set(task.after))
    return parents if task.needs == "ended" else spare_parents(parents, task.needs)


def size_of(added: TasksAdded) -> int:
    """Return the bytes of submitted tasks that count against the quota of a user."""
    edges = sum(map(len, added.after.values()))
    words = sum(map(len, added.labels.values())) + sum(len(n) for n, _ in added.groups.values())
    return sum(map(len, added.bodies)) + words + EDGE * edges


def _stated(seconds: float) -> float:
    """Return seconds for a column of a record; infinite: nothing was stated."""
    return NO_TIME if seconds == math.inf else seconds


def _offsets(added: TasksAdded) -> Sequence[int]:
    """Return the offsets, from the first number, of the tasks in a submission's columns."""
    if added.which or not added.bodies:
        return pack_column("I", added.which)
    return range(added.count)
