"""``bursar run`` of a campaign that ran before: only what has changed runs."""

import csv
import json
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

SWEEP = """
[campaign]
name = "wing"
command = "cat model.txt > {{outputs}}; echo {{seed}} | tee -a {{outputs}} >> {counter}"
code = ["lib/*.py"]

[parameters]
seed = {{ from = 1, to = {points}, step = 1 }}

[task]
inputs = ["model.txt"]
outputs = ["out-{{seed}}.txt"]
"""


class Sweep:
    """A sweep in a folder, which counts what really runs."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        self.counter = folder.path.parent / f"{folder.path.name}-ran"
        (folder.path / "lib").mkdir()
        folder.write("model.txt", "model\n")
        folder.write("lib/one.py", "one = 1\n")

    def write(self, points: int) -> None:
        """Write the campaign file."""
        self.folder.write("wing.toml", SWEEP.format(points=points, counter=self.counter))

    def ran(self) -> list[int]:
        """Seeds that have run since the last call."""
        if not self.counter.exists():
            return []
        found = [int(line) for line in self.counter.read_text().split()]
        self.counter.unlink()
        return sorted(found)

    def rows(self, run: str) -> list[dict[str, str]]:
        """Rows of a run's results."""
        with (self.folder.path / "runs" / run / "results.csv").open() as file:
            return list(csv.DictReader(file))

    def file(self, run: str, name: str) -> Path:
        """A file that the tasks of a run made."""
        path: Path = self.folder.path / "runs" / run / "files" / name
        return path


@pytest.fixture
def sweep(folder: Any) -> Sweep:
    """A sweep of five points."""
    made = Sweep(folder)
    made.write(5)
    return made


def test_of_a_finished_sweep_only_new_points_run(folder: Any, sweep: Sweep) -> None:
    """300 points, then 50 more: 50 run, and the results hold all 350."""
    sweep.write(300)
    folder.bursar("run", "wing.toml", "--name", "one")
    assert sweep.ran() == list(range(1, 301))

    sweep.write(350)
    plan = folder.json("plan", "wing.toml")
    done = folder.bursar("run", "wing.toml", "--name", "two")

    said = "reused 300 of 350 results of one; 50 run: 50 are new"
    assert f"{said} (--explain says why for each, --fresh reruns all)" in done.stderr
    assert plan["tasks"] == 50
    assert sweep.ran() == list(range(301, 351))
    rows = sweep.rows("two")
    assert [row["status"] for row in rows] == ["succeeded"] * 350
    assert [int(row["seed"]) for row in rows] == list(range(1, 351))
    assert rows[0]["reused_from"] == "one wing-0"
    assert rows[300]["reused_from"] == ""
    bill = folder.json("bill", "two")
    assert len(bill["tasks"]) == 50
    for seed in (1, 300, 350):
        assert sweep.file("two", f"out-{seed}.txt").read_text() == f"model\n{seed}\n"


def test_where_all_is_reused_nothing_is_bought_and_the_old_run_may_go(
    folder: Any, sweep: Sweep
) -> None:
    """Files, output and figures are the new run's own."""
    first = folder.json("run", "wing.toml", "--name", "one")
    sweep.ran()

    again = folder.json("run", "wing.toml", "--name", "two")
    shutil.rmtree(folder.path / "runs/one")
    third = folder.json("run", "wing.toml", "--name", "three")

    assert sweep.ran() == []
    assert first["reused"] == 0
    assert (again["reused"], again["reused_from"], again["attempts"]) == (5, "one", 0)
    assert (again["state"], again["succeeded"], again["cost"]) == ("finished", 5, 0)
    assert (third["reused"], third["reused_from"]) == (5, "two")
    assert folder.json("bill", "two")["leases"] == []
    assert sweep.file("three", "out-3.txt").read_text() == "model\n3\n"
    why = folder.json("why", "three", "wing-2")["placed"]
    assert why[0]["why"].startswith("reused from two wing-2")
    assert "reused 5 of 5 results of two" in (folder.path / "runs/three/report.html").read_text()
    nothing = folder.bursar("plan", "wing.toml")
    assert "every result is there from an earlier run" in nothing.stdout


