"""
A worker whose processors are elsewhere: it hands jobs over and reports what became of them.

To the engine it is a worker like any other: it joins, is filled by credit, reports outcomes. It
is part of the engine's process and needs no socket. Whoever carries the jobs (another Bursar,
another engine) has them from the moment on that they come, and takes them in that order.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from bursar.dispatch.wire import Hello, OutputPiece, OutputQuery, Welcome, WireJob
from bursar.engine.worker_link import EngineLink
from bursar.model.errors import SiteError
from bursar.model.task import Outcome
from bursar.worker.launch import Endpoint


class JobExecutor(Protocol):
    """
    Runs the jobs of a proxy worker on processors elsewhere.

    No call blocks. Outcomes may be reported during a call.
    """

    def welcome(self, welcome: Welcome) -> None:
        """Take in where the run's files lie; called before the first job."""

    def execute(self, jobs: Sequence[WireJob]) -> None:
        """Run jobs in this order; report one outcome for each."""

    def cancel(self, tasks: Sequence[int] | None, grace: float, reason: str) -> None:
        """Stop tasks (None: all); an outcome is still reported for each."""

    def give_back(self, count: int) -> Sequence[WireJob]:
        """Give up to ``count`` jobs back that have not started, the last first."""

    def show_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """
        Ask what a job has printed so far, and call ``answer`` with that, at once or later.

        With None where that is not known before the job has ended.
        """


_decoder = msgspec.msgpack.Decoder(WireJob)


class ProxyWorker:
    """
    Stands between the engine and a job executor; a :class:`bursar.engine.worker_link.WorkerLink`.

    Parameters
    ----------
    name
        Name of the worker, unique in the run.
    site, lease, processors
        See :class:`bursar.dispatch.wire.Hello`.
    on_end
        Called when the engine dismisses the worker, or is gone.
    takes_followers
        Whether the executor takes jobs that come after others of its jobs.
    host, memory
        Machine of the processors, and the bytes that its tasks may use together; None: not known.
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
        takes_followers: bool = False,
        host: str = "",
        memory: int | None = None,
    ) -> None:
        self._takes_followers = takes_followers
        self._entrance = endpoint.entrance
        self._executor = executor
        self._hello = Hello(
            endpoint.token,
            name,
            site,
            processors,
            lease,
            host=host or socket.gethostname(),
            memory=memory,
            memory_owner=host,
        )
        self._on_end = on_end
        self._engine: EngineLink | None = None

    def open(self) -> None:
        """
        Join the engine.

        Raises
        ------
        SiteError
            When the engine takes no workers of this process.
        """
        if self._entrance is None:
            raise SiteError("its processors can only be used by a run of this process")
        self._engine = self._entrance.connect(self._hello, self)
        if self._takes_followers:
            self._engine.take_followers()

    # Reports of the executor.

    def report(self, outcomes: Sequence[Outcome]) -> None:
        """Report ended jobs; do nothing without an engine, to which the jobs count as lost."""
        if self._engine is not None:
            self._engine.report(outcomes)

    def hand_back(self, jobs: Sequence[WireJob]) -> None:
        """Return jobs to the engine that have not gone on and will not, the last first."""
        if self._engine is not None:
            self._engine.hand_back([(job.task, job.attempt) for job in jobs])

    def close(self) -> None:
        """Leave the engine; unreported jobs count as lost."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.lose()
            self._on_end()

    # Orders of the engine; see WorkerLink.

    def welcome(self, welcome: Welcome) -> None:
        """Accept the worker; the first order of all."""
        self._executor.welcome(welcome)

    def give(self, jobs: Iterable[WireJob]) -> None:
        """Give jobs, to be begun in this order as processors come free."""
        given = list(jobs)
        self._deliver(partial(self._executor.execute, given))

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        """Give jobs, each an encoded :class:`bursar.dispatch.wire.WireJob`."""
        self.give(_decoder.decode(job) for job in jobs)

    def recall(self, count: int) -> None:
        """Ask for up to ``count`` jobs back that have not started, the last first."""
        self._deliver(lambda: self.hand_back(self._executor.give_back(count)))

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        """Stop tasks (none: all); see :class:`bursar.dispatch.wire.CancelTasks`."""
        self._deliver(partial(self._executor.cancel, tasks or None, grace, reason))

    def acknowledge(self, count: int) -> None:
        """Do nothing: nothing is reported twice."""

    def ask_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Pass a question about a job's output on to the executor; see :class:`WorkerLink`."""
        if self._engine is None:
            answer(None)
        else:
            self._deliver(partial(self._executor.show_output, query, answer))

    def leave(self) -> None:
        """Order the worker to end."""
        self.close()

    def hang_up(self) -> None:
        """End the link once all orders are delivered."""
        self.close()

    def abort(self) -> None:
        """End the link at once; orders may be lost."""
        self.close()

    def _deliver(self, order: Callable[[], None]) -> None:
        if self._engine is None:
            return
        try:
            order()
        except Exception as error:  # of the executor: the engine, and other workers, go on
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"The worker {self._hello.worker} has failed", "exception": error}
            )
            self.close()
