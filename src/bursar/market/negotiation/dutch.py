"""
Dutch auction: the price falls by the clock, the first to bid takes the lot.

It ends as a first-price sealed auction does. In reverse the price rises.
"""

import math
from collections.abc import Iterable

from bursar.market.agreement import DealTemplate
from bursar.market.negotiation.auction import Auctioneer, SellLot
from bursar.market.trade_messages import Ask, Bid, TradeMessage
from bursar.model.money import Micros


class DutchAuctioneer(Auctioneer):
    """
    Lowers the price step by step to the reserve, and ends one period after.

    Parameters
    ----------
    first
        Opening price of the auction, micro-units.
    step
        Step by which the price falls, micro-units. Positive.
    every
        Seconds between steps. Positive.
    opened
        Opening time of the auction, seconds since the epoch.
    """

    rule = "dutch"

    def __init__(
        self,
        me: str,
        deal: str,
        bidders: Iterable[str],
        lot: DealTemplate,
        *,
        first: Micros,
        reserve: Micros,
        step: Micros,
        every: float,
        opened: float,
        reverse: bool = False,
        sell: SellLot | None = None,
    ) -> None:
        if step < 1 or not every > 0:
            raise ValueError(f"step and every must be positive, got {step}, {every}")
        distance = reserve - first if reverse else first - reserve
        if distance < 0:
            raise ValueError(f"the first price, {first}, is beyond the reserve, {reserve}")
        self._levels = -(-distance // step)
        super().__init__(
            me,
            deal,
            bidders,
            lot,
            reserve=reserve,
            closes=opened + (self._levels + 1) * every,
            reverse=reverse,
            sell=sell,
        )
        self.first = self.open_price = first
        self.step = step
        self.every = every
        self.opened = opened
        self._asked = 0

    def price_at(self, now: float) -> Micros:
        """Return the clock's price at a moment, micro-units."""
        level = self._level(now)
        if level >= self._levels:
            return self.reserve
        return self.worth(self.worth(self.first) - level * self.step)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Announce the clock's price after each change; end below the reserve."""
        if self.state != "called" or now >= self.closes:
            return super().tick(now)
        level = self._level(now)
        if level <= self._asked:
            return ()
        self._asked = level
        return tuple(
            self._make(Ask, bidder, amount=self.price_at(now), currency=self.currency)
            for bidder in self.parties
        )

    def next_tick(self) -> float:
        if self.state != "called":
            return math.inf
        return self.opened + (self._asked + 1) * self.every

    def _level(self, now: float) -> int:
        passed = max(0, math.floor((now - self.opened) / self.every))
        # A multiple of the period may fall just short of itself in the division.
        if self.opened + (passed + 1) * self.every <= now:
            passed += 1
        return min(passed, self._levels)

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        """Award the lot to the first bid at or above the clock's price, at the clock's price."""
        price = self.price_at(now)
        if self.worth(bid.amount) < self.worth(price):
            return self._reject(bid, f"{price} micro-units are asked")
        return self._award(bid.sender, price, now)

    def _close(self, now: float) -> tuple[TradeMessage, ...]:
        return self._award(None, None, now)
