"""
The TLS listener for workers of other machines, with a limit on unauthenticated connections.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bursar.dispatch.credential import keep_alive
from bursar.dispatch.handshakes import Handshakes, affordable_connections, subnet_of
from bursar.model.errors import SiteError
from bursar.supervisor import TaskSupervisor

HANDSHAKE = 10.0
"""Seconds in which a connection must have begun to become one over TLS."""

MOST_UNAUTHENTICATED = 1024
"""
Unauthenticated connections at a time; fewer where the process may not open four times as many
files.
"""

SILENT = 3.0
"""Seconds after which an unauthenticated connection is closed when there is no room for another."""

_GOODBYE = 1.0  # seconds for TLS to end in order
_ROUNDS = 3  # of the loop, more than it takes until a connection that was accepted is made
_EXHAUSTED = 0.1  # seconds until the next is accepted when the system can take no more


class AcceptedConnection(asyncio.Protocol):
    """
    A connection that a listener has accepted.

    Attributes
    ----------
    settled
        Set once the peer is authenticated or the connection has ended.
    """

    settled: asyncio.Event


@dataclass(slots=True, eq=False)
class _UnauthenticatedConnection:
    connection: socket.socket
    source: str
    came: float  # on the loop's clock
    is_made: bool = False  # over TLS
    is_closing: bool = False
    task: asyncio.Task[None] | None = None

    def hang_up(self) -> None:
        """End the connection, so that peer and waiting task notice."""
        self.is_closing = True
        if self.task is not None and not self.is_made:
            self.task.cancel()
        with contextlib.suppress(OSError):  # it has gone by itself
            self.connection.shutdown(socket.SHUT_RDWR)


class WorkerListener:
    """
    Accepts TLS connections and limits how many are unauthenticated.

    At most :data:`MOST_UNAUTHENTICATED` connections may be unauthenticated, or as many as the limit
    on open files allows. When that is reached, the oldest connection of the subnet that has the
    most is closed for one of another subnet. For one of the same subnet it is closed only when it
    is :data:`SILENT` seconds old; until then the new one waits, so that many workers of one machine
    that connect at once are all admitted, one after the other.

    Parameters
    ----------
    protocol
        Factory of the protocol of each connection.
    silence
        Approximate seconds after which a machine that does not answer is taken to be gone.
    on_failure
        Called with the error when no more connections can be accepted by a fault of ours.
    """

    def __init__(
        self,
        protocol: Callable[[], AcceptedConnection],
        silence: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._protocol = protocol
        self._silence = silence
        self._most = affordable_connections(MOST_UNAUTHENTICATED)
        self._handshakes: Handshakes | None = None  # shared by all addresses
        self._listening: dict[str, socket.socket] = {}  # by address
        self._accepting = TaskSupervisor(on_failure)
        self._welcoming = TaskSupervisor(_on_welcome_failure)
        self._unauthenticated: dict[_UnauthenticatedConnection, None] = {}  # the oldest first
        self._left = asyncio.Event()
        self._closed = False

    def open(
        self, host: str, context: Callable[[], ssl.SSLContext], port: int = 0
    ) -> tuple[str, int]:
        """
        Listen on the interface of a host name, unless that is done already; return the address.

        Parameters
        ----------
        context
            Makes the TLS context, once, for all addresses.
        port
            0 for any free port.

        Raises
        ------
        SiteError
            When the address cannot be listened on.
        """
        address = _interface(host)
        if self._closed:
            raise SiteError("the run is ending", transient=True)
        if address not in self._listening:
            if self._handshakes is None:
                self._handshakes = Handshakes(context(), HANDSHAKE, shutdown_seconds=_GOODBYE)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listening = socket.socket(family, socket.SOCK_STREAM)
            try:
                listening.setblocking(False)
                if port:  # of an earlier incarnation, whose connections may be still about to end
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind((address, port))
                listening.listen(MOST_UNAUTHENTICATED)
            except OSError as error:
                listening.close()
                raise SiteError(f"cannot listen on {address}: {error.strerror}") from None
            self._listening[address] = listening
            accepting = self._accept(listening, self._handshakes)
            self._accepting.start(accepting)
        bound: int = self._listening[address].getsockname()[1]
        return address, bound

    async def close(self) -> None:
        """Stop listening, and end connections that are still unauthenticated."""
        self._closed = True
        await self._accepting.close()
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        await self._welcoming.close()
        for listening in self._listening.values():
            listening.close()
        self._listening.clear()

    async def _accept(self, listening: socket.socket, handshakes: Handshakes) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:  # too many files are open, or it has gone again
                # The connection stays in the kernel's queue; without a pause this would be a busy
                # loop.
                await asyncio.sleep(_EXHAUSTED)
                continue
            source = subnet_of(address[0])
            try:
                # Before a task is made: what waits here costs one descriptor in all, the others
                # wait in the kernel.
                await self._make_room(source)
            except BaseException:
                connection.close()
                raise
            peer = _UnauthenticatedConnection(connection, source, loop.time())
            self._unauthenticated[peer] = None
            peer.task = self._welcoming.start(self._handshake(peer, handshakes))
            peer.task.add_done_callback(partial(self._forget, peer))

    async def _make_room(self, source: str) -> None:
        """Wait until there is room for one more unauthenticated connection from a subnet."""
        while len(self._unauthenticated) >= self._most:
            self._left.clear()
            seconds = self._hang_up_on_one(source)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._left.wait()

    def _hang_up_on_one(self, source: str) -> float | None:
        """
        Close one unauthenticated connection in favour of one from this subnet, if that is due.

        Returns
        -------
        float or None
            Seconds after which to try again; None: a connection is being closed.
        """
        # One at a time: its place is free in a moment, and a second one would be closed for
        # nothing.
        if any(peer.is_closing for peer in self._unauthenticated):
            return None
        counts = Counter(peer.source for peer in self._unauthenticated)
        largest, most = counts.most_common(1)[0]
        oldest = next(s for s in self._unauthenticated if s.source == largest)
        # No subnet has clearly more than this one: to close one of these for the next would only go
        # round.
        if most <= counts[source] + 1:
            left = oldest.came + SILENT - asyncio.get_running_loop().time()
            if left > 0:
                return left
        oldest.hang_up()
        return None

    async def _handshake(self, peer: _UnauthenticatedConnection, handshakes: Handshakes) -> None:
        connection = peer.connection
        try:
            # Jobs are small frames that a processor is waiting for.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection, self._silence)
        except OSError:  # it has gone again
            return
        visit = await handshakes.shake(connection, peer.source, self._protocol)
        if visit is not None:
            peer.is_made = True
            await visit.settled.wait()

    def _forget(self, peer: _UnauthenticatedConnection, task: "asyncio.Task[None]") -> None:
        """Release the place of a connection that is authenticated, gone, or never handled."""
        # Once made, asyncio's transport closes the socket.
        if not peer.is_made:
            peer.connection.close()
        del self._unauthenticated[peer]
        self._left.set()


def _on_welcome_failure(error: BaseException) -> None:
    """Log a fault of ours; the connection has been closed, and others go on."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": "A worker's connection could not be accepted", "exception": error}
    )


def _interface(host: str) -> str:
    """Return the address to listen on for a host name: loopback only if the name is loopback."""
    if host == "localhost":
        return "127.0.0.1"
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback:
            return host
        return "::" if address.version == 6 else "0.0.0.0"
    return "0.0.0.0"
