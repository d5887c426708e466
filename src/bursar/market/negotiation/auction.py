"""
The part that all auctions of one lot share.

Forward, an owner sells to the highest bid; in reverse, a buyer has owners bid and
takes the lowest. Inside, both are one: ``worth`` turns amounts round in reverse, so
that more is better, and the reserve is the least worth that is traded at.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.side import NegotiationSide
from bursar.market.trade_messages import (
    Bid,
    CallForBids,
    Confirm,
    InformOutcome,
    Reject,
    RejectBid,
    Rule,
    TradeMessage,
)
from bursar.model.money import Micros, Refusal

SellLot = Callable[[str, str, Terms, float], Agreement | Refusal]
"""Binds the owner, by deal, customer, terms and present time; see ``Seller.sell``."""


class Auctioneer(NegotiationSide):
    """
    Sells one lot, or buys it in reverse. Its states: open, called, sold, unsold.

    Parameters
    ----------
    me, deal, bidders
        The parties and their conversation.
    lot
        Processors sold, from the earliest start on; in reverse, processors wanted.
    reserve
        The least it is sold for, or in reverse the most that is paid; micro-units.
    closes
        When bids end, seconds since the epoch.
    reverse
        Owners bid, the lowest wins.
    sell
        How the owner is bound, where it is this party that sells; without it the
        outcome is told and the deal made elsewhere.

    Attributes
    ----------
    winner, price
        Once sold; the price in micro-units.
    agreement
        Once confirmed.
    """

    rule: Rule
    open_price: Micros | None = None
    """Price stated in the call for bids; None where the price is secret."""

    def __init__(
        self,
        me: str,
        deal: str,
        bidders: Iterable[str],
        lot: DealTemplate,
        *,
        reserve: Micros,
        closes: float,
        reverse: bool = False,
        sell: SellLot | None = None,
    ) -> None:
        super().__init__(me, deal, bidders, lot.currency)
        self.lot = lot
        self.reserve = reserve
        self.closes = closes
        self.reverse = reverse
        self.sell = sell
        self.winner: str | None = None
        self.price: Micros | None = None
        self.agreement: Agreement | None = None

    def open(self, now: float) -> tuple[TradeMessage, ...]:
        """Call for bids."""
        self.state = "called"
        return tuple(
            self._make(
                CallForBids,
                bidder,
                template=self.lot,
                rule=self.rule,
                closes=self.closes,
                price=self.open_price,
                reverse=self.reverse,
            )
            for bidder in self.parties
        )

    @property
    def is_over(self) -> bool:
        """Whether the outcome was announced."""
        return self.state in ("sold", "unsold")

    def worth(self, amount: Micros) -> Micros:
        """Turn an amount into a score of which more is better: negated in reverse. Self-inverse."""
        return -amount if self.reverse else amount

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Decide the auction once the time for bids is over."""
        return self._close(now) if self.state == "called" and now >= self.closes else ()

    def next_tick(self) -> float:
        return self.closes if self.state == "called" else math.inf

    @abstractmethod
    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        """React to a bid that is in time and in our currency."""

    @abstractmethod
    def _close(self, now: float) -> tuple[TradeMessage, ...]:
        """Decide the auction."""

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case Bid():
                if self.state != "called" or now >= self.closes:
                    return self._reject(message, "bids are closed")
                if message.currency != self.currency:
                    return self._reject(
                        message, f"counts in {message.currency}, expected {self.currency}"
                    )
                return self._bid(message, now)
            case Reject():
                return self._passed(message.sender, now)
            case Confirm() if self.reverse and self.state == "sold" and self.agreement is None:
                return self._confirmed(message)
        return self._unexpected(message)

    def _passed(self, bidder: str, now: float) -> tuple[TradeMessage, ...]:
        """Handle that a bidder does not bid."""
        return ()

    def _reject(self, bid: TradeMessage, reason: str) -> tuple[TradeMessage, ...]:
        return (self._make(RejectBid, bid.sender, reason=reason, of=bid.number),)

    def _award(
        self, winner: str | None, price: Micros | None, now: float
    ) -> tuple[TradeMessage, ...]:
        """End the auction and inform every bidder."""
        sold: Agreement | None = None
        if winner is not None and price is not None and self.sell is not None:
            terms = Terms.of_amount(self.lot, self.lot.earliest, price)
            # The owner is bound first: whoever is told that it won must get an agreement.
            answer = self.sell(self.deal, winner, terms, now)
            if isinstance(answer, Refusal):
                winner = price = None
            else:
                sold = answer
        self.winner, self.price, self.agreement = winner, price, sold
        self.state = "unsold" if winner is None else "sold"
        replies: list[TradeMessage] = [
            self._make(
                InformOutcome,
                bidder,
                won=bidder == winner,
                amount=price,
                currency=self.currency,
            )
            for bidder in self.parties
        ]
        if winner is not None and sold is not None:
            replies.append(self._make(Confirm, winner, agreement=sold))
        return tuple(replies)

    def _confirmed(self, message: Confirm) -> tuple[TradeMessage, ...]:
        agreement = message.agreement
        terms = agreement.terms
        parties = (agreement.owner, agreement.customer) == (self.winner, self.me)
        if not (parties and terms.amount == self.price and self.lot.holds(terms)):
            return self._refuse(message, "is not what was awarded")
        self.agreement = agreement
        return ()
