"""What runs and executors add to a history: each ended attempt once, whatever happens meanwhile."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bursar
from bursar.dispatch.journal_records import AttemptRecord
from bursar.history.selection import Selection
from bursar.history.store import History
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task
from bursar.runs.recording.run_observations import RunObserver, even_sample
from bursar.runs.recording.user_history import history_file

CAMPAIGN = """
[campaign]
name = "study"
[parameters]
x = [1, 2, 3]
[retry]
attempts = 2
backoff = "0s"
[tasks.make]
command = "printf 12345 > made-{x}.txt"
outputs = ["made-{x}.txt"]
runtime = "2s"
[tasks.use]
command = "cat {inputs} > used-{x}.txt; test {x} != 3"
inputs = ["made-{x}.txt"]
runtime = "1s"
"""


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    """A campaign whose last task fails twice."""
    path = tmp_path / "study.toml"
    path.write_text(CAMPAIGN)
    return path


def test_a_run_adds_each_attempt(campaign: Path, tmp_path: Path) -> None:
    """Kinds, templates, parameters, sizes, waits and ends of all attempts are there."""
    history = tmp_path / "h.sqlite"

    bursar.run(campaign, runs=tmp_path / "runs", history=history)

    rows = {(one.task, one.attempt): one for one in History(history).rows()}
    assert len(rows) == 7
    made, used = rows["make-0", 1], rows["use-0", 1]
    assert (made.kind, made.template) == ("make", "printf 12345 > made-{x}.txt")
    assert (made.parameters, made.estimate, made.input_bytes) == ({"x": 1}, 2.0, 0)
    assert (used.input_bytes, used.site, used.source) == (5, "local", "run")
    assert used.host
    assert used.waited is not None
    assert used.start - used.waited == pytest.approx(made.start + made.seconds, abs=0.01)
    assert [rows["use-2", n].status for n in (1, 2)] == [Status.FAILED, Status.FAILED]
    assert len({one.execution for one in rows.values()}) == 1


def test_reused_results_are_not_observed_again(campaign: Path, tmp_path: Path) -> None:
    """What did not run took no time."""
    history = tmp_path / "h.sqlite"
    for _ in range(2):
        bursar.run(campaign, runs=tmp_path / "runs", history=history)

    counts = History(history).count(Selection())

    assert counts == {"make": 3, "use": 6}


def test_run_times_that_were_learned_are_not_kept_as_the_user_s_word(
    campaign: Path, tmp_path: Path
) -> None:
    """The second run plans with the medians of the first, which say nothing of its user."""
    history = tmp_path / "h.sqlite"
    for fresh in (False, True):
        bursar.run(campaign, runs=tmp_path / "runs", history=history, fresh=fresh)

    stated = sorted((one.kind, one.estimate is None) for one in History(history).rows())

    assert stated.count(("make", False)) == stated.count(("make", True)) == 3


def test_simulations_add_nothing(campaign: Path, tmp_path: Path) -> None:
    """What a simulation tells was made up."""
    before = history_file()
    assert before is not None
    size = History(before).total()

    bursar.simulate(campaign, runs=tmp_path / "runs", name="simulated")

    assert History(before).total() == size


def test_a_history_that_cannot_be_written_costs_one_line(
    campaign: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run goes on to its end, and its results are as ever."""
    history = tmp_path / "h.sqlite"
    history.write_text("this is something else\n" * 1000)

    result = bursar.run(campaign, runs=tmp_path / "runs", history=history, progress=True)

    assert result.exit_status == 1
    assert capfd.readouterr().err.count("not added to the history") == 1
    assert history.read_text() == "this is something else\n" * 1000


def test_none_keeps_no_history(campaign: Path, tmp_path: Path) -> None:
    """``none`` is no file."""
    bursar.run(campaign, runs=tmp_path / "runs", history="none")

    assert not (tmp_path / "none").exists()


def test_the_place_of_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option beats the variable, which beats the user's own file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("BURSAR_HISTORY", raising=False)
    assert history_file() == tmp_path / "bursar" / "history.sqlite"
    monkeypatch.setenv("BURSAR_HISTORY", "none")
    assert history_file() is None
    assert history_file(str(tmp_path / "x")) == tmp_path / "x"


