"""
Connections between workers and whoever listens for them, breaking in the middle of frames.

They fail as TLS over TCP does: a handshake fails or never ends, one direction ends before the
other, a damaged record ends the connection at the end that checks it, bytes of a connection that
one end has given up arrive when the next connection was made, and an end that was closed may still
be told what was under way.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from bursar.simulation.faults.faulty_network import DelayedChannel, FaultyNetwork
from bursar.simulation.faults.simulated_process import SimulatedProcess

ProtocolFactory = Callable[[], asyncio.Protocol]

HALF_OPEN = 40.0
"""Seconds after which a connection must have ended that one end has finished."""

_STALLED = 30.0
"""Seconds at most for which bytes of a broken connection are held up."""

_SHUTDOWN = 30.0
"""Seconds after which an end that was closed hears nothing more, whatever is under way."""


class _CloseNotify(Exception):
    """One direction of a connection has ended in order (close_notify)."""


class FaultyListener:
    """
    An address at which one party after the other may listen.

    Parameters
    ----------
    network
        That leads there.
    """

    def __init__(self, network: FaultyNetwork) -> None:
        self.certificate_expired_until = 0.0
        """Virtual time until which handshakes fail, as the certificate has expired."""
        self._network = network
        self._listener: tuple[SimulatedProcess, ProtocolFactory] | None = None

    def listen(self, life: SimulatedProcess, factory: ProtocolFactory) -> None:
        """A party accepts connections from now on, for as long as it lives."""
        self._listener = (life, factory)

    def deserts(self) -> bool:
        """Whether an end is to lose its connection now, before what it says has arrived."""
        return self._network.happens(self._network.weather.stalls)

    def connect(self, life: SimulatedProcess, protocol: asyncio.Protocol) -> None:
        """
        Joins a party's protocol to who listens; both ends hear of it in steps of their own.

        Raises
        ------
        ConnectionRefusedError
            When nobody listens.
        TimeoutError
            When nothing comes through.
        ssl.SSLError
            When the handshake fails.
        """
        if self._listener is None or not self._listener[0].is_alive:
            raise ConnectionRefusedError("nobody listens")
        listening, factory = self._listener
        if self._network.blocked(life.party, listening.party):
            raise TimeoutError("nothing comes through")
        network = self._network
        if network.now < self.certificate_expired_until:
            network.trace.fault("certificate expired", life.party, "does not connect")
            raise ssl.SSLCertVerificationError("certificate has expired")
        if network.happens(network.weather.handshakes):
            self._fail_handshake(life, protocol)
            return
        ours, theirs = (
            FaultyTransport(self._network, life),
            FaultyTransport(self._network, listening),
        )
        ours.join(theirs)
        theirs.join(ours)
        listening.call(lambda: theirs.speak(factory()))
        life.call(ours.speak, protocol)

    def _fail_handshake(self, life: SimulatedProcess, protocol: asyncio.Protocol) -> None:
        """
        Fail at once, never end, or fail after the connecting party has spoken (TLS 1.3, where a
        client is ready before the server has checked it).

        The listener's protocol learns of none of them: it is made after the handshake only.
        """
        network = self._network
        kind = network.chance.choice(("fails", "never ends", "fails late"))
        network.trace.fault("handshake", life.party, kind)
        if kind == "fails":
            raise ssl.SSLError("handshake failure")
        if kind == "fails late":
            alone = FaultyTransport(network, life)
            life.call(alone.speak, protocol)
            life.call_later(network.lateness(), alone.fail, ssl.SSLError("alert: access denied"))


class FaultyTransport(asyncio.Transport):
    """
    One end of a connection.

    Parameters
    ----------
    network
        That it is of.
    life
        Whose end it is.
    """

    def __init__(self, network: FaultyNetwork, life: SimulatedProcess) -> None:
        super().__init__()
        self._network = network
        self._life = life
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
        life.on_death(self._died)

    def join(self, peer: "FaultyTransport") -> None:
        """What it says arrives at another end."""
        self._peer = peer
        self._lane = DelayedChannel(self._network, self._life.party, peer._life, peer._arrive)
        self._other = peer._life.party

    def speak(self, protocol: asyncio.Protocol) -> None:
        """Gives it to a protocol."""
        self._protocol = protocol
        protocol.connection_made(self)

    def fail(self, error: Exception) -> None:
        """End without a word from the other end."""
        self._closing = True
        self._lose(error)

    def desert(self, said: bytes) -> None:
        """Lose the connection at this end first: what it said last arrives some time later."""
        if self._closing or self._has_finished or self._lane is None or not self._life.is_alive:
            return
        network = self._network
        seconds = _STALLED ** network.chance.random() - 1
        what = f"to {self._other}, its last bytes come {seconds:.1f} s late"
        network.trace.fault("connection superseded", self._life.party, what)
        self._lane.stall(seconds)
        self._lane.send(said)
        self._break()

    @property
    def stands(self) -> bool:
        """Whether neither end has been closed, broken or finished."""
        ends = (self, self._peer)
        return all(e is not None and not e._closing and not e._has_finished for e in ends)

    # Of a transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends; the other end has it some time later, in order."""
        if self._closing or self._has_finished or self._lane is None or not self._life.is_alive:
            return
        network = self._network
        weather = network.weather
        said = bytes(data)
        if network.happens(weather.breaks):
            if network.happens(weather.stalls):
                self.desert(said)
                return
            self._lane.send(said[: network.chance.randint(0, len(said))])
            network.trace.fault("connection broken", self._life.party, f"to {self._other}")
            self._break()
        elif network.happens(weather.tears):
            network.trace.fault("record torn", self._life.party, f"to {self._other}")
            self._lane.send(ssl.SSLError("bad record mac"))
        elif network.happens(weather.half_closes):
            network.trace.fault("half-close", self._life.party, f"to {self._other}")
            self._lane.send(said)
            self._lane.send(_CloseNotify())
            self._has_finished = True
            self._life.call_later(HALF_OPEN, self._look_at_peer)
        else:
            self._lane.send(said)

    def is_closing(self) -> bool:
        """Whether this end is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Closes both ends, once what was written has arrived."""
        if self._closing:
            return
        self._closing = True
        network = self._network
        if self._lane is not None and network.happens(network.weather.lingers):
            self._lingers = True
            self._life.call_later(_SHUTDOWN, self._end_lingering)
        else:
            self._life.call(self._lose, None)
        if self._lane is not None:
            self._lane.send(None)

    def abort(self) -> None:
        """As :meth:`close`: nothing is buffered."""
        self.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The other end's name; there is no socket."""
        return (self._other, 0) if name == "peername" else default

    def pause_reading(self) -> None:
        """What arrives waits."""
        self._paused = True

    def resume_reading(self) -> None:
        """What waits is heard, and what comes."""
        self._paused = False
        self._life.call(self._hear_on)

    def is_reading(self) -> bool:
        """Whether it hears what arrives."""
        return not self._paused and not self._closing

    def get_write_buffer_size(self) -> int:
        """Nothing is buffered."""
        return 0

    # What comes from the other end: bytes, or word that it is gone, and why.

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
        """Tell the other end, which has closed and may wait for this, or sent a damaged record."""
        if self._lane is None:
            return
        if item is None and not self._closing:
            self._lane.send(None)
        elif isinstance(item, ssl.SSLError):
            self._lane.send(ConnectionResetError("connection reset by peer"))

    def _look_at_peer(self) -> None:
        """By now the other end must have closed what this one has finished."""
        peer = self._peer
        if self._closing or peer is None or peer._closing or not peer._life.is_alive:
            return
        network = self._network
        late = network.late_until(self._life.party, self._other) + HALF_OPEN - network.now
        if late > 0:
            self._life.call_later(late, self._look_at_peer)
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
        self._life.call_later(self._network.lateness(), self._lose, error)
        if self._lane is not None:
            self._lane.send(error)

    def _died(self) -> None:
        if not self._closing and self._lane is not None:
            self._closing = True
            self._lane.send(ConnectionResetError("connection reset by peer"))
