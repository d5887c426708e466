"""Another goal of a run is judged by the run's own forecast, where it has made one."""

from dataclasses import replace
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


def _verdict(deadline: float, budget: float) -> AmendmentForecast:
    return AmendmentForecast(
        run="night",
        folder=Path("night"),
        tasks=8,
        goal=Goal(deadline=deadline, budget=budget),
        elapsed=12.0,
        spent=0.5,
        currency="EUR",
        finish=60.0,
        cost=2.0,
        fan=FAN,
    )


@pytest.mark.parametrize(
    ("deadline", "budget", "feasible"),
    [(95.0, 3.5, True), (80.0, 3.5, False), (95.0, 2.5, False)],
)
def test_a_goal_must_be_kept_by_nine_of_ten(deadline, budget, feasible):
    verdict = _verdict(deadline, budget)
    assert verdict.feasible is feasible
    assert "with 90 % it ends within 1 min 30 s and costs at most 3 EUR" in verdict.reason
    assert verdict.to_dict()["forecast"]["end_s"]["p90"] == 90.0


@pytest.mark.parametrize(
    ("deadline", "budget", "kind", "taken"),
    [
        (80.0, 3.5, "time", Goal(deadline=90.0, budget=3.5)),
        (95.0, 2.5, "budget", Goal(deadline=95.0, budget=3.0)),
    ],
)
def test_an_offer_is_a_goal_that_nine_of_ten_keep(deadline, budget, kind, taken):
    """One limit moves; where both are out of reach, no one of the two is enough."""
    verdict = _verdict(deadline, budget)
    offer, goal = verdict.counter_offer(kind)
    assert goal == taken
    assert replace(verdict, goal=goal).feasible
    assert verdict.to_dict()["counter_offers"][0]["kind"] == offer.kind == kind
    other = {"time": "budget", "budget": "time"}[kind]
    assert verdict.counter_offer(other) is None
    assert _verdict(80.0, 2.5).counter_offers == ()
    assert _verdict(95.0, 3.5).counter_offers == ()
