"""
Implements the trade manager, a buyer's side of every deal.

The manager asks several owners at once, bargains, calls for tenders and bids, and keeps what
was agreed. Which quote to accept is decided elsewhere.

References
----------
.. [1] Buyya, Abramson, Giddy (2001). An evaluation of economy-based resource trading and
   scheduling on computational power grids for parameter sweep applications, section 2.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.auction import Auctioneer, Bidder
from bursar.market.negotiation.bilateral import BargainingBuyer, Concession, PostedBuyer
from bursar.market.negotiation.side import BuyerSide, NegotiationSide, reject_stray
from bursar.market.negotiation.tender import TenderBuyer
from bursar.market.trade_messages import (
    Bid,
    Expire,
    PricedMessage,
    PriceQuote,
    Reject,
    RejectBid,
    TradeMessage,
)
from bursar.model.money import Micros
from bursar.model.site import TRADE_PATIENCE

# Limits of a buyer, and what owners answered.


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeLimits:
    """
    Limits within which a trade manager negotiates by itself.

    Parameters
    ----------
    most
        Reserve price: the most that is paid for the whole deal, micro-units; None: no limit.
    first
        First offer in bargaining, micro-units; None: half of the most that would be paid.
    patience
        Seconds from the first message to the end of the negotiation. Positive.
    rounds, beta
        Own offers in bargaining, and the shape of the concession; see
        :class:`bursar.market.negotiation.bilateral.Concession`.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    most: Micros | None = None
    first: Micros | None = None
    patience: float = TRADE_PATIENCE
    rounds: int = 10
    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.patience < math.inf:
            raise ValueError(f"patience must be positive, got {self.patience:g}")
        if self.most is not None and self.first is not None and self.first > self.most:
            raise ValueError("the first offer must not be above the most that is paid")
        Concession(first=0, reserve=0, rounds=self.rounds, beta=self.beta)  # raises what is wrong

    def concession(self, posted: Micros | None) -> Concession | None:
        """
        Return the schedule of a buyer's offers; None when no reserve price is known.

        A buyer who could have the lot for a posted price does not bargain above that price.

        Parameters
        ----------
        posted
            Lowest price that any owner quoted for the same lot, micro-units; None: no quote.
        """
        known = [amount for amount in (self.most, posted) if amount is not None]
        if not known:
            return None
        reserve = min(known)
        first = reserve // 2 if self.first is None else min(self.first, reserve)
        return Concession(first=first, reserve=reserve, rounds=self.rounds, beta=self.beta)


AnswerState = Literal["agreed", "offered", "refused", "silent"]


class OwnerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """
    The answer of one owner to a buyer.

    Parameters
    ----------
    state
        ``"agreed"``; ``"offered"``: a price was named and not taken; ``"refused"``: the owner
        refused, or named only a price above the buyer's limit; ``"silent"``: no answer.
    first, price
        First and last price that the owner named, or the agreed one, micro-units; None: none.
    ours
        Last price that the buyer offered, micro-units; None: the buyer named none.
    currency
        Currency of all three.
    start
        When the processors would be, or are, available, seconds since the epoch; None: unknown.
    penalty
        Share of the price of undelivered time that the owner would pay; None: not said.
    expires
        Until when the price holds, seconds since the epoch by the owner's clock; None: unknown.
    reason
        Why there is no agreement with this owner; empty: the owner was not chosen.
    agreement
        Identifier of the agreement; empty: none.
    """

    owner: str
    state: AnswerState
    currency: str
    first: Micros | None = None
    price: Micros | None = None
    ours: Micros | None = None
    start: float | None = None
    penalty: float | None = None
    expires: float | None = None
    reason: str = ""
    agreement: str = ""


def answer_of(side: NegotiationSide, owner: str, agreement: Agreement | None) -> OwnerAnswer:
    """
    Return what an owner answered in a conversation, from its messages.

    Parameters
    ----------
    agreement
        Agreement that binds the buyer in this conversation, with whomever; None: there is none.
    """
    heard, said = side.heard(owner), side.said(owner)
    prices = [amount for message in heard if (amount := _price(message)) is not None]
    offers = [m.amount for m in said if isinstance(m, PricedMessage)]
    bound = agreement if agreement is not None and agreement.owner == owner else None
    terms, expires = _offered_terms(heard)
    answer = OwnerAnswer(
        owner=owner,
        state="silent" if not heard else "offered" if prices else "refused",
        currency=side.currency,
        first=prices[0] if prices else None,
        price=prices[-1] if prices else None,
        ours=offers[-1] if offers else None,
        start=None if terms is None else terms.start,
        penalty=None if terms is None else terms.penalty,
        expires=expires,
    )
    if bound is not None:
        return msgspec.structs.replace(
            answer,
            state="agreed",
            price=bound.terms.amount,
            start=bound.start,
            penalty=bound.terms.penalty,
            expires=None,
            agreement=bound.id,
        )
    if (reason := _refusal(heard, said)) is not None:
        return msgspec.structs.replace(answer, state="refused", reason=reason)
    return answer


