"""What sites files say of an offer: slots, as tables or as rows of CSV files, and pricing rules."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import read_text
from bursar.formats.quantities import Amount, Duration, Price, Schema, Share, Use
from bursar.formats.units import at_field
from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import (
    DAY,
    Adjusting,
    Advance,
    Bulk,
    Calendar,
    Demand,
    ForGroup,
    Loyalty,
    Rule,
    to_micros,
)
from bursar.model.slot import Slot

# Tables of comma-separated values: a heading, and one thing in a row.

T = TypeVar("T")


def read_rows(
    path: Path,
    what: str,
    check_heading: Callable[[list[str]], None],
    read_row: Callable[[dict[str, str], int], T],
) -> list[T]:
    """
    Read the rows of a table; blank lines are passed over.

    Parameters
    ----------
    what
        Noun for the rows in error messages, such as "slots".
    check_heading
        Function that refuses unknown or missing columns.
    read_row
        Function of a row's cells, by column name, and line number that returns the row's value.

    Raises
    ------
    InputError
        Error of ``check_heading`` or ``read_row``, with the file and the line.
    """
    text = read_text(path)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError("holds the character NUL", where=f"{path}:{line}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    filled = ([cell.strip() for cell in cells] for cells in reader if any(map(str.strip, cells)))
    try:
        heading = next(filled, [])
        check_heading(heading)
        rows = [read_row(_by_column(heading, cells), reader.line_num) for cells in filled]
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{path}:{reader.line_num}") from None
    except InputError as error:
        raise error.within(f"{path}:{max(reader.line_num, 1)}") from None
    if not rows:
        raise InputError(f"has no {what} below its heading", where=str(path))
    return rows


def _by_column(heading: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(heading):
        raise InputError(f"has {len(cells)} cells, expected {len(heading)} as in the heading")
    return dict(zip(heading, cells, strict=True))


def short(text: str) -> str:
    """Shorten a cell for an error message: printable, and of bearable length."""
    return "".join(c if c.isprintable() else "?" for c in text)[:60]


# Slots in files: tables of a sites file, or rows of a CSV table.

MOST_PROCESSORS = 10**9
"""Largest number of processors of a site or slot: sums of them are counted in 64 bits."""


@dataclass(frozen=True, slots=True)
class SlotPrices:
    """
    The prices of a slot or a site.

    Parameters
    ----------
    unit
        Currency units per processor-second; None when unknown.
    fixed
        Currency units for each slot bought.
    currencies
        Currencies that the prices name.
    """

    unit: float | None = None
    fixed: float = 0.0
    currencies: tuple[str, ...] = ()


def prices_of(unit: Price | None, fixed: Amount | None, default: SlotPrices) -> SlotPrices:
    """
    Return the prices that a table gives.

    Parameters
    ----------
    default
        Prices where the table gives none.
    """
    named = [pair[1] for pair in (unit, fixed) if pair is not None and pair[1]]
    return SlotPrices(
        default.unit if unit is None else unit[0],
        default.fixed if fixed is None else fixed[0],
        tuple(dict.fromkeys(named)),
    )


class SlotTable(TomlTable, frozen=True):
    """Processors that a site offers for one interval."""

    schema_rules: ClassVar[Schema] = {
        "if": {"required": ["leased"], "properties": {"leased": {"const": True}}},
        "then": {"properties": {"divisible": {"const": True}}},
    }

    start: Annotated[Duration, Meta(description="Start, counted from the campaign's start.")]
    duration: Annotated[
        Duration, Meta(description="Duration; not 0.", extra_json_schema={"exclusiveMinimum": 0})
    ]
    processors: Annotated[int, Meta(description="Number of processors.", ge=1, le=MOST_PROCESSORS)]
    unit_price: Annotated[
        Price | None,
        Meta(
            description='Price of use: "0.05 EUR/core-hour", or a number per processor-second; '
            "default: the site's."
        ),
    ] = None
    fixed_price: Annotated[
        Amount | None, Meta(description='Price charged once, 2 or "2 EUR"; default: the site\'s.')
    ] = None
    divisible: Annotated[
        bool | None,
        Meta(
            description="Whether a part may be bought; otherwise the slot is paid whole. Default: "
            "true for leased slots only."
        ),
    ] = None
    extensible: Annotated[
        bool, Meta(description="Whether the slot may be used, and is paid, past its end.")
    ] = False
    leased: Annotated[
        bool,
        Meta(
            description="Whether the slot is paid only from its start to its last use, for the "
            "most processors in use at once."
        ),
    ] = False

    def __post_init__(self) -> None:
        # In floating point: a duration that vanishes beside a late start makes an empty slot, too.
        if not self.start + self.duration > self.start:
            raise InputError(f"must be positive, got {self.duration:g} s", where="duration")
        if self.leased and self.divisible is False:
            raise InputError("a leased slot is divisible", where="divisible")

    def slot(self, site: str, prices: SlotPrices) -> tuple[Slot, tuple[str, ...]]:
        """
        Return the slot, and the currencies named in the prices.

        Parameters
        ----------
        prices
            The site's prices, for what the table leaves out.
        """
        own = prices_of(self.unit_price, self.fixed_price, prices)
        slot = Slot(
            site=site,
            start=self.start,
            duration=self.duration,
            processors=self.processors,
            unit_price=own.unit,
            fixed_price=own.fixed,
            divisible=self.leased if self.divisible is None else self.divisible,
            extensible=self.extensible,
            leased=self.leased,
        )
        return slot, own.currencies


_COLUMNS = tuple(field.name for field in msgspec.structs.fields(SlotTable))
_NEEDED = tuple(field.name for field in msgspec.structs.fields(SlotTable) if field.required)
_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def read_slots(path: Path) -> list[tuple[int, SlotTable]]:
    """
    Read the rows of a CSV table of slots, each with the line number.

    The heading names the columns, in any order: ``start``, ``duration`` and ``processors``, and
    those of ``unit_price``, ``fixed_price``, ``divisible``, ``extensible`` and ``leased`` that are
    wanted. They mean what they mean in a sites file; an empty cell is as if the column were not
    there.

    Raises
    ------
    InputError
        With the file, the line and the column.
    """
    return read_rows(path, "slots", _check_heading, _row)


def _check_heading(cells: list[str]) -> None:
    for name in cells:
        if name not in _COLUMNS:
            raise InputError(
                f'unknown column "{short(name)}", expected {", ".join(_COLUMNS)}',
                hint=spelling_hint(name, _COLUMNS),
            )
        if cells.count(name) > 1:
            raise InputError(f'has the column "{name}" twice')
    for name in _NEEDED:
        if name not in cells:
            raise InputError(
                f'has no column "{name}"',
                hint="the first line names the columns: start, duration, ...",
            )


def _row(cells: dict[str, str], line: int) -> tuple[int, SlotTable]:
    values: dict[str, Any] = {}
    for name, cell in cells.items():
        if not cell and name not in _NEEDED:
            continue
        if name == "processors":
            values[name] = at_field(name, _count, cell)
        elif name in ("divisible", "extensible", "leased"):
            values[name] = at_field(name, _truth, cell)
        else:
            values[name] = cell
    return line, decode(values, SlotTable)


def _count(cell: object) -> int:
    text = str(cell)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InputError(f'expected a whole number, got "{short(text)}"')
    if not 1 <= int(text) <= MOST_PROCESSORS:
        raise InputError(f"expected 1 to {MOST_PROCESSORS:,} processors, got {text}")
    return int(text)


def _truth(cell: object) -> bool:
    truth = _TRUTH.get(str(cell).lower())
    if truth is None:
        raise InputError(f'expected true or false, got "{short(str(cell))}"')
    return truth


# Pricing rules as sites files write them, one table for each kind of rule.

Factor = Annotated[float, Meta(description="Factor on the price; 1 changes nothing.", ge=0)]


class PriceRuleTable(TomlTable, frozen=True, tag_field="kind"):
    """A rule that changes a site's unit price."""

    made: ClassVar[type[Rule]]
    """Rule of the pricing model with the same fields, where :meth:`rule` does not convert any."""

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
        """Return the rule of the pricing model; a ValueError says why the values make none."""
        return self.made(**msgspec.structs.asdict(self))


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
    made: ClassVar = Demand

    points: Annotated[
        tuple[tuple[Share, Factor], ...],
        Meta(description="Pairs of utilisation and factor, interpolated linearly."),
    ]


class AdjustingTable(PriceRuleTable, frozen=True, tag="adjusting"):
    """A factor that moves with supply and demand."""

    noun: ClassVar[str] = "adjusting prices"
    made: ClassVar = Adjusting

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


class BulkTable(PriceRuleTable, frozen=True, tag="bulk"):
    """A factor by the size of the purchase."""

    noun: ClassVar[str] = "bulk prices"
    made: ClassVar = Bulk

    steps: Annotated[
        tuple[tuple[Use, Factor], ...], Meta(description="Pairs of the least use and its factor.")
    ]


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
    made: ClassVar = Advance

    steps: Annotated[
        tuple[tuple[Duration, Factor], ...],
        Meta(description="Pairs of the least time ahead and its factor."),
    ]


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
