"""Findings rendered into a page: between its markers, and nothing else of it."""

import math
from pathlib import Path
from typing import Any

import pytest

from bursar.model.errors import InputError
from bursar_papers.documenting import (
    bounds,
    entry_of,
    read_entries,
    record,
    tally,
    update_page,
)
from bursar_papers.equivalence import ABOVE, BELOW, compare_with_bounds
from bursar_papers.experiment import Experiment, ExperimentResult, PaperFinding


def outcome_of(*findings: PaperFinding) -> ExperimentResult:
    experiment = Experiment(
        paper="paper",
        figure="table-2",
        title="squares",
        about="",
        cells=lambda effort: [],
        measure=lambda cell, data: [],
        findings=lambda rows: [],
        charts=lambda rows: {},
    )
    return ExperimentResult(
        experiment=experiment, effort="full", rows=[], cells=4, cached=0, seconds=0.0, seeds=2,
        findings=list(findings),
    )  # fmt: skip


AGREES = PaperFinding(
    what="area | all",
    paper="9",
    ours="9\n8",
    comparisons=(compare_with_bounds(9.0, 8.5, 9.5),),
    remark="so",
)
OURS = PaperFinding(
    what="speed", paper="best", ours="3", own=True, comparisons=(compare_with_bounds(3.0, 4.0),)
)
PAGE = """\
# Page

<!-- findings: all -->
outdated
<!-- end -->

By hand.

<!-- findings: table-2 -->
<!-- end -->
"""


def test_blocks_are_rendered_and_the_rest_is_kept(tmp_path: Path) -> None:
    (tmp_path / "paper.md").write_text(PAGE)
    record(tmp_path / "paper.json", "paper", {"table-2": entry_of(outcome_of(AGREES, OURS))},
           ["table-2"])  # fmt: skip
    update_page(tmp_path, "paper")
    page = (tmp_path / "paper.md").read_text()
    assert "By hand." in page
    assert "outdated" not in page
    lines = page.splitlines()
    assert "| area \\| all | 9 | 9<br>8<br>*so* | 8.5 to 9.5 | agrees |" in lines
    assert "| speed | ours: best | 3 | ≥ 4 | **differs** |" in lines
    count = "1 agrees, 0 differ, 0 open; claims of our own: 0 hold, 1 fail, 0 open."
    assert f"`bursar reproduce paper --table 2 --full`: 4 cells, 2 seeds; {count}" in lines
    assert f"All figures together: {count}" in lines
    update_page(tmp_path, "paper")
    assert (tmp_path / "paper.md").read_text() == page


def test_a_figure_replaces_its_own_entry_only(tmp_path: Path) -> None:
    path = tmp_path / "paper.json"
    record(path, "paper", {"b": entry_of(outcome_of(AGREES)), "gone": {}}, ["a", "b", "gone"])
    record(path, "paper", {"a": entry_of(outcome_of(OURS))}, ["a", "b"])
    entries = read_entries(path)
    assert list(entries) == ["a", "b"]
    assert [e["findings"][0]["what"] for e in entries.values()] == ["speed", "area | all"]


def test_a_page_without_findings_is_told_apart(tmp_path: Path) -> None:
    assert update_page(tmp_path, "paper") is None
    (tmp_path / "paper.md").write_text(PAGE)
    with pytest.raises(InputError, match="table-2"):
        update_page(tmp_path, "paper")
    (tmp_path / "paper.json").write_text("[]")
    with pytest.raises(InputError, match="does not hold the findings"):
        update_page(tmp_path, "paper")


def test_bounds_are_told_in_words() -> None:
    """Strict and not, round a number that is not 0 as well."""
    told = [
        bounds([compare_with_bounds(0.0, low, high).to_dict()])
        for low, high in (
            (ABOVE, math.inf), (BELOW, math.inf), (-math.inf, BELOW), (-math.inf, ABOVE),
            (80 + ABOVE, math.inf), (-math.inf, 1 + BELOW), (-45.0, 45.0), (16.547, 18.29),
        )
    ]  # fmt: skip
    assert told == ["> 0", "≥ 0", "< 0", "≤ 0", "> 80", "< 1", "-45 to 45", "16.55 to 18.29"]
    two = [
        compare_with_bounds(1.0, 0.0, 2.0, name="a"),
        compare_with_bounds(1.0, 0.0, 3.0, name="b"),
    ]
    assert bounds([each.to_dict() for each in two]) == "a: 0 to 2\nb: 0 to 3"


def test_verdicts_are_counted_apart() -> None:
    assert tally([{"verdict": None, "own": False}]) == "nothing is stated that could agree"
    told: list[dict[str, Any]] = [
        {"verdict": verdict, "own": own}
        for verdict, own in (
            ("agrees", False), ("differs", False), ("differs", False), (None, False),
            ("agrees", True), ("identity", False), ("impossible", False),
        )
    ]  # fmt: skip
    assert tally(told) == (
        "1 agrees, 2 differ, 0 open; claims of our own: 1 hold, 0 fail, 0 open; "
        "not counted: 1 true by construction, 1 impossible as published"
    )
