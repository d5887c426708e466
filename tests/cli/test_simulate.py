"""``bursar simulate`` as its user meets it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of

STEPS = Path(__file__).resolve().parents[2] / "examples" / "steps.toml"
GRID = """\
[site.cluster]
kind = "simulated"
processors = 128
trace = "log.swf"
at = "10d"
policy = "conservative"
unit_price = "1 SU/core-hour"
"""
QUICK = ("--method", "heft")
"""What plans are searched by where that makes no difference."""


@pytest.fixture
def grid(folder: Any) -> Any:
    """A folder with the guide's files in it."""
    log = ("trace", "generate", "lublin", "log.swf", "--processors", "128", "--jobs", "3000")
    folder.bursar(*log)
    folder.write("grid.toml", GRID)
    shutil.copy(STEPS, folder.path / "steps.toml")
    return folder


@pytest.mark.ci
def test_each_way_of_getting_processors(grid: Any) -> None:
    """All tasks run; what is promised is kept; every key is documented; nothing stays behind."""
    told = {}
    for way in ("planned", "best-effort", "queued", "either"):
        told[way] = grid.json(
            *("simulate", "steps.toml", "--sites", "grid.toml", "--provisioning", way),
            *(() if way == "best-effort" else QUICK),
        )
        assert told[way]["succeeded"] == told[way]["tasks"] == 22
        assert told[way]["simulated"]
        assert keys_of(told[way]) - {"cluster"} <= documented("json.md")
    for way in ("planned", "queued"):
        assert told[way]["makespan_s"] == pytest.approx(told[way]["predicted_makespan_s"], abs=0.01)
    assert told["queued"]["makespan_s"] <= told["best-effort"]["makespan_s"]
    chosen = told["either"]["provisioning"]
    assert told["either"]["makespan_s"] == told[chosen]["makespan_s"]
    assert not (grid.path / "runs").exists()


@pytest.mark.ci
def test_chance_is_the_same_for_the_same_seed(grid: Any) -> None:
    words = ("simulate", "steps.toml", "--sites", "grid.toml", "--spread", "0.3", *QUICK)
    once = grid.json(*words, "--failures", "0.05", "--seed", "7", status=0)

    assert grid.json(*words, "--failures", "0.05", "--seed", "7") == once
    assert grid.json(*words, "--failures", "0.05", "--seed", "8", status=0) != once


def test_a_simulated_run_is_kept_under_its_name(grid: Any) -> None:
    """With results, bill and report, as a real one; and it says that it cannot be resumed."""
    grid.bursar("simulate", "steps.toml", "--sites", "grid.toml", "--name", "trial", *QUICK)

    assert (grid.path / "runs" / "trial" / "report.html").stat().st_size > 10_000
    assert grid.json("bill", "trial")["total_micros"] > 0
    assert grid.json("report", "trial")["succeeded"] == 22
    again = grid.bursar("run", "--resume", "trial", status=2)
    assert "simulated" in again.stderr
    taken = ("simulate", "steps.toml", "--sites", "grid.toml", "--name", "trial")
    assert "exists already" in grid.bursar(*taken, status=2).stderr


@pytest.mark.ci
def test_a_goal_out_of_reach_and_bad_input(grid: Any) -> None:
    """Status 3 with counter-offers; one line, status 2."""
    out = grid.json("simulate", "steps.toml", "--sites", "grid.toml", "--deadline", "5m", status=3)
    assert out["counter_offers"]
    for sites, words in (
        ('[site.a]\nkind = "simulated"', "needs processors"),
        ('[site.a]\nkind = "simulated"\nprocessors = 4\ntrace = "none.swf"', "no file"),
        ('[site.a]\npolicy = "easy"', "goes with a simulated site only"),
        ('[site.a]\nkind = "simulated"\nprocessors = 4\nat = 5', "there is no trace"),
        ('[site.a]\nkind = "simulated"\nprocessors = 4\nslots = "s.csv"', "advertised site only"),
        ('[site.a]\nkind = "simulated"\nprocessors = 4', "needs 16 processors"),
    ):
        grid.write("bad.toml", sites + "\n")
        complaint = grid.bursar("simulate", "steps.toml", "--sites", "bad.toml", status=2).stderr
        assert words in complaint
        assert len(complaint.splitlines()) <= 2
    grid.write("empty.swf", "; nothing\n")
    grid.write("bad.toml", GRID.replace("log.swf", "empty.swf"))
    assert "no job" in grid.bursar("simulate", "steps.toml", "--sites", "bad.toml", status=2).stderr
    running = grid.bursar("run", "steps.toml", "--sites", "grid.toml", status=2).stderr
    assert "bursar simulate" in running
