"""Workflows of Snakemake as campaigns: what Snakemake says of its jobs, and what it refuses."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bursar
from bursar.api.known_campaign import foresee
from bursar.formats.campaign_file import read_campaign
from bursar.formats.job_files.snakefile import read_snakefile
from bursar.formats.job_files.snakemake_dag import _records
from bursar.model.errors import InputError

JOB = {
    "rule": "align",
    "wildcards": {},
    "command": "align {input}",
    "parents": [],
    "needed": True,
    "empty": False,
    "checkpoint": False,
    "group": None,
    "threads": 1,
    "resources": {"tmpdir": "/tmp"},
    "inputs": [],
    "outputs": [],
    "benchmark": None,
    "started": None,
    "ended": None,
}


class StandIn:
    """A program ``snakemake`` whose package answers as it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snakefile = folder / "Snakefile"
        self.snakefile.write_text("")
        (package := folder / "stub" / "snakemake").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "api.py").write_text("class DAGApi: pass\n")
        (folder / "bin").mkdir()
        program = folder / "bin" / "snakemake"
        program.write_text(f"#!{sys.executable}\n")
        program.chmod(0o755)
        self._package = package

    def answers(self, *jobs: dict[str, Any]) -> None:
        """Describe these jobs."""
        answer = {"folder": str(self.folder), "cores": 8, "jobs": [{**JOB, **job} for job in jobs]}
        self.writes(json.dumps(answer))

    def writes(self, text: str) -> None:
        """Write a text where the jobs are expected."""
        body = f"def main(arguments):\n    open(sys.argv[1], 'w').write({text!r})\n"
        (self._package / "cli.py").write_text("import sys\n" + body)

    def says(self, text: str) -> None:
        """Say something and fail."""
        body = f"def main(arguments):\n    print({text!r})\n    sys.exit(1)\n"
        (self._package / "cli.py").write_text("import sys\n" + body)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    return made


def test_jobs_are_tasks_with_what_their_rules_state(stand_in: StandIn) -> None:
    """Threads, memory, GPUs and run time reach the plan in its units."""
    resources = {"mem_mb": 2000, "runtime": 90, "nvidia_gpu": 1, "tmpdir": "/tmp", "licence": 2}
    stand_in.answers({"wildcards": {"s": "A", "n": "1"}, "threads": 4, "resources": resources})

    campaign = read_snakefile(stand_in.snakefile)

    (task,) = campaign.workflow.tasks
    assert (task.id, task.name) == ("align[s=A,n=1]", "align")
    assert task.processors == 4
    assert task.memory == 2_000_000_000
    assert task.runtime == 5400.0
    assert task.resources == {"gpu": 1}
    assert task.parameters == {"s": "A", "n": "1"}
    assert campaign.remarks == ("resources are not planned with: licence",)
    assert campaign.root == stand_in.folder


def test_memory_for_each_processor_is_memory_of_the_job(stand_in: StandIn) -> None:
    stand_in.answers({"threads": 3, "resources": {"mem_mb_per_cpu": 500}})

    (task,) = read_snakefile(stand_in.snakefile).workflow.tasks

    assert task.memory == 1_500_000_000


def test_a_job_waits_through_rules_that_run_nothing_and_not_for_what_is_done(
    stand_in: StandIn,
) -> None:
    """A collecting rule has no job of its own; a job whose outputs are there is none to run."""
    stand_in.answers(
        {"rule": "a"},
        {"rule": "done", "needed": False},
        {"rule": "gather", "empty": True, "parents": [0, 1]},
        {"rule": "b", "parents": [2]},
        {"rule": "all", "empty": True, "parents": [3]},
    )

    campaign = read_snakefile(stand_in.snakefile)

    assert [task.id for task in campaign.workflow.tasks] == ["a", "b"]
    assert campaign.workflow.parents == ((), (0,))


def test_files_keep_their_names_and_sizes_below_the_folder(stand_in: StandIn) -> None:
    """A file elsewhere, or one named by its whole path, has a name in the campaign as well."""
    inside = str(stand_in.folder / "data" / "a.txt")
    files = [["x/../b.txt", 3], [inside, 5], ["/elsewhere/c.txt", 7], ["../d.txt", None]]
    stand_in.answers({"inputs": files, "outputs": [["out", None]]})

    (task,) = read_snakefile(stand_in.snakefile).workflow.tasks

    assert [(file.name, file.size) for file in task.inputs] == [
        ("b.txt", 3),
        ("data/a.txt", 5),
        ("outside/elsewhere/c.txt", 7),
        (f"outside{stand_in.folder.parent}/d.txt", None),
    ]


