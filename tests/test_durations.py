"""The order in which files of tests begin."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import durations


def ordered(names: list[str], **config: Any) -> list[str]:
    """How tests of these names are put."""
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    durations.pytest_collection_modifyitems(SimpleNamespace(**config), items)  # type: ignore[arg-type]
    return [item.nodeid for item in items]


def test_long_files_begin_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of a file stay together, in their order; one process alone has its own."""
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"long.py": 60.0, "short.py": 2.0}))
    monkeypatch.setattr(durations, "KNOWN", known)
    names = ["new.py::b", "new.py::a", "short.py::a", "long.py::z", "long.py::a"]

    assert ordered(names) == names
    assert ordered(names, workerinput={}) == [
        "long.py::z",
        "long.py::a",
        "short.py::a",
        "new.py::b",
        "new.py::a",
    ]


def test_the_list_is_of_files_that_are_there() -> None:
    """A file that was renamed would begin last."""
    root = Path(__file__).parents[1]
    listed = json.loads(durations.KNOWN.read_text())
    assert listed
    assert not [name for name in listed if not (root / name).is_file()]
