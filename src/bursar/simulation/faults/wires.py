"""Connections between workers and whoever listens for them, breaking in the middle of frames."""

import asyncio
from collections.abc import Callable
from typing import Any

from bursar.simulation.faults.lives import Life
from bursar.simulation.faults.network import Lane, Network

ProtocolFactory = Callable[[], asyncio.Protocol]


class Door:
    """
    An address at which one party after the other may listen.

    Parameters
    ----------
    network
        That leads there.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._listener: tuple[Life, ProtocolFactory] | None = None

    def listen(self, life: Life, factory: ProtocolFactory) -> None:
        """A party accepts connections from now on, for as long as it lives."""
        self._listener = (life, factory)

    def connect(self, life: Life, protocol: asyncio.Protocol) -> None:
        """
        Joins a party's protocol to who listens; both ends hear of it in steps of their own.

        Raises
        ------
        ConnectionRefusedError
            When nobody listens.
        TimeoutError
            When nothing comes through.
        """
        if self._listener is None or not self._listener[0].is_alive:
            raise ConnectionRefusedError("nobody listens")
        listening, factory = self._listener
        if self._network.blocked(life.party, listening.party):
            raise TimeoutError("nothing comes through")
        ours, theirs = End(self._network, life), End(self._network, listening)
        ours.join(theirs)
        theirs.join(ours)
        listening.call(lambda: theirs.speak(factory()))
        life.call(ours.speak, protocol)


class End(asyncio.Transport):
    """
    One end of a connection.

    Parameters
    ----------
    network
        That it is of.
    life
        Whose end it is.
    """

    def __init__(self, network: Network, life: Life) -> None:
        super().__init__()
        self._network = network
        self._life = life
        self._protocol: asyncio.Protocol | None = None
        self._lane: Lane[bytes | Exception | None] | None = None
        self._other = ""
        self._closing = False
        self._lost = False
        self._paused = False
        self._waiting: list[bytes | Exception | None] = []
        life.on_death(self._died)

    def join(self, peer: "End") -> None:
        """What it says arrives at another end."""
        self._lane = Lane(self._network, self._life.party, peer._life, peer._arrive)
        self._other = peer._life.party

    def speak(self, protocol: asyncio.Protocol) -> None:
        """Gives it to a protocol."""
        self._protocol = protocol
        protocol.connection_made(self)

    # Of a transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends; the other end has it some time later, in order."""
        if self._closing or self._lane is None or not self._life.is_alive:
            return
        network = self._network
        said = bytes(data)
        if network.happens(network.weather.breaks):
            self._lane.send(said[: network.chance.randint(0, len(said))])
            network.trace.fault("connection broken", self._life.party, f"to {self._other}")
            self._break()
        else:
            self._lane.send(said)

    def is_closing(self) -> bool:
        """Whether this end is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Closes both ends, once what was written has arrived."""
        if not self._closing:
            self._closing = True
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
        while self._waiting and not self._paused and not self._closing:
            item = self._waiting.pop(0)
            if isinstance(item, bytes):
                if self._protocol is not None:
                    self._protocol.data_received(item)
            else:
                self._closing = True
                self._lose(item)

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
