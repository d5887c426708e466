"""Runs that one keeps: tags and notes, comparing two, deleting old ones."""

from typing import Any

import pytest

TASKS = """\
[campaign]
name = "c"
command = "sleep 0.0{n}; test {n} -ne %s"
[parameters]
n = [%s]
[retry]
attempts = 1
"""


@pytest.fixture
def two(folder: Any) -> Any:
    """A folder with a run that failed in part, and one with other tasks that did not."""
    folder.write("c.toml", TASKS % (2, "1, 2, 3"))
    folder.bursar("run", "c.toml", "--name", "first", status=1)
    folder.write("c.toml", TASKS % (9, "1, 2, 3, 4"))
    folder.bursar("run", "c.toml", "--name", "second")
    return folder


def test_tags_and_notes_are_kept_and_select_runs(two: Any) -> None:
    two.bursar("tag", "first", "base", "v=1", "--note", "before the mend")
    assert two.json("tag", "first", "--remove", "v=1") == {
        "run": "first",
        "tags": ["base"],
        "note": "before the mend",
    }
    assert [row["run"] for row in two.json("runs", "--tag", "base")["runs"]] == ["first"]
    assert [row["run"] for row in two.json("runs", "--state", "finished")["runs"]] == ["second"]
    assert "base" in two.bursar("runs").stdout
    assert "no tag" in two.bursar("tag", "first", "--remove", "nope", status=2).stderr
    assert "a tag is a word" in two.bursar("tag", "first", "two words", status=2).stderr


def test_two_runs_are_compared(two: Any) -> None:
    found = two.json("compare", "first", "second")
    figures = {row["name"]: (row["first"], row["second"]) for row in found["figures"]}

    assert figures["tasks"] == (3, 4)
    assert figures["state"] == ("failed", "finished")
    assert found["tasks"] == {"both": 3, "first_only": 0, "second_only": 1}
    assert found["runtimes"]["tasks"] == 2
    assert found["failures"] == {"first_only": ["c-1"], "second_only": [], "both": []}
    assert found["parameters"] == {"n": {"first_only": [], "second_only": [4]}}
    told = two.bursar("compare", "first", "second").stdout
    assert "1 failed only in the first: c-1" in told
    assert "n only in the second: 4" in told


@pytest.mark.ci
def test_the_comparison_is_drawn(two: Any) -> None:
    pytest.importorskip("vl_convert")
    two.bursar("compare", "first", "second", "--chart", "c.svg")

    assert "seconds in first" in (two.path / "c.svg").read_text()
    assert "--chart" in two.bursar("compare", "first", "second", "--chart", "x", status=2).stderr


def test_old_runs_are_deleted_after_they_were_listed(two: Any) -> None:
    assert "1 runs" in two.bursar("clean", "--keep", "1").stdout
    assert (two.path / "runs" / "first").is_dir()
    two.bursar("tag", "first", "keep")
    assert "stays: has the tag keep" in two.bursar("clean", "first", "--yes").stdout
    two.bursar("tag", "first", "--remove", "keep")
    (gone,) = two.json("clean", "first", "--yes")["runs"]
    assert (gone["run"], gone["deleted"], gone["kept"]) == ("first", True, None)
    assert gone["size"] > 0
    assert [row["run"] for row in two.json("runs")["runs"]] == ["second"]
    assert "--older" in two.bursar("clean", status=2).stderr
    assert "--older" in two.bursar("clean", "--older", "soon", status=2).stderr
