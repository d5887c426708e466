"""What a run forecasts of processors that have not come yet: in a queue, or about to start."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.test_run_forecast import BEGIN, SITE, TASKS, ForecastRun, history_in, plan_of, usual

from bursar.forecasts.campaign_forecast import CampaignForecast
from bursar.model.campaign import Goal
from bursar.model.plan import Purchase
from bursar.model.provisioning import WorkerStarts
from bursar.provisioning.wait_forecast import WaitForecast
from bursar.provisioning.wait_prediction import WaitPredictor
from bursar.runs.forecasting.standing import QueuedRequest, RunStanding
from bursar.runs.forecasting.standing_forecast import StandingForecaster


def waits_of(*seconds: float) -> WaitForecast:
    """A forecast by 60 requests that waited for so long in turn."""
    record = WaitPredictor()
    for number in range(60):
        record.asked(f"{number}", "cluster", 4, 3600.0, 1e6 * number)
        record.began(f"{number}", 1e6 * number + seconds[number % len(seconds)])
    found = record.forecast("cluster", 4, 3600.0)
    assert found is not None
    return found


@pytest.fixture
def forecaster(tmp_path: Path) -> StandingForecaster:
    """Forecasts 20 tasks of 600 s, on four processors 3000 s."""
    history = history_in(tmp_path)
    return StandingForecaster(
        ForecastRun(tmp_path, history, usual()).campaign, (SITE,), history, ""
    )


def standing_of(
    now: float = 0.0,
    queued: WaitForecast | None = None,
    *,
    is_queued: bool = True,
    opening: float = 0.0,
) -> RunStanding:
    """A run whose only request waits, from its begin on, or holds processors since just now."""
    (purchase,) = plan_of(4).purchases
    slot = purchase.slot
    return RunStanding(
        now=now,
        moment=BEGIN + now,
        ended=frozenset(),
        running=(),
        attempts=(),
        spent=0.0,
        leases={"lease-1": Purchase(slot=slot)},
        queued={"lease-1": QueuedRequest(0.0, lambda: queued)} if is_queued else {},
        opening={"lease-1": WorkerStarts(0.0, opening)},
        held={},
        lease_of=dict.fromkeys(range(TASKS), "lease-1"),
        plan=None,
        goal=Goal(),
    )


def median(forecast: CampaignForecast | None) -> float:
    assert forecast is not None
    return forecast.end.quantile(0.5)


def test_a_request_that_queues_comes_after_its_wait(forecaster: StandingForecaster) -> None:
    soon = median(forecaster.forecast(standing_of(is_queued=False), ((), ())))
    late = forecaster.forecast(standing_of(queued=waits_of(500.0)), ((), ()))
    assert median(late) - soon == pytest.approx(500.0, rel=0.01)
    assert late is not None
    assert late.waiting is not None
    assert late.waiting.quantile(0.5) == pytest.approx(500.0)


def test_only_waits_longer_than_what_was_waited_are_left(forecaster: StandingForecaster) -> None:
    """Half wait 100 s and half 900 s: after 200 s the wait is one of 900 s."""
    both = waits_of(100.0, 900.0)
    soon = median(forecaster.forecast(standing_of(is_queued=False), ((), ())))
    begun = forecaster.forecast(standing_of(queued=both), ((), ()))
    assert begun is not None
    assert begun.waiting is not None
    assert begun.waiting.quantile(0.25) == pytest.approx(100.0, rel=0.05)
    waited = median(forecaster.forecast(standing_of(now=200.0, queued=both), ((), ())))
    assert waited - soon == pytest.approx(900.0, rel=0.01)


def test_longer_than_ever_is_a_while_longer(tmp_path: Path, forecaster: StandingForecaster) -> None:
    found = forecaster.forecast(standing_of(now=2000.0, queued=waits_of(100.0)), ((), ()))
    assert found is not None
    assert math.isfinite(found.end.quantile(0.9))
    assert found.end.quantile(0.1) > 2000.0


def test_a_request_of_which_nothing_is_known_makes_no_forecast(
    forecaster: StandingForecaster,
) -> None:
    assert forecaster.forecast(standing_of(queued=None), ((), ())) is None


def test_workers_that_start_take_their_time(forecaster: StandingForecaster) -> None:
    """
    Half of the workers start within a quarter of 600 s, and all within 200 s in the mean, which is
    what moves the median of a wider distribution. After 400 s, 0.82 of them would have started; the
    middle of the others comes at 0.91 ** 2 * 600 = 495 s.
    """
    soon = median(forecaster.forecast(standing_of(is_queued=False), ((), ())))
    starting = forecaster.forecast(standing_of(is_queued=False, opening=600.0), ((), ()))
    assert median(starting) - soon == pytest.approx(200.0, abs=60.0)
    late = forecaster.forecast(standing_of(now=400.0, is_queued=False, opening=600.0), ((), ()))
    assert median(late) - soon == pytest.approx(495.0, abs=30.0)


def test_a_pool_that_has_begun_to_ask_is_foreseen_with_what_its_tasks_can_use(
    forecaster: StandingForecaster,
) -> None:
    """Twenty tasks of 600 s: five rounds on four processors, two on sixteen, four by 3000 s."""
    four = standing_of(is_queued=False)
    assert median(forecaster.forecast(four, ((), ()))) == pytest.approx(3000.0, rel=0.2)
    pool = replace(four, lease_of={}, spare={SITE.name: 12})
    assert median(forecaster.forecast(pool, ((), ()))) == pytest.approx(1200.0, rel=0.2)
    hurried = replace(pool, goal=Goal(deadline=2600.0))
    # 20 tasks of 600 s with a margin of a quarter in 2570 s: six processors, four rounds.
    assert median(forecaster.forecast(hurried, ((), ()))) == pytest.approx(2400.0, rel=0.2)


def test_what_a_pool_still_asks_for_waits_as_its_requests_do(
    forecaster: StandingForecaster,
) -> None:
    pool = replace(standing_of(queued=waits_of(500.0)), lease_of={}, spare={SITE.name: 12})
    assert median(forecaster.forecast(pool, ((), ()))) == pytest.approx(1700.0, rel=0.2)
