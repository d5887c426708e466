"""
Simulates unauthenticated connections to the worker server: silent, with garbage, or expired.

The service must close each of them in time, however many there are, and send no work to any.
"""

import asyncio
import random
from collections.abc import Callable

import msgspec

from bursar.dispatch.wire import (
    FrameDecoder,
    FromServer,
    Hello,
    JobAssignment,
    LeaveOrder,
    Welcome,
    frame,
)
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.faulty_connection import FaultyListener
from bursar_devtools.faults.faulty_network import FaultyNetwork
from bursar_devtools.faults.faulty_worker import WorkerAssignment
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess

HELD = 40.0
"""Seconds after which an unauthenticated connection must have ended: the service's login timeout of
10 s, the end of TLS, and delays of the network."""

_MOST = 12
"""Most connections of one burst."""

_DECODER = msgspec.msgpack.Decoder(FromServer)

ReportViolation = Callable[[str, str], None]
"""Called with the name of a party and the rule that was violated there."""


class UnauthenticatedClients:
    """
    Opens connections to the worker server without valid credentials.

    Parameters
    ----------
    loop, network, door, trace
        Loop, network and listener of the connections, and the trace that records them.
    chance
        Random source of what the connections send.
    server
        Returns the current process of the service; None while there is none.
    wrong
        Callback for violations, see :data:`ReportViolation`.
    """

    def __init__(
        self,
        loop: ProcessLoop,
        network: FaultyNetwork,
        door: FaultyListener,
        trace: EventTrace,
        *,
        chance: random.Random,
        server: Callable[[], SimulatedProcess | None],
        wrong: ReportViolation,
    ) -> None:
        self._loop = loop
        self._network = network
        self._door = door
        self._trace = trace
        self._chance = chance
        self._server = server
        self._wrong = wrong
        self._count = 0

    def crowd(self) -> None:
        """Open several connections that send nothing, garbage or a hello with a wrong token."""
        many = self._chance.randint(1, _MOST)
        self._trace.fault("strangers", "nobody", f"{many} connect")
        hello = frame(Hello("0" * 64, "site-x-1", "site", 1, "x", "nobody", ()))
        for _ in range(many):
            said = self._chance.choice(
                (b"", b"", hello[: len(hello) // 2], hello, self._chance.randbytes(40))
            )
            self._connect(said)

    def come_late(self, post: WorkerAssignment) -> None:
        """Connect with the credentials of a lease that has ended."""
        name = f"{post.name}-late"
        hello = Hello(post.token, name, post.site, post.processors, post.lease, "elsewhere", ())
        self._connect(frame(hello))

    def _connect(self, said: bytes) -> None:
        self._count += 1
        process = SimulatedProcess(self._loop, f"stranger-{self._count}")
        link = _UnauthenticatedProtocol(said, self._network, process, self._server(), self._wrong)
        try:
            self._door.connect(process, link)
        except OSError:
            return
        process.call_later(HELD, link.poll)


class _UnauthenticatedProtocol(asyncio.Protocol):
    """
    Handles one unauthenticated connection, which the service must end.

    Parameters
    ----------
    said
        Bytes to send once connected, for instance half a Hello; empty: nothing is sent.
    network
        Network of the connection.
    process
        Process that owns the client's end.
    server
        Process of the service that was connected to; None when there was none. Its death excuses
        a connection that is still open.
    wrong
        Callback for violations, see :data:`ReportViolation`.
    """

    def __init__(
        self,
        said: bytes,
        network: FaultyNetwork,
        process: SimulatedProcess,
        server: SimulatedProcess | None,
        wrong: ReportViolation,
    ) -> None:
        self._said = said
        self._network = network
        self._process = process
        self._server = server
        self._wrong = wrong
        self._frames = FrameDecoder()
        self._is_welcome = self._was_made = self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the prepared bytes once."""
        assert isinstance(transport, asyncio.Transport)
        self._was_made = True
        if self._said:
            transport.write(self._said)

    def data_received(self, data: bytes) -> None:
        """Check that the service sends no jobs before a welcome."""
        for body in self._frames.feed(data):
            match _DECODER.decode(body):
                case Welcome():
                    self._is_welcome = True
                case LeaveOrder():
                    self._is_welcome = False
                case JobAssignment() if not self._is_welcome:
                    self._wrong(self._process.party, "is given work and is no worker")

    def connection_lost(self, exc: Exception | None) -> None:
        """Record that the service has ended the connection."""
        self._is_over = True

    def poll(self) -> None:
        """Report a violation when the connection is still open."""
        server = self._server
        party = self._process.party
        if not self._was_made or self._is_over or server is None or not server.is_alive:
            return
        late = self._network.late_until(server.party, party) + HELD - self._network.now
        if late > 0:  # a partition delays the service's close
            self._process.call_later(late, self.poll)
        elif self._is_welcome:
            self._wrong(party, "works for a lease that is over")
        else:
            self._wrong(party, f"is connected for {HELD:g} s and has not said who it is")
