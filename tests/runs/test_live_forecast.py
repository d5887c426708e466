"""When a run is forecast again."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bursar.history.writing import ExecutionFacts
from bursar.model.campaign import Campaign, Workflow
from bursar.model.task import Task
from bursar.runs.forecasting import live_forecast
from bursar.runs.forecasting.live_forecast import STILL, LiveForecast
from bursar.runs.supply import Supply


@pytest.mark.parametrize(
    ("p90", "waited", "is_due"),
    [
        (12.0, 1.0, False),  # too soon
        (12.0, 3.0, True),  # the run has not ended by the moment that nine of ten keep
        (100.0, 3.0, False),  # no task has ended: there is no news
        (100.0, STILL, True),
    ],
)
def test_a_run_that_outlives_its_forecast_is_forecast_again(
    p90: float, waited: float, is_due: bool
) -> None:
    """
    Else "0 s left, odds 99 %" was told for 20 s while the last tasks ran far longer than expected.
    """
    campaign = Campaign(name="c", workflow=Workflow((Task(id="a", runtime=1.0),)))
    facts = ExecutionFacts(name="r", campaign="c")
    live = LiveForecast(campaign, [], None, facts, print, {})
    seen: Any = SimpleNamespace(
        standing=SimpleNamespace(now=10.0),
        fan=SimpleNamespace(end_s=SimpleNamespace(p50=11.0, p90=p90)),
    )
    live.latest = seen
    live._last, live._seen = 100.0, 0
    live._kept = {0.0}
    supply = cast(Supply, None)  # only one with a plan is asked anything
    assert live._is_due(100.0 + waited, 0.0, supply) is is_due


def test_what_the_first_forecast_loads_does_not_hold_back_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forecasts of 10 ms were kept from a run for 30 s by what the first one loads, 0.3 s."""
    campaign = Campaign(name="c", workflow=Workflow((Task(id="a", runtime=1.0),)))
    live = LiveForecast(campaign, [], None, ExecutionFacts(name="r", campaign="c"), print, {})
    made: Any = SimpleNamespace()
    monkeypatch.setattr(live, "_forecast", lambda standing: made)
    clock = iter(range(100))
    monkeypatch.setattr(live_forecast.time, "thread_time", lambda: float(next(clock)))

    live.latest = live._update(made)
    first = live._cost
    live._update(made)

    assert (first, live._cost) == (0.0, 1.0)
