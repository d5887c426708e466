"""
Limits within which a buyer negotiates, and what each owner answered.

What was offered, refused and agreed follows from the messages of a conversation alone, so that one
function reports every protocol.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from bursar.market.agreement import Agreement, Terms
from bursar.market.negotiation.bilateral import Concession
from bursar.market.negotiation.side import BuyerSide, NegotiationSide
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
    What one owner answered to a buyer.

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
