"""
Taking connections, no more than there is room for.

What is bounded is what the system was asked for: a connection counts from the moment at which it
is accepted, before it has become one over TLS, or anybody could leave the journal without a
file descriptor by some thousand of them.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable

from bursar.service.http.limits import HttpLimits, Room, neighbourhood

_BACKLOG = 1024
_EXHAUSTED = 0.1  # seconds until the next is accepted when the system can take no more
_AT_ONCE = 64  # connections accepted between two turns of the loop
_ROUNDS = 3  # of the loop, more than it takes until one that was accepted can be cancelled
_FILES = 4
"""File descriptors for each connection: itself, and what its request may open."""

Leave = Callable[[], None]


class Entrance:
    """
    Accepts connections.

    Parameters
    ----------
    protocol
        Makes the protocol of a connection, which calls what it is given when it is lost.
    tls
        None: in clear.
    limits
        How many, and how long to become one over TLS.
    """

    def __init__(
        self,
        protocol: Callable[[Leave], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        limits: HttpLimits,
    ) -> None:
        self._protocol = protocol
        self._tls = tls
        self._seconds = limits.header_seconds
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = limits.connections
        if descriptors != resource.RLIM_INFINITY:
            self._most = max(1, min(self._most, descriptors // _FILES))
        self._taken = 0
        self._addresses = Room(limits.connections_per_address)
        self._sockets: list[socket.socket] = []
        self._coming: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def sockets(self) -> list[socket.socket]:
        """What is listened on."""
        return self._sockets

    async def bind(self, host: str, port: int) -> None:
        """
        Takes all addresses of a host; nothing is accepted yet.

        Raises
        ------
        OSError
        """
        loop = asyncio.get_running_loop()
        flags = socket.AI_PASSIVE
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, kind, proto, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, proto)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(address)
        except OSError:
            self.leave()
            raise

    def start(self) -> None:
        """Accepts from now on."""
        for listening in self._sockets:
            listening.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def close(self) -> None:
        """Accepts nothing more; connections that are just being made end."""
        self._is_closed = True
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        coming = list(self._coming)
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        self.leave()

    def leave(self) -> None:
        """Lets go of the addresses."""
        for listening in self._sockets:
            listening.close()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # too many files are open
                loop.remove_reader(listening)
                loop.call_later(_EXHAUSTED, self._accept_again, listening)
                return
            connection.setblocking(False)
            leave = self._enter(neighbourhood(address[0]))
            if leave is None:
                connection.close()
                continue
            task = asyncio.create_task(self._welcome(connection, leave))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _enter(self, address: str) -> Leave | None:
        """Takes a place; what gives it back, once. None: there is none."""
        if self._taken >= self._most or not self._addresses.enter(address):
            return None
        self._taken += 1
        is_there = True

        def leave() -> None:
            nonlocal is_there
            if is_there:
                is_there = False
                self._taken -= 1
                self._addresses.leave(address)

        return leave

    async def _welcome(self, connection: socket.socket, leave: Leave) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(leave),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._seconds,
            )
        except OSError:  # as time-outs are, and all that TLS refuses
            leave()
        except BaseException:
            leave()
            raise
