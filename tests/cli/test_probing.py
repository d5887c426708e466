"""Unknown runtimes are measured before a plan is made: which tasks, and what is learned."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bursar.api import probing
from bursar.api.measured_runtimes import (
    ProbeSummary,
    choose_probes,
    learn_runtimes,
    overhead_of,
    spread,
    warm_outcomes,
)
from bursar.api.probing import ProbedCampaign
from bursar.api.quote import Quote
from bursar.formats.campaign_file import read_campaign
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.task import File, Outcome, Status, Task
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import read_run

SWEEP = """\
[campaign]
name = "sweep"
command = "echo {word} >> '{LOG}'; sleep 0.0{pause}"
[parameters]
pause = [1, 2, 3]
word = ["a", "b", "c", "d"]
"""


def sweep(folder: Path, text: str = SWEEP) -> Path:
    """A sweep whose tasks note in a file that they ran."""
    path = folder / "c.toml"
    path.write_text(text.replace("{LOG}", str(folder / "log")))
    return path


def ended(task: int, start: float, end: float, status: Status = Status.SUCCEEDED) -> Outcome:
    reason = "" if status is Status.SUCCEEDED else "exit 1"
    return Outcome(task=task, attempt=1, status=status, start=start, end=end, reason=reason)


def test_probes_are_spread_over_a_sweep_and_not_its_first_tasks() -> None:
    """One of each quarter; and not at one place of each, where a parameter would repeat."""
    found = spread(range(240), 4)

    assert [number // 60 for number in found] == [0, 1, 2, 3]
    assert len({number % 60 for number in found}) > 1
    assert spread(range(3), 5) == [0, 1, 2]


def test_what_gathers_runs_on_what_the_probe_has_made() -> None:
    """Without keeping: it would stand as the result of all tasks."""
    jobs = tuple(Task(id=f"j{n}", name="job") for n in range(6))
    gather = Task(id="g", name="gather", after=tuple(job.id for job in jobs))
    reader = Task(id="r", name="reader", inputs=(File("made"),))
    maker = Task(id="m", name="maker", outputs=(File("made"),), runtime=1.0)

    chosen = choose_probes(Workflow((*jobs, gather, maker, reader)), 2)

    assert len(chosen.whole) == 2
    assert chosen.partial == (6,)  # the reader's file is made by a task that is not measured


def test_a_chain_is_measured_along_its_order() -> None:
    first = tuple(Task(id=f"a{n}", name="a", outputs=(File(f"f{n}"),)) for n in range(4))
    then = tuple(Task(id=f"b{n}", name="b", inputs=(File(f"f{n}"),)) for n in range(4))

    chosen = choose_probes(Workflow(first + then), 2)

    assert chosen.partial == ()
    assert [n - 4 for n in chosen.whole if n >= 4] == [n for n in chosen.whole if n < 4]


def test_overhead_is_the_time_between_two_tasks_on_a_processor() -> None:
    """Two processors: the third task follows the first, 0.1 s later, the fourth the second."""
    outcomes = [ended(0, 0, 1), ended(1, 0, 2), ended(2, 1.1, 3), ended(3, 2.3, 4)]

    assert overhead_of(outcomes, 2) == pytest.approx(0.2)
    assert overhead_of(outcomes, 4) == 0.0


def test_the_mean_becomes_the_runtime_of_a_kind() -> None:
    """A kind that failed counts as the others, and says why."""
    tasks = [Task(id=f"t{n}", name="t") for n in range(5)]
    tasks += [Task(id="u", name="u"), Task(id="v", name="v", runtime=9.0)]
    ends = {n: ended(n, 0, seconds) for n, seconds in ((0, 1.0), (1, 2.0), (2, 6.0))}
    ends[5] = ended(5, 0, 50, Status.FAILED)

    learned, kinds = learn_runtimes(Workflow(tuple(tasks)), ends, 0.5, 2.0)

    assert [task.runtime for task in learned.tasks] == [7.0] * 6 + [9.0]  # 2 (3 + 0.5)
    assert [(one.name, one.measured, one.reason) for one in kinds] == [
        ("t", 3, ""),
        ("u", 0, "exit 1"),
    ]


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(InputError, match="no task could be measured: exit 1"):
        learn_runtimes(Workflow((Task(id="a"),)), {0: ended(0, 0, 1, Status.FAILED)}, 0.0, 1.0)


def test_a_run_keeps_what_its_probe_made(folder: Any) -> None:
    """Each task runs once, the plan knows its time, and the bill holds the probe's lease."""
    sweep(folder.path)

    made = folder.json("run", "c.toml", "--probe", "3", "--name", "r")

    assert (made["succeeded"], made["attempts"]) == (12, 12)
    assert len((folder.path / "log").read_text().split()) == 12
    assert made["predicted_makespan_s"] > 0
    assert made["predicted_cost"] > 0
    told = folder.bursar("report", "r").stderr
    assert "Traceback" not in told


