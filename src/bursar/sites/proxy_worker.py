"""
A worker whose processors are elsewhere: it hands jobs over and reports what became of them.

To the dispatcher it is a worker like any other: it says hello, is filled by credit, reports
outcomes. Whoever carries the jobs (another Bursar, another engine) has them from the moment on
that they come, and takes them in that order.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from bursar.dispatch.wire import (
    BATCH_SIZE,
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
    OutcomeAck,
    OutcomeReport,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.errors import SiteError
from bursar.model.task import Outcome
from bursar.worker.launch import Endpoint


class JobExecutor(Protocol):
    """Runs the jobs of a proxy worker on processors elsewhere."""

    def welcome(self, welcome: Welcome) -> None:
        """Take in where the run's files lie; called before the first job."""

    def execute(self, jobs: Sequence[WireJob]) -> None:
        """Run jobs in this order; report one outcome for each."""

    def cancel(self, tasks: Sequence[int] | None, grace: float, reason: str) -> None:
        """Stop tasks (None: all); an outcome is still reported for each."""

    def give_back(self, count: int) -> Sequence[WireJob]:
        """Give up to ``count`` jobs back that have not started, the last first."""


class ProxyWorker(asyncio.Protocol):
    """
    The dispatcher's end of a job executor.

    Parameters
    ----------
    endpoint
        Address of the dispatcher.
    executor
        Job executor that runs the jobs.
    name
        Name of the worker, unique in the run.
    site, lease, processors
        See :class:`bursar.dispatch.wire.Hello`.
    on_end
        Called when the dispatcher dismisses the worker, or is gone.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        executor: JobExecutor,
        *,
        name: str,
        site: str,
        lease: str,
        processors: int,
        on_end: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._executor = executor
        self._hello = Hello(
            endpoint.token, name, site, processors, lease, host=socket.gethostname()
        )
        self._on_end = on_end
        self._frames = FrameDecoder()
        self._decode = msgspec.msgpack.Decoder(FromServer).decode
        self._decode_job = msgspec.msgpack.Decoder(WireJob).decode
        self._transport: asyncio.Transport | None = None

    async def open(self) -> None:
        """
        Connect to the dispatcher and send the greeting.

        Raises
        ------
        SiteError
            When the dispatcher cannot be reached.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, *self._endpoint.address)
        except OSError as error:
            raise SiteError(f"the dispatcher cannot be reached: {error}") from None

    @property
    def is_open(self) -> bool:
        """Whether the dispatcher is there."""
        return self._transport is not None and not self._transport.is_closing()

    def report(self, outcomes: Sequence[Outcome]) -> None:
        """Report ended jobs; do nothing without a dispatcher, to which the jobs count as lost."""
        piece: list[Outcome] = []
        size = 0
        for outcome in outcomes:
            bulk = len(outcome.stdout) + len(outcome.stderr) + len(outcome.value)
            # One frame of many large outputs would hold up heartbeats and exceed the dispatcher's
            # limit.
            if piece and size + bulk > BATCH_SIZE:
                self._report(OutcomeReport(piece))
                piece, size = [], 0
            piece.append(outcome)
            size += bulk
        if piece:
            self._report(OutcomeReport(piece))

    def hand_back(self, jobs: Sequence[WireJob]) -> None:
        """Return jobs to the dispatcher that have not gone on and will not, the last first."""
        self._report(ReturnedJobs([(job.task, job.attempt) for job in jobs]))

    def must_leave(self) -> None:
        """Take no more jobs since the processors are going, and leave once none is left."""
        self._report(LeaveRequest(must=True))

    def close(self) -> None:
        """Close the connection; unreported jobs count as lost."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(frame(self._hello))

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle that the dispatcher has dismissed the worker, or is gone."""
        self._transport = None
        self._on_end()

    def data_received(self, data: bytes) -> None:
        """Handle messages of the dispatcher."""
        try:
            for body in self._frames.feed(data):
                self._on_message(self._decode(body))
        except NONSENSE:
            self.close()  # whoever talks nonsense is no dispatcher

    def _on_message(self, message: FromServer) -> None:
        match message:
            case JobAssignment(jobs):
                self._executor.execute([self._decode_job(job) for job in jobs])
            case CancelTasks(tasks, grace, reason):
                self._executor.cancel(tasks or None, grace, reason)
            case Welcome():
                self._executor.welcome(message)
            case LeaveOrder():
                self.close()
            case JobRecall(count):
                self.hand_back(self._executor.give_back(count))
            case OutcomeAck():
                pass  # without the dispatcher it has no purpose

    def _report(self, message: FromWorker) -> None:
        if self.is_open:
            assert self._transport is not None
            self._transport.write(frame(message))
