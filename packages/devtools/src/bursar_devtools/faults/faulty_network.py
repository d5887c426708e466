"""
Simulates a network with delays, partitions and faults, which all connections share.

A connection keeps order and loses nothing while it lasts, as TCP does; what is lost is lost with
the connection, and each end learns of that at its own time.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_process import ProcessLoop, SimulatedProcess

_HOP = 0.2e-3  # seconds, in a local network

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConditions:
    """
    Holds the delay of a network and the probabilities of faults.

    Parameters
    ----------
    delay
        Mean seconds by which something is late, beyond the hop itself.
    breaks
        Probability that a write breaks the connection, after a part has arrived.
    loses
        Probability that a request does not arrive.
    forgets
        Probability that an answer does not arrive.
    repeats
        Probability that a request arrives once more, some time later.
    stalls
        Probability that bytes on a breaking connection are held up, and arrive after the next
        connection was made.
    lingers
        Probability that a closed or aborted end still receives what is under way. TLS does
        so after ``close`` while it flushes; asyncio promises otherwise for ``abort``, and the
        promise is broken here so that the code above does not rely on it alone.
    handshakes
        Probability that a TLS handshake fails, or never ends.
    half_closes
        Probability that one end finishes one direction (close_notify), and the other stays open.
    tears
        Probability that a TLS record is damaged on the way: nothing of the record is delivered,
        and the receiving end aborts.
    """

    delay: float = 0.0
    breaks: float = 0.0
    loses: float = 0.0
    forgets: float = 0.0
    repeats: float = 0.0
    stalls: float = 0.0
    lingers: float = 0.0
    handshakes: float = 0.0
    half_closes: float = 0.0
    tears: float = 0.0


FAULTLESS = NetworkConditions()


class FaultyNetwork:
    """
    Draws faults between parties, and keeps their partitions.

    Parameters
    ----------
    loop
        Loop with the virtual time.
    chance
        Random source of faults and delays.
    """

    def __init__(self, loop: ProcessLoop, chance: random.Random, trace: EventTrace) -> None:
        self.chance = chance
        self.trace = trace
        self.conditions = FAULTLESS
        self.on_half_open: Callable[[str], object] = lambda party: None
        """Called with the name of a party that leaves a connection half open."""
        self._loop = loop
        self._cut_off: dict[str, float] = {}  # until when, by party
        self._late: dict[str, float] = {}  # the same, also of what calm has ended since

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def cut_off(self, party: str, seconds: float) -> None:
        """Partition a party from all others for some seconds."""
        self._cut_off[party] = max(self.now + seconds, self._cut_off.get(party, 0.0))
        # Kept apart from the partitions, which calm() clears: items that were scheduled meanwhile
        # still arrive as late as they were to.
        self._late[party] = max(self._late.get(party, 0.0), self._cut_off[party])
        self.trace.fault("partition", party, f"cut off for {seconds:.1f} s")

    def calm(self) -> None:
        """End all faults and partitions."""
        self.conditions = FAULTLESS
        self._cut_off.clear()

    def blocked(self, *parties: str) -> float:
        """Return the seconds until the end of the longest partition of any of these parties."""
        until = max(self._cut_off.get(party, 0.0) for party in parties)
        return max(0.0, until - self.now)

    def late_until(self, *parties: str) -> float:
        """Return the virtual time until which delayed data between parties may still arrive."""
        return max(self._late.get(party, 0.0) for party in parties)

    def lateness(self) -> float:
        """Draw the seconds that a message takes."""
        delay = self.conditions.delay
        return _HOP + (self.chance.expovariate(1 / delay) if delay else 0.0)

    def happens(self, chance: float) -> bool:
        """Draw whether an event of this probability happens."""
        return chance > 0 and self.chance.random() < chance


class DelayedChannel(Generic[Item]):
    """
    Carries one direction of a connection, with delays and in order.

    Parameters
    ----------
    network
        Network that sets the delays.
    sender
        Name of the sending party.
    listener
        Process that receives.
    hear
        Called with each item that arrives, as a step of the receiving process.
    """

    def __init__(
        self,
        network: FaultyNetwork,
        sender: str,
        listener: SimulatedProcess,
        hear: Callable[[Item], object],
    ) -> None:
        self._network = network
        self._sender = sender
        self._listener = listener
        self._hear = hear
        self._under_way: deque[Item] = deque()
        self._last = 0.0  # moment at which the last of it arrives

    def stall(self, seconds: float) -> None:
        """Delay all that is sent from now on."""
        self._last = max(self._last, self._network.now) + seconds

    def send(self, item: Item) -> None:
        """Send an item."""
        network = self._network
        blocked = network.blocked(self._sender, self._listener.party)
        # Never before what was sent earlier: TCP keeps the order, however long a single packet
        # takes.
        self._last = max(self._last, network.now + blocked + network.lateness())
        self._under_way.append(item)
        self._listener.call_later(self._last - network.now, self._arrive)

    def _arrive(self) -> None:
        # Taken from a queue: timers of the same moment may fire out of order.
        self._hear(self._under_way.popleft())
