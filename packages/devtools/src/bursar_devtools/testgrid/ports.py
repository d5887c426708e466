"""Ports for several clusters on one machine, chosen one grid at a time."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator

from bursar.model.errors import SiteError

FIRST, LAST = 10_000, 32_000
"""Below those that the system gives to outgoing connections (from 32768 on)."""

_TURN = "\0bursar-testgrid-ports"
"""A socket without a file: whoever holds it chooses; with its process it is gone."""


@contextlib.contextmanager
def port_lock(seconds: float = 60.0) -> Iterator[None]:
    """
    Keep other test grids of this machine from choosing ports until ours are in use.

    After ``seconds`` the context is entered without the lock; at worst a start then fails.
    """
    with socket.socket(socket.AF_UNIX) as turn:
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            try:
                turn.bind(_TURN)
                break
            except OSError:
                time.sleep(0.05)
        yield


def free_block(count: int) -> int:
    """
    Return the first of ``count`` consecutive ports on which nobody listens.

    Raises
    ------
    SiteError
        When there are none.
    """
    # At random, as a stopped daemon leaves its port open to the next grid for a while.
    for _ in range(200):
        start = random.SystemRandom().randrange(FIRST, LAST - count)
        if all(map(is_free, range(start, start + count))):
            return start
    raise SiteError(f"no {count} consecutive free ports between {FIRST} and {LAST}")


def is_free(port: int) -> bool:
    """Return whether a process could listen on a port."""
    with socket.socket() as probe:
        # A port whose last connections are in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