def answers_of(sides: Iterable[NegotiationSide]) -> tuple[OwnerAnswer, ...]:
    """
    Return what each owner of some conversations answered, the best first.

    Agreed ones come first, then those that offered, the cheapest first, then the others.
    """
    found = []
    for side in sides:
        bound = side.agreement if isinstance(side, BuyerSide) and side.state == "agreed" else None
        found += [answer_of(side, party, bound) for party in side.parties]
    return tuple(sorted(found, key=_rank))


def next_best(answers: Iterable[OwnerAnswer]) -> OwnerAnswer | None:
    """Return the cheapest offer that was not taken; None when there was none."""
    open_offers = [answer for answer in answers if answer.state == "offered"]
    return min(open_offers, key=_rank, default=None)


_ORDER: dict[AnswerState, int] = {"agreed": 0, "offered": 1, "refused": 2, "silent": 3}


def _rank(answer: OwnerAnswer) -> tuple[int, float, float, str]:
    price = math.inf if answer.price is None else answer.price
    return _ORDER[answer.state], price, answer.start or 0.0, answer.owner


def _price(message: TradeMessage) -> Micros | None:
    match message:
        case PriceQuote():
            return message.terms.amount
        case PricedMessage():
            return message.amount
    return None


def _offered_terms(heard: tuple[TradeMessage, ...]) -> tuple[Terms | None, float | None]:
    """Return the terms and the expiry of the last quote or bid; None where neither was made."""
    for message in reversed(heard):
        if isinstance(message, PriceQuote):
            return message.terms, message.expires
        if isinstance(message, Bid) and message.terms is not None:
            return message.terms, message.expires
    return None, None


def _refusal(heard: tuple[TradeMessage, ...], said: tuple[TradeMessage, ...]) -> str | None:
    """Return who refused whom, and why; None when the last word was an offer."""
    for message in reversed(said):
        if isinstance(message, Reject | RejectBid):
            return f"we refused: {message.reason}"
    last = heard[-1] if heard else None
    if isinstance(last, Reject):
        return last.reason
    return "the offer has expired" if isinstance(last, Expire) else None


# The buyer's side of every deal.

SideT = TypeVar("SideT", bound=NegotiationSide)

_BOUND = ("agreed", "sold", "cancelling")


