"""Computes prices by an owner's pricing policy, and the time of the next price change."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import assert_never
from zoneinfo import ZoneInfo

from bursar.market.agreement import LATEST
from bursar.model.money import Micros
from bursar.model.pricing import (
    DAY,
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Pricing,
    Rule,
)

_HORIZON = 16
"""Days looked ahead: weekly rules recur within 8; 16 allow for a clock change that hides one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuery:
    """
    Holds the facts on which a price depends.

    Parameters
    ----------
    processors
        Number of processors. Positive.
    seconds
        Duration. Positive.
    start
        Start of the use, seconds since the epoch.
    now
        Time of the question, seconds since the epoch.
    utilisation
        Share of the machine that is sold, 0 to 1.
    customer
        Name of the customer.
    groups
        Groups of the customer.
    paid
        Total of the customer's payments to this owner so far, micro-units.
    adjusted
        Present factor of supply and demand; see :func:`adjusted`.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    processors: int
    seconds: float
    start: float
    now: float
    utilisation: float = 0.0
    customer: str = ""
    groups: frozenset[str] = frozenset()
    paid: Micros = 0
    adjusted: float = 1.0

    def __post_init__(self) -> None:
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive, got {self.seconds}")
        for what, moment in (("start", self.start), ("now", self.now)):
            if not 0 <= moment <= LATEST:
                raise ValueError(f"{what} must be seconds since the epoch, got {moment}")
        if not 0 <= self.utilisation <= 1:
            raise ValueError(f"utilisation must be 0 to 1, got {self.utilisation}")
        if self.paid < 0:
            raise ValueError(f"paid must not be negative, got {self.paid}")
        if not 0 <= self.adjusted < math.inf:
            raise ValueError(f"adjusted must not be negative, got {self.adjusted}")


def unit_price(pricing: Pricing, asked: PriceQuery) -> float:
    """
    Return the price in currency units per processor-second.

    It is the policy's base price times the factor of each rule for the use that is asked about.

    A job pays the price at its start throughout, even across hours of a calendar rule, so
    that the cost of a job is known when the job is agreed on.
    """
    price = pricing.base
    for rule in pricing.rules:
        price *= factor(rule, asked)
    return price


def factor(rule: Rule, asked: PriceQuery) -> float:
    """Return the factor that one rule applies to the price."""
    match rule:
        case Calendar():
            return rule.factor if _applies(rule, asked.start) else 1.0
        case Demand():
            return _between(rule.points, asked.utilisation)
        case Adjusting():
            return min(max(asked.adjusted, rule.least), rule.most)
        case Bulk():
            return _step(rule.steps, asked.processors * asked.seconds)
        case Loyalty():
            return _step(rule.steps, asked.paid)
        case Advance():
            return _step(rule.steps, asked.start - asked.now)
        case ForGroup():
            return rule.factor if rule.groups & asked.groups else 1.0
    assert_never(rule)


def adjusted(rule: Adjusting, factor: float, utilisation: float) -> float:
    """
    Return the factor of supply and demand after one more period.

    Parameters
    ----------
    factor
        Factor before that period; 1 at first.
    utilisation
        Share of processors used in the period, 0 to 1.
    """
    return min(max(factor + rule.gain * (utilisation - rule.target), rule.least), rule.most)


def lead_times(pricing: Pricing) -> tuple[float, ...]:
    """Return the lead times, seconds, at which the price of a booking changes, ascending."""
    rules = [rule for rule in pricing.rules if isinstance(rule, Advance)]
    return tuple(sorted({bound for rule in rules for bound, _ in rule.steps if bound > 0}))


def next_change(pricing: Pricing, now: float) -> float:
    """
    Return when a calendar rule next changes the price, in epoch seconds; infinite for never.

    Changes of the clock count: where it is put forward over the beginning of some
    hours, they begin at that moment; where it is put back over it, they begin twice.
    """
    calendars = [rule for rule in pricing.rules if isinstance(rule, Calendar)]
    # Candidates are bounds of single rules; the product of the rules may stay the same at one.
    present = _calendar_factor(calendars, now)
    instants = {m for rule in calendars for m in _bounds(rule, now) if m > now}
    for moment in sorted(instants):
        if _calendar_factor(calendars, moment) != present:
            return moment
    return math.inf


def _calendar_factor(calendars: list[Calendar], moment: float) -> float:
    return math.prod(rule.factor for rule in calendars if _applies(rule, moment))


def _applies(rule: Calendar, moment: float) -> bool:
    local = datetime.fromtimestamp(moment, ZoneInfo(rule.zone))
    second = local.hour * 3600 + local.minute * 60 + local.second
    today, yesterday = local.weekday(), (local.weekday() - 1) % 7
    if rule.begin < rule.end:
        return today in rule.days and rule.begin <= second < rule.end
    return (today in rule.days and second >= rule.begin) or (
        yesterday in rule.days and second < rule.end
    )


def _bounds(rule: Calendar, now: float) -> Iterator[float]:
    """Yield times, some of them before now, at which the rule may begin or end to apply."""
    zone = ZoneInfo(rule.zone)
    midnight = datetime.fromtimestamp(now, zone).replace(
        hour=0, minute=0, second=0, microsecond=0, tzinfo=None
    )
    for day in range(-1, _HORIZON):
        for second in (0, rule.begin, rule.end):
            # Local times by the calendar, not midnight plus seconds: days of a clock change have 23
            # or 25 hours.
            local = midnight + timedelta(days=day, seconds=second)
            for fold in (0, 1):  # an hour that comes twice
                yield local.replace(tzinfo=zone, fold=fold).timestamp()
    whole = math.floor(now)
    for day in range(_HORIZON):
        begin, end = whole + day * DAY, whole + (day + 1) * DAY
        # The clock jumps somewhere in this day: hours it skips begin at the jump itself.
        if _offset(zone, begin) != _offset(zone, end):
            yield float(_clock_change(zone, begin, end))


def _clock_change(zone: ZoneInfo, begin: int, end: int) -> int:
    """Find by bisection the second at which the zone's clock changes, between two times."""
    after = _offset(zone, end)
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (begin, middle) if _offset(zone, middle) == after else (middle, end)
    return end


def _offset(zone: ZoneInfo, moment: int) -> timedelta | None:
    return datetime.fromtimestamp(moment, UTC).astimezone(zone).utcoffset()


def _step(steps: tuple[tuple[float, float], ...], value: float) -> float:
    reached = 1.0
    for bound, step in steps:
        if value < bound:
            break
        reached = step
    return reached


def _between(points: tuple[tuple[float, float], ...], value: float) -> float:
    if value <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if value <= right:
            return low + (high - low) * (value - left) / (right - left)
    return points[-1][1]
