"""
TLS handshakes of accepted connections, and limits per client and by open files.

Any client can open connections, and most that never become TLS are harmless: port scans, health
checks of load balancers. Each costs its file descriptor and a few hundred bytes until the first
record of a handshake, the ClientHello (RFC 8446, section 4.1.2), lies whole in the kernel's
buffer. Only then, and when it is the connection's turn, is anything made for TLS (some 60 KiB).
"""

import asyncio
import ipaddress
import resource
import select
import socket
import ssl
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from bursar.dispatch.credential import spare_memory

# Number of connections that the limit on open files allows.

_FILES = 4
"""File descriptors for each connection: the socket, and files opened for the peer."""


def affordable_connections(connections: int) -> int:
    """Return this number of connections, or the smaller one that the process may have open."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, descriptors // _FILES))


# Grouping of client addresses by subnet, so that one client cannot evade a limit.


def subnet_of(address: str) -> str:
    """Return the subnet that an address counts for: an IPv6 /64 network, or the IPv4 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


# TLS handshakes of connections that were accepted: a limited number at a time, for every listener.

P = TypeVar("P", bound=asyncio.Protocol)

MOST = 256
"""Handshakes under way at a time."""

MOST_OF_ONE = 64
"""Handshakes under way at a time of one address (of IPv6: of one network of 64 bits)."""

SECONDS = 5.0
"""Seconds in which a handshake ends once its ClientHello is there and its turn has come."""

_HEADER = 5  # bytes of a record before its content (RFC 8446, section 5.1)
_LONGEST = 1 << 14  # bytes of a record's content
_START = b"\x16\x03"  # content type handshake, first byte of the version
_CLIENT_HELLO = 1  # type of the message in the record
_PAUSE = 0.05  # seconds until a record is looked at again that the kernel is short of memory for
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Handshakes:
    """
    Makes TLS connections of accepted sockets.

    Connections that wait for their turn get it address by address, so that an address with
    thousands of connections delays another one by a single handshake.

    Parameters
    ----------
    seconds
        Seconds in which a connection's ClientHello must have come and its turn, too; no handshake
        takes longer than this either.
    shutdown_seconds
        Seconds for a connection over TLS to end in order; None: asyncio's own 30.
    most, most_of_one
        Handshakes under way at a time, in all and of one address.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        seconds: float,
        *,
        shutdown_seconds: float | None = None,
        most: int = MOST,
        most_of_one: int = MOST_OF_ONE,
    ) -> None:
        spare_memory()
        self._context = context
        self._seconds = seconds
        self._shutdown_seconds = shutdown_seconds
        self._turns = _HandshakeSlots(most, most_of_one)
        # One buffer for all connections: nothing is awaited between a look and its use.
        self._peeked = memoryview(bytearray(_HEADER + _LONGEST))

    @property
    def under_way(self) -> int:
        """Number of handshakes for which TLS objects exist."""
        return self._turns.taken

    async def shake(
        self, connection: socket.socket, source: str, protocol: Callable[[], P]
    ) -> P | None:
        """
        Complete a connection's handshake; the socket belongs to this method from the call on.

        Parameters
        ----------
        connection
            An accepted socket that does not block.
        source
            Address that the connection counts for.
        protocol
            Makes the protocol of the TLS connection.

        Returns
        -------
        asyncio.Protocol or None
            The connection's protocol, whose ``connection_made`` has been called; None when the
            handshake was not completed: then the socket is closed.
        """
        ends = asyncio.get_running_loop().time() + self._seconds
        try:
            is_meant = await self._client_hello(connection, ends)
            # The hello before the turn: connections that say nothing take no turn from those that
            # do.
            has_turn = is_meant and await self._turns.take(source, ends)
            if has_turn and _is_gone(connection):  # while it waited
                self._turns.leave(source)
                has_turn = False
        except BaseException:
            connection.close()
            raise
        if not has_turn:
            connection.close()
            return None
        try:
            return await self._complete(connection, protocol)
        finally:
            self._turns.leave(source)

    async def _client_hello(self, connection: socket.socket, ends: float) -> bool:
        """
        Wait until a whole ClientHello lies in the kernel's buffer, without reading.

        Returns
        -------
        bool
            False when something else came, the other side has ended or the time is over.
        """
        wanted = lowest = 1
        try:
            # A client's hello is often there as soon as its connection is: to look before waiting
            # took 4 % off the median time to a new connection's answer.
            size = self._peek(connection)
            while True:
                if size >= wanted:
                    wanted = _wanted(self._peeked[:size])
                    if size >= wanted:
                        break
                elif size >= 0 and _is_gone(connection):
                    return False
                elif size >= 0:
                    await asyncio.sleep(_PAUSE)
                if wanted != lowest:
                    # The kernel reports nothing for less: no client can keep the loop busy
                    # by sending byte after byte.
                    lowest = wanted
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, lowest)
                if not await _is_readable(connection, ends):
                    return False
                size = self._peek(connection)
            if lowest > 1:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError:  # reset
            return False
        return wanted > 0

    def _peek(self, connection: socket.socket) -> int:
        """Return how many bytes lie in the kernel's buffer, one record at most; -1: none yet."""
        try:
            return connection.recv_into(self._peeked, 0, socket.MSG_PEEK)
        except BlockingIOError:
            return -1

    async def _complete(self, connection: socket.socket, protocol: Callable[[], P]) -> P | None:
        try:
            _, made = await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=min(self._seconds, SECONDS),
                ssl_shutdown_timeout=self._shutdown_seconds,
            )
        except OSError as error:  # as time-outs are, and all that TLS refuses
            # Frames of asyncio.sslproto refer to the error, which refers to them: without this
            # the buffers of each failed handshake stay until the garbage collector finds them,
            # which for objects that have lived for some seconds is after millions of others
            # (20,000 such connections once made a service grow by 427 MB).
            traceback.clear_frames(error.__traceback__)
            return None
        return made


