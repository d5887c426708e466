"""
Implements the trade manager, a buyer's side of every deal.

The manager asks several owners at once, bargains, calls for tenders and bids, and keeps what
was agreed. Which quote to accept is decided elsewhere.

References
----------
.. [1] Buyya, Abramson, Giddy (2001). An evaluation of economy-based resource trading and
   scheduling on computational power grids for parameter sweep applications, section 2.
"""

import math
from collections.abc import Iterable
from typing import TypeVar

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.deal_report import OwnerAnswer, answers_of
from bursar.market.negotiation.auction import Auctioneer, Bidder
from bursar.market.negotiation.bilateral import BargainingBuyer, Concession, PostedBuyer
from bursar.market.negotiation.side import BuyerSide, NegotiationSide, reject_stray
from bursar.market.negotiation.tender import TenderBuyer
from bursar.market.trade_messages import PriceQuote, TradeMessage
from bursar.model.money import Micros

SideT = TypeVar("SideT", bound=NegotiationSide)

_BOUND = ("agreed", "sold", "cancelling")


class TradeManager:
    """
    Buys processors for one customer.

    Parameters
    ----------
    name
        Name of the customer, the address of messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._sides: dict[tuple[str, str], NegotiationSide] = {}

    # Conversations that the customer opens.

    def ask(
        self,
        deal: str,
        owners: Iterable[str],
        template: DealTemplate,
        now: float,
        *,
        limit: Micros | None = None,
    ) -> tuple[TradeMessage, ...]:
        """
        Ask each owner for a quote.

        Parameters
        ----------
        deal
            Name of the conversations, not in use with these owners.
        template
            Processors and times that are wanted.
        now
            Seconds since the epoch.
        limit
            Most that a quote may cost, micro-units; None for no limit.
        """
        return tuple(
            message
            for owner in owners
            for message in self._begin(
                PostedBuyer(self.name, deal, owner, template, limit=limit)
            ).open(now)
        )

    def quotes(self, deal: str, now: float) -> tuple[PriceQuote, ...]:
        """Return quotes that hold now, the cheapest first; of equal ones the earliest start."""
        quotes = [
            side.quote
            for side in self._of(deal)
            if isinstance(side, PostedBuyer) and side.state == "quoted" and side.quote
        ]
        return tuple(
            sorted(
                (quote for quote in quotes if now < quote.expires),
                key=lambda q: (q.terms.amount, q.terms.start, q.sender),
            )
        )

    def accept(self, quote: PriceQuote, now: float) -> tuple[TradeMessage, ...]:
        """Accept a quote; do nothing when the quote has lapsed."""
        side = self._sides.get((quote.deal, quote.sender))
        if not isinstance(side, PostedBuyer) or side.quote != quote:
            return ()
        return side.accept(now)

    def bargain(
        self,
        deal: str,
        owner: str,
        template: DealTemplate,
        concession: Concession,
        now: float,
        *,
        until: float = math.inf,
    ) -> tuple[TradeMessage, ...]:
        """Open bargaining with one owner; an agreement reached there is bought."""
        side = BargainingBuyer(self.name, deal, owner, template, concession=concession, until=until)
        return self._begin(side).open(now)

    def call(
        self,
        deal: str,
        owners: Iterable[str],
        template: DealTemplate,
        closes: float,
        now: float,
        *,
        limit: Micros | None = None,
    ) -> tuple[TradeMessage, ...]:
        """Call for tenders; the best bid is bought."""
        side = TenderBuyer(self.name, deal, tuple(owners), template, closes=closes, limit=limit)
        return self._begin(side).open(now)

    def auction(self, auctioneer: Auctioneer, now: float) -> tuple[TradeMessage, ...]:
        """Open a reverse auction among owners; the lowest price is bought."""
        if auctioneer.me != self.name or not auctioneer.reverse:
            raise ValueError("an auction must buy in the customer's name")
        return self._begin(auctioneer).open(now)

    def join(self, deal: str, auctioneer: str, value: Micros, currency: str = "SU") -> None:
        """Join an owner's auction, with bids up to a value in micro-units."""
        self._begin(Bidder(self.name, deal, auctioneer, value=value, currency=currency))

    def bid(
        self, deal: str, auctioneer: str, lot: DealTemplate, value: Micros
    ) -> tuple[TradeMessage, ...]:
        """Join an auction that is open to all, with bids up to a value in micro-units."""
        side = Bidder(self.name, deal, auctioneer, value=value, currency=lot.currency)
        return self._begin(side).open(lot)

    def heard(self, deal: str, party: str) -> int:
        """Return how many messages of a party were taken up in a deal."""
        side = self._sides.get((deal, party))
        return 0 if side is None else len(side.heard(party))

    def cancel(self, deal: str, party: str, now: float) -> tuple[TradeMessage, ...]:
        """Withdraw from a deal, if there is one."""
        side = self._sides.get((deal, party))
        return side.cancel(now) if isinstance(side, BuyerSide) else ()

    def again(self, deal: str) -> tuple[TradeMessage, ...]:
        """Return the last messages of a deal, to be sent again when no answer comes."""
        return tuple(
            m for (d, party), s in self._sides.items() if d == deal for m in s.again(party)
        )

    # Messages, and the passing of time.

    def deliver(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """
        Process a message, and return the messages to send.

        Parameters
        ----------
        now
            Seconds since the epoch.

        Returns
        -------
        tuple of TradeMessage
            Messages to send, each to the party it names.
        """
        if message.to != self.name:
            return reject_stray(message, self.name, f"is for {message.to}")
        side = self._sides.get((message.deal, message.sender))
        if side is None:
            return reject_stray(message, self.name, "is not of any deal")
        return side.receive(message, now)

    def tick(self, now: float) -> tuple[TradeMessage, ...]:
        """Let tenders and auctions close whose time has come."""
        due = [side for side in self._all() if side.next_tick() <= now]
        return tuple(message for side in due for message in side.tick(now))

    def next_tick(self) -> float:
        """Return the time of the next due :meth:`tick`; infinite for never."""
        return min((side.next_tick() for side in self._all()), default=math.inf)

    def forget(self, deal: str) -> tuple[Agreement, ...]:
        """Drop the conversations of a finished deal; return the agreements reached."""
        removed = self._of(deal)
        self._sides = {key: side for key, side in self._sides.items() if key[0] != deal}
        return _agreed(removed)

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        """Agreements that the customer has bought."""
        return _agreed(self._all())

    def agreements_of(self, deal: str) -> tuple[Agreement, ...]:
        """Return the agreements that were reached in the conversations of a deal."""
        return _agreed(self._of(deal))

    def answers(self, deal: str) -> tuple[OwnerAnswer, ...]:
        """Return what each owner of a deal answered, the best first."""
        return answers_of(self._of(deal))

    def states(self, deal: str) -> dict[str, str]:
        """Return the state of each conversation of a deal, by the other party's name."""
        return {party: side.state for (d, party), side in self._sides.items() if d == deal}

    # Inside.

    def _begin(self, side: SideT) -> SideT:
        keys = [(side.deal, party) for party in side.parties]
        for key in keys:
            if key in self._sides:
                raise ValueError(f'"{key[0]}" is a deal with {key[1]} already')
        self._sides.update(dict.fromkeys(keys, side))
        return side

    def _of(self, deal: str) -> list[NegotiationSide]:
        return [side for side in self._all() if side.deal == deal]

    def _all(self) -> list[NegotiationSide]:
        """List each side once, even one with several owners."""
        return list({id(side): side for side in self._sides.values()}.values())


def _agreed(sides: Iterable[NegotiationSide]) -> tuple[Agreement, ...]:
    return tuple(
        side.agreement
        for side in sides
        if isinstance(side, BuyerSide | Bidder | Auctioneer)
        and side.agreement is not None
        and side.state in _BOUND
    )
