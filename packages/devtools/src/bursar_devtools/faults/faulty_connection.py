"""
Simulates connections between workers and their server that break in the middle of frames.

They fail as TLS over TCP does: a handshake fails or never ends, one direction ends before the
other, a damaged record ends the connection at the receiver, bytes of an abandoned connection
arrive after the next one was made, and a closed end may still receive bytes that were in transit.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from bursar_devtools.faults.faulty_network import DelayedChannel, FaultyNetwork
from bursar_devtools.faults.simulated_process import SimulatedProcess

ProtocolFactory = Callable[[], asyncio.Protocol]

HALF_OPEN = 40.0
"""Seconds after a half-close within which the other end must close, too."""

_STALLED = 30.0
"""Most seconds for which bytes of a broken connection are delayed."""

_SHUTDOWN = 30.0
"""Seconds after which a closed end receives nothing more."""


class _CloseNotify(Exception):
    """One direction of a connection has ended in order (close_notify)."""


class FaultyListener:
    """
    Simulates an address at which one process after another may listen.

    Parameters
    ----------
    network
        Network through which clients reach the address.
    """

    def __init__(self, network: FaultyNetwork) -> None:
        self.certificate_expired_until = 0.0
        """Virtual time until which handshakes fail, as the certificate has expired."""
        self._network = network
        self._listener: tuple[SimulatedProcess, ProtocolFactory] | None = None

    def listen(self, process: SimulatedProcess, factory: ProtocolFactory) -> None:
        """Let a process accept connections until the process ends."""
        self._listener = (process, factory)

    def deserts(self) -> bool:
        """Draw whether an end loses a connection before the last bytes have arrived."""
        return self._network.happens(self._network.conditions.stalls)

    def connect(self, process: SimulatedProcess, protocol: asyncio.Protocol) -> None:
        """
        Connect a process's protocol to the listener; both ends are notified in steps of their own.

        Raises
        ------
        ConnectionRefusedError
            When no process listens.
        TimeoutError
            When a partition separates the two.
        ssl.SSLError
            When the handshake fails.
        """
        if self._listener is None or not self._listener[0].is_alive:
            raise ConnectionRefusedError("nobody listens")
        listening, factory = self._listener
        if self._network.blocked(process.party, listening.party):
            raise TimeoutError("nothing comes through")
        network = self._network
        if network.now < self.certificate_expired_until:
            network.trace.fault("certificate expired", process.party, "does not connect")
            raise ssl.SSLCertVerificationError("certificate has expired")
        if network.happens(network.conditions.handshakes):
            self._fail_handshake(process, protocol)
            return
        ours, theirs = (
            FaultyTransport(self._network, process),
            FaultyTransport(self._network, listening),
        )
        ours.join(theirs)
        theirs.join(ours)
        # Steps of two processes: either may be killed before it has heard of the connection.
        listening.call(lambda: theirs.speak(factory()))
        process.call(ours.speak, protocol)

    def _fail_handshake(self, process: SimulatedProcess, protocol: asyncio.Protocol) -> None:
        """
        Fail at once, never end, or fail after the client has sent data.

        In TLS 1.3 a client is ready before the server has checked the client's certificate.

        The listener's protocol is made only after a handshake, and so sees none of these failures.
        """
        network = self._network
        kind = network.chance.choice(("fails", "never ends", "fails late"))
        network.trace.fault("handshake", process.party, kind)
        if kind == "fails":
            raise ssl.SSLError("handshake failure")
        # Of the kind "never ends" nothing is scheduled: the client has to give up by itself.
        if kind == "fails late":
            alone = FaultyTransport(network, process)
            process.call(alone.speak, protocol)
            process.call_later(network.lateness(), alone.fail, ssl.SSLError("alert: access denied"))


class FaultyTransport(asyncio.Transport):
    """
    Simulates one end of a connection.

    Parameters
    ----------
    network
        Network that carries the bytes.
    process
        Process that owns this end.
    """

    def __init__(self, network: FaultyNetwork, process: SimulatedProcess) -> None:
        super().__init__()
        self._network = network
        self._process = process
        self._protocol: asyncio.Protocol | None = None
        self._lane: DelayedChannel[bytes | Exception | None] | None = None
        self._peer: FaultyTransport | None = None
        self._other = ""
        self._closing = False
        self._lost = False
        self._paused = False
        self._waiting: list[bytes | Exception | None] = []
        self._has_finished = False
        self._lingers = False
        # An operating system resets the connections of a process that was killed.
        process.on_death(self._died)

    def join(self, peer: "FaultyTransport") -> None:
        """Connect this end to the other one."""
        self._peer = peer
        self._lane = DelayedChannel(self._network, self._process.party, peer._process, peer._arrive)
        self._other = peer._process.party

    def speak(self, protocol: asyncio.Protocol) -> None:
        """Attach a protocol, and report the connection to the protocol."""
        self._protocol = protocol
        protocol.connection_made(self)

    def fail(self, error: Exception) -> None:
        """End the connection at this end alone."""
        self._closing = True
        self._lose(error)

    def desert(self, said: bytes) -> None:
        """
        Lose the connection at this end first, while the bytes sent last arrive some time later.
        """
        if self._closing or self._has_finished or self._lane is None or not self._process.is_alive:
            return
        network = self._network
        # Evenly distributed over the orders of magnitude: half are late by less than five seconds.
        seconds = _STALLED ** network.chance.random() - 1
        what = f"to {self._other}, its last bytes come {seconds:.1f} s late"
        network.trace.fault("connection superseded", self._process.party, what)
        self._lane.stall(seconds)
        self._lane.send(said)
        self._break()

    @property
    def stands(self) -> bool:
        """Whether neither end has been closed, broken or finished."""
        ends = (self, self._peer)
        return all(e is not None and not e._closing and not e._has_finished for e in ends)

    # The interface of asyncio.Transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, which arrive later and in order, unless a fault strikes."""
        if self._closing or self._has_finished or self._lane is None or not self._process.is_alive:
            return
        network = self._network
        conditions = network.conditions
        said = bytes(data)
        if network.happens(conditions.breaks):
            if network.happens(conditions.stalls):
                self.desert(said)
                return
            # Any beginning arrives, so that frames end in the middle and the receiver must not act
            # on a part.
            self._lane.send(said[: network.chance.randint(0, len(said))])
            network.trace.fault("connection broken", self._process.party, f"to {self._other}")
            self._break()
        elif network.happens(conditions.tears):
            network.trace.fault("record torn", self._process.party, f"to {self._other}")
            self._lane.send(ssl.SSLError("bad record mac"))
        elif network.happens(conditions.half_closes):
            network.trace.fault("half-close", self._process.party, f"to {self._other}")
            self._lane.send(said)
            self._lane.send(_CloseNotify())
            self._has_finished = True
            self._process.call_later(HALF_OPEN, self._look_at_peer)
        else:
            self._lane.send(said)

    def is_closing(self) -> bool:
        """Whether this end is closed or closing."""
        return self._closing

    def close(self) -> None:
        """Close both ends after the written bytes have arrived."""
        if self._closing:
            return
        self._closing = True
        network = self._network
        if self._lane is not None and network.happens(network.conditions.lingers):
            self._lingers = True
            self._process.call_later(_SHUTDOWN, self._end_lingering)
        else:
            self._process.call(self._lose, None)
        if self._lane is not None:
            self._lane.send(None)

    def abort(self) -> None:
        """Close both ends like :meth:`close`, since nothing is buffered."""
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the other party's name as ``peername``; there is no socket."""
        return (self._other, 0) if name == "peername" else default

    def pause_reading(self) -> None:
        """Hold back bytes that arrive."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver the bytes held back, and all that follow."""
        self._paused = False
        self._process.call(self._hear_on)

    def is_reading(self) -> bool:
        """Whether bytes that arrive are delivered."""
        return not self._paused and not self._closing

    def get_write_buffer_size(self) -> int:
        """Return 0, as nothing is buffered."""
        return 0

    # Arrivals from the other end: bytes, an error, or None for its close.

    def _arrive(self, item: bytes | Exception | None) -> None:
        self._waiting.append(item)
        self._hear_on()

    def _hear_on(self) -> None:
        while self._waiting and not self._paused and (not self._closing or self._lingers):
            item = self._waiting.pop(0)
            if isinstance(item, bytes):
                if self._protocol is not None:
                    self._protocol.data_received(item)
            elif isinstance(item, _CloseNotify):
                if self._protocol is None or not self._protocol.eof_received():
                    self.close()
            else:
                self._answer_end(item)
                self._closing = True
                self._lingers = False
                self._lose(item)

    def _answer_end(self, item: Exception | None) -> None:
        """
        Notify the other end, which has closed and may wait for this, or sent a damaged record.
        """
        if self._lane is None:
            return
        if item is None and not self._closing:
            self._lane.send(None)
        elif isinstance(item, ssl.SSLError):
            self._lane.send(ConnectionResetError("connection reset by peer"))

    def _look_at_peer(self) -> None:
        """Report the other end if it has not closed after this end's half-close."""
        peer = self._peer
        if self._closing or peer is None or peer._closing or not peer._process.is_alive:
            return
        network = self._network
        # Close messages of a partition may still be under way; the peer is at fault only after they
        # have arrived.
        late = network.late_until(self._process.party, self._other) + HALF_OPEN - network.now
        if late > 0:
            self._process.call_later(late, self._look_at_peer)
        else:
            network.on_half_open(self._other)

    def _end_lingering(self) -> None:
        self._lingers = False
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._lost and self._protocol is not None:
            self._lost = True
            self._protocol.connection_lost(error)

    def _break(self) -> None:
        self._closing = True
        error = ConnectionResetError("connection reset by peer")
        self._process.call_later(self._network.lateness(), self._lose, error)
        if self._lane is not None:
            self._lane.send(error)

    def _died(self) -> None:
        if not self._closing and self._lane is not None:
            self._closing = True
            self._lane.send(ConnectionResetError("connection reset by peer"))
