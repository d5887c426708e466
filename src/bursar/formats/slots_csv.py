"""
Slots as a table of comma-separated values, one in a row.

The heading names the columns, in any order: ``start``, ``duration`` and
``processors``, and those of ``unit_price``, ``fixed_price``, ``divisible``,
``extensible`` and ``leased`` that are wanted. They mean what they mean in a sites
file; an empty cell is as if the column were not there.
"""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec

from bursar.formats.reading import read_text
from bursar.formats.slot_table import MOST_PROCESSORS, SlotTable, at_field
from bursar.model.errors import InputError, nearest

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
    text = read_text(path)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError("holds the character NUL", where=f"{path}:{line}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    filled = ([cell.strip() for cell in cells] for cells in reader if any(map(str.strip, cells)))
    try:
        heading = _heading(next(filled, []))
        rows = [(reader.line_num, _row(heading, cells)) for cells in filled]
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{path}:{reader.line_num}") from None
    except InputError as error:
        raise error.within(f"{path}:{max(reader.line_num, 1)}") from None
    if not rows:
        raise InputError("has no slots below its heading", where=str(path))
    return rows


def _heading(cells: list[str]) -> list[str]:
    for name in cells:
        if name not in COLUMNS:
            raise InputError(
                f'unknown column "{_short(name)}", expected {", ".join(COLUMNS)}',
                hint=nearest(name, COLUMNS),
            )
        if cells.count(name) > 1:
            raise InputError(f'has the column "{name}" twice')
    for name in NEEDED:
        if name not in cells:
            raise InputError(
                f'has no column "{name}"',
                hint="the first line names the columns: start, duration, ...",
            )
    return cells


def _row(heading: list[str], cells: list[str]) -> SlotTable:
    if len(cells) != len(heading):
        raise InputError(f"has {len(cells)} cells, expected {len(heading)} as in the heading")
    values: dict[str, Any] = {}
    for name, cell in zip(heading, cells, strict=True):
        if not cell and name not in NEEDED:
            continue
        if name == "processors":
            values[name] = at_field(name, _count, cell)
        elif name in ("divisible", "extensible", "leased"):
            values[name] = at_field(name, _truth, cell)
        else:
            values[name] = cell
    return SlotTable(**values)


def _count(cell: object) -> int:
    text = str(cell)
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InputError(f'expected a whole number, got "{_short(text)}"')
    if not 1 <= int(text) <= MOST_PROCESSORS:
        raise InputError(f"expected 1 to {MOST_PROCESSORS:,} processors, got {text}")
    return int(text)


def _truth(cell: object) -> bool:
    truth = _TRUTH.get(str(cell).lower())
    if truth is None:
        raise InputError(f'expected true or false, got "{_short(str(cell))}"')
    return truth


def _short(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:60]
