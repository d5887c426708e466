"""
Links of a network as a table of comma-separated values, one in a row.

The heading names the columns, in any order: ``from`` and ``to``; ``mbit_per_s``, a number,
or ``bandwidth`` with its unit; ``latency`` where it is wanted. Other columns are kept as
they are, for who knows what they say.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bursar.formats.csv_rows import read_rows, short
from bursar.formats.units import at_field, parse_bandwidth, parse_duration
from bursar.model.errors import InputError, spelling_hint
from bursar.model.network_link import NetworkLink

_ENDS = ("from", "to")
_RATES = ("mbit_per_s", "bandwidth")
_KNOWN = (*_ENDS, *_RATES, "latency")
_MEGABIT = 125_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """
    A row of a table of links.

    Parameters
    ----------
    line
        Line number in the file.
    wire
        Link described by the row, each direction with the stated bandwidth.
    others
        Cells of the other columns, by column name.
    """

    line: int
    wire: NetworkLink
    others: Mapping[str, str]


def read_links(path: Path) -> tuple[LinkRow, ...]:
    """
    Read the rows of a table of links.

    Raises
    ------
    InputError
        With the file, the line and the column.
    """
    return tuple(read_rows(path, "links", _check_heading, _row))


def _check_heading(cells: list[str]) -> None:
    for name in cells:
        if cells.count(name) > 1:
            raise InputError(f'has the column "{short(name)}" twice')
    for name in _ENDS:
        if name not in cells:
            raise InputError(f'has no column "{name}"', hint=spelling_hint(name, cells))
    if sum(name in cells for name in _RATES) != 1:
        raise InputError('expected one column "mbit_per_s" or "bandwidth"')


def _row(values: dict[str, str], line: int) -> LinkRow:
    for name in _ENDS:
        if not values[name] or not values[name].isprintable():
            raise InputError("expected the name of a node", where=name)
    if values["from"] == values["to"]:
        raise InputError(f'joins "{short(values["to"])}" to itself', where="to")
    if "bandwidth" in values:
        bandwidth = at_field("bandwidth", parse_bandwidth, values["bandwidth"])
    else:
        bandwidth = at_field("mbit_per_s", _megabits, values["mbit_per_s"])
    return LinkRow(
        line=line,
        wire=NetworkLink(
            source=values["from"],
            target=values["to"],
            bandwidth=bandwidth,
            latency=at_field("latency", parse_duration, values.get("latency") or 0),
        ),
        others={name: cell for name, cell in values.items() if name not in _KNOWN},
    )


def _megabits(cell: object) -> float:
    try:
        rate = float(str(cell)) * _MEGABIT
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise InputError(f'expected a positive number of Mbit/s, got "{short(str(cell))}"')
    return rate