class _HandshakeSlots:
    """
    A limited number of turns, in all and by address.

    Parameters
    ----------
    most, most_of_one
        Turns taken at a time, in all and of one address.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._taken: Counter[str] = Counter()
        # By address, the one to be served next first; each address's in the order of arrival.
        self._waiting: dict[str, dict[asyncio.Future[bool], None]] = {}
        self.taken = 0

    async def take(self, source: str, ends: float) -> bool:
        """
        Wait for a turn of an address, which lasts until :meth:`leave`.

        Parameters
        ----------
        ends
            When waiting ends, on the loop's clock.

        Returns
        -------
        bool
            Whether a turn was taken.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.setdefault(source, {})[turn] = None
        self._give()
        # Most turns are there at once: no timer for these.
        timer = None if turn.done() else loop.call_at(ends, _settle, turn, False)
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.result():  # both at once
                self.leave(source)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._forget(source, turn)

    def leave(self, source: str) -> None:
        """End a turn of an address, and give the next address a turn."""
        self.taken -= 1
        self._taken[source] -= 1
        if not self._taken[source]:
            del self._taken[source]
        self._give()

    def _give(self) -> None:
        """Give turns while there are some, to an address after the other."""
        for source in list(self._waiting):
            if self.taken >= self._most:
                return
            # Passed over and kept in its place: it is next as soon as one of its own handshakes
            # ends.
            if self._taken[source] >= self._most_of_one:
                continue
            turn = next((turn for turn in self._waiting[source] if not turn.done()), None)
            if turn is None:  # all have waited for too long, and are about to learn of it
                continue
            turn.set_result(True)
            self.taken += 1
            self._taken[source] += 1
            same = self._waiting.pop(source)
            del same[turn]
            if same:
                self._waiting[source] = same  # behind the others

    def _forget(self, source: str, turn: "asyncio.Future[bool]") -> None:
        same = self._waiting.get(source)
        if same is not None:
            same.pop(turn, None)
            if not same:
                del self._waiting[source]


def _wanted(head: memoryview) -> int:
    """
    Return the size in bytes of the record that begins with these bytes, as far as is known.

    Parameters
    ----------
    head
        At least one byte.

    Returns
    -------
    int
        0: no record with a ClientHello begins so.
    """
    if head[: len(_START)] != _START[: len(head)]:
        return 0
    if len(head) < _HEADER:
        return _HEADER
    length = int.from_bytes(head[_HEADER - 2 : _HEADER])
    # Refused by the header alone, before more of it is waited for.
    if not 0 < length <= _LONGEST or (len(head) > _HEADER and head[_HEADER] != _CLIENT_HELLO):
        return 0
    return _HEADER + length


async def _is_readable(connection: socket.socket, ends: float) -> bool:
    """Wait until something can be read; False when the time is over before."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    # Results rather than exceptions: an exception's traceback refers to this frame, and this
    # frame to the exception.
    loop.add_reader(connection, _settle, ready, True)
    timer = loop.call_at(ends, _settle, ready, False)
    try:
        return await ready
    finally:
        timer.cancel()
        loop.remove_reader(connection)


def _is_gone(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, _GONE)
    return bool(poll.poll(0))


def _settle(future: "asyncio.Future[bool]", result: bool) -> None:
    if not future.done():
        future.set_result(result)
