"""``bursar.map``, results of runs by task, and the progress in a notebook."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import bursar
from bursar import Campaign, Shell, Task, Workflow
from bursar.model.task import Status
from bursar.report.progress import ProgressSnapshot, RunProgress


def product(x: int, y: int = 1) -> int:
    return x * y


def snapshot(**changes: Any) -> ProgressSnapshot:
    known = {"campaign": "<c>", "elapsed": 1.0, "total": 4, "succeeded": 1, "running": 2}
    known |= {"waiting": 1, "failed": 0, "skipped": 0, "spent": 0.5, "held": 0.1, "budget": 2.0}
    known |= {"currency": "SU", "predicted_finish": 4.0, "current_finish": 4.0, "deadline": None}
    return ProgressSnapshot(**(known | changes))


def test_results_come_in_the_order_of_the_points() -> None:
    """Points are single arguments, arguments by position or by name."""
    assert bursar.map(product, [3, (2, 5), {"x": 4, "y": 2}]) == [3, 10, 8]
    assert bursar.map(product, []) == []


def test_a_goal_is_checked_before_the_rest_starts(tmp_path: Path) -> None:
    """Only the calls that are measured have been made."""
    log = tmp_path / "log"

    def noting(x: int) -> int:
        with log.open("a") as file:
            file.write("x")
        return x

    with pytest.raises(bursar.Infeasible):
        bursar.map(noting, range(50), deadline=1e-6, probe=2)
    assert len(log.read_text()) == 2
    with pytest.raises(bursar.Infeasible):
        bursar.map(noting, range(50), deadline="1 min", runtime="1 h")
    assert len(log.read_text()) == 2
    assert bursar.map(noting, range(5), deadline="1 h", budget="10 SU", probe=2) == [*range(5)]
    assert len(log.read_text()) == 7  # each of the five once


def test_points_that_failed_are_named() -> None:
    with pytest.raises(bursar.MapFailed, match="1 of 3 points failed") as e:
        bursar.map(lambda x: 2 / x, [1, 0, 2])

    assert e.value.results == [2.0, None, 1.0]
    assert list(e.value.errors) == [1]


def test_results_of_a_run_are_found_by_task(tmp_path: Path) -> None:
    """Text where it is text, bytes where it is not, a value where it is JSON."""
    lines = {"number": "echo 42", "text": "echo hé", "bytes": "printf '\\377'", "bad": "exit 3"}
    tasks = [Task(id=name, steps=(Shell(line),)) for name, line in lines.items()]
    tasks.append(Task(id="after", steps=(Shell("true"),), after=("bad",)))
    campaign = Campaign(name="c", workflow=Workflow(tuple(tasks)))

    result = bursar.run(campaign, runs=tmp_path, deadline="1 h", budget=100, trade_off=0.5)

    assert list(result.tasks) == [*lines, "after"]
    assert (result["number"].stdout, result["number"].value) == ("42\n", 42)
    assert (result["text"].stdout, result["text"].value) == ("hé\n", None)
    assert result["bytes"].stdout == b"\xff"
    bad = result["bad"]
    assert (bad.status, bad.exit_code, bad.succeeded) == (Status.FAILED, 3, False)
    assert bad.seconds is not None
    assert result["after"].status is None
    assert len(result.failures) == 1
    with pytest.raises(KeyError):
        result["nobody"]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"deadline": "soon"}, "deadline: expected a time"),
        ({"budget": "much"}, "budget: expected an amount"),
        ({"trade_off": 3}, "trade_off: "),
    ],
)
def test_a_limit_that_is_wrong_is_named(limit: dict[str, Any], said: str) -> None:
    campaign = Campaign(name="c", workflow=Workflow((Task(id="a", steps=(Shell("true"),)),)))

    with pytest.raises(bursar.InputError, match=said):
        bursar.run(campaign, **limit)


def test_a_notebook_shows_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    handle = SimpleNamespace(update=shown.append)
    shell: Any = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace(kernel=1)
    display: Any = ModuleType("IPython.display")
    display.display = lambda display_id: handle
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)

    with RunProgress() as progress:
        progress.update(snapshot())

    assert shown == [snapshot()]
    html = shown[0]._repr_html_()
    assert "&lt;c&gt;" in html
    assert 'max="4" value="1"' in html
