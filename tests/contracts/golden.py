"""Golden files of this folder: JSON in which a line is as much as a reader compares at once."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.recording import assert_recorded

FOLDER = Path(__file__).parent / "golden"
"""Where the golden files lie."""

RUNS = FOLDER / "runs"
"""Where those of runs lie."""


def assert_golden_run(name: str, document: Any) -> None:
    """Compare what became of a run with its golden file; nested tables have a line each."""
    assert_recorded(RUNS / f"{name}.json", list(_lines(document, "", "")))


def _lines(value: Any, indent: str, end: str) -> Iterator[str]:
    """Yield a document as lines; what holds nothing nested is a line of its own."""
    if not _is_nested(value):
        yield f"{indent}{json.dumps(value)}{end}"
        return
    opening, closing = "{}" if isinstance(value, Mapping) else "[]"
    yield indent + opening
    last = len(value) - 1
    for number, (key, inner) in enumerate(_parts(value)):
        first, *rest = _lines(inner, indent + " ", "," if number < last else "")
        yield f"{indent} {key}{first.lstrip()}"
        yield from rest
    yield indent + closing + end


def _is_nested(value: Any) -> bool:
    """Return whether there is a table or list within this one, or many texts to compare."""
    inner = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list):
        return False
    return any(isinstance(part, Mapping | list) and part for part in inner)


def _parts(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{json.dumps(key)}: ", inner) for key, inner in value.items())
    else:
        yield from (("", inner) for inner in value)
