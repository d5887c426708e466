"""Noticing that the other end of a connection is gone when nothing says so."""

import socket


def keep_alive(connection: socket.socket, silence: float) -> None:
    """
    Have a connection break when the other machine has not answered for some time.

    The kernels see to it, not the programs: a program may be busy for longer. One that
    is unreachable while something is on its way to it breaks by ``TCP_USER_TIMEOUT`` (RFC
    5482), one without anything to say by the probes of RFC 9293, section 3.8.4.

    Parameters
    ----------
    silence
        Seconds; whole ones count, three at the least.
    """
    third = max(1, int(silence / 3))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * silence))
