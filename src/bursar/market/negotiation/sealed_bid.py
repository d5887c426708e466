"""
Sealed bids, each bidder one: first price, and Vickrey's second price.

The best bid that meets the reserve wins, of equal ones the first received. It pays
what it says; in Vickrey's auction what the second best says, or the reserve where
that is more, so that to bid one's valuation is best whatever the others do.

References
----------
.. [1] Vickrey (1961). Counterspeculation, auctions, and competitive sealed tenders.
   Journal of Finance 16(1): 8-37.
"""

from collections.abc import Iterable

from bursar.market.agreement import DealTemplate
from bursar.market.negotiation.auction import Auctioneer, SellLot
from bursar.market.trade_messages import Bid, TradeMessage
from bursar.model.money import Micros


class SealedAuctioneer(Auctioneer):
    """
    Collects bids until the close, or until all have bid or passed. The reserve is secret.

    Parameters
    ----------
    second_price
        Whether the winner pays the second best bid (Vickrey) in place of its own.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        bidders: Iterable[str],
        lot: DealTemplate,
        *,
        reserve: Micros,
        closes: float,
        second_price: bool = False,
        reverse: bool = False,
        sell: SellLot | None = None,
    ) -> None:
        super().__init__(
            me, deal, bidders, lot, reserve=reserve, closes=closes, reverse=reverse, sell=sell
        )
        self.rule = "vickrey" if second_price else "first-price"
        self._bids: dict[str, Micros] = {}
        self._waiting = set(self.parties)

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        if bid.sender not in self._waiting:
            return self._reject(bid, "a bid stands already")
        self._bids[bid.sender] = bid.amount
        return self._passed(bid.sender, now)

    def _passed(self, bidder: str, now: float) -> tuple[TradeMessage, ...]:
        self._waiting.discard(bidder)
        return self._close(now) if self.state == "called" and not self._waiting else ()

    def _close(self, now: float) -> tuple[TradeMessage, ...]:
        """
        Award the lot to the best bid that meets the reserve, or to nobody, and inform all bidders.

        ``worth`` turns amounts round in a reverse auction, so that more is better in both kinds.
        """
        least = self.worth(self.reserve)
        # Sorting is stable, so of equal bids the first received comes first.
        ranked = sorted(
            ((self.worth(amount), bidder) for bidder, amount in self._bids.items()),
            key=lambda pair: -pair[0],
        )
        valid = [pair for pair in ranked if pair[0] >= least]
        if not valid:
            return self._award(None, None, now)
        paid, winner = valid[0]
        if self.rule == "vickrey":
            paid = valid[1][0] if len(valid) > 1 else least
        return self._award(winner, self.worth(paid), now)
