"""``bursar.map``, results of runs by task, and the progress in a notebook."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import bursar
import bursar.api.mapping as mapping
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
        time.sleep(seconds)
        return x

    seconds = 0.2
    with pytest.raises(bursar.Infeasible):  # 400 s of work
        bursar.map(noting, range(2000), deadline=60, probe=2)
    seconds = 0.0
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


def test_at_the_deadline_what_runs_is_ended_and_the_results_so_far_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Points 0 and 2 end at once, 1 would take for ever; an error before is told, too.

    The clock stands still until three of the calls have ended, and is past the deadline then.
    """
    calls: list[Any] = []
    submit = mapping._submit

    def recorded(*words: Any) -> Any:
        calls.append(submit(*words))
        return calls[-1]

    def now() -> float:
        begun = (tmp_path / "pid").exists()
        return 100.0 if begun and sum(call.done() for call in calls) == 3 else 0.0

    monkeypatch.setattr(mapping, "_submit", recorded)
    monkeypatch.setattr(mapping, "time", SimpleNamespace(monotonic=now, time=time.time))

    def waiting(x: int) -> int:
        if x == 1:
            (tmp_path / "pid").write_text(str(os.getpid()))
            time.sleep(1000)
        if x == 3:
            raise ValueError("three")
        return x * 10

    with pytest.raises(bursar.MapDeadlineMissed, match="the deadline of 1 s passed after 3") as e:
        bursar.map(waiting, range(4), deadline=1, runtime=0.1, processors=2)

    assert e.value.results == [0, None, 20, None]
    assert list(e.value.errors) == [3]
    assert e.value.missing == (1,)
    assert isinstance(e.value, bursar.MapFailed)
    assert isinstance(e.value, bursar.DeadlineMissed)
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_an_interrupt_leaves_no_call_running(tmp_path: Path) -> None:
    """Ctrl-C in a program that maps: the process ends, and so do the calls."""
    code = """if True:
        import os, signal, time, bursar
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored, as by nohup
        def wait(x):
            with open(f"FOLDER/pid-{x}", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(60)
        bursar.map(wait, range(2), processors=2)
    """
    words = [sys.executable, "-c", code.replace("FOLDER", str(tmp_path))]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as program:
        try:
            while not all((tmp_path / f"pid-{x}").exists() for x in range(2)):
                assert program.poll() is None
                time.sleep(0.05)
        finally:
            program.send_signal(signal.SIGINT)
        _, error = program.communicate()

    assert program.returncode != 0
    assert "KeyboardInterrupt" in error
    for x in range(2):
        text = (tmp_path / f"pid-{x}").read_text()
        assert not text or not Path("/proc", text).exists()


@pytest.mark.ci
def test_progress_of_a_map_is_shown_as_that_of_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[ProgressSnapshot] = []
    monkeypatch.setattr(RunProgress, "update", lambda self, one: shown.append(one))

    bursar.map(product, [1, 2, 3], progress=True, deadline="1 h", budget="5 SU", probe=1)

    last = shown[-1]
    assert (last.campaign, last.succeeded, last.total, last.waiting) == ("product", 3, 3, 0)
    assert (last.budget, last.currency, last.deadline) == (5.0, "SU", 3600.0)
    assert last.spent > 0
    shown.clear()
    bursar.map(product, [1, 2, 3])
    assert shown == []


@pytest.mark.ci
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
