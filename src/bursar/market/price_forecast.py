"""Prices that an owner would ask in the hours to come, by its rules and what is sold so far."""

import math

import msgspec

from bursar.market.agreement import DealTemplate, Terms
from bursar.market.pricing import unit_price
from bursar.market.trade_server import TradeServer
from bursar.model.money import Refusal

_HOUR = 3_600.0


class HourlyPrice(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an owner would ask for processors that begin at one time.

    Parameters
    ----------
    start
        Begin of the use, seconds since the epoch.
    unit_price
        Price of a quote that is taken at that time, currency units per processor-second; None: the
        owner would refuse.
    amount
        Total price of that quote, micro-units; None: the owner would refuse.
    booked
        Price of a quote that is taken now for a begin at that time, currency units per
        processor-second; None: the owner refuses.
    at_reserve
        Whether the rules come to less than the owner's reserve, which is asked in their place.
    reason
        Why the owner would refuse at that time; empty: it would sell.
    """

    start: float
    unit_price: float | None = None
    amount: int | None = None
    booked: float | None = None
    at_reserve: bool = False
    reason: str = ""


def forecast_prices(
    owner: TradeServer,
    customer: str,
    *,
    processors: int,
    seconds: float,
    since: float,
    count: int,
    now: float,
) -> list[HourlyPrice]:
    """
    Return what an owner would ask a customer at a time and at the full hours after that time.

    What is sold and set aside by now is known, as are the customer's payments and the factor of
    supply and demand; nothing is presumed to be sold or paid until then. The owner is not changed.

    Parameters
    ----------
    processors, seconds
        What is bought.
    since
        First begin, seconds since the epoch; not before ``now``.
    count
        Number of begins, at least 1.
    now
        Present time, seconds since the epoch.
    """
    first_hour = math.floor(since / _HOUR) + 1
    starts = [since, *(_HOUR * (first_hour + i) for i in range(count - 1))]
    present = owner.as_of(now)
    found = []
    for start in starts:
        wanted = DealTemplate(
            processors=processors,
            seconds=seconds,
            earliest=start,
            latest=start + seconds,
            currency=owner.currency,
        )
        then = owner.as_of(start)
        terms = _posted(then, customer, wanted, start)
        booked = _posted(present, customer, wanted, now)
        price = HourlyPrice(
            start=start, booked=booked.unit_price if isinstance(booked, Terms) else None
        )
        if isinstance(terms, Refusal):
            found.append(msgspec.structs.replace(price, reason=terms.reason))
            continue
        by_rules = unit_price(then.pricing, then.asked(customer, processors, seconds, start, start))
        found.append(
            msgspec.structs.replace(
                price,
                unit_price=terms.unit_price,
                amount=terms.amount,
                at_reserve=by_rules < terms.unit_price,
            )
        )
    return found


def _posted(owner: TradeServer, customer: str, wanted: DealTemplate, now: float) -> Terms | Refusal:
    if not owner.protocols:
        return Refusal("sells nothing", final=True)
    return owner.terms("", customer, wanted, now)
