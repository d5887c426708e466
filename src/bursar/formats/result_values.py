"""Values of result columns, found in the text that a task printed or wrote into a file."""

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from bursar.model.results import ResultColumn, ResultType
from bursar.model.task import Value


class NoResultError(Exception):
    """A text has no value for a column; the message says why, to follow the text's name."""


class ResultText:
    """
    A text in which columns find their values; each form is parsed once for all columns.

    Parameters
    ----------
    content
        The text as bytes: UTF-8, of which damaged parts are replaced.
    name
        Name of the file; that of a ``.tsv`` file says how its fields are separated.
    """

    def __init__(self, content: bytes, name: str = "") -> None:
        self.text = content.decode(errors="replace").removeprefix("\ufeff")
        self._separator = "\t" if name.endswith(".tsv") else ","
        self._rows: dict[str, list[list[str]]] = {}

    @cached_property
    def json(self) -> Any:
        """
        The JSON document that the text is, or that its last line is.

        Raises
        ------
        NoResultError
            When neither is JSON.
        """
        # Programs log as they go and print their figures in the end, on one line.
        lines = self.text.rstrip().rsplit("\n", 1)
        for candidate in dict.fromkeys((self.text, lines[-1])):
            try:
                return json.loads(candidate)
            except (ValueError, RecursionError):
                continue
        raise NoResultError("is not JSON" if self.text.strip() else "is empty")

    @cached_property
    def xml(self) -> Element:
        """
        An element above the root element of the XML document that the text is.

        Raises
        ------
        NoResultError
            When the text is no XML, or defines entities.
        """
        from defusedxml.common import DefusedXmlException
        from defusedxml.ElementTree import fromstring

        above = Element("document")
        try:
            above.append(fromstring(self.text))
        except (ParseError, DefusedXmlException, ValueError, RecursionError):
            raise NoResultError("is not XML" if self.text.strip() else "is empty") from None
        return above

    def rows(self, separator: str | None) -> list[list[str]]:
        """
        Return the rows of the CSV table that the text is, without empty ones.

        Raises
        ------
        NoResultError
            When the text is no CSV.
        """
        separator = separator or self._separator
        if separator not in self._rows:
            reader = csv.reader(io.StringIO(self.text, newline=""), delimiter=separator)
            try:
                self._rows[separator] = [row for row in reader if any(map(str.strip, row))]
            except csv.Error as error:
                raise NoResultError(f"is not CSV: {error}") from None
        return self._rows[separator]


def extract(text: ResultText, column: ResultColumn) -> Value:
    """
    Return the value of a column in a text.

    Raises
    ------
    NoResultError
        When the text has none.
    """
    match column.form:
        case "text":
            found: object = text.text.strip()
            if not found:
                raise NoResultError("is empty")
        case "json":
            found = at_pointer(text.json, str(column.where))
            if isinstance(found, str) and found and column.type is None:
                return found  # JSON says itself what is a number
        case "csv":
            found = _cell(text.rows(column.separator), column)
        case "regex":
            found = _matched(text.text, column)
        case "xml":
            found = _at_path(text.xml, str(column.where))
    return typed(found, column.type)


def at_pointer(document: Any, pointer: str) -> Any:
    """
    Return what a JSON Pointer (RFC 6901) points to.

    Raises
    ------
    NoResultError
        When the document has nothing there.
    """
    found = document
    for token in pointer_tokens(pointer):
        if isinstance(found, dict) and token in found:
            found = found[token]
        elif isinstance(found, list) and re.fullmatch("0|[1-9][0-9]{0,17}", token):
            if int(token) >= len(found):
                raise NoResultError(f"has nothing at {pointer}")
            found = found[int(token)]
        else:
            raise NoResultError(f"has nothing at {pointer}")
    return found


def pointer_tokens(pointer: str) -> list[str]:
    """
    Split a JSON Pointer into its reference tokens.

    Raises
    ------
    ValueError
        When the text is no JSON Pointer.
    """
    if pointer and not pointer.startswith("/"):
        raise ValueError(f'expected a JSON Pointer such as "/{pointer}", got "{pointer}"')
    if re.search("~(?![01])", pointer):
        raise ValueError("a ~ in a JSON Pointer is written ~0, and a / in a name ~1")
    return [t.replace("~1", "/").replace("~0", "~") for t in pointer.split("/")[1:]]