def test_jobs_that_ran_before_are_known_also_where_they_need_not_run(stand_in: StandIn) -> None:
    """Run times of other jobs of a rule tell what a new job will take."""
    stand_in.answers(
        {"wildcards": {"s": "new"}},
        {
            "wildcards": {"s": "old"},
            "needed": False,
            "started": 100.0,
            "ended": 112.5,
            "inputs": [["i", 40]],
            "benchmark": "bench/old.tsv",
        },
    )

    (job,) = read_snakefile(stand_in.snakefile).earlier

    assert (job.task, job.kind, job.template) == ("align[s=old]", "align", "align {input}")
    assert (job.began, job.seconds, job.input_bytes) == (100.0, 12.5, 40)
    assert job.benchmark == str(stand_in.folder / "bench/old.tsv")


def test_two_jobs_of_the_same_rule_and_wildcards_are_told_apart(stand_in: StandIn) -> None:
    stand_in.answers({}, {})

    tasks = read_snakefile(stand_in.snakefile).workflow.tasks

    assert [task.id for task in tasks] == ["align", "align#2"]


def test_what_is_planned_otherwise_than_it_runs_is_said(stand_in: StandIn) -> None:
    stand_in.answers({"checkpoint": True}, {"rule": "b", "group": "together"})

    assert read_snakefile(stand_in.snakefile).remarks == (
        "jobs that follow checkpoints (align) are not known yet",
        "jobs of groups (together) are planned one by one",
    )


def refusal(stand_in: StandIn, arguments: str = "") -> str:
    with pytest.raises(InputError) as caught:
        read_snakefile(stand_in.snakefile, arguments)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_what_snakemake_refuses_is_told_in_one_line(stand_in: StandIn) -> None:
    """Neither its usage nor a traceback nor its talk reaches the user."""
    stand_in.says("Building DAG of jobs...\nMissingInputException in rule a:\n    nofile")
    assert refusal(stand_in).endswith(
        "refuses the workflow: MissingInputException in rule a: nofile"
    )

    stand_in.says('Traceback (most recent call last):\n  File "x", line 1\n    f()\nKeyError: 1')
    assert refusal(stand_in).endswith("refuses the workflow: KeyError: 1")

    stand_in.says("usage: snakemake_dag.py [-h]\nsnakemake_dag.py: error: bad --cores")
    assert refusal(stand_in).endswith("refuses the workflow: bad --cores")

    stand_in.says("")
    assert refusal(stand_in).endswith("it ended with exit status 1 and said nothing")

    stand_in.says("x" * 10_000)
    assert len(refusal(stand_in)) < 500


def test_an_answer_of_another_form_is_refused(stand_in: StandIn) -> None:
    stand_in.writes('{"folder": "/x", "jobs": [{}]}')

    assert "otherwise than version 9" in refusal(stand_in)


def test_nothing_to_do_is_said_with_the_way_to_plan_all_anew(stand_in: StandIn) -> None:
    stand_in.answers({"needed": False})

    with pytest.raises(InputError, match="nothing is to be done") as caught:
        read_snakefile(stand_in.snakefile)

    assert "--forceall" in str(caught.value.hint)


def test_arguments_that_no_shell_reads_are_refused(stand_in: StandIn) -> None:
    stand_in.answers({})

    assert "No closing quotation" in refusal(stand_in, '--config "a=1')


def test_without_snakemake_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Snakefile").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(InputError, match="there is no program snakemake on PATH") as caught:
        read_campaign(tmp_path / "Snakefile")

    assert "pip install snakemake" in str(caught.value.hint)


WORKFLOW = """
rule all:
    input: "report.txt"
rule make:
    output: "raw/{s}.txt"
    shell: "echo {wildcards.s} > {output}"
rule count:
    input: "raw/{s}.txt"
    output: "done/{s}.txt"
    threads: 3
    resources: mem_mb=200, runtime=lambda wildcards: 5 if wildcards.s == "b" else 2
    benchmark: "benchmarks/count/{s}.tsv"
    shell: "wc -c < {input} > {output}"
rule report:
    input: expand("done/{s}.txt", s=config.get("who", ["a", "b"]))
    output: "report.txt"
    shell: "sleep 0.1; cat {input} > {output}"
"""


