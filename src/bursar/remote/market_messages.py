"""What a service says of its market: auctions, invoices, the owner's revenue, the exchange."""

from typing import Annotated, Literal

from msgspec import Meta

from bursar.market.agreement import LARGEST
from bursar.remote.messages import Count, Name, RequestStruct, ResponseStruct, Seconds


class LotInfo(ResponseStruct, frozen=True):
    """
    An auction of processors.

    Parameters
    ----------
    id
        The deal of its messages.
    rule
        ``"english"``, ``"dutch"``, ``"first-price"``, ``"vickrey"`` or ``"share"``.
    state
        ``"announced"`` before it opens, ``"open"``, then ``"sold"`` or ``"unsold"``.
    start
        When the lot begins, seconds since the epoch, as are ``opens`` and ``closes``.
    price
        Asked now for the lot or, once sold, paid, micro-units; None where bids are sealed.
    """

    id: str
    rule: str
    state: Literal["announced", "open", "sold", "unsold"]
    processors: Count
    seconds: float
    start: float
    opens: float
    closes: float
    currency: str
    price: int | None = None


class LotList(ResponseStruct, frozen=True):
    """Auctions that are held, were held lately, or come next."""

    auctions: list[LotInfo]


class CustomerRevenue(ResponseStruct, frozen=True):
    """
    What one user brought a service in a period.

    Parameters
    ----------
    agreements
        Number of agreements and of instances on shared processors that were charged.
    processor_seconds
        Delivered for what was charged.
    amount
        Charged less refunds, micro-units.
    penalty
        Owed beyond the refunds for what was not delivered, micro-units.
    """

    user: str
    agreements: Count
    processor_seconds: float
    amount: int
    penalty: int = 0


class RevenueInfo(ResponseStruct, frozen=True):
    """What a service earned in a period, by user; ``total`` is all amounts less all penalties."""

    owner: str
    currency: str
    customers: list[CustomerRevenue]
    total: int


class InvoiceLine(ResponseStruct, frozen=True):
    """What one agreement, or shared processors of one instance, came to."""

    what: str
    since: float
    until: float
    processor_seconds: float
    amount: int


class InvoiceInfo(ResponseStruct, frozen=True):
    """What the caller was charged, line by line; ``total`` is their sum."""

    user: str
    owner: str
    currency: str
    lines: list[InvoiceLine]
    total: int


# The exchange.

MOST_PROCESSORS = 10_000
"""Processors of one order, and so the most trades of an ask."""


class ClearingInfo(ResponseStruct, frozen=True):
    """
    What came of a clearing, as everybody is told.

    Parameters
    ----------
    closes, start
        When orders were cleared, and when the processors' time begins, seconds since the epoch.
    price
        Of one processor for ``seconds``, micro-units; None when nothing was traded, and for shares.
    processors, amount
        Sums of all trades.
    """

    rule: str
    closes: float
    start: float
    seconds: float
    price: int | None
    processors: Count
    amount: int


class ExchangeInfo(ResponseStruct, frozen=True):
    """
    What an exchange clears next, and what it cleared last.

    Parameters
    ----------
    rule
        ``"double"`` or ``"share"``.
    every
        Seconds between two clearings.
    closes
        When orders are cleared next, seconds since the epoch.
    start, seconds
        Time of the processors that are traded then.
    k
        Where in the interval of clearing prices the price of the double auction lies.
    earned
        What the caller was paid for delivered trades, micro-units.
    clearings
        The last ones, the latest first.
    """

    name: str
    currency: str
    rule: str
    every: float
    closes: float
    start: float
    seconds: float
    k: float
    earned: int
    clearings: list[ClearingInfo]


class NewOrder(RequestStruct, frozen=True):
    """
    A bid or an ask for the next clearing.

    Parameters
    ----------
    key
        The caller's name for the order: the same order with the same key is placed once.
    closes, start, seconds
        The lot that the exchange has announced: an order for another lot is refused.
    processors
        Most processors to trade; 0 for a bid for a share.
    amount
        Limit of the price of one processor for the lot, micro-units; of a bid for a share, what is
        paid for the share; of an offer to share, 0.
    customer
        Of a bid: the buyer's name at the services of sellers; empty: as here.
    service
        Of an ask: where the processors are, as buyers are told.
    """

    key: Name
    side: Literal["bid", "ask"]
    closes: float
    start: float
    seconds: float
    processors: Annotated[int, Meta(ge=0, le=MOST_PROCESSORS)] = 0
    amount: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    customer: Annotated[str, Meta(max_length=200)] = ""
    service: Annotated[str, Meta(max_length=500)] = ""


