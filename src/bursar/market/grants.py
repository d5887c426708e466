"""
Grants that may be spent in a stated period only, and how fast they are spent.

A row of such a grant names its period where other rows name their agreement, as an ISO 8601
interval (``2026-10-01T00:00:00Z/2027-04-01T00:00:00Z``), so that the chain of hashes covers the
period. What a user spends comes from the grant that ends first, and from money without an end
last. What is left of a grant at its end goes back to the bank in a row of the kind ``lapse``.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bursar.model.money import Micros, Transfer

DAY = 86400.0
"""Seconds."""

WINDOW = 28.0
"""Days before now whose spending says how fast a grant is spent."""

_Z80 = 1.2815515655446004
"""Standard deviations from the mean within which 80 of 100 values of a normal variable lie."""

_OPEN = ".."


@dataclass(frozen=True, slots=True)
class GrantPeriod:
    """
    The time in which a grant may be spent.

    Parameters
    ----------
    begin, end
        From when, and until before when, seconds since the epoch, whole; infinite: open.

    Raises
    ------
    ValueError
        When the end is not after the begin, or a time is not whole seconds.
    """

    begin: float = -math.inf
    end: float = math.inf

    def __post_init__(self) -> None:
        if not self.begin < self.end:
            raise ValueError("a grant must end after it begins")
        if any(math.isfinite(at) and at != int(at) for at in (self.begin, self.end)):
            raise ValueError("a grant begins and ends at whole seconds")

    def __str__(self) -> str:
        return f"{_iso(self.begin)}/{_iso(self.end)}"

    def __contains__(self, now: float) -> bool:
        return self.begin <= now < self.end


def parse_grant_period(text: str) -> GrantPeriod | None:
    """Return the period that a grant's row names as an ISO 8601 interval; None: it names none."""
    begin, slash, end = text.partition("/")
    try:
        period = GrantPeriod(
            -math.inf if begin == _OPEN else _moment(begin),
            math.inf if end == _OPEN else _moment(end),
        )
    except ValueError:
        return None
    # One way of writing only, so that a repeated request names the same period.
    return period if slash and str(period) == text else None


@dataclass(slots=True, eq=False)
class DatedGrant:
    """
    One grant with a period.

    Parameters
    ----------
    key
        Key of the row that made the grant.
    memo
        The row's memo.
    granted
        Micro-units.
    left
        Part that is neither held nor paid nor lapsed, micro-units.
    unpaid
        Part that is neither paid nor lapsed, so with what is held, micro-units.
    lapsed
        Part that went back to the bank, micro-units.
    """

    key: str
    memo: str
    period: GrantPeriod
    granted: Micros
    left: Micros
    unpaid: Micros
    lapsed: Micros = 0


Part = tuple[DatedGrant | None, Micros]
"""An amount and the grant that it comes from; None: money without an end."""


@dataclass(slots=True)
class _AgreementParts:
    """Where an agreement's money came from: what is held and what is paid, in the order drawn."""

    held: list[Part] = field(default_factory=list)
    paid: list[Part] = field(default_factory=list)


