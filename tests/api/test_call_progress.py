"""Deadline and budget of an executor: odds while calls go on, and what happens at the limit."""

import re
import time
from pathlib import Path

import pytest

import bursar
from bursar.api.calls.call_progress import CallsStanding
from bursar.api.executor import Executor
from bursar.engine.run_tasks import TaskCounts
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.task import Task
from bursar.runs.forecasting.standing import RunningAttempt, RunStanding


@pytest.mark.ci
def test_progress_tells_counts_money_and_odds() -> None:
    """
    In one line and, in a notebook, as a bar; the forecast comes when the first calls have ended.
    """
    with Executor(2, deadline="10 min", budget="5 SU", history="none") as executor:
        assert executor.progress().forecast is None
        calls = executor.options(name="nap")
        futures = [calls.submit(time.sleep, 0.05) for _ in range(40)]
        for future in futures[:10]:
            future.result(60)
        found = executor.progress()
        assert "<progress" in executor._repr_html_()

    assert found.total == 40
    assert 10 <= found.succeeded < 40
    assert found.succeeded + found.running + found.waiting == 40
    assert found.forecast is not None
    assert found.forecast.odds is not None
    assert found.forecast.odds > 0.9
    assert found.elapsed < found.forecast.end_s.p50 <= found.forecast.end_s.p90
    assert re.match(
        r"nap: \d+/40 ended, \d running, \d+ waiting; spent .* SU, .*budget 5;", f"{found}"
    )
    assert "odds" in f"{found}"
    assert '<progress max="40"' in found._repr_html_()
    assert "odds" in found._repr_html_()
    last = executor.progress()
    assert (last.succeeded, last.forecast) == (40, None)


def test_stated_run_times_are_a_forecast_before_any_call_has_ended() -> None:
    """
    A deadline that is out of reach shows at once.
    """
    with Executor(1, deadline="1 min", history="none") as executor:
        calls = executor.options(runtime="1 h", name="long")
        futures = [calls.submit(time.sleep, 600) for _ in range(4)]
        found = executor.progress()
        executor.terminate_workers()

    assert found.forecast is not None
    assert found.forecast.odds is not None
    assert found.forecast.odds < 0.1
    assert all(future.exception(60) for future in futures)


def test_a_deadline_ends_calls_and_refuses_others() -> None:
    """
    Each call raises DeadlineMissed, one that runs as one that waits, and so does a later one.
    """
    began = time.monotonic()
    with Executor(1, deadline=2, history="none") as executor:
        assert executor.submit(abs, -1).result(60) == 1
        calls = [executor.submit(time.sleep, 600) for _ in range(3)]
        found = [call.exception(60) for call in calls]
        with pytest.raises(bursar.DeadlineMissed, match="the deadline of 2 s passed"):
            executor.submit(abs, -1)

    assert [type(error) for error in found] == [bursar.DeadlineMissed] * 3
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(
    ("deadline", "message"), [(0, "deadline: must be positive"), ("soon", "deadline: expected a")]
)
def test_a_deadline_that_is_none_is_refused(deadline: object, message: str) -> None:
    """
    In one line, before anything starts.
    """
    with pytest.raises(bursar.InputError, match=message):
        Executor(deadline=deadline)  # type: ignore[arg-type]


@pytest.mark.ci
def test_earlier_calls_are_a_forecast(tmp_path: Path) -> None:
    """
    A history that knows the function tells its run time before the first call has ended.
    """
    history = tmp_path / "history.sqlite"
    with Executor(2, history=history) as executor:
        calls = executor.options(name="nap")
        list(calls.map(time.sleep, [0.05] * 8))
    with Executor(1, history=history) as executor:
        calls = executor.options(name="nap")
        futures = [calls.submit(time.sleep, 0.4) for _ in range(6)]
        found = executor.progress()
        for future in futures:
            future.result(60)

    assert found.forecast is not None
    assert found.forecast.basis in ("history", "other size")


def test_calls_to_come_are_in_the_forecast(tmp_path: Path) -> None:
    """
    Three tasks of ten seconds, one after the other, of which the first has become a call and ended.

    The campaign's numbers are not the calls'.
    """
    tasks = (
        Task(id="last", name="t", runtime=10.0, after=("middle",)),
        Task(id="middle", name="t", runtime=10.0, after=("first",)),
        Task(id="first", name="f", runtime=10.0),
    )
    campaign = Campaign(name="three", workflow=Workflow(tasks))
    with bursar.Executor(1, deadline=3600, history="none") as executor:
        executor.options(name="f").submit(int).result(60)

        found = executor.progress(campaign, (2,))

    assert (found.campaign, found.total, found.succeeded, found.waiting) == ("three", 3, 1, 2)
    assert found.forecast is not None
    assert found.forecast.end_s.p50 > found.elapsed


def test_a_task_that_is_tried_again_has_not_ended() -> None:
    """The first of its two calls has ended, the second one runs."""
    standing = RunStanding(
        now=5.0, moment=5.0, ended=frozenset({0, 1}), attempts=[], spent=0.0, leases={},
        running=[RunningAttempt(2, "here", "lease", 1.0)], queued={}, opening={}, held={},
        lease_of={}, plan=None, goal=Goal(),
    )  # fmt: skip
    counts = TaskCounts(
        total=3, waiting=0, running=1, succeeded=1, failed=1, skipped=0, cancelled=0, refused=0
    )
    tasks = tuple(Task(id=name) for name in "ab")

    found = CallsStanding(standing, counts, 0.0, (), 0).within(
        Campaign(name="two", workflow=Workflow(tasks)), (1, 0, 1)
    )

    assert found.standing.ended == {0}
    assert [one.task for one in found.standing.running] == [1]
