"""The entries of ``[parameters]``: tables that say what values a parameter takes."""

import csv
import glob
import io
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import joined, read_text
from bursar.formats.quantities import Schema, decoded_type
from bursar.formats.sweep import MOST_POINTS, Axis, Sweep, combine
from bursar.model.errors import InputError, errors_within, spelling_hint
from bursar.model.task import Value

NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
"""Pattern of the name of a parameter."""

RESERVED = ("combine", "id", "index", "inputs", "outputs")
"""Names that parameters cannot have: templates and ``[parameters]`` use them."""

TABLE_LIMIT = 256 * 1024 * 1024
"""Largest CSV table, bytes."""

Number = int | float


class RangeTable(TomlTable, frozen=True):
    """Numbers from one end to the other, by a step or by their count."""

    schema_rules: ClassVar[Schema] = {
        "oneOf": [{"required": ["step"]}, {"required": ["points"]}],
        "properties": {"step": {"not": {"const": 0}}},
        "dependentSchemas": {"step": {"properties": {"spacing": {"const": "linear"}}}},
    }

    from_: Annotated[Number, Meta(description="First value.")] = msgspec.field(name="from")
    to: Annotated[Number, Meta(description="Last value; included when a step falls on it.")]
    step: Annotated[
        Number | None, Meta(description="Distance; negative to count down. Or give points.")
    ] = None
    points: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="How many values, both ends included. Or give step."),
    ] = None
    spacing: Annotated[
        Literal["linear", "log"],
        Meta(description='With points: equal differences, or ("log") equal ratios.'),
    ] = "linear"

    def __post_init__(self) -> None:
        for key, end in (("from", self.from_), ("to", self.to), ("step", self.step)):
            if end is not None:
                check_value(end, key)
        if (self.step is None) == (self.points is None):
            raise InputError("expected either step or points beside from and to")
        if self.step is not None and self.spacing == "log":
            raise InputError("goes with points only", where="spacing")
        if self.step == 0:
            raise InputError("step must not be 0", where="step")


class FilesTable(TomlTable, frozen=True):
    """Files that exist, one value each."""

    files: Annotated[
        str, Meta(description="Pattern relative to the campaign's folder: *, ?, [abc], **.")
    ]


class CsvTable(TomlTable, frozen=True):
    """A CSV table with a heading: one row at a time, its columns are the parameters."""

    schema_rules: ClassVar[Schema] = {"not": {"required": ["column", "columns"]}}

    table: Annotated[str, Meta(description="File relative to the campaign's folder.")]
    columns: Annotated[
        Annotated[list[str], Meta(min_length=1)] | None,
        Meta(description="Only these columns; without it, all."),
    ] = None
    column: Annotated[
        str | None,
        Meta(description="One column, taken under the name of this entry."),
    ] = None

    def __post_init__(self) -> None:
        if self.column is not None and self.columns is not None:
            raise InputError("expected column or columns, not both")


class RandomTable(TomlTable, frozen=True):
    """Random numbers, the same each time the file is read."""

    schema_rules: ClassVar[Schema] = {
        "if": {"properties": {"random": {"const": "normal"}}},
        "then": {
            "required": ["mean", "deviation"],
            "properties": {"from": False, "to": False, "deviation": {"minimum": 0}},
        },
        "else": {"required": ["from", "to"], "properties": {"mean": False, "deviation": False}},
    }

    random: Annotated[
        Literal["uniform", "log-uniform", "integer", "normal"], Meta(description="Distribution.")
    ]
    count: Annotated[int, Meta(description="How many.", ge=1)]
    seed: Annotated[int, Meta(description="Another seed gives other numbers.")] = 0
    from_: Annotated[Number | None, Meta(description="Smallest value; for all but normal.")] = (
        msgspec.field(name="from", default=None)
    )
    to: Annotated[Number | None, Meta(description="Largest value; for all but normal.")] = None
    mean: Annotated[Number | None, Meta(description="For normal.")] = None
    deviation: Annotated[Number | None, Meta(description="For normal; not negative.")] = None

    def __post_init__(self) -> None:
        ends, shape = (self.from_, self.to), (self.mean, self.deviation)
        normal = self.random == "normal"
        wanted, other = (shape, ends) if normal else (ends, shape)
        if None in wanted or any(value is not None for value in other):
            keys = "mean and deviation" if normal else "from and to"
            raise InputError(f'expected just {keys} with random = "{self.random}"')


