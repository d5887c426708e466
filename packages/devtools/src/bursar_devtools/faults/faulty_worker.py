"""
Simulates a service's worker on virtual time, which speaks the real protocol and runs nothing.

The worker outlives the service: tasks go on without a connection, and outcomes are reported until
they are acknowledged; see :class:`bursar.worker.unacknowledged.UnacknowledgedWork`.
"""

import asyncio
import math
import random
from collections import deque
from dataclasses import dataclass

import msgspec

from bursar.dispatch.prefetch import HORIZON
from bursar.dispatch.wire import (
    CancelTasks,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    LeaveRequest,
    OutcomeAck,
    OutcomeReport,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.task import Exec, Outcome, Status
from bursar.service.interfaces import Clock
from bursar.worker.unacknowledged import UnacknowledgedWork
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.faulty_connection import FaultyListener, FaultyTransport
from bursar_devtools.faults.invariant_checker import UNDER_WAY, InvariantChecker
from bursar_devtools.faults.simulated_process import SimulatedProcess
from bursar_devtools.faults.simulated_task import (
    SimulatedTask,
    open_sealed_task,
    parse_task_command,
)

_SOONEST, _LATEST = 0.05, 2.0
"""Shortest and longest seconds between two attempts to reconnect."""

_WELCOME = 10.0
"""Seconds within which a service must answer a new connection."""

_SLOWEST = 3.0
"""Factor on the duration of tasks at the slowest workers."""

_CONFUSED = 0.1
"""Probability that a worker with repeated returns names an attempt that it never had."""

_TAKEN_AWAY = "its processors are taken away"

_DECODER = msgspec.msgpack.Decoder(FromServer)
_JOBS = msgspec.msgpack.Decoder(WireJob)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """
    Holds the arguments with which a worker is started.

    Parameters
    ----------
    name, site, lease, processors, token
        Fields of its :class:`bursar.dispatch.wire.Hello`.
    idle
        Seconds without a task after which the worker asks to leave; None for never.
    deaths
        Workers that died on these processors before this one.
    """

    name: str
    site: str
    lease: str
    processors: int
    token: str
    idle: float | None = None
    deaths: int = 0


@dataclass(slots=True)
class _SimulatedAttempt:
    job: WireJob
    piece: SimulatedTask
    start: float
    timer: asyncio.TimerHandle


@dataclass(frozen=True, slots=True)
class _UnconfirmedOutcome:
    """Holds an outcome reported over the present connection and not yet acknowledged."""

    outcome: Outcome
    piece: SimulatedTask


class FaultyWorker:
    """
    Takes jobs, lets their durations pass, and reports outcomes.

    Parameters
    ----------
    post
        Arguments of the worker.
    door
        Address of the worker server.
    clock
        The worker's clock, seconds since the epoch.
    chance
        Random source of the worker's speed and of the times of reconnections.
    checker, trace
        Notified of everything that the worker does.
    says_returns_again
        Whether the worker reports all returned jobs again, on each further connection and whenever
        a task has ended, as it cannot know whether the report arrived; now and then also an attempt
        that it never had. The service must ignore all of these.
    """

    def __init__(
        self,
        post: WorkerAssignment,
        process: SimulatedProcess,
        door: FaultyListener,
        *,
        clock: Clock,
        chance: random.Random,
        checker: InvariantChecker,
        trace: EventTrace,
        says_returns_again: bool = False,
    ) -> None:
        self._says_returns_again = says_returns_again
        self._returned: list[tuple[int, int]] = []  # over all connections
        self._pieces: dict[tuple[int, int], SimulatedTask] = {}  # of all that it holds
        self._given_here: set[tuple[int, int]] = set()  # over the present connection
        self._kept_here: set[tuple[int, int]] = set()  # over earlier ones, and confirmed here
        self._said: deque[_UnconfirmedOutcome] = deque()
        self._must_go = False
        self.post = post
        self.process = process
        self.has_left = self.was_welcome = False
        self._idle: asyncio.TimerHandle | None = None
        self.door = door
        self._clock = clock
        self._chance = chance
        self._slow = chance.choice((1.0, 1.0, chance.uniform(1.0, _SLOWEST)))
        self._checker = checker
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._holding = UnacknowledgedWork()
        self._queue: deque[WireJob] = deque()
        self._attempts: dict[int, _SimulatedAttempt] = {}
        self._free = post.processors
        self._began = self._loop.time()  # a job; the last of them
        self._looks = False  # a look at what waits is due
        self._link: _WorkerProtocol | None = None
        self._in_touch = False
        self._welcomed = math.inf
        self._outlives = 0.0
        self._leaving = False
        self._changed = asyncio.Event()
        process.on_death(self._die)

    async def run(self) -> None:
        """Work until ordered to leave, or without a service for too long."""
        give_up = self._loop.time() + 60.0
        setbacks = 0
        while not self._is_done:
            if self._loop.time() > give_up:
                break
            if await self._stay_in_touch():
                setbacks = 0
                give_up = self._loop.time() + self._outlives
            else:
                setbacks += 1
                longest = min(_LATEST, _SOONEST * 2.0 ** min(setbacks, 10))
                await asyncio.sleep(self._chance.uniform(longest / 2, longest))
        self.has_left = True
        self._trace.note(self.post.name, "leaves")
        self.process.kill()

    async def _stay_in_touch(self) -> bool:
        """
        Connect, serve the connection until it ends, and return whether the service welcomed the
        worker.
        """
        link = _WorkerProtocol(self)
        try:
            self.door.connect(self.process, link)
        except OSError:
            return False
        self._link = link
        with_welcome = False
        try:
            async with asyncio.timeout(_WELCOME):
                while not self._in_touch and not link.is_lost:
                    await self._heard()
            with_welcome = self._in_touch
            while not link.is_lost and not self._is_done:
                await self._heard()
        except TimeoutError:
            pass
        link.close()
        self._link = None
        self._in_touch = False
        self._welcomed = math.inf
        # What was said over this connection and not acknowledged is said again over the next: the
        # service counts it once.
        self._holding.lost_connection()
        self._said.clear()
        self._given_here.clear()
        self._kept_here.clear()
        return with_welcome

    async def _heard(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    @property
    def _is_done(self) -> bool:
        return self._leaving and not self._attempts and not self._holding.unrecorded

    def hello(self) -> Hello:
        """Return the first message of a connection."""
        post = self.post
        return Hello(
            post.token,
            post.name,
            post.site,
            post.processors,
            post.lease,
            post.name,
            self._holding.holds(),
            deaths=post.deaths,
        )

    def has_here(self, piece: str) -> bool:
        """
        Whether the worker has a task beyond doubt.

        The task was assigned over the present connection, or held when that was made and not
        refused; the connection is intact at both ends; and the task has neither ended nor been
        returned.
        """
        if self._link is None or not self._in_touch or not self._link.stands:
            return False
        jobs = [*self._queue, *(attempt.job for attempt in self._attempts.values())]
        return any(
            (job.task, job.attempt) in self._given_here | self._kept_here
            and self._pieces[job.task, job.attempt].name == piece
            for job in jobs
        )

    def wake(self) -> None:
        """Wake the worker after an event at the connection."""
        self._changed.set()

    # Messages from the service.

    def take(self, message: FromServer) -> None:
        """Process a message from the service."""
        match message:
            case Welcome():
                self._outlives = message.outlives
                self._in_touch = self.was_welcome = True
                self._welcomed = self._loop.time()
                self._report()
                if not self._looks:
                    self._look_at_waiting()
                if self._must_go:
                    self._send_message(LeaveRequest(must=True))
                self._return_again()
                self.process.call_later(UNDER_WAY, self._keep_what_is_held, self._link)
            case JobAssignment(jobs):
                for job in map(_JOBS.decode, jobs):
                    if self._holding.took(job.task, job.attempt):
                        piece = _task_of_job(job)
                        self._pieces[job.task, job.attempt] = piece
                        self._given_here.add((job.task, job.attempt))
                        # A connection that the service has closed may carry outdated
                        # assignments.
                        if self._link is not None and self._link.stands:
                            self._checker.given(self.post.name, piece)
                        self._queue.append(job)
                        if self._says_returns_again and self._chance.random() < _CONFUSED:
                            self._send_message(ReturnedJobs([(job.task, job.attempt - 1)]))
                if self._must_go:
                    self._cancel(None, _TAKEN_AWAY)
                self._start()
            case JobRecall(count):
                self._give_back(count)
            case CancelTasks(tasks, _, reason):
                self._cancel(set(tasks) or None, reason)
            case OutcomeAck(count):
                self._holding.recorded(count)
                self._recorded(count)
            case LeaveOrder():
                self._leaving = True
        self._ask_to_leave_when_idle()
        self.wake()

    def _ask_to_leave_when_idle(self) -> None:
        """Restart the idle timer after a message or the begin of a task."""
        if self._idle is not None:
            self._idle.cancel()
        if self.post.idle is not None:
            self._idle = self._loop.call_later(self.post.idle, self._ask_to_leave)

    def _ask_to_leave(self) -> None:
        if self._in_touch and not (self._attempts or self._queue or self._holding.unrecorded):
            self._send_message(LeaveRequest(must=False))
        self._ask_to_leave_when_idle()

    def _give_back(self, count: int) -> None:
        # The last of the queue, as a real worker does: what waits longest begins soonest.
        jobs = [self._queue.pop() for _ in range(min(count, len(self._queue)))]
        self._report()
        for job in jobs:
            self._holding.returned(job.task, job.attempt)
            del self._pieces[job.task, job.attempt]
        # Below the outcomes that were due, which go first, as with a real worker.
        returned = [(job.task, job.attempt) for job in jobs]
        self._returned += returned
        self._send_message(ReturnedJobs(returned))

    def _look_at_waiting(self) -> None:
        """Return all waiting jobs when none has begun for as long as a real worker waits."""
        self._looks = False
        # Only jobs too wide for what is free wait; another worker may have room for them.
        if not self._in_touch or not self._queue or self._queue[0].processors <= self._free:
            return
        due = self._began + HORIZON
        if self._loop.time() >= due:
            self._give_back(len(self._queue))
        else:
            self._looks = True
            self._loop.call_at(due, self._look_at_waiting)

    def _recorded(self, count: int) -> None:
        """Process an acknowledgement of the oldest reported outcomes."""
        for _ in range(count):
            said = self._said.popleft()
            attempt = said.outcome.task, said.outcome.attempt
            del self._pieces[attempt]
            # Only then has the service always known whose attempt it was, and must charge it.
            if attempt in self._given_here:
                self._checker.recorded(said.piece, said.outcome)

    def evict(self) -> None:
        """
        Stop all tasks, and leave once their outcomes are acknowledged.

        A real worker is evicted by a signal, some time before the scheduler kills its job.
        """
        if self._must_go:
            return
        self._must_go = True
        self._trace.fault("worker evicted", self.post.name, "says goodbye")
        if self._in_touch:
            self._send_message(LeaveRequest(must=True))
        self._cancel(None, _TAKEN_AWAY)

    def _cancel(self, which: set[int] | None, reason: str) -> None:
        kept: deque[WireJob] = deque()
        for job in self._queue:
            if which is not None and job.task not in which:
                kept.append(job)
            else:
                cancelled = Status.CANCELLED
                self._holding.finished(
                    Outcome(task=job.task, attempt=job.attempt, status=cancelled, reason=reason)
                )
        self._queue = kept
        for attempt in list(self._attempts.values()):
            if which is None or attempt.job.task in which:
                attempt.timer.cancel()
                self._finish(attempt, Status.CANCELLED, reason)
        self._start()
        self._report()

    # Tasks.

    def _start(self) -> None:
        queue = self._queue
        while queue and queue[0].processors <= self._free:
            # An earlier attempt at the same task has to end first.
            if queue[0].task in self._attempts:
                break
            self._begin(queue.popleft())
            self._began = self._loop.time()
        if not self._looks:
            self._look_at_waiting()

    def _begin(self, job: WireJob) -> None:
        piece = _task_of_job(job)
        if job.processors != piece.processors:
            self._checker.wrong(self.post.name, f"{piece.name} has {job.processors} processors")
        self._free -= job.processors
        seconds = piece.seconds * self._slow
        exit_code = piece.exit_code_of(job.attempt)
        status = Status.SUCCEEDED if exit_code == 0 else Status.FAILED
        if job.limit and seconds > job.limit:
            seconds, status = job.limit, Status.TIMED_OUT
        attempt = _SimulatedAttempt(
            job, piece, self._clock(), self._loop.call_later(seconds, self._end, job.task, status)
        )
        self._attempts[job.task] = attempt
        self._trace.note(self.post.name, f"begins {piece.name}, attempt {job.attempt}")
        self._checker.began(self.post.name, self.post.processors, piece)

    def _end(self, task: int, status: Status) -> None:
        attempt = self._attempts[task]
        self._finish(attempt, status, "" if status is Status.SUCCEEDED else str(status))
        self._start()
        self._report()
        self._return_again()
        self.wake()

    def _return_again(self) -> None:
        if self._in_touch and self._returned and self._says_returns_again:
            self._send_message(ReturnedJobs(self._returned))

    def _keep_what_is_held(self, link: "_WorkerProtocol") -> None:
        """Note the tasks named in the hello as this worker's, as no cancellation came in time."""
        if link is self._link:
            self._kept_here.update(link.holds)

    def _finish(self, attempt: _SimulatedAttempt, status: Status, reason: str) -> None:
        job, piece = attempt.job, attempt.piece
        del self._attempts[job.task]
        self._free += job.processors
        end = self._clock()
        ran = status in (Status.SUCCEEDED, Status.FAILED)
        exit_code = piece.exit_code_of(job.attempt)
        shows = ran and not piece.is_sealed
        # A closed end sends nothing more, though bytes sent before may still arrive.
        hears = self._link is not None and self._link.stands
        self._trace.note(self.post.name, f"ends {piece.name}: {status}")
        self._checker.ended(
            self.post.name,
            piece,
            attempt.start,
            end,
            exit_code=exit_code if ran else None,
            in_touch_since=self._welcomed if hears else math.inf,
        )
        self._holding.finished(
            Outcome(
                task=job.task,
                attempt=job.attempt,
                status=status,
                exit_code=exit_code if shows else None,
                start=attempt.start,
                end=end,
                stdout=piece.name.encode() if shows else b"",
                stdout_size=len(piece.name) if shows else 0,
                sealed=piece.sealed_result if ran and piece.is_sealed else b"",
                reason=reason,
            )
        )

    # Messages to the service.

    def _report(self) -> None:
        if self._in_touch:
            for outcomes in self._holding.take_unsent():
                for outcome in outcomes:
                    attempt = outcome.task, outcome.attempt
                    self._said.append(_UnconfirmedOutcome(outcome, self._pieces[attempt]))
                self._send_message(OutcomeReport(outcomes))

    def _send_message(self, message: FromWorker) -> None:
        if self._link is not None:
            self._link.say(message)

    def _die(self) -> None:
        for attempt in self._attempts.values():
            self._checker.lost(self.post.name, attempt.piece)
        self._attempts.clear()


def _task_of_job(job: WireJob) -> SimulatedTask:
    if job.sealed:
        return open_sealed_task(job.sealed)
    step = job.steps[0]
    assert isinstance(step, Exec)
    return parse_task_command(step.argv)


class _WorkerProtocol(asyncio.Protocol):
    """Handles one connection of a worker."""

    def __init__(self, worker: FaultyWorker) -> None:
        self.is_lost = False
        self.holds: tuple[tuple[int, int], ...] = ()
        self._worker = worker
        self._transport: FaultyTransport | None = None
        self._frames = FrameDecoder()

    def say(self, message: FromWorker) -> None:
        """Send a message, if the connection still exists."""
        if self._transport is None or self.is_lost:
            return
        if isinstance(message, ReturnedJobs | LeaveRequest) and self._worker.door.deserts():
            # What follows from these must hold also where they come after the next Hello.
            self._transport.desert(frame(message))
        else:
            self._transport.write(frame(message))

    @property
    def stands(self) -> bool:
        """Whether the connection is intact at both ends."""
        return self._transport is not None and not self.is_lost and self._transport.stands

    def close(self) -> None:
        """Close the connection."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the Hello, in which the worker names itself and the jobs that it still holds."""
        assert isinstance(transport, FaultyTransport)
        self._transport = transport
        hello = self._worker.hello()
        self.holds = hello.holds
        self.say(hello)

    def data_received(self, data: bytes) -> None:
        """Pass decoded messages to the worker."""
        if not self.is_lost:
            for body in self._frames.feed(data):
                self._worker.take(_DECODER.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the worker, which will reconnect."""
        self.is_lost = True
        self._worker.wake()
