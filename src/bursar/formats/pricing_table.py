"""Pricing rules as sites files write them, one table for each kind of rule."""

import re
from typing import Annotated, ClassVar

from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.quantities import Amount, Duration, Share, Use
from bursar.formats.units import at_field
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
    Rule,
)

Factor = Annotated[float, Meta(description="Factor on the price; 1 changes nothing.", ge=0)]


class PriceRuleTable(TomlTable, frozen=True, tag_field="kind"):
    """A rule that changes a site's unit price."""

    def __post_init__(self) -> None:
        try:
            self.rule()
        except InputError:
            raise
        except ValueError as error:
            # The model's message begins with the field, or names it.
            words = re.findall(r"\w+", str(error))
            field = next((word for word in words if word in self.__struct_fields__), "")
            raise InputError(str(error), where=field) from None

    def rule(self) -> Rule:
        """
        Return the rule of the pricing model.

        Raises
        ------
        ValueError
            When the values make no such rule.
        """
        raise NotImplementedError


class CalendarTable(PriceRuleTable, frozen=True, tag="calendar"):
    """A factor at some hours of some days."""

    noun: ClassVar[str] = "calendar prices"

    zone: Annotated[
        str, Meta(description='Time zone whose clock counts, such as "Australia/Melbourne".')
    ]
    factor: Factor
    days: Annotated[str, Meta(description='"Mon-Fri", "Sat,Sun", "Mon,Wed-Fri".')] = "Mon-Sun"
    hours: Annotated[
        str, Meta(description='"09:00-18:00"; "22:00-06:00" goes on into the next day.')
    ] = "00:00-24:00"

    def rule(self) -> Rule:
        days = at_field("days", parse_days, self.days)
        begin, end = at_field("hours", parse_hours, self.hours)
        return Calendar(zone=self.zone, days=days, begin=begin, end=end, factor=self.factor)


class DemandTable(PriceRuleTable, frozen=True, tag="demand"):
    """A factor by how much of the machine is sold."""

    noun: ClassVar[str] = "prices by demand"

    points: Annotated[
        list[tuple[Share, Factor]],
        Meta(description="Pairs of utilisation and factor, interpolated linearly."),
    ]

    def rule(self) -> Rule:
        return Demand(points=tuple(self.points))


class AdjustingTable(PriceRuleTable, frozen=True, tag="adjusting"):
    """A factor that moves with supply and demand."""

    noun: ClassVar[str] = "adjusting prices"

    target: Annotated[Share, Meta(description="Utilisation at which the factor stays.")]
    gain: Annotated[
        float, Meta(description="Change of the factor per whole machine of excess demand.", ge=0)
    ]
    least: Factor
    most: Factor
    every: Annotated[
        Duration,
        Meta(description="Time between two changes.", extra_json_schema={"exclusiveMinimum": 0}),
    ]

    def rule(self) -> Rule:
        return Adjusting(
            target=self.target, gain=self.gain, least=self.least, most=self.most, every=self.every
        )


class BulkTable(PriceRuleTable, frozen=True, tag="bulk"):
    """A factor by the size of the purchase."""

    noun: ClassVar[str] = "bulk prices"

    steps: Annotated[
        list[tuple[Use, Factor]], Meta(description="Pairs of the least use and its factor.")
    ]

    def rule(self) -> Rule:
        return Bulk(steps=tuple(self.steps))


class LoyaltyTable(PriceRuleTable, frozen=True, tag="loyalty"):
    """A factor by what the customer has paid so far."""

    noun: ClassVar[str] = "prices for loyalty"

    steps: Annotated[
        list[tuple[Amount, Factor]], Meta(description="Pairs of the least amount and its factor.")
    ]

    def rule(self) -> Rule:
        return Loyalty(
            # In whole micro-units, as the ledger keeps what a customer has paid.
            steps=tuple((to_micros(amount), factor) for (amount, _), factor in self.steps)
        )


class AdvanceTable(PriceRuleTable, frozen=True, tag="advance"):
    """A factor by how long ahead of its start a job is booked."""

    noun: ClassVar[str] = "prices for booking ahead"

    steps: Annotated[
        list[tuple[Duration, Factor]],
        Meta(description="Pairs of the least time ahead and its factor."),
    ]

    def rule(self) -> Rule:
        return Advance(steps=tuple(self.steps))


class GroupTable(PriceRuleTable, frozen=True, tag="group"):
    """A factor for some groups of customers."""

    noun: ClassVar[str] = "prices for groups"

    groups: Annotated[
        list[Annotated[str, Meta(min_length=1)]],
        Meta(description="Groups that get the price; one in common is enough."),
    ]
    factor: Factor

    def rule(self) -> Rule:
        return ForGroup(groups=frozenset(self.groups), factor=self.factor)


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

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)


def parse_days(value: str) -> frozenset[int]:
    """
    Return the days of the week, 0 for Monday, in ``"Mon-Fri"`` or ``"Sat,Sun"``.

    ``"Fri-Mon"`` goes over the end of the week.

    Raises
    ------
    InputError
        When the text names none.
    """
    expected = 'expected days such as "Mon-Fri" or "Sat,Sun"'
    days: set[int] = set()
    for part in value.split(","):
        words = [word.strip().lower() for word in part.split("-")]
        for word in words:
            if word not in _DAYS:
                raise InputError(expected, hint=spelling_hint(word, _DAYS))
        if len(words) > 2:
            raise InputError(expected)
        first, last = _DAYS.index(words[0]), _DAYS.index(words[-1])
        # Modulo a week, so that "Fri-Mon" goes over its end.
        days.update((first + i) % 7 for i in range((last - first) % 7 + 1))
    return frozenset(days)


def parse_hours(value: str) -> tuple[int, int]:
    """
    Return the seconds of the day in ``"09:00-18:00"``; 24:00 is the day's end.

    Raises
    ------
    InputError
        When the text names none.
    """
    expected = 'expected hours such as "09:00-18:00"'
    match = _HOURS.fullmatch(value.strip())
    if match is None:
        raise InputError(expected)
    begin, end = (int(match[i]) * 3600 + int(match[i + 1]) * 60 for i in (1, 3))
    minutes = max(int(match[2]), int(match[4]))
    if minutes > 59 or begin >= DAY or not 0 < end <= DAY or begin == end:
        raise InputError(f"{expected}, the first before 24:00, the second after 00:00")
    return begin, end
