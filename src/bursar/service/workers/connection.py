"""A worker's end of the wire; a stranger's until it has shown a token."""

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
"""Bytes that nobody unknown may make us buffer more of; what a worker holds fits."""

PATIENCE = 10.0
"""Seconds in which a connection must have said whose it is."""

_LONGEST = 255  # characters of a machine's name

_decoder = msgspec.msgpack.Decoder(FromWorker)


class WorkerMessageHandler(Protocol):
    """Who is told of what workers say."""

    def came(self, connection: "WorkerConnection") -> bool:
        """Somebody has connected; whether it may stay."""

    def joined(self, connection: "WorkerConnection", hello: Hello) -> bool:
        """A stranger says who it is; whether it is that."""

    def heard(self, connection: "WorkerConnection", message: FromWorker) -> None:
        """A worker has said something."""

    def misspoke(self, connection: "WorkerConnection", error: Exception) -> None:
        """A worker has sent what no worker sends; its connection ends."""

    def left(self, connection: "WorkerConnection") -> None:
        """It is gone, worker or stranger."""

    def failed(self, error: BaseException) -> None:
        """We did something wrong, not the worker."""


class WorkerConnection(AcceptedConnection):
    """
    A connection.

    Attributes
    ----------
    worker, site, lease, host, processors, has_seal_key
        Of its :class:`~bursar.dispatch.wire.Hello`.
    leaving
        It gets nothing more, and is told to leave once it has nothing.
    seal_key
        Version of the key that it was told; None: of none.
    unrecorded
        Outcomes that have come over it and are not durable.
    """

    def __init__(self, listener: WorkerMessageHandler) -> None:
        self._listener = listener
        self._frames = FrameDecoder(UNAUTHENTICATED_FRAME)
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._is_known = False
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
    def is_known(self) -> bool:
        """Whether it is a worker's."""
        return self._is_known

    def introduce(self, hello: Hello) -> None:
        """The stranger is a worker."""
        self._is_known = True
        self._frames.limit = WORKER_FRAME
        self.worker, self.site, self.processors = hello.worker, hello.site, hello.processors
        self.lease, self.host = hello.lease, hello.host[:_LONGEST]
        self.has_seal_key = hello.has_seal_key
        self._settle()

    def say(self, message: FromServer) -> None:
        """Sends, unless the connection is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def recording(
        self, count: int, then: Callable[["WorkerConnection"], None]
    ) -> Callable[[], None]:
        """Outcomes have come; what is returned is to be called when they are durable."""
        self.unrecorded += count

        def recorded() -> None:
            self.unrecorded -= count
            if count:
                self.say(OutcomeAck(count))
            then(self)

        return recorded

    def hang_up(self) -> None:
        """Ends the connection once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection; what was written may be lost."""
        if self._transport is not None:
            self._transport.abort()

    # As the loop has it; see asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A stranger."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._listener.came(self):
            transport.abort()
            return
        self._patience = asyncio.get_running_loop().call_later(PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Frames, or what a stranger sends instead."""
        try:
            for body in self._frames.feed(data):
                message = _decoder.decode(body)
                if self._is_known:
                    self._listener.heard(self, message)
                elif not isinstance(message, Hello) or not self._listener.joined(self, message):
                    raise ProtocolError("the token is wrong")
        except NONSENSE as error:
            if self._is_known:
                self._listener.misspoke(self, error)
            self.abort()
        except Exception as error:
            self._listener.failed(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._settle()
        self._listener.left(self)

    def _settle(self) -> None:
        self.settled.set()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
