"""Deadline and budget of an executor: odds while calls go on, and what happens at the limit."""

import re
import time
from pathlib import Path

import pytest

import bursar
from bursar.api.executor import Executor


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
