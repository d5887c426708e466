"""Whether processors are bought for a copy, by the draws of a run's forecast."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runs.test_run_forecast import (
    BEGIN,
    PRICE,
    SITE,
    TASKS,
    ForecastRun,
    history_in,
    plan_of,
    usual,
)

from bursar.forecasts.stragglers import CopyChoice
from bursar.model.campaign import Goal
from bursar.model.plan import Purchase
from bursar.model.task import Status
from bursar.runs.forecasting.copy_offers import ChosenCopy, CopyOffer, judge_copies
from bursar.runs.forecasting.standing import (
    EndedAttempt,
    RunningAttempt,
    RunStanding,
    StandingCopy,
)
from bursar.runs.forecasting.standing_forecast import StandingForecaster

LATE = TASKS - 1
NOW = 6000.0


def standing_of(**more: object) -> RunStanding:
    """The last task has run for 3,000 s, where 600 s are usual."""
    slot = replace(plan_of(4).purchases[0].slot, start=-1.0, processors=1)
    known: dict[str, object] = {
        "goal": Goal(deadline=NOW + 900.0),
        "stragglers": frozenset({LATE}),
        **more,
    }
    return RunStanding(
        now=NOW,
        moment=BEGIN,
        ended=frozenset(range(LATE)),
        running=[RunningAttempt(LATE, "cluster", "lease-1", 3000.0)],
        attempts=[
            EndedAttempt(n, "cluster", 600.0 + 10 * (n % 7), Status.SUCCEEDED, 1.0)
            for n in range(LATE)
        ],
        spent=50.0,
        leases={"lease-1": Purchase(slot=slot)},
        held={"cluster": 1},
        queued={},
        opening={},
        lease_of={LATE: "lease-1"},
        plan=None,
        **known,  # type: ignore[arg-type]
    )


def offer(price: float = PRICE, comes: float = NOW) -> CopyOffer:
    slot = replace(plan_of(1).purchases[0].slot, unit_price=price)
    return CopyOffer(
        choice=CopyChoice(task=LATE, worker="cluster", left=3000.0, fresh=600.0),
        copy=StandingCopy(task=LATE, site="cluster", comes=comes, bought=slot),
    )


@pytest.fixture(name="forecaster")
def made(tmp_path: Path) -> StandingForecaster:
    history = history_in(tmp_path)
    campaign = ForecastRun(tmp_path, history, usual()).campaign
    return StandingForecaster(campaign, (SITE,), history, "")


def judged(
    forecaster: StandingForecaster, standing: RunStanding, offers: Sequence[CopyOffer]
) -> ChosenCopy | None:
    forecast = forecaster.forecast(standing, ((), ()))
    assert forecast is not None
    return judge_copies(standing, forecast, offers, forecaster.again)


def test_a_copy_is_bought_where_attempts_are_slow_and_not_where_tasks_are(
    forecaster: StandingForecaster,
) -> None:
    """
    What has run for 3,000 s has ended after 900 more with 1 - (3000 / 3900)^2, 41 %. A copy of its
    own time, about 600 s, ends before that.
    """
    found = judged(forecaster, standing_of(fresh=0.9), [offer()])

    assert found is not None
    assert found.before.odds == pytest.approx(0.41, abs=0.12)
    assert found.after.odds > found.before.odds + 0.2
    assert 500 < found.seconds < 1800
    # As long as the task itself: nothing is won.
    assert judged(forecaster, standing_of(fresh=0.0), [offer()]) is None


def test_the_price_is_that_of_the_time_until_the_race_is_decided(
    forecaster: StandingForecaster,
) -> None:
    standing = standing_of(fresh=1.0)
    forecast = forecaster.forecast(standing, ((), ()))
    free = forecaster.again(replace(standing, copies=[offer(0.0).copy]))
    paid = forecaster.again(replace(standing, copies=[offer(0.1).copy]))
    assert forecast is not None
    assert free is not None
    assert paid is not None
    assert free.cost is not None
    assert paid.cost is not None

    lasts = free.end.mean() - NOW
    assert lasts < forecast.end.mean() - NOW
    assert paid.cost.mean() - free.cost.mean() == pytest.approx(0.1 * lasts, rel=1e-6)
    assert paid.end.mean() == free.end.mean()


def test_processors_that_come_late_or_never_are_not_bought(forecaster: StandingForecaster) -> None:
    standing = standing_of(fresh=1.0)
    assert judged(forecaster, standing, [offer(comes=NOW + 800.0)]) is None
    assert judged(forecaster, standing, [offer(comes=math.inf)]) is None
    found = judged(forecaster, standing, [offer(comes=NOW + 800.0), offer()])
    assert found is not None
    assert found.offer.copy.comes == NOW


def test_a_budget_that_a_copy_would_exceed_forbids_it(forecaster: StandingForecaster) -> None:
    goal = Goal(deadline=NOW + 900.0, budget=100.0)
    assert judged(forecaster, standing_of(fresh=1.0, goal=goal), [offer(0.01)]) is not None
    assert judged(forecaster, standing_of(fresh=1.0, goal=goal), [offer(1.0)]) is None


def test_a_copy_that_runs_is_a_part_of_the_forecast(forecaster: StandingForecaster) -> None:
    """It has run for as long as usual tasks, and ends soon; a second forecast has the same law."""
    alone = forecaster.forecast(standing_of(), ((), ()))
    copy = StandingCopy(task=LATE, site="cluster", seconds=600.0, comes=NOW - 600.0)
    raced = forecaster.forecast(
        standing_of(fresh=1.0, copies=[copy], stragglers=frozenset()), ((), ())
    )
    assert alone is not None
    assert raced is not None

    assert raced.end.quantile(0.9) < NOW + 600.0 < alone.end.quantile(0.9)
    assert np.all(raced.end.draws <= alone.end.draws + 3000.0)
