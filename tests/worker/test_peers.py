"""Whose process a connection leads to."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from bursar.worker.dispatcher_connection import check_peer

ME = os.geteuid()

SQUATS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as listening:
    print(listening.getsockname()[1], flush=True)
    connection, _ = listening.accept()
    print(len(connection.recv(100)), flush=True)
"""
"""Takes one connection; says its port, and how much it was told."""


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def listening(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A listener of ours; the last one takes both kinds of addresses."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    both = request.param == "::"
    try:
        server = socket.create_server((request.param, 0), family=family, dualstack_ipv6=both)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with closing(server):
        yield server


def reach(listening: socket.socket) -> socket.socket:
    """A connection to it, over IPv4 where that can be."""
    host, port = listening.getsockname()[:2]
    return socket.create_connection(("127.0.0.1" if host == "::" else host, port), 10)


def test_a_connection_to_our_own_process_is_told_from_anothers(listening: socket.socket) -> None:
    """Over both versions of IP, and from one to the other."""
    with closing(reach(listening)) as connection, closing(listening.accept()[0]):
        check_peer(connection, ME, 5.0)
        with pytest.raises(PermissionError, match=f"of user {ME}, not {ME + 1}"):
            check_peer(connection, ME + 1, 5.0)


def test_who_takes_no_connection_is_nobody_yet(listening: socket.socket) -> None:
    """The kernel says 0, root, of a connection that waits to be accepted: that is not believed."""
    with closing(reach(listening)) as connection, pytest.raises(TimeoutError):
        check_peer(connection, 0, 0.05)


def test_a_connection_that_ends_is_not_waited_for(listening: socket.socket) -> None:
    """The one that took it has hung up."""
    with closing(reach(listening)) as connection:
        listening.accept()[0].close()
        with pytest.raises(ConnectionResetError):
            check_peer(connection, ME, 60.0)


@pytest.mark.skipif(
    ME != 0 or not os.access("/usr/bin/python3", os.X_OK),
    reason="needs root, to start another's process, and a Python for everybody",
)
def test_another_users_process_is_seen() -> None:
    """One that took the port while the service was away hears nothing."""
    squatter = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", SQUATS],
        stdout=subprocess.PIPE,
        text=True,
        user=65534,
        cwd="/",
    )
    with squatter:
        assert squatter.stdout is not None
        port = int(squatter.stdout.readline())
        with (
            closing(socket.create_connection(("127.0.0.1", port), 10)) as connection,
            pytest.raises(PermissionError, match="of user 65534, not 0"),
        ):
            check_peer(connection, 0, 10.0)
        assert squatter.stdout.readline() == "0\n"