class DatedGrants:
    """
    The grants with a period of one user, and what was drawn from each.

    Each row that moves the user's money is told once, in the ledger's order, from the first grant
    with a period on.
    """

    def __init__(self) -> None:
        self._grants: list[DatedGrant] = []
        self._parts: dict[str, _AgreementParts] = {}

    @property
    def grants(self) -> tuple[DatedGrant, ...]:
        """Grants in the order in which they are spent: the one that ends first, first."""
        return tuple(self._grants)

    @property
    def left(self) -> Micros:
        """Sum that is left of all grants, also of those that may not be spent now."""
        return sum(grant.left for grant in self._grants)

    def usable(self, now: float) -> Micros:
        """Return the sum that is left of the grants that may be spent at a moment."""
        return sum(grant.left for grant in self._grants if now in grant.period)

    def due(self, now: float) -> list[DatedGrant]:
        """Return the grants that have ended and of which something is left."""
        return [grant for grant in self._grants if grant.period.end <= now and grant.left]

    def find(self, key: str) -> DatedGrant | None:
        """Return the grant that a row's key made; None: there is none."""
        return next((grant for grant in self._grants if grant.key == key), None)

    def follow(self, row: Transfer) -> None:
        """Count a row that moves money of the user, or of an agreement that the user pays."""
        amount = row.amount
        if row.kind == "hold":
            held = self._parts_of(row.agreement).held
            for grant in self._grants:
                taken = min(amount, grant.left) if row.time in grant.period else 0
                if taken:
                    grant.left -= taken
                    held.append((grant, taken))
                    amount -= taken
            if amount:
                held.append((None, amount))
        elif row.kind == "settle":  # what was drawn first is paid first
            parts = self._parts_of(row.agreement)
            for source, taken in _taken(parts.held, amount, first=True):
                if source is not None:
                    source.unpaid -= taken
                parts.paid.append((source, taken))
        elif row.kind == "release":
            for source, taken in _taken(self._parts_of(row.agreement).held, amount, first=False):
                if source is not None:
                    source.left += taken
        elif row.kind == "refund":
            for source, taken in _taken(self._parts_of(row.agreement).paid, amount, first=False):
                if source is not None:
                    source.left += taken
                    source.unpaid += taken
        elif row.kind == "lapse":
            found = self.find(row.agreement)
            assert found is not None, row
            found.left -= amount
            found.unpaid -= amount
            found.lapsed += amount
        elif row.kind == "grant" and (period := parse_grant_period(row.agreement)) is not None:
            self._grants.append(DatedGrant(row.key, row.memo, period, amount, amount, amount))
            self._grants.sort(key=lambda grant: (grant.period.end, grant.period.begin))

    def _parts_of(self, agreement: str) -> "_AgreementParts":
        return self._parts.setdefault(agreement, _AgreementParts())


def _taken(parts: list[Part], amount: Micros, *, first: bool) -> Iterator[Part]:
    """
    Take an amount off one end of a list of parts, and yield what was taken.

    What the list does not hold was drawn before the user had a grant with a period, and so from
    money without an end.
    """
    while amount and parts:
        index = 0 if first else -1
        grant, there = parts[index]
        taken = min(amount, there)
        if taken == there:
            del parts[index]
        else:
            parts[index] = grant, there - taken
        amount -= taken
        yield grant, taken
    if amount:
        yield None, amount


# How fast grants are spent, and what will be left of them.


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingRate:
    """
    Spending of a user on the days before a moment.

    Parameters
    ----------
    days
        Length of the time that was looked at, days; 0: nothing is known.
    mean
        Micro-units a day.
    deviation
        Standard deviation of whole days, micro-units; None: less than two whole days.
    """

    days: float
    mean: float
    deviation: float | None

    def spent(self, days: float) -> tuple[float, float, float]:
        """
        Return what will be spent in some days: the middle and the bounds of 80 of 100 cases.

        Days are taken as independent of each other, and their sum as normal: spending that comes
        in campaigns of weeks varies more than the bounds say.
        """
        middle = self.mean * days
        if self.deviation is None:
            return middle, middle, middle
        width = _Z80 * self.deviation * math.sqrt(days)
        return middle, max(0.0, middle - width), middle + width


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDown:
    """
    One grant with what was spent of it, and a forecast of what will be left at its end.

    Parameters
    ----------
    now
        Moment of the forecast, seconds since the epoch.
    points
        What was neither paid nor lapsed, micro-units, from each moment on; the first is the grant.
    rate
        Spending of the user.
    unspent
        What will not be spent at the end, micro-units: the middle, and the bounds of 80 of 100
        cases, the lower one first; None: the grant has no end or has ended, or nothing is known.
    begins, used_up
        When spending of the grant begins and when nothing is left of the grant, in the middle
        case, seconds since the epoch; None: not before its end.
    """

    grant: DatedGrant
    now: float
    points: tuple[tuple[float, Micros], ...]
    rate: SpendingRate
    unspent: tuple[Micros, Micros, Micros] | None = None
    begins: float | None = None
    used_up: float | None = None

    @property
    def spent(self) -> Micros:
        """Part of the grant that was paid and not refunded, micro-units."""
        return self.grant.granted - self.grant.unpaid - self.grant.lapsed

    @property
    def held(self) -> Micros:
        """Part of the grant that is set aside, micro-units."""
        return self.grant.unpaid - self.grant.left

    @property
    def elapsed(self) -> float | None:
        """Share of the grant's period that is over, 0 to 1; None: the period is open."""
        period = self.grant.period
        if not (math.isfinite(period.begin) and math.isfinite(period.end)):
            return None
        return min(1.0, max(0.0, (self.now - period.begin) / (period.end - period.begin)))


