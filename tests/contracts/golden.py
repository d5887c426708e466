"""Golden files of this folder: JSON in which a line is as much as a reader compares at once."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.contracts.command import CommandFolder
from tests.contracts.normalising import normalised
from tests.recording import assert_recorded

import bursar

FOLDER = Path(__file__).parent / "golden"
"""Where the golden files lie."""

LONGEST_LINE = 450
"""Characters of a table that is written on one line, as a row is."""

RUNS = FOLDER / "runs"
"""Where those of runs lie."""


def assert_golden_run(
    name: str, folder: CommandFolder, run: str, *, live: bool, **more: Any
) -> None:
    """
    Compare what became of a run with its golden file.

    Compared are ``run.json``, the results, the files that tasks made, and the bill.

    Parameters
    ----------
    name
        Name of the golden file.
    folder
        Folder in which the command was run.
    run
        Name of the run.
    live
        Whether a clock measured its durations; else they, and the money, are compared exactly.
    more
        What else is compared: exit status, what commands told.
    """
    path = folder.path / "runs" / run
    bill = json.loads((path / "bill.json").read_text())
    check_bill(bill)
    document = {
        **more,
        "run": json.loads((path / "run.json").read_text()),
        "columns": (path / "results.csv").read_text().partition("\n")[0].split(","),
        "results": [json.loads(one) for one in (path / "results.jsonl").read_text().splitlines()],
        "files": {
            str(file.relative_to(path / "files")): file.read_text()
            for file in sorted((path / "files").rglob("*"))
            if file.is_file()
        },
        "bill": bill,
    }
    assert_golden(name, document, folder, live=live)


def assert_golden(name: str, document: Any, folder: CommandFolder, *, live: bool) -> None:
    """Compare a document that concerns a run with its golden file."""
    words = {
        str(folder.path): "<folder>",
        sys.executable: "<python>",
        str(Path(bursar.__file__).parent): "<bursar>",
    }
    stable = normalised(document, live=live, words=words)
    assert_recorded(RUNS / f"{name}.json", list(_lines(stable, "", "")))


def check_bill(bill: Mapping[str, Any]) -> None:
    """Hold the sums of a bill to each other: a golden file hides what depends on a clock."""
    total = bill["total_micros"]
    assert total == sum(lease["total_micros"] for lease in bill["leases"])
    assert total == sum(site["amount_micros"] for site in bill["sites"])
    assert total == sum(task["amount_micros"] for task in bill["tasks"]) + sum(
        lease["remainder_micros"] for lease in bill["leases"]
    )
    for lease in bill["leases"]:
        assert lease["total_micros"] == lease["tasks_micros"] + lease["remainder_micros"]
    assert round(bill["total"] * 1_000_000) == total <= bill["granted_micros"]
    assert bill["held_micros"] == 0
    assert all(0 <= task["repeated_micros"] <= task["amount_micros"] for task in bill["tasks"])


def _lines(value: Any, indent: str, end: str) -> Iterator[str]:
    """Yield a document as lines; a row of a table is a line of its own."""
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
    """Return whether a value needs several lines: it is long, or holds a list of tables."""
    if not isinstance(value, Mapping | list) or not value:
        return False
    if isinstance(value, list):
        return any(isinstance(part, Mapping | list) for part in value)
    return len(json.dumps(value)) > LONGEST_LINE or any(
        isinstance(part, list) and _is_nested(part) for part in value.values()
    )


def _parts(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{json.dumps(key)}: ", inner) for key, inner in value.items())
    else:
        yield from (("", inner) for inner in value)
