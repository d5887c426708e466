"""What a service says of its market: auctions of its processors."""

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