class TradeManager:
    """
    Buys processors for one customer.

    Parameters
    ----------
    name
        Name of the customer, the address of messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._sides: dict[tuple[str, str], NegotiationSide] = {}

    # Conversations that the customer opens.

    def ask(
        self,
        deal: str,
        owners: Iterable[str],
        template: DealTemplate,
        now: float,
        *,
        limit: Micros | None = None,
    ) -> tuple[TradeMessage, ...]:
        """
        Ask each owner for a quote.

        Parameters
        ----------
        deal
            Name of the conversations, not in use with these owners.
        now
            Seconds since the epoch.
        limit
            Most that a quote may cost, micro-units; None for no limit.
        """
        return tuple(
            message
            for owner in owners
            for message in self._begin(
                PostedBuyer(self.name, deal, owner, template, limit=limit)
            ).open(now)
        )

    def quotes(self, deal: str, now: float) -> tuple[PriceQuote, ...]:
        """Return quotes that hold now, the cheapest first; of equal ones the earliest start."""
        quotes = [
            side.quote
            for side in self._of(deal)
            if isinstance(side, PostedBuyer) and side.state == "quoted" and side.quote
        ]
        return tuple(
            sorted(
                (quote for quote in quotes if now < quote.expires),
                key=lambda q: (q.terms.amount, q.terms.start, q.sender),
            )
        )

    def accept(self, quote: PriceQuote, now: float) -> tuple[TradeMessage, ...]:
        """Accept a quote; do nothing when the quote has lapsed."""
        side = self._sides.get((quote.deal, quote.sender))
        if not isinstance(side, PostedBuyer) or side.quote != quote:
            return ()
        return side.accept(now)

    def bargain(
        self,
        deal: str,
        owner: str,
        template: DealTemplate,
        concession: Concession,
        now: float,
        *,
        until: float = math.inf,
    ) -> tuple[TradeMessage, ...]:
        """Open bargaining with one owner; an agreement reached there is bought."""
        side = BargainingBuyer(self.name, deal, owner, template, concession=concession, until=until)
        return self._begin(side).open(now)

    def call(
        self,
        deal: str,
        owners: Iterable[str],
        template: DealTemplate,
        closes: float,
        now: float,
        *,
        limit: Micros | None = None,
    ) -> tuple[TradeMessage, ...]:
        """Call for tenders; the best bid is bought."""
        side = TenderBuyer(self.name, deal, tuple(owners), template, closes=closes, limit=limit)
        return self._begin(side).open(now)

    def auction(self, auctioneer: Auctioneer, now: float) -> tuple[TradeMessage, ...]:
        """Open a reverse auction among owners; the lowest price is bought."""
        if auctioneer.me != self.name or not auctioneer.reverse:
            raise ValueError("an auction must buy in the customer's name")
        return self._begin(auctioneer).open(now)

    def join(self, deal: str, auctioneer: str, value: Micros, currency: str = "SU") -> None:
        """Join an owner's auction, with bids up to a value in micro-units."""
        self._begin(Bidder(self.name, deal, auctioneer, value=value, currency=currency))

    def bid(
        self, deal: str, auctioneer: str, lot: DealTemplate, value: Micros
    ) -> tuple[TradeMessage, ...]:
        """Join an auction that is open to all, with bids up to a value in micro-units."""
        side = Bidder(self.name, deal, auctioneer, value=value, currency=lot.currency)
        return self._begin(side).open(lot)

    def heard(self, deal: str, party: str) -> int:
        """Return how many messages of a party were taken up in a deal."""
        side = self._sides.get((deal, party))
        return 0 if side is None else len(side.heard(party))

    def cancel(self, deal: str, party: str, now: float) -> tuple[TradeMessage, ...]:
        """Withdraw from a deal, if there is one."""
        side = self._sides.get((deal, party))
        return side.cancel(now) if isinstance(side, BuyerSide) else ()

    def again(self, deal: str) -> tuple[TradeMessage, ...]:
        """Return the last messages of a deal, to be sent again when no answer comes."""
        return tuple(
            m for (d, party), s in self._sides.items() if d == deal for m in s.again(party)
        )

    # Messages, and the passing of time.

    def deliver(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """
        Process a message, and return the messages to send.

        Parameters
        ----------
        now
            Seconds since the epoch.

        Returns
        -------
        tuple of TradeMessage
            Messages to send, each to the party it names.
        """
        if message.to != self.name:
            return reject_stray(message, self.name, f"is for {message.to}")
        side = self._sides.get((message.deal, message.sender))
        if side is None:
            return reject_stray(message, self.name, "is not of any deal")
        return side.receive(message, now)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Let tenders and auctions close whose time has come."""
        due = [side for side in self._all() if side.next_tick() <= now]
        return tuple(message for side in due for message in side.tick(now))

    def next_tick(self) -> float:
        """Return the time of the next due :meth:`tick`; infinite for never."""
        return min((side.next_tick() for side in self._all()), default=math.inf)

    def forget(self, deal: str) -> tuple[Agreement, ...]:
        """Drop the conversations of a finished deal; return the agreements reached."""
        removed = self._of(deal)
        self._sides = {key: side for key, side in self._sides.items() if key[0] != deal}
        return _agreed(removed)

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        """Agreements that the customer has bought."""
        return _agreed(self._all())

    def agreements_of(self, deal: str) -> tuple[Agreement, ...]:
        """Return the agreements that were reached in the conversations of a deal."""
        return _agreed(self._of(deal))

    def answers(self, deal: str) -> tuple[OwnerAnswer, ...]:
        """Return what each owner of a deal answered, the best first."""
        return answers_of(self._of(deal))

    def states(self, deal: str) -> dict[str, str]:
        """Return the state of each conversation of a deal, by the other party's name."""
        return {party: side.state for (d, party), side in self._sides.items() if d == deal}

    # Inside.

    def _begin(self, side: SideT) -> SideT:
        keys = [(side.deal, party) for party in side.parties]
        for key in keys:
            if key in self._sides:
                raise ValueError(f'"{key[0]}" is a deal with {key[1]} already')
        self._sides.update(dict.fromkeys(keys, side))
        return side

    def _of(self, deal: str) -> list[NegotiationSide]:
        return [side for side in self._all() if side.deal == deal]

    def _all(self) -> list[NegotiationSide]:
        """List each side once, even one with several owners."""
        return list({id(side): side for side in self._sides.values()}.values())


def _agreed(sides: Iterable[NegotiationSide]) -> tuple[Agreement, ...]:
    return tuple(
        side.agreement
        for side in sides
        if isinstance(side, BuyerSide | Bidder | Auctioneer)
        and side.agreement is not None
        and side.state in _BOUND
    )
