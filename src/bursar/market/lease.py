"""Defines a lease: processors held at a site, and their cost."""

import math
from typing import Literal

import msgspec

from bursar.model.allocation import Allocation
from bursar.model.money import MICROS, DataPrices, Micros, rental_charge, to_micros

SettledBy = Literal["", "record", "bound"]
"""Source of a settled lease's times: the run's own clock (empty), the provider's record, or an
upper bound where no record is left."""


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Records processors that one site holds for the campaign, at a price agreed once.

    The record is written when a lease opens and again when it ends; it is enough,
    with the ledger's rows, to resume a run and to write its bill.

    Parameters
    ----------
    id
        Unique in a run: ``"lease-1"``.
    processors
        Number of processors held. Positive.
    unit_price
        Currency units per processor-second; None when unknown.
    fixed_price
        Currency units charged once; None when unknown.
    start
        When the lease began, or will begin, seconds since the epoch.
    until
        When its processors go back at the latest; None: when they are given back.
    end
        End of the lease; None while open.
    asked
        Whether its processors are asked for and not known to be there: ``start`` is then the
        moment of the request.
    unwatched
        Seconds for which its provider may hold, and charge, the processors after the last
        moment at which anybody could end them: 0 where they end with the run.
    settled_by
        Source of begin and end; empty: the run's own clock.
    credit
        Price of its processors that other runs had and paid for, micro-units. Less than 0 by a
        little where the lease was a little longer than by the run's own clock.
    charged
        What its provider charged for it in all, micro-units; None: what its time and its prices
        come to.
    data_prices
        Prices of what tasks bring to the processors and send back; None: that costs nothing.
    bytes_in, bytes_out
        What the attempts that have ended brought and sent back. Counted only where it has prices.
    """

    id: str
    site: str
    processors: int
    unit_price: float | None
    fixed_price: float | None
    currency: str = "SU"
    start: float
    until: float | None = None
    end: float | None = None
    asked: bool = False
    unwatched: float = 0.0
    settled_by: SettledBy = ""
    credit: Micros = 0
    charged: Micros | None = None
    data_prices: DataPrices | None = None
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def is_priced(self) -> bool:
        """Whether both prices are known, so that charges can be posted."""
        return self.unit_price is not None and self.fixed_price is not None

    @property
    def rate(self) -> float:
        """Currency units per second when every processor is paid; 0 when a price is unknown."""
        return self.processors * (self.unit_price or 0.0) if self.is_priced else 0.0

    @property
    def fixed(self) -> Micros:
        """The fixed charge; 0 when a price is unknown."""
        return to_micros(self.fixed_price or 0.0) if self.is_priced else 0

    def charge(self, processor_seconds: float) -> Micros:
        """
        Return the charge of the lease after so many paid processor-seconds.

        0 when a price is unknown.
        """
        if self.unit_price is None or self.fixed_price is None:
            return 0
        return rental_charge(processor_seconds, self.unit_price, self.fixed_price)

    def rectangle(self, seconds: float) -> Micros:
        """Return the charge of all its processors for some seconds, less the credit, and data."""
        time = max(self.fixed, self.charge(self.processors * seconds) - self.credit)
        return time + self.data

    def owed(self, moment: float) -> Micros:
        """Return the charge up to a moment, seconds since the epoch; 0 before the lease begins."""
        if self.asked or moment < self.start:
            return 0
        if self.charged is not None:
            return self.charged
        end = moment if self.until is None else min(moment, self.until)
        return self.rectangle(end - self.start)

    @property
    def data(self) -> Micros:
        """The charge of the data that were brought and sent back; 0 where that has no price."""
        prices = self.data_prices
        return 0 if prices is None else prices.charge(self.bytes_in, self.bytes_out)

    @property
    def carried(self) -> str:
        """The data in words, for the ledger."""
        return f"data: {self.bytes_in} bytes in, {self.bytes_out} out"

    def share(self, processor_seconds: float) -> Micros:
        """
        Return the part of the charge that tasks' processor-seconds bear, rounded down.

        What rounding leaves goes, with the idle time, to the lease's
        remainder, which makes a bill's items sum to its total.
        """
        if not self.is_priced:
            return 0
        return math.floor((self.unit_price or 0.0) * processor_seconds * MICROS)

    def processor_seconds_for(self, amount: Micros) -> float:
        """
        Return the processor-seconds that ``amount`` pays for, after the fixed charge.

        Infinite when they are free; negative when ``amount`` does not even cover the fixed charge.
        """
        if not self.is_priced or not self.unit_price:
            return math.inf if amount >= self.fixed else -math.inf
        return (amount - self.fixed) / (self.unit_price * MICROS)


def lease_of(
    allocation: Allocation,
    start: float,
    *,
    currency: str,
    until: float = math.inf,
    asked: bool = False,
    unwatched: float = 0.0,
    data_prices: DataPrices | None = None,
) -> Lease:
    """
    Return the lease by which an allocation is paid.

    An allocation whose processors are all paid by others has a lease that costs nothing.

    Parameters
    ----------
    start
        From when it is paid, seconds on the caller's clock.
    until
        Agreed end, seconds on the caller's clock; infinite: none.
    asked, unwatched, data_prices
        See :class:`Lease`.
    """
    return Lease(
        id=allocation.name,
        site=allocation.site,
        processors=allocation.paid or allocation.processors,
        unit_price=allocation.unit_price if allocation.paid else 0.0,
        fixed_price=allocation.fixed_price if allocation.paid else 0.0,
        currency=currency,
        start=start,
        until=None if asked or math.isinf(until) else until,
        asked=asked,
        unwatched=unwatched,
        data_prices=data_prices,
    )


def is_alike(one: Lease, other: Lease) -> bool:
    """Whether two leases are of the same processors at the same price, whatever their times."""
    return _terms(one) == _terms(other)


def _terms(lease: Lease) -> tuple[object, ...]:
    prices = (lease.unit_price, lease.fixed_price, lease.currency)
    return (lease.site, lease.processors, lease.unwatched, *prices)
