"""Tables of comma-separated values: a heading, and one thing in a row."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bursar.formats.toml_reading import read_text
from bursar.model.errors import InputError

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
