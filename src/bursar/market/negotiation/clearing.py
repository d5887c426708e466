"""
Clearing of a sealed book: the double auction, and proportional shares of several owners.

Processors for one and the same time are traded. Both functions are used by the running exchange
(:mod:`bursar.market.exchange_book`) and by the study of protocols.

In a double auction the highest bids meet the lowest asks while a bid is not below its ask. Every
price in an interval suits all who then trade and none who do not; the k-double auction [1]_ takes
the price at the share k. McAfee's auction [2]_, in which no honest order can be bettered, was not
taken: it gives up the last trade, and what buyers pay beyond what owners get is left to the
exchange.

References
----------
.. [1] Satterthwaite, Williams (1989). Bilateral trade with the sealed bid k-double
   auction: existence and efficiency. J. Economic Theory 48(1): 107-133.
.. [2] McAfee (1992). A dominant strategy double auction. J. Economic Theory 56(2): 434-450.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bursar.market.negotiation.auctioneers import proportional_shares
from bursar.market.trade_messages import Trade
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
    What a sealed book comes to, and who trades how much.

    Parameters
    ----------
    price
        Price of one processor, micro-units; None when nothing is traded, or no price is common
        to all trades.
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


def clear_shares(bids: Mapping[str, Micros], asks: Mapping[str, int]) -> Clearing:
    """
    Divide the processors of several owners among buyers in proportion to their bids.

    All processors are one pool. A buyer that gets any pays its whole bid, which is divided among
    the owners of the buyer's processors by their number, to the micro-unit; a buyer that gets none
    pays nothing. Every processor is given away if any bid is above 0.

    Parameters
    ----------
    bids
        What each buyer pays for its share, micro-units, in the order received. Not negative.
    asks
        Processors of each owner, in the order received. Positive.
    """
    shares = proportional_shares(sum(asks.values()), bids)
    trades: list[Trade] = []
    owners = iter(asks.items())
    owner, left = "", 0
    for buyer, share in shares.items():
        got = 0
        while got < share:
            if not left:
                owner, left = next(owners)
            count = min(left, share - got)
            # Differences of one rounded line, so that the parts come to the whole bid.
            amount = bids[buyer] * (got + count) // share - bids[buyer] * got // share
            trades.append(Trade(buyer=buyer, owner=owner, processors=count, amount=amount))
            got += count
            left -= count
    return Clearing(None, tuple(trades))
