"""
The worker server, to which the workers of all pools connect.

A worker that loses its connection goes on with its tasks. When it stays away for too long its
tasks run elsewhere, and it is told to end them if it comes back later. A worker keeps each outcome
until the outcome is durable, and reports it again on the next connection.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from bursar.dispatch.credential import SILENCE, PilotTerms, server_context
from bursar.dispatch.wire import (
    FromWorker,
    Hello,
    LeaveRequest,
    OutcomeReport,
    ProtocolError,
    ReturnedJobs,
    SealKey,
    Welcome,
)
from bursar.dispatch.worker_listener import WorkerListener
from bursar.engine import attendance
from bursar.engine.attendance import add_loads
from bursar.engine.core import SPILL
from bursar.engine.lease_admission import (
    AdmittedLease,
    LeaseAdmission,
    derived_token,
    make_credential,
)
from bursar.engine.worker_connection import ConnectionHandler
from bursar.engine.worker_slots import WorkerSlot
from bursar.model.allocation import AllocationLoad
from bursar.model.errors import SiteError
from bursar.model.surroundings import ContainerPolicy
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.instance import Instance
from bursar.service.interfaces import Clock
from bursar.service.logs import LOGGER, RateLimitedLog
from bursar.service.workers.connection import (
    LARGEST_VALUE,
    SealKeyFile,
    ServiceWorkerConnection,
    bound_outcomes,
)

_log = logging.getLogger(f"{LOGGER}.workers")

OUTLIVES = 600.0
"""Seconds for which workers go on without the service, trying to reconnect."""

MOST_UNAUTHENTICATED = 256
"""Greatest number of unauthenticated connections at a time, over TLS and on this machine."""

ABSENCE = 30.0
"""Seconds without a connection after which a worker's tasks run elsewhere."""

_PARTING = 1.0  # seconds for what was written last to be read
_CLEAR_OUT = 5.0  # seconds for killed tasks to be told of when a lease ends at once
_NOWHERE = "/nonexistent"  # for tasks without a home, of which there are none
_ALL = 2**31  # jobs; more than any worker has


