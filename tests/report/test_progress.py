"""Progress: a panel for who looks, sparse whole lines for a file."""

import io
import itertools
from dataclasses import replace

import pytest
from rich.console import Console

from bursar.forecasts.fan import Fan, ForecastFan
from bursar.report.progress import ProgressSnapshot, RunProgress, SiteProgress, outlook

SNAPSHOT = ProgressSnapshot(
    campaign="epidemic",
    elapsed=10.0,
    total=200,
    succeeded=50,
    running=2,
    waiting=147,
    failed=1,
    skipped=0,
    spent=1.5,
    held=2.25,
    budget=8.0,
    currency="EUR",
    predicted_finish=40.0,
    current_finish=55.0,
    deadline=None,
    sites=(SiteProgress(name="here", processors=4, busy=2, running=2),),
)


def shown(*, terminal: bool, snapshots: list[ProgressSnapshot]) -> str:
    """What is printed for these, one after the other."""
    text = io.StringIO()
    console = Console(file=text, width=200, force_terminal=terminal)
    with RunProgress(console=console) as progress:
        for snapshot in snapshots:
            progress.update(snapshot)
        progress.notify("t7 failed: no such file")
    return text.getvalue()


def test_a_file_gets_whole_lines_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line after two seconds, then ever rarer; no control characters; messages at once."""
    seconds = itertools.count()
    monkeypatch.setattr("bursar.report.progress.time.monotonic", lambda: float(next(seconds)))
    moments = [replace(SNAPSHOT, elapsed=float(i)) for i in range(300)]

    text = shown(terminal=False, snapshots=moments)

    assert "\x1b" not in text
    lines = text.splitlines()
    assert 4 <= len(lines) <= 10
    assert lines[-1] == "t7 failed: no such file"
    for word in ("50 of 200 done", "2 running", "1.5 EUR", "2.25", "planned 40 s"):
        assert word in lines[0], word


def test_a_terminal_gets_a_panel() -> None:
    """Done, running, failed; rate; spent, held and budget; both finishes; each site."""
    text = shown(terminal=True, snapshots=[SNAPSHOT, replace(SNAPSHOT, elapsed=11.0)])

    for word in ("epidemic", "200", "running", "failed", "spent", "held", "budget", "here", "2/4"):
        assert word in text, word
    assert "t7 failed: no such file" in text


def test_unknown_finishes_are_not_made_up() -> None:
    """Without runtimes there is no time left to tell."""
    unknown = replace(SNAPSHOT, predicted_finish=None, current_finish=None, elapsed=3.0)

    text = shown(terminal=False, snapshots=[unknown])

    assert "left" not in text
    assert "planned 0" not in text


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither lines nor messages."""
    with RunProgress(enabled=False) as progress:
        progress.update(replace(SNAPSHOT, elapsed=30.0))
        progress.notify("t7 failed")

    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_rate_and_finishes_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tasks in two seconds are five each second; what is left counts from now."""
    monkeypatch.setattr("bursar.report.progress.FIRST_LINE", 0.0)
    seconds = iter([0.0, -1.0, 5.0, 5.0])  # made; too early for a line; in time for one
    monkeypatch.setattr("bursar.report.progress.time.monotonic", lambda: next(seconds))
    later = replace(SNAPSHOT, elapsed=12.0, succeeded=60, deadline=90.0, failed=0)

    line = shown(terminal=False, snapshots=[SNAPSHOT, later]).splitlines()[0]

    assert line == (
        "epidemic: 60 of 200 done, 2 running, 5/s, spent 1.5 EUR, held 2.25, budget 8,"
        " 12 s gone, 43 s left, planned 40 s, deadline 1 min 30 s"
    )


def test_the_panel_shows_the_rate_and_goes_away() -> None:
    """The live panel is transient: after the run, only what was said stays on the screen."""
    text = shown(terminal=True, snapshots=[SNAPSHOT, replace(SNAPSHOT, elapsed=12.0, succeeded=60)])

    assert "5/s" in text
    assert "43 s left" in text
    assert text.endswith("\x1b[1A\x1b[2K" * 4)  # up and wiped, each of its four lines


def test_a_run_past_its_forecast_is_not_told_to_end_at_once() -> None:
    """Past the median its last tenth is told, past that the forecast is said to be wrong."""
    fan = ForecastFan(
        at_s=2.0,
        end_s=Fan(p10=20.0, p50=30.0, p90=40.0),
        cost=Fan(p10=1.0, p50=2.0, p90=4.0),
        odds=0.97,
    )

    before, between, after = (
        outlook(replace(SNAPSHOT, elapsed=elapsed, spent=spent, forecast=fan))
        for elapsed, spent in ((10.0, 1.5), (35.0, 3.0), (41.0, 4.5))
    )

    assert before == "20 s left, 30 s at 90 %; cost 2, 4 EUR at 90 %; odds 97 %"
    assert between == "5 s left at 90 %; cost 4 EUR at 90 %; odds 97 %"
    assert after == "longer than forecast, which was 40 s at 90 %"