def test_each_reason_is_said(folder: Any) -> None:
    """Command, input, code, environment, outputs, upstream, and what had failed or is gone."""
    folder.write("a.txt", "a")
    folder.write("model.py", "model")
    tasks = """
[tasks.fit]
command = "echo --seed 3 > {outputs}"
outputs = ["fit.txt"]
[tasks.mean]
command = "cat fit.txt > {outputs}"
inputs = ["fit.txt"]
outputs = ["mean.txt"]
[tasks.read]
command = "cat a.txt"
inputs = ["a.txt"]
[tasks.level]
command = "true"
environment = { LEVEL = "low" }
[tasks.name]
command = "touch x y"
outputs = ["x"]
[tasks.fails]
command = "false"
retries = 0
[tasks.kept]
command = "echo kept > {outputs}"
outputs = ["kept.txt"]
"""
    folder.write("c.toml", f'[campaign]\ncode = ["model.py"]\n{tasks}')
    folder.bursar("run", "c.toml", "--name", "one", status=1)

    for was, now in (("--seed 3", "--seed 4"), ('"low"', '"high"'), ('["x"]', '["y"]')):
        tasks = tasks.replace(was, now)
    folder.write(
        "c.toml", f'[campaign]\ncode = ["model.py"]\n{tasks}\n[tasks.more]\ncommand="true"'
    )
    folder.write("a.txt", "b")
    (folder.path / "runs/one/files/kept.txt").write_text("lost\n")
    said = folder.bursar("plan", "c.toml", "--explain").stderr.splitlines()

    assert said[0].startswith("reused none of 8 results of one; 8 run: ")
    assert set(said[1:]) == {
        "command changed: --seed 3 -> 4: fit",
        "upstream fit: mean",
        "input a.txt changed: read",
        "environment changed: LEVEL low -> high: level",
        "outputs changed: + y, - x: name",
        "failed in one: fails",
        "kept.txt was changed in one: kept",
        "new: more",
    }
    folder.write("model.py", "another")
    said = folder.bursar("run", "c.toml", "--explain", status=1).stderr
    assert "code model.py changed: kept, fails" in said or "code model.py changed: " in said


@pytest.mark.ci
def test_fresh_and_reuse_from(folder: Any, sweep: Sweep) -> None:
    """A run by name, by the begin of one, or the last; and none."""
    folder.bursar("run", "wing.toml", "--name", "alpha-1")
    folder.write("model.txt", "second\n")
    folder.bursar("run", "wing.toml", "--name", "beta-1")
    folder.write("model.txt", "model\n")
    sweep.ran()

    assert folder.json("run", "wing.toml", "--name", "c", "--reuse-from", "alpha")["reused"] == 5
    assert sweep.ran() == []
    assert folder.json("run", "wing.toml", "--name", "d", "--fresh")["reused"] == 0
    assert sweep.ran() == [1, 2, 3, 4, 5]
    assert folder.json("run", "wing.toml", "--reuse-from", "last")["reused_from"] == "d"
    simulated = folder.json("simulate", "wing.toml", "--runtime", "1s")
    assert (simulated["tasks"], simulated["reused"]) == (5, 0)

    for words, said in (
        (("--reuse-from", "nope"), 'no run "nope" under runs'),
        (("--reuse-from", "d", "--fresh"), "--reuse-from: goes without --fresh"),
        (("--as-it-is",), "--as-it-is: goes with --resume only"),
    ):
        refused = folder.bursar("run", "wing.toml", *words, status=2)
        assert said in refused.stderr
    shutil.copytree(folder.path / "runs/alpha-1", folder.path / "runs/alpha-2")
    refused = folder.bursar("run", "wing.toml", "--reuse-from", "alpha", status=2)
    assert '"alpha" is the begin of 2 runs: alpha-1, alpha-2' in refused.stderr
    (folder.path / "runs/d/reuse.sqlite").unlink()
    refused = folder.bursar("run", "wing.toml", "--reuse-from", "d", status=2)
    assert "d has no record of what its results depend on" in refused.stderr


def test_damage_of_the_earlier_run_is_said_and_the_campaign_runs(folder: Any, sweep: Sweep) -> None:
    """Nobody asked for that run by name."""
    folder.bursar("run", "wing.toml", "--name", "one")
    (folder.path / "runs/one/reuse.sqlite").write_bytes(b"no database at all" * 100)
    sweep.ran()

    done = folder.bursar("run", "wing.toml")

    assert "nothing is reused: runs/one/reuse.sqlite" in done.stderr
    assert sweep.ran() == [1, 2, 3, 4, 5]
    assert folder.bursar("run", "wing.toml", "--reuse-from", "one", status=2).stderr