def _cell(rows: Sequence[Sequence[str]], column: ResultColumn) -> str:
    if not rows:
        raise NoResultError("is empty")
    where = column.where
    if isinstance(where, str):
        titles = [title.strip() for title in rows[0]]
        if where not in titles:
            raise NoResultError(f'has no column "{where}"')
        where, rows = titles.index(where), rows[1:]
        if not rows:
            raise NoResultError("has no rows below its titles")
    try:
        row = rows[column.pick]
    except IndexError:
        raise NoResultError(f"has {len(rows)} rows, none with number {column.pick}") from None
    if where >= len(row):
        raise NoResultError(f"has {len(row)} fields in that row")
    return row[where].strip()


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """
    Compile an expression; ``^`` and ``$`` stand for the begin and end of each line.

    Raises
    ------
    re.error
        When the text is no regular expression.
    """
    return re.compile(pattern, re.MULTILINE)


def _matched(text: str, column: ResultColumn) -> str | None:
    pattern = compiled(str(column.where))
    matches = list(pattern.finditer(text))
    try:
        match = matches[column.pick]
    except IndexError:
        count = f"only {len(matches)} matches" if matches else "no match"
        raise NoResultError(f"has {count} for the expression") from None
    if column.name in pattern.groupindex:
        return match[column.name]
    found: str | None = match[1 if pattern.groups else 0]
    return found


def split_path(path: str) -> tuple[str, str | None]:
    """
    Return a path below an element above the root, and the attribute at its end, if any.

    >>> split_path("/run/loss"), split_path("//loss/@mean")
    (('./run/loss', None), ('.//loss', 'mean'))
    """
    path, _, attribute = path.removesuffix("/text()").partition("/@")
    if path == "/":  # the document itself: all of its root element
        path = "/*"
    if not path.startswith("/"):
        path = f"//{path}"
    return f".{path}", attribute or None


def _at_path(document: Element, path: str) -> str:
    steps, attribute = split_path(path)
    element = document.find(steps)
    if element is None:
        raise NoResultError(f"has nothing at {path}")
    if attribute is None:
        return "".join(element.itertext()).strip()
    if attribute not in element.attrib:
        raise NoResultError(f"has nothing at {path}")
    return element.attrib[attribute]


_INTEGER = re.compile("[+-]?[0-9]+")
_LONGEST = 4000
"""Digits of an integer; Python refuses to convert longer ones."""


def typed(found: object, wanted: ResultType | None) -> Value:
    """
    Return a value as the type that is wanted.

    Parameters
    ----------
    found
        A text, or a value of a JSON document.
    wanted
        None: numbers stay numbers, and a text that is a number becomes one, unless its first digit
        is a 0 before further digits (``007``).

    Raises
    ------
    NoResultError
        When the value cannot be of that type, or is none.
    """
    if found is None or found == "":
        raise NoResultError("has an empty value there")
    if isinstance(found, dict | list):
        if wanted in ("number", "integer"):
            raise NoResultError(f"has {_kind(found)} there, expected {_ARTICLE[wanted]}")
        return json.dumps(found)
    if wanted == "text":
        return found if isinstance(found, str) else json.dumps(found)
    if isinstance(found, str):
        number = _number(found.strip(), strict=wanted is None)
        if wanted is None and number is None:
            return found
    else:
        assert isinstance(found, int | float)
        if wanted is None:
            return found
        number = None if isinstance(found, bool) else found
    if wanted == "integer" and isinstance(number, float):
        number = int(number) if math.isfinite(number) and number == int(number) else None
    if number is None:
        shown = found if isinstance(found, str) else json.dumps(found)
        raise NoResultError(f'has "{shown[:40]}" there, expected {_ARTICLE[str(wanted)]}')
    return number


_ARTICLE = {"number": "a number", "integer": "an integer"}


def _kind(found: object) -> str:
    return "an object" if isinstance(found, dict) else "an array"


def _number(text: str, *, strict: bool) -> int | float | None:
    """Return the number that a text is, or None."""
    if strict and re.match("[+-]?0[0-9]", text):
        return None
    if _INTEGER.fullmatch(text) and len(text) < _LONGEST:
        return int(text)
    try:
        # Python takes 1_000 for a number, which nobody prints.
        return None if "_" in text else float(text)
    except ValueError:
        return None
