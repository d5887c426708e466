"""Scripts for ``sbatch``: what is read, and what is refused at its line."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.api.site_resolution import resolve_sites
from bursar.formats.campaign_file import read_campaign
from bursar.formats.job_files.sbatch_options import (
    parse_array,
    parse_counted,
    parse_gpus,
    parse_memory,
    parse_options,
    parse_time_limit,
)
from bursar.formats.job_files.slurm_script import _RUN_SCRIPT, SRUN_SCRIPT, read_slurm_script
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.task import Task


def script(folder: Path, *lines: str, name: str = "job.sh") -> Path:
    path = folder / name
    path.write_text("\n".join(("#!/bin/bash", *lines, "true", "")))
    return path


def refusal(read: Callable[[], object]) -> str | None:
    """Return what is said against an input; None: nothing is. Any other error fails the test."""
    try:
        read()
    except ValueError as error:  # input errors are, too
        return str(error)
    return None


def test_an_array_is_a_task_for_each_index(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "#SBATCH -J fit --array=1-9:4%2",
        "#SBATCH --ntasks=2 -c 3 --mem-per-cpu=100M -t 1:30 --gpus-per-task=1 -L matlab:2",
    )

    campaign = read_campaign(path)

    tasks = campaign.workflow.tasks
    assert (campaign.name, campaign.at_once) == ("fit", 2)
    assert [task.id for task in tasks] == ["fit_1", "fit_5", "fit_9"]
    assert {(t.processors, t.memory, t.wall_limit) for t in tasks} == {(6, 600 * 2**20, 90.0)}
    assert tasks[0].resources == {"gpu": 2, "matlab": 2}
    assert [task.parameters["index"] for task in tasks] == [1, 5, 9]
    assert tasks[0].runtime is None  # a limit is no estimate


@pytest.mark.parametrize(
    ("name", "first"),
    [("a.sbatch", ""), ("a.slurm", ""), ("a.py", "#SBATCH -n 1"), ("a", "#SBATCH -n 1")],
)
def test_scripts_are_known_by_name_or_lines(tmp_path: Path, name: str, first: str) -> None:
    assert len(read_campaign(script(tmp_path, first, name=name)).workflow.tasks) == 1


def test_what_is_left_to_the_sites_file_is_said(tmp_path: Path) -> None:
    campaign = read_campaign(script(tmp_path, "#SBATCH -p short", "#SBATCH --mail-user=a@b"))

    assert [remark.split(": ", 1)[1] for remark in campaign.remarks] == [
        "--mail-user is left to the sites file, or to options of Bursar",
        "--partition is left to the sites file, or to options of Bursar",
    ]
    assert campaign.remarks[1].startswith(f"{tmp_path / 'job.sh'}:2: ")


WRONG = [
    ("--constraint=intel", "--constraint: is not honoured"),
    ("-d afterok:1", "--dependency: is not honoured"),
    ("-N 2", "--nodes: more than one node is not honoured"),
    ("-N 4-2", "--nodes: expected the least number first"),
    ("--nodes=none", '--nodes: expected a positive number, got "none"'),
    ("-n 8 --ntasks-per-node=4", "--ntasks: 8 tasks, 4 on each node"),
    ("-n 0", '--ntasks: expected a positive number, got "0"'),
    ("-n -3", '--ntasks: expected a positive number, got "-3"'),
    ("-c many", '--cpus-per-task: expected a positive number, got "many"'),
    ("-n", "--ntasks: expected a value"),
    ("--tiem=1", "--tiem is no option of sbatch that is known here"),
    ("-y 3", "-y is no option of sbatch"),
    ("extra", 'expected options, got "extra"'),
    ("-n 1 extra", 'expected options, got "extra"'),
    ("--mem=0", "--mem: 0, all that a node has, is not honoured"),
    ("--mem=4X", "--mem: expected an amount"),
    ("--mem-per-cpu=-1", "--mem-per-cpu: expected an amount"),
    ("--time=soon", '--time: expected a time limit such as 90, 1:30:00 or 2-12:00, got "soon"'),
    ("--time=1:2:3:4", "--time: expected a time limit"),
    ("--array=", "--array: expected indices"),
    ("--array=3-1", "--array: expected indices"),
    ("--array=1-3:0", "--array: expected indices"),
    ("--array=1-3%0", "--array: expected indices"),
    ("--array=1,,3", "--array: expected indices"),
    ("--array=a-b", "--array: expected indices"),
    ("--array=5000000", "--array: indices may not be above 4,000,000"),
    ("--gres=gpu:a100:2", "--gres: expected a number of GPUs"),
    ("--gres=shard:1", "--gres: expected a number of GPUs"),
    ("--gpus=x", "--gpus: expected a number of GPUs"),
    ("--licenses=a:0", "--licenses: expected NAME or NAME:NUMBER"),
    ("--licenses=", "--licenses: expected NAME or NAME:NUMBER"),
    ("--export=1A=2", "--export: expected names of variables"),
    ("--open-mode=both", "--open-mode: expected append or truncate"),
    ('--job-name="open', "expected a closing quotation mark"),
    ("--signal=B:USR1@60", "--signal: is not honoured"),
    ("--wrap=ls", "--wrap: is not honoured"),
    ("--exclusive", "--exclusive: is not honoured"),
    ("--hold", "--hold: is not honoured"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_what_is_wrong_is_said_at_its_line(tmp_path: Path, options: str, said: str) -> None:
    path = script(tmp_path, "#SBATCH -J fine", f"#SBATCH {options}")

    with pytest.raises(InputError) as error:
        read_campaign(path)

    assert error.value.where == f"{path}:3"
    assert said in error.value.message
    assert "\n" not in error.value.message


def test_a_file_without_a_first_line_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("echo hello\n")

    with pytest.raises(InputError, match="is no script for sbatch"):
        read_campaign(path)


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_words_are_options_or_an_error(words: list[str]) -> None:
    said = refusal(lambda: parse_options(words, "here"))

    assert said is None or said.startswith("here: ")


@given(st.text(max_size=60))
def test_any_line_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.sh"
    path.write_text(f"#!/bin/sh\n#SBATCH {line}\n", encoding="utf-8", errors="replace")

    said = refusal(lambda: read_slurm_script(path))

    assert said is None or said.startswith(str(path))


@given(st.text(alphabet="0123456789-:,% GMKgpu", max_size=14))
def test_values_are_numbers_or_an_error(word: str) -> None:
    for parse in (parse_array, parse_memory, parse_time_limit, parse_gpus, parse_counted):
        assert refusal(partial(parse, word)) != ""


@given(
    st.sets(st.integers(0, 60), min_size=1, max_size=12),
    st.one_of(st.none(), st.integers(1, 9)),
)
def test_indices_come_back_sorted(indices: set[int], at_once: int | None) -> None:
    text = ",".join(map(str, indices)) + ("" if at_once is None else f"%{at_once}")

    found = parse_array(text)

    assert (found.indices, found.at_once) == (tuple(sorted(indices)), at_once)


@pytest.mark.parametrize("text", [_RUN_SCRIPT, SRUN_SCRIPT])
def test_what_runs_scripts_is_a_shell_script(text: str) -> None:
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--mpi=pmix", "true"), 1, "srun: --mpi=pmix is not honoured within a task of Bursar"),
        (("-N", "2", "true"), 1, "srun: -N 2: a task has one node"),
        ((), 1, "srun: expected a program"),
        (("-n2", "sh", "-c", "exit 7"), 7, "task 1: Exited with exit code 7"),
        (("-n", "3", "-l", "sh", "-c", "exit $SLURM_PROCID"), 2, "task 2: Exited with exit code 2"),
    ],
)
def test_the_stand_in_of_srun_refuses_what_it_cannot_do(
    words: tuple[str, ...], status: int, said: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", SRUN_SCRIPT, "srun", *words], text=True, capture_output=True, check=False
    )

    assert done.returncode == status
    assert said in done.stderr


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 3))
def test_a_limit_divides_the_processors_of_sites(
    widths: list[int], at_once: int, widest: int
) -> None:
    """No more tasks run at a time than are allowed, and as many as the sites have room for."""
    sites = [SiteFacts(name=str(at), processors=width) for at, width in enumerate(widths)]
    task = Task(id="t", processors=widest)
    campaign = Campaign(name="c", workflow=Workflow((task,)), at_once=at_once)

    found = resolve_sites(sites, campaign)

    room = sum(width // widest for width in widths)
    if room:
        assert sum(site.processors // widest for site in found) == min(at_once, room)
        assert all(site.processors <= widths[int(site.name)] for site in found)
    else:
        assert list(found) == sites
