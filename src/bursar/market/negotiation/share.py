"""
Proportional share: a machine is divided among bidders by what each bids.

Processors are whole: what the proportions leave over goes by largest remainders, of
equal ones to the higher bid, then to the first received. Who gets a processor pays
its bid; who gets none pays nothing.

References
----------
.. [1] Buyya, Abramson, Giddy, Stockinger (2002). Economic models for resource management
   and scheduling in grid computing. CCPE 14(13-15): 1507-1542.
"""

from collections.abc import Iterable, Mapping

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.auction import Auctioneer, SellLot
from bursar.market.trade_messages import Bid, Confirm, InformOutcome, TradeMessage
from bursar.model.money import Micros, Refusal


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
