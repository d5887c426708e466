"""
Posted prices: the buyer asks, the owner quotes, the buyer accepts in time or not.

A quote holds until it expires, whatever the owner's prices do meanwhile.
"""

import math

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.side import BuyerSide, OwnerSide, Seller
from bursar.market.trade_messages import (
    Accept,
    Cancel,
    Confirm,
    Expire,
    PriceQuote,
    Reject,
    TradeMessage,
)
from bursar.market.trade_messages import RequestQuote as Request
from bursar.model.money import Micros, Refusal


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
