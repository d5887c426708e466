"""
Accepts connections up to a limit, in all and per address.

A connection counts from the moment at which it is accepted, before its TLS handshake. Otherwise
some thousands of half-open connections could use up all file descriptors, also the journal's.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from bursar.dispatch.descriptors import affordable_connections
from bursar.dispatch.handshakes import Handshakes
from bursar.dispatch.subnet import subnet_of
from bursar.service.http.limiters import ConcurrencyLimit
from bursar.service.http_limits import HttpLimits
from bursar.service.logs import LOGGER
from bursar.supervisor import TaskSupervisor

_log = logging.getLogger(f"{LOGGER}.http")

_BACKLOG = 1024
_EXHAUSTED = 0.1  # seconds until the next is accepted when the system can take no more
_AT_ONCE = 64  # connections accepted between two turns of the loop
_ROUNDS = 3  # of the loop, more than it takes until one that was accepted can be cancelled

SILENT = 3.0
"""Seconds after which a connection without a request goes when there is no room for another."""


class ConnectionSlot:
    """
    The slot of one accepted connection, which may be closed for others while it is idle.

    Parameters
    ----------
    places
        The limit that counts the slot.
    connection
        Socket of the connection.
    source
        Subnet of the client's address.
    """

    def __init__(self, places: "_ConnectionLimit", connection: socket.socket, source: str) -> None:
        self._places = places
        self._connection = connection
        self.source = source
        self.since = 0.0  # when it last asked nothing, on the loop's clock
        self.coming: asyncio.Task[None] | None = None  # makes its transport, over TLS or in clear
        self.is_made = False
        self._is_left = False

    def busy(self) -> None:
        """Mark the connection as having a request: it is not closed for others."""
        self._places.keep(self)

    def idle(self) -> None:
        """Mark the connection as having no request."""
        if not self._is_left:
            self._places.spare(self)

    def leave(self) -> None:
        """Free the slot; a second call changes nothing."""
        if not self._is_left:
            self._is_left = True
            self._places.leave(self)

    def hang_up(self) -> None:
        """Free the slot and shut the connection down, so that its tasks end."""
        self.leave()
        if self.coming is not None and not self.is_made:
            self.coming.cancel()
        with suppress(OSError):  # it has gone by itself
            self._connection.shutdown(socket.SHUT_RDWR)


class _ConnectionLimit:
    """
    Limits the connections, in all and for each address.

    When all slots are taken, the address with most idle connections loses the one that has been
    idle longest. A connection is closed for another one of the same address only after
    :data:`SILENT` idle seconds; before that the new one is refused.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._of_one = ConcurrencyLimit(lambda source: most_of_one)
        self._idle: dict[str, dict[ConnectionSlot, None]] = {}  # by address, the longest idle first
        self.taken = 0

    def take(self, connection: socket.socket, source: str) -> ConnectionSlot | None:
        """Return a slot for a new connection; None: there is none."""
        if self.taken >= self._most:
            self._make_room(source)
        if self.taken >= self._most:
            return None
        if not self._of_one.enter(source):
            self._hang_up_on_one(source)
            if not self._of_one.enter(source):
                return None
        self.taken += 1
        place = ConnectionSlot(self, connection, source)
        self.spare(place)
        return place

    def spare(self, place: ConnectionSlot) -> None:
        """Count a connection as idle."""
        self.keep(place)
        place.since = asyncio.get_running_loop().time()
        self._idle.setdefault(place.source, {})[place] = None

    def keep(self, place: ConnectionSlot) -> None:
        """Count a connection as busy."""
        same = self._idle.get(place.source)
        if same is not None:
            same.pop(place, None)
            if not same:
                del self._idle[place.source]

    def leave(self, place: ConnectionSlot) -> None:
        """Free a slot."""
        self.keep(place)
        self.taken -= 1
        self._of_one.leave(place.source)

    def _make_room(self, source: str) -> None:
        if not self._idle:
            return
        largest = max(self._idle, key=lambda each: len(self._idle[each]))
        if len(self._idle[largest]) > len(self._idle.get(source, ())) + 1:
            next(iter(self._idle[largest])).hang_up()
        else:
            self._hang_up_on_one(largest)

    def _hang_up_on_one(self, source: str) -> None:
        """
        Close the longest idle connection of an address if it is idle for :data:`SILENT` seconds.
        """
        oldest = next(iter(self._idle.get(source, ())), None)
        if oldest is not None and asyncio.get_running_loop().time() - oldest.since >= SILENT:
            oldest.hang_up()


class ConnectionAcceptor:
    """
    Accepts connections, does TLS handshakes and hands each connection to a protocol.

    Parameters
    ----------
    protocol
        Makes the protocol of a connection, which marks its slot as busy, idle or left.
    tls
        None: connections are not encrypted.
    limits
        Numbers of connections, and seconds of a handshake.
    """

    def __init__(
        self,
        protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        limits: HttpLimits,
    ) -> None:
        self._protocol = protocol
        self._handshakes = None if tls is None else Handshakes(tls, limits.header_seconds)
        most = affordable_connections(limits.connections)
        # Where there can be fewer, no address has a larger part of them than it should have.
        of_one = max(1, limits.connections_per_address * most // limits.connections)
        self._places = _ConnectionLimit(most, of_one)
        self._sockets: list[socket.socket] = []
        self._coming = TaskSupervisor(_on_failure)
        self._is_closed = False

    @property
    def sockets(self) -> list[socket.socket]:
        """Sockets that are bound."""
        return self._sockets

    async def bind(self, host: str, port: int) -> None:
        """
        Bind all addresses of a host; nothing is accepted yet.

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
        """Accept connections from now on."""
        for listening in self._sockets:
            listening.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def close(self) -> None:
        """Accept no more connections and cancel unfinished handshakes."""
        self._is_closed = True
        for listening in self._sockets:
            asyncio.get_running_loop().remove_reader(listening)
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        await self._coming.close()
        self.leave()

    def leave(self) -> None:
        """Close the listening sockets."""
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
            place = self._places.take(connection, subnet_of(address[0]))
            if place is None:
                connection.close()
                continue
            place.coming = self._coming.start(self._welcome(connection, place))
            place.coming.add_done_callback(partial(self._settle, connection, place))

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _welcome(self, connection: socket.socket, place: ConnectionSlot) -> None:
        protocol = partial(self._protocol, place)
        if self._handshakes is not None:
            made = await self._handshakes.shake(connection, place.source, protocol)
            place.is_made = made is not None
        else:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(protocol, connection)
            place.is_made = True

    def _settle(
        self, connection: socket.socket, place: ConnectionSlot, coming: "asyncio.Task[None]"
    ) -> None:
        """Free the slot of a connection that was not made, even when its task never began."""
        if not place.is_made:
            place.leave()
            connection.close()


def _on_failure(error: BaseException) -> None:
    """Log a fault of ours; the connection has been closed, and others go on."""
    _log.error("a connection could not be accepted", exc_info=error)
