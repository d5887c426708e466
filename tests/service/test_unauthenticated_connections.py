"""Connections that never become TLS, by the thousand, at every TLS listener that there is."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.dispatch.many_workers import SAYINGS, come_and_go

from bursar.dispatch.credential import Credential, client_context, decode_credential
from bursar.dispatch.wire import Hello, frame
from bursar.remote.client import ServiceClient
from bursar_papers.drp.serving import measured_service

HELD = 1_000
MOST = 50.0  # MB by which a process may have grown at the end
PATIENCE = 60.0  # seconds for what must come

_OPEN = ("01", "08")  # ESTABLISHED and CLOSE_WAIT in /proc/net/tcp


@dataclass
class Listening:
    """A process that listens, and a client that it has to serve."""

    pid: int
    port: int
    ask: Callable[[], None]
    log: Path

    @property
    def resident(self) -> float:
        """Memory of the process in MB, as the kernel counts it."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def connections(self) -> int:
        """Number of connections that the process has not closed, or not accepted yet."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        local = f":{self.port:04X}"
        return sum(row[1].endswith(local) and row[3] in _OPEN for row in rows)

    def settle(self) -> None:
        """Return when no connection is left."""
        ends = time.monotonic() + PATIENCE
        while self.connections and time.monotonic() < ends:
            time.sleep(0.05)
        assert not self.connections


@contextmanager
def service() -> Iterator[Listening]:
    """``bursar serve``: execution, trade server and all that remote sites talk to, at one port."""
    with measured_service("tls", 1) as served:

        def ask() -> None:
            with ServiceClient(served.access) as client:
                assert client.instances() == []

        port = urlsplit(served.access.url).port
        assert port is not None
        yield Listening(served.pid, port, ask, served.folder / "log")


@contextmanager
def door(kind: str, folder: Path) -> Iterator[Listening]:
    """A port for workers from elsewhere."""
    command = [sys.executable, "-m", "tests.dispatch.listener_rig", kind, str(folder)]
    log = folder.with_suffix(".log")
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        try:
            told = decode_credential(process.stdout.readline(), kind)
            yield Listening(process.pid, told.port, lambda: join(told), log)
        finally:
            process.kill()


def join(told: Credential) -> None:
    """Come as the lease's worker, be welcomed, and go."""
    hello = Hello(
        token=told.token,
        worker=f"{told.site}-{told.lease}-1",
        site=told.site,
        processors=1,
        lease=told.lease,
    )
    with (
        socket.create_connection((told.host, told.port), PATIENCE) as connection,
        client_context(told.certificate).wrap_socket(connection) as secure,
    ):
        secure.sendall(frame(hello))
        assert secure.recv(1 << 16)


LISTENERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Listening]]] = {
    "service": lambda folder: service(),
    "service-workers": lambda folder: door("service-workers", folder),
    "run-workers": lambda folder: door("run-workers", folder),
}


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process, and those that it starts, may open as many files as the system lets them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(one, marks=pytest.mark.ci if at else []) for at, one in enumerate(LISTENERS)],
)
@pytest.mark.parametrize(
    "connections",
    [2_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
    ids=["few", "many"],
)
@pytest.mark.usefixtures("many_files")
def test_memory_does_not_grow_with_connections_that_never_become_tls(
    kind: str, connections: int, tmp_path: Path
) -> None:
    """
    Whatever they say, and whether they are closed or reset; who means it is served meanwhile.

    The memory at the start is that after the first few of them, which load what is loaded once.
    """
    with LISTENERS[kind](tmp_path) as listening:
        come_and_go(listening.port, 10 * len(SAYINGS), 10, listening.ask)
        listening.settle()
        before, logged = listening.resident, listening.log.stat().st_size
        come_and_go(listening.port, connections, HELD, listening.ask)
        listening.settle()
        listening.ask()
        listening.settle()
        grown = listening.resident - before
        print(f"{kind}: {connections:,} connections, {before:.0f} MB + {grown:.1f} MB")
        assert grown < MOST
        assert listening.log.stat().st_size == logged