# In this order, as "from" also stands in random tables.
TABLES: dict[str, type[RangeTable | FilesTable | CsvTable | RandomTable]] = {
    "random": RandomTable,
    "files": FilesTable,
    "table": CsvTable,
    "from": RangeTable,
    "to": RangeTable,
}
"""Kinds of tables by the key that identifies each kind; the first key found counts."""


_VALUE: Schema = {"type": ["string", "number", "boolean"]}

if TYPE_CHECKING:
    Parameters: TypeAlias = dict[str, Any]
else:

    def _parse_table(value: object) -> dict[str, Any]:
        return decode(value, dict[str, Any])

    Parameters = decoded_type(
        "Parameters",
        _parse_table,
        {
            "description": "What each parameter goes through, and how they combine.",
            "type": "object",
            "propertyNames": {
                "pattern": f"^{NAME}$",
                "not": {"enum": [name for name in RESERVED if name != "combine"]},
            },
            "properties": {
                "combine": {
                    "description": '"product" (every value with every other), "zip" (side by '
                    'side), or an expression such as "a * (b, c)".',
                    "type": "string",
                    "default": "product",
                }
            },
            "additionalProperties": {
                "anyOf": [
                    _VALUE,
                    {"type": "array", "items": _VALUE, "minItems": 1},
                    *(
                        {"$ref": f"#/$defs/{table.__name__}"}
                        for table in dict.fromkeys(TABLES.values())
                    ),
                ]
            },
        },
    )
    """What each parameter goes through; the entries are read one by one."""


def read_axis(name: str, raw: object, place: str, root: Path) -> Axis:
    """
    Read the axis that one entry of ``[parameters]`` describes.

    Parameters
    ----------
    name
        The entry's key.
    raw
        A value, a list of values, or a table.
    place
        Path of the entry, for errors.
    root
        The campaign's folder.

    Raises
    ------
    InputError
        At the place of what is wrong.
    """
    if not re.fullmatch(NAME, name):
        raise InputError("a parameter's name is made of letters, digits, _ and -", where=place)
    if name in RESERVED:
        raise InputError(f'"{name}" has a meaning of its own, expected another name', where=place)
    if isinstance(raw, list):
        return Axis(name, (name,), _listed(raw, place))
    if not isinstance(raw, dict):
        return Axis(name, (name,), [(check_value(raw, place),)])
    kind = next((kind for key, kind in TABLES.items() if key in raw), None)
    if kind is None:
        hint = next((h for h in (spelling_hint(key, TABLES) for key in raw) if h), None)
        raise InputError(
            "expected a list, or a table with from and to, files, table, or random",
            where=place,
            hint=hint,
        )
    table = decode(raw, kind, place)
    if isinstance(table, CsvTable):
        return _from_csv(name, table, place, root)
    values: Sequence[Value]
    if isinstance(table, RangeTable):
        values = _ranged(table, place)
    elif isinstance(table, FilesTable):
        values = find_files(table.files, joined(place, "files"), root)
    else:
        values = _drawn(name, table, place)
    return Axis(name, (name,), [(value,) for value in values])


def read_sweep(raw: Mapping[str, Any], place: str, root: Path) -> Sweep:
    """
    Read the points of a ``[parameters]`` table.

    Raises
    ------
    InputError
        At the parameter, or at ``combine``.
    """
    how = raw.get("combine", "product")
    if not isinstance(how, str):
        raise InputError(
            'expected "product", "zip" or an expression', where=joined(place, "combine")
        )
    axes: dict[str, Axis] = {}
    for name, entry in raw.items():
        if name != "combine":
            axes[name] = read_axis(name, entry, joined(place, name), root)
    if not axes:
        raise InputError("expected at least one parameter", where=place)
    with errors_within(joined(place, "combine") if "combine" in raw else place):
        return combine(axes, how)


