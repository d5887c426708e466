"""
An exchange's orders and trades: records, and the decisions about them, which are pure.

A trade goes through these states:

    matched --> confirmed --> delivered
       |            |
       `--> undone <'

The buyer's money is set aside from the order on. It is paid to the seller when the trade is
delivered, and given back when the trade is undone: by the seller, or by the clock, at the start of
the lot where the seller has not confirmed, and at its end where the seller has not delivered.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from bursar.market.negotiation.clearing import LimitOrder, clear, clear_shares
from bursar.model.money import Micros, Refusal

ExchangeRule = Literal["double", "share"]
OrderSide = Literal["bid", "ask"]
OrderState = Literal["open", "withdrawn", "cleared"]
TradeState = Literal["matched", "confirmed", "delivered", "undone"]
SellerStep = Literal["confirmed", "delivered", "refused"]

NOT_CONFIRMED = "the seller did not confirm before the processors' start"
NOT_DELIVERED = "the seller confirmed, and did not deliver"


class ExchangeLot(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is traded in one clearing: processors from one time to another, by one rule.

    Parameters
    ----------
    closes
        When orders are cleared, seconds since the epoch.
    start
        When the processors' time begins, seconds since the epoch; after ``closes``.
    seconds
        For how long. Positive.
    rule
        ``"double"`` auction or proportional ``"share"``.
    k
        Where in the interval of clearing prices the double auction's price lies, 0 to 1.
    """

    closes: float
    start: float
    seconds: float
    rule: ExchangeRule
    k: float = 0.5

    @property
    def end(self) -> float:
        """When the processors' time ends, seconds since the epoch."""
        return self.start + self.seconds


class ExchangeOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    An order of the book, as it is kept in the store.

    Parameters
    ----------
    id
        Unique, random.
    number
        Position among all orders of the exchange: of equal orders the lower number trades first.
    key
        The user's idempotency key.
    processors
        Most processors to trade; 0 for a bid for a share.
    amount
        Limit of the price of one processor for the lot, micro-units; of a bid for a share, what is
        paid for the share; of an offer to share, 0.
    customer
        Of a bid: who is to use the processors at the seller's service.
    service
        Of an ask: where the processors are, as buyers are told.
    """

    id: str
    number: int
    user: str
    key: str
    side: OrderSide
    lot: ExchangeLot
    processors: int
    amount: Micros
    customer: str = ""
    service: str = ""
    state: OrderState = "open"

    @property
    def hold(self) -> Micros:
        """Micro-units that the order sets aside while it is open."""
        if self.side == "ask" or self.state != "open":
            return 0
        return self.amount * (self.processors if self.lot.rule == "double" else 1)

    @property
    def wish(self) -> tuple[object, ...]:
        """What the user asked for, to tell a repeated request from another one."""
        return self.side, self.lot, self.processors, self.amount, self.customer, self.service


class ExchangeTrade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Processors that one bid takes of one ask, as they are kept in the store.

    Parameters
    ----------
    id
        Unique: the bid's, and a number.
    bid, ask
        Identifiers of the orders.
    amount
        For all processors, micro-units.
    agreement
        Identifier of the agreement at the seller's service, once there is one.
    reason
        Why the trade was undone.
    """

    id: str
    lot: ExchangeLot
    bid: str
    ask: str
    buyer: str
    seller: str
    customer: str
    service: str
    processors: int
    amount: Micros
    state: TradeState = "matched"
    agreement: str = ""
    reason: str = ""

    @property
    def held(self) -> Micros:
        """Micro-units of the buyer's that are set aside for the trade."""
        return self.amount if self.state in ("matched", "confirmed") else 0

    @property
    def deadline(self) -> float:
        """When the clock undoes the trade, seconds since the epoch; infinite for never."""
        match self.state:
            case "matched":
                return self.lot.start
            case "confirmed":
                return self.lot.end
        return math.inf


class ClearingRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What came of one clearing, for everybody.

    Parameters
    ----------
    price
        Of one processor for the lot, micro-units; None when nothing was traded, and for shares.
    processors, amount
        Sums of all trades.
    at
        When it was cleared, seconds since the epoch.
    """

    lot: ExchangeLot
    price: Micros | None
    processors: int
    amount: Micros
    at: float


def lot_after(
    now: float, *, every: float, confirm: float, seconds: float, rule: ExchangeRule, k: float
) -> ExchangeLot:
    """Return the lot that is cleared next: clearings are at multiples of ``every``."""
    closes = (math.floor(now / every) + 1) * every
    return ExchangeLot(closes=closes, start=closes + confirm, seconds=seconds, rule=rule, k=k)


def clear_book(
    lot: ExchangeLot, orders: Iterable[ExchangeOrder], now: float
) -> tuple[ClearingRecord, list[ExchangeTrade]]:
    """
    Clear the open orders of a lot.

    The result follows from the orders alone, whatever their sequence here. Once the lot has begun,
    as after a long absence, nothing is traded.
    """
    book = sorted((o for o in orders if o.state == "open"), key=lambda order: order.number)
    if now >= lot.start:
        return ClearingRecord(lot=lot, price=None, processors=0, amount=0, at=now), []
    bids = [order for order in book if order.side == "bid"]
    asks = [order for order in book if order.side == "ask"]
    if lot.rule == "double":
        clearing = clear(_limits(bids), _limits(asks), lot.k)
    else:
        clearing = clear_shares(
            {order.id: order.amount for order in bids},
            {order.id: order.processors for order in asks},
        )
    by_id = {order.id: order for order in book}
    trades = []
    for number, trade in enumerate(clearing.trades, 1):
        bid, ask = by_id[trade.buyer], by_id[trade.owner]
        trades.append(
            ExchangeTrade(
                id=f"{bid.id}-{number}",
                lot=lot,
                bid=bid.id,
                ask=ask.id,
                buyer=bid.user,
                seller=ask.user,
                customer=bid.customer,
                service=ask.service,
                processors=trade.processors,
                amount=trade.amount,
            )
        )
    record = ClearingRecord(
        lot=lot,
        price=clearing.price,
        processors=sum(trade.processors for trade in trades),
        amount=sum(trade.amount for trade in trades),
        at=now,
    )
    return record, trades


def on_seller_step(
    trade: ExchangeTrade, step: SellerStep, now: float, *, agreement: str = "", reason: str = ""
) -> ExchangeTrade | Refusal:
    """
    Return a trade after its seller has confirmed, delivered or refused it.

    The same step again changes nothing. A step that comes after the trade's deadline is refused.
    """
    trade = on_time_passed(trade, now)
    match trade.state, step:
        case (("matched" | "confirmed"), "refused"):
            return replace(trade, state="undone", reason=reason or "the seller refused")
        case "undone", "refused":
            return trade
        case "matched", "confirmed":
            return replace(trade, state="confirmed")
        case (("confirmed" | "delivered"), "confirmed"):
            return trade
        case "confirmed", "delivered":
            if not agreement:
                return Refusal("expected the agreement's id", final=True)
            return replace(trade, state="delivered", agreement=agreement)
        case "delivered", "delivered" if trade.agreement == agreement:
            return trade
        case "matched", "delivered":
            return Refusal("is to be confirmed first", final=True)
    said = f"undone: {trade.reason}" if trade.state == "undone" else f"{trade.state} already"
    return Refusal(f"the trade is {said}", final=True)


def on_time_passed(trade: ExchangeTrade, now: float) -> ExchangeTrade:
    """Return a trade that is undone if its deadline is over."""
    if now < trade.deadline:
        return trade
    reason = NOT_CONFIRMED if trade.state == "matched" else NOT_DELIVERED
    return replace(trade, state="undone", reason=reason)


def _limits(orders: Sequence[ExchangeOrder]) -> list[LimitOrder]:
    return [LimitOrder(order.id, order.processors, order.amount) for order in orders]
