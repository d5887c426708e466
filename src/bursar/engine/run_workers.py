"""The workers of a run: who is let in, and which reaction each of their messages causes."""

import hmac
from collections.abc import Callable, Sequence
from functools import partial

from bursar.dispatch.wire import (
    FromWorker,
    Hello,
    LeaveRequest,
    OutcomeReport,
    ProtocolError,
    ReturnedJobs,
    WireJob,
)
from bursar.engine import reactor
from bursar.engine.core import EngineCore
from bursar.engine.lease_admission import AdmittedLease, LeaseAdmission
from bursar.engine.run_tasks import RunTasks
from bursar.engine.worker_connection import ConnectionHandler, FrameLimits, WorkerConnection
from bursar.engine.worker_slots import WorkerSlot
from bursar.model.task import Outcome


class RunWorkers(ConnectionHandler):
    """
    Handles the connections of workers of this machine, or of pilots.

    Parameters
    ----------
    core
        State of the engine.
    token
        Secret that workers of this machine show; ignored for pilots.
    pilots
        Leases whose pilots are admitted; None: the workers are of this machine.
    """

    def __init__(
        self, core: EngineCore, *, token: str = "", pilots: LeaseAdmission | None = None
    ) -> None:
        super().__init__(core.store.fail)
        self._core = core
        self._token = token
        self._pilots = pilots
        self._workers: dict[WorkerConnection, WorkerSlot[RunTasks]] = {}

    def protocol(self) -> WorkerConnection:
        """Return the protocol object of a new connection."""
        return WorkerConnection(self, FrameLimits())

    def joined(self, connection: WorkerConnection, hello: Hello) -> bool:
        """Take in a worker that shows the run's token, or a pilot's with its lease's secret."""
        # Two of one name would share claims. A worker that comes back before its former connection
        # is seen to have ended takes its own place, if it outlives connections, or else tries
        # again.
        core = self._core
        is_taken = hello.worker in core.workers and not core.outlives(hello.lease)
        if self._pilots is None:
            # In constant time, so that nobody guesses the token byte by byte.
            has_token = hmac.compare_digest(hello.token.encode(), self._token.encode())
            if is_taken or hello.processors < 1 or not has_token:
                return False
            self.introduce(connection, hello)
            self._take_in(connection, hello)
            return True
        entry = self.authenticate(connection, hello, self._pilots, is_taken=is_taken)
        if isinstance(entry, AdmittedLease):
            self._take_in(connection, hello)
            entry.come(hello)
        return bool(entry)

    def _take_in(self, connection: WorkerConnection, hello: Hello) -> None:
        self._workers[connection] = reactor.worker_joined(
            self._core, hello, connection, is_pilot=self._pilots is not None
        )

    def on_message(self, connection: WorkerConnection, message: FromWorker) -> None:
        """Pass a worker's report or request to the reactor."""
        core, worker = self._core, self._workers[connection]
        match message:
            case OutcomeReport(outcomes):
                reactor.outcomes_reported(core, worker, outcomes)
            case ReturnedJobs(jobs):
                reactor.tasks_returned(core, worker, jobs)
            case LeaveRequest(must):
                reactor.leave_requested(core, worker, must=must)
            case Hello():
                raise ProtocolError("a second hello")

    def misspoke(self, connection: WorkerConnection, error: Exception) -> None:
        """Do nothing: the worker's tasks are lost with its connection, which is journalled."""

    def too_large(self, connection: WorkerConnection, job: WireJob, size: int) -> None:
        """End the attempt of a job that is too large to be sent."""
        reactor.job_too_large(self._core, self._workers[connection], job, size)

    def left(self, connection: WorkerConnection) -> None:
        """Take back the tasks of a worker whose connection has ended."""
        self.unauthenticated.pop(connection, None)
        worker = self._workers.pop(connection, None)
        if worker is None:
            return
        # Else a newer connection of the same worker has taken its place.
        if worker.link is not connection:
            return
        reactor.worker_disconnected(self._core, worker)
        entry = None if self._pilots is None else self._pilots.leases.get(worker.lease)
        if entry is not None:
            entry.go(worker.name)


class InProcessEngineLink:
    """
    Delivers the reports of one worker, each in a callback of the loop.

    A worker may report while an order is being delivered to it: the engine must have finished
    with the cause of that order first.
    """

    def __init__(self, core: EngineCore, worker: WorkerSlot[RunTasks]) -> None:
        self._core = core
        self._worker = worker

    def take_followers(self) -> None:
        """Let the worker have tasks whose parents it has, before these have ended."""
        self._worker.takes_followers = True

    def report(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes of attempts, in the next turn of the loop."""
        self._soon(partial(reactor.outcomes_reported, self._core, self._worker, outcomes))

    def hand_back(self, jobs: Sequence[tuple[int, int]]) -> None:
        """Return jobs that have not started, in the next turn of the loop."""
        self._soon(partial(reactor.tasks_returned, self._core, self._worker, jobs))

    def lose(self) -> None:
        """Report that the worker is gone, in the next turn of the loop."""
        self._soon(partial(reactor.worker_lost, self._core, self._worker))

    def _soon(self, reaction: Callable[[], None]) -> None:
        self._core.clock.soon(partial(self._react, reaction))

    def _react(self, reaction: Callable[[], None]) -> None:
        # Whatever it reports after its end concerns tasks that were given to others.
        if self._core.workers.get(self._worker.name) is not self._worker:
            return
        try:
            reaction()
        except Exception as error:  # in a callback of the loop nobody else would hear of it
            self._core.store.fail(error)
