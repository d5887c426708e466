"""
Deals between one buyer and one owner: posted prices, and bargaining.

A quote holds until it expires, whatever the owner's prices do meanwhile.

References
----------
.. [1] Rubinstein (1982). Perfect equilibrium in a bargaining model. Econometrica 50(1): 97-109.
.. [2] Faratin, Sierra, Jennings (1998). Negotiation decision functions for autonomous agents.
   Robotics and Autonomous Systems 24(3-4): 159-182, section 4.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.side import BuyerSide, OwnerSide, Seller
from bursar.market.trade_messages import (
    Accept,
    Cancel,
    Confirm,
    CounterOffer,
    Expire,
    FinalOffer,
    Offer,
    PriceQuote,
    Reject,
    TradeMessage,
)
from bursar.market.trade_messages import RequestQuote as Request
from bursar.model.money import Micros, Refusal

# Posted prices: the buyer asks, the owner quotes, the buyer accepts in time or not.


class PostedOwner(OwnerSide):
    """
    Quotes by the owner's pricing. Its states: open, quoted, agreed, expired, cancelled.

    The customer may ask again, also for something else: only the last quote holds.
    """

    def __init__(self, seller: Seller, deal: str, customer: str) -> None:
        super().__init__(seller, deal, customer)
        self._terms: Terms | None = None
        self._number = 0
        self._expires = math.inf

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case Request() if self.state in ("open", "quoted", "expired"):
                return self._quote(message, now)
            # Also when expired: the answer says so, where silence would leave the buyer waiting.
            case Accept() if self.state in ("quoted", "expired"):
                return self._accepted(message, now)
            case Cancel() if self.state != "cancelled":
                return self._cancel(message, now)
        return self._unexpected(message)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Say once that the quote has expired."""
        if self.state != "quoted" or now < self._expires:
            return ()
        self.state = "expired"
        return (self._make(Expire, self.customer, of=self._number),)

    def next_tick(self) -> float:
        return self._expires if self.state == "quoted" else math.inf

    def _quote(self, message: Request, now: float) -> tuple[TradeMessage, ...]:
        foreign = self._foreign(message, message.template.currency)
        if foreign is not None:
            return foreign
        terms = self.seller.terms(self.deal, self.customer, message.template, now)
        if isinstance(terms, Refusal):
            return self._refuse(message, terms.reason)
        expires = now + self.seller.validity
        self.seller.hold(self.deal, self.customer, terms, expires, now)
        quote = self._make(PriceQuote, self.customer, terms=terms, expires=expires)
        self._terms, self._number, self._expires = terms, quote.number, expires
        self.state = "quoted"
        return (quote,)

    def _accepted(self, message: Accept, now: float) -> tuple[TradeMessage, ...]:
        if message.of != self._number or self._terms is None:
            return self._refuse(message, f"the quote is number {self._number}")
        if now >= self._expires:
            return self._refuse(message, "the quote has expired")
        return self._sell(message, self._terms, now)


