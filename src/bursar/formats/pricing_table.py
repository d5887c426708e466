"""Pricing rules as sites files write them, and the pricing that is meant."""

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from bursar.formats.slot_table import at_field
from bursar.formats.tables import Amount, Duration
from bursar.formats.toml_reading import decode_table, joined
from bursar.formats.units import parse_amount, parse_duration, parse_share
from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import to_micros
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

Factor = Annotated[float, Meta(description="On the price; 1 changes nothing.", ge=0)]
Share = Annotated[str | int | float, Meta(description='A share: 0.8 or "80%".')]
Use = Annotated[str | int | float, Meta(description='Use: processor-seconds, or "100 core-hours".')]


class CalendarTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="calendar"
):
    """At some hours of some days."""

    zone: Annotated[str, Meta(description='Whose clock counts, as "Australia/Melbourne".')]
    factor: Factor
    days: Annotated[str, Meta(description='"Mon-Fri", "Sat,Sun", "Mon,Wed-Fri".')] = "Mon-Sun"
    hours: Annotated[
        str, Meta(description='"09:00-18:00"; "22:00-06:00" goes on into the next day.')
    ] = "00:00-24:00"


class DemandTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="demand"
):
    """By how much of the machine is sold."""

    points: Annotated[
        list[tuple[Share, Factor]], Meta(description="Utilisation and factor; straight between.")
    ]


class AdjustingTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="adjusting"
):
    """Moves with supply and demand."""

    target: Annotated[Share, Meta(description="Utilisation at which the factor stays.")]
    gain: Annotated[float, Meta(description="Moved by for a whole machine too much.", ge=0)]
    least: Factor
    most: Factor
    every: Annotated[Duration, Meta(description="Between two moves.")]


class BulkTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="bulk"
):
    """By the size of the purchase."""

    steps: Annotated[list[tuple[Use, Factor]], Meta(description="From which use, which factor.")]


class LoyaltyTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="loyalty"
):
    """By what the customer has paid so far."""

    steps: Annotated[
        list[tuple[Amount, Factor]], Meta(description="From which amount, which factor.")
    ]


class AdvanceTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="advance"
):
    """By how long ahead of its start a job is booked."""

    steps: Annotated[
        list[tuple[Duration, Factor]], Meta(description="From how long ahead, which factor.")
    ]


class GroupTable(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="group"
):
    """For some groups of customers."""

    groups: Annotated[
        list[Annotated[str, Meta(min_length=1)]], Meta(description="One in common is enough.")
    ]
    factor: Factor


PriceTable = (
    CalendarTable
    | DemandTable
    | AdjustingTable
    | BulkTable
    | LoyaltyTable
    | AdvanceTable
    | GroupTable
)
"""One ``[[site.NAME.price]]`` table, told apart by its ``kind``."""

N = TypeVar("N", int, float)

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)
_USE = re.compile(r"(.*?)\s*(?:core|processor|cpu)-(second|minute|hour|day)s?", re.ASCII | re.I)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": DAY}


def pricing_of(tables: list[Any], base: float, place: str) -> Pricing:
    """
    The pricing that a site's rules mean.

    Parameters
    ----------
    tables
        As the document holds them.
    base
        Currency units per processor-second.
    place
        Path of the list, as ``site.uni.price``.

    Raises
    ------
    InputError
        At the field.
    """
    rules = []
    for i, raw in enumerate(tables):
        here = joined(place, i)
        if not isinstance(raw, dict):
            raise InputError("expected a table", where=here)
        kind = raw.get("kind")
        if not isinstance(kind, str) or kind not in _READERS:
            hint = spelling_hint(kind, _READERS) if isinstance(kind, str) else None
            known = ", ".join(f'"{word}"' for word in _READERS)
            raise InputError(f"expected one of {known}", where=joined(here, "kind"), hint=hint)
        rules.append(_READERS[kind]({k: v for k, v in raw.items() if k != "kind"}, here))
    try:
        return Pricing(base, tuple(rules))
    except ValueError as error:
        raise InputError(str(error), where=place) from None


def parse_days(value: object) -> frozenset[int]:
    """
    Days of the week, 0 for Monday, in ``"Mon-Fri"`` or ``"Sat,Sun"``; ``"Fri-Mon"`` goes round.

    Raises
    ------
    InputError
        When it names none.
    """
    expected = 'expected days such as "Mon-Fri" or "Sat,Sun"'
    if not isinstance(value, str):
        raise InputError(expected)
    days: set[int] = set()
    for part in value.split(","):
        words = [word.strip().lower() for word in part.split("-")]
        for word in words:
            if word not in _DAYS:
                raise InputError(expected, hint=spelling_hint(word, _DAYS))
        if len(words) > 2:
            raise InputError(expected)
        first, last = _DAYS.index(words[0]), _DAYS.index(words[-1])
        days.update((first + i) % 7 for i in range((last - first) % 7 + 1))
    return frozenset(days)