@pytest.fixture
def workflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("snakemake", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("no Snakemake beside this Python")
    (tmp_path / "Snakefile").write_text(WORKFLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path / "Snakefile"


def test_snakemake_itself_is_understood(workflow: Path) -> None:
    """Its API says rules, wildcards, threads and resources as the reader expects them."""
    campaign = read_campaign(workflow)

    tasks = {task.id: task for task in campaign.workflow.tasks}
    assert sorted(tasks) == ["count[s=a]", "count[s=b]", "make[s=a]", "make[s=b]", "report"]
    assert tasks["count[s=b]"].processors == 3
    assert tasks["count[s=b]"].runtime == 300.0
    assert tasks["count[s=a]"].runtime == 120.0
    assert tasks["count[s=a]"].memory == 200_000_000
    assert set(tasks["report"].after) == {"count[s=a]", "count[s=b]"}
    assert campaign.templates["make"] == "echo {wildcards.s} > {output}"


@pytest.mark.ci
def test_arguments_mean_what_they_mean_to_snakemake(workflow: Path) -> None:
    campaign = read_snakefile(workflow, "--cores 2 --config 'who=[\"c\"]' -- done/c.txt")

    assert [(task.id, task.processors) for task in campaign.workflow.tasks] == [
        ("count[s=c]", 2),
        ("make[s=c]", 1),
    ]


THREADS = """
rule all:
    input: expand("sorted/{s}", s=config["who"])
rule sort:
    output: "sorted/{s}"
    threads: int(config["threads"])
    shell: "test {threads} -ge 1; touch {output}"
"""


@pytest.mark.ci
def test_threads_by_configuration_are_known_from_the_commands_that_ran(workflow: Path) -> None:
    """Snakemake records commands, not threads; twelve jobs ran, and two are to come."""
    workflow.write_text(THREADS)
    every = [f"s{number}" for number in range(14)]
    for at, threads in enumerate((1, 4, 8)):
        who = json.dumps(every[4 * at : 4 * at + 4])
        subprocess.run(
            ["snakemake", "--cores", "8", "--config", f"threads={threads}", f"who={who}"],
            check=True,
            capture_output=True,
        )
    for path in Path(".snakemake", "metadata").iterdir():
        record = json.loads(path.read_text())
        threads = int(record["shellcmd"].split()[1])
        record["starttime"] = record["endtime"] - 24 / threads
        path.write_text(json.dumps(record))

    asked = read_snakefile(workflow, f"--config threads=2 'who={json.dumps(every)}'")
    seen = foresee(asked, [], "none")

    assert sorted(one.processors for one in asked.earlier) == [1] * 4 + [4] * 4 + [8] * 4
    assert [task.id for task in asked.workflow.tasks] == ["sort[s=s12]", "sort[s=s13]"]
    runtimes = [task.runtime for task in seen.campaign.workflow.tasks]
    assert runtimes == pytest.approx([12.0, 12.0], rel=0.1)


@pytest.mark.parametrize("kind", [dict, SimpleNamespace])
def test_records_of_all_versions_of_snakemake_are_read(kind: Callable[..., Any]) -> None:
    """Earlier ones return a dictionary, which is empty where there is no record."""
    good = {"rule": "sort", "incomplete": False, "starttime": 1.0, "endtime": 3.0}
    made = {
        "a": kind(**good, shellcmd="sort -t4", input=["x"]),
        "other rule": kind(**good | {"rule": "cut"}, shellcmd=None, input=None),
        "incomplete": kind(**good | {"incomplete": True}, shellcmd=None, input=None),
        "untimed": kind(**good | {"endtime": None}, shellcmd=None, input=None),
        "unknown": kind() if kind is dict else None,
    }
    workflow = SimpleNamespace(persistence=SimpleNamespace(metadata=made.get))
    job = SimpleNamespace(output=list(made), rule=SimpleNamespace(name="sort"))

    assert _records(workflow, job) == [{**good, "shellcmd": "sort -t4", "input": ["x"]}]


def test_a_job_with_more_inputs_than_it_had_is_known_to_have(workflow: Path) -> None:
    """Its records name the inputs; further samples are gathered by the next run."""
    both = ["snakemake", "--cores", "2", "--config", 'who=["a", "b"]']
    subprocess.run(both, check=True, capture_output=True)

    asked = read_snakefile(workflow, '--config \'who=["a", "b", "c"]\'')

    assert {one.task: one.growth for one in asked.earlier if one.seconds is not None} == {
        "make[s=a]": 1.0, "make[s=b]": 1.0, "count[s=a]": 1.0, "count[s=b]": 1.0, "report": 1.5,
    }  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize(
    "argument",
    [
        "--delete-all-output",
        "--unlock",
        "--touch",
    ],
)
def test_a_plan_never_changes_the_folder(workflow: Path, argument: str) -> None:
    """Arguments that make Snakemake act are refused, or without effect beside the plan."""
    made = workflow.parent / "raw" / "a.txt"
    made.parent.mkdir()
    made.write_text("made before")
    os.utime(made, (1e9, 1e9))

    with contextlib.suppress(InputError):
        read_snakefile(workflow, argument)

    assert made.read_text() == "made before"
    assert made.stat().st_mtime == 1e9
    assert not (workflow.parent / "report.txt").exists()


@pytest.mark.ci
def test_a_campaign_of_snakemake_is_not_run_by_bursar(workflow: Path) -> None:
    with pytest.raises(InputError, match="run by Snakemake itself") as caught:
        bursar.run(workflow)

    assert "--executor bursar" in str(caught.value.hint)
