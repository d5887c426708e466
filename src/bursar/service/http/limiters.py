"""
Limits of rates, concurrent requests and memory, and of connections as they are accepted.

A connection counts from the moment at which it is accepted, before its TLS handshake. Otherwise
some thousands of half-open connections could use up all file descriptors, also the journal's.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from bursar.dispatch.handshakes import Handshakes, affordable_connections, subnet_of
from bursar.service.config import HttpLimits
from bursar.service.logs import LOGGER
from bursar.supervisor import TaskSupervisor

# Limits of what one user or address may take: requests per second, items at a time, bytes.

MOST_BUCKETS = 10_000
"""Users or addresses whose buckets are kept."""


@dataclass(slots=True)
class _TokenBucket:
    level: float  # tokens that were there at the moment ``at``
    at: float


class TokenBuckets:
    """
    A token bucket for each user or address (Turner, 1986: the leaky bucket as a meter).

    Parameters
    ----------
    pace
        Returns, for a user or address, the tokens that come per second and the most that a bucket
        holds; asked each time, so that both may change. Tokens used before stay used.
    clock
        Seconds, never going back.
    most
        Buckets kept; beyond it the one longest unused is forgotten, which makes it full.
    """

    def __init__(
        self,
        pace: Callable[[str], tuple[float, float]],
        clock: Callable[[], float],
        most: int = MOST_BUCKETS,
    ) -> None:
        self._pace = pace
        self._clock = clock
        self._most = most
        self._buckets: dict[str, _TokenBucket] = {}  # the longest unused one first

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, who: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._clock()
        rate, burst = self._pace(who)
        # Popped and put back at the end, so that the first one is always the longest unused.
        bucket = self._buckets.pop(who, None)
        if bucket is None:
            bucket = _TokenBucket(burst, now)  # a new bucket is full
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        came = rate * max(0.0, now - bucket.at)
        bucket.level, bucket.at = min(burst, bucket.level + came), max(now, bucket.at)
        self._buckets[who] = bucket
        if bucket.level < 1.0:
            return (1.0 - bucket.level) / rate
        bucket.level -= 1.0
        return 0.0


class ConcurrencyLimit:
    """
    Limits how many items (requests, connections) each holder may have at a time.

    Parameters
    ----------
    most
        Returns the items that a holder may have; asked each time, so that it may change. A holder
        above a new limit keeps its items until it leaves.
    """

    def __init__(self, most: Callable[[str], int]) -> None:
        self._most = most
        self._taken: dict[str, int] = {}

    def enter(self, who: str) -> bool:
        """Take an item, until :meth:`leave`; return whether the limit allowed this."""
        taken = self._taken.get(who, 0)
        if taken >= self._most(who):
            return False
        self._taken[who] = taken + 1
        return True

    def leave(self, who: str) -> None:
        """Give back one item."""
        taken = self._taken[who] - 1
        # Kept for holders only: the table must not grow with every address ever seen.
        if taken:
            self._taken[who] = taken
        else:
            del self._taken[who]


class DynamicThreshold:
    """
    A shared capacity of which each holder may take as much as then stays free.

    No holder alone can take all of it, and the more holders take much, the less each may have
    (dynamic thresholds: Choudhury and Hahne, 1998).

    Parameters
    ----------
    most
        Capacity of all holders together, in bytes.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: dict[str, int] = {}

    def take(self, who: str, size: int, *, lone: bool = False) -> bool:
        """
        Take ``size`` bytes, until :meth:`give_back`; return whether the limit allowed this.

        Parameters
        ----------
        lone
            Whether a holder that has nothing yet may take one piece of any size.
        """
        taken = self._taken.get(who, 0) + size
        # A holder may have as much as stays free afterwards (threshold factor 1 of the paper).
        if taken > self._free - size and not (lone and taken == size):
            return False
        self._taken[who] = taken
        self._free -= size
        return True

    def give_back(self, who: str, size: int) -> None:
        """Give back ``size`` bytes."""
        self._free += size
        left = self._taken.get(who, 0) - size
        if left:
            self._taken[who] = left
        else:
            self._taken.pop(who, None)


# Accepts connections up to a limit, in all and per address.

_log = logging.getLogger(f"{LOGGER}.http")

_BACKLOG = 1024
_EXHAUSTED = 0.1  # seconds until the next is accepted when the system can take no more
_AT_ONCE = 64  # connections accepted between two turns of the loop
_ROUNDS = 3  # turns of the loop after which the task of an accepted connection has begun

SILENT = 3.0
"""Seconds after which a connection without a request goes when there is no room for another."""


class ConnectionSlot:
    """
    The slot of one accepted connection; an idle connection may be closed to admit another.
    """

    def __init__(self, limit: "_ConnectionLimit", connection: socket.socket, subnet: str) -> None:
        self._limit = limit
        self._connection = connection
        self.subnet = subnet
        self.since = 0.0  # the loop's time at which the connection became idle
        self.connecting: asyncio.Task[None] | None = None  # makes the transport
        self.is_connected = False
        self._is_left = False

    def busy(self) -> None:
        """Mark the connection as having a request: it is not closed for others."""
        self._limit.mark_busy(self)

    def idle(self) -> None:
        """Mark the connection as having no request."""
        if not self._is_left:
            self._limit.mark_idle(self)

    def leave(self) -> None:
        """Free the slot; a second call changes nothing."""
        if not self._is_left:
            self._is_left = True
            self._limit.leave(self)

    def disconnect(self) -> None:
        """Free the slot and shut the connection down, so that the connection's tasks end."""
        self.leave()
        # In its handshake, which would otherwise go on until its timeout.
        if self.connecting is not None and not self.is_connected:
            self.connecting.cancel()
        with suppress(OSError):  # the client has disconnected
            self._connection.shutdown(socket.SHUT_RDWR)