class WorkerServer(ConnectionHandler):
    """
    Lets workers in and passes on what they say.

    Implements :class:`bursar.worker.launch.PilotAdmission`.

    Parameters
    ----------
    secret
        Secret of the service, the same after each restart.
    run
        Identity of the service, by which its processes are recognised.
    outlives
        Seconds for which workers go on without the service, and look for it.
    containers
        Containers that tasks may ask for.
    absence
        Seconds without a connection after which a worker's tasks run elsewhere.
    silence
        Seconds, about, after which a pilot's machine that does not answer is taken to be gone.
    seal_key
        Key of sealed tasks, sent to workers that may not read the file; None: no worker gets one.
    on_change
        Called when workers have come or gone, or have nothing to do.

    Attributes
    ----------
    admission
        Leases whose workers are admitted, connected or not.
    """

    def __init__(
        self,
        engine: ServiceEngine,
        *,
        clock: Clock,
        secret: str,
        run: str = "service",
        outlives: float = OUTLIVES,
        containers: ContainerPolicy = "allowed",
        absence: float = ABSENCE,
        silence: float = SILENCE,
        seal_key: SealKeyFile | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(lambda error: engine.on_fault(error), MOST_UNAUTHENTICATED)
        self._engine = engine
        self._dispatching = engine.dispatching
        self._room = engine.dispatching.room
        self._reactions = engine.dispatching.reactions
        self._clock = clock
        self._run = run
        self._outlives = outlives
        self._containers = containers
        self._silence = silence
        self._seal_key = seal_key
        self.on_change: Callable[[], None] = on_change or (lambda: None)
        self.admission = LeaseAdmission(partial(derived_token, secret))
        self._complaints = RateLimitedLog(_log)
        self._listener: WorkerListener | None = None
        self._port = 0
        self._certificate = ""
        self._room.absence = absence
        self._dispatching.on_gone = lambda: self.on_change()

    def protocol(self) -> ServiceWorkerConnection:
        """Return the protocol object for a new connection."""
        return ServiceWorkerConnection(self, self._send_seal_key)

    def open_listener(self, host: str, port: int, certificate: str, key: bytes) -> int:
        """
        Listen over TLS for workers of pilots on other machines.

        Parameters
        ----------
        host
            Name or address under which the workers find this machine.
        port
            TCP port; 0: any free one.
        certificate, key
            PEM.

        Returns
        -------
        int
            The port.

        Raises
        ------
        SiteError
            When the address cannot be listened on.
        """
        listener = WorkerListener(self.protocol, self._silence, self.failed)
        self.use_listener(listener, port, certificate)
        _, self._port = listener.open(host, lambda: server_context(certificate, key), port)
        return self._port

    def use_listener(self, listener: WorkerListener, port: int, certificate: str) -> None:
        """
        Use a listener for workers on other machines; pilots are told the port.

        Parameters
        ----------
        listener
            Closed together with this server.
        certificate
            PEM that pilots expect there.
        """
        self._listener, self._port, self._certificate = listener, port, certificate

    def tick(self) -> None:
        """Send changed seal keys; to be called every second or so."""
        for worker in self._dispatching.registered.values():
            if isinstance(worker.link, ServiceWorkerConnection):
                self._send_seal_key(worker.link)

    async def close(self) -> None:
        """End all connections; the workers go on, and look for the service's next start."""
        self.is_closed = True
        self._complaints.close()
        attendance.give_none_up(self._room)
        if self._listener is not None:
            await self._listener.close()
        for worker in self._dispatching.registered.values():
            worker.link.abort()
        for connection in list(self.unauthenticated):
            connection.abort()

    # Leases.

    def expect(self, lease: str, *, pool: str, site: str, processors: int) -> str:
        """
        Admit a lease's workers from now on.

        Returns
        -------
        str
            The token that they must show, the same each time and after each restart.
        """
        entry = self.admission.leases.get(lease)
        if entry is None:
            entry = self.admission.admit(lease, site=site, processors=processors, pool=pool)
        # A site may grant fewer processors than were asked for; restored leases are announced
        # again.
        entry.processors = processors
        return entry.token

    def gathered(self) -> None:
        """Note that all restored leases have been announced by :meth:`expect`."""
        self.admission.is_complete = True
        self._check_missing_workers()

    def dismiss(self, lease: str) -> None:
        """Give no more tasks to a lease's workers, and let each leave when no task is left."""
        entry = self.admission.leases.get(lease)
        if entry is None or entry.dismissed:
            return
        entry.dismissed = True
        for worker in self._of(lease):
            if worker.connected:
                _see_off(worker)

    def revoke(self, lease: str) -> None:
        """Admit no more workers of a lease; connected ones stop their tasks and leave."""
        if self.admission.leases.pop(lease, None) is None:
            return
        for worker in self._of(lease):
            if worker.connected:
                _turn_out(worker)
            else:  # not waited for any longer: nobody lets it in again
                attendance.lose(self._room, worker)
        self._check_missing_workers()

    async def credential(self, terms: PilotTerms) -> bytes:
        """
        Return the credential by which a pilot of an admitted lease connects, the same each time.

        Raises
        ------
        SiteError
            When the lease is not admitted, or there is no listener for other machines.
        """
        entry = self.admission.leases.get(terms.lease)
        if entry is None:
            raise SiteError(f"nobody expects the workers of {terms.lease}")
        if self._listener is None:
            raise SiteError("the service does not listen for workers from elsewhere")
        entry.processors = terms.processors
        entry.on_join, entry.on_leave = terms.on_join, terms.on_leave
        return make_credential(
            terms,
            entry.token,
            run=self._run,
            port=self._port,
            certificate=self._certificate,
            silence=self._silence,
            # A worker that gave up sooner than the service takes to come back would end its tasks.
            patience=self._outlives,
        )

    def leases(self) -> dict[str, AllocationLoad]:
        """
        Return the connected and the busy processors by lease.

        Leases without a connected worker are left out.
        """
        return add_loads(
            (
                worker.lease,
                worker.processors,
                worker.used,
                None if worker.claims else worker.idle_since,
            )
            for worker in self._dispatching.registered.values()
            if worker.connected
        )

    # For connections; see ConnectionHandler.

    def joined(self, connection: ServiceWorkerConnection, hello: Hello) -> bool:
        """Authenticate a connection by the hello, and return whether the hello was accepted."""
        entry = self.authenticate(connection, hello, self.admission)
        if isinstance(entry, AdmittedLease):
            self._take_place(connection, hello, entry)
        return bool(entry)

    def on_message(self, connection: ServiceWorkerConnection, message: FromWorker) -> None:
        """Handle a message of an authenticated worker."""
        worker = self._worker_of(connection)
        # Late frames of a superseded connection could end attempts that the newer one has taken up
        # again.
        if worker is None:
            return  # there is a newer one, on which it says so again
        match message:
            case OutcomeReport(outcomes):
                taken = bound_outcomes(outcomes)
                on_durable = attendance.recording(worker, len(taken))
                self._reactions.reported(worker, taken, on_durable)
            case ReturnedJobs(jobs):
                self._reactions.returned(worker, jobs)
            case LeaveRequest(must):
                if must:
                    _see_off(worker)
                else:
                    attendance.ask_to_leave(worker, must=False)
            case Hello():
                raise ProtocolError("a second hello")
        if attendance.is_done(worker):
            self.on_change()

    def misspoke(self, connection: ServiceWorkerConnection, error: Exception) -> None:
        """Log an invalid message of a worker at a limited rate; the caller ends the connection."""
        self._complaints.warning(
            "the worker %a on %a says what no worker says (%s); its connection ends",
            connection.worker,
            connection.host,
            error,
        )

    def left(self, connection: ServiceWorkerConnection) -> None:
        """Forget a connection that ended; for some time the worker may come back to the tasks."""
        self.unauthenticated.pop(connection, None)
        worker = self._worker_of(connection)
        if self.is_closed or worker is None:
            return
        entry = self.admission.leases.get(worker.lease)
        if entry is not None:
            entry.go(worker.name)
        # A revoked lease lets nobody come back.
        attendance.disconnect(self._room, worker, for_good=entry is None)
        self.on_change()

    def _take_place(
        self, connection: ServiceWorkerConnection, hello: Hello, entry: AdmittedLease
    ) -> None:
        """
        Let an admitted worker join, or come back, in place of its earlier connection if it had one.

        The worker is welcomed, gets the seal key, and is told to cancel those of its tasks that
        run elsewhere by now.
        """
        connection.welcome(
            Welcome(
                run=self._run,
                root=_NOWHERE,
                files=_NOWHERE,
                work=_NOWHERE,
                logs=_NOWHERE,
                spill=SPILL,
                outlives=self._outlives,
                largest_value=LARGEST_VALUE,
                containers=self._containers,
            )
        )
        # After the welcome, which every worker expects first.
        self._send_seal_key(connection)
        named = msgspec.structs.replace(hello, host=connection.host)
        worker = self._dispatching.join(named, connection, pool=entry.pool)
        # The lease was dismissed while the worker was away.
        if entry.dismissed:
            _see_off(worker)
        entry.come(hello)
        self._check_missing_workers()
        self.on_change()

    def _send_seal_key(self, connection: ServiceWorkerConnection) -> None:
        """
        Send a worker the seal key before tasks that may be sealed to a newer one.

        A worker that reads the file itself, or is of a version without this message, gets nothing.
        """
        if self._seal_key is None or not connection.has_seal_key:
            return
        version = self._seal_key.poll()
        if version != connection.seal_key:
            connection.seal_key = version
            connection.send(SealKey(self._seal_key.pem))

    def _of(self, lease: str) -> list[WorkerSlot[Instance]]:
        return [w for w in self._dispatching.registered.values() if w.lease == lease]

    def _worker_of(self, connection: ServiceWorkerConnection) -> WorkerSlot[Instance] | None:
        """Return the worker that speaks over a connection; None: it has a newer one, or is gone."""
        worker = self._dispatching.registered.get(connection.worker)
        return worker if worker is not None and worker.link is connection else None

    def _check_missing_workers(self) -> None:
        """Let tasks from before a restart be given out once all workers are back."""
        # When every processor of the restored leases is back no other worker can have a task.
        # Before all leases are announced the ones known so far say nothing.
        if self.admission.is_complete and all(
            entry.ready >= entry.processors for entry in self.admission.leases.values()
        ):
            self._engine.settle()


def _see_off(worker: WorkerSlot[Instance]) -> None:
    """Give no more tasks to a worker, and let the worker leave when no task is left."""
    worker.open, worker.leaving = False, True
    # What waits there unstarted can run elsewhere sooner.
    if not attendance.is_done(worker):
        worker.link.recall(_ALL)
    attendance.let_go(worker)


def _turn_out(worker: WorkerSlot[Instance]) -> None:
    """Stop a worker's tasks at once, and end the connection soon."""
    worker.open, worker.leaving = False, True
    has_tasks = bool(worker.claims)
    if has_tasks:
        worker.link.cancel([], 0.0, "its processors go back")
    attendance.let_go(worker)
    # Killed tasks are still reported: what they used is to be charged.
    seconds = _CLEAR_OUT if has_tasks else _PARTING
    asyncio.get_running_loop().call_later(seconds, worker.link.hang_up)
