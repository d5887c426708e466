"""Replay: stand-ins take the scaled time and move the scaled files."""

import math
import subprocess
import time
from pathlib import Path

import pytest

from bursar.formats.dax import read_dax
from bursar.formats.recorded_tasks import initial_file_sizes, make_initial_files, replay
from bursar.formats.wfformat import read_wfformat
from bursar.model.campaign import Campaign, Recording, Workflow
from bursar.model.errors import InputError
from bursar.model.task import File, Shell, Task


def _recorded(*tasks: Task) -> Campaign:
    return Campaign(name="r", workflow=Workflow(tasks), recorded=True, recording=Recording())


def _carry_out(task: Task, folder: Path) -> float:
    """Runs a stand-in as a worker does, step by step; seconds it took."""
    start = time.monotonic()
    for step in task.steps:
        assert isinstance(step, Shell)
        subprocess.run(["/bin/sh", "-c", step.line], cwd=folder, check=True)
    return time.monotonic() - start


def test_a_stand_in_takes_its_time_and_makes_its_files(tmp_path: Path) -> None:
    """Names that a shell would take apart, folders and empty files included."""
    awkward = "-it's $HOME; rm *.fq/out\"put`ls`"
    task = Task(
        id="t",
        runtime=100.0,
        inputs=(File("in put", 1000), File("-n", 10)),
        outputs=(File(awkward, 5000), File("a/b/c", 2001), File("none"), File("empty", 0)),
    )
    replayed = replay(_recorded(task), scale=0.001, size_scale=0.5)
    assert make_initial_files(replayed, tmp_path) == 2

    stand_in = replayed.workflow.tasks[0]
    took = _carry_out(stand_in, tmp_path)

    assert not replayed.recorded
    assert stand_in.runtime == pytest.approx(0.1)
    assert took >= 0.1
    assert {f.name: f.size for f in stand_in.outputs} == {
        awkward: 2500,
        "a/b/c": 1000,  # 1000.5, rounded to even
        "none": 0,
        "empty": 0,
    }
    for file in stand_in.outputs:
        assert (tmp_path / file.name).stat().st_size == file.size


def test_a_stand_in_fails_when_its_input_is_missing(tmp_path: Path) -> None:
    """A lost file must fail the task, as it would have failed the recorded program."""
    task = Task(id="t", runtime=1.0, inputs=(File("gone", 10),), outputs=(File("made", 1),))
    (step,) = replay(_recorded(task), scale=0.001).workflow.tasks[0].steps

    assert isinstance(step, Shell)
    done = subprocess.run(["/bin/sh", "-c", step.line], cwd=tmp_path, capture_output=True)
    assert done.returncode != 0
    assert not (tmp_path / "made").exists()


def test_many_files_fit_into_shell_lines(tmp_path: Path) -> None:
    """A task of thousands of files must not exceed what a shell takes in one line."""
    files = [File(f"{'long' * 20}.{i}", 1) for i in range(3000)]
    task = Task(id="t", runtime=0.0, inputs=tuple(files[:1500]), outputs=tuple(files[1500:]))
    replayed = replay(_recorded(task), scale=1.0)
    make_initial_files(replayed, tmp_path)

    stand_in = replayed.workflow.tasks[0]
    assert len(stand_in.steps) > 1
    assert all(isinstance(s, Shell) and len(s.line) < 131_072 for s in stand_in.steps)
    assert len([s for s in stand_in.steps if isinstance(s, Shell) and "sleep" in s.line]) == 1


def test_a_task_without_files_is_one_process() -> None:
    """The shell becomes the sleep: nothing waits for a child."""
    (step,) = replay(_recorded(Task(id="t", runtime=2.0)), scale=0.5).workflow.tasks[0].steps

    assert step == Shell("exec sleep 1.000000")


def test_initial_files_are_sparse_and_stay_when_there(tmp_path: Path) -> None:
    """A terabyte input costs no disk, and a resumed run finds its files unchanged."""
    task = Task(id="t", runtime=1.0, inputs=(File("deep/large", 10**12), File("unknown")))
    replayed = replay(_recorded(task), scale=1.0)
    assert initial_file_sizes(replayed) == {"deep/large": 10**12, "unknown": 0}

    make_initial_files(replayed, tmp_path)
    stat = (tmp_path / "deep" / "large").stat()
    assert stat.st_size == 10**12
    assert stat.st_blocks * 512 < 10**6
    make_initial_files(replayed, tmp_path)
    assert (tmp_path / "deep" / "large").stat().st_mtime_ns == stat.st_mtime_ns


def test_only_a_replay_lays_files_out(tmp_path: Path) -> None:
    """In other campaigns an input that no task makes is the user's own."""
    task = Task(id="t", inputs=(File("mine", 5),))
    own = Campaign(name="own", workflow=Workflow((task,)))

    assert initial_file_sizes(own) == {}
    assert initial_file_sizes(_recorded(task)) == {}
    assert make_initial_files(own, tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_scale_is_refused(scale: float) -> None:
    """A scale that is no positive number has no meaning."""
    with pytest.raises(InputError, match="the scale must be positive"):
        replay(_recorded(Task(id="t", runtime=1.0)), scale=scale)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
def test_a_bad_size_scale_is_refused(scale: float) -> None:
    """0 makes empty files; less than nothing cannot be made."""
    with pytest.raises(InputError, match="the size scale must not be negative"):
        replay(_recorded(Task(id="t", runtime=1.0)), scale=1.0, size_scale=scale)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task(id="t"), "task t: has no recorded runtime"),
        (Task(id="t", runtime=1e300), "task t: runs for ever at scale"),
        (Task(id="t", runtime=1.0, outputs=(File("f", 2**62),)), '"f" is too large at this scale'),
        (Task(id="t", runtime=1.0, outputs=(File("x" * 300),)), "is too long to replay"),
        (
            Task(id="t", runtime=1.0, inputs=(File("a"),), outputs=(File("a/b"),)),
            'task t: "a" is a file, so "a/b" cannot be in a folder of that name',
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(task: Task, message: str) -> None:
    """Said before anything starts, with the task's name."""
    with pytest.raises(InputError) as caught:
        replay(_recorded(task), scale=1e10, size_scale=1e10)
    assert message in str(caught.value)


def test_a_campaign_with_programs_is_not_replayed() -> None:
    """Its own programs would silently not run."""
    own = Campaign(name="own", workflow=Workflow((Task(id="t", runtime=1.0),)))

    with pytest.raises(InputError, match="no recorded workflow"):
        replay(own, scale=1.0)


def test_every_real_instance_replays(data: Path) -> None:
    """Same tasks, same order, scaled runtimes, no line too long."""
    folder = data / "workflows"
    for path in sorted(folder.glob("*/*")):
        if path.name == "wfcommons-schema.json":
            continue
        campaign = (read_dax if path.parent.name == "dax" else read_wfformat)(path)
        replayed = replay(campaign, scale=0.01, size_scale=0.001)

        assert replayed.workflow.parents == campaign.workflow.parents
        for old, new in zip(campaign.workflow.tasks, replayed.workflow.tasks, strict=True):
            assert old.runtime is not None
            assert new.runtime == old.runtime * 0.01
            assert new.processors == old.processors
            assert new.memory is None  # else the recorded machine's memory would be asked for
            assert all(isinstance(s, Shell) and len(s.line) < 131_072 for s in new.steps)
