"""Forecasts as their user meets them: real runs that know their tasks from a history."""

import re
import shlex
import signal
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bursar.api.amending import forecast_amendment
from bursar.dispatch.journal import read_journal
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.task import Status
from bursar.report.run_report import data_of_page

TASKS = """\
[campaign]
name = "slow"
command = "sleep {seconds}"
[parameters]
seconds = [%s]
[goal]
deadline = "%s"
"""

SITES = """\
[site.here]
kind = "local"
processors = 1
unit_price = "0.04 EUR/core-hour"
"""


@pytest.fixture
def known(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a history in which tasks of the campaign have taken 0.2 s."""
    path = folder.path / "history.sqlite"
    monkeypatch.setenv("BURSAR_HISTORY", str(path))
    begin = time.time() - 1e5
    History(path).add(
        TaskObservation(
            execution=f"earlier-{run}",
            task=f"slow-{i}",
            attempt=1,
            kind="slow",
            template="sleep {seconds}",
            site="here",
            start=begin + 1000.0 * run + i,
            seconds=0.2 + 0.01 * (i % 3) + 0.005 * run,
            status=Status.SUCCEEDED,
            processors=1,
            speed=1.0,
        )
        for run in range(4)
        for i in range(8)
    )
    folder.write("sites.toml", SITES)
    return folder


@pytest.mark.ci
def test_a_run_that_turns_slow_says_what_to_type_and_is_on_the_record(known: Any) -> None:
    """
    Tasks take 1 s in place of 0.2 s: the line names a command, which gives the run its new goal;
    forecasts from before have no truth then.
    """
    known.write("c.toml", TASKS % (", ".join(["1.0"] * 8), "4 s"))
    run = known.start("run", "c.toml", "--sites", "sites.toml", "--name", "r")
    journal = known.path / "runs" / "r"
    line = said(known, journal, "bursar amend")
    assert re.match(r"odds \d+ % to end by \d\d:\d\d:\d\d \(90 % asked\); \d+ % (by|with) ", line)
    words = shlex.split(line.partition(": bursar ")[2])
    assert words[:2] == ["amend", "r"]
    known.bursar(*words)
    run.wait()

    summary = known.json("report", "r")
    assert summary["deadline_s"] > 4.0
    assert summary["forecast"]["end_s"]["p10"] <= summary["forecast"]["end_s"]["p90"]
    told = known.json("forecasts")
    assert told["without_truth"]["the goal was amended"] >= 1
    shown = known.bursar("forecasts", "--campaign", "slow").stdout
    assert "without a truth: the goal was amended" in shown
    assert "no forecast is of" in known.bursar("forecasts", "--site", "no", status=2).stderr
    assert data_of_page((journal / "report.html").read_text())["forecast"]


def test_the_record_holds_the_truth_after_kill_9_and_resume(known: Any) -> None:
    """What the killed process forecast stays, and is compared with what came in the end."""
    known.write("c.toml", TASKS % (", ".join(["0.5"] * 8), "1 h"))
    run = known.start("run", "c.toml", "--sites", "sites.toml", "--name", "r")
    history = History(known.path / "history.sqlite")
    until = time.monotonic() + 30.0
    while not history.forecasts():
        assert time.monotonic() < until
        time.sleep(0.1)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert all(one.truth.is_open for one in history.forecasts())
    known.bursar("run", "--resume", "r")

    kept = history.forecasts()
    assert kept
    assert all(one.truth.end is not None for one in kept)
    assert len({one.forecast.share for one in kept}) == len(kept)
    (every, *_) = known.json("forecasts")["end"]["groups"]
    assert (every["by"], every["runs"], every["forecasts"]) == ("all", 1, len(kept))


@pytest.mark.ci
def test_another_goal_is_judged_by_how_the_run_stands_and_not_by_what_it_said(known: Any) -> None:
    """
    A pool asks for as many of the four processors as its deadline needs: two hundred sleeps of
    0.5 s have poor odds within 20 s, and good ones within an hour, with fewer processors.
    """
    known.write("sites.toml", SITES.replace("processors = 1", "processors = 4"))
    known.write("c.toml", TASKS % (", ".join(["0.5"] * 200), "1 h"))
    pool = ("--provisioning", "dynamic", "--name", "r")
    run = known.start("run", "c.toml", "--sites", "sites.toml", *pool)
    folder = known.path / "runs" / "r"
    until = time.monotonic() + 30.0
    while not (folder / "journal.sqlite").exists() or ended_in(folder) < 4:
        assert time.monotonic() < until
        time.sleep(0.1)

    in_an_hour = (datetime.now() + timedelta(hours=1)).isoformat(" ")
    soon, late, then = (
        forecast_amendment("r", deadline=deadline, runs=known.path / "runs")
        for deadline in (20.0, 3600.0, in_an_hour)
    )
    assert then.goal.deadline == pytest.approx(then.elapsed + 3600, abs=10)
    run.send_signal(signal.SIGTERM)
    run.wait()

    for verdict in (soon, late):
        assert verdict.fan is not None
        assert verdict.fan.at_s == verdict.elapsed
    assert soon.fan is not None
    assert late.fan is not None
    assert soon.fan.odds < 0.5
    assert late.fan.odds > 0.9
    assert soon.fan.end_s.p50 < late.fan.end_s.p50
    assert not soon.feasible
    assert late.feasible


def ended_in(run: Path) -> int:
    """The number of tasks of a run that have ended."""
    return len(read_journal(run / "journal.sqlite").records)


def said(folder: Any, run: Path, part: str) -> str:
    """Wait until a run has told something, and return the line."""
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        if (run / "journal.sqlite").exists():
            for event in read_journal(run / "journal.sqlite").events:
                if event.kind == "message" and part in event.text:
                    return event.text
        time.sleep(0.1)
    raise AssertionError(f"nobody said {part}")