class PostedBuyer(BuyerSide):
    """
    Asks one owner, and accepts when told to. Its states: open, asked, quoted, accepted,
    agreed, refused, expired, cancelling, cancelled.

    Parameters
    ----------
    limit
        The most the buyer pays, micro-units; None for no limit.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        owner: str,
        template: DealTemplate,
        *,
        limit: Micros | None = None,
    ) -> None:
        super().__init__(me, deal, (owner,), template)
        self.owner = owner
        self.limit = limit
        self.quote: PriceQuote | None = None
        self._waits_for = 0

    def open(self, now: float) -> tuple[TradeMessage, ...]:
        """Ask for a quote."""
        request = self._make(Request, self.owner, template=self.template)
        self.state, self._waits_for = "asked", request.number
        return (request,)

    def accept(self, now: float) -> tuple[TradeMessage, ...]:
        """Accept the quote; do nothing without a quote or after the quote has expired."""
        if self.state != "quoted" or self.quote is None or now >= self.quote.expires:
            return ()
        answer = self._make(Accept, self.owner, of=self.quote.number)
        self.state, self._waits_for = "accepted", answer.number
        return (answer,)

    def _follow(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case PriceQuote() if self.state == "asked":
                return self._quoted(message, now)
            case Confirm() if self.state == "accepted" and self.quote is not None:
                return self._agree(message)
            case Reject() if self.state in ("asked", "accepted"):
                if message.of == self._waits_for:
                    self.state, self.reason = "refused", message.reason
                return ()
            case Expire() if self.state in ("quoted", "accepted", "expired", "refused"):
                # A quote that was accepted in time is answered by a Confirm all the same.
                if self.state == "quoted":
                    self.state = "expired"
                return ()
            case Cancel():
                self.state = "cancelled"
                return ()
        return self._unexpected(message)

    def _is_deal(self, agreement: Agreement) -> bool:
        return self.quote is not None and agreement.terms == self.quote.terms

    def _quoted(self, message: PriceQuote, now: float) -> tuple[TradeMessage, ...]:
        foreign = self._foreign(message, message.terms.currency)
        if foreign is not None:
            return foreign
        if not self.template.holds(message.terms):
            return self._refuse(message, "is not what was asked for")
        if self.limit is not None and message.terms.amount > self.limit:
            self.state, self.reason = "refused", "the quote is above the limit"
            return (self._make(Reject, self.owner, reason="is too dear", of=message.number),)
        self.state, self.quote = "quoted", message
        return ()


# Bargaining: offers in turn, each side conceding to its reserve price.


@dataclass(frozen=True, slots=True, kw_only=True)
class Concession:
    """
    Schedule by which offers move from the first value to the reserve, round by round.

    Faratin's time-dependent tactic with the turns as its clock:
    ``alpha = k + (1 - k) (t / rounds) ^ (1 / beta)``; his k is 0 here.

    Parameters
    ----------
    first
        Opening offer, micro-units.
    reserve
        Worst price acceptable, micro-units.
    rounds
        Own offers until the reserve, which is the final one. At least 2.
    beta
        1 concedes evenly; below, late (Boulware); above, early (conceder). Positive.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    first: Micros
    reserve: Micros
    rounds: int = 10
    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.first < 0 or self.reserve < 0:
            raise ValueError(f"prices must not be negative, got {self.first}, {self.reserve}")
        if self.rounds < 2:
            raise ValueError(f"rounds must be at least 2, got {self.rounds}")
        if not 0.01 <= self.beta <= 100:
            raise ValueError(f"beta must be 0.01 to 100, got {self.beta}")

    def offer(self, turn: int) -> Micros:
        """Return the offer of a turn, counted from 0; never beyond the reserve."""
        if turn >= self.rounds - 1:
            return self.reserve
        alpha = (turn / (self.rounds - 1)) ** (1 / self.beta)
        # Towards zero: rounding never concedes more than the curve does.
        return self.first + int((self.reserve - self.first) * alpha)


class BargainingOwner(OwnerSide):
    """
    The owner's side. Its states: open, bargaining, offered (an offer of its own stands),
    agreed, ended, cancelled.

    Parameters
    ----------
    concession
        Returns the owner's concession, downwards, from the terms by the owner's pricing.
    patience
        Seconds from the first offer to the end of the bargaining.
    """

    def __init__(
        self,
        seller: Seller,
        deal: str,
        customer: str,
        *,
        concession: Callable[[Terms], Concession],
        patience: float,
    ) -> None:
        super().__init__(seller, deal, customer)
        self._concession_for = concession
        self._patience = patience
        self._until = math.inf
        self._concession: Concession | None = None
        self._template: DealTemplate | None = None
        self._start = 0.0
        self._turn = 0
        self._last: CounterOffer | FinalOffer | None = None

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        if self.state == "offered" and now >= self._until and not isinstance(message, Cancel):
            return self._refuse(message, "bargaining has ended")
        match message:
            case Offer() if self.state == "open":
                return self._opened(message, now)
            case CounterOffer() | FinalOffer() if self.state == "offered":
                foreign = self._foreign(message, message.currency)
                return self._answer(message, now) if foreign is None else foreign
            case Accept() if self.state == "offered" and self._last is not None:
                if message.of != self._last.number:
                    return self._refuse(message, f"the offer is number {self._last.number}")
                return self._sell(message, self._terms(self._last.amount), now)
            case Reject() if self.state == "offered" and self._last is not None:
                if message.of == self._last.number:
                    self.state = "ended"
                return ()
            case Cancel() if self.state != "cancelled":
                return self._cancel(message, now)
        return self._unexpected(message)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Say once that the owner bargains no more."""
        if self.state != "offered" or now < self._until:
            return ()
        self.state = "ended"
        return (self._make(Expire, self.customer),)

    def next_tick(self) -> float:
        return self._until if self.state == "offered" else math.inf

    def _opened(self, message: Offer, now: float) -> tuple[TradeMessage, ...]:
        for currency in (message.currency, message.template.currency):
            foreign = self._foreign(message, currency)
            if foreign is not None:
                return foreign
        terms = self.seller.terms(self.deal, self.customer, message.template, now)
        if isinstance(terms, Refusal):
            return self._refuse(message, terms.reason)
        self._until = now + self._patience
        self._template, self._start = message.template, terms.start
        self._concession = self._concession_for(terms)
        return self._answer(message, now)

    def _answer(
        self, message: Offer | CounterOffer | FinalOffer, now: float
    ) -> tuple[TradeMessage, ...]:
        """Accept an offer at least as good as the owner's next one, or else make that one."""
        assert self._concession is not None
        final = isinstance(message, FinalOffer)
        own = self._concession.reserve if final else self._concession.offer(self._turn)
        if message.amount >= own:
            return self._sell(message, self._terms(message.amount), now)
        if final:
            self.state = "ended"
            return self._refuse(message, "is too little")
        kind = _kind(self._concession, self._turn)
        self._last = self._make(kind, self.customer, amount=own, currency=self.currency)
        self._turn += 1
        self.state = "offered"
        return (self._last,)

    def _terms(self, amount: Micros) -> Terms:
        assert self._template is not None
        return Terms.of_amount(self._template, self._start, amount)


