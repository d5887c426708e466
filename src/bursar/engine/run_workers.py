"""The connections of a run's workers: who is let in, and which reaction each message causes."""

import hmac

from bursar.dispatch.pilot_listener import PilotListener
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
from bursar.engine.core import ConnectedWorker, EngineCore
from bursar.engine.worker_connection import FrameLimits, WorkerConnection


class RunWorkers:
    """
    Handles the connections of workers of this machine, or of pilots.

    Parameters
    ----------
    core
        State of the engine.
    token
        Secret that workers of this machine show; None: the workers are of pilots.
    pilots
        Admits workers of pilots; None: the workers are of this machine.
    """

    def __init__(
        self, core: EngineCore, *, token: str | None = None, pilots: PilotListener | None = None
    ) -> None:
        self._core = core
        self._token = token
        self._pilots = pilots
        self.unauthenticated: set[WorkerConnection] = set()
        self._workers: dict[WorkerConnection, ConnectedWorker] = {}

    def protocol(self) -> WorkerConnection:
        """Return the protocol object of a new connection."""
        return WorkerConnection(self, FrameLimits())

    def came(self, connection: WorkerConnection) -> bool:
        """See :class:`bursar.engine.worker_connection.WorkerMessageHandler`."""
        # Accepted before the listener closed, made after: nobody would wait for its end.
        if self._core.closed:
            return False
        self.unauthenticated.add(connection)
        return True

    def joined(self, connection: WorkerConnection, hello: Hello) -> bool:
        """See :class:`bursar.engine.worker_connection.WorkerMessageHandler`."""
        if self._pilots is not None and self._pilots.is_turned_out(hello):
            # Told to go and not just refused: a pilot that is only hung up on would try again until
            # its patience ends.
            connection.leave()
            connection.hang_up()
            return True
        if not self._is_let_in(hello):
            return False
        self.unauthenticated.discard(connection)
        connection.introduce(hello)
        is_pilot = self._pilots is not None
        self._workers[connection] = reactor.worker_joined(
            self._core, hello, connection, is_pilot=is_pilot
        )
        if self._pilots is not None:
            self._pilots.joined(hello.lease)
        return True

    def _is_let_in(self, hello: Hello) -> bool:
        # Two of one name would share claims. A worker that comes back before its former connection
        # is seen to have ended tries again.
        if hello.worker in self._core.workers or hello.processors < 1:
            return False
        if self._pilots is not None:
            return self._pilots.lets_in(hello)
        # In constant time, so that nobody guesses the token byte by byte.
        return hmac.compare_digest(hello.token.encode(), (self._token or "").encode())

    def on_message(self, connection: WorkerConnection, message: FromWorker) -> None:
        """See :class:`bursar.engine.worker_connection.WorkerMessageHandler`."""
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
        """See :class:`bursar.engine.worker_connection.WorkerMessageHandler`."""
        reactor.job_too_large(self._core, self._workers[connection], job, size)

    def left(self, connection: WorkerConnection) -> None:
        """See :class:`bursar.engine.worker_connection.WorkerMessageHandler`."""
        self.unauthenticated.discard(connection)
        worker = self._workers.pop(connection, None)
        if worker is None:
            return
        reactor.worker_left(self._core, worker)
        if self._pilots is not None:
            self._pilots.left(worker.lease, worker.name)

    def failed(self, error: BaseException) -> None:
        """See :class:`bursar.engine.worker_connection.WorkerMessageHandler`."""
        self._core.store.fail(error)