def _listed(raw: Sequence[Any], place: str) -> list[tuple[Value]]:
    if not raw:
        raise InputError("expected at least one value, got an empty list", where=place)
    if len(raw) > MOST_POINTS:
        raise InputError(f"has more than {MOST_POINTS:,} values", where=place)
    return [(check_value(value, joined(place, i)),) for i, value in enumerate(raw)]


def check_value(raw: object, place: str) -> Value:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        if "\0" in raw:
            raise InputError("must not hold the character NUL", where=place)
        return raw
    if isinstance(raw, int):
        if not -(2**63) <= raw < 2**63:
            raise InputError("expected a whole number of at most 64 bits", where=place)
        return raw
    if isinstance(raw, float):
        return _finite(raw, place)
    raise InputError(
        "expected text, a number, or true or false",
        where=place,
        hint=None if isinstance(raw, list | dict) else "write a date or time in quotes",
    )


def _finite(number: float, place: str) -> float:
    if not math.isfinite(number):
        raise InputError(f"expected a finite number, got {number}", where=place)
    return number


def _ranged(table: RangeTable, place: str) -> Sequence[Value]:
    if table.points is not None:
        return _spaced(table.from_, table.to, table.points, table.spacing, place)
    assert table.step is not None
    first, last, step = (Decimal(str(x)) for x in (table.from_, table.to, table.step))
    if (last - first) * step < 0:
        raise InputError(
            f"never gets from {table.from_} to {table.to} by a step of {table.step}", where=place
        )
    count = (last - first) / step + 1
    if count > MOST_POINTS:
        raise InputError(f"gives more than {MOST_POINTS:,} values", where=place)
    whole = isinstance(table.from_, int) and isinstance(table.step, int)
    # In decimal, so that 0.1 + 0.1 + 0.1 is 0.3.
    values = (first + step * i for i in range(int(count)))
    return [int(v) for v in values] if whole else [float(v) for v in values]


def _spaced(first: Number, last: Number, points: int, spacing: str, place: str) -> Sequence[Value]:
    if points > MOST_POINTS:
        raise InputError(f"gives more than {MOST_POINTS:,} values", where=joined(place, "points"))
    if points == 1:
        if first != last:
            raise InputError(
                "one point cannot be both ends, expected at least 2", where=joined(place, "points")
            )
        return [first]
    if spacing == "log":
        if not (first > 0 and last > 0):
            raise InputError("log spacing needs both ends above 0", where=place)
        low, high = math.log(first), math.log(last)
        inner = [math.exp(low + (high - low) * i / (points - 1)) for i in range(1, points - 1)]
        return [float(first), *inner, float(last)]
    low_end, width = Decimal(str(first)), Decimal(str(last)) - Decimal(str(first))
    values = [low_end + width * i / (points - 1) for i in range(points)]
    if isinstance(first, int) and isinstance(last, int) and (last - first) % (points - 1) == 0:
        return [int(v) for v in values]
    return [float(v) for v in values]


def find_files(pattern: str, place: str, root: Path) -> list[str]:
    """
    Return the names of the files that match, relative to the campaign's folder, in order.

    Raises
    ------
    InputError
        When the pattern leaves the folder, or nothing matches.
    """
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/") or "\0" in pattern:
        raise InputError('expected a pattern relative to the campaign, without ".."', where=place)
    try:
        found = glob.glob(pattern, root_dir=root, recursive=True)
    except (re.error, RecursionError, OSError, ValueError):
        raise InputError(f'"{_short(pattern)}" is no pattern of file names', where=place) from None
    names = sorted({name for name in found if (root / name).is_file()})
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"file name {name!r} is not UTF-8", where=place) from None
    if not names:
        raise InputError(f'no file matches "{_short(pattern)}"', where=place)
    return names