def test_an_input_that_changes_while_tasks_run_makes_their_results_unusable(folder: Any) -> None:
    """The result belongs to neither content; also when the old content is back at the end."""
    folder.write("a.txt", "one")
    folder.write(
        "c.toml",
        '[tasks.waits]\ncommand = "touch ../../begun; while ! [ -e ../../go ]; do sleep 0.01; done;'
        ' cat a.txt"\ninputs = ["a.txt"]\n[tasks.other]\ncommand = "true"\n',
    )
    run = folder.start("run", "c.toml", "--name", "one")
    place = folder.path / "runs/one"
    folder.until(lambda: (place / "begun").exists(), run)
    folder.write("a.txt", "two")
    time.sleep(0.01)
    folder.write("a.txt", "one")
    (place / "go").touch()
    assert run.wait() == 0

    said = folder.bursar("plan", "c.toml", "--explain").stderr

    assert "reused 1 of 2 results of one" in said
    assert "input a.txt changed while the run went on in one: waits" in said


@pytest.mark.ci
def test_long_output_is_taken_along(folder: Any, sweep: Sweep) -> None:
    """More than the journal holds lies in a file, which is the new run's, too."""
    folder.write("c.toml", '[tasks.long]\ncommand = "yes | head -c 200000"\n')
    folder.bursar("run", "c.toml", "--name", "one")
    text = 'command = "yes | head -c 200000"\n'
    folder.write("c.toml", f'[tasks.first]\ncommand = "true"\n[tasks.renamed]\n{text}')
    folder.bursar("run", "c.toml", "--name", "two")
    shutil.rmtree(folder.path / "runs/one")

    assert len(folder.bursar("logs", "two", "renamed").stdout) == 200000
    assert folder.json("run", "c.toml")["reused"] == 2


@pytest.mark.parametrize(
    "how",
    [
        ("--provisioning", "dynamic"),
        pytest.param(
            ("--strategy", "cost", "--deadline", "1h", "--runtime", "1s"), marks=pytest.mark.ci
        ),
        pytest.param(("--choice", "completion", "--runtime", "1s"), marks=pytest.mark.ci),
        pytest.param(("--detach",), marks=pytest.mark.ci),
    ],
)
def test_every_policy_runs_the_rest(folder: Any, sweep: Sweep, how: tuple[str, ...]) -> None:
    """Reuse is decided before any policy: the same five results are there."""
    folder.write("s.toml", '[site.here]\nkind = "local"\nprocessors = 2\nunit_price = 0.001\n')
    folder.bursar("run", "wing.toml", "--name", "one")
    sweep.write(7)
    sweep.ran()

    folder.bursar("run", "wing.toml", "--name", "two", "--sites", "s.toml", *how)
    if how == ("--detach",):
        folder.bursar("attach", "two")

    assert sweep.ran() == [6, 7]
    assert {row["status"] for row in sweep.rows("two")} == {"succeeded"}
    assert len(sweep.rows("two")) == 7


# Resuming a run whose campaign has changed.


def interrupted(folder: Any, sweep: Sweep) -> None:
    """Interrupt a run whose first two points are done."""
    text = SWEEP.format(points=4, counter=sweep.counter).replace(
        "cat model", "while [ {seed} -gt 2 ] && ! [ -e ../../go ]; do sleep 0.01; done; cat model"
    )
    folder.write("wing.toml", text)
    run = folder.start("run", "wing.toml", "--name", "one")
    folder.until(lambda: len(list((folder.path / "runs/one/files").glob("*"))) == 2, run)
    time.sleep(1.5)  # for the record of what has ended
    run.signal_group(signal.SIGINT)
    assert run.wait() == 130
    sweep.ran()


