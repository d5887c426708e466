"""Simulates a worker on virtual time, which speaks the real protocol and runs nothing."""

import asyncio
from collections import deque

import msgspec

from bursar.dispatch.journal_time import epoch_of
from bursar.dispatch.prefetch import HORIZON
from bursar.dispatch.wire import (
    CancelTasks,
    FrameDecoder,
    FromServer,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    OutcomeReport,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.outcome import Outcome, Status
from bursar.simulation.execution_model import ExecutionModel
from bursar.worker.launch import Endpoint


class SimulatedWorker(asyncio.Protocol):
    """
    Runs jobs in order as processors come free, for as long as the execution model says.

    Parameters
    ----------
    world
        Asked how long an attempt takes.
    endpoint
        Address and token of the dispatcher.
    name
        Unique in the run.
    site, lease, processors
        Site, lease and processors of the worker.
    """

    def __init__(
        self,
        world: ExecutionModel,
        endpoint: Endpoint,
        *,
        name: str,
        site: str,
        lease: str,
        processors: int,
    ) -> None:
        self._world = world
        self._hello = Hello(endpoint.token, name, site, processors, lease)
        self._site = site
        self._free = processors
        self._loop = asyncio.get_running_loop()
        self._epoch = epoch_of(self._loop)
        self._frames = FrameDecoder()
        self._decode = msgspec.msgpack.Decoder(FromServer).decode
        self._decode_job = msgspec.msgpack.Decoder(WireJob).decode
        self._queue: deque[WireJob] = deque()
        self._running: dict[int, tuple[WireJob, float, asyncio.TimerHandle]] = {}
        self._done: list[Outcome] = []
        self._transport: asyncio.Transport | None = None
        self._began = self._loop.time()  # a job; the last of them
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_there(self) -> bool:
        """Whether the worker is connected."""
        return self._transport is not None

    def leave(self) -> None:
        """Disconnect; running attempts are lost."""
        for _, _, timer in self._running.values():
            timer.cancel()
        self._running.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(frame(self._hello))

    def connection_lost(self, exc: Exception | None) -> None:
        """Do nothing."""
        self._transport = None
        self.leave()

    def data_received(self, data: bytes) -> None:
        """Process jobs and orders."""
        for body in self._frames.feed(data):
            self._on_message(self._decode(body))

    def _on_message(self, message: FromServer) -> None:
        match message:
            case JobAssignment(jobs):
                self._queue.extend(self._decode_job(job) for job in jobs)
                self._fill()
            case JobRecall(count):
                self._give_back(count)
            case CancelTasks(tasks, _, reason):
                self._cancel(set(tasks) or None, reason)
            case LeaveOrder():
                self.leave()
            case Welcome():
                pass

    def _give_back(self, count: int) -> None:
        # From the end: what was given last would begin last.
        returned = [self._queue.pop() for _ in range(min(count, len(self._queue)))]
        if self._done:
            self._flush()  # what ended before goes first
        self._report(ReturnedJobs([(job.task, job.attempt) for job in returned]))

    def _check_waiting(self) -> None:
        """Return all jobs that wait when none has begun for as long as a real worker waits."""
        self._timer = None
        if not self._queue:
            return
        due = self._began + HORIZON
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._check_waiting)
        else:
            self._give_back(len(self._queue))

    def _fill(self) -> None:
        before = len(self._queue)
        while self._queue and self._queue[0].processors <= self._free:
            job = self._queue.popleft()
            self._free -= job.processors
            now = self._epoch + self._loop.time()
            start = max(now, self._world.data_at(job.task, self._site))
            seconds, succeeds = self._world.attempt(job.task, job.attempt, self._site)
            status = Status.SUCCEEDED if succeeds else Status.FAILED
            if job.limit and seconds > job.limit:
                seconds, status = job.limit, Status.TIMED_OUT
            timer = self._loop.call_at(
                start + seconds - self._epoch, self._finish, job, start, start + seconds, status
            )
            self._running[job.task] = (job, start, timer)
        if len(self._queue) < before:
            self._began = self._loop.time()
        if self._queue and self._timer is None:
            self._check_waiting()

    def _finish(self, job: WireJob, start: float, end: float, status: Status) -> None:
        del self._running[job.task]
        self._free += job.processors
        succeeded = status is Status.SUCCEEDED
        if succeeded:
            self._world.succeeded(job.task, self._site, end)
        self._report_outcome(
            Outcome(
                task=job.task,
                attempt=job.attempt,
                status=status,
                exit_code=0 if succeeded else 1 if status is Status.FAILED else None,
                start=start,
                end=end,
                user_seconds=(end - start) * job.processors,
                reason="" if succeeded else _REASONS[status],
            )
        )
        self._fill()

    def _cancel(self, tasks: set[int] | None, reason: str) -> None:
        now = self._epoch + self._loop.time()
        waiting = [job for job in self._queue if tasks is None or job.task in tasks]
        self._queue = deque(job for job in self._queue if job not in waiting)
        for job in waiting:
            self._report_outcome(_cancelled(job, now, now, reason))
        for job, start, timer in list(self._running.values()):
            if tasks is None or job.task in tasks:
                timer.cancel()
                del self._running[job.task]
                self._free += job.processors
                # A task whose files were still on their way has a start that lies ahead.
                self._report_outcome(_cancelled(job, min(start, now), now, reason))
        self._fill()

    def _report_outcome(self, outcome: Outcome) -> None:
        """Report an outcome, in one frame with all others of this moment."""
        if not self._done:
            # After all that ends at this moment, so that thousands of outcomes are not as many
            # frames.
            self._loop.call_soon(self._flush)
        self._done.append(outcome)

    def _flush(self) -> None:
        outcomes, self._done = self._done, []
        if outcomes:
            self._report(OutcomeReport(outcomes))

    def _report(self, message: OutcomeReport | ReturnedJobs) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))


_REASONS = {
    Status.FAILED: "failed, as it was to in this simulation",
    Status.TIMED_OUT: "killed at its wall-time limit",
}


def _cancelled(job: WireJob, start: float, end: float, reason: str) -> Outcome:
    return Outcome(
        task=job.task,
        attempt=job.attempt,
        status=Status.CANCELLED,
        start=start,
        end=end,
        reason=reason,
    )
