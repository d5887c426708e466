"""An owner's processors that are sold or set aside, and the prices of the others."""

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import assert_never
from zoneinfo import ZoneInfo

from bursar.market.agreement import LATEST
from bursar.model.money import (
    DAY,
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Micros,
    Pricing,
    Rule,
)
from bursar.model.slot import ResourceProfile

# Computes prices by an owner's pricing policy, and the time of the next price change.

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


# Tracks which of an owner's processors are sold or set aside, and when.


@dataclass(frozen=True, slots=True)
class Commitment:
    """
    Processors that an owner has promised for a time.

    Parameters
    ----------
    processors
        Number of processors, at least 1.
    start, end
        Seconds since the epoch.
    until
        When an offer lapses, seconds since the epoch; infinite once sold.
    """

    processors: int
    start: float
    end: float
    until: float = math.inf


class CommittedCapacity:
    """
    Never commits more processors than there are.

    Parameters
    ----------
    processors
        Number of processors of the owner, at least 1.
    """

    def __init__(self, processors: int) -> None:
        if processors < 1:
            raise ValueError(f"processors must be at least 1, got {processors}")
        self.processors = processors
        self._commitments: dict[Hashable, Commitment] = {}
        self._free = ResourceProfile(processors)

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        """Commitments that have not been forgotten."""
        return tuple(self._commitments.values())

    @property
    def by_key(self) -> Mapping[Hashable, Commitment]:
        """Commitments that have not been forgotten, by key."""
        return MappingProxyType(self._commitments)

    def set_commitments(self, commitments: Mapping[Hashable, Commitment]) -> None:
        """Replace all commitments, without a check against the number of processors."""
        self._commitments = dict(commitments)
        self._free = ResourceProfile.summed(
            ((c.start, c.end, -c.processors) for c in commitments.values()), self.processors
        )

    def forget(self, now: float, begun: float) -> None:
        """
        Drop commitments that have expired or that ended before the earliest start still on sale.

        Parameters
        ----------
        begun
            Earliest start that is still sold, which may have passed already.
        """
        for key, commitment in list(self._commitments.items()):
            if commitment.end <= begun or commitment.until <= now:
                self.release(key)

    def free(self, start: float, end: float) -> int:
        """Return the processors that are free from start to end throughout."""
        return self._free.least_free(start, end)

    def used(self, moment: float) -> int:
        """Return the processors that are committed at a moment."""
        return self.processors - self.free(moment, moment)

    def utilisation(self, start: float, end: float) -> float:
        """Return the share of processors committed from start to end, on average."""
        taken = 0.0 - self._free.integral(start, end, above=self.processors)
        return min(1.0, taken / (self.processors * (end - start)))

    def first_fit(
        self, processors: int, seconds: float, earliest: float, latest: float
    ) -> float | None:
        """
        Return the earliest start with so many processors free for so long; None for none.

        Parameters
        ----------
        earliest, latest
            Bounds of the start, seconds since the epoch.
        """
        start = self._free.earliest_start(earliest, seconds, processors)
        return start if start <= latest and start < math.inf else None

    def commit(
        self, key: Hashable, processors: int, start: float, end: float, until: float = math.inf
    ) -> bool:
        """Commit free processors under an unused key; False, changing nothing, if not free."""
        if key in self._commitments or processors > self.free(start, end):
            return False
        self._set(key, Commitment(processors, start, end, until))
        return True

    def restore(self, key: Hashable, processors: int, start: float, end: float) -> None:
        """Commit processors promised earlier, without checking that enough are free."""
        self.release(key)
        self._set(key, Commitment(processors, start, end))

    def shorten(self, key: Hashable, end: float) -> None:
        """End the commitment of a key, if there is one, at ``end`` at the latest."""
        known = self.release(key)
        if known is not None and end > known.start:
            self._set(key, replace(known, end=min(known.end, end)))

    def release(self, key: Hashable) -> Commitment | None:
        """Free the processors committed under a key, and return the commitment, if any."""
        known = self._commitments.pop(key, None)
        if known is not None:
            self._free.change(known.start, known.end, known.processors)
        return known

    def _set(self, key: Hashable, made: Commitment) -> None:
        """Commit processors under an unused key."""
        self._commitments[key] = made
        self._free.change(made.start, made.end, -made.processors)


# Memory of an owner.

_PERIODS = 1_000
"""Periods of supply and demand that are made up for after a silence, at most."""


@dataclass(frozen=True, slots=True)
class AdjustedFactor:
    """
    The factor that supply and demand have made of an owner's price.

    Parameters
    ----------
    factor
        Factor on the price.
    period
        Number of the last period taken in; None before the first.
    """

    factor: float = 1.0
    period: int | None = None


def adjusted_until(
    rule: Adjusting, before: AdjustedFactor, now: float, capacity: CommittedCapacity
) -> AdjustedFactor:
    """
    Return the factor of supply and demand after the periods that have passed until a time.

    Parameters
    ----------
    now
        Seconds since the epoch.
    capacity
        What is sold: a period counts with the use at its end, by the commitments known now.
    """
    current = math.floor(now / rule.every)
    # A clock that is set far ahead must not cost a loop over millions of periods.
    known, factor = before.period, before.factor
    begin = current if known is None else max(known, current - _PERIODS)
    for period in range(begin, current):
        used = capacity.used((period + 1) * rule.every)
        factor = adjusted(rule, factor, used / capacity.processors)
    # Never back: when the clock is put back, a period must not move the price a second time.
    return AdjustedFactor(factor, current if known is None else max(known, current))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerState:
    """
    Memory of an owner, apart from conversations that are going on.

    Parameters
    ----------
    factor
        Factor to which supply and demand have brought the price.
    period
        Number of the last period of supply and demand taken in; None before the first.
    paid
        Micro-units that each customer has paid.
    ours
        Processors committed to the customer at hand, by agreement.
    others
        Processors committed to all other customers.
    """

    factor: float = 1.0
    period: int | None = None
    paid: Mapping[str, Micros] = field(default_factory=dict)
    ours: Mapping[str, Commitment] = field(default_factory=dict)
    others: tuple[Commitment, ...] = ()
