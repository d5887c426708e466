"""
The parts that all auctions of one lot share, and the side of the bidder.

Forward, an owner sells to the highest bid; in reverse, a buyer has owners bid and
takes the lowest. Inside, both are one: ``worth`` turns amounts round in reverse, so
that more is better, and the reserve is the least worth that is traded at.

The bidder knows one number: the lot's worth to the bidder, or in reverse the least price accepted.
It bids that where bids are sealed, and in open auctions as long as what is asked is
no worse. Shading a first-price bid is up to whoever says the number.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.side import NegotiationSide, Seller
from bursar.market.trade_messages import (
    Ask,
    Bid,
    CallForBids,
    Confirm,
    InformOutcome,
    Reject,
    RejectBid,
    RequestQuote,
    Rule,
    TradeMessage,
)
from bursar.model.money import Micros, Refusal

# The part that all auctions of one lot share.

SellLot = Callable[[str, str, Terms, float], Agreement | Refusal]
"""Binds the owner, by deal, customer, terms and present time; see ``Seller.sell``."""


BidCheck = Callable[[str, Micros], str]
"""Returns why a bidder may not bid an amount; empty when it may."""


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
    may_bid
        Returns why a bidder may not bid an amount (micro-units), empty when it may.

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
        may_bid: BidCheck | None = None,
    ) -> None:
        super().__init__(me, deal, bidders, lot.currency)
        self.lot = lot
        self.reserve = reserve
        self.closes = closes
        self.reverse = reverse
        self.sell = sell
        self.may_bid = may_bid
        self.winner: str | None = None
        self.price: Micros | None = None
        self.agreement: Agreement | None = None

    def open(self, now: float) -> tuple[TradeMessage, ...]:
        """Call for bids."""
        self.state = "called"
        return tuple(self._call(bidder, self.open_price) for bidder in self.parties)

    def _call(self, bidder: str, price: Micros | None) -> TradeMessage:
        return self._make(
            CallForBids,
            bidder,
            template=self.lot,
            rule=self.rule,
            closes=self.closes,
            price=price,
            reverse=self.reverse,
        )

    def asking(self, now: float) -> Micros | None:
        """Return the price that is asked at a moment, micro-units; None where bids are sealed."""
        return self.open_price

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
        bidder = message.sender
        match message:
            case Bid():
                if self.state != "called" or now >= self.closes:
                    return self._reject(message, "bids are closed")
                if message.currency != self.currency:
                    return self._reject(
                        message, f"counts in {message.currency}, expected {self.currency}"
                    )
                reason = "" if self.may_bid is None else self.may_bid(bidder, message.amount)
                return self._reject(message, reason) if reason else self._bid(message, now)
            case RequestQuote() if self.state == "called" and now < self.closes:
                # Of somebody who has heard of the auction elsewhere.
                return (self._call(message.sender, self.asking(now)),)
            case RequestQuote():
                return self._refuse(message, "bids are closed")
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


# Implements the bidder's side of every auction of one lot.


class Bidder(NegotiationSide):
    """
    Bids in one auction. States: open, bidding, won, lost, agreed.

    Parameters
    ----------
    me, deal, auctioneer
        The parties and their conversation.
    value
        Highest bid, in reverse the lowest; micro-units.
    seller
        Owner on whose behalf the bidder sells, in a reverse auction.
    terms
        In reverse: what the owner would ask; None: it does not have the processors.

    Attributes
    ----------
    won
        Outcome, once announced by the auctioneer.
    agreement
        Once there is one.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        auctioneer: str,
        *,
        value: Micros,
        currency: str,
        seller: Seller | None = None,
        terms: Terms | None = None,
    ) -> None:
        super().__init__(me, deal, (auctioneer,), currency)
        self.auctioneer = auctioneer
        self.value = value
        self.won: InformOutcome | None = None
        self.agreement: Agreement | None = None
        self._seller = seller
        self._terms = terms
        self._call: CallForBids | None = None
        self._bids: list[Micros] = []

    def open(self, lot: DealTemplate) -> tuple[TradeMessage, ...]:
        """Ask to be called for bids, in an auction that is open to all."""
        return (self._make(RequestQuote, self.auctioneer, template=lot),)

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case CallForBids() if self.state == "open" and message.rule in _RULES:
                return self._called(message, now)
            case Ask() if self.state == "bidding":
                foreign = self._foreign(message, message.currency)
                if foreign is not None:
                    return foreign
                return () if message.leading else self._asked(message.amount)
            case RejectBid() if self.state != "open":
                return ()
            case InformOutcome() if self.state in ("open", "bidding"):
                return self._outcome(message, now)
            case Confirm() if self.state == "won" and self._seller is None:
                return self._confirmed(message)
            case Reject():
                # Before the call: the auction takes no more bidders.
                self.state = "lost" if self.state == "open" else self.state
                return ()
        return self._unexpected(message)

    def _called(self, call: CallForBids, now: float) -> tuple[TradeMessage, ...]:
        foreign = self._foreign(call, call.template.currency)
        if foreign is not None:
            return foreign
        if now >= call.closes:
            return self._refuse(call, "bids are closed")
        if call.reverse != (self._seller is not None):
            return self._refuse(call, "owners bid in reverse auctions only, buyers in others")
        if self._seller is not None and self._terms is None:
            return self._refuse(call, "the processors are not free")
        self._call, self.state = call, "bidding"
        return self._bid(self.value) if call.price is None else self._asked(call.price)

    def _asked(self, price: Micros) -> tuple[TradeMessage, ...]:
        assert self._call is not None
        within = price >= self.value if self._call.reverse else price <= self.value
        return self._bid(price) if within else ()

    def _bid(self, amount: Micros) -> tuple[TradeMessage, ...]:
        self._bids.append(amount)
        return (self._make(Bid, self.auctioneer, amount=amount, currency=self.currency),)

    def _outcome(self, outcome: InformOutcome, now: float) -> tuple[TradeMessage, ...]:
        foreign = self._foreign(outcome, outcome.currency)
        if foreign is not None:
            return foreign
        if not outcome.won:
            self.state = "lost"
            return ()
        # An auctioneer may err or cheat: nobody is bound to a price that was never offered.
        if self._call is None or not self._is_fair(outcome.amount):
            return self._refuse(outcome, "is worse than what was bid")
        self.state, self.won = "won", outcome
        if self._seller is None:
            return ()
        assert outcome.amount is not None
        assert self._terms is not None
        terms = Terms.of_amount(self._call.template, self._terms.start, outcome.amount)
        # In reverse the bidder is the owner: only now, having won, does it give its processors
        # away.
        sold = self._seller.sell(self.deal, self.auctioneer, terms, now)
        if isinstance(sold, Refusal):
            self.state = "lost"
            return self._refuse(outcome, sold.reason)
        self.agreement, self.state = sold, "agreed"
        return (self._make(Confirm, self.auctioneer, agreement=sold),)

    def _is_fair(self, amount: Micros | None) -> bool:
        """Whether the price is one that this side has bid, or a better one."""
        if amount is None or not self._bids or self._call is None:
            return False
        if self._call.reverse:
            return amount >= min(self._bids)
        return amount <= max(self._bids)

    def _confirmed(self, message: Confirm) -> tuple[TradeMessage, ...]:
        agreement = message.agreement
        parties = (agreement.owner, agreement.customer) == (message.sender, self.me)
        if self.won is None or self._call is None or not parties:
            return self._refuse(message, "is not what was won")
        wanted = self._call.template
        processors = self.won.processors or wanted.processors
        terms = agreement.terms
        if (terms.amount, terms.processors, terms.start, terms.seconds) != (
            self.won.amount,
            processors,
            wanted.earliest,
            wanted.seconds,
        ):
            return self._refuse(message, "is not what was won")
        self.agreement, self.state = agreement, "agreed"
        return ()


_RULES = ("english", "dutch", "first-price", "vickrey", "share")
