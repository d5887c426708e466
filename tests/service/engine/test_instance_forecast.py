"""Forecasts of instances from plain copies of their columns, and what counts as running."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from bursar.engine.task_states import CLAIMED, READY, SUCCEEDED, WAITING
from bursar.forecasts.calibration import score_beside
from bursar.model.task import Status
from bursar.service.engine.forecasting import running_claims
from bursar.service.engine.instance_forecast import forecast_instance, kind_of
from bursar.service.engine.instance_standing import EndedTask, ForecastScores, InstanceStanding

NOW = 1_000_000.0
NO_SCORES = ForecastScores()


def standing(states: list[int], **changes: Any) -> InstanceStanding:
    """An instance of tasks of one processor, each of which took 10 s so far."""
    count = len(states)
    known: dict[str, Any] = {
        "now": NOW,
        "states": bytes(states),
        "processors": [1] * count,
        "estimates": [math.inf] * count,
        "labels": {},
        "after": {},
        "groups": {},
        "running": (),
        "ends": [EndedTask("", 10.0, Status.SUCCEEDED, 1.0)] * 8,
        "room": 2,
        "price": 0.5,
        "spent": 40_000_000,
        "deadline": None,
        "budget": None,
    }
    return InstanceStanding(**(known | changes))


def test_a_bag_ends_when_its_processors_have_done_it() -> None:
    """Eight ended; ten of 10 s on two processors take 50 s and cost 10 x 10 x 0.5 beside 40."""
    made = forecast_instance(standing([SUCCEEDED] * 8 + [READY] * 10), NO_SCORES)
    assert made is not None
    assert made.told.end.p50 == pytest.approx(NOW + 50, rel=0, abs=5)
    assert made.told.cost is not None
    assert made.told.cost.p50 == pytest.approx(90e6, rel=0.1)
    assert made.told.deadline_odds is None
    assert made.told.budget_odds is None
    assert made.end[0] <= made.end[1] <= made.end[2]


def test_odds_are_of_the_limits_that_there_are() -> None:
    """Far ones are kept, missed ones are not; without a price nothing is said of a budget."""
    states = [SUCCEEDED] * 8 + [READY] * 10
    far = forecast_instance(standing(states, deadline=NOW + 500, budget=10**9), NO_SCORES)
    past = forecast_instance(standing(states, deadline=NOW - 1, budget=1), NO_SCORES)
    free = forecast_instance(standing(states, budget=10**9, price=None), NO_SCORES)
    assert far is not None
    assert past is not None
    assert free is not None
    assert (far.told.deadline_odds or 0) > 0.9
    assert (far.told.budget_odds or 0) > 0.9
    assert past.told.deadline_odds == 0
    assert past.told.budget_odds == 0
    assert free.told.cost is None
    assert free.told.budget_odds is None


def test_no_more_of_a_group_run_than_it_allows() -> None:
    """Of ten on sixteen processors two at a time: 50 s."""
    made = forecast_instance(
        standing(
            [SUCCEEDED] * 8 + [WAITING] * 10, groups=dict.fromkeys(range(8, 18), ("a", 2)), room=16
        ),
        NO_SCORES,
    )
    assert made is not None
    assert made.told.end.p50 == pytest.approx(NOW + 50, rel=0, abs=5)


def test_tasks_that_follow_others_wait_for_them() -> None:
    """A chain of four takes 40 s on however many processors."""
    made = forecast_instance(
        standing(
            [SUCCEEDED, READY, WAITING, WAITING, WAITING],
            after={1: (0,), 2: (1,), 3: (2,), 4: (3,)},
            room=16,
        ),
        NO_SCORES,
    )
    assert made is not None
    assert made.told.end.p50 == pytest.approx(NOW + 40, rel=0, abs=6)


def test_what_runs_has_less_left() -> None:
    """Two tasks that have run for most of their time end sooner than two that begin."""
    fresh = forecast_instance(standing([READY, READY]), NO_SCORES)
    begun = forecast_instance(standing([CLAIMED, CLAIMED], running=[(0, 9.0), (1, 9.0)]), NO_SCORES)
    assert fresh is not None
    assert begun is not None
    assert begun.told.end.p50 < fresh.told.end.p50 - 5


def test_kinds_are_told_apart_by_labels_without_numbers() -> None:
    """One long kind and one short: what is left is of the short one."""
    assert kind_of("fit seed=12 of 0.5") == kind_of("fit seed=7 of 1.25")
    ends = [EndedTask(f"long {n}", 100.0, Status.SUCCEEDED, 1.0) for n in range(5)]
    ends += [EndedTask(f"short {n}", 1.0, Status.SUCCEEDED, 1.0) for n in range(5)]
    labels = {n: f"short {n + 10}" for n in range(4)}
    made = forecast_instance(standing([READY] * 4, labels=labels, ends=ends), NO_SCORES)
    assert made is not None
    assert made.told.end.p90 < NOW + 20


def test_nothing_is_said_where_nothing_is_left_or_known() -> None:
    """All ended; or no task has ended and none has an estimate."""
    assert forecast_instance(standing([SUCCEEDED] * 3), NO_SCORES) is None
    assert forecast_instance(standing([READY] * 3, ends=[]), NO_SCORES) is None
    made = forecast_instance(standing([READY] * 3, ends=[], estimates=[5.0] * 3), NO_SCORES)
    assert made is None or made.told.basis == "estimates"


def test_earlier_forecasts_that_were_too_early_move_later_ones() -> None:
    """Twenty instances ended three times as far away as the 95 % quantile was."""
    states = [SUCCEEDED] * 8 + [READY] * 10
    plain = forecast_instance(standing(states), NO_SCORES)
    assert plain is not None
    late = score_beside(3 * plain.end[2], plain.end)
    moved = forecast_instance(standing(states), ForecastScores(end=[late] * 20))
    assert moved is not None
    assert moved.told.end.p50 > plain.told.end.p90


class _Worker:
    """A worker of so many processors."""

    def __init__(self, processors: int) -> None:
        self.processors = processors


def test_only_what_a_workers_processors_hold_runs() -> None:
    """What was given ahead waits at the worker, and has not begun."""
    worker, other = _Worker(2), _Worker(1)
    claims: Any = [
        SimpleNamespace(worker=worker, processors=1, given=1.0, task=0),
        SimpleNamespace(worker=worker, processors=1, given=2.0, task=1),
        SimpleNamespace(worker=worker, processors=1, given=3.0, task=2),
        SimpleNamespace(worker=other, processors=1, given=2.5, task=3),
    ]
    assert sorted(claim.task for claim in running_claims(claims)) == [0, 1, 3]
