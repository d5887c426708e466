"""Input sources of a list of commands: ``:::``, ``::::``, their linked forms, columns, groups."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from bursar.model.errors import InputError

Trim = Literal["n", "l", "r", "lr", "rl"]

_MARKS = (":::", ":::+", "::::", "::::+")

Row = tuple[str, ...]
"""Values of one job."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """
    Where values come from.

    Parameters
    ----------
    values
        Stated values; None: they are in a file.
    file
        Name of the file; ``-``: standard input.
    is_linked
        Whether its values go with those of the source before, one with one.
    """

    values: tuple[str, ...] | None = None
    file: str = ""
    is_linked: bool = False


def split_words(words: Sequence[str]) -> tuple[list[str], list[ValueSource]]:
    """Return the words of the command, and the input sources behind them."""
    command = list(itertools.takewhile(lambda word: word not in _MARKS, words))
    sources: list[ValueSource] = []
    mark, stated = "", list[str]()

    def end() -> None:
        linked = mark.endswith("+")
        if mark.startswith("::::"):
            sources.extend(ValueSource(file=name, is_linked=linked) for name in stated)
        elif mark:
            sources.append(ValueSource(values=tuple(stated), is_linked=linked))

    for word in words[len(command) :]:
        if word in _MARKS:
            end()
            mark, stated = word, []
        else:
            stated.append(word)
    end()
    if sources and sources[0].is_linked:
        raise InputError(f'"{mark}" links to the source before it, and there is none')
    return command, sources


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRules:
    """
    How values are read.

    Parameters
    ----------
    delimiter
        What ends a value.
    colsep
        Regular expression between the columns of a value; None: a value is one column.
    trim
        At which ends of columns blanks are removed.
    header
        Whether the first value of each source names its columns.
    group
        Values that one job takes; None: one.
    links_all
        Whether all sources are linked; shorter ones then begin anew.
    """

    delimiter: str = "\n"
    colsep: re.Pattern[str] | None = None
    trim: Trim = "n"
    header: bool = False
    group: int | None = None
    links_all: bool = False


@dataclass(slots=True)
class ValueTable:
    """
    The rows of all sources together.

    Parameters
    ----------
    rows
        Values of each job.
    names
        Numbers of the columns, from 1, by the names in headers.
    """

    rows: list[Row]
    names: dict[str, int] = field(default_factory=dict)


def read_rows(
    sources: Sequence[ValueSource], rules: InputRules, read: Callable[[str], bytes]
) -> ValueTable:
    """
    Return the rows: each value of a source with each of the others, the last one fastest.

    Parameters
    ----------
    read
        Returns the content of a file.

    Raises
    ------
    InputError
        Naming the file and the line, or the source.
    """
    parts: list[list[list[Row]]] = []  # sources that are linked stand in one list
    names: dict[str, int] = {}
    columns = 0
    for source in sources:
        rows = [_columns(value, rules) for value in _values(source, rules, read)]
        if rules.header:
            if not rows:
                raise InputError("has no first line to name the columns", where=_place(source))
            head, *rows = rows
            names |= {name: columns + number for number, name in enumerate(head, start=1)}
            columns += len(head)
        if parts and (source.is_linked or rules.links_all):
            parts[-1].append(rows)
        else:
            parts.append([rows])
    groups = [_linked(linked, repeats=rules.links_all) for linked in parts]
    if rules.group is not None and len(groups) > 1:
        raise InputError("goes with one input source, whose values are counted", where="-n")
    found = [sum(rows, ()) for rows in itertools.product(*groups)]
    return ValueTable(_grouped(found, rules.group), names)


def _linked(sources: Sequence[list[Row]], *, repeats: bool) -> list[Row]:
    if len(sources) == 1:
        return sources[0]
    if not repeats:
        return [sum(rows, ()) for rows in zip(*sources, strict=False)]
    longest = max(map(len, sources)) if all(sources) else 0
    repeated = (itertools.islice(itertools.cycle(rows), longest) for rows in sources)
    return [sum(rows, ()) for rows in zip(*repeated, strict=True)]


def _grouped(rows: list[Row], size: int | None) -> list[Row]:
    if size is None:
        return rows
    if size == 0:
        return [() for _ in rows]
    return [sum(rows[start : start + size], ()) for start in range(0, len(rows), size)]


def _columns(value: str, rules: InputRules) -> Row:
    columns = (value,) if rules.colsep is None else tuple(rules.colsep.split(value))
    if "l" in rules.trim:
        columns = tuple(one.lstrip() for one in columns)
    if "r" in rules.trim:
        columns = tuple(one.rstrip() for one in columns)
    return columns


def _values(source: ValueSource, rules: InputRules, read: Callable[[str], bytes]) -> Iterator[str]:
    if source.values is not None:
        # As lines of a file: a value of several lines is several values.
        for number, value in enumerate(source.values, start=1):
            pieces = value.split(rules.delimiter) if rules.delimiter in value else [value]
            yield from checked(pieces, partial(_stated_place, number))
        return
    data = read(source.file)
    pieces = split_text(data, rules.delimiter, _place(source))
    yield from checked(pieces, lambda n: f"{_place(source)}:{n}")


def split_text(data: bytes, delimiter: str, place: str) -> list[str]:
    """
    Return the pieces of a file that end with a delimiter.

    Raises
    ------
    InputError
        Naming the file and the piece that is not UTF-8.
    """
    found = []
    pieces = data.split(delimiter.encode())
    if not pieces[-1]:
        pieces.pop()
    for number, piece in enumerate(pieces, start=1):
        try:
            found.append(piece.decode())
        except UnicodeDecodeError as error:
            raise InputError(
                f"is not UTF-8 at byte {error.start + 1} of the line", where=f"{place}:{number}"
            ) from None
    return found


def checked(values: Iterable[str], place: Callable[[int], str]) -> Iterator[str]:
    """
    Yield values that a command line can hold.

    Raises
    ------
    InputError
        Naming the place of one that has a null character.
    """
    for number, value in enumerate(values, start=1):
        if "\0" in value:
            raise InputError("has a null character, which no command can hold", where=place(number))
        yield value


def _stated_place(number: int, _: int) -> str:
    return f"value {number} after :::"


def _place(source: ValueSource) -> str:
    if source.values is not None:
        return ":::"
    return "standard input" if source.file == "-" else source.file
