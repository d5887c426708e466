"""Which tasks that take long get a copy, and where."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.forecasts.stragglers import (
    IdleWorker,
    RunningTask,
    RunOutlook,
    blend_times,
    choose_copies,
    choose_purchase,
    copy_chance,
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


def outlook(odds: float = 1.0, cost: float = 1.0, end: float = 100.0, paid: float = 1.0) -> Any:
    return RunOutlook(odds=odds, paid=paid, end=end, cost=cost)


def bought(without: Any, *offers: Any, deadline: bool = True) -> int | None:
    return choose_purchase(without, offers, now=0.0, confidence=0.9, has_deadline=deadline)


def test_nothing_is_bought_while_the_deadline_is_as_certain_as_asked() -> None:
    assert bought(outlook(0.9), outlook(1.0)) is None
    assert bought(outlook(0.89), outlook(1.0)) == 0


def test_the_cheapest_copy_is_bought_that_makes_the_deadline_as_certain_as_asked() -> None:
    assert bought(outlook(0.5), outlook(0.99, 3.0), outlook(0.91, 2.0), outlook(0.8, 1.0)) == 1


def test_else_the_copy_is_bought_that_raises_the_odds_most() -> None:
    assert bought(outlook(0.1), outlook(0.3, 1.0), outlook(0.4, 9.0), outlook(0.4, 8.0)) == 2
    assert bought(outlook(0.1), outlook(0.119)) is None


def test_without_a_deadline_the_end_must_come_clearly_sooner() -> None:
    assert bought(outlook(), outlook(end=95.0), deadline=False) is None
    assert bought(outlook(), outlook(end=94.0), outlook(end=80.0), deadline=False) == 1
    # Of no use where nothing is known of the end.
    assert bought(outlook(end=math.inf), outlook(end=math.inf), deadline=False) is None


def test_no_copy_is_bought_that_endangers_the_budget() -> None:
    assert bought(outlook(0.1), outlook(0.9, paid=0.89)) is None
    assert bought(outlook(0.1), outlook(0.9, paid=0.91)) == 0
    # The budget is in danger already: a copy must at least not make that worse.
    assert bought(outlook(0.1, paid=0.5), outlook(0.9, paid=0.49)) is None
    assert bought(outlook(0.1, paid=0.5), outlook(0.9, paid=0.5)) == 0


offers = st.builds(
    RunOutlook,
    odds=st.floats(0, 1),
    paid=st.floats(0, 1),
    end=st.floats(0, 1000),
    cost=st.floats(0, 100),
)


@given(offers, st.lists(offers, max_size=5), st.booleans(), st.floats(0.5, 0.99))
def test_what_is_bought_improves_what_is_asked_for(
    without: RunOutlook, found: list[RunOutlook], deadline: bool, confidence: float
) -> None:
    at = choose_purchase(without, found, now=0.0, confidence=confidence, has_deadline=deadline)

    if at is not None:
        assert found[at].paid >= min(confidence, without.paid)
        assert found[at].odds > without.odds if deadline else found[at].end < without.end
        same = [one for one in found if one.odds >= found[at].odds and one.end <= found[at].end]
        assert all(one.cost >= found[at].cost or one.paid < confidence for one in same)


def test_copies_that_lose_make_the_next_one_less_likely_to_win() -> None:
    assert copy_chance(0, 0) == 0.5
    assert copy_chance(3, 0) == pytest.approx(0.8)
    assert copy_chance(0, 8) == pytest.approx(0.1)
