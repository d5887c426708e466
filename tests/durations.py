"""
The longest files of tests begin first where several processes share them.

With a file that takes a minute left for the end, one process works and the others look on. How
long each takes lies in ``durations.json``; a run with ``BURSAR_TEST_DURATIONS`` writes it anew::

    BURSAR_TEST_DURATIONS=tests/durations.json make unit
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

RECORD = "BURSAR_TEST_DURATIONS"
"""Variable that names the file to write."""

KNOWN = Path(__file__).with_name("durations.json")
"""Seconds by file."""

LEAST = 1.0
"""Seconds; shorter files are left out, and begin last."""

UNKNOWN = 0.05
"""Seconds for each test of a file that is not listed."""

_taken: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts long files first, alike in each process; a run in one process stays as it is."""
    if not hasattr(config, "workerinput"):
        return
    known: dict[str, float] = json.loads(KNOWN.read_text())
    counts = Counter(_file(item.nodeid) for item in items)
    seconds = {file: known.get(file, UNKNOWN * count) for file, count in counts.items()}
    items.sort(key=lambda item: (-seconds[_file(item.nodeid)], _file(item.nodeid)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds up what each file takes, fixtures included."""
    _taken[_file(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes it down where that is asked for."""
    path = os.environ.get(RECORD)
    if not path or hasattr(session.config, "workerinput"):
        return
    long = {file: round(taken, 1) for file, taken in _taken.items() if taken >= LEAST}
    by_length = sorted(long.items(), key=lambda entry: (-entry[1], entry[0]))
    Path(path).write_text(json.dumps(dict(by_length), indent=2) + "\n")


def _file(name: str) -> str:
    return name.partition("::")[0]
