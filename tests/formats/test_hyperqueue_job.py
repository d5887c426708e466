"""Job files of HyperQueue as campaigns: what tasks see and leave, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bursar
from bursar.formats.campaign_file import read_campaign
from bursar.formats.file_text import parse_toml
from bursar.formats.job_files.hyperqueue_job import read_hyperqueue_job
from bursar.model.errors import InputError

DOCUMENTED = """\
name = "test-job"

[[task]]
stdout = "testout-%{TASK_ID}"
stderr = { path = "testerr-%{TASK_ID}", mode = "rm-if-finished" }
task_dir = true
time_limit = "1m 10s"
priority = -1
crash_limit = 12
command = ["/bin/bash", "-c", "echo $ABC; cat; echo bad >&2"]
env = { "ABC" = "123", "XYZ" = "aaaa" }
stdin = "Hello world!"

[[task.request]]
resources = { "cpus" = "4 compact!", "gpus" = 2 }
time_request = "10s"
"""
"""The example of HyperQueue's manual, with a command that shows more."""


def job(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_the_documented_task(tmp_path: Path) -> None:
    campaign = read_campaign(job(tmp_path, DOCUMENTED))
    (task,) = campaign.workflow.tasks
    assert (campaign.name, task.id, task.name) == ("test-job", "0", "test-job")
    assert (task.processors, task.resources, task.wall_limit) == (4, {"gpu": 2}, 70.0)
    assert len(campaign.remarks) == 4  # priority, crash_limit, the policy, time_request


@pytest.mark.parametrize(
    ("resources", "held", "memory"),
    [
        ('"gpus/nvidia" = 2', {"gpu": 2}, None),
        ('"gpus/amd" = "1 tight"', {"gpu": 1}, None),
        ("mem = 2048, fpga = 3", {"fpga": 3}, 2048 << 20),
    ],
)
def test_gpus_of_either_maker_memory_and_others_are_held(
    resources: str, held: dict[str, int], memory: int | None, tmp_path: Path
) -> None:
    text = f'[[task]]\ncommand = ["a"]\n[[task.request]]\nresources = {{ {resources} }}\n'
    (task,) = read_campaign(job(tmp_path, text)).workflow.tasks
    assert (task.processors, task.resources, task.memory) == (1, held, memory)


def test_tasks_run_as_under_hyperqueue(tmp_path: Path) -> None:
    """
    The files that are left, by HyperQueue's manual: relative to the folder, by default in job-N.
    """
    text = DOCUMENTED.replace('"cpus" = "4 compact!", "gpus" = 2', '"cpus" = 1') + (
        '\n[[task]]\nid = 7\ncommand = ["sh", "-c", "pwd; cat ../testout-8; exit 3"]\n'
        'cwd = "sub"\ndeps = [8]\nstdout = "%{SUBMIT_DIR}/seven"\nstderr = "none"\n'
        '[array]\nids = "10-12"\nentries = ["a b", "$x", "c"]\n'
        'command = ["sh", "-c", "echo $HQ_TASK_ID $HQ_INSTANCE_ID $HQ_ENTRY"]\n'
    )
    sites = tmp_path / "sites.toml"
    sites.write_text('[site.here]\nkind = "local"\nprocessors = 2\nunit_price = 1\n')
    done = bursar.run(job(tmp_path, text), sites, runs=tmp_path / "runs")
    assert done.exit_status == 1
    assert (tmp_path / "testout-8").read_text() == "123\nHello world!"
    assert not (tmp_path / "testerr-8").exists()  # the task went well
    assert (tmp_path / "seven").read_text() == f"{tmp_path}/sub\n123\nHello world!"
    (folder,) = tmp_path.glob("job-*")
    left = {path.name: path.read_text() for path in folder.iterdir() if path.suffix == ".stdout"}
    assert left == {"10.stdout": "10 0 a b\n", "11.stdout": "11 0 $x\n", "12.stdout": "12 0 c\n"}


def test_tasks_without_ids_follow_the_largest_of_all(tmp_path: Path) -> None:
    """As in HyperQueue's own test of this: 3 and 12 are stated, the others are 13 to 15."""
    ids = (None, 12, 3, None, None)
    tables = ('[[task]]\ncommand = ["a"]\n' + (f"id = {own}\n" if own else "") for own in ids)
    campaign = read_campaign(job(tmp_path, "".join(tables)))
    assert [task.id for task in campaign.workflow.tasks] == ["13", "12", "3", "14", "15"]


def test_tasks_without_ids_follow_each_other(tmp_path: Path) -> None:
    text = '[[task]]\ncommand = ["a"]\n[[task]]\ncommand = ["b"]\n'
    text += '[[array]]\nentries = ["x", "y"]\ncommand = ["c"]\n'
    campaign = read_campaign(job(tmp_path, text))
    assert [task.id for task in campaign.workflow.tasks] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[task]]\nid = 1\n", "job.toml:1: task[0].command: is missing"),
        ("[[task]]\ncommand = []\n", "job.toml:2: task[0].command: "),
        ('[[task]]\ncommand = ["a"]\ncomand = 1\n', 'job.toml:3: task[0].comand: '),
        ('max_fails = 3\n[[task]]\ncommand = ["a"]\n', "job.toml:1: max_fails: is not honoured"),
        ('stream = "x"\n[[task]]\ncommand = ["a"]\n', "job.toml:1: stream: is not honoured"),
        ('[[task]]\ncommand = ["a"]\ndeps = [4]\n', "job.toml:3: task[0].deps: there is no task 4"),
        (
            '[[task]]\nid = 2\ncommand = ["a"]\n[[task]]\nid = 2\ncommand = ["b"]\n',
            "task[1]: two tasks have the id 2",
        ),
        ('[[task]]\ncommand = ["a"]\ntime_limit = "soon"\n', "job.toml:3: task[0].time_limit: "),
        ('[[task]]\ncommand = ["a"]\ntime_limit = "1 M"\n', "a time without months"),
        ('[[task]]\ncommand = ["a"]\nstdout = "%{NO}"\n', 'no placeholder "%{NO}" is known'),
        ('[array]\nids = "3-1"\ncommand = ["a"]\n', "ids: expected indices"),
        ('[array]\ncommand = ["a"]\n', "expected ids or entries"),
        ('[array]\nids = "1-3"\nentries = ["x"]\ncommand = ["a"]\n', "expected as many as ids, 3"),
        (
            '[[task]]\ncommand = ["a"]\n[[task.request]]\nresources = { cpus = 1.5 }\n',
            'resources.cpus: expected a whole number, got "1.5"',
        ),
        (
            '[[task]]\ncommand = ["a"]\n[[task.request]]\n'
            'resources = { "gpus/amd" = 1, "gpus/nvidia" = 1 }\n',
            "resources.gpus/nvidia: GPUs of two makers are not honoured",
        ),
        (
            '[[task]]\ncommand = ["a"]\n[[task.request]]\nn_nodes = 2\n',
            "n_nodes: is not honoured: a task runs on one machine",
        ),
        (
            '[[task]]\ncommand = ["a"]\n[[task.request]]\n[[task.request]]\n',
            "request: alternatives are not honoured",
        ),
        ('[[task]]\ncommand = ["a"]\ndeps = [0]\n', "in a cycle: 0 -> 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_campaign(job(tmp_path, text))
    assert said in str(caught.value)
    assert str(tmp_path / "job.toml") in str(caught.value)


KEYS = st.sampled_from(
    ("id", "command", "env", "stdout", "stdin", "cwd", "deps", "request", "ids", "entries", "name",
     "time_limit", "resources", "path", "mode", "cpus", "n_nodes", "other")
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.text(max_size=6), st.integers(-5, 1 << 40), st.booleans(), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=3),
    st.one_of(st.none(), VALUES),
    st.booleans(),
)
def test_any_document_is_read_or_refused(tasks: list[Any], array: Any, sound: bool) -> None:
    """Keys and values at random, with a command where one is needed, or not."""
    for task in tasks if sound else []:
        task["command"] = ["a"]
    document = {"task": tasks, **({} if array is None else {"array": array})}
    try:
        found = len(read_hyperqueue_job(document, Path("job.toml")).workflow.tasks)
    except InputError as error:
        found = len(error.message)
    assert found or not tasks


def test_a_campaign_with_one_task_is_still_a_campaign(tmp_path: Path) -> None:
    text = '[campaign]\nname = "c"\n[task]\ncommand = "true"\nruntime = 1\n'
    assert isinstance(parse_toml(text)["task"], dict)
    assert read_campaign(job(tmp_path, text)).name == "c"