def _short(text: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _drawn(name: str, table: RandomTable, place: str) -> Sequence[Value]:
    normal = table.random == "normal"
    wanted = (table.mean, table.deviation) if normal else (table.from_, table.to)
    if table.count > MOST_POINTS:
        raise InputError(f"gives more than {MOST_POINTS:,} values", where=joined(place, "count"))
    low, high = (float(_finite(v, place)) for v in wanted if v is not None)
    # The name is part of the seed, lest two axes of one seed move together.
    source = random.Random(f"{table.seed}/{name}")
    if normal:
        if high < 0:
            raise InputError("must not be negative", where=joined(place, "deviation"))
        return [source.gauss(low, high) for _ in range(table.count)]
    if high < low:
        raise InputError("to must not be less than from", where=place)
    if table.random == "log-uniform":
        if low <= 0:
            raise InputError("log-uniform needs both ends above 0", where=place)
        low, high = math.log(low), math.log(high)
        return [math.exp(source.uniform(low, high)) for _ in range(table.count)]
    if table.random == "integer":
        first, last = wanted
        if not isinstance(first, int) or not isinstance(last, int):
            raise InputError("expected whole numbers for from and to", where=place)
        check_value(first, joined(place, "from"))
        check_value(last, joined(place, "to"))
        return [source.randint(first, last) for _ in range(table.count)]
    return [_finite(source.uniform(low, high), place) for _ in range(table.count)]


def _from_csv(name: str, table: CsvTable, place: str, root: Path) -> Axis:
    file = table.table
    if not file or file.startswith("/") or ".." in file.split("/") or "\0" in file:
        raise InputError(
            'expected a file relative to the campaign, without ".."', where=joined(place, "table")
        )
    with errors_within(joined(place, "table")):
        heading, rows = _csv_rows(file, root)
    wanted = [table.column] if table.column is not None else table.columns
    key = "column" if table.column is not None else "columns"
    for column in wanted or ():
        if column not in heading:
            raise InputError(
                f'{file} has no column "{_short(column)}"',
                where=joined(place, key),
                hint=spelling_hint(column, heading),
            )
    names = wanted or heading
    parameters = [name] if table.column is not None else list(names)
    for parameter in parameters:
        if not re.fullmatch(NAME, parameter) or parameter in RESERVED:
            raise InputError(
                f'column "{_short(parameter)}" cannot be a parameter: letters, digits, _ and -, '
                f"and not {', '.join(RESERVED)}",
                where=place,
                hint="choose columns by columns = [...], or one by column = ...",
            )
    at = [heading.index(column) for column in names]
    return Axis(name, tuple(parameters), [tuple(_cell(row[i]) for i in at) for row in rows])


def _csv_rows(file: str, root: Path) -> tuple[list[str], list[list[str]]]:
    text = read_text(root / file, limit=TABLE_LIMIT)
    if "\0" in text:
        raise InputError("holds the character NUL", where=file)
    dialect = "excel-tab" if file.endswith(".tsv") else "excel"
    reader = csv.reader(io.StringIO(text, newline=""), dialect, strict=True)
    rows = []
    try:
        heading = next(_filled(reader), None)
        if heading is None:
            raise InputError("is empty, expected a heading and rows", where=file)
        heading = [column.strip() for column in heading]
        for row in _filled(reader):
            if len(row) != len(heading):
                raise InputError(
                    f"has {len(row)} cells, expected {len(heading)} as in the heading",
                    where=f"{file}:{reader.line_num}",
                )
            rows.append(row)
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=f"{file}:{reader.line_num}") from None
    if len(set(heading)) < len(heading):
        twice = next(column for column in heading if heading.count(column) > 1)
        raise InputError(f'has the column "{_short(twice)}" twice', where=f"{file}:1")
    if not rows:
        raise InputError("has no rows below its heading", where=file)
    if len(rows) > MOST_POINTS:
        raise InputError(f"has more than {MOST_POINTS:,} rows", where=file)
    return heading, rows


def _filled(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if any(cell.strip() for cell in row))


def _cell(text: str) -> Value:
    """Return a number if formatting gives back the same text, so that "007" stays text."""
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,18}", text) and str(int(text)) == text:
        return int(text)
    if re.fullmatch(r"-?[0-9]+\.[0-9]+", text) and repr(float(text)) == text:
        return float(text)
    return text
