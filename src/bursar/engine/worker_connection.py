"""The server's end of a worker's connection, unauthenticated until the worker says who it is."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.dispatch.wire import (
    BATCH_SIZE,
    MAX_FRAME,
    MAX_PIECE,
    MOST_SHOWN,
    NONSENSE,
    CancelTasks,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    OutcomeAck,
    OutputPiece,
    OutputQuery,
    ProtocolError,
    Welcome,
    WireJob,
    frame,
)
from bursar.dispatch.worker_listener import AcceptedConnection
from bursar.engine.lease_admission import AdmittedLease, LeaseAdmission

AUTHENTICATION = 10.0
"""Seconds in which a connection must have said who it is."""

_MOST_QUERIES = 1024
"""Queries of output whose answers a connection waits for; further ones are not sent."""

_decoder = msgspec.msgpack.Decoder(FromWorker)
_encoder = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """
    Bytes of the largest frames that a worker may send.

    Parameters
    ----------
    unauthenticated
        Before the worker has said who it is: small, so that nobody makes us buffer more.
    authenticated
        After that.
    """

    unauthenticated: int = 4096
    authenticated: int = MAX_FRAME


class ConnectionHandler(ABC):
    """
    Handles what connections of workers bring.

    Parameters
    ----------
    on_fault
        Called with an internal error of ours.
    most
        Greatest number of unauthenticated connections at a time; None: no limit.

    Attributes
    ----------
    unauthenticated
        Connections whose workers have not said who they are, the oldest first.
    is_closed
        Whether no connection may come any more.
    """

    def __init__(self, on_fault: Callable[[BaseException], None], most: int | None = None) -> None:
        self._on_fault = on_fault
        self._most = most
        self.unauthenticated: dict[WorkerConnection, None] = {}
        self.is_closed = False

    def came(self, connection: "WorkerConnection") -> bool:
        """
        Register a new connection, and return whether the connection may stay.

        At the limit of unauthenticated connections the oldest of them is aborted: a worker sends
        its hello at once, so that many idle connections cannot keep it out.
        """
        # Accepted before the listener closed, made after: nobody would wait for its end.
        if self.is_closed:
            return False
        if self._most is not None and len(self.unauthenticated) >= self._most:
            oldest = next(iter(self.unauthenticated))
            del self.unauthenticated[oldest]
            oldest.abort()
        self.unauthenticated[connection] = None
        return True

    def authenticate(
        self,
        connection: "WorkerConnection",
        hello: Hello,
        admission: LeaseAdmission,
        *,
        is_taken: bool = False,
    ) -> AdmittedLease | bool:
        """
        Decide about a worker of a lease by its hello, and introduce the connection.

        Parameters
        ----------
        is_taken
            Whether a worker of that name is there, in whose place no other may come.

        Returns
        -------
        AdmittedLease or bool
            Lease of a worker that joins; False: refused; True: told to leave.
        """
        # First: without the right token nobody learns which leases there are.
        if not admission.has_token(hello):
            return False
        if admission.is_over(hello):
            connection.leave()
            connection.hang_up()
            return True
        entry = admission.admitted(hello)
        if entry is None or is_taken:
            return False
        self.introduce(connection, hello)
        return entry

    def introduce(self, connection: "WorkerConnection", hello: Hello) -> None:
        """Count a connection as authenticated."""
        self.unauthenticated.pop(connection, None)
        connection.introduce(hello)

    @abstractmethod
    def joined(self, connection: Any, hello: Hello) -> bool:
        """Authenticate a connection by the hello, and return whether the hello was accepted."""

    @abstractmethod
    def on_message(self, connection: Any, message: FromWorker) -> None:
        """Handle a message of an authenticated worker."""

    @abstractmethod
    def left(self, connection: Any) -> None:
        """Forget a connection that ended, authenticated or not."""

    @abstractmethod
    def misspoke(self, connection: Any, error: Exception) -> None:
        """Handle an invalid message of a worker, whose connection ends."""

    def too_large(self, connection: "WorkerConnection", job: WireJob, size: int) -> None:
        """Handle that a job is not sent, since its size in bytes is above the limit."""
        self._on_fault(ProtocolError(f"a job of {size} bytes is too large to be sent"))

    def failed(self, error: BaseException) -> None:
        """Report an internal error of ours, not of the worker."""
        self._on_fault(error)


class WorkerConnection(AcceptedConnection):
    """
    The server's end of a worker's connection; a :class:`bursar.engine.worker_link.WorkerLink`.

    Parameters
    ----------
    handler
        Handles what the connection brings.
    limits
        Largest frames that are taken.

    Attributes
    ----------
    worker, site, lease, processors
        Fields of the worker's :class:`~bursar.dispatch.wire.Hello`.
    """

    def __init__(self, handler: ConnectionHandler, limits: FrameLimits) -> None:
        self._handler = handler
        self._limits = limits
        self._frames = FrameDecoder(limits.unauthenticated)
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_introduced = False
        self.settled = asyncio.Event()
        self.worker = ""
        self.site = ""
        self.lease = ""
        self.processors = 0
        self._shows_output = False
        self._queries: dict[int, Callable[[OutputPiece | None], None]] = {}
        self._query = 0

    def introduce(self, hello: Hello) -> None:
        """Mark the connection as authenticated, and take the worker's data from the hello."""
        self._is_introduced = True
        # Only from now on may a frame be as large as the largest outcome.
        self._frames.limit = self._limits.authenticated
        self.worker, self.site, self.processors = hello.worker, hello.site, hello.processors
        self.lease = hello.lease
        self._shows_output = hello.shows_output
        self._settle()

    def send(self, message: FromServer) -> None:
        """Send a message, unless the connection is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    # As the engine has it; see WorkerLink.

    def welcome(self, welcome: Welcome) -> None:
        """Accept the worker; the first order of all."""
        self.send(welcome)

    def give(self, jobs: Iterable[WireJob]) -> None:
        """Give jobs, to be begun in this order as processors come free."""
        self.give_encoded(self._encoded(jobs))

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        """Give jobs, each an encoded :class:`bursar.dispatch.wire.WireJob`."""
        batch: list[msgspec.Raw] = []
        size = 0
        for job in jobs:
            # Small frames, so that a worker begins while the rest is on its way; its decoder
            # refuses very large ones.
            if batch and size + len(job) > BATCH_SIZE:
                self.send(JobAssignment(batch))
                batch, size = [], 0
            batch.append(msgspec.Raw(job))
            size += len(job)
        if batch:
            self.send(JobAssignment(batch))

    def _encoded(self, jobs: Iterable[WireJob]) -> Iterator[bytes]:
        for job in jobs:
            encoded = _encoder.encode(job)
            # Looked at for each job: a frame above the limit ends the connection, and with it all
            # that the worker runs.
            if len(encoded) > MAX_PIECE:
                self._handler.too_large(self, job, len(encoded))
            else:
                yield encoded

    def recall(self, count: int) -> None:
        """Ask for up to ``count`` jobs back that have not started, the last first."""
        self.send(JobRecall(count))

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        """Stop tasks (none: all); see :class:`bursar.dispatch.wire.CancelTasks`."""
        self.send(CancelTasks(list(tasks), grace, reason))

    def acknowledge(self, count: int) -> None:
        """Tell the worker that so many further outcomes of this connection are durable."""
        self.send(OutcomeAck(count))

    def ask_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Ask what an attempt has printed; see :meth:`WorkerLink.ask_output`."""
        gone = self._transport is None or self._transport.is_closing()
        # A worker of a version without this message would end its connection at it.
        if gone or not self._shows_output or len(self._queries) >= _MOST_QUERIES:
            answer(None)
            return
        self._query += 1
        self._queries[self._query] = answer
        self.send(msgspec.structs.replace(query, query=self._query))

    def leave(self) -> None:
        """Order the worker to end."""
        self.send(LeaveOrder())

    def hang_up(self) -> None:
        """End the connection once buffered data are sent."""
        self._stop_patience()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once; buffered data may be lost."""
        if self._transport is not None:
            self._transport.abort()

    # As the loop has it; see asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection and start the time limit for the authentication."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._handler.came(self):
            transport.abort()
            return
        # A connection that says nothing takes a file descriptor; see worker_listener for many of
        # them.
        self._patience = asyncio.get_running_loop().call_later(AUTHENTICATION, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Decode frames and handle their messages; end the connection on an invalid one."""
        try:
            for body in self._frames.feed(data):
                message = _decoder.decode(body)
                if self._is_introduced and isinstance(message, OutputPiece):
                    self._answer(message)
                elif self._is_introduced:
                    self._handler.on_message(self, message)
                elif not isinstance(message, Hello) or not self._handler.joined(self, message):
                    raise ProtocolError("the token is wrong")
        except NONSENSE as error:
            # Noise of unknown clients is not worth a line each.
            if self._is_introduced:
                self._handler.misspoke(self, error)
            self.abort()
        # A fault of ours: the worker keeps its connection, and whoever owns the engine ends it.
        except Exception as error:
            self._handler.failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        # The listener counts it as unauthenticated until then.
        self._settle()
        queries, self._queries = self._queries, {}
        for answer in queries.values():
            answer(None)
        try:
            self._handler.left(self)
        # The site that is told may fail; asyncio would only log that.
        except Exception as error:
            self._handler.failed(error)

    def _answer(self, piece: OutputPiece) -> None:
        if len(piece.content) > MOST_SHOWN:
            raise ProtocolError(f"{len(piece.content)} bytes of output were not asked for")
        answer = self._queries.pop(piece.query, None)
        if answer is not None:  # else nobody waits any more
            answer(piece)

    def _settle(self) -> None:
        self.settled.set()
        self._stop_patience()

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
