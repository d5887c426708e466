"""
A worker: a small process that starts tasks and reports how they ended.

One thread and one epoll loop. It stays small because starting a process is
what it is for, and single-threaded because a started process takes over the
worker's working directory. Its settings come on standard input, so that the
run's secret is on no command line.

Without the dispatcher a worker has no purpose: when the connection ends it
kills what it runs and leaves. Unless its dispatcher told it to outlive that:
then it goes on with what it has, keeps what is not durable, and comes back.

One of a pilot, or one that outlives its dispatcher, takes its leave first when
it is told to end.
"""

import contextlib
import heapq
import math
import os
import select
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from bursar.dispatch.linux_processes import (
    SIGINFO,
    adopt_orphans,
    children,
    kill_descendants,
    signal_descriptor,
    task_of,
)
from bursar.dispatch.prefetch import WaitLimit
from bursar.dispatch.wire import (
    BATCH_SIZE,
    MOST_SHOWN,
    NONSENSE,
    CancelTasks,
    FrameDecoder,
    FromServer,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    LeaveRequest,
    OutcomeAck,
    OutcomeReport,
    OutputPiece,
    OutputQuery,
    ProtocolError,
    ReturnedJobs,
    SealKey,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.task import Outcome, Status
from bursar.worker.accounts import switch_to_account
from bursar.worker.attempt import GRACE, Attempt
from bursar.worker.attempt_context import AttemptContext
from bursar.worker.dispatcher_connection import (
    DispatcherConnection,
    WorkerSettings,
    hello_of,
    make_connection,
)
from bursar.worker.memory_enforcement import (
    MemoryWatch,
    over_memory,
    processes_of_tasks,
    used_memory,
)
from bursar.worker.output_capture import OutputCapture
from bursar.worker.python_calls import AHEAD, MOST_AHEAD, is_plain
from bursar.worker.spawning import ProcessUsage, Reaper
from bursar.worker.unacknowledged import UnacknowledgedWork

if TYPE_CHECKING:
    from bursar.worker.reconnect import Reconnector

REPORT = 0.05
"""Seconds that results may wait for others while there is more to do."""

YOUTH = 0.005
"""Seconds, about, that a task runs before its output is read while the task goes on."""

LONGEST_WAIT = 86_400.0
"""Seconds that one wait lasts at most: epoll refuses over 24 days, and a lease may be longer."""

PARTING = 4.0
"""Seconds that a worker which must end has for its last reports, after its tasks' grace."""

WELCOME = 10.0
"""Seconds for a dispatcher that was found again to answer; after that the worker reconnects."""

TAKEN_AWAY = "its processors were taken away"

_SAME_BLOW = 0.1
"""Seconds between the signals that a scheduler sends to the processes of one job, at most."""

_BY_SIGTERM = (-signal.SIGTERM, 128 + signal.SIGTERM)  # exit codes, the second of a shell

_MOST_UNREPORTED = 1024


class Worker:
    """
    The loop around attempts.

    Parameters
    ----------
    settings
        Name, processors and credentials of the worker, and the dispatcher's address.
    line
        Connection to the dispatcher on which the hello was sent already; None: the worker
        connects by itself.

    Raises
    ------
    OSError
        When the dispatcher cannot be reached, or is not who it should be.
    """

    def __init__(self, settings: WorkerSettings, line: DispatcherConnection | None = None) -> None:
        self._settings = settings
        self._server = line or make_connection(settings)
        self._has_sent_hello = line is not None
        self._free = settings.processors
        self._queue: deque[WireJob] = deque()
        self._running: dict[int, Attempt] = {}  # by process
        self._tasks: dict[int, Attempt] = {}  # by task
        self._timers: list[tuple[float, int, int, Attempt]] = []
        self._timer = 0
        self._memory = MemoryWatch()
        self._holding = UnacknowledgedWork()
        self._unsent = bytearray()
        self._leaving = False
        self._place: AttemptContext | None = None
        self._decoder = msgspec.msgpack.Decoder(FromServer)
        self._jobs = msgspec.msgpack.Decoder(WireJob)
        self._frames = FrameDecoder()
        self._poll = select.epoll()
        self._signals = signal_descriptor((signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1))
        self._children = Reaper()
        self._calls: dict[int, Attempt] = {}  # by the descriptor of the callee's bell
        self._streams: dict[int, OutputCapture] = {}  # those drained in the loop, by descriptor
        self._young: list[Attempt] = []
        self._older: list[Attempt] = []
        self._next_check = 0.0
        self._blocked = False
        self._reported = 0.0
        self._began = self._idle_since = time.monotonic()  # last start; last moment with a task
        self._wait_limit = WaitLimit()
        self._asked_to_leave = False
        self._is_draining = (
            False  # after SIGUSR1: it takes no more tasks, and leaves after the last
        )
        self._must_end = math.inf  # after SIGTERM: when it ends, even without an answer
        self._outlives = 0.0
        self._in_touch = False  # it was made welcome over the present connection
        self._is_cut = False  # the present connection is of no use; acted on when a turn ends
        self._reconnector: Reconnector | None = None  # while there is no connection
        self._setbacks = 0
        self._welcome_by = math.inf
        self._away_until = math.inf

    @property
    def is_welcome(self) -> bool:
        """Whether the dispatcher has accepted this worker."""
        return self._place is not None

    def run(self) -> bool:
        """
        Work until the dispatcher releases the worker, or is gone.

        Returns
        -------
        bool
            True when the worker was dismissed or told to end; False when it lost its dispatcher.
        """
        # Before the first task: a process that leaves its group and loses its parent becomes a
        # child of this one, so that it is found and killed.
        adopt_orphans()
        self._poll.register(self._server, select.EPOLLIN)
        self._poll.register(self._signals, select.EPOLLIN)
        try:
            if not self._has_sent_hello:
                self._send(frame(hello_of(self._settings)))
            while not self._has_left:
                self._turn()
        except (ConnectionError, *NONSENSE):
            pass  # the dispatcher is gone, or is none
        finally:
            # Also after an error of ours: no process may use processors that nobody accounts for.
            kill_descendants()
            if self._place is not None:
                self._place.close()
            self._server.close()
            if self._reconnector is not None:
                self._reconnector.close()
        return self._leaving or self._must_end < math.inf

    @property
    def _has_left(self) -> bool:
        nothing = not self._running and not self._unsent and not self._holding.unrecorded
        return self._leaving and nothing

    def _turn(self) -> None:
        server, signals = self._server.fileno(), self._signals
        for fd, events in self._poll.poll(self._patience()):
            if fd == signals:
                self._take_signal()
            elif fd == server:
                if events & select.EPOLLOUT:
                    self._flush()
                if events & ~select.EPOLLOUT:
                    self._listen()
            elif fd in self._streams:
                self._streams[fd].drain()
            elif self._reconnector is not None and fd == self._reconnector.fileno():
                self._reconnect()
            else:
                self._on_readable(fd)
        # The order of what follows counts: jobs start after all ends of this turn were taken in,
        # which made processors free, and whether to report depends on what still waits then.
        if self._young or self._older:
            self._listen_to_detached()
        if self._timers:
            self._ring()
        if self._memory.seconds_left(time.monotonic()) == 0:
            self._look_at_memory()
        self._start()
        if self._queue and self._waits_behind_others:
            self._return_what_waits()
        if self._holding.unsent_size and self._in_touch and self._is_time_to_report():
            self._report()
        if self._settings.idle is not None:
            self._ask_to_leave(self._settings.idle)
        if self._must_end < math.inf and self._is_parting_over():
            raise ConnectionAbortedError
        # Last of a turn: a connection that breaks while something is written must not be replaced
        # under the hands of those who use it.
        if self._is_cut or (self._welcome_by < math.inf and self._waits_in_vain()):
            self._lose()

    def _take_signal(self) -> None:
        number = int.from_bytes(os.read(self._signals, SIGINFO)[:4], sys.byteorder)
        if number == signal.SIGTERM:
            self._end_soon()
        elif number == signal.SIGUSR1:
            self._drain()
        else:
            self._reap()

    def _patience(self) -> float | None:
        patience = None
        if self._timers:
            patience = max(0.0, self._timers[0][0] - time.monotonic())
        if self._holding.unsent_size and self._in_touch:
            patience = REPORT if patience is None else min(patience, REPORT)
        if self._young or self._older:
            patience = YOUTH if patience is None else min(patience, YOUTH)
        if self._queue and self._in_touch and self._waits_behind_others:
            left = max(0.0, self._began + self._wait_limit.seconds - time.monotonic())
            patience = left if patience is None else min(patience, left)
        left = self._memory.seconds_left(time.monotonic())
        if left < math.inf:
            patience = left if patience is None else min(patience, left)
        if self._may_part:
            left = self._seconds_to_parting()
            patience = left if patience is None else min(patience, left)
        return None if patience is None else min(patience, LONGEST_WAIT)

    @property
    def _may_part(self) -> bool:
        idle = self._settings.idle is not None
        return idle or self._must_end < math.inf or self._welcome_by < math.inf

    def _seconds_to_parting(self) -> float:
        """Return seconds until the worker ends, asks to leave, or stops waiting for a welcome."""
        idle = self._settings.idle
        moment = min(self._must_end, self._welcome_by)
        if idle is not None and self._in_touch and not self._tasks and not self._asked_to_leave:
            moment = min(moment, self._idle_since + idle)
        return max(0.0, moment - time.monotonic())

    def _ask_to_leave(self, idle: float) -> None:
        """
        Ask to leave after some time without a task (DRP section 3.1).

        The worker leaves when the dispatcher says so: a task may be on its way.
        """
        if self._tasks or self._queue:
            self._idle_since = time.monotonic()
            self._asked_to_leave = False
        elif (
            not self._asked_to_leave
            and self._in_touch
            and time.monotonic() - self._idle_since >= idle
        ):
            self._asked_to_leave = True
            self._send(frame(LeaveRequest(must=False)))

    def _end_soon(self) -> None:
        """End all tasks and report their outcomes, since the processors are being taken away."""
        if not self._takes_leave:
            raise ConnectionAbortedError
        # A scheduler may send SIGTERM more than once; only the first sets the time.
        if self._must_end < math.inf:
            return
        self._must_end = time.monotonic() + self._settings.grace + PARTING
        if self._in_touch:
            self._send(frame(LeaveRequest(must=True)))
        # After the request to leave: the dispatcher must know that this worker leaves before
        # outcomes make room for new tasks here.
        self._cancel([], self._settings.grace, TAKEN_AWAY)

    def _drain(self) -> None:
        """Take no more tasks, return those that wait, and leave when the others have ended."""
        if self._is_draining:
            return
        self._is_draining = True
        if self._in_touch and self._takes_leave:
            self._send(frame(LeaveRequest(must=True)))
            self._return_all()

    def _return_all(self) -> None:
        self._take_back_calls()
        if self._queue:
            self._give_back(len(self._queue))

    @property
    def _takes_leave(self) -> bool:
        return self.is_welcome and (bool(self._settings.certificate) or self._outlives > 0)

    def _is_parting_over(self) -> bool:
        """Whether the time to leave is up, or no dispatcher and nothing to report is left."""
        if time.monotonic() >= self._must_end:
            return True
        return self._reconnector is not None and not self._tasks and not self._holding.unrecorded

    def _is_time_to_report(self) -> bool:
        """Whether to report now: at once when no job waits, else several outcomes together."""
        # With nothing waiting the dispatcher's next job is what keeps processors busy, so it hears
        # at once.
        if not self._queue or self._holding.unsent >= _MOST_UNREPORTED:
            return True
        return time.monotonic() - self._reported >= REPORT

    # From the dispatcher.

    def _listen(self) -> None:
        if self._is_cut:
            return
        try:
            for data in self._server.receive():
                for body in self._frames.feed(data):
                    self._take(self._decoder.decode(body))
        except (ConnectionError, *NONSENSE):
            if not self._outlives:
                raise
            self._is_cut = True

    def _take(self, message: FromServer) -> None:
        match message:
            case JobAssignment(jobs):
                self._queue.extend(self._new_of(jobs))
                # They crossed the request to leave on the wire: each still needs an outcome.
                if self._must_end < math.inf:
                    self._cancel([], self._settings.grace, TAKEN_AWAY)
                elif self._is_draining:
                    self._return_all()
            case JobRecall(count):
                if count > len(self._queue):
                    self._take_back_calls()
                since = time.monotonic() - self._began
                self._give_back(self._wait_limit.to_return(len(self._queue), count, since))
            case CancelTasks(tasks, grace, reason):
                self._cancel(tasks, grace, reason)
            case OutcomeAck(count):
                self._recorded(count)
            case Welcome():
                self._be_welcome(message)
            case SealKey(pem):
                if self._place is not None and self._settings.seal_pem:
                    self._place.change_seal_key(pem)
            case OutputQuery():
                self._send(frame(self._output(message)))
            case LeaveOrder():
                self._leaving = True

    def _be_welcome(self, welcome: Welcome) -> None:
        if self._place is None:
            given = self._settings
            self._place = AttemptContext(welcome, given.worker, given.seal_key, given.seal_pem)
        # Another process may have got the address since. It must not get outcomes of a run that is
        # not its own.
        elif welcome.run != self._place.welcome.run:
            raise ProtocolError("another dispatcher has taken the place of the one that was lost")
        self._outlives = welcome.outlives
        self._in_touch = True
        self._setbacks = 0
        self._welcome_by = self._away_until = math.inf
        self._asked_to_leave = False
        # Told to end while there was no connection, or in a request that was lost with one.
        if self._must_end < math.inf or self._is_draining:
            self._send(frame(LeaveRequest(must=True)))

    def _new_of(self, jobs: list[msgspec.Raw]) -> list[WireJob]:
        """Decode jobs, except jobs held since before the connection was lost."""
        decoded = [self._jobs.decode(job) for job in jobs]
        if not self._outlives:
            return decoded
        return [job for job in decoded if self._holding.took(job.task, job.attempt)]

    def _recorded(self, count: int) -> None:
        try:
            self._holding.recorded(count)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def _give_back(self, count: int) -> None:
        jobs = [self._queue.pop() for _ in range(count)]
        self._report()  # what ended before goes first
        for job in jobs:
            # Else the same attempt would be refused as known when the dispatcher gives it again.
            self._holding.returned(job.task, job.attempt)
        # Sent even when empty: the dispatcher waits for an answer to each recall before it asks
        # again.
        self._send(frame(ReturnedJobs([(job.task, job.attempt) for job in jobs])))

    @property
    def _waits_behind_others(self) -> bool:
        """Whether the first job waits for a processor, rather than for the dispatcher's disk."""
        return self._queue[0].processors > self._free

    def _return_what_waits(self) -> None:
        """
        Return all waiting jobs when none has begun for some time: other workers could run them.

        The dispatcher cannot know this as soon nor as precisely: the dispatcher hears of ends
        only, and later.
        """
        if self._in_touch and time.monotonic() - self._began >= self._wait_limit.seconds:
            self._give_back(len(self._queue))

    def _cancel(self, tasks: list[int], grace: float, reason: str) -> None:
        assert self._place is not None
        self._take_back_calls()
        which = set(tasks)
        kept: deque[WireJob] = deque()
        for job in self._queue:
            if tasks and job.task not in which:
                kept.append(job)
            else:
                attempt = Attempt(job, self._place)
                self._finished(attempt.abandon(Status.CANCELLED, reason))
        self._queue = kept
        for attempt in list(self._tasks.values()):
            if not tasks or attempt.job.task in which:
                self._stop(attempt, Status.CANCELLED, reason, grace)

    # Tasks.

    def _start(self) -> None:
        queue, place = self._queue, self._place
        before = len(queue)
        # In the dispatcher's order only: it decides what overtakes what (backfilling in queue.py).
        while queue and queue[0].processors <= self._free:
            if self._outlives and (self._holding.is_full or queue[0].task in self._tasks):
                break  # until something is durable; until the task's attempt before has ended
            assert place is not None
            job = queue.popleft()
            attempt = Attempt(job, place)
            outcome = attempt.begin()
            # Ended without a process, such as a job of copies only, or one whose input is missing.
            if outcome is not None:
                self._finished(outcome)
                continue
            self._free -= job.processors
            self._tasks[job.task] = attempt
            self._watch(attempt)
            if job.limit:
                self._at(job.limit, signal.SIGTERM, attempt)
        if len(queue) < before:
            self._began = time.monotonic()

    def _watch(self, attempt: Attempt) -> None:
        self._running[attempt.pid] = attempt
        self._young.append(attempt)
        if attempt.is_watched:
            self._memory.begin(time.monotonic())
        if attempt.callee is not None:
            fd = attempt.callee.bell.fileno()
            self._calls[fd] = attempt
            self._poll.register(fd, select.EPOLLIN)

    def _listen_to_detached(self) -> None:
        """
        Watch the output of attempts that have run for a while from now on.

        The others' output has room in the pipe until they end: to be woken by
        each of their lines would cost more than their start.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + YOUTH
        # Two generations: what was young at the check before this one has run for YOUTH at least.
        for attempt in self._older:
            # By identity: a further attempt of the same task may run by now.
            if attempt.callee is not None and self._tasks.get(attempt.job.task) is attempt:
                # It has turned out to be long: what waits behind it could run elsewhere.
                self._catch_up(attempt)
            if self._tasks.get(attempt.job.task) is attempt:
                if attempt.callee is not None:
                    attempt.callee.mark()
                for capture in attempt.captures:
                    if capture.reader not in self._streams:
                        self._streams[capture.reader] = capture
                        self._poll.register(capture.reader, select.EPOLLIN)
        self._older, self._young = self._young, []

    def _stop_listening(self, attempt: Attempt) -> None:
        if not self._streams:
            return
        for capture in attempt.captures:
            if self._streams.pop(capture.reader, None) is not None:
                self._poll.unregister(capture.reader)

    def _output(self, query: OutputQuery) -> OutputPiece:
        """Return what an attempt has printed, as far as this process has read the pipe."""
        attempt = self._tasks.get(query.task)
        if attempt is None or attempt.job.attempt != query.attempt:
            return OutputPiece(query.query)
        capture = attempt.shown(query.stream)
        if capture is None:
            return OutputPiece(query.query, attempt.start, is_sealed=attempt.seal is not None)
        # Of a young attempt the pipe is not touched: a callee may still read that itself.
        if capture.reader in self._streams:
            capture.drain()
        content, offset, size = capture.read(query.offset, min(query.most, MOST_SHOWN))
        return OutputPiece(query.query, attempt.start, offset, size, content)

    # Calls.

    def _unwatch_call(self, attempt: Attempt) -> None:
        fd = attempt.callee.bell.fileno()
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _on_readable(self, fd: int) -> None:
        attempt = self._calls.get(fd)
        # Unregistered earlier in this turn; epoll had reported the descriptor before.
        if attempt is not None:
            self._take_answers(attempt)

    def _take_answers(self, attempt: Attempt, *, ahead: bool = True) -> None:
        """
        Take a callee's answers; the attempt ends, or is followed by that which runs there.

        Parameters
        ----------
        ahead
            Whether further calls are sent there.
        """
        callee, last = attempt.callee, None
        for answer in callee.answers():
            if last is not None:
                self._finished(attempt.passed(last))
            last = answer
        if last is None:
            return
        if last.paused:
            self._queue.extendleft(reversed(callee.take_back()))
        elif ahead:
            self._send_ahead(attempt)
        if callee.sent:
            self._finished(attempt.passed(last))
            running = next(iter(callee.sent.values()))
            self._replace(attempt, attempt.followed_by(running, last.ended))
            return
        if last.job is not attempt.job:
            follower = attempt.followed_by(last.job, last.begun)
            self._replace(attempt, follower)
            attempt = follower
        del self._running[attempt.pid]
        self._unwatch_call(attempt)
        self._stop_listening(attempt)
        self._went_on(attempt, attempt.answered(last))

    def _replace(self, attempt: Attempt, follower: Attempt) -> None:
        """Go on with the call that follows an attempt at its callee."""
        del self._tasks[attempt.job.task]
        self._tasks[follower.job.task] = follower
        self._running[follower.pid] = follower
        self._calls[follower.callee.bell.fileno()] = follower
        self._young.append(follower)
        if follower.is_watched:
            self._memory.begin(time.monotonic())
        if follower.job.limit:
            self._at(follower.job.limit, signal.SIGTERM, follower)
        self._began = time.monotonic()

    def _send_ahead(self, attempt: Attempt) -> None:
        """
        Send waiting calls to a callee that has answered, as many as are short together.

        Never to one that has not yet answered the first of them, with which their surroundings
        came: what is taken back must not be that.
        """
        callee, queue = attempt.callee, self._queue
        mean = self._wait_limit.mean
        if not queue or mean is None or attempt.stopped is not None or not attempt.is_plain:
            return
        share = -(-len(queue) // self._settings.processors)
        room = min(callee.room, share, int(AHEAD / max(mean, AHEAD / MOST_AHEAD)))
        while queue and len(callee.sent) < room:
            job = queue[0]
            if not is_plain(job) or job.home != attempt.job.home:
                return
            if self._outlives and (self._holding.is_full or job.task in self._tasks):
                return
            if not callee.send_ahead(job):
                return
            queue.popleft()

    def _catch_up(self, attempt: Attempt) -> None:
        """Take the answers of a callee, and take back what waits there behind a call."""
        callee = attempt.callee
        # Nothing is sent ahead again: whoever catches up looks for calls in the queue.
        self._take_answers(attempt, ahead=False)
        if len(callee.sent) > 1:
            callee.room = 1
            self._queue.extendleft(reversed(callee.take_back()))
            if callee.sent:
                # It may have begun another one just before.
                self._take_answers(self._calls[callee.bell.fileno()], ahead=False)
            else:
                self._withdraw(self._calls[callee.bell.fileno()])
                assert self._place is not None
                self._place.callees.give(callee)

    def _take_back_calls(self) -> None:
        """Take back the calls that wait at callees."""
        for attempt in list(self._calls.values()):
            self._catch_up(attempt)

    def _bury_callee(self, attempt: Attempt) -> None:
        """Take what a callee has answered before it died, and take back what it has not begun."""
        callee = attempt.callee
        self._take_answers(attempt)
        current = self._calls.get(callee.bell.fileno())
        if current is None:
            return
        found = callee.take_back()
        # A call that was just given begins elsewhere: unless it was told to end, or is a step of
        # several, or was sealed, whose opened form must not wait in the queue; or the process has
        # never carried out a call, when the next one may die as well, and so on for ever.
        again = current.stopped is None and current.is_plain and callee.has_answered
        if not again:
            found = [job for job in found if job is not current.job]
        self._queue.extendleft(reversed(found))
        if again and not callee.sent:
            self._withdraw(current)
            callee.close()

    def _withdraw(self, attempt: Attempt) -> None:
        """Forget an attempt that has not begun; its job waits again."""
        del self._running[attempt.pid], self._tasks[attempt.job.task]
        self._unwatch_call(attempt)
        self._stop_listening(attempt)
        attempt.withdraw()
        self._free += attempt.job.processors

    def _reap(self) -> None:
        ended: list[tuple[Attempt, int, ProcessUsage]] = []
        escaped = False
        # All of them: a SIGCHLD stands for any number of ended children.
        while (found := self._children.wait()) is not None:
            pid, code, usage = found
            if pid == 0:
                # Once per burst, when no further child has ended: the search reads /proc for each
                # child.
                escaped = self._end_escapees({attempt for attempt, _, _ in ended})
                break
            # Taken out here and told below, so that escapees are judged by all that ended in this
            # burst.
            attempt = self._running.get(pid)
            if attempt is not None and attempt.callee is not None:
                self._bury_callee(attempt)
            attempt = self._running.pop(pid, None)
            if attempt is not None:
                if code in _BY_SIGTERM:
                    self._ask_who_ended(attempt)
                ended.append((attempt, code, usage))
            elif self._place is not None:
                self._place.callees.forget(pid)
        for attempt, code, usage in ended:
            if attempt.callee is not None:
                self._unwatch_call(attempt)
                attempt.callee.close()
            self._stop_listening(attempt)
            self._went_on(attempt, attempt.ended(code, usage, alone=found is None, escaped=escaped))

    def _ask_who_ended(self, attempt: Attempt) -> None:
        """Find out whether a task was ended by a scheduler, which signals in any order."""
        if (
            self._takes_leave
            and attempt.stopped is None
            and self._must_end == math.inf
            # Waits for the worker's own SIGTERM: if it comes, the task did not fail but its
            # processors are taken away, and it runs again elsewhere without a failure counted.
            and signal.sigtimedwait((signal.SIGTERM,), _SAME_BLOW) is not None
        ):
            self._end_soon()

    def _end_escapees(self, ended: set[Attempt]) -> bool:
        """
        Kill adopted processes, which left the process group of a task and outlived that task.

        Returns
        -------
        bool
            Whether there was any.
        """
        place = self._place
        assert place is not None
        known = self._running.keys() | place.callees.pids
        found = False
        for pid in children():
            if pid in known:
                continue
            number = task_of(pid)
            owner = None if number is None else self._tasks.get(number)
            # A daemon of a task that still runs may live on until that task ends.
            if (owner is None or owner in ended) and not place.serves_container(pid):
                found = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return found

    def _went_on(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if outcome is None:
            self._watch(attempt)
            if attempt.stopped is not None:  # a step began after the signal was sent
                attempt.signal(signal.SIGTERM)
            return
        self._finished(outcome)
        self._free += attempt.job.processors
        del self._tasks[attempt.job.task]

    def _stop(self, attempt: Attempt, status: Status, reason: str, grace: float) -> None:
        if attempt.callee is not None:
            # No other call may begin there and be hit by the signal.
            self._catch_up(attempt)
            if self._tasks.get(attempt.job.task) is not attempt:
                return
        # The first reason stays: a time-out is not renamed by a cancellation that comes after it.
        if attempt.stopped is None:
            attempt.stopped = (status, reason)
        if grace > 0:
            attempt.signal(signal.SIGTERM)
            self._at(grace, signal.SIGKILL, attempt)
        else:
            attempt.signal(signal.SIGKILL)

    # Time.

    def _at(self, seconds: float, number: int, attempt: Attempt) -> None:
        # A serial number, so that the heap never compares attempts.
        self._timer += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._timer, number, attempt))

    def _ring(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, number, attempt = heapq.heappop(self._timers)
            # Timers are not removed when attempts end, which would cost a search of the heap each
            # time.
            if self._tasks.get(attempt.job.task) is not attempt:
                continue
            if number == signal.SIGKILL:
                attempt.signal(signal.SIGKILL)
            elif attempt.stopped is None:
                reason = f"killed at its wall-time limit of {attempt.job.limit:g} s"
                self._stop(attempt, Status.TIMED_OUT, reason, GRACE)
        # Short tasks with long limits leave their timers behind: drop them in bulk.
        if len(self._timers) > 64 + 4 * len(self._tasks):
            self._timers = [t for t in self._timers if self._tasks.get(t[3].job.task) is t[3]]
            heapq.heapify(self._timers)

    # Memory.

    def _look_at_memory(self) -> None:
        """Kill the tasks that use more memory than they state."""
        began = time.monotonic()
        watched = [attempt for attempt in self._tasks.values() if attempt.is_watched]
        if watched:
            processes = processes_of_tasks(self._running)
            for attempt in watched:
                limit = attempt.job.memory
                used = used_memory(processes.get(attempt.pid, ()), limit)
                if used > limit and attempt.stopped is None:
                    self._stop(attempt, Status.FAILED, over_memory(used, limit), 0.0)
        now = time.monotonic()
        self._memory.looked(now, now - began, again=bool(watched))

    # To the dispatcher.

    def _finished(self, outcome: Outcome) -> None:
        self._wait_limit.learn(outcome.end - outcome.start)
        self._holding.finished(outcome)
        # A frame's worth: to keep more costs memory and saves nothing.
        if self._in_touch and self._holding.unsent_size > BATCH_SIZE:
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        for piece in self._holding.take_unsent():
            self._send(frame(OutcomeReport(piece)))
            if not self._outlives:  # what was said is out of its hands
                self._holding.recorded(len(piece))

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        if self._is_cut:
            return
        try:
            sent = self._server.send(self._unsent)
        except ConnectionError:
            if not self._outlives:
                raise
            # Acted on when the turn ends; see _turn.
            self._is_cut = True
            return
        del self._unsent[:sent]
        blocked = bool(self._unsent)
        interest = select.EPOLLIN | (select.EPOLLOUT if blocked else 0)
        # Asked to be woken for writing only while something waits: epoll would report a writable
        # socket at every turn.
        if blocked != self._blocked:
            self._blocked = blocked
            self._poll.modify(self._server, interest)

    # Without the dispatcher.

    def _lose(self) -> None:
        """Close the connection to the dispatcher and start to look for another one."""
        from bursar.worker.reconnect import (
            Reconnector,  # seldom wanted, and it takes time to load
        )

        self._poll.unregister(self._server)
        self._server.close()
        self._frames = FrameDecoder()
        # Half a frame would be garbage on the next connection; whole outcomes in it are sent again
        # by UnacknowledgedWork.
        self._unsent.clear()
        self._holding.lost_connection()
        if self._in_touch:
            self._away_until = time.monotonic() + self._outlives
        else:
            # Found and lost before a welcome: the time allowed without a dispatcher runs on, and
            # the wait before the next try grows.
            self._setbacks += 1
        self._in_touch = self._is_cut = self._blocked = False
        self._welcome_by = math.inf
        self._reconnector = Reconnector(self._settings, self._away_until, self._setbacks)
        self._poll.register(self._reconnector, select.EPOLLIN)

    def _waits_in_vain(self) -> bool:
        """Whether the dispatcher was found again and does not answer."""
        return time.monotonic() >= self._welcome_by

    def _reconnect(self) -> None:
        assert self._reconnector is not None
        line = self._reconnector.take()
        self._poll.unregister(self._reconnector)
        self._reconnector.close()
        self._reconnector = None
        if line is None:
            raise ConnectionAbortedError  # for good
        self._server = line
        self._poll.register(self._server, select.EPOLLIN)
        self._welcome_by = time.monotonic() + WELCOME
        # A dispatcher that was killed learns from this list what runs where: it keeps no record of
        # it.
        self._send(frame(hello_of(self._settings, self._holding.holds())))


def main() -> None:
    """
    Read the worker's settings from standard input, then work: the entry point of the process.

    A worker that keeps secrets from the tasks of its account is started by root and switches to
    the account here.
    """
    line_read = sys.stdin.buffer.read()
    if not line_read.endswith(b"}"):
        return  # the starter was killed before all of them were written
    settings = msgspec.json.decode(line_read, type=WorkerSettings)
    # Ctrl-C in a terminal reaches the whole group; the dispatcher decides what it means.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if settings.account is not None:
        try:
            switch_to_account(settings.account)
        except OSError as error:
            sys.exit(f"{settings.worker}: cannot be {settings.account.name}: {error.strerror}")
    if settings.limits is not None:
        settings.limits.impose()
    try:
        Worker(settings).run()
    except ConnectionError:
        pass  # no dispatcher is there, or any more
    except OSError as error:
        sys.exit(f"{settings.worker}: {error}")


if __name__ == "__main__":
    main()
