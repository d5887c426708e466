"""Another goal of a run is judged by the run's own forecast, where it has made one."""

from pathlib import Path

import pytest

from bursar.api.amending import AmendmentForecast
from bursar.forecasts.fan import Fan, ForecastFan
from bursar.model.campaign import Goal

FAN = ForecastFan(
    at_s=10.0,
    end_s=Fan(p10=50.0, p50=60.0, p90=90.0),
    cost=Fan(p10=1.0, p50=2.0, p90=3.0),
    odds=None,
    confidence=0.9,
    basis="history",
)


@pytest.mark.parametrize(
    ("deadline", "budget", "feasible"),
    [(95.0, 3.5, True), (80.0, 3.5, False), (95.0, 2.5, False)],
)
def test_a_goal_must_be_kept_by_nine_of_ten(deadline, budget, feasible):
    verdict = AmendmentForecast(
        run="night",
        folder=Path("night"),
        goal=Goal(deadline=deadline, budget=budget),
        elapsed=12.0,
        spent=0.5,
        currency="EUR",
        finish=60.0,
        cost=2.0,
        fan=FAN,
    )
    assert verdict.feasible is feasible
    assert "with 90 % it ends within 1 min 30 s and costs at most 3 EUR" in verdict.reason
    assert verdict.to_dict()["forecast"]["end_s"]["p90"] == 90.0