def parse_hours(value: object) -> tuple[int, int]:
    """
    Seconds of the day in ``"09:00-18:00"``; 24:00 is the day's end.

    Raises
    ------
    InputError
        When it is none.
    """
    expected = 'expected hours such as "09:00-18:00"'
    match = _HOURS.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InputError(expected)
    begin, end = (int(match[i]) * 3600 + int(match[i + 1]) * 60 for i in (1, 3))
    minutes = max(int(match[2]), int(match[4]))
    if minutes > 59 or begin >= DAY or not 0 < end <= DAY or begin == end:
        raise InputError(f"{expected}, the first before 24:00, the second after 00:00")
    return begin, end


def parse_use(value: object) -> float:
    """
    Processor-seconds in ``"100 core-hours"`` or ``360000``.

    Raises
    ------
    InputError
        When it is none, negative or not finite.
    """
    expected = 'expected use such as "100 core-hours", or processor-seconds'
    unit = 1
    if isinstance(value, str):
        match = _USE.fullmatch(value.strip())
        if match is None:
            raise InputError(expected)
        value, unit = match[1], _SECONDS[match[2].lower()]
    try:
        number, currency = parse_amount(value)
    except InputError:
        raise InputError(expected) from None
    if currency is not None:
        raise InputError(expected)
    return number * unit


def _pairs(
    name: str, parse: Callable[[object], N], pairs: list[tuple[Any, float]]
) -> tuple[tuple[N, float], ...]:
    return tuple(
        (at_field(f"{name}[{i}]", parse, bound), factor) for i, (bound, factor) in enumerate(pairs)
    )


def _parse_micros(value: object) -> int:
    amount, _ = parse_amount(value)
    return to_micros(amount)


def _parse_period(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise InputError("must be positive")
    return seconds


def _built(make: Callable[[], Rule], place: str) -> Rule:
    try:
        return make()
    except InputError as error:
        where = f"{place}.{error.where}" if error.where else place
        raise InputError(error.message, where=where, hint=error.hint) from None
    except ValueError as error:
        # The model's message begins with the field.
        field = str(error).split(" ", 1)[0]
        known = field in ("points", "steps", "factor", "target", "gain", "every", "groups")
        raise InputError(str(error), where=joined(place, field) if known else place) from None


def _calendar(raw: object, place: str) -> Rule:
    table = decode_table(raw, CalendarTable, place)
    return _built(lambda: _calendar_rule(table), place)


def _calendar_rule(table: CalendarTable) -> Rule:
    days = at_field("days", parse_days, table.days)
    begin, end = at_field("hours", parse_hours, table.hours)
    try:
        return Calendar(zone=table.zone, days=days, begin=begin, end=end, factor=table.factor)
    except ValueError as error:
        field = "zone" if "zone" in str(error) else "factor"
        raise InputError(str(error), where=field) from None


def _demand(raw: object, place: str) -> Rule:
    table = decode_table(raw, DemandTable, place)
    return _built(lambda: Demand(points=_pairs("points", parse_share, table.points)), place)


def _adjusting(raw: object, place: str) -> Rule:
    table = decode_table(raw, AdjustingTable, place)
    return _built(
        lambda: Adjusting(
            target=at_field("target", parse_share, table.target),
            gain=table.gain,
            least=table.least,
            most=table.most,
            every=at_field("every", _parse_period, table.every),
        ),
        place,
    )


def _bulk(raw: object, place: str) -> Rule:
    table = decode_table(raw, BulkTable, place)
    return _built(lambda: Bulk(steps=_pairs("steps", parse_use, table.steps)), place)


def _loyalty(raw: object, place: str) -> Rule:
    table = decode_table(raw, LoyaltyTable, place)
    return _built(lambda: Loyalty(steps=_pairs("steps", _parse_micros, table.steps)), place)


def _advance(raw: object, place: str) -> Rule:
    table = decode_table(raw, AdvanceTable, place)
    return _built(lambda: Advance(steps=_pairs("steps", parse_duration, table.steps)), place)


def _group(raw: object, place: str) -> Rule:
    table = decode_table(raw, GroupTable, place)
    return _built(lambda: ForGroup(groups=frozenset(table.groups), factor=table.factor), place)


_READERS: dict[str, Callable[[object, str], Rule]] = {
    "calendar": _calendar,
    "demand": _demand,
    "adjusting": _adjusting,
    "bulk": _bulk,
    "loyalty": _loyalty,
    "advance": _advance,
    "group": _group,
}