@pytest.mark.ci
def test_resume_of_a_changed_campaign_asks_which_is_meant(folder: Any, sweep: Sweep) -> None:
    """Neither silently; one line, exit status 2."""
    interrupted(folder, sweep)
    path = folder.path / "wing.toml"
    before = path.read_text()

    path.write_text(before.replace("to = 4", "to = 6") + "\n[goal]\ndeadline = '1h'\n")
    refused = folder.bursar("run", "--resume", "one", status=2).stderr
    assert "bursar: --resume: since run one began, wing.toml changed: 2 are new\n" in refused
    assert "--as-it-was" in refused.splitlines()[1]
    path.write_text(before + "\n[goal]\ndeadline = '1h'\n")
    refused = folder.bursar("run", "--resume", "one", status=2).stderr
    assert "wing.toml changed: its goal or settings" in refused
    path.write_text(before + "\n# a remark\n")
    folder.write("model.txt", "second\n")
    folder.write("lib/one.py", "one = 2\n")
    refused = folder.bursar("run", "--resume", "one", status=2).stderr
    assert "since run one began, code lib/one.py changed; input model.txt changed\n" in refused
    path.write_text("no campaign")
    refused = folder.bursar("run", "--resume", "one", status=2).stderr
    assert "wing.toml cannot be read any more" in refused
    assert folder.bursar("run", "--resume", "one", "--as-it-was", "--as-it-is", status=2)
    assert sweep.ran() == []


@pytest.mark.ci
def test_resume_as_it_was(folder: Any, sweep: Sweep) -> None:
    """The stored campaign goes on; what read a changed file is not reused later."""
    interrupted(folder, sweep)
    sweep.write(9)
    folder.write("model.txt", "second\n")
    (folder.path / "runs/one/go").touch()

    done = folder.bursar("run", "--resume", "one", "--as-it-was")

    assert "cannot be as it was, since the run keeps no copies: input model.txt changed" in (
        done.stderr
    )
    assert sweep.ran() == [3, 4]
    assert sweep.file("one", "out-1.txt").read_text() == "model\n1\n"
    assert sweep.file("one", "out-3.txt").read_text() == "second\n3\n"
    folder.write("model.txt", "model\n")
    (folder.path / "runs/one/go").unlink()


def test_resume_as_it_is(folder: Any, sweep: Sweep) -> None:
    """A new run: results of unchanged tasks are kept, others run, new ones too."""
    interrupted(folder, sweep)
    path = folder.path / "wing.toml"
    path.write_text(path.read_text().replace("to = 4", "to = 5").replace("../../go", "wing.toml"))
    path.write_text(path.read_text().replace("! [ -e wing.toml ]", "false"))
    done = folder.json("run", "--resume", "one", "--as-it-is")
    assert done["reused"] == 0  # the command of all has changed
    assert sweep.ran() == [1, 2, 3, 4, 5]

    path.write_text(path.read_text().replace("to = 5", "to = 6"))
    again = folder.json("run", "--resume", done["run"], "--as-it-is")
    assert (again["reused"], again["reused_from"], again["succeeded"]) == (5, done["run"], 6)
    assert sweep.ran() == [6]


@pytest.mark.ci
def test_a_run_without_its_campaign_file_is_resumed_as_it_was(folder: Any, sweep: Sweep) -> None:
    """The run has all that it needs."""
    interrupted(folder, sweep)
    (folder.path / "wing.toml").unlink()
    (folder.path / "runs/one/go").touch()
    folder.bursar("run", "--resume", "one")
    assert sweep.ran() == [3, 4]


# Kills.


@pytest.mark.parametrize(
    "seed",
    [pytest.param(one, marks=pytest.mark.ci if at else []) for at, one in enumerate(range(3))],
)
def test_kill_at_any_instant_leaves_no_task_wrongly_reusable(
    folder: Any, sweep: Sweep, seed: int
) -> None:
    """What the next run reuses has succeeded, with the present input; what had not runs."""
    sweep.write(40)
    random_ = random.Random(seed)
    run = folder.start("run", "wing.toml", "--name", "one")
    folder.until(lambda: (folder.path / "runs/one/run.json").exists(), run)
    time.sleep(random_.uniform(0.2, 1.6))
    run.signal_group(signal.SIGKILL)
    run.wait()
    folder.bursar("stop", "one", status=None)
    first = sweep.ran()
    if seed == 2:
        folder.write("model.txt", "second\n")

    done = folder.json("run", "wing.toml", "--name", "two")

    again = sweep.ran()
    assert done["succeeded"] == 40
    assert done["reused"] == 40 - len(again)
    assert set(first) | set(again) == set(range(1, 41))
    if seed == 2:
        assert done["reused"] == 0
    text = (folder.path / "model.txt").read_text()
    for point in range(1, 41):
        assert sweep.file("two", f"out-{point}.txt").read_text() == f"{text}{point}\n"
    lines = (folder.path / "runs/two/results.jsonl").read_text().splitlines()
    assert sum("reused_from" in json.loads(line) for line in lines) == done["reused"]
