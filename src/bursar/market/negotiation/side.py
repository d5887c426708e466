"""
One side of a conversation, and what owners who sell once have in common.

Whatever the protocol, a side takes a message up once and in the order it was
sent. A repeat gets what was said after it the first time, so an answer that was
lost is had by repeating the question. What comes out of order, from a stranger
or under a number already used changes nothing and is rejected with a reason.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.trade_messages import Cancel, Confirm, Reject, TradeMessage
from bursar.model.money import Refusal

# One side of a conversation: what it has heard and said.

M = TypeVar("M", bound=TradeMessage)


class NegotiationSide(ABC):
    """A party's side of one conversation."""

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
        """Names of the parties that this side has heard from."""
        return tuple(self._received)

    def admit(self, party: str) -> None:
        """Take in another party, which has heard nothing yet; a known one stays as it is."""
        if party not in self._received:
            self._received[party] = []
            self._sent[party] = [[]]
            self._count[party] = 0

    def receive(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """
        Process a message, or answer with a rejection and a reason.

        Parameters
        ----------
        now
            Seconds since the epoch.

        Returns
        -------
        tuple of TradeMessage
            Messages to send.
        """
        # Before the protocol sees it: transports lose, repeat and reorder, and no protocol below
        # has to know.
        answer = self._repeated_answer(message)
        if answer is not None:
            return answer
        self._received[message.sender].append(message)
        self._sent[message.sender].append([])
        return self._on(message, now)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """React to the passing of time; due at :meth:`next_tick`."""
        return ()

    def next_tick(self) -> float:
        """Return the time of the next due :meth:`tick`; infinite for never."""
        return math.inf

    def again(self, party: str) -> tuple[TradeMessage, ...]:
        """Return the last messages to a party, to be sent again when answers were lost."""
        return next((tuple(sent) for sent in reversed(self._sent[party]) if sent), ())

    def heard(self, party: str) -> tuple[TradeMessage, ...]:
        """Return the messages of a party that this side has taken up, in order."""
        return tuple(self._received[party])

    def said(self, party: str) -> tuple[TradeMessage, ...]:
        """Return the messages that this side has made for a party, in order."""
        return tuple(message for sent in self._sent[party] for message in sent)

    @abstractmethod
    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """React to a message that is new and in order."""

    def _repeated_answer(self, message: TradeMessage) -> tuple[TradeMessage, ...] | None:
        """Return the answer to a repeated or stray message; None for a new one in order."""
        received = self._received.get(message.sender)
        if received is None or message.deal != self.deal or message.to != self.me:
            return reject_stray(message, self.me, f"{message.sender} is no party to this deal")
        if message.number == 0:
            return ()
        if message.number <= len(received):
            # A number used for two messages means that the other party restarted, or cheats.
            if received[message.number - 1] != message:
                return reject_stray(
                    message, self.me, f"number {message.number} was another message"
                )
            # The very answers given at first: a repeated Accept must not come to a second
            # agreement.
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
        """Reject a message in order that cannot be followed; never answer a rejection."""
        if isinstance(message, Reject):
            return ()
        return (self._make(Reject, message.sender, reason=reason, of=message.number),)

    def _unexpected(self, message: TradeMessage) -> tuple[TradeMessage, ...]:
        return self._refuse(message, f"a {type(message).__name__} does not fit: {self.state}")

    def _foreign(self, message: TradeMessage, currency: str) -> tuple[TradeMessage, ...] | None:
        """Return the rejection of a price in a foreign currency; None for our currency."""
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


# Common parts of owners' sides, which sell once, and of buyers' sides, which may withdraw.


class Seller(Protocol):
    """Party that prices and sells processors: the trade server, or a test's seller."""

    name: str
    currency: str
    validity: float
    """Seconds that a quote or bid holds."""

    def terms(
        self, deal: str, customer: str, template: DealTemplate, now: float
    ) -> Terms | Refusal:
        """
        Return the owner's terms: the price by the pricing policy, the start by free processors.
        """
        ...

    def hold(self, deal: str, customer: str, terms: Terms, until: float, now: float) -> None:
        """
        Record a quote or bid; the seller may reserve processors until the quote or bid expires.
        """
        ...

    def let_go(self, deal: str, customer: str) -> None:
        """Free what a quote or bid reserved: the customer does not take it."""
        ...

    def sell(self, deal: str, customer: str, terms: Terms, now: float) -> Agreement | Refusal:
        """Bind the owner if the processors are still free."""
        ...

    def take_back(self, agreement: Agreement, now: float) -> Refusal | None:
        """End an agreement that has not begun."""
        ...


class OwnerSide(NegotiationSide, ABC):
    """
    The owner's side of a deal with one customer.

    Attributes
    ----------
    agreement
        Agreement reached, None before; kept after a cancellation.
    """

    def __init__(self, seller: Seller, deal: str, customer: str) -> None:
        super().__init__(seller.name, deal, (customer,), seller.currency)
        self.seller = seller
        self.customer = customer
        self.agreement: Agreement | None = None

    def _sell(self, message: TradeMessage, terms: Terms, now: float) -> tuple[TradeMessage, ...]:
        sold = self.seller.sell(self.deal, self.customer, terms, now)
        if isinstance(sold, Refusal):
            return self._refuse(message, sold.reason)
        self.agreement = sold
        self.state = "agreed"
        return (self._make(Confirm, self.customer, agreement=sold),)

    def _cancel(self, message: Cancel, now: float) -> tuple[TradeMessage, ...]:
        if self.state == "agreed" and self.agreement is not None:
            refusal = self.seller.take_back(self.agreement, now)
            if refusal is not None:
                return self._refuse(message, refusal.reason)
        self.seller.let_go(self.deal, self.customer)
        self.state = "cancelled"
        return (self._make(Cancel, self.customer),)


class BuyerSide(NegotiationSide, ABC):
    """
    The buyer's side of a deal with one owner or several.

    Attributes
    ----------
    agreement
        Once there is one.
    reason
        Why the last thing was refused; empty when nothing was.
    """

    def __init__(self, me: str, deal: str, owners: tuple[str, ...], template: DealTemplate) -> None:
        super().__init__(me, deal, owners, template.currency)
        self.template = template
        self.agreement: Agreement | None = None
        self.reason = ""
        self._withdrawn: dict[str, int] = {}

    def cancel(self, now: float) -> tuple[TradeMessage, ...]:
        """Withdraw from the deal, which is over when the owner's Cancel arrives."""
        if self.state in ("cancelling", "cancelled"):
            return ()
        # Without an agreement any of them may be about to confirm: each has to let go.
        parties = self.parties if self.agreement is None else (self.agreement.owner,)
        withdrawals = tuple(self._make(Cancel, party) for party in parties)
        self._withdrawn = {message.to: message.number for message in withdrawals}
        self.state = "cancelling"
        return withdrawals

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        if self.state == "cancelling":
            return self._let_go(message)
        return self._follow(message, now)

    @abstractmethod
    def _follow(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """React to a message that is new and in order, while the buyer wants the deal."""

    @abstractmethod
    def _is_deal(self, agreement: Agreement) -> bool:
        """Whether an agreement is what was accepted."""

    def _let_go(self, message: TradeMessage) -> tuple[TradeMessage, ...]:
        match message:
            case Confirm() if self._is_mine(message):
                self.agreement = message.agreement  # crossed with the Cancel, which follows
            case Cancel():
                self._withdrawn.pop(message.sender, None)
                if not self._withdrawn:
                    self.state = "cancelled"
            case Reject() if message.of == self._withdrawn.get(message.sender):
                self.reason = message.reason
                self.state = "refused" if self.agreement is None else "agreed"
        return ()

    def _agree(self, message: Confirm) -> tuple[TradeMessage, ...]:
        """
        End the deal with the agreement that an owner confirms; no message is to be sent then.

        A confirmation of other terms than those accepted is answered with a Reject, and the deal
        stays as it is.
        """
        if not self._is_mine(message):
            return self._refuse(message, "is not what was accepted")
        self.agreement = message.agreement
        self.state = "agreed"
        return ()

    def _is_mine(self, message: Confirm) -> bool:
        agreement = message.agreement
        parties = (agreement.owner, agreement.customer) == (message.sender, self.me)
        return parties and self._is_deal(agreement)