class OrderInfo(ResponseStruct, frozen=True):
    """
    An order of the caller's.

    Parameters
    ----------
    state
        ``"open"``, ``"withdrawn"`` or ``"cleared"``.
    traded
        Processors of its trades, those that were undone included.
    held
        Set aside for the order, and for its trades that are under way, micro-units.
    """

    id: str
    key: str
    side: str
    closes: float
    start: float
    seconds: float
    processors: Count
    amount: int
    currency: str
    state: str
    traded: Count
    held: int
    customer: str
    service: str


class OrderList(ResponseStruct, frozen=True):
    """The caller's orders, the latest last."""

    orders: list[OrderInfo]


class OrdersQuery(RequestStruct, frozen=True):
    """Select the caller's order of a key; empty: the last 1,000."""

    key: Annotated[str, Meta(max_length=200)] = ""


class TradesQuery(RequestStruct, frozen=True):
    """Select the trades of one of the caller's orders; empty: of the last 1,000."""

    order: Annotated[str, Meta(max_length=200)] = ""


class TradeInfo(ResponseStruct, frozen=True):
    """
    A trade of the caller's.

    Parameters
    ----------
    side, order
        The caller's side, and the caller's order.
    state
        ``"matched"``, ``"confirmed"``, ``"delivered"`` or ``"undone"``.
    seller
        User who sells.
    customer
        Who is to use the processors at the seller's service.
    service
        Where the processors are.
    agreement
        Id of the agreement there, once there is one.
    reason
        Why the trade was undone; empty: it was not.
    """

    id: str
    side: str
    order: str
    closes: float
    start: float
    seconds: float
    processors: Count
    amount: int
    currency: str
    state: str
    seller: str
    customer: str
    service: str
    agreement: str
    reason: str


class TradeList(ResponseStruct, frozen=True):
    """The caller's trades, the latest last."""

    trades: list[TradeInfo]


class SellerReport(RequestStruct, frozen=True):
    """
    What the seller of a trade does next.

    Parameters
    ----------
    agreement
        With ``"delivered"``: id of the agreement at the seller's service.
    reason
        With ``"refused"``: one line for the buyer.
    """

    step: Literal["confirmed", "delivered", "refused"]
    agreement: Annotated[str, Meta(max_length=200)] = ""
    reason: Annotated[str, Meta(max_length=500)] = ""


# Processors that an owner sets aside, and hands over to buyers who have paid elsewhere.


class NewReservation(RequestStruct, frozen=True):
    """
    Processors to be set aside for sale elsewhere.

    Parameters
    ----------
    deal
        The owner's name for it: the same name sets aside once.
    start
        Seconds since the epoch.
    """

    deal: Name
    processors: Annotated[int, Meta(ge=1)]
    start: float
    seconds: Seconds


class HandedPart(RequestStruct, frozen=True):
    """
    Processors for one customer, who has paid for them elsewhere.

    Parameters
    ----------
    deal
        Name of the sale, as the id of a trade: a customer gets the same agreement for the same one.
    amount
        What was paid, micro-units: credited to the customer here, and set aside for the agreement.
    """

    deal: Name
    customer: Name
    processors: Annotated[int, Meta(ge=1)]
    amount: Annotated[int, Meta(ge=0, le=LARGEST)]


class HandOver(RequestStruct, frozen=True):
    """Division of a reservation among customers; what is left over is free again."""

    parts: Annotated[list[HandedPart], Meta(max_length=MOST_PROCESSORS)]


class HandedAgreement(ResponseStruct, frozen=True):
    """The agreement of one part, or why there is none."""

    deal: str
    agreement: str
    reason: str = ""


class HandedList(ResponseStruct, frozen=True):
    """What came of each part, in the order asked."""

    parts: list[HandedAgreement]
