"""
Auctions of one owner's lot: English, Dutch, sealed bids, proportional share.

English: open and rising, until nobody bids more. Bidders who bid up to their valuations
leave the lot to the one with the highest, at no more than an increment above the second
highest. In reverse the price falls.

Dutch: the price falls by the clock, and the first to bid takes the lot. The auction ends as
a first-price sealed auction does. In reverse the price rises.

Sealed bids, one for each bidder: the best bid that meets the reserve wins, of equal ones the
first received. The winner pays its own bid; in Vickrey's auction [1]_ the second best bid, or
the reserve where that is more, so that to bid one's valuation is best whatever the others do.

Proportional share [2]_: a machine is divided among bidders by what each bids. Processors are
whole: what the proportions leave over goes by largest remainders, of equal ones to the higher
bid, then to the first received. Who gets a processor pays its bid; who gets none pays nothing.

References
----------
.. [1] Vickrey (1961). Counterspeculation, auctions, and competitive sealed tenders.
   Journal of Finance 16(1): 8-37.
.. [2] Buyya, Abramson, Giddy, Stockinger (2002). Economic models for resource management
   and scheduling in grid computing. CCPE 14(13-15): 1507-1542.
"""

import math
from collections.abc import Iterable, Mapping

from bursar.market.agreement import LARGEST, Agreement, DealTemplate, Terms
from bursar.market.negotiation.auction import Auctioneer, SellLot
from bursar.market.trade_messages import (
    Ask,
    Bid,
    Confirm,
    InformOutcome,
    TradeMessage,
)
from bursar.model.money import Micros, Refusal

# English auction: open and rising, until nobody bids more.


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
    latest
        When it ends at the latest, seconds since the epoch; the first bid is waited for until then.
        None: each bid gives it ``quiet`` seconds more.
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
        latest: float | None = None,
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
            closes=opened + quiet if latest is None else latest,
            reverse=reverse,
            sell=sell,
        )
        self._latest = math.inf if latest is None else latest
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

    def asking(self, now: float) -> Micros | None:
        return self.asked

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        # A leader who bids again would only raise its own price: most likely a repeated message.
        if bid.sender == self.leader:
            return self._reject(bid, "leads already")
        if self.worth(bid.amount) < self.worth(self.asked):
            return self._reject(bid, f"{self.asked} micro-units are asked")
        self.leader, self.standing = bid.sender, bid.amount
        self.closes = min(now + self.quiet, self._latest)
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


# Dutch auction: the price falls by the clock, the first to bid takes the lot.


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

    def asking(self, now: float) -> Micros | None:
        return self.price_at(now)

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


# Sealed bids, each bidder one: first price, and Vickrey's second price.


class SealedAuctioneer(Auctioneer):
    """
    Collects bids until the close, or until all have bid or passed. The reserve is secret.

    Parameters
    ----------
    second_price
        Whether the winner pays the second best bid (Vickrey) in place of its own.
    waits
        Whether the auction lasts until it closes, also when all have bid: others may join.
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
        waits: bool = False,
        reverse: bool = False,
        sell: SellLot | None = None,
    ) -> None:
        super().__init__(
            me, deal, bidders, lot, reserve=reserve, closes=closes, reverse=reverse, sell=sell
        )
        self._waits = waits
        self.rule = "vickrey" if second_price else "first-price"
        self._bids: dict[str, Micros] = {}
        self._waiting = set(self.parties)

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        if bid.sender in self._bids or not (self._waits or bid.sender in self._waiting):
            return self._reject(bid, "a bid stands already")
        self._bids[bid.sender] = bid.amount
        return self._passed(bid.sender, now)

    def _passed(self, bidder: str, now: float) -> tuple[TradeMessage, ...]:
        self._waiting.discard(bidder)
        is_done = self.state == "called" and not self._waiting and not self._waits
        return self._close(now) if is_done else ()

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


# Proportional share: a machine is divided among bidders by what each bids.


def proportional_shares(processors: int, bids: Mapping[str, Micros]) -> dict[str, int]:
    """
    Divide all processors in proportion to bids; give out none if no bid is above 0.

    Parameters
    ----------
    processors
        Number to divide. Not negative.
    bids
        Bid of each bidder, micro-units, in the order received. Not negative.
    """
    total = sum(bids.values())
    if total <= 0:
        return dict.fromkeys(bids, 0)
    given = {bidder: processors * bid // total for bidder, bid in bids.items()}
    left = processors - sum(given.values())
    # Whole numbers throughout: the remainder of a share is that of processors * bid.
    ranked = sorted(bids, key=lambda bidder: (-(processors * bids[bidder] % total), -bids[bidder]))
    for bidder in ranked[:left]:
        given[bidder] += 1
    return given


class ShareAuctioneer(Auctioneer):
    """
    Collects one bid from each bidder, and divides the lot's processors at the close.

    Attributes
    ----------
    shared
        Processors of each bidder, once divided.
    agreements
        One for each that gets any, where the owner is bound here.
    """

    rule = "share"

    def __init__(
        self,
        me: str,
        deal: str,
        bidders: Iterable[str],
        lot: DealTemplate,
        *,
        closes: float,
        sell: SellLot | None = None,
    ) -> None:
        super().__init__(me, deal, bidders, lot, reserve=0, closes=closes, sell=sell)
        self.shared: dict[str, int] = {}
        self.agreements: dict[str, Agreement] = {}
        self._bids: dict[str, Micros] = {}

    def _bid(self, bid: Bid, now: float) -> tuple[TradeMessage, ...]:
        if bid.sender in self._bids:
            return self._reject(bid, "a bid stands already")
        self._bids[bid.sender] = bid.amount
        return ()

    def _close(self, now: float) -> tuple[TradeMessage, ...]:
        self.shared = proportional_shares(self.lot.processors, self._bids)
        self.state = "sold" if any(self.shared.values()) else "unsold"
        return tuple(m for bidder in self.parties for m in self._inform(bidder, now))

    def _inform(self, bidder: str, now: float) -> Iterable[TradeMessage]:
        processors, amount = self.shared.get(bidder, 0), self._bids.get(bidder, 0)
        sold: Agreement | Refusal | None = None
        if processors and self.sell is not None:
            sold = self.sell(self.deal, bidder, self._terms(processors, amount), now)
        won = processors > 0 and not isinstance(sold, Refusal)
        yield self._make(
            InformOutcome,
            bidder,
            won=won,
            amount=amount if won else None,
            currency=self.currency,
            processors=processors if won else None,
        )
        if isinstance(sold, Agreement):
            self.agreements[bidder] = sold
            yield self._make(Confirm, bidder, agreement=sold)

    def _terms(self, processors: int, amount: Micros) -> Terms:
        part = DealTemplate(
            processors=processors,
            seconds=self.lot.seconds,
            earliest=self.lot.earliest,
            currency=self.currency,
        )
        return Terms.of_amount(part, self.lot.earliest, amount)
