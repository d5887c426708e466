"""
Virtual time: an asyncio loop whose clock jumps to the next timer, with a network in memory.

Code that learns the time only from its loop runs on it unchanged. A network in memory
takes the place of sockets, and what would run in another thread runs at once, so that a
simulation is one thread and the same every time.
"""

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable
from typing import Any

from bursar.model.errors import BursarError

# Simulates a network in memory: streams between protocols of one loop, in order, without loss.

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


# Virtual time: an asyncio loop whose clock jumps to the next timer when nothing is ready.

_ROUNDING = 1e-6
"""Seconds, more than what sums of times lose."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """
    A loop on virtual time, whose clock starts at 0.

    Parameters
    ----------
    epoch
        Time at the clock's 0, seconds since the epoch.
    """

    def __init__(self, epoch: float = 0.0) -> None:
        self.epoch = epoch
        self._now = 0.0
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._next_port = 1
        self._moments: list[float] = []
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        """Return virtual seconds."""
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule a call; the moment is kept, so that time jumps to exactly that moment."""
        heapq.heappush(self._moments, when)
        return super().call_at(when, callback, *args, context=context)

    def _jump(self, seconds: float | None) -> None:
        if seconds is None:
            raise BursarError("the simulation waits for something that will never happen")
        # asyncio hands over the difference to the next timer's moment. Added to the time again it
        # may miss that moment by the last bit, and two timers of one moment would not be one.
        target = self._now + max(0.0, seconds)
        while self._moments and self._moments[0] <= self._now:
            heapq.heappop(self._moments)
        # Moments of cancelled timers are kept, too: one that is not near the target is theirs.
        moment = self._moments[0] if self._moments else target
        self._now = moment if abs(moment - target) < _ROUNDING else target
        # A timer is due when its moment lies below now and this, which must not be lost in it.
        self._clock_resolution = max(1e-9, 2 * math.ulp(self._now))

    # What would leave the thread or the process.

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Call a function at once, since a thread's time would not be virtual."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_server(
        self, protocol_factory: Any, host: Any = None, *_: Any, **__: Any
    ) -> Any:
        """Listen on the network in memory, on a new port."""
        address = (str(host), self._next_port)
        self._next_port += 1
        listener = MemoryListener(address, protocol_factory, on_close=self._listeners.pop)
        self._listeners[address] = listener
        return listener

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """
        Connect to the listener at an address.

        Raises
        ------
        ConnectionRefusedError
            When nobody does.
        """
        # An error rather than a wait, as a real network answers for a port without a listener.
        listener = self._listeners.get((str(host), int(port)))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        return connect_in_memory(self, protocol_factory(), listener.factory())


class _JumpingSelector(selectors.DefaultSelector):
    """Looks at real files (a signal's, for one) without waiting, and lets time jump instead."""

    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self._jump(timeout)
        return ready
