"""
A worker of a service on virtual time: it keeps the books of a real one and runs nothing.

It outlives the service: what it has goes on while there is no connection, and what ended is said
until it is recorded; see :class:`bursar.dispatch.holding.Holding`.
"""

import asyncio
import math
import random
from collections import deque
from dataclasses import dataclass

import msgspec

from bursar.dispatch.holding import Holding
from bursar.dispatch.prefetch import HORIZON
from bursar.dispatch.wire import (
    Cancel,
    Frames,
    FromServer,
    FromWorker,
    GiveBack,
    Hello,
    Job,
    Leave,
    Recorded,
    Results,
    Returned,
    Welcome,
    Work,
    frame,
)
from bursar.model.outcome import Outcome, Status
from bursar.model.step import Exec
from bursar.service.parties import Clock
from bursar.simulation.faults.lives import Life
from bursar.simulation.faults.trace import Trace
from bursar.simulation.faults.wires import Door
from bursar.simulation.faults.witness import Witness
from bursar.simulation.faults.work import Piece, open_piece, parse_piece

_SOONEST, _LATEST = 0.05, 2.0
"""Seconds between two tries to come back."""

_WELCOME = 10.0
"""Seconds in which a service that was found again answers."""

_SLOWEST = 3.0
"""Times that a slow worker takes for a task."""

