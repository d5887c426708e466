"""Computes prices by an owner's pricing policy, and when they next change."""

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
"""Days: a weekly pattern shows within eight, also when a change of the clock hides one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceQuery:
    """
    Holds the facts on which a price depends.

    Parameters
    ----------
    processors
        How many. Positive.
    seconds
        For how long. Positive.
    start
        From when, seconds since the epoch.
    now
        When it is asked, seconds since the epoch.
    utilisation
        Share of the machine that is sold, 0 to 1.
    customer
        Who asks.
    groups
        The customer's.
    paid
        What the customer has paid this owner so far, micro-units.
    adjusted
        Where the factor of supply and demand stands; see :func:`adjusted`.

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
    Currency units per processor-second: the base times the factor of each rule.

    A job that runs on across the hours of a calendar rule pays the price at its
    start throughout, so that what it costs is known when it is agreed.
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
        Before; 1 at first.
    utilisation
        Of the period, 0 to 1.
    """
    return min(max(factor + rule.gain * (utilisation - rule.target), rule.least), rule.most)


def lead_times(pricing: Pricing) -> tuple[float, ...]:
    """Seconds ahead of its start from which a booking has another price, ascending."""
    rules = [rule for rule in pricing.rules if isinstance(rule, Advance)]
    return tuple(sorted({bound for rule in rules for bound, _ in rule.steps if bound > 0}))


def next_change(pricing: Pricing, now: float) -> float:
    """
    When a calendar rule next changes the price, seconds since the epoch; infinite for never.

    Changes of the clock count: where it is put forward over the beginning of some
    hours, they begin at that moment; where it is put back over it, they begin twice.
    """
    calendars = [rule for rule in pricing.rules if isinstance(rule, Calendar)]
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
    """Every moment after now, and some before, at which the rule may begin or end to apply."""
    zone = ZoneInfo(rule.zone)
    midnight = datetime.fromtimestamp(now, zone).replace(
        hour=0, minute=0, second=0, microsecond=0, tzinfo=None
    )
    for day in range(-1, _HORIZON):
        for second in (0, rule.begin, rule.end):
            local = midnight + timedelta(days=day, seconds=second)
            for fold in (0, 1):  # an hour that comes twice
                yield local.replace(tzinfo=zone, fold=fold).timestamp()
    whole = math.floor(now)
    for day in range(_HORIZON):
        begin, end = whole + day * DAY, whole + (day + 1) * DAY
        if _offset(zone, begin) != _offset(zone, end):
            yield float(_clock_change(zone, begin, end))


def _clock_change(zone: ZoneInfo, begin: int, end: int) -> int:
    """First second at which the zone's clock is as at the end."""
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
