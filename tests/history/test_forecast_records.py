"""Forecasts kept in the file of a history: whole, once, and sound whatever the file holds."""

import math
from pathlib import Path
from typing import Any

import apsw
import pytest

from bursar.history.forecast_records import (
    FEW,
    GRID,
    NEWEST_SCORES,
    SHARES,
    ForecastTruth,
    FoundScore,
    KeptForecast,
    nearest_scores,
)
from bursar.history.selection import Selection
from bursar.history.store import History
from bursar.history.writing import ExecutionFacts


def kept(share: float = 0.25, made: float = 1000.0, **more: Any) -> KeptForecast:
    """A forecast of an end about 100 s after the begin."""
    values: dict[str, Any] = {
        "share": share,
        "ended": 5,
        "tasks": 20,
        "made": made,
        "elapsed": 10.0,
        "spent": 1.0,
        "basis": "history",
        "executions": 3,
        "observed": 60,
        "sites": ("here",),
        "kinds": ("work",),
        "end": tuple(100.0 + share for share in GRID),
        "cost": (),
        "end_draws": (80.0, 90.0, 110.0),
        "cost_draws": None,
        "deadline": None,
        "budget": None,
        "odds": None,
        "confidence": 0.9,
    }
    return KeptForecast(**values | more)


def facts(name: str = "run") -> ExecutionFacts:
    """An execution."""
    return ExecutionFacts(name=name, campaign="c")


def test_what_was_forecast_first_stays_and_so_does_the_truth(tmp_path: Path) -> None:
    """A run that is resumed or written up again changes nothing."""
    history = History(tmp_path / "h.sqlite")
    assert history.forecasts() == []
    assert history.forecast_scores("c", "history", 0.0) == ([], [])
    history.add_forecast(facts(), kept())
    history.add_forecast(facts(), kept(ended=9))
    history.add_truths("run", {0.25: ForecastTruth(end=99.0, end_score=0.5)})
    history.add_truths("run", {0.25: ForecastTruth(end=55.0, end_score=3.0)})
    history.add_truths("nobody", {0.25: ForecastTruth(end=55.0)})

    (found,) = history.forecasts()
    assert found.forecast == kept()
    assert found.truth == ForecastTruth(end=99.0, end_score=0.5)
    assert (found.run, found.campaign) == ("run", "c")
    assert history.forecasts("another") == []
    assert history.forecast_scores("c", "history", 0.3) == ([(0.5, True)], [])
    assert history.forecast_scores("d", "other size", 0.0) == ([(0.5, False)], [])


def test_a_history_of_an_earlier_version_gets_the_table_with_the_first_forecast(
    tmp_path: Path,
) -> None:
    """Until then it is read as one without forecasts."""
    history = History(tmp_path / "h.sqlite")
    history.add([], [facts("before")])
    assert history.forecasts() == []
    history.add_truths("before", {0.0: ForecastTruth(end=1.0)})
    history.add_forecast(facts("after"), kept())
    assert [one.run for one in history.forecasts()] == ["after"]


def test_what_is_forgotten_takes_its_forecasts_along(tmp_path: Path) -> None:
    """Else the number of an execution that is forgotten would name another one later."""
    history = History(tmp_path / "h.sqlite")
    history.add_forecast(facts(), kept())
    history.forget(Selection())
    assert history.forecasts() == []


def test_damaged_rows_spoil_no_others(tmp_path: Path) -> None:
    """Whatever a row holds, the sound ones are told, and no score is infinite."""
    path = tmp_path / "h.sqlite"
    history = History(path)
    for name in ("sound", "text", "short", "number", "score", "huge"):
        history.add_forecast(facts(name), kept())
        history.add_truths(name, {0.25: ForecastTruth(end=99.0, end_score=0.5)})
    history.add_forecast(facts("infinite"), kept(end=(math.inf,) * len(GRID)))
    history.add_forecast(facts("fewer"), kept(end=(1.0, 2.0)))

    db = apsw.Connection(str(path))

    def spoil(name: str, column: str, value: Any) -> None:
        db.execute(
            f"UPDATE forecasts SET {column} = ? WHERE execution = "
            "(SELECT id FROM executions WHERE name = ?)",
            (value, name),
        )

    spoil("text", "record", b"\xff no record")
    spoil("short", "record", b"")
    spoil("number", "end", "soon")
    spoil("score", "end_score", "nan")
    spoil("huge", "end_score", 1e300)
    db.close()

    assert {one.run for one in history.forecasts()} == {"sound", "huge"}
    ends, _ = history.forecast_scores("c", "history", 0.25)
    assert {score for score, _ in ends} == {0.5}


def test_scores_come_from_the_most_similar_forecasts() -> None:
    """The same share first, then the nearest; one of each run; then the nearest basis."""

    def row(run: int, share: float, score: float, basis: str = "history") -> FoundScore:
        return FoundScore(run, "c" if run % 2 else "d", basis, share, score)

    rows = [row(1, 0.75, 9.0), row(1, 0.5, 1.0), row(2, 0.25, 2.0), row(3, 0.5, 3.0, "estimates")]
    rows += [row(4, 0.5, 4.0, "other size"), row(5, 0.4, 5.0), row(6, 0.5, math.nan)]
    # Newest last: of the nearest basis, of another share, of the same share.
    assert nearest_scores(rows, "c", "history", 0.5) == [(4.0, False), (2.0, False), (1.0, True)]
    many = [row(run, share, run) for run in range(FEW) for share in SHARES]
    assert len(nearest_scores([*many, row(99, 0.0, 7.0, "other size")], "c", "history", 0.0)) == FEW
    most = [row(run, 0.0, 1.0) for run in range(2 * NEWEST_SCORES)]
    assert len(nearest_scores(most, "c", "history", 0.0)) == NEWEST_SCORES


@pytest.mark.parametrize("score", [None, "1", math.inf, 1e9])
def test_what_is_no_score_is_left_out(score: object) -> None:
    """A broken record must not move a forecast."""
    assert nearest_scores([FoundScore(1, "c", "history", 0.0, score)], "c", "history", 0.0) == []
