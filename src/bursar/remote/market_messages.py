"""What a service says of its market: auctions, invoices, the owner's revenue."""

from typing import Literal

from bursar.remote.messages import Count, ResponseStruct


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
