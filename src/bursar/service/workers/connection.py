"""A connection of a worker, unauthenticated until the worker shows a valid token."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from bursar.dispatch.wire import (
    NONSENSE,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    OutcomeAck,
    ProtocolError,
    frame,
)
from bursar.dispatch.worker_listener import AcceptedConnection
from bursar.service.workers.bounds import WORKER_FRAME
from bursar.service.workers.seal_key import Version

UNAUTHENTICATED_FRAME = 1 << 19
"""Bytes of the largest frame before authentication; a hello with all held tasks fits."""

PATIENCE = 10.0
"""Seconds after which a connection that has not been authenticated is aborted."""

_LONGEST = 255  # characters of a machine's name

_decoder = msgspec.msgpack.Decoder(FromWorker)


class WorkerMessageHandler(Protocol):
    """Handles the events and messages of worker connections."""

    def came(self, connection: "WorkerConnection") -> bool:
        """Register a new connection, and return whether the connection may stay."""

    def joined(self, connection: "WorkerConnection", hello: Hello) -> bool:
        """Authenticate a connection by the hello, and return whether the hello was accepted."""

    def on_message(self, connection: "WorkerConnection", message: FromWorker) -> None:
        """Handle a message of an authenticated worker."""

    def misspoke(self, connection: "WorkerConnection", error: Exception) -> None:
        """Report an invalid message of a worker, whose connection ends."""

    def left(self, connection: "WorkerConnection") -> None:
        """Forget a connection that ended, authenticated or not."""

    def failed(self, error: BaseException) -> None:
        """Report an internal error of the service, not of the worker."""


class WorkerConnection(AcceptedConnection):
    """
    The server's side of a connection with a worker.

    Attributes
    ----------
    worker, site, lease, host, processors, has_seal_key
        Fields of the worker's :class:`~bursar.dispatch.wire.Hello`.
    leaving
        Whether the worker gets no more tasks, and is to leave once it has none.
    seal_key
        Version of the key that the worker was sent; None: none was.
    unrecorded
        Number of outcomes received over the connection that are not yet durable.
    """

    def __init__(self, listener: WorkerMessageHandler) -> None:
        self._listener = listener
        self._frames = FrameDecoder(UNAUTHENTICATED_FRAME)
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_introduced = False
        self.settled = asyncio.Event()
        self.worker = ""
        self.site = ""
        self.lease = ""
        self.host = ""
        self.processors = 0
        self.leaving = False
        self.has_seal_key = False
        self.seal_key: Version | None = None
        self.unrecorded = 0

    @property
    def is_introduced(self) -> bool:
        """Whether the connection is authenticated."""
        return self._is_introduced

    def introduce(self, hello: Hello) -> None:
        """Mark the connection as authenticated, and take the worker's data from the hello."""
        self._is_introduced = True
        # Only from now on may a frame be as large as the largest outcome.
        self._frames.limit = WORKER_FRAME
        self.worker, self.site, self.processors = hello.worker, hello.site, hello.processors
        # The host is shown to users and written to logs: nobody may fill these with it.
        self.lease, self.host = hello.lease, hello.host[:_LONGEST]
        self.has_seal_key = hello.has_seal_key
        self._settle()

    def send(self, message: FromServer) -> None:
        """Send a message, unless the connection is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def recording(
        self, count: int, then: Callable[["WorkerConnection"], None]
    ) -> Callable[[], None]:
        """
        Count received outcomes as not yet durable; return the callback for when they are.

        The callback acknowledges the outcomes to the worker, which keeps them until then.

        Parameters
        ----------
        count
            Number of outcomes; 0: nothing is acknowledged.
        then
            Called with this connection after the acknowledgement.
        """
        self.unrecorded += count

        # The worker forgets as many outcomes as are acknowledged, from the first on: outcomes must
        # be acknowledged in the order in which they came, which the recorder's queue keeps.
        def recorded() -> None:
            self.unrecorded -= count
            if count:
                self.send(OutcomeAck(count))
            then(self)

        return recorded

    def hang_up(self) -> None:
        """End the connection once buffered data are sent."""
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
        if not self._listener.came(self):
            transport.abort()
            return
        self._patience = asyncio.get_running_loop().call_later(PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Decode frames and handle their messages; end the connection on an invalid one."""
        try:
            for body in self._frames.feed(data):
                message = _decoder.decode(body)
                if self._is_introduced:
                    self._listener.on_message(self, message)
                elif not isinstance(message, Hello) or not self._listener.joined(self, message):
                    raise ProtocolError("the token is wrong")
        except NONSENSE as error:
            # Noise of unknown clients is not worth a line each.
            if self._is_introduced:
                self._listener.misspoke(self, error)
            self.abort()
        # A fault of ours: the worker keeps its connection, and the engine ends the service.
        except Exception as error:
            self._listener.failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._settle()
        self._listener.left(self)

    def _settle(self) -> None:
        self.settled.set()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
