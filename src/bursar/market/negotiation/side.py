"""
One side of a conversation: what it has heard and said.

Whatever the protocol, a side takes a message up once and in the order it was
sent. A repeat gets what was said after it the first time, so an answer that was
lost is had by repeating the question. What comes out of order, from a stranger
or under a number already used changes nothing and is rejected with a reason.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

from bursar.market.trade_messages import Reject, TradeMessage

M = TypeVar("M", bound=TradeMessage)


class NegotiationSide(ABC):
    """
    A party's side of one conversation.

    Parameters
    ----------
    me
        The party's name.
    deal
        The conversation.
    parties
        The others' names.
    currency
        Of every price in it.

    Attributes
    ----------
    state
        Word for where the protocol stands.
    """

    def __init__(self, me: str, deal: str, parties: Iterable[str], currency: str) -> None:
        self.me = me
        self.deal = deal
        self.currency = currency
        self.state = "open"
        self._received: dict[str, list[TradeMessage]] = {party: [] for party in parties}
        # What was said to each party, by how many of its messages had been heard.
        self._sent: dict[str, list[list[TradeMessage]]] = {party: [[]] for party in self._received}
        self._count = dict.fromkeys(self._received, 0)

    @property
    def parties(self) -> tuple[str, ...]:
        """The others."""
        return tuple(self._received)

    def receive(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """
        Takes a message up, or says why not.

        Parameters
        ----------
        now
            Seconds since the epoch.

        Returns
        -------
        tuple of Message
            What to send.
        """
        answer = self._repeated_answer(message)
        if answer is not None:
            return answer
        self._received[message.sender].append(message)
        self._sent[message.sender].append([])
        return self._on(message, now)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """What the time itself brings about; to be asked at :meth:`next_tick`."""
        return ()

    def next_tick(self) -> float:
        """When :meth:`tick` has something to do if nothing is said; infinite for never."""
        return math.inf

    def again(self, party: str) -> tuple[TradeMessage, ...]:
        """What was last said to a party: sent again, it brings back answers that were lost."""
        return next((tuple(sent) for sent in reversed(self._sent[party]) if sent), ())

    @abstractmethod
    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """Reacts to a message that is new and in order."""

    def _repeated_answer(self, message: TradeMessage) -> tuple[TradeMessage, ...] | None:
        """The answer to a message that is not to be taken up; None for one that is."""
        received = self._received.get(message.sender)
        if received is None or message.deal != self.deal or message.to != self.me:
            return reject_stray(message, self.me, f"{message.sender} is no party to this deal")
        if message.number == 0:
            return ()
        if message.number <= len(received):
            if received[message.number - 1] != message:
                return reject_stray(
                    message, self.me, f"number {message.number} was another message"
                )
            return tuple(self._sent[message.sender][message.number])
        if message.number > len(received) + 1:
            return reject_stray(message, self.me, f"expected number {len(received) + 1} first")
        return None

    def _make(self, kind: type[M], to: str, **fields: Any) -> M:
        self._count[to] += 1
        message = kind(deal=self.deal, sender=self.me, to=to, number=self._count[to], **fields)
        self._sent[to][-1].append(message)
        return message

    def _refuse(self, message: TradeMessage, reason: str) -> tuple[TradeMessage, ...]:
        """Rejects a message that is in order but cannot be followed; never a rejection."""
        if isinstance(message, Reject):
            return ()
        return (self._make(Reject, message.sender, reason=reason, of=message.number),)

    def _unexpected(self, message: TradeMessage) -> tuple[TradeMessage, ...]:
        return self._refuse(message, f"a {type(message).__name__} does not fit: {self.state}")

    def _foreign(self, message: TradeMessage, currency: str) -> tuple[TradeMessage, ...] | None:
        """The rejection of a price in another currency; None for one in ours."""
        if currency == self.currency:
            return None
        return self._refuse(message, f"counts in {currency}, expected {self.currency}")


def reject_stray(message: TradeMessage, me: str, reason: str) -> tuple[TradeMessage, ...]:
    """
    The answer to a message that is not taken up: a rejection outside the count.

    A rejection is never answered, so that two parties do not reject each other for ever.
    """
    if isinstance(message, Reject):
        return ()
    return (
        Reject(
            deal=message.deal,
            sender=me,
            to=message.sender,
            number=0,
            reason=reason,
            of=message.number,
        ),
    )
