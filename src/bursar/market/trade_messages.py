"""
Messages between buyers and owners, and their delivery between parties in one process.

Every message belongs to a conversation (``deal``), goes from ``sender`` to
``to`` and is counted from 1 on by its sender, for each recipient of the
conversation apart, so that repeats and gaps are seen. Number 0 is a
:class:`Reject` outside the count: it answers what was not taken up at all.

Every message goes through its form on the wire, so what works here works over HTTP.
"""

import re
from collections.abc import Callable, Iterable
from typing import Literal, Protocol

import msgspec

from bursar.market.agreement import (
    Agreement,
    DealTemplate,
    Terms,
    check_amount,
    check_moment,
    check_name,
)
from bursar.model.errors import InputError
from bursar.model.money import Micros, check_currency

# Defines the messages between parties to a deal, and their form on the wire (JSON).

LARGEST_MESSAGE = 64 * 1024
"""Largest message in bytes."""

Rule = Literal["tender", "english", "dutch", "first-price", "vickrey", "double", "share"]
"""How a call for bids is decided."""


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class TradeMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=_tag,
):
    """
    Holds the fields that every message has.

    Parameters
    ----------
    deal
        The conversation.
    sender, to
        Names of parties.
    number
        Counted by the sender, from 1 on.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    deal: str
    sender: str
    to: str
    number: int

    def __post_init__(self) -> None:
        for what in ("deal", "sender", "to"):
            check_name(what, getattr(self, what))
        if self.number < (0 if isinstance(self, Reject) else 1):
            raise ValueError(f"number must be counted from 1, got {self.number}")


class PricedMessage(TradeMessage, frozen=True, kw_only=True):
    """
    A message that names an amount.

    Parameters
    ----------
    amount
        For the whole deal, micro-units; in a double auction for each processor.
    currency
        Of the amount.
    """

    amount: Micros
    currency: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_amount("amount", self.amount)
        check_currency(self.currency)


class RequestQuote(TradeMessage, frozen=True, kw_only=True):
    """Asks an owner for the price of a deal."""

    template: DealTemplate


class PriceQuote(TradeMessage, frozen=True, kw_only=True, tag="quote"):
    """States a price that holds if accepted before ``expires`` (seconds since the epoch)."""

    terms: Terms
    expires: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moment("expires", self.expires)


class Offer(PricedMessage, frozen=True, kw_only=True):
    """Offers an amount for the template."""

    template: DealTemplate


class CounterOffer(PricedMessage, frozen=True, kw_only=True):
    """Rejects an offer and names another amount."""


class FinalOffer(PricedMessage, frozen=True, kw_only=True):
    """Names a last amount, to be accepted or rejected."""


class Accept(TradeMessage, frozen=True, kw_only=True):
    """Accepts the recipient's message number ``of``."""

    of: int


class Reject(TradeMessage, frozen=True, kw_only=True):
    """Rejects the recipient's message number ``of``, with a reason."""

    reason: str
    of: int = 0


class Expire(TradeMessage, frozen=True, kw_only=True):
    """What my message number ``of`` says holds no more."""

    of: int = 0


class Confirm(TradeMessage, frozen=True, kw_only=True):
    """Confirms the agreement, to which the owner is bound."""

    agreement: Agreement


class Cancel(TradeMessage, frozen=True, kw_only=True):
    """I withdraw; as an answer: you have withdrawn."""

    reason: str = ""


class CallForBids(TradeMessage, frozen=True, kw_only=True):
    """
    Invites bids.

    Parameters
    ----------
    template
        What is wanted or sold.
    rule
        How it is decided.
    closes
        Bids are taken before it, seconds since the epoch.
    price
        At which it opens, micro-units; None where bids are sealed.
    reverse
        Owners bid, the lowest wins.
    """

    template: DealTemplate
    rule: Rule
    closes: float
    price: Micros | None = None
    reverse: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_moment("closes", self.closes)
        if self.price is not None:
            check_amount("price", self.price)


class Bid(PricedMessage, frozen=True, kw_only=True):
    """
    Bids an amount.

    Parameters
    ----------
    processors
        How many, in a double auction.
    terms, expires
        Of a tender: what is offered, and until when (seconds since the epoch).
    """

    processors: int | None = None
    terms: Terms | None = None
    expires: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count(self.processors)
        if self.terms is not None and (
            self.terms.amount != self.amount or self.terms.currency != self.currency
        ):
            raise ValueError("the terms of a bid must come to its amount")
        if self.expires is not None:
            check_moment("expires", self.expires)


class Ask(PricedMessage, frozen=True, kw_only=True):
    """
    Names an asking price: an auctioneer's next one, or an owner's order in a double auction.

    Parameters
    ----------
    leading
        The bid that stands is the recipient's own.
    processors
        How many, in a double auction.
    """

    leading: bool = False
    processors: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count(self.processors)


class RejectBid(TradeMessage, frozen=True, kw_only=True):
    """Rejects the recipient's bid, message number ``of``, with a reason."""

    reason: str
    of: int


class Trade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What one buyer takes of one owner in a double auction.

    Parameters
    ----------
    processors
        How many. Positive.
    amount
        For all of them, micro-units.
    """

    buyer: str
    owner: str
    processors: int
    amount: Micros


class InformOutcome(TradeMessage, frozen=True, kw_only=True):
    """
    How it was decided.

    Parameters
    ----------
    won
        Whether the recipient trades.
    amount
        What the winner pays, or is paid, micro-units; None: nothing was sold.
    processors
        How many the recipient gets, where they are shared out.
    trades
        The recipient's, in a double auction.
    """

    won: bool
    currency: str
    amount: Micros | None = None
    processors: int | None = None
    trades: tuple[Trade, ...] = ()


AnyMessage = (
    RequestQuote
    | PriceQuote
    | Offer
    | CounterOffer
    | FinalOffer
    | Accept
    | Reject
    | Expire
    | Confirm
    | Cancel
    | CallForBids
    | Bid
    | Ask
    | RejectBid
    | InformOutcome
)
"""What :func:`decode` may return."""

_DECODER: msgspec.json.Decoder[AnyMessage] = msgspec.json.Decoder(AnyMessage)


def encode(message: TradeMessage) -> bytes:
    """The message as JSON; :func:`decode` reads it back."""
    return msgspec.json.encode(message)


def decode(data: bytes) -> AnyMessage:
    """
    The message in a JSON text.

    Raises
    ------
    InputError
        When it is none, too long, or a value is out of range.
    """
    if len(data) > LARGEST_MESSAGE:
        raise InputError(f"expected at most {LARGEST_MESSAGE:,} bytes", where="message")
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        reason = (str(error).splitlines() or ["cannot be read"])[0]
        raise InputError(reason[:1].lower() + reason[1:], where="message") from None


def _check_count(processors: int | None) -> None:
    if processors is not None and not 1 <= processors <= 10**9:
        raise ValueError(f"processors must be at least 1, got {processors}")


# Carries messages between parties in one process until all are silent.

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
