"""Run times that Snakemake keeps, beside those of a history."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.api.known_campaign import foresee
from bursar.history.columns import ObservationColumns, columns_of, joined_columns
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.campaign import Campaign, EarlierJob, Workflow
from bursar.model.task import Status, Task
from bursar.runs.recording.earlier_jobs import ObservationsBeside, observe_earlier


def campaign(*tasks: str, earlier: tuple[EarlierJob, ...] = (), root: Path) -> Campaign:
    """Return a campaign of the rule ``align``, with what is known of its jobs."""
    made = tuple(Task(id=task, name="align") for task in tasks)
    return Campaign(
        name="c",
        workflow=Workflow(made),
        root=root,
        templates={"align": "align {input}"},
        earlier=earlier,
    )


def ran(task: str, seconds: float, **facts: object) -> EarlierJob:
    return replace(EarlierJob(task=task, kind="align", began=1e9, seconds=seconds), **facts)


def test_jobs_that_differ_and_ran_before_are_expected_to_take_what_they_took(
    tmp_path: Path,
) -> None:
    """One level for all jobs of a rule would move long jobs off the critical path."""
    known = tuple(ran(f"align[s={at}]", 10.0 * at) for at in range(1, 6))
    asked = campaign(*(job.task for job in known), earlier=known, root=tmp_path)

    seen = foresee(asked, [], "none")

    assert [task.runtime for task in seen.campaign.workflow.tasks] == pytest.approx(
        [10.0, 20.0, 30.0, 40.0, 50.0], rel=0.02
    )
    assert seen.words() == "run times are known from 5 tasks of 1 earlier run"


def test_a_new_job_is_expected_to_take_what_its_rule_takes(tmp_path: Path) -> None:
    known = (ran("align[s=a]", 10.0), ran("align[s=b]", 12.0), ran("align[s=c]", 14.0))
    asked = campaign("align[s=a]", "align[s=new]", earlier=known, root=tmp_path)

    (a, new) = foresee(asked, [], "none").campaign.workflow.tasks

    assert a.runtime == new.runtime == pytest.approx(12.0, rel=0.05)


def test_a_job_that_gathers_more_inputs_takes_longer(tmp_path: Path) -> None:
    """Four samples took 5 s, the first of which is taken as the start: eight take 9 s."""
    known = (ran("gather", 5.0, growth=2.0), ran("short", 0.5, growth=2.0))
    asked = campaign("gather", "short", earlier=known, root=tmp_path)

    _, seen = observe_earlier(asked)

    assert [one.seconds for one in seen] == [9.0, 0.5]


def test_a_job_that_ran_with_other_threads_is_no_kind_of_its_own(tmp_path: Path) -> None:
    known = (ran("a", 10.0, processors=4), ran("b", 40.0))

    changed, _ = observe_earlier(campaign("a", "b", earlier=known, root=tmp_path))

    assert {task.name for task in changed.workflow.tasks} == {"align"}


def test_jobs_that_take_the_same_stay_one_kind(tmp_path: Path) -> None:
    known = (ran("a", 10.0), ran("b", 11.0))

    changed, seen = observe_earlier(campaign("a", "b", earlier=known, root=tmp_path))

    assert {task.name for task in changed.workflow.tasks} == {"align"}
    assert {one.kind for one in seen} == {"align"}


def test_a_benchmark_file_counts_where_nothing_else_is_known(tmp_path: Path) -> None:
    """Snakemake's records are lost with --drop-metadata, or when outputs come from elsewhere."""
    file = tmp_path / "align.tsv"
    file.write_text("s\th:m:s\tmax_rss\tcpu_time\n4.0\t0:00:04\t100\t3.5\n6.0\t0:00:06\t200\t5.5\n")
    job = EarlierJob(task="a", kind="align", benchmark=str(file))

    _, (seen,) = observe_earlier(campaign("a", earlier=(job,), root=tmp_path))

    assert seen.seconds == 10.0  # both repetitions, which run in one job
    assert seen.max_rss == 200 << 20
    assert seen.user_seconds == 9.0


@pytest.mark.parametrize("content", ["", "no benchmark\n", "s\n", "s\nword\n", "\0"])
def test_a_damaged_benchmark_file_is_passed_over(tmp_path: Path, content: str) -> None:
    file = tmp_path / "align.tsv"
    file.write_text(content)
    job = EarlierJob(task="a", kind="align", benchmark=str(file))
    absent = EarlierJob(task="b", kind="align", benchmark=str(tmp_path / "absent"))

    _, seen = observe_earlier(campaign("a", earlier=(job, absent), root=tmp_path))

    assert seen == []


def test_a_command_that_changed_is_another_kind(tmp_path: Path) -> None:
    """Run times of the old command say nothing of the new one."""
    old = ran("a", 10.0, template="align --slow {input}")

    seen = foresee(campaign("a", earlier=(old,), root=tmp_path), [], "none")

    assert seen.known is None


def test_jobs_that_were_imported_as_well_count_once(tmp_path: Path) -> None:
    """``bursar history import`` of the folder names the same execution."""
    asked = campaign("a", earlier=(ran("a", 10.0),), root=tmp_path)
    _, beside = observe_earlier(asked)
    history = History(tmp_path / "history.sqlite")
    other = TaskObservation(execution="other", task="x", kind="align", seconds=20.0, start=5.0)
    history.add([*beside, other])

    source = ObservationsBeside(history, beside)
    found = source.observations_of(["align"], parameters=True)

    assert found.seconds.tolist() == [10.0, 20.0]
    assert source.kinds() == ["align"]


observations = st.builds(
    TaskObservation,
    execution=st.sampled_from(["one", "two"]),
    task=st.uuids().map(str),
    kind=st.sampled_from(["a", "b"]),
    template=st.sampled_from(["", "run {x}"]),
    site=st.sampled_from(["", "here"]),
    parameters=st.dictionaries(st.sampled_from("xy"), st.integers(0, 9), max_size=2),
    input_bytes=st.none() | st.integers(0, 10**6),
    processors=st.integers(1, 8),
    seconds=st.integers(0, 10**6).map(float),
    start=st.integers(0, 10**6).map(float),
    user_seconds=st.none() | st.integers(0, 100).map(float),
    max_rss=st.none() | st.integers(0, 10**6),
    status=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT]),
)


def told(columns: ObservationColumns) -> list[tuple[object, ...]]:
    """Return the rows as what they mean, in an order of their own."""
    assert columns.parameters is not None
    rows = zip(
        [columns.kinds[at] for at in columns.kind],
        [columns.templates[at] for at in columns.template],
        [columns.executions[at] for at in columns.execution],
        [columns.sites[at] for at in columns.site],
        columns.seconds.tolist(),
        columns.start.tolist(),
        columns.processors.tolist(),
        columns.status.tolist(),
        [str(value) for value in columns.input_bytes],
        [str(value) for value in columns.max_rss],
        [str(sorted(values.items())) for values in columns.parameters],
        strict=True,
    )
    return sorted(rows)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(observations, max_size=8), st.lists(observations, max_size=8))
def test_columns_in_memory_are_those_that_a_history_reads(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[TaskObservation],
    second: list[TaskObservation],
) -> None:
    """Observations beside a history and in it mean the same to forecasts."""
    history = History(tmp_path_factory.mktemp("h") / "history.sqlite")
    history.add([*first, *second])
    kinds = ["a", "b"]

    joined = joined_columns(columns_of(kinds, first, True), columns_of(kinds, second, True))
    read = history.observations_of(kinds, parameters=True)

    assert told(joined) == told(read)
    assert told(joined.rows(np.arange(len(joined)))) == told(joined)