def test_a_plan_measures_in_a_folder_of_its_own(folder: Any) -> None:
    sweep(folder.path)

    done = folder.bursar("plan", "c.toml", "--probe", "3")

    assert "runtimes measured on 3 tasks" in done.stdout
    assert "deleted again" in done.stdout
    assert not (folder.path / "runs").exists()
    found = folder.json("plan", "c.toml", "--probe", "2")["probe"]
    assert (found["measured"], found["kept"]) == (2, 0)


GATHERED = """\
[campaign]
name = "gathered"
[tasks.part]
command = "echo {n}"
parameters = { n = [1, 2, 3, 4, 5, 6] }
[tasks.gather]
command = "echo all"
after = ["part"]
"""


def test_a_probe_is_kept_as_a_part_of_its_campaign(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is measured alone: else the history would have a campaign of one task."""
    path = folder.path / "history.sqlite"
    monkeypatch.setenv("BURSAR_HISTORY", str(path))
    folder.write("c.toml", GATHERED)

    folder.bursar("plan", "c.toml", "--probe", "2")

    found = History(path).observations_of(["part", "gather"])
    assert len(found.executions) >= 2
    assert found.sizes == dict.fromkeys(found.executions, 7)


def test_a_goal_out_of_reach_after_a_probe_keeps_what_was_measured(folder: Any) -> None:
    sweep(folder.path)
    words = ("run", "c.toml", "--deadline", "1ms", "--name", "r")

    folder.bursar(*words, "--probe", "2", status=3)

    assert len((folder.path / "log").read_text().split()) == 2
    resumed = folder.json("run", "--resume", "r", status=5)
    assert (resumed["succeeded"], resumed["attempts"]) == (12, 12)


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize("option", ["--runtime", "--replay"])
def test_a_probe_goes_without_other_sources_of_runtimes(
    folder: Any, command: str, option: str
) -> None:
    sweep(folder.path)

    refused = folder.bursar(command, "c.toml", "--probe", "2", option, "1", status=2)

    assert refused.stderr.startswith(f"bursar: --probe: goes without {option}")


@pytest.mark.ci
def test_a_campaign_whose_first_tasks_fail_is_not_planned(folder: Any) -> None:
    sweep(folder.path, SWEEP.replace("echo {word}", "exit 3; echo {word}"))

    refused = folder.bursar("plan", "c.toml", "--probe", "2", status=2)

    assert "bursar: probe: no task could be measured" in refused.stderr
    assert read_campaign(folder.path / "c.toml").workflow.tasks[0].runtime is None


def test_what_a_probe_made_is_reused_and_a_probe_reuses(folder: Any) -> None:
    """Nine tasks are reused; of the three new ones two are measured, and each runs once."""
    sweep(folder.path)
    folder.bursar("run", "c.toml", "--probe", "2")
    sweep(folder.path, SWEEP.replace('"c", "d"]', '"c", "e"]'))

    made = folder.json("run", "c.toml", "--probe", "2")
    last = folder.bursar("run", "c.toml", "--probe", "2", "--reuse-from", "last")

    assert (made["succeeded"], made["reused"]) == (12, 9)
    assert sorted((folder.path / "log").read_text().split()) == sorted(
        ["a", "b", "c", "d", "e"] * 3
    )
    assert "reused 12 of 12 results" in last.stderr


def test_planned_and_actual_time_of_a_measured_run_cover_the_same_span(folder: Any) -> None:
    """
    Both go from the begin of the probe to the last end of a task.

    The plan places what is left when the probe has ended; the probe's own time is known then, and
    the workers of the rest start as those of the probe did.
    """
    sweep(folder.path)

    made = folder.json("run", "c.toml", "--probe", "3", "--name", "r")

    run = RunFolder.open(folder.path / "runs", "r")
    record = read_run(run)
    _, plan = record.planned
    (begun, _), (later, _) = record.incarnations
    probe = [one.outcome for one in record.attempts if one.outcome.end <= later]
    rest = [one.outcome for one in record.attempts if one.outcome.end > later]
    span = max(one.end for one in probe) - begun
    startup = min(one.start for one in probe) - begun
    placed = max(one.finish for one in plan.placements)
    assert len(probe) == 3
    assert {one.task for one in plan.placements} == {one.task for one in rest}
    assert made["predicted_makespan_s"] == pytest.approx(span + startup + placed)
    took = span + max(one.end for one in rest) - later
    assert made["makespan_s"] == pytest.approx(took, abs=1e-5)  # moments are kept to 1 us


def test_a_goal_holds_for_the_probe_and_the_rest_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline counts from the begin of the probe, and what the probe cost is spent."""
    campaign = Campaign(name="c", workflow=Workflow((Task(id="a"),)))
    summary = ProbeSummary(
        kinds=(), overhead=0.0, startup=1.0, seconds=9.0, cost=3.0, currency="SU"
    )
    probed = ProbedCampaign(campaign=campaign, summary=summary)
    kept = replace(probed, folder=RunFolder(tmp_path), begun=100.0, gone=8.0, spent=2.0)
    monkeypatch.setattr(probing, "time", SimpleNamespace(time=lambda: 109.0))
    goal = Goal(deadline=60.0, budget=5.0)
    quote = Quote(campaign=campaign, currency="SU", makespan=20.0, cost=1.5)

    assert probed.goal_left(goal) == goal
    assert kept.goal_left(goal) == Goal(deadline=50.0, budget=3.0)
    assert kept.goal_left(Goal(deadline=5.0, budget=1.0)).budget == 0.0
    whole = kept.of_whole(quote)
    assert (whole.makespan, whole.cost) == (28.0, 3.5)
    assert probed.of_whole(quote).makespan == 20.0


def test_the_first_tasks_on_their_processors_do_not_count() -> None:
    """They read from disk; where too few others are there, all count."""
    workflow = Workflow(tuple(Task(id=f"t{n}", name="t") for n in range(12)))
    ends = {n: ended(n, float(n), n + 1.0) for n in range(10, 0, -1)}

    assert set(warm_outcomes(workflow, ends, 2)) == set(range(3, 11))
    assert set(warm_outcomes(workflow, ends, 3)) == set(range(1, 11))


def test_a_run_that_only_measured_is_listed_as_that_and_cleaned(folder: Any) -> None:
    sweep(folder.path)
    folder.bursar("run", "c.toml", "--deadline", "1ms", "--name", "r", "--probe", "2", status=3)

    row = read_run(RunFolder.open(folder.path / "runs", "r")).info
    assert row.state == "probed"
    [row] = folder.json("runs")["runs"]
    assert (row["run"], row["state"], row["succeeded"]) == ("r", "probed", 2)
    folder.bursar("clean", "r", "--yes")
    assert folder.json("runs")["runs"] == []