_DECODER = msgspec.msgpack.Decoder(FromServer)
_JOBS = msgspec.msgpack.Decoder(Job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """
    What a worker is told when it is started.

    Parameters
    ----------
    name, site, lease, processors, token
        Of its :class:`bursar.dispatch.wire.Hello`.
    """

    name: str
    site: str
    lease: str
    processors: int
    token: str


@dataclass(slots=True)
class _Attempt:
    job: Job
    piece: Piece
    start: float
    timer: asyncio.TimerHandle


class ServiceWorker:
    """
    Takes jobs and lets the time pass that they take.

    Parameters
    ----------
    post
        What it was told.
    life
        Its own.
    door
        Where the service listens.
    clock
        Its own, seconds since the epoch.
    chance
        Source of its speed, and when it tries to come back.
    witness, trace
        See all it does.
    """

    def __init__(
        self,
        post: Post,
        life: Life,
        door: Door,
        *,
        clock: Clock,
        chance: random.Random,
        witness: Witness,
        trace: Trace,
    ) -> None:
        self.post = post
        self.life = life
        self.has_left = False
        self._door = door
        self._clock = clock
        self._chance = chance
        self._slow = chance.choice((1.0, 1.0, chance.uniform(1.0, _SLOWEST)))
        self._witness = witness
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._holding = Holding()
        self._queue: deque[Job] = deque()
        self._attempts: dict[int, _Attempt] = {}
        self._free = post.processors
        self._began = self._loop.time()  # a job; the last of them
        self._looks = False  # a look at what waits is due
        self._link: _Link | None = None
        self._in_touch = False
        self._welcomed = math.inf
        self._outlives = 0.0
        self._leaving = False
        self._news = asyncio.Event()
        life.on_death(self._die)

    async def run(self) -> None:
        """Works until it is let go, or has been without a service for too long."""
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
        self.life.kill()

    async def _stay_in_touch(self) -> bool:
        """Connects, and returns when that is over; whether it was made welcome."""
        link = _Link(self)
        try:
            self._door.connect(self.life, link)
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
        self._holding.lost_connection()
        return with_welcome

    async def _heard(self) -> None:
        self._news.clear()
        await self._news.wait()

    @property
    def _is_done(self) -> bool:
        return self._leaving and not self._attempts and not self._holding.unrecorded

    def hello(self) -> Hello:
        """What it says first."""
        post = self.post
        return Hello(
            post.token,
            post.name,
            post.site,
            post.processors,
            post.lease,
            post.name,
            self._holding.holds(),
        )

    def wake(self) -> None:
        """Something has happened to its connection."""
        self._news.set()

    # What it is told.

    def take(self, message: FromServer) -> None:
        """Does as it is told."""
        match message:
            case Welcome():
                self._outlives = message.outlives
                self._in_touch = True
                self._welcomed = self._loop.time()
                self._report()
                if not self._looks:
                    self._look_at_waiting()
            case Work(jobs):
                for job in map(_JOBS.decode, jobs):
                    if self._holding.took(job.task, job.attempt):
                        self._witness.given(self.post.name, _piece_of(job))
                        self._queue.append(job)
                self._start()
            case GiveBack(count):
                self._give_back(count)
            case Cancel(tasks, _, reason):
                self._cancel(set(tasks) or None, reason)
            case Recorded(count):
                self._holding.recorded(count)
            case Leave():
                self._leaving = True
        self.wake()

    def _give_back(self, count: int) -> None:
        jobs = [self._queue.pop() for _ in range(min(count, len(self._queue)))]
        self._report()
        for job in jobs:
            self._holding.returned(job.task, job.attempt)
        self._say(Returned([(job.task, job.attempt) for job in jobs]))

    def _look_at_waiting(self) -> None:
        """Return all jobs that wait when none has begun for as long as a real worker waits."""
        self._looks = False
        if not self._in_touch or not self._queue or self._queue[0].processors <= self._free:
            return
        due = self._began + HORIZON
        if self._loop.time() >= due:
            self._give_back(len(self._queue))
        else:
            self._looks = True
            self._loop.call_at(due, self._look_at_waiting)

    def _cancel(self, which: set[int] | None, reason: str) -> None:
        kept: deque[Job] = deque()
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
            if queue[0].task in self._attempts:
                break
            self._begin(queue.popleft())
            self._began = self._loop.time()
        if not self._looks:
            self._look_at_waiting()

    def _begin(self, job: Job) -> None:
        piece = _piece_of(job)
        if job.processors != piece.processors:
            self._witness.wrong(self.post.name, f"{piece.name} has {job.processors} processors")
        self._free -= job.processors
        seconds = piece.seconds * self._slow
        status = Status.SUCCEEDED if piece.exit_code == 0 else Status.FAILED
        if job.limit and seconds > job.limit:
            seconds, status = job.limit, Status.TIMED_OUT
        attempt = _Attempt(
            job, piece, self._clock(), self._loop.call_later(seconds, self._end, job.task, status)
        )
        self._attempts[job.task] = attempt
        self._trace.note(self.post.name, f"begins {piece.name}, attempt {job.attempt}")
        self._witness.began(self.post.name, self.post.processors, piece)

    def _end(self, task: int, status: Status) -> None:
        attempt = self._attempts[task]
        self._finish(attempt, status, "" if status is Status.SUCCEEDED else str(status))
        self._start()
        self._report()
        self.wake()

    def _finish(self, attempt: _Attempt, status: Status, reason: str) -> None:
        job, piece = attempt.job, attempt.piece
        del self._attempts[job.task]
        self._free += job.processors
        end = self._clock()
        ran = status in (Status.SUCCEEDED, Status.FAILED)
        shows = ran and not piece.is_sealed
        self._trace.note(self.post.name, f"ends {piece.name}: {status}")
        self._witness.ended(
            self.post.name,
            piece,
            attempt.start,
            end,
            killed=not ran,
            in_touch_since=self._welcomed,
        )
        self._holding.finished(
            Outcome(
                task=job.task,
                attempt=job.attempt,
                status=status,
                exit_code=piece.exit_code if shows else None,
                start=attempt.start,
                end=end,
                stdout=piece.name.encode() if shows else b"",
                stdout_size=len(piece.name) if shows else 0,
                sealed=piece.sealed_result if ran and piece.is_sealed else b"",
                reason=reason,
            )
        )

    # What it says.

    def _report(self) -> None:
        if self._in_touch:
            for outcomes in self._holding.say():
                self._say(Results(outcomes))

    def _say(self, message: FromWorker) -> None:
        if self._link is not None:
            self._link.say(message)

    def _die(self) -> None:
        for attempt in self._attempts.values():
            self._witness.lost(self.post.name, attempt.piece)
        self._attempts.clear()


def _piece_of(job: Job) -> Piece:
    if job.sealed:
        return open_piece(job.sealed)
    step = job.steps[0]
    assert isinstance(step, Exec)
    return parse_piece(step.argv)


class _Link(asyncio.Protocol):
    """One connection of a worker."""

    def __init__(self, worker: ServiceWorker) -> None:
        self.is_lost = False
        self._worker = worker
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()

    def say(self, message: FromWorker) -> None:
        """Sends it, if there is still a connection."""
        if self._transport is not None and not self.is_lost:
            self._transport.write(frame(message))

    def close(self) -> None:
        """Hangs up."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Says who it is."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.say(self._worker.hello())

    def data_received(self, data: bytes) -> None:
        """What it is told."""
        if not self.is_lost:
            for body in self._frames.feed(data):
                self._worker.take(_DECODER.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        """It tries to come back."""
        self.is_lost = True
        self._worker.wake()
