"""
Tenders, as in the contract net: the buyer calls, owners bid, the best is awarded.

The award goes to the lowest bid, of equal ones to the earliest start, then to the
owner named first. An owner that cannot keep its bid passes the award on to the next.

References
----------
.. [1] Smith (1980). The contract net protocol. IEEE Trans. Computers C-29(12): 1104-1113.
"""

import math

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.side import BuyerSide, OwnerSide, Seller
from bursar.market.trade_messages import (
    Accept,
    Bid,
    CallForBids,
    Cancel,
    Confirm,
    InformOutcome,
    Reject,
    RejectBid,
    TradeMessage,
)
from bursar.model.money import Micros, Refusal


class TenderBuyer(BuyerSide):
    """
    Calls and awards. Its states: open, called, awarding, agreed, unmet, cancelling, cancelled.

    Parameters
    ----------
    closes
        Bids are taken before it, seconds since the epoch; earlier ends when all have answered.
    limit
        The most the buyer pays, micro-units; None for no limit.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        owners: tuple[str, ...],
        template: DealTemplate,
        *,
        closes: float,
        limit: Micros | None = None,
    ) -> None:
        super().__init__(me, deal, owners, template)
        self.closes = closes
        self.limit = limit
        self._bids: dict[str, Bid] = {}
        self._waiting = set(owners)
        self._awarded: Bid | None = None
        self._award = 0

    @property
    def bids(self) -> tuple[Bid, ...]:
        """Bids that count, the best first."""
        return tuple(
            sorted(
                self._bids.values(),
                key=lambda b: (b.amount, b.terms.start if b.terms else 0.0, b.sender),
            )
        )

    def open(self, now: float) -> tuple[TradeMessage, ...]:
        """Call for bids."""
        self.state = "called"
        return tuple(
            self._make(
                CallForBids, owner, template=self.template, rule="tender", closes=self.closes
            )
            for owner in self.parties
        )

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Award when the time for bids is over."""
        return self._next(now) if self.state == "called" and now >= self.closes else ()

    def next_tick(self) -> float:
        return self.closes if self.state == "called" else math.inf

    def _follow(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case Bid():
                return self._bid(message, now)
            case Reject() if self.state == "called":
                self._waiting.discard(message.sender)
                return self._settled(now)
            case Reject() if self._is_award(message.sender) and message.of == self._award:
                self.reason = message.reason
                return self._next(now)
            case Confirm() if self._is_award(message.sender):
                answer = self._agree(message)
                # Losers are told only now: until the winner has confirmed, the next best may be
                # needed.
                return answer if answer else self._reject_others()
            case Cancel():
                if self.agreement is not None and message.sender == self.agreement.owner:
                    self.state = "cancelled"
                return ()
        return self._unexpected(message)

    def _is_deal(self, agreement: Agreement) -> bool:
        return self._awarded is not None and agreement.terms == self._awarded.terms

    def _is_award(self, owner: str) -> bool:
        awarded = self._awarded
        return self.state == "awarding" and awarded is not None and awarded.sender == owner

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        reason = self._fault(bid, now)
        if reason:
            rejected = self._make(RejectBid, bid.sender, reason=reason, of=bid.number)
            # Who bid too much has answered: the others' bids need not wait for the close.
            waited = bool(self._waiting)
            self._waiting.discard(bid.sender)
            closed = waited and self.state == "called" and not self._waiting
            return (rejected, *(self._next(now) if closed else ()))
        self._bids[bid.sender] = bid
        self._waiting.discard(bid.sender)
        return self._settled(now)

    def _fault(self, bid: Bid, now: float) -> str:
        if self.state != "called" or now >= self.closes:
            return "bids are closed"
        if bid.sender in self._bids:
            return "a bid stands already"
        if bid.currency != self.currency:
            return f"counts in {bid.currency}, expected {self.currency}"
        if bid.terms is None or not self.template.holds(bid.terms):
            return "is not what was called for"
        if self.limit is not None and bid.amount > self.limit:
            return "is too dear"
        return ""

    def _settled(self, now: float) -> tuple[TradeMessage, ...]:
        return () if self._waiting else self._next(now)

    def _next(self, now: float) -> tuple[TradeMessage, ...]:
        """Award the deal to the best bidder that has not refused."""
        if self._awarded is not None:
            del self._bids[self._awarded.sender]
            self._awarded = None
        for bid in self.bids:
            if bid.expires is None or now < bid.expires:
                accept = self._make(Accept, bid.sender, of=bid.number)
                self.state, self._awarded, self._award = "awarding", bid, accept.number
                return (accept,)
        self.state = "unmet"
        self.reason = self.reason or "no bid"
        return self._reject_others()

    def _reject_others(self) -> tuple[TradeMessage, ...]:
        winner = self._awarded.sender if self._awarded else None
        amount = self._awarded.amount if self._awarded else None
        return tuple(
            self._make(InformOutcome, owner, won=False, amount=amount, currency=self.currency)
            for owner in self.parties
            if owner != winner
        )


class TenderOwner(OwnerSide):
    """
    Bids by the owner's pricing. Its states: open, bid, agreed, lost, cancelled.
    """

    def __init__(self, seller: Seller, deal: str, customer: str) -> None:
        super().__init__(seller, deal, customer)
        self._terms: Terms | None = None
        self._number = 0
        self._expires = math.inf

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case CallForBids() if self.state == "open" and message.rule == "tender":
                return self._bid(message, now)
            case Accept() if self.state == "bid" and self._terms is not None:
                if message.of != self._number:
                    return self._refuse(message, f"the bid is number {self._number}")
                if now >= self._expires:
                    return self._refuse(message, "the bid has expired")
                return self._sell(message, self._terms, now)
            case InformOutcome() | RejectBid() if self.state in ("open", "bid", "lost"):
                self.seller.let_go(self.deal, self.customer)
                self.state = "lost"
                return ()
            case Cancel() if self.state != "cancelled":
                return self._cancel(message, now)
        return self._unexpected(message)

    def _bid(self, call: CallForBids, now: float) -> tuple[TradeMessage, ...]:
        foreign = self._foreign(call, call.template.currency)
        if foreign is not None:
            return foreign
        if now >= call.closes:
            return self._refuse(call, "bids are closed")
        terms = self.seller.terms(self.deal, self.customer, call.template, now)
        if isinstance(terms, Refusal):
            return self._refuse(call, terms.reason)
        # The award comes when the call closes: the bid holds from then on.
        self._expires = call.closes + self.seller.validity
        self.seller.hold(self.deal, self.customer, terms, self._expires, now)
        bid = self._make(
            Bid,
            self.customer,
            amount=terms.amount,
            currency=self.currency,
            terms=terms,
            expires=self._expires,
        )
        self._terms, self._number, self.state = terms, bid.number, "bid"
        return (bid,)