class _ConnectionLimit:
    """
    Limits the connections, in all and for each address.

    When all slots are taken, the address with most idle connections loses the one that has been
    idle longest. A connection is closed for another one of the same address only after
    :data:`SILENT` idle seconds; before that the new one is refused.
    """

    def __init__(self, most: int, most_per_subnet: int) -> None:
        self._most = most
        self._per_subnet = ConcurrencyLimit(lambda subnet: most_per_subnet)
        self._idle: dict[str, dict[ConnectionSlot, None]] = {}  # by address, the longest idle first
        self.taken = 0

    def take(self, connection: socket.socket, subnet: str) -> ConnectionSlot | None:
        """Return a slot for a new connection; None: there is none."""
        # Room in all first: it may come from another address than the newcomer's.
        if self.taken >= self._most:
            self._make_room(subnet)
        if self.taken >= self._most:
            return None
        if not self._per_subnet.enter(subnet):
            self._disconnect_oldest(subnet)
            if not self._per_subnet.enter(subnet):
                return None
        self.taken += 1
        slot = ConnectionSlot(self, connection, subnet)
        self.mark_idle(slot)
        return slot

    def mark_idle(self, slot: ConnectionSlot) -> None:
        """Count a connection as idle."""
        self.mark_busy(slot)
        slot.since = asyncio.get_running_loop().time()
        self._idle.setdefault(slot.subnet, {})[slot] = None

    def mark_busy(self, slot: ConnectionSlot) -> None:
        """Take a connection off the idle ones, which may be closed; busy ones may not."""
        same = self._idle.get(slot.subnet)
        if same is not None:
            same.pop(slot, None)
            if not same:
                del self._idle[slot.subnet]

    def leave(self, slot: ConnectionSlot) -> None:
        """Free a slot."""
        self.mark_busy(slot)
        self.taken -= 1
        self._per_subnet.leave(slot.subnet)

    def _make_room(self, subnet: str) -> None:
        """
        Close an idle connection for a new one, if the rules allow it.

        Parameters
        ----------
        subnet
            Subnet of the newcomer.
        """
        if not self._idle:
            return
        most_idle = max(self._idle, key=lambda each: len(self._idle[each]))
        # The address with most idle connections loses one even if it is young, as long as it has
        # more than the newcomer would then: many idle connections must not keep others out.
        # Otherwise only a silent one goes, else two addresses could close each other's connections
        # in turn.
        if len(self._idle[most_idle]) > len(self._idle.get(subnet, ())) + 1:
            next(iter(self._idle[most_idle])).disconnect()
        else:
            self._disconnect_oldest(most_idle)

    def _disconnect_oldest(self, subnet: str) -> None:
        """
        Close the longest idle connection of an address if it is idle for :data:`SILENT` seconds.
        """
        oldest = next(iter(self._idle.get(subnet, ())), None)
        if oldest is not None and asyncio.get_running_loop().time() - oldest.since >= SILENT:
            oldest.disconnect()


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
        # Where fewer connections are affordable, an address keeps its share of them.
        per_subnet = max(1, limits.connections_per_address * most // limits.connections)
        self._limit = _ConnectionLimit(most, per_subnet)
        self._sockets: list[socket.socket] = []
        self._connecting = TaskSupervisor(_on_failure)
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
                    # One that takes IPv4 as well would collide with the IPv4 socket bound beside
                    # it.
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
        await self._connecting.close()
        self.leave()

    def leave(self) -> None:
        """Close the listening sockets."""
        for listening in self._sockets:
            listening.close()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Many for one wake-up, but not all: a flood of connections must not hold the loop.
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
            slot = self._limit.take(connection, subnet_of(address[0]))
            if slot is None:
                connection.close()
                continue
            slot.connecting = self._connecting.start(self._connect(connection, slot))
            # A callback and not a finally: a task that is cancelled before its first step runs no
            # line of its own.
            slot.connecting.add_done_callback(partial(self._on_connected, connection, slot))

    def _accept_again(self, listening: socket.socket) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _connect(self, connection: socket.socket, slot: ConnectionSlot) -> None:
        protocol = partial(self._protocol, slot)
        if self._handshakes is not None:
            made = await self._handshakes.shake(connection, slot.subnet, protocol)
            slot.is_connected = made is not None
        else:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(protocol, connection)
            slot.is_connected = True

    def _on_connected(
        self, connection: socket.socket, slot: ConnectionSlot, connecting: "asyncio.Task[None]"
    ) -> None:
        """
        Free the slot of a connection that was not made, even if the connection's task never began.
        """
        if not slot.is_connected:
            slot.leave()
            connection.close()


def _on_failure(error: BaseException) -> None:
    """Log a fault of ours; the connection has been closed, and others go on."""
    _log.error("a connection could not be accepted", exc_info=error)
