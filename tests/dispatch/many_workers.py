"""
Connections over TCP that end before their TLS handshake does, by the thousand.

They are what port scans, health checks of load balancers and attacks look like to a listener.
"""

import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress

_SOURCES = 16  # addresses, 127.0.1.1 and on, from which strangers connect
_PATIENCE = 60.0  # seconds in which the kernel must have taken a connection


def client_hello() -> bytes:
    """Return the first record that a client sends over TLS."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    connection = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="here")
    with suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


HELLO = client_hello()

SAYINGS = {
    "nothing": b"",
    "garbage": b"\x00\xffSSH-2.0-scan\r\n\r\n" * 4,
    "http": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "half a hello": HELLO[: len(HELLO) // 2],
    "a hello": HELLO,
    "a hello and garbage": HELLO + b"\x17\x03\x03\x00\x05abcde",
}
"""What strangers say, by name."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST, and leaves no TIME_WAIT


def come_and_go(
    port: int, connections: int, held: int, halfway: Callable[[], None] | None = None
) -> int:
    """
    Connect again and again without ever ending a handshake.

    Sayings and ways to end take turns: half of the connections are closed, half are reset.

    Parameters
    ----------
    connections
        How many connections are made.
    held
        How many of them are open at a time.
    halfway
        Called once, while so many are open.

    Returns
    -------
    int
        How many the listener had already ended when this side did.
    """
    open_ones: deque[tuple[int, socket.socket]] = deque()
    sayings = list(SAYINGS.values())
    ended = 0
    for number in range(connections):
        if halfway is not None and number == connections // 2:
            halfway()
        if len(open_ones) >= held:
            ended += _leave(*open_ones.popleft())
        connection = socket.socket()
        connection.settimeout(_PATIENCE)
        connection.bind((f"127.0.1.{1 + number % _SOURCES}", 0))
        connection.connect(("127.0.0.1", port))
        with suppress(ConnectionError):  # hung up on already
            connection.sendall(sayings[number % len(sayings)])
        open_ones.append((number, connection))
    while open_ones:
        ended += _leave(*open_ones.popleft())
    return ended


def _leave(number: int, connection: socket.socket) -> bool:
    """End a connection; whether the other side had ended before."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    is_ended = bool(poll.poll(0))
    if (number // len(SAYINGS)) % 2:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
    return is_ended