def measure_rate(
    payments: Iterable[tuple[float, Micros]], since: float, now: float
) -> SpendingRate:
    """
    Measure how much is spent a day.

    Parameters
    ----------
    payments
        Moments, seconds since the epoch, and what was paid (refunds: negative), micro-units.
    since
        First moment that counts; the last :data:`WINDOW` days before ``now`` are enough.
    """
    since = max(since, now - WINDOW * DAY)
    days = (now - since) / DAY
    if not days > 0:
        return SpendingRate(days=0.0, mean=0.0, deviation=None)
    whole = int(days)
    by_day = [0] * whole
    total = 0
    for at, amount in payments:
        if since <= at <= now:
            total += amount
            day = int((now - at) / DAY)  # counted back from now, so that the last day is whole
            if day < whole:
                by_day[day] += amount
    deviation = statistics.stdev(by_day) if whole > 1 else None
    return SpendingRate(days=days, mean=total / days, deviation=deviation)


def forecast(
    grants: Sequence[DatedGrant],
    points: Sequence[Sequence[tuple[float, Micros]]],
    rate: SpendingRate,
    now: float,
) -> list[BurnDown]:
    """
    Forecast what will be left of each grant at its end.

    Grants that end earlier, and have begun, are spent first.

    Parameters
    ----------
    grants
        Grants of one user, the one that ends first, first.
    points
        For each grant, what was unpaid from each moment on.
    """
    found = []
    before = 0  # what grants that end earlier still have to give
    for grant, line in zip(grants, points, strict=True):
        period = grant.period
        unspent: tuple[Micros, Micros, Micros] | None = None
        begins = used_up = None
        if now < period.end and rate.days:
            begin = max(now, period.begin)
            if math.isfinite(period.end):
                # What ends earlier is spent first, as far as it is not spent before this begins.
                middle, least, most = (
                    after - max(0.0, before - until)
                    for after, until in zip(
                        rate.spent((period.end - begin) / DAY),
                        rate.spent((begin - now) / DAY),
                        strict=True,
                    )
                )
                unspent = _rest(grant, middle), _rest(grant, most), _rest(grant, least)
            if rate.mean > 0:
                first = max(begin, now + before / rate.mean * DAY)
                last = first + grant.unpaid / rate.mean * DAY
                begins = first if first < period.end else None
                used_up = last if last < period.end else None
        if now in period:
            before += grant.unpaid
        found.append(
            BurnDown(
                grant=grant,
                now=now,
                points=tuple(line),
                rate=rate,
                unspent=unspent,
                begins=begins,
                used_up=used_up,
            )
        )
    return found


def _rest(grant: DatedGrant, spent: float) -> Micros:
    return int(max(0.0, grant.unpaid - max(0.0, spent)))


def _iso(moment: float) -> str:
    if not math.isfinite(moment):
        return _OPEN
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
