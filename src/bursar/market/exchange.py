"""
Carries messages between parties in one process until all are silent.

Every message goes through its form on the wire, so what works here works over HTTP.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from bursar.market.trade_messages import TradeMessage, decode, encode

DisturbMessages = Callable[[list[TradeMessage]], list[TradeMessage]]
"""Takes the messages about to be delivered, and returns the messages to deliver, in order."""

MOST_ROUNDS = 100_000


class TradingParty(Protocol):
    """Defines a party that messages can be delivered to: a trade server or trade manager."""

    name: str

    def deliver(self, message: TradeMessage, now: float) -> Iterable[TradeMessage]:
        """Process a message, and return the messages to send."""
        ...

    def tick(self, now: float) -> Iterable[TradeMessage]:
        """Process the passing of time, and return the messages to send."""
        ...


class MessageExchange:
    """
    Delivers messages between named parties.

    Parameters
    ----------
    parties
        Trade servers and trade managers that take part.
    disturb
        Function that may lose, repeat and reorder messages; None: no disturbance.

    Attributes
    ----------
    delivered
        Every message delivered, in order.
    """

    def __init__(
        self, parties: Iterable[TradingParty], disturb: DisturbMessages | None = None
    ) -> None:
        self._parties = {party.name: party for party in parties}
        self.disturb = disturb
        self.delivered: list[TradeMessage] = []

    def deliver(self, messages: Iterable[TradeMessage], now: float) -> None:
        """
        Deliver messages and the answers until every party is silent.

        A message to an unknown party is lost.

        Parameters
        ----------
        now
            Time of all deliveries, seconds since the epoch.

        Raises
        ------
        RuntimeError
            When they never fall silent: a protocol goes round in circles.
        """
        waiting = list(messages)
        for _ in range(MOST_ROUNDS):
            if not waiting:
                return
            if self.disturb is not None:
                waiting = self.disturb(waiting)
            answers: list[TradeMessage] = []
            for message in waiting:
                party = self._parties.get(message.to)
                if party is not None:
                    read = decode(encode(message))
                    self.delivered.append(read)
                    answers.extend(party.deliver(read, now))
            waiting = answers
        raise RuntimeError("the parties do not fall silent")

    def tick(self, now: float) -> None:
        """Process the passing of time for every party, and carry the messages that follow."""
        for party in self._parties.values():
            self.deliver(party.tick(now), now)
