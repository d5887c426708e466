"""Which tasks that take long get a copy, and where."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.forecasts.stragglers import (
    IdleWorker,
    RunningTask,
    blend_times,
    choose_copies,
    expected_rest,
    expected_time,
)

SEEN = {"work": [10.0] * 9}


def running(task: int, elapsed: float, **more: object) -> RunningTask:
    facts: dict[str, object] = {"worker": "w0", "kind": "work", "scale": 1.0, **more}
    return RunningTask(task=task, elapsed=elapsed, **facts)  # type: ignore[arg-type]


def idle(name: str = "w1", free: int = 1, **more: object) -> IdleWorker:
    facts: dict[str, object] = {"site": "here", **more}
    return IdleWorker(name=name, free=free, **facts)  # type: ignore[arg-type]


def test_the_next_time_may_be_beyond_all_that_were_seen() -> None:
    # Ten places among nine times: nine times 10 s, and once beyond, where the mean is 20 s.
    assert expected_time([10.0] * 9) == pytest.approx((9 * 10 + 20) / 10)


def test_what_has_run_longer_than_all_is_expected_to_take_as_long_again() -> None:
    assert expected_rest([10.0] * 9, 30.0) == pytest.approx(30.0)


def test_the_rest_follows_from_the_times_that_are_longer() -> None:
    # Of 10, 10, 30 and 40 s two are longer than 20 s: 10 and 20 s more; beyond all 80 - 20 = 60 s.
    assert expected_rest([10.0, 10.0, 30.0, 40.0], 20.0) == pytest.approx((10 + 20 + 60) / 3)


@given(st.lists(st.floats(0.1, 100), min_size=1), st.floats(0, 200))
def test_a_rest_is_finite_and_what_has_just_begun_takes_the_expected_time(
    times: list[float], elapsed: float
) -> None:
    seen = sorted(times)

    assert 0 <= expected_rest(seen, elapsed) < math.inf
    assert expected_rest(seen, 0.0) == pytest.approx(expected_time(seen))


def test_a_copy_must_be_worth_a_quarter_more_than_its_own_time() -> None:
    # A copy takes 11 s. At 13 s as long again is less than 1.25 * 11 = 13.75 s, at 14 s it is more.
    assert choose_copies([running(1, 13.0)], [idle()], SEEN, tasks=1) == []
    (chosen,) = choose_copies([running(1, 14.0)], [idle()], SEEN, tasks=1)
    assert (chosen.task, chosen.worker) == (1, "w1")
    assert (chosen.left, chosen.fresh) == pytest.approx((14.0, 11.0))


def test_too_few_times_say_nothing() -> None:
    assert choose_copies([running(1, 99.0)], [idle()], {"work": [10.0] * 4}, tasks=1) == []
    assert choose_copies([running(1, 99.0, kind="other")], [idle()], SEEN, tasks=1) == []


def test_a_tenth_of_the_running_tasks_have_copies_at_one_time_and_at_least_one() -> None:
    late = [running(n, 50.0 + n) for n in range(40)]

    assert [c.task for c in choose_copies(late, [idle(free=40)], SEEN, tasks=40)] == [
        39,
        38,
        37,
        36,
    ]
    assert len(choose_copies(late, [idle(free=40)], SEEN, tasks=40, copies=3)) == 1
    assert len(choose_copies(late[:3], [idle(free=40)], SEEN, tasks=3)) == 1
    assert choose_copies(late[:3], [idle(free=40)], SEEN, tasks=3, copies=1) == []


def test_a_copy_goes_where_it_fits_is_allowed_and_ends_in_time() -> None:
    wide = running(1, 90.0, processors=2, sites=frozenset(("here",)))

    assert choose_copies([wide], [idle(free=1)], SEEN, tasks=1) == []
    assert choose_copies([wide], [idle(free=2, site="there")], SEEN, tasks=1) == []
    assert choose_copies([wide], [idle(free=2, time_left=10.0)], SEEN, tasks=1) == []
    assert choose_copies([wide], [idle(free=2, time_left=12.0)], SEEN, tasks=1) != []


def test_the_fastest_worker_is_chosen_and_another_one_than_the_task_is_on() -> None:
    (chosen,) = choose_copies(
        [running(1, 90.0)], [idle("w0"), idle("w1"), idle("w2", speed=0.5)], SEEN, tasks=1
    )
    assert chosen.worker == "w1"
    (chosen,) = choose_copies(
        [running(1, 90.0)], [idle("w1"), idle("w2", speed=2.0)], SEEN, tasks=1
    )
    assert (chosen.worker, chosen.fresh) == ("w2", pytest.approx(5.5))


def test_the_scale_of_a_task_and_the_speed_where_it_runs_count() -> None:
    """14 s of a task whose usual time is twice that of others are not long."""
    assert choose_copies([running(1, 14.0, scale=2.0)], [idle()], SEEN, tasks=1) == []
    assert choose_copies([running(1, 28.0, scale=2.0)], [idle()], SEEN, tasks=1) != []
    assert choose_copies([running(1, 14.0, speed=0.5)], [idle()], SEEN, tasks=1) == []


def test_earlier_times_are_moved_to_those_of_this_execution_and_then_forgotten() -> None:
    assert blend_times([2.0] * 5, [1.0, 1.0, 3.0]) == [2.0] * 7 + [6.0]
    assert blend_times([2.0], [1.0, 1.0, 3.0]) == [1.0, 1.0, 2.0, 3.0]
    assert blend_times([2.0] * 20, [1.0]) == [2.0] * 20
