"""
Implements the bidder's side of every auction of one lot.

The bidder knows one number: the lot's worth to the bidder, or in reverse the least price accepted.
It bids that where bids are sealed, and in open auctions as long as what is asked is
no worse. Shading a first-price bid is up to whoever says the number.
"""

from bursar.market.agreement import Agreement, Terms
from bursar.market.negotiation.selling import Seller
from bursar.market.negotiation.side import NegotiationSide
from bursar.market.trade_messages import (
    Ask,
    Bid,
    CallForBids,
    Confirm,
    InformOutcome,
    Reject,
    RejectBid,
    TradeMessage,
)
from bursar.model.money import Micros, Refusal


class Bidder(NegotiationSide):
    """
    Bids in one auction. States: open, bidding, won, lost, agreed.

    Parameters
    ----------
    me, deal, auctioneer
        The parties and their conversation.
    value
        Highest bid, in reverse the lowest; micro-units.
    currency
        Currency of the value.
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
