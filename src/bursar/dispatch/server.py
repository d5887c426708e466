"""
The dispatcher gives tasks to workers and journals their outcomes.

One asyncio loop. Workers connect to it over the loopback interface and show the
run's secret; workers of pilots connect to the pilot listener, over TLS, each with the
secret of its lease. They are kept filled by credit. Outcomes that they report go into
the journal, many in one transaction, before they are acknowledged or passed on.
"""

import asyncio
import hmac
import math
import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from bursar.dispatch.credential import SILENCE
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import (
    AttemptRecord,
    AttemptStart,
    RunEvent,
)
from bursar.dispatch.journal_time import epoch_of, placed
from bursar.dispatch.orphans import kill_leftovers
from bursar.dispatch.pilot_listener import PilotListener
from bursar.dispatch.prefetch import Prefetch
from bursar.dispatch.queue import TaskClaim, TaskCounts, TaskQueue, UnplaceableTasks
from bursar.dispatch.spending_guard import SpendingGuard
from bursar.dispatch.wire import (
    BATCH_SIZE,
    MAX_FRAME,
    MAX_PIECE,
    NONSENSE,
    CancelTasks,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    LeaveRequest,
    OutcomeReport,
    ProtocolError,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.dispatch.work_directories import folder_name
from bursar.dispatch.worker_listener import AcceptedConnection
from bursar.model.admission import Refusal
from bursar.model.allocation import AllocationLoad
from bursar.model.campaign import Retry
from bursar.model.demand import ProcessorDemand
from bursar.model.errors import BursarError
from bursar.model.money import Transfer
from bursar.model.outcome import Outcome, Status
from bursar.model.task import Task

SPILL = 64 * 1024
"""Bytes of a stream that travel with the outcome and lie in the journal."""

_UNAUTHENTICATED_FRAME = 4096  # bytes; no unauthenticated peer may make us buffer more
_AUTHENTICATION_TIMEOUT = 10.0  # seconds in which a connection must have said who it is
_BATCH = 2048  # tasks at most claimed at a time
_ROUNDS = 3
"""Turns of the loop, more than enough for a connection that was just accepted to be made."""

_PARTING = 1.0  # seconds for what was written last to be read
_ASK_AGAIN = 0.2  # seconds until the guard is asked again that refused for now

STUBBORN = 10.0
"""Seconds for a worker on another machine to report that its tasks were killed.

After that the worker is taken to be gone. A scheduler may suspend a job: then the worker stands
still for any time, and the connection remains.
"""


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


@dataclass(slots=True)
class _LeaseAttendance:
    """Processors of a lease whose workers are connected, and the most that ever were."""

    ready: int = 0
    joined: int = 0
    silent_since: float | None = None
    left_at: float = 0.0

    def come(self, processors: int) -> None:
        """Counts a worker that has connected."""
        self.ready += processors
        self.joined = max(self.joined, self.ready)
        if self.ready == self.joined:
            self.silent_since = None

    def go(self, processors: int, now: float, *, took_leave: bool) -> None:
        """Counts a worker that is gone; one that took leave is not expected to return."""
        self.ready -= processors
        self.left_at = now
        if not took_leave:
            self.silent_since = now


@dataclass(slots=True)
class _PendingTransaction:
    """The content of the next transaction, and what is sent or resolved after the transaction."""

    records: list[AttemptRecord] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    sends: list[tuple["_WorkerSession", bytes]] = field(default_factory=list)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    starts: list[AttemptStart] = field(default_factory=list)

    def __bool__(self) -> bool:
        durable = self.records or self.transfers or self.events or self.sends
        return bool(durable or self.waiting or self.starts)


DataAt = Callable[[int, str], Mapping[str, str]]
"""Function of a task and a site: paths of the task's input files there, by name."""


class Dispatcher:
    """
    Carries out tasks on whatever workers connect.

    All methods are to be called from the loop it was started on.

    Parameters
    ----------
    tasks
        Tasks to run; more may be submitted later.
    parents
        Numbers of the parents of each task; None: no task has any.
    journal
        Journal for outcomes and movements of money.
    guard
        Guard of the budget, which admits tasks.
    retry
        Rules for tries after failures.
    folders
        Folders of the run's files.
    run
        Identity of the run.
    order
        Priority of each task, smaller first; None: as listed.
    placed
        Lease whose processors run each task; None: any.
    again_at
        Lease, or what stands for one, to which tasks go that will run again; None: they stay.
    delay
        Of a task and one that follows: seconds until the second has what it needs of the
        first; None: no time.
    data
        Of a task and the site where it will run: paths of the files there that it reads, by
        name; None: no task reads any.
    prefetch
        Whether workers get tasks ahead of time, which hides how far away they are, and may
        let one start before another that comes first.
    past
        Attempts that earlier incarnations of the run journalled.
    retry_failed
        Whether tasks that failed for good in an earlier incarnation are tried again.
    on_outcome
        Called with the record of each outcome once it is durable.
    on_start
        Called with tasks that are handed to a worker.
    on_event
        Called with one line for people about each notable event.
    silence
        Approximate seconds after which a pilot's machine that does not answer is taken to be gone;
        its tasks run again.
    keeps_starts
        Whether what is handed out is journalled, so that a kill does not make it forgotten.
    last_seen
        Last moment that the journal has seen, seconds since the epoch: time goes on from there
        when the time of day is behind it.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        journal: RunJournal,
        guard: SpendingGuard,
        retry: Retry,
        folders: RunPaths,
        run: str,
        order: Sequence[int] | None = None,
        placed: Sequence[str] | None = None,
        again_at: str | None = None,
        delay: Callable[[int, int], float] | None = None,
        data: DataAt | None = None,
        prefetch: bool = True,
        past: Sequence[Outcome] = (),
        retry_failed: bool = False,
        on_outcome: Callable[[AttemptRecord], None] | None = None,
        on_start: Callable[[Sequence[int]], None] | None = None,
        on_event: Callable[[str], None] | None = None,
        silence: float = SILENCE,
        keeps_starts: bool = False,
        last_seen: float = 0.0,
    ) -> None:
        self._last_seen = last_seen
        self._keeps_starts = keeps_starts
        self._tasks: list[Task | None] = list(tasks)
        self._journal = journal
        self._guard = guard
        self._folders = folders
        self._run = run
        self._delay = delay
        self._data = data
        self._on_outcome = on_outcome
        self._on_start = on_start
        self._on_event = on_event
        self._queue = TaskQueue(retry, again_at)
        self._queue.extend(tasks, parents, order=order, placed=placed)
        if past:
            self._queue.restore(past, retry_failed=retry_failed)
        self._prefetch = prefetch
        self._rigid = any(task.processors > 1 for task in tasks)
        self._connections: dict[str, _WorkerSession] = {}
        self._unauthenticated: set[_WorkerSession] = set()
        self._pending = _PendingTransaction()
        self._committing = False
        # One thread: transactions and heartbeats reach SQLite in the order in which they were
        # handed in.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bursar-journal")
        self._changed = asyncio.Event()
        self._fault: BursarError | None = None
        self._refusal = ""
        self._refused_for_now = False
        self._fill_scheduled = False
        self._vacated: set[str] = set()  # leases that take nothing more
        self._attendance: dict[str, _LeaseAttendance] = {}  # by lease, of those that had workers
        self._closed = False
        self._is_written_out = False
        self._waker: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self.pilot_listener = PilotListener(
            run,
            lambda: _WorkerSession(self, from_elsewhere=True),
            self._turn_out,
            self._break,
            silence,
        )
        # Every user of this machine can connect to a port of the loopback interface.
        self.token = secrets.token_urlsafe(32)
        self.address = ("127.0.0.1", 0)

    # For the owner of the dispatcher.

    async def start(self) -> None:
        """
        Listen on the loopback interface, on a port of the system's choice.

        Processes that an earlier incarnation of the run left running are killed first: their
        tasks will run again.
        """
        self._loop = asyncio.get_running_loop()
        # Before anything is given out: the same task would else run twice at a time and write the
        # same files.
        await asyncio.to_thread(kill_leftovers, self._run)
        self._epoch = epoch_of(self._loop, self._last_seen)
        # Loopback only: workers of other machines come through the pilot listener, over TLS.
        self._server = await self._loop.create_server(
            lambda: _WorkerSession(self), "127.0.0.1", 0, backlog=128
        )
        self.address = self._server.sockets[0].getsockname()[:2]

    def now(self) -> float:
        """
        Return the journal's time, seconds since the epoch.

        See :mod:`bursar.dispatch.journal_time`.
        """
        return self._epoch + self._loop.time()

    def submit(self, task: Task) -> int:
        """Add a task without parents; return the number of the task."""
        (number,) = self._queue.extend([task])
        self._tasks.append(task)
        # Stays so: earlier tasks of several processors may still be in the queue.
        self._rigid = self._rigid or task.processors > 1
        self._schedule_fill()
        return number

    def cancel(self, task: int) -> bool:
        """
        Cancel a task, and kill the attempt that runs.

        Returns
        -------
        bool
            True when no worker has the task, which will not start any more; False when a worker
            was told to stop the attempt.
        """
        worker = self._queue.cancel(task)
        if worker is None:
            self._changed.set()
            return True
        self._send(self._connections[worker], CancelTasks([task], 0.0, "cancelled"))
        return False

    def note(self, kind: str, text: str, transfers: Sequence[Transfer] = ()) -> None:
        """Journal an event of now, with the movements of money that belong to the event."""
        self._pending.events.append(RunEvent(self.now(), kind, text))
        self._pending.transfers.extend(transfers)
        self._commit_soon()

    def post(self, transfers: Sequence[Transfer]) -> None:
        """Journals movements of money."""
        self._pending.transfers.extend(transfers)
        self._commit_soon()

    async def written(self) -> None:
        """
        Wait until all that was noted and posted so far is durable.

        Raises
        ------
        BursarError
            When the journal cannot be written.
        """
        if self._fault is not None:
            raise self._fault
        if self._is_written_out or not (self._committing or self._pending):
            return
        durable = self._loop.create_future()
        # Even if a commit is under way: what was noted last goes with the next one.
        self._pending.waiting.append(durable)
        self._commit_soon()
        await durable

    def beat(self) -> None:
        """Write a heartbeat to the journal."""
        # After close() the writer's thread has ended.
        if not self._closed:
            beat = self._loop.run_in_executor(self._writer, self._journal.beat, self.now())
            beat.add_done_callback(self._beaten)

    def _beaten(self, beat: "asyncio.Future[None]") -> None:
        error = None if beat.cancelled() else beat.exception()
        if error is not None:
            self._break(error)

    async def change(self) -> None:
        """Wait until something may have changed."""
        self._changed.clear()
        await self._changed.wait()

    @property
    def ended(self) -> frozenset[int]:
        """Tasks at their end."""
        return frozenset(i for i in range(len(self._tasks)) if self._queue.is_at_end(i))

    @property
    def is_done(self) -> bool:
        """Whether nothing runs and nothing more will."""
        return self._queue.idle

    def drain(self) -> None:
        """Start nothing more, and let running tasks go on."""
        self._queue.drain()
        for connection in self._connections.values():
            # Jobs that wait at workers have not started either.
            self._send(connection, JobRecall(len(connection.claimed)))
        self._changed.set()

    async def stop(self, reason: str, *, grace: float = 5.0) -> None:
        """
        Start nothing more and stop the running tasks.

        Parameters
        ----------
        reason
            Text for the outcomes.
        grace
            Seconds between SIGTERM and SIGKILL.
        """
        self.drain()
        for connection in self._connections.values():
            self._send(connection, CancelTasks([], grace, reason))
        # A worker that stands still, as a suspended job's does, must not keep the run from its end.
        late = self._loop.call_later(grace + STUBBORN, self._cut_off)
        try:
            await self.wait()
        finally:
            late.cancel()

    def assign(
        self,
        placed: Mapping[int, str],
        order: Mapping[int, int],
        in_order: Collection[str] = (),
    ) -> None:
        """
        Give tasks that have not started another lease and priority.

        See :meth:`bursar.dispatch.queue.TaskQueue.assign`.
        """
        self._queue.assign(placed, order, in_order)
        self._schedule_fill()

    async def vacate(self, lease: str, reason: str) -> None:
        """End a lease: stop the tasks on its processors, which may run again elsewhere."""
        # First, so that tasks which are cancelled here are not given to the same lease again.
        self._vacated.add(lease)
        for connection in self._connections.values():
            if connection.lease == lease and connection.claimed:
                self._send(connection, CancelTasks([], 0.0, reason))
        late = self._loop.call_later(STUBBORN, self._cut_off, lease)
        try:
            while lease in self.busy_leases() and self._fault is None:
                await self.change()
        finally:
            late.cancel()

    def dismiss(self, lease: str) -> None:
        """Dismiss the workers of a lease, and give the lease no more tasks."""
        # Also for workers that join after this: they are told to leave at once.
        self._vacated.add(lease)
        self._forget_absent(lease)
        for connection in self._connections.values():
            if connection.lease == lease:
                self._send(connection, LeaveOrder())

    def ends(self, lease: str, moment: float | None, speed: float = 1.0) -> None:
        """
        Set the time at which a lease's processors will be taken away, as far as is known now.

        The lease's workers get no task that should not have ended by then, unless no other may run
        it; see :meth:`bursar.dispatch.queue.TaskQueue.ends`. Running tasks are not touched.

        Parameters
        ----------
        moment
            Seconds since the epoch; None: never.
        speed
            Work per second there, relative to what estimates hold for.
        """
        self._queue.ends(lease, moment, speed)
        self._schedule_fill()

    def demand(self) -> ProcessorDemand:
        """Return the demand for processors of all tasks that are bound to no lease."""
        return self._queue.demand()

    @property
    def misfits(self) -> UnplaceableTasks:
        """Ready tasks that are too long or too wide for every connected worker."""
        return self._queue.misfits(
            self.now(),
            [name for name, connection in self._connections.items() if self._is_open(connection)],
        )

    def leases(self) -> dict[str, AllocationLoad]:
        """Return the load of each lease that has workers, or had some that have gone silent."""
        found = {
            lease: AllocationLoad(
                ready=0,
                busy=0,
                idle_since=seen.left_at,
                joined=seen.joined,
                silent_since=seen.silent_since,
            )
            for lease, seen in self._attendance.items()
            if not seen.ready
        }
        for name, connection in self._connections.items():
            busy = min(self._queue.workers[name].used, connection.processors)
            idle_since = None if connection.claimed else connection.idle_since
            before = found.get(connection.lease)
            if before is None:
                seen = self._attendance.get(connection.lease)
                found[connection.lease] = AllocationLoad(
                    ready=connection.processors,
                    busy=busy,
                    idle_since=idle_since,
                    joined=None if seen is None else seen.joined,
                    silent_since=None if seen is None else seen.silent_since,
                )
                continue
            if idle_since is not None and before.idle_since is not None:
                # A lease is idle from when its last worker became so.
                idle_since = max(idle_since, before.idle_since)
            else:
                idle_since = None
            found[connection.lease] = replace(
                before,
                ready=before.ready + connection.processors,
                busy=before.busy + busy,
                idle_since=idle_since,
            )
        return found

    def _forget_absent(self, lease: str) -> None:
        """Stop counting the workers of a lease that takes no more tasks and has no worker left."""
        seen = self._attendance.get(lease)
        if seen is not None and not seen.ready:
            del self._attendance[lease]

    def busy_leases(self) -> set[str]:
        """Return the leases whose processors have tasks."""
        return {c.lease for c in self._connections.values() if c.claimed}

    def left(self, lease: str) -> int:
        """Return how many tasks bound to a lease are not at an end."""
        return self._queue.left(lease)

    async def wait(self) -> None:
        """
        Wait until every task is at an end, or no further task will run.

        Raises
        ------
        BursarError
            When the journal cannot be written.
        """
        while not (self._queue.idle and not self._pending and not self._committing):
            if self._fault is not None:
                raise self._fault
            await self.change()
        if self._fault is not None:
            raise self._fault

    async def close(self) -> None:
        """Dismiss the workers, and write the rest to the journal."""
        for connection in list(self._connections.values()):
            self._send(connection, LeaveOrder())
        if self._waker is not None:
            self._waker.cancel()
        # Listeners first: a worker that joined later would not be seen off.
        await self._stop_listening()
        await self._write_out()
        # After that: an order to leave may have been withheld behind a transaction.
        await self._hang_up()
        if self._server is not None:
            await self._server.wait_closed()
        await self._loop.run_in_executor(self._writer, lambda: None)  # a beat may be under way
        await self._write_out()
        self._is_written_out = True
        self._writer.shutdown()  # has nothing to do any more: returns at once

    async def _stop_listening(self) -> None:
        """
        Stop accepting connections, on the loopback interface and at the pilot listener.

        A server that closes between accepting a connection and making it leaves its socket open
        (CPython 3.11), so it closes when those that were accepted are made.
        """
        await self.pilot_listener.close()
        if self._server is None:
            return
        for listening in self._server.sockets:
            if hasattr(listening, "fileno"):  # none, of a network in memory
                self._loop.remove_reader(listening.fileno())
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        self._server.close()

    async def _write_out(self) -> None:
        """Wait until nothing is left to be journalled, or the journal cannot be written."""
        while (self._pending or self._committing) and self._fault is None:
            await self.change()

    async def _hang_up(self) -> None:
        """End all connections, also one that is just being made, and wait until all are gone."""
        self._closed = True
        for connection in [*self._connections.values(), *self._unauthenticated]:
            connection.hang_up()
        give_up = self._loop.time() + _PARTING
        while self._connections or self._unauthenticated:
            if self._loop.time() > give_up:  # a worker does not read what was sent
                for connection in [*self._connections.values(), *self._unauthenticated]:
                    connection.abort()
            await asyncio.sleep(0.001)

    @property
    def counts(self) -> TaskCounts:
        """Number of tasks in each state; tasks prefetched by a worker count as waiting."""
        counts = self._queue.counts
        running = sum(self.running().values())
        waiting = counts.waiting + counts.running - running
        return replace(counts, running=running, waiting=waiting)

    def running(self) -> dict[str, int]:
        """Return the number of tasks running at each site."""
        found: dict[str, int] = {}
        for connection in self._connections.values():
            running = len(connection.claimed)
            if not self._rigid:
                running = min(running, connection.processors)
            found[connection.site] = found.get(connection.site, 0) + running
        return found

    def busy(self) -> dict[str, int]:
        """Return the number of busy processors at each site."""
        found: dict[str, int] = {}
        for name, connection in self._connections.items():
            used = min(self._queue.workers[name].used, connection.processors)
            found[connection.site] = found.get(connection.site, 0) + used
        return found

    @property
    def fault(self) -> BursarError | None:
        """Why nothing can be journalled any more; None while all is well."""
        return self._fault

    @property
    def refusal(self) -> str:
        """Why nothing more may start; empty when money is no hindrance."""
        return self._refusal

    # Workers.

    def _joined(self, connection: "_WorkerSession", hello: Hello) -> bool:
        if connection.from_elsewhere and self.pilot_listener.is_turned_out(hello):
            # Told to go and not just refused: a pilot that is only hung up on would try again until
            # its patience ends.
            connection.write(frame(LeaveOrder()))
            connection.hang_up()
            return True
        if not self._is_let_in(connection, hello):
            return False
        self._unauthenticated.discard(connection)
        connection.introduce(hello)
        self._connections[hello.worker] = connection
        self._queue.join(hello.worker, hello.lease, hello.processors)
        connection.claimed = self._queue.workers[hello.worker].claimed
        connection.joined_at = connection.idle_since = self.now()
        folders = self._folders
        self._send(
            connection,
            Welcome(
                self._run,
                os.path.abspath(folders.root),
                os.path.abspath(folders.files),
                os.path.abspath(folders.work),
                os.path.abspath(folders.logs),
                SPILL,
            ),
        )
        self._attendance.setdefault(hello.lease, _LeaseAttendance()).come(hello.processors)
        if hello.lease in self._vacated:  # it came too late
            self._send(connection, LeaveOrder())
        if connection.from_elsewhere:
            self.pilot_listener.joined(hello.lease)
        self._schedule_fill()
        return True

    def _is_let_in(self, connection: "_WorkerSession", hello: Hello) -> bool:
        # Two of one name would share claims. A worker that comes back before its former connection
        # is seen to have ended tries again.
        if hello.worker in self._connections or hello.processors < 1:
            return False
        if connection.from_elsewhere:
            return self.pilot_listener.lets_in(hello)
        # In constant time, so that nobody guesses the token byte by byte.
        return hmac.compare_digest(hello.token.encode(), self.token.encode())

    def _turn_out(self, lease: str) -> None:
        """Cancel the tasks of a lease whose credential was revoked, and dismiss the workers."""
        self._vacated.add(lease)
        for connection in list(self._connections.values()):
            if connection.lease == lease and connection.from_elsewhere:
                if connection.claimed:
                    self._send(connection, CancelTasks([], 0.0, "its processors go back"))
                self._send(connection, LeaveOrder())
                # Its pilot may be suspended, or not follow orders: the lease has been given back in
                # any case.
                self._loop.call_later(_PARTING, connection.hang_up)

    def _cut_off(self, lease: str | None = None) -> None:
        """Abort connections of pilots' workers that still have tasks, of one lease or of all."""
        for connection in list(self._connections.values()):
            if (
                connection.from_elsewhere
                and connection.claimed
                and lease
                in (
                    None,
                    connection.lease,
                )
            ):
                connection.abort()

    def _is_open(self, connection: "_WorkerSession") -> bool:
        """Whether a worker takes tasks."""
        return not connection.leaving and connection.lease not in self._vacated

    def _let_go(self, connection: "_WorkerSession") -> None:
        """Dismiss a worker that asked to leave, if the worker has no tasks."""
        if not connection.claimed:
            connection.leaving = True
            self._send(connection, LeaveOrder())

    def _left(self, connection: "_WorkerSession") -> None:
        self._unauthenticated.discard(connection)
        # Never joined, or replaced by a newer connection of its worker: it has no tasks.
        if self._connections.get(connection.worker) is not connection:
            return
        del self._connections[connection.worker]
        self._attendance[connection.lease].go(
            connection.processors, self.now(), took_leave=connection.took_leave
        )
        if connection.lease in self._vacated:
            self._forget_absent(connection.lease)
        if connection.from_elsewhere:
            self.pilot_listener.left(connection.lease, connection.worker)
        # Its tasks are not lost but were stopped, and nothing more is journalled.
        if self._closed:
            return
        lost = self._queue.lose(connection.worker)
        now = self.now()
        self._take_outcomes(
            connection,
            [
                Outcome(
                    task=task,
                    attempt=attempt,
                    status=Status.LOST,
                    start=now,
                    end=now,
                    reason=f"worker {connection.worker} went away",
                )
                for task, attempt in lost
            ],
        )
        # Last: the queue takes the outcomes above under this worker's name only.
        self._queue.leave(connection.worker)
        self._changed.set()

    def _on_message(self, connection: "_WorkerSession", message: FromWorker) -> None:
        match message:
            case OutcomeReport(outcomes):
                connection.prefetch.learn(outcomes)
                self._take_outcomes(connection, outcomes)
            case ReturnedJobs(jobs):
                connection.prefetch.returned(len(jobs))
                for task, attempt in jobs:
                    if self._queue.give_back(connection.worker, task, attempt):
                        # The hold goes back at once: another task may be waiting for just this
                        # money.
                        self._guard.withdraw(task, self.now())
                        if self._keeps_starts:
                            self._pending.starts.append(AttemptStart.given_back(task, attempt))
                            self._commit_soon()
                self._rested(connection)
                self._changed.set()
                self._schedule_fill()
            case LeaveRequest(must):
                connection.leaving |= must
                self._let_go(connection)
                # One that must go is being killed; its pilot may stay, as on a node that dies.
                connection.took_leave = connection.leaving and not must
                self._changed.set()
            case Hello():
                raise ProtocolError("a second hello")

    def _rested(self, connection: "_WorkerSession") -> None:
        """Note that a worker has given up tasks, and since when that worker is idle."""
        if not connection.claimed:
            connection.idle_since = self.now()
            if connection.leaving:
                self._let_go(connection)

    def _take_outcomes(self, connection: "_WorkerSession", outcomes: Sequence[Outcome]) -> None:
        now = self.now()
        worker, site, lease = connection.worker, connection.site, connection.lease
        finish = self._queue.finish
        records = self._pending.records
        counted: list[Outcome] = []
        for reported in outcomes:
            outcome = placed(reported, connection.joined_at, now)
            # Held: no child starts before its parent's success is durable, or a kill could leave a
            # child's result without its parent's.
            verdict = finish(worker, outcome, now, hold=True)
            if verdict is None:
                continue
            if verdict.final:
                # Steps and environments of tasks at their end would fill memory in long campaigns.
                self._tasks[outcome.task] = None
            counted.append(outcome)
            records.append(AttemptRecord(outcome, verdict.final, site, lease))
        if counted:
            # In one transaction with the outcomes: after a kill either both are there or neither
            # is.
            self._pending.transfers.extend(self._guard.settle(counted, now))
            self._commit_soon()
            self._rested(connection)
        self._schedule_fill()

    # Giving out work.

    def _schedule_fill(self) -> None:
        """Have the workers filled once the present burst of events is taken in."""
        if not self._fill_scheduled:
            self._fill_scheduled = True
            # Once for all reports that the loop has read in this turn.
            self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        self._fill_scheduled = False
        if self._fault is not None:
            return
        now = self.now()
        self._refused_for_now = False
        try:
            self._queue.wake(now)
            if self._queue.ready and not self._queue.draining:
                self._fill_workers(now)
            self._take_back(now)
        except Exception as error:
            # In a callback of the loop the error would only be logged, and the run would wait for
            # ever.
            self._break(error)
        self._set_waker(now)
        self._changed.set()

    def _fill_workers(self, now: float) -> None:
        started: list[int] = []
        # The least loaded first: a few tasks are spread over all workers.
        for connection in sorted(self._connections.values(), key=_load):
            worker = self._queue.workers[connection.worker]
            if not self._is_open(connection):
                continue
            room = connection.processors - worker.used
            # Wide tasks are never claimed ahead: a worker starts jobs in order, so that one which
            # waits for several processors there would keep others idle.
            if not self._rigid:
                room += self._share(connection)
            while room > 0 and self._queue.ready:
                claims = self._queue.claim(
                    connection.worker,
                    min(room, _BATCH),
                    now,
                    lambda task, lease=connection.lease: self._admit(task, lease, now),  # type: ignore[misc]
                )
                if not claims:
                    break
                room = connection.processors - worker.used
                if not self._rigid:
                    room += self._share(connection)
                started.extend(claim.task for claim in claims)
                if self._keeps_starts:
                    self._note_starts(connection, claims, now)
                self._give(connection, claims)
        if started and self._on_start is not None:
            self._on_start(started)

    def _note_starts(
        self, connection: "_WorkerSession", claims: Sequence[TaskClaim], now: float
    ) -> None:
        """Journal the starts of tasks, without waiting for the disk."""
        site, lease, worker = connection.site, connection.lease, connection.worker
        room = connection.processors
        self._pending.starts.extend(
            AttemptStart(
                c.task, c.attempt, site, lease, worker, room, self._known(c.task).processors, now
            )
            for c in claims
        )
        self._commit_soon()

    def _share(self, connection: "_WorkerSession") -> int:
        """Return how many tasks a worker may have waiting: a fair part of what is left, at most."""
        if not self._prefetch:
            return 0
        # Half of a fair part stays in the queue, where any worker that becomes idle can have it.
        fair = self._queue.ready // (2 * len(self._connections))
        return min(connection.prefetch.depth(connection.processors), fair)

    def _take_back(self, now: float) -> None:
        """Recall tasks that wait at one worker while another worker could begin these tasks."""
        workers = self._queue.workers
        takers = [
            name
            for name, connection in self._connections.items()
            if workers[name].used < connection.processors and self._is_open(connection)
        ]
        # Where money is refused for now, what comes back would stand still.
        if not takers or len(self._connections) < 2 or self._refused_for_now:
            return
        donors = [name for name, c in self._connections.items() if c.prefetch.may_ask]
        for name, count in self._queue.to_ask_back(now, takers, donors):
            self._connections[name].prefetch.asked(count)
            self._send(self._connections[name], JobRecall(count))

    def _admit(self, task: int, lease: str, now: float) -> float | Refusal:
        answer = self._guard.admit(task, lease, now)
        if isinstance(answer, Refusal):
            self._refusal = answer.reason
            self._refused_for_now |= not answer.final
            return answer
        limit = self._known(task).wall_limit
        return answer if limit is None else min(limit, answer)

    def _known(self, number: int) -> Task:
        task = self._tasks[number]
        assert task is not None
        return task

    def _give(self, connection: "_WorkerSession", claims: Sequence[TaskClaim]) -> None:
        transfers = self._guard.transfers()
        if transfers:
            # Money is set aside durably before anything is spent of it.
            self._pending.transfers.extend(transfers)
        jobs: list[msgspec.Raw] = []
        size = 0
        for claim in claims:
            job = self._encode(claim, connection.site)
            # Looked at for each job: a frame above the limit ends the connection, and with it all
            # that the worker runs.
            if len(job) > MAX_PIECE:
                self._refuse_job(connection, claim, len(job))
                continue
            # Small frames, so that a worker begins while the rest is on its way.
            if jobs and size + len(job) > BATCH_SIZE:
                self._send(connection, JobAssignment(jobs), withhold=bool(transfers))
                jobs, size = [], 0
            jobs.append(msgspec.Raw(job))
            size += len(job)
        if jobs:
            self._send(connection, JobAssignment(jobs), withhold=bool(transfers))

    def _refuse_job(self, connection: "_WorkerSession", claim: TaskClaim, size: int) -> None:
        now = self.now()
        outcome = Outcome(
            task=claim.task,
            attempt=claim.attempt,
            status=Status.FAILED,
            start=now,
            end=now,
            reason=f"its steps take {size} bytes, more than the {MAX_PIECE} that can be sent",
        )
        self._take_outcomes(connection, [outcome])

    def _encode(self, claim: TaskClaim, site: str) -> bytes:
        task = self._known(claim.task)
        return self._encoder.encode(
            WireJob(
                claim.task,
                claim.attempt,
                task.processors,
                # 0 means no limit to a worker: an allowance that is all but used up must not become
                # one.
                0.0 if math.isinf(claim.seconds) else max(claim.seconds, 1e-3),
                folder_name(claim.task, task.id),
                task.steps,
                tuple([file.name for file in task.inputs]) if task.inputs else (),
                tuple([file.name for file in task.outputs]) if task.outputs else (),
                dict(task.environment) if task.environment else {},
                dict(self._data(claim.task, site)) if self._data and task.data else {},
            )
        )

    def _send(
        self, connection: "_WorkerSession", message: FromServer, *, withhold: bool = False
    ) -> None:
        """Send a message now or after the next transaction, never before an earlier message."""
        data = frame(message)
        # Whatever follows a withheld message waits, too: a cancellation could else overtake the job
        # that it is meant for.
        if withhold or connection.withheld:
            connection.withheld += 1
            self._pending.sends.append((connection, data))
            self._commit_soon()
        else:
            connection.write(data)

    def _set_waker(self, now: float) -> None:
        due = self._queue.next_wake()
        if self._refused_for_now:
            # The guard does not say when money comes free, so it is asked again.
            due = min(now + _ASK_AGAIN, math.inf if due is None else due)
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        if due is not None:
            self._waker = self._loop.call_at(due - self._epoch, self._schedule_fill)

    # The journal.

    def _commit_soon(self) -> None:
        if self._committing or self._fault is not None:
            return
        if self._is_written_out:  # what is noted of the end of what outlives the dispatcher
            pending, self._pending = self._pending, _PendingTransaction()
            self._journal.commit(pending.records, pending.transfers, pending.events, pending.starts)
            return
        # One transaction at a time: what comes meanwhile gathers for the next, so that a slow disk
        # makes transactions larger and not a queue of them.
        self._committing = True
        self._loop.call_soon(self._commit)

    def _commit(self) -> None:
        pending, self._pending = self._pending, _PendingTransaction()
        commit = self._journal.commit
        try:
            done = self._loop.run_in_executor(
                self._writer,
                commit,
                pending.records,
                pending.transfers,
                pending.events,
                pending.starts,
            )
        except RuntimeError as error:  # no thread to be had: the error would be lost
            done = self._loop.create_future()
            done.set_exception(error)
        if done.done():  # at once, on a loop whose time is not real: before anything is given out
            self._committed(pending, done)
        else:
            done.add_done_callback(lambda future: self._committed(pending, future))

    def _committed(self, pending: _PendingTransaction, future: "asyncio.Future[None]") -> None:
        self._committing = False
        error = future.exception()
        if error is not None:
            self._break(error)
            for waiter in pending.waiting:
                if not waiter.done():
                    waiter.set_exception(self._fault or error)
            return
        try:
            self._follow_commit(pending)
        except Exception as failure:  # in a callback of the loop nobody else would hear of it
            self._break(failure)
        self._changed.set()

    def _follow_commit(self, pending: _PendingTransaction) -> None:
        """Send, release and report what a durable transaction was waited for."""
        # All of this only now: whoever hears of an outcome, or begins what was paid for, has its
        # cause in the journal.
        for told in pending.waiting:
            if not told.done():
                told.set_result(None)
        for connection, data in pending.sends:
            connection.withheld -= 1
            connection.write(data)
        if self._pending:
            self._commit_soon()
        for record in pending.records:
            if record.outcome.status is Status.SUCCEEDED:
                self._release(record.outcome)
        if self._queue.ready:
            self._schedule_fill()
        elif self._delay is not None:
            self._set_waker(self.now())
        if self._on_outcome is not None:
            for record in pending.records:
                self._on_outcome(record)

    def _release(self, outcome: Outcome) -> None:
        """Let the children of a succeeded task start, each after the delay of its data."""
        task, delay = outcome.task, self._delay
        if delay is None:
            self._queue.release(task)
        else:
            self._queue.release(task, outcome.end, lambda child: delay(task, child))

    def _break(self, error: BaseException) -> None:
        """Stop acknowledging outcomes and giving out tasks; :meth:`wait` raises the error."""
        if self._fault is None:
            self._fault = (
                error
                if isinstance(error, BursarError)
                else BursarError(f"the dispatcher stopped: {type(error).__name__}: {error}")
            )
            if error is not self._fault:
                self._fault.__cause__ = error
        self._changed.set()


class _WorkerSession(AcceptedConnection):
    """The server's end of a worker's connection, unauthenticated until a token is shown."""

    def __init__(self, dispatcher: Dispatcher, *, from_elsewhere: bool = False) -> None:
        self._dispatcher = dispatcher
        self.from_elsewhere = from_elsewhere
        self._frames = FrameDecoder(_UNAUTHENTICATED_FRAME)
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._known = False
        self.settled = asyncio.Event()
        self.worker = ""
        self.site = ""
        self.lease = ""
        self.processors = 0
        self.claimed: Mapping[int, float] = {}
        self.prefetch = Prefetch()
        self.joined_at = 0.0
        self.idle_since = 0.0
        self.leaving = False
        self.took_leave = False
        self.withheld = 0

    def introduce(self, hello: Hello) -> None:
        """Mark the connection as authenticated, by a worker's hello."""
        self._known = True
        self.settled.set()
        # Small until here, so that strangers cannot make the dispatcher set memory aside.
        self._frames.limit = MAX_FRAME
        self.worker, self.site, self.processors = hello.worker, hello.site, hello.processors
        self.lease = hello.lease
        if self._patience is not None:
            self._patience.cancel()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def hang_up(self) -> None:
        """End the connection once all written data are sent."""
        if self._patience is not None:
            self._patience.cancel()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once; written data may be lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection as unauthenticated, with a limit of time."""
        assert isinstance(transport, asyncio.Transport)
        # Accepted before the listener closed, made after: nobody would wait for its end.
        if self._dispatcher._closed:
            transport.abort()
            return
        self._transport = transport
        self._dispatcher._unauthenticated.add(self)
        loop = asyncio.get_running_loop()
        # A connection that says nothing takes a file descriptor; see worker_listener for many of
        # them.
        self._patience = loop.call_later(_AUTHENTICATION_TIMEOUT, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Decode frames; abort the connection when a frame is malformed or the token is wrong."""
        try:
            for body in self._frames.feed(data):
                message = self._decoder.decode(body)
                if self._known:
                    self._dispatcher._on_message(self, message)
                elif not isinstance(message, Hello) or not self._dispatcher._joined(self, message):
                    raise ProtocolError("the token is wrong")
        except NONSENSE:
            if self._transport is not None:
                self._transport.abort()
        except Exception as error:  # ours, not the worker's
            self._dispatcher._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Have the tasks of the worker run again."""
        # The listener counts it as unauthenticated until then.
        self.settled.set()
        if self._patience is not None:
            self._patience.cancel()
        self._dispatcher._left(self)


def _load(connection: _WorkerSession) -> float:
    return len(connection.claimed) / connection.processors
