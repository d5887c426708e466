"""Values of result columns: found as the libraries of each format find them, or refused."""

import csv
import io
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.formats.result_values import (
    NoResultError,
    ResultText,
    at_pointer,
    extract,
    pointer_tokens,
    split_path,
    typed,
)
from bursar.model.results import ResultColumn, ResultType

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | NAMES
DOCUMENTS = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def column(form: str, where: str | int = "", **more: Any) -> ResultColumn:
    """Return a column called x."""
    return ResultColumn(name="x", form=form, where=where, **more)  # type: ignore[arg-type]


def value(text: str, form: str, where: str | int = "", **more: Any) -> Any:
    """Return the value of a column in a text."""
    return extract(ResultText(text.encode(errors="surrogatepass")), column(form, where, **more))


def same(one: object, other: object) -> bool:
    """Whether two values are equal; NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def places(document: Any, pointer: str = "") -> list[tuple[str, Any]]:
    """Return every place of a JSON document, with the pointer to it."""
    found = [(pointer, document)]
    steps: list[tuple[str, Any]] = []
    if isinstance(document, dict):
        steps = [(k.replace("~", "~0").replace("/", "~1"), v) for k, v in document.items()]
    elif isinstance(document, list):
        steps = [(str(i), v) for i, v in enumerate(document)]
    for token, inner in steps:
        found += places(inner, f"{pointer}/{token}")
    return found


@given(DOCUMENTS)
def test_every_place_of_a_json_document_has_a_pointer(document: Any) -> None:
    """What is there is found, after lines of a log as well, and as JSON has it."""
    text = "step 1\n" + json.dumps(document)
    parsed = json.loads(json.dumps(document))
    for pointer, inner in places(parsed):
        assert at_pointer(parsed, pointer) is inner
        if inner is None or inner == "":
            with pytest.raises(NoResultError):
                value(text, "json", pointer)
        elif isinstance(inner, dict | list):
            assert json.dumps(json.loads(value(text, "json", pointer))) == json.dumps(inner)
        else:
            assert same(value(text, "json", pointer), inner)


@given(DOCUMENTS, st.text("/~01ab-", max_size=6))
def test_a_pointer_finds_one_place_or_none(document: Any, pointer: str) -> None:
    """A pointer that leads nowhere is told apart from one that is none."""
    there = dict(places(document))
    try:
        tokens = pointer_tokens(pointer)
    except ValueError:
        assert (pointer and not pointer.startswith("/")) or re.search("~(?![01])", pointer)
        return
    assert len(tokens) == pointer.count("/")
    if pointer in there:
        assert at_pointer(document, pointer) is there[pointer]
    else:
        with pytest.raises(NoResultError):
            at_pointer(document, pointer)


CELLS = st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), max_size=5)


@given(
    st.lists(st.lists(CELLS, min_size=2, max_size=4), min_size=1, max_size=5),
    st.integers(-6, 6),
    st.integers(0, 4),
    st.sampled_from([",", ";", "\t"]),
)
def test_a_field_of_a_csv_file_is_what_the_csv_module_reads(
    rows: list[list[str]], pick: int, field: int, separator: str
) -> None:
    """By the number of the field and of the row, from either end; empty rows do not count."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator).writerows(rows)
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    try:
        expected = filled[pick][field].strip()
    except IndexError:
        expected = ""
    options: dict[str, Any] = {"pick": pick, "separator": separator, "type": "text"}
    if not expected:
        with pytest.raises(NoResultError):
            value(file.getvalue(), "csv", field, **options)
    else:
        assert value(file.getvalue(), "csv", field, **options) == expected


