"""Simulates a network in memory: streams between protocols of one loop, in order, without loss."""

import asyncio
from collections.abc import Callable
from typing import Any

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class MemoryListener:
    """
    Accepts connections at an address; returned by ``create_server``.

    Parameters
    ----------
    address
        Host and port.
    factory
        Makes the protocol of each connection.
    on_close
        Told the address.
    """

    def __init__(
        self,
        address: tuple[str, int],
        factory: ProtocolFactory,
        *,
        on_close: Callable[[tuple[str, int], None], Any],
    ) -> None:
        self.address = address
        self.factory = factory
        self._on_close = on_close

    @property
    def sockets(self) -> "tuple[MemoryListener, ...]":
        """Tuple of this listener, in place of a socket."""
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        """Return the listener's address."""
        return self.address

    def close(self) -> None:
        """Stop accepting connections."""
        self._on_close(self.address, None)

    async def wait_closed(self) -> None:
        """Return at once."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._closing = False
        self.peer: MemoryTransport | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data, which the other end receives in the loop's next round."""
        if not self._closing and self.peer is not None:
            # Never called from within `write`, as no real transport does; and a copy, as the
            # caller may use the buffer again.
            self._loop.call_soon(self.peer._receive, bytes(data))

    def is_closing(self) -> bool:
        """Whether this end is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Closes both ends, once what was written has arrived."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            if self.peer is not None:
                # Behind what was written, since the loop keeps the order of its calls.
                self._loop.call_soon(self.peer.close)

    def abort(self) -> None:
        """Close both ends like :meth:`close`, since nothing is buffered."""
        self.close()

    def _receive(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)


def connect_in_memory(
    loop: asyncio.AbstractEventLoop, client: asyncio.BaseProtocol, server: asyncio.BaseProtocol
) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
    """Join two protocols; return the client's transport and protocol."""
    assert isinstance(client, asyncio.Protocol)
    assert isinstance(server, asyncio.Protocol)
    ours, theirs = MemoryTransport(loop, client), MemoryTransport(loop, server)
    ours.peer, theirs.peer = theirs, ours
    server.connection_made(theirs)
    client.connection_made(ours)
    return ours, client
