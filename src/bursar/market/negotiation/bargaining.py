"""
Bargaining: offers in turn, each side conceding to its reserve price.

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
    Reject,
    TradeMessage,
)
from bursar.model.money import Micros, Refusal


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
    The buyer's side. Its states: open, offered, accepted, agreed, ended, cancelling,
    cancelled.

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
