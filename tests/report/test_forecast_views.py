"""The record of forecasts: what is counted, and how that is drawn."""

import pytest
from tests.history.test_forecast_records import kept

from bursar.history.forecast_records import GRID, ForecastTruth, ScoredForecast
from bursar.report.forecast_views import (
    calibration_of,
    calibration_plot,
    forecasts_to_dict,
    share_interval,
    summarise_forecasts,
)


def record() -> list[ScoredForecast]:
    """
    A hundred runs whose ends come at 1, 2, ... 100 where each percent is as likely, and one of
    which nothing is known.
    """
    forecast = kept(end=tuple(100.0 * share for share in GRID))
    made = [
        ScoredForecast(
            run=f"r{end}", campaign="c", forecast=forecast, truth=ForecastTruth(end=end - 0.5)
        )
        for end in range(1, 101)
    ]
    amended = ForecastTruth(without="the goal was amended")
    return [*made, ScoredForecast(run="a", campaign="d", forecast=forecast, truth=amended)]


def test_a_calibrated_record_holds_as_often_as_it_says() -> None:
    """Of a hundred evenly spread truths fifty lie in the 50 % interval, and ninety in the other."""
    whole = summarise_forecasts(record())[0]
    assert (whole.by, whole.forecasts, whole.runs) == ("all", 100, 100)
    assert (whole.held_50, whole.held_90) == (0.5, 0.9)
    assert (whole.below_50, whole.below_90) == (0.5, 0.9)
    # Wilson's interval of 90 of 100: the usual textbook value.
    assert whole.interval_90 == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert all(share == pytest.approx(seen) for share, seen in calibration_of(record()))
    assert summarise_forecasts(record(), "cost") == []


def test_forecasts_of_one_run_count_as_one_trial() -> None:
    """They miss together: twenty forecasts of two runs say little of the next run."""
    twice = [
        ScoredForecast(run=f"r{i % 2}", campaign="c", forecast=one.forecast, truth=one.truth)
        for i, one in enumerate(record()[:20])
    ]
    whole = summarise_forecasts(twice)[0]
    assert (whole.forecasts, whole.runs) == (20, 2)
    assert whole.interval_90 == share_interval(whole.held_90, 2)


def test_what_has_no_truth_is_counted_with_its_reason() -> None:
    """As JSON and for people."""
    told = forecasts_to_dict(record())
    assert told["forecasts"] == 101
    assert told["without_truth"] == {"the goal was amended": 1}
    assert {group["by"] for group in told["end"]["groups"]} == {
        "all", "basis", "share", "campaign", "site", "kind",
    }  # fmt: skip


def test_the_plot_marks_where_a_calibrated_bar_ends() -> None:
    """A bar of 40 characters is full at 100 %; the mark is at the forecast's share."""
    _, line = calibration_plot([(0.5, 0.25)])
    bar = line.split()[-1]
    assert bar.count("#") == 10
    assert bar.index("|") == 20