def test_parameters_are_digested_where_the_user_says_so(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt setting records nothing rather than what was to be hidden."""
    settings = tmp_path / "projects.toml"
    monkeypatch.setenv("BURSAR_PROJECTS", str(settings))
    history = tmp_path / "h.sqlite"
    settings.write_text('[history]\nparameters = "hashed"\n')
    bursar.run(campaign, runs=tmp_path / "runs", history=history)
    assert not history.exists()

    settings.write_text('[history]\nparameters = "hash"\n')
    bursar.run(campaign, runs=tmp_path / "runs", history=history, fresh=True)

    rows = list(History(history).rows())
    assert len(rows) == 7
    assert all(isinstance(one.parameters["x"], str) for one in rows)
    assert "make-0" not in {one.task for one in rows}


@pytest.mark.ci
def test_a_killed_run_is_completed_when_it_is_resumed(tmp_path: Path) -> None:
    """After kill -9 in the middle, each attempt of the journal is in the history once."""
    path = tmp_path / "long.toml"
    path.write_text(
        '[campaign]\nname = "long"\n[parameters]\nx = {from = 1, to = 40, step = 1}\n'
        '[task]\ncommand = "sleep 0.1; echo {x}"\n'
    )
    history = tmp_path / "h.sqlite"
    words = ["run", str(path), "--runs", str(tmp_path / "runs"), "--name", "r", "--quiet"]
    command = [sys.executable, "-m", "bursar"]
    started = subprocess.Popen(
        [*command, *words, "--history", str(history)], stdout=subprocess.DEVNULL
    )
    folder = tmp_path / "runs" / "r"
    deadline = time.monotonic() + 60
    while not History(history).count(Selection()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    before = History(history).total()
    assert 0 < before < 40

    done = subprocess.run(
        [*command, "run", "--resume", str(folder), "--quiet"], stdout=subprocess.DEVNULL
    )

    assert done.returncode == 0
    rows = list(History(history).rows())
    assert len({(one.task, one.attempt) for one in rows}) == len(rows)
    assert len({one.task for one in rows if one.status is Status.SUCCEEDED}) == 40
    assert all(one.waited is not None for one in rows)


def test_calls_of_an_executor_are_observed_by_their_function(tmp_path: Path) -> None:
    """Chunks are a kind of their own, and so is what ``bursar.map`` times."""
    history = tmp_path / "h.sqlite"

    with bursar.Executor(1, history=history) as executor:
        assert list(executor.map(abs, [-1, -2])) == [1, 2]
        assert list(executor.map(abs, [-1, -2, -3, -4], chunksize=2)) == [1, 2, 3, 4]

    assert History(history).count(Selection()) == {"abs": 2, "abs x2": 2}


# The pure part.


def _record(task: int, end: float, attempt: int = 1) -> AttemptRecord:
    outcome = Outcome(task=task, attempt=attempt, status=Status.SUCCEEDED, start=end - 1, end=end)
    return AttemptRecord(outcome, True, "here", "l-1")


def test_waits_begin_with_the_parents_end_or_the_incarnations_begin() -> None:
    """A task waits from its last parent's end; a retry from the last try; not over a break."""
    observer = RunObserver(
        "e",
        [Task(id=name) for name in ("a", "b", "c")],
        [SiteFacts(name="here", speed=2.0)],
        parents=[[], [0], [0, 1]],
        templates={},
    )
    observer.begin(100.0)

    waits = [observer.observe(_record(0, 110.0)).waited]
    waits.append(observer.observe(_record(1, 115.0)).waited)
    waits.append(observer.observe(_record(1, 120.0, attempt=2)).waited)
    observer.begin(200.0)
    last = observer.observe(_record(2, 204.0))

    assert waits == [9.0, 4.0, 4.0]
    assert (last.waited, last.speed, last.kind) == (3.0, 2.0, "c")


def test_a_sample_is_even_in_each_kind_and_keeps_rare_ones() -> None:
    """Of many attempts in a second, a share of each kind stays, and one at least."""
    records = [_record(n, float(n + 1)) for n in range(1000)]

    chosen = even_sample(records, 100, lambda n: "rare" if n == 500 else f"k{n % 2}")

    kept = [record.outcome.task for record in chosen]
    assert 500 in kept
    assert 95 <= len(kept) <= 101
    assert even_sample(records, 1000, lambda n: "k") == records
    gaps = [b - a for a, b in itertools.pairwise(kept)]
    assert max(gaps) <= 42
