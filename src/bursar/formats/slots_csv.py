"""
Slots as a table of comma-separated values, one in a row.

The heading names the columns, in any order: ``start``, ``duration`` and
``processors``, and those of ``unit_price``, ``fixed_price``, ``divisible``,
``extensible`` and ``leased`` that are wanted. They mean what they mean in a sites
file; an empty cell is as if the column were not there.
"""

from pathlib import Path
from typing import Any

import msgspec

from bursar.formats.csv_rows import read_rows, short
from bursar.formats.decoding import decode
from bursar.formats.slot_table import MOST_PROCESSORS, SlotTable
from bursar.formats.units import at_field
from bursar.model.errors import InputError, spelling_hint

COLUMNS = tuple(field.name for field in msgspec.structs.fields(SlotTable))
NEEDED = tuple(field.name for field in msgspec.structs.fields(SlotTable) if field.required)
_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def read_slots(path: Path) -> list[tuple[int, SlotTable]]:
    """
    The rows of a table of slots, each with its line.

    Raises
    ------
    InputError
        With the file, the line and the column.
    """
    return read_rows(path, "slots", _check_heading, _row)


def _check_heading(cells: list[str]) -> None:
    for name in cells:
        if name not in COLUMNS:
            raise InputError(
                f'unknown column "{short(name)}", expected {", ".join(COLUMNS)}',
                hint=spelling_hint(name, COLUMNS),
            )
        if cells.count(name) > 1:
            raise InputError(f'has the column "{name}" twice')
    for name in NEEDED:
        if name not in cells:
            raise InputError(
                f'has no column "{name}"',
                hint="the first line names the columns: start, duration, ...",
            )


def _row(cells: dict[str, str], line: int) -> tuple[int, SlotTable]:
    values: dict[str, Any] = {}
    for name, cell in cells.items():
        if not cell and name not in NEEDED:
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