class BargainingBuyer(BuyerSide):
    """
    The buyer's side. Its states: open, offered, accepted, agreed, ended, cancelling, cancelled.

    Parameters
    ----------
    concession
        Rule by which the buyer raises the offer.
    until
        End of the bargaining, seconds since the epoch.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        owner: str,
        template: DealTemplate,
        *,
        concession: Concession,
        until: float = math.inf,
    ) -> None:
        super().__init__(me, deal, (owner,), template)
        self.owner = owner
        self.until = until
        self._concession = concession
        self._turn = 0
        self._offered: Micros = 0
        self._waits_for = 0

    def open(self, now: float) -> tuple[TradeMessage, ...]:
        """Make the first offer."""
        amount = self._concession.offer(0)
        return self._made(
            self._make(
                Offer,
                self.owner,
                amount=amount,
                currency=self.currency,
                template=self.template,
            )
        )

    def _made(self, offer: Offer | CounterOffer | FinalOffer) -> tuple[TradeMessage, ...]:
        self._turn += 1
        self._offered, self._waits_for = offer.amount, offer.number
        self.state = "offered"
        return (offer,)

    def _follow(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case CounterOffer() | FinalOffer() if self.state == "offered":
                foreign = self._foreign(message, message.currency)
                if foreign is not None:
                    return foreign
                if now >= self.until:
                    self.state, self.reason = "ended", "too late"
                    return self._refuse(message, "bargaining has ended")
                return self._answer(message)
            case Confirm() if self.state in ("offered", "accepted"):
                return self._agree(message)
            case Reject() if self.state in ("offered", "accepted"):
                if message.of == self._waits_for:
                    self.state, self.reason = "ended", message.reason
                return ()
            case Expire():
                if self.state == "offered":
                    self.state, self.reason = "ended", "the owner bargains no more"
                return ()
            case Cancel():
                self.state = "cancelled"
                return ()
        return self._unexpected(message)

    def _answer(self, message: CounterOffer | FinalOffer) -> tuple[TradeMessage, ...]:
        final = isinstance(message, FinalOffer)
        own = self._concession.reserve if final else self._concession.offer(self._turn)
        if message.amount <= own:
            accept = self._make(Accept, self.owner, of=message.number)
            self.state, self._offered, self._waits_for = "accepted", message.amount, accept.number
            return (accept,)
        if final:
            self.state, self.reason = "ended", "the owner's last word is too dear"
            return self._refuse(message, "is too much")
        kind = _kind(self._concession, self._turn)
        return self._made(self._make(kind, self.owner, amount=own, currency=self.currency))

    def _is_deal(self, agreement: Agreement) -> bool:
        terms = agreement.terms
        return terms.amount == self._offered and self.template.holds(terms)


def _kind(concession: Concession, turn: int) -> type[CounterOffer] | type[FinalOffer]:
    return FinalOffer if turn >= concession.rounds - 1 else CounterOffer