@given(st.lists(st.fixed_dictionaries({"a": st.integers(), "b b": st.floats()}), max_size=4))
def test_a_column_of_a_csv_file_is_what_a_dict_reader_reads(rows: list[dict[str, Any]]) -> None:
    """The last row unless another is asked for; numbers keep every digit."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["a", "b b"])
    writer.writeheader()
    writer.writerows(rows)
    read = list(csv.DictReader(io.StringIO(file.getvalue())))
    if not read:
        with pytest.raises(NoResultError, match="no rows below its titles"):
            value(file.getvalue(), "csv", "a")
        return
    assert value(file.getvalue(), "csv", "a") == int(read[-1]["a"])
    assert same(value(file.getvalue(), "csv", "b b", pick=0, type="number"), rows[0]["b b"])


@given(st.text("ab1 .\n", max_size=30), st.sampled_from(["([0-9.]+)", "^a(?P<x>b*)", "b", "a$"]))
def test_the_last_match_is_the_one_that_re_finds_last(text: str, pattern: str) -> None:
    """The group named as the column, else the first, else the whole match."""
    matches = list(re.finditer(pattern, text, re.MULTILINE))
    expected = [m["x"] if "x" in m.groupdict() else m[1 if m.re.groups else 0] for m in matches]
    for pick in (-1, 0, 2):
        try:
            found = expected[pick].strip()
        except IndexError:
            found = ""
        if found:
            assert value(text, "regex", pattern, pick=pick, type="text").strip() == found
        else:
            with pytest.raises(NoResultError):
                value(text, "regex", pattern, pick=pick, type="text")


@pytest.mark.parametrize(
    ("found", "wanted", "result"),
    [
        ("007", None, "007"),
        ("007", "number", 7),
        ("0.50", None, 0.5),
        ("-3", None, -3),
        ("1e3", None, 1000.0),
        ("1_000", None, "1_000"),
        ("nan", None, math.nan),
        ("12 s", None, "12 s"),
        ("3.0", "integer", 3),
        (True, None, True),
        (True, "text", "true"),
        (1.5, "text", "1.5"),
    ],
)
def test_types(found: object, wanted: ResultType | None, result: object) -> None:
    """A text that is a number becomes one, unless digits would be lost."""
    assert same(typed(found, wanted), result)


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        ("fast", "number", 'has "fast" there, expected a number'),
        ("3.5", "integer", 'has "3.5" there, expected an integer'),
        (math.inf, "integer", "expected an integer"),
        (True, "number", 'has "true" there'),
        ({}, "number", "has an object there"),
        (None, None, "empty value"),
        ("9" * 5000, "integer", "expected an integer"),
    ],
)
def test_values_of_another_type_are_missing(found: object, wanted: Any, reason: str) -> None:
    """The reason says what was found and what was expected."""
    with pytest.raises(NoResultError, match=reason):
        typed(found, wanted)


XML = '<run n="3"><fit loss="0.5"><step>1</step><step> 2 </step></fit></run>'


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("/run/fit/step", 1),
        ("/run/fit/step[2]", 2),
        ("//fit/@loss", 0.5),
        ("/run/@n", 3),
        ("step/text()", 1),
    ],
)
def test_paths_in_xml(path: str, result: object) -> None:
    """From the root element on, with an attribute or without."""
    assert value(XML, "xml", path) == result


def test_what_is_no_xml_is_missing() -> None:
    """Broken documents, entities that grow, and paths that lead nowhere have each a reason."""
    bomb = '<!DOCTYPE r [<!ENTITY a "aa">]><r>&a;</r>'
    for text, reason in ((XML, "nothing at"), ("<a>", "not XML"), (bomb, "not XML"), ("", "empty")):
        with pytest.raises(NoResultError, match=reason):
            value(text, "xml", "/run/none")
    assert split_path("a") == (".//a", None)


@given(st.binary(max_size=60), st.sampled_from(["text", "json", "csv", "regex", "xml"]))
def test_any_bytes_have_a_value_or_a_reason(content: bytes, form: str) -> None:
    """A file that is not what it should be spoils its own value only."""
    where: str | int = {"json": "/a", "csv": "a", "regex": "a(b)?", "xml": "/a"}.get(form, "")
    try:
        found = extract(ResultText(content), column(form, where))
    except NoResultError:
        return
    assert isinstance(found, str | int | float)
