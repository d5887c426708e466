"""The engine's state: tasks, workers, money and the pending transaction, without any input."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bursar.dispatch.journal_records import (
    AttemptRecord,
    AttemptStart,
    JournalState,
    held_successes,
    last_numbers,
    unjudged_tasks,
)
from bursar.dispatch.spending_guard import SpendingGuard
from bursar.engine.attempt_ends import AttemptReactions
from bursar.engine.attendance import LeaseAttendance, WorkerAttendance
from bursar.engine.filling import TaskFilling
from bursar.engine.loop_clock import EngineClock
from bursar.engine.run_tasks import RunTasks
from bursar.engine.transactions import TransactionStore
from bursar.engine.worker_slots import WorkerSlot
from bursar.model.task import Task

SPILL = 64 * 1024
"""Bytes of a stream that travel with the outcome and lie in the journal."""

DataAt = Callable[[int, str], Mapping[str, str]]
"""Function of a task and a site: paths of the task's input files there, by name."""


PublishOutputs = Callable[[Path, Sequence[str]], str]
"""Function of a working directory and the names of outputs there: why these are not published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """
    Folders of a run's files.

    Parameters
    ----------
    root
        The campaign's folder; only read.
    files, work, logs
        The run's own folders.
    """

    root: Path
    files: Path
    work: Path
    logs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """
    Settings that do not change while the engine works.

    Parameters
    ----------
    run
        Identity of the run.
    folders
        Folders of the run's files.
    delay
        Of a task and one that follows: seconds until the second has what it needs of the
        first; None: no time.
    data
        Of a task and the site where it will run: paths of the files there that it reads, by
        name; None: no task reads any.
    prefetch
        Whether workers get tasks ahead of time, which hides how far away they are, and may
        let one start before another that comes first.
    hears_first
        Whether nothing starts while an outcome that has come is neither durable nor reported.
    keeps_starts
        Whether what is handed out is journalled, so that a kill does not make it forgotten.
    outlives
        Seconds for which workers go on without the engine, and look for it; they keep each outcome
        until it is acknowledged. 0: a worker that loses its connection ends. See also
        :attr:`EngineCore.attached`.
    absence
        Seconds without a connection after which the tasks of a worker that outlives the engine run
        elsewhere; 0: at once.
    secrets
        Values of the variables that tasks name as secret, by name.
    priced_data
        Names of sites where data have a price, whose workers count what attempts carry.
    publish
        Publishes outputs, by their names, of a copy that has succeeded from its working directory,
        which it removes; returns why not, empty: done. None: copies leave no files.
    on_outcome
        Called with the record of each outcome once it is durable.
    on_start
        Called with tasks that are handed to a worker.
    """

    run: str
    folders: RunPaths
    delay: Callable[[int, int], float] | None = None
    data: DataAt | None = None
    prefetch: bool = True
    hears_first: bool = False
    keeps_starts: bool = False
    outlives: float = 0.0
    absence: float = 0.0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    priced_data: Collection[str] = ()
    publish: PublishOutputs | None = None
    on_outcome: Callable[[AttemptRecord], None] = lambda record: None
    on_start: Callable[[Sequence[int]], None] = lambda tasks: None


@dataclass(slots=True, eq=False, kw_only=True)
class RestoredAttempts:
    """
    Attempts of an earlier life of the engine that workers may still have.

    Parameters
    ----------
    starts
        The attempts, by task. Their tasks are not given out before a worker has come back with
        them, or :func:`bursar.engine.reactor.settle` was called.
    cut
        Records of those that had begun, as :func:`bursar.dispatch.journal_records
        .interrupted_attempts` returns them; journalled for those that no worker brings back.
    held
        Successes of copies, as :func:`bursar.dispatch.journal_records.held_successes` returns them.
        Each counts unless the task's other attempt, which a worker may bring back, has succeeded.
    numbers
        Highest number of an attempt of each task, also of copies: no later attempt may have it.
    unjudged
        Tasks whose copy ran on when the last try had failed: each is tried once more.
    missing
        Names of the workers that have not come back.
    since
        Begin of that life, seconds since the epoch. Attempts whose start did not reach the journal
        are taken, too, when a missing worker has them; until all are back nothing is given out,
        since nobody else knows of such an attempt. None: every start is in the journal.
    patience
        Seconds for which the missing workers are waited for; None: ``absence`` of
        :class:`EngineSettings`.
    """

    starts: dict[int, AttemptStart] = field(default_factory=dict)
    cut: Sequence[AttemptRecord] = ()
    held: Sequence[AttemptRecord] = ()
    numbers: Mapping[int, int] = field(default_factory=dict)
    unjudged: Collection[int] = frozenset()
    missing: set[str] = field(default_factory=set)
    since: float | None = None
    patience: float | None = None

    @property
    def tasks(self) -> set[int]:
        """Tasks that are not given out before it is known what has become of them."""
        return {*self.starts, *(record.outcome.task for record in self.held)}

    @classmethod
    def of(
        cls,
        starts: Sequence[AttemptStart] = (),
        cut: Sequence[AttemptRecord] = (),
        past: JournalState | None = None,
    ) -> "RestoredAttempts":
        """
        Return the attempts of a journal's open starts that were not given back.

        Parameters
        ----------
        past
            The journal, where copies are looked for; None: no task had any.
        """
        held = () if past is None else held_successes(past)
        ended = {(record.outcome.task, record.outcome.attempt) for record in held}
        # Of two attempts at the same time the first goes on; workers end copies when they return.
        given = sorted(
            [start for start in starts if start.room and start[:2] not in ended],
            key=lambda start: -start.attempt,
        )
        return cls(
            starts={start.task: start for start in given},
            cut=cut,
            held=held,
            numbers={} if past is None else last_numbers(past),
            unjudged=frozenset() if past is None else unjudged_tasks(past),
            missing={start.worker for start in given},
        )


@dataclass(slots=True, eq=False, kw_only=True)
class EngineCore:
    """
    Tasks, workers, money and the pending transaction of an engine.

    Plain state: :mod:`bursar.engine.reactor` and :mod:`bursar.engine.run_orders` change it.

    Parameters
    ----------
    tasks
        Tasks by number; None for those at their end.
    restored
        Attempts of an earlier life that workers may still have.
    vacated
        Leases that get no more tasks.
    attached
        Leases whose workers end with the engine, although others outlive the engine.
    for_copies
        Leases that were bought for copies: their workers get no task from the queue.
    limits
        Processors that tasks may use of a site for now, by site; the others are all used.
    attendance
        Attendance of leases that had workers.
    changed
        Set whenever something may have changed that the owner waits for.
    refusal
        Why nothing more may start; empty when money is no hindrance.
    closed
        Whether the engine has ended: what stops now is not lost.
    room, filling, reactions
        How long workers are waited for, what they get, and what becomes of it; made by
        :func:`bursar.engine.reactor.attach`.
    """

    queue: RunTasks
    tasks: list[Task | None]
    guard: SpendingGuard
    store: TransactionStore
    clock: EngineClock
    settings: EngineSettings
    restored: RestoredAttempts = field(default_factory=RestoredAttempts)
    vacated: set[str] = field(default_factory=set)
    attached: set[str] = field(default_factory=set)
    for_copies: set[str] = field(default_factory=set)
    limits: dict[str, int] = field(default_factory=dict)
    attendance: dict[str, LeaseAttendance] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str = ""
    closed: bool = False
    room: WorkerAttendance[RunTasks] = field(init=False)
    filling: TaskFilling[RunTasks] = field(init=False)
    reactions: AttemptReactions[RunTasks] = field(init=False)

    def task(self, number: int) -> Task:
        """Return a task that is not at its end."""
        task = self.tasks[number]
        assert task is not None
        return task

    @property
    def workers(self) -> dict[str, WorkerSlot[RunTasks]]:
        """Workers by name, connected or expected back."""
        return self.queue.scheduler.workers

    def outlives(self, lease: str) -> float:
        """Return the seconds for which the workers of a lease go on without the engine."""
        return 0.0 if lease in self.attached else self.settings.outlives

    def is_open(self, worker: WorkerSlot[RunTasks]) -> bool:
        """Whether a worker takes tasks."""
        return worker.connected and not worker.leaving and worker.lease not in self.vacated

    def takes_copies(self, worker: WorkerSlot[RunTasks]) -> bool:
        """Whether copies may begin at a worker, as far as files and its lease are concerned."""
        takes_any = worker.open or worker.lease in self.for_copies
        return takes_any and self.is_open(worker) and worker.shares_files

    def workers_of(self, lease: str) -> list[WorkerSlot[RunTasks]]:
        """Return the workers of a lease."""
        return [worker for worker in self.workers.values() if worker.lease == lease]
