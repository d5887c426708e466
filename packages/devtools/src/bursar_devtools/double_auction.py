"""
Double auction that a program may hold: buyers bid, owners ask, and one price clears the market.

Processors for one and the same time are traded. The highest bids meet the lowest asks while a bid
is not below its ask. Every price in an interval suits all who then trade and none who do not; the
k-double auction [1]_ takes the price at the share k.

References
----------
.. [1] Satterthwaite, Williams (1989). Bilateral trade with the sealed bid k-double
   auction: existence and efficiency. J. Economic Theory 48(1): 107-133.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bursar.market.agreement import DealTemplate
from bursar.market.negotiation.side import NegotiationSide
from bursar.market.trade_messages import (
    Ask,
    Bid,
    CallForBids,
    InformOutcome,
    RejectBid,
    Trade,
    TradeMessage,
)
from bursar.model.money import Micros


@dataclass(frozen=True, slots=True)
class LimitOrder:
    """
    A bid or ask in a double auction, with the limit of its price.

    Parameters
    ----------
    processors
        Most processors to trade. Positive.
    amount
        Worst acceptable price of one processor, micro-units.
    """

    party: str
    processors: int
    amount: Micros


@dataclass(frozen=True, slots=True)
class Clearing:
    """
    What a double auction comes to: one price, and who trades how much.

    Parameters
    ----------
    price
        Price of one processor, micro-units; None when nothing is traded.
    trades
        Processors that each buyer takes of each owner.
    """

    price: Micros | None
    trades: tuple[Trade, ...]


def clear(bids: Sequence[LimitOrder], asks: Sequence[LimitOrder], k: float = 0.5) -> Clearing:
    """
    Match bids with asks and set the prices of the trades.

    Of equal orders the one received first goes first. What one side pays, the other
    gets, to the micro-unit.

    Parameters
    ----------
    bids, asks
        In the order received.
    k
        0: the price best for buyers; 1: best for owners.
    """
    if not 0 <= k <= 1:
        raise ValueError(f"k must be 0 to 1, got {k}")
    wanted = sorted(bids, key=lambda order: -order.amount)
    offered = sorted(asks, key=lambda order: order.amount)
    met: list[tuple[str, str, int]] = []
    i = j = 0  # the bid and the ask at the margin
    got = given = 0  # of each, processors met already
    low, high = 0, 0
    while i < len(wanted) and j < len(offered) and wanted[i].amount >= offered[j].amount:
        # The last pair that trades bounds the price, since pairs only get worse.
        low, high = offered[j].amount, wanted[i].amount
        count = min(wanted[i].processors - got, offered[j].processors - given)
        met.append((wanted[i].party, offered[j].party, count))
        got += count
        given += count
        if got == wanted[i].processors:
            i, got = i + 1, 0
        if given == offered[j].processors:
            j, given = j + 1, 0
    if not met:
        return Clearing(None, ())
    # Whoever is left over must not wish to trade at the price.
    if i < len(wanted):
        low = max(low, wanted[i].amount)
    if j < len(offered):
        high = min(high, offered[j].amount)
    # Whole micro-units per processor, so that payments and receipts are equal.
    price = low + math.floor(k * (high - low))
    return Clearing(
        price,
        tuple(
            Trade(buyer=buyer, owner=owner, processors=count, amount=price * count)
            for buyer, owner, count in met
        ),
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
        See :func:`clear`.
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
