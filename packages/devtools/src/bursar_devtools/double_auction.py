"""
Double auction that a program may hold: buyers bid, owners ask, and one price clears the market.

The auctioneer collects orders by messages; :mod:`bursar.market.negotiation.clearing` clears them.
"""

import math
from collections.abc import Iterable

from bursar.market.agreement import DealTemplate
from bursar.market.negotiation.clearing import Clearing, LimitOrder, clear
from bursar.market.negotiation.side import NegotiationSide
from bursar.market.trade_messages import (
    Ask,
    Bid,
    CallForBids,
    InformOutcome,
    RejectBid,
    TradeMessage,
)


class DoubleAuctioneer(NegotiationSide):
    """
    Collects one order of each party, and clears once. Its states: open, called, cleared.

    Parameters
    ----------
    me, deal
        The auctioneer, who does not trade, and the conversation.
    buyers, owners
        Parties that may bid, and parties that may ask.
    lot
        Times of the traded processors; each party states its number of processors.
    closes
        Time before which orders are accepted, seconds since the epoch.
    k
        See :func:`bursar.market.negotiation.clearing.clear`.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        buyers: Iterable[str],
        owners: Iterable[str],
        lot: DealTemplate,
        *,
        closes: float,
        k: float = 0.5,
    ) -> None:
        self.buyers, self.owners = tuple(buyers), tuple(owners)
        if set(self.buyers) & set(self.owners):
            raise ValueError("a party buys or sells, not both")
        super().__init__(me, deal, (*self.buyers, *self.owners), lot.currency)
        self.lot = lot
        self.closes = closes
        self.k = k
        self.clearing: Clearing | None = None
        self._orders: dict[str, LimitOrder] = {}

    def open(self, now: float) -> tuple[TradeMessage, ...]:
        """Call for bids and asks."""
        self.state = "called"
        return tuple(
            self._make(
                CallForBids,
                party,
                template=self.lot,
                rule="double",
                closes=self.closes,
                reverse=party in self.owners,
            )
            for party in self.parties
        )

    def next_tick(self) -> float:
        return self.closes if self.state == "called" else math.inf

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Clear the market when orders close, and report the trades to each party."""
        if self.state != "called" or now < self.closes:
            return ()
        orders = self._orders.values()
        self.clearing = clear(
            [order for order in orders if order.party in self.buyers],
            [order for order in orders if order.party in self.owners],
            self.k,
        )
        self.state = "cleared"
        return tuple(self._outcome(party) for party in self.parties)

    def _outcome(self, party: str) -> TradeMessage:
        assert self.clearing is not None
        trades = tuple(t for t in self.clearing.trades if party in (t.buyer, t.owner))
        return self._make(
            InformOutcome,
            party,
            won=bool(trades),
            amount=self.clearing.price,
            currency=self.currency,
            processors=sum(trade.processors for trade in trades) or None,
            trades=trades,
        )

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        if not isinstance(message, Bid | Ask):
            return self._unexpected(message)
        reason = self._fault(message, now)
        if reason:
            return (self._make(RejectBid, message.sender, reason=reason, of=message.number),)
        assert message.processors is not None
        self._orders[message.sender] = LimitOrder(
            message.sender, message.processors, message.amount
        )
        return ()

    def _fault(self, message: Bid | Ask, now: float) -> str:
        if self.state != "called" or now >= self.closes:
            return "orders are closed"
        if message.sender not in (self.buyers if isinstance(message, Bid) else self.owners):
            return "buyers bid, owners ask"
        if message.sender in self._orders:
            return "an order stands already"
        if message.currency != self.currency:
            return f"counts in {message.currency}, expected {self.currency}"
        return "" if message.processors is not None else "expected processors"
