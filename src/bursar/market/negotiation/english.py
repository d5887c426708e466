"""
English auction: open and rising, until nobody bids more.

Bidders who bid up to their valuations leave it to the one with the highest, at no
more than an increment above the second highest. In reverse it falls.
"""

from collections.abc import Iterable

from bursar.market.agreement import LARGEST, DealTemplate
from bursar.market.negotiation.auction import Auctioneer, SellLot
from bursar.market.trade_messages import Ask, Bid, TradeMessage
from bursar.model.money import Micros


class EnglishAuctioneer(Auctioneer):
    """
    Asks for more until a time passes without a bid.

    Parameters
    ----------
    increment
        Step from a bid to the next price asked, micro-units. Positive.
    quiet
        Seconds without a bid after which the auction ends; positive.
    opened
        Opening time of the auction, seconds since the epoch.
    """

    rule = "english"

    def __init__(
        self,
        me: str,
        deal: str,
        bidders: Iterable[str],
        lot: DealTemplate,
        *,
        reserve: Micros,
        increment: Micros,
        quiet: float,
        opened: float,
        reverse: bool = False,
        sell: SellLot | None = None,
    ) -> None:
        if increment < 1 or not quiet > 0:
            raise ValueError(f"increment and quiet must be positive, got {increment}, {quiet}")
        super().__init__(
            me,
            deal,
            bidders,
            lot,
            reserve=reserve,
            closes=opened + quiet,
            reverse=reverse,
            sell=sell,
        )
        self.increment = increment
        self.quiet = quiet
        self.open_price = reserve
        self.leader: str | None = None
        self.standing: Micros | None = None

    @property
    def asked(self) -> Micros:
        """Least worth of the next bid, micro-units."""
        if self.standing is None:
            return self.reserve
        return self.worth(self.worth(self.standing) + self.increment)

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        # A leader who bids again would only raise its own price: most likely a repeated message.
        if bid.sender == self.leader:
            return self._reject(bid, "leads already")
        if self.worth(bid.amount) < self.worth(self.asked):
            return self._reject(bid, f"{self.asked} micro-units are asked")
        self.leader, self.standing = bid.sender, bid.amount
        self.closes = now + self.quiet
        if not 0 <= self.asked <= LARGEST:  # nothing better can be said
            return self._close(now)
        return tuple(
            self._make(
                Ask,
                bidder,
                amount=self.asked,
                currency=self.currency,
                leading=bidder == self.leader,
            )
            for bidder in self.parties
        )

    def _close(self, now: float) -> tuple[TradeMessage, ...]:
        return self._award(self.leader, self.standing, now)
