"""Slots in files: tables of a sites file, or rows of a CSV table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from bursar.formats.csv_rows import read_rows, short
from bursar.formats.decoding import TomlTable, decode
from bursar.formats.quantities import Amount, Duration, Price, Schema
from bursar.formats.units import at_field
from bursar.model.errors import InputError, spelling_hint
from bursar.model.slot import Slot

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
        site
            Name of the site.
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
