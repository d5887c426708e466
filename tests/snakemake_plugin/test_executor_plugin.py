"""The executor plugin of Snakemake, with Snakemake itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.run_lives import start_command
from tests.soak.services import ServiceLives

pytest.importorskip("snakemake", reason="Snakemake is not installed: its plugin is not tested")

from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_bursar import ExecutorSettings
from snakemake_executor_plugin_bursar.executor import SnakemakeExecutor
from snakemake_executor_plugin_bursar.job_needs import JobNeeds, job_needs

PATIENCE = 120.0


@pytest.mark.ci
class TestByTheInterfacesOwnTests(TestWorkflowsLocalStorageBase):
    """Snakemake's tests of executor plugins: a simple workflow, and one with groups."""

    __test__ = True

    def get_executor(self) -> str:
        return "bursar"

    def get_executor_settings(self) -> ExecutorSettings:
        return ExecutorSettings()


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("resources", "threads", "expected"),
    [
        ({}, 1, JobNeeds()),
        ({"_cores": 4, "mem_mb": 100}, 1, JobNeeds(processors=4, memory=356 * MIB)),
        ({"mem_mb_per_cpu": 50}, 3, JobNeeds(processors=3, memory=406 * MIB)),
        ({"runtime": 5}, 1, JobNeeds(runtime=300.0)),
        ({"gpu": 2}, 1, JobNeeds(gpus=2)),
        ({"matlab": 1, "other": 5}, 1, JobNeeds(licences={"matlab": 1})),
        ({"mem_mb": 0, "runtime": 0, "gpu": 0}, 1, JobNeeds()),
    ],
)
def test_resources_of_rules_are_needs(
    resources: dict[str, Any], threads: int, expected: JobNeeds
) -> None:
    assert job_needs(resources, threads, {"matlab": 2}) == expected


@pytest.mark.parametrize("value", ["much", -1, True, [1]])
def test_a_resource_that_is_no_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(WorkflowError, match="resource mem_mb: expected a number"):
        job_needs({"mem_mb": value}, 1, {})


SNAKEFILE = """
rule all:
    input: expand("out/{i}", i=range(3)), "wide"
rule make:
    output: "out/{i}"
    resources: mem_mb=64, runtime=1
    shell: "echo {wildcards.i} >> ran; sleep 0.3; echo $BURSAR_PROCESSORS > {output}"
rule wide:
    output: "wide"
    threads: 2
    shell: "echo wide >> ran; echo $BURSAR_PROCESSORS > {output}"
"""
SITES = '[site.here]\nkind = "local"\nprocessors = 4\nunit_price = "1 SU/core-second"\n'


def snakemake(folder: Path, *options: str, begin: bool = False) -> Any:
    """Run Snakemake with the plugin to its end, or begin to, in a session of its own."""
    words = [sys.executable, "-m", "snakemake", "--executor", "bursar", "--jobs", "4", *options]
    if begin:
        with (folder / "said").open("ab") as said:
            return subprocess.Popen(
                words, cwd=folder, start_new_session=True, stdout=said, stderr=subprocess.STDOUT
            )
    return subprocess.run(
        words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


def ran(folder: Path) -> list[str]:
    """Return the jobs that have begun, sorted."""
    path = folder / "ran"
    return sorted(path.read_text().split()) if path.exists() else []


@pytest.mark.parametrize(("service", "seconds"), [(None, 0.1), ("there", 1.0)])
def test_the_first_look_at_jobs_is_as_soon_as_all_others(
    service: str | None, seconds: float
) -> None:
    """Snakemake's thread asks before the executor has been made up."""
    executor = SnakemakeExecutor.__new__(SnakemakeExecutor)
    executor.workflow = SimpleNamespace(executor_settings=ExecutorSettings(service=service))
    assert executor.next_seconds_between_status_checks == seconds


def test_threads_are_processors_and_money_is_billed(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "sites.toml").write_text(SITES)

    done = snakemake(tmp_path, "--bursar-sites", "sites.toml", "--bursar-folder", "kept")

    assert done.returncode == 0, done.stdout
    assert (tmp_path / "wide").read_text() == "2\n"
    assert (tmp_path / "out" / "0").read_text() == "1\n"
    assert ran(tmp_path) == ["0", "1", "2", "wide"]
    assert '"total": ' in (tmp_path / "kept" / "bill.json").read_text()


def test_a_job_that_fails_is_told_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(
        'rule bad:\n    output: "x"\n    shell: "echo it broke here >&2; exit 3"\n'
    )

    done = snakemake(tmp_path)

    assert done.returncode == 1
    assert "bursar: exit status 3" in done.stdout
    (log,) = (tmp_path / ".snakemake" / "bursar" / "logs").rglob("*.log")
    assert "it broke here" in log.read_text()
    assert str(log) in done.stdout


WRONG = [
    (("--bursar-sites", "none.toml"), "bursar: none.toml: "),
    (("--bursar-budget", "much"), "bursar: expected an amount such as"),
    (("--bursar-service", "nowhere"), "bursar: --site: there is no service"),
    (
        ("--bursar-service", "http://127.0.0.1:9", "--bursar-budget", "1"),
        "--bursar-service: goes without --bursar-sites, --bursar-budget",
    ),
    (
        ("--bursar-service", "http://127.0.0.1:9", "--bursar-deadline", "1h"),
        "--bursar-deadline and --bursar-anew: the service has sites of its own",
    ),
    (("--bursar-deadline", "soon"), "bursar: deadline: expected"),
    (("--bursar-deadline", "0s"), "bursar: deadline"),
    (("--bursar-sites", "narrow.toml"), "rule wide: processors: a call may hold 1 processors"),
]


@pytest.mark.parametrize(
    ("options", "said"),
    [pytest.param(*case, marks=pytest.mark.ci if at else []) for at, case in enumerate(WRONG)],
)
def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "narrow.toml").write_text(SITES.replace("4", "1", 1))

    done = snakemake(tmp_path, *options, "wide")

    assert done.returncode == 1
    assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert ran(tmp_path) == []


TRANSLATED = """
localrules: here
rule all:
    input: "shadowed", "here", "tried", "piped", "gathered", "served", "scripted"
rule shadowed:
    output: "shadowed"
    shadow: "minimal"
    shell: "touch stray; echo yes > {output}"
rule here:
    output: "here"
    shell: "echo ${{BURSAR_PROCESSORS:-none}} > {output}"
rule tried:
    output: "tried"
    retries: 2
    resources: mem_mb=lambda wildcards, attempt: 50 * attempt
    shell: "echo t >> tries; test $(wc -l < tries) -ge 2 && echo {resources.mem_mb} > {output}"
rule pipe_in:
    output: pipe("pipe")
    shell: "seq 100 > {output}"
rule piped:
    input: "pipe"
    output: "piped"
    shell: "wc -l < {input} > {output}"
checkpoint split:
    output: directory("parts")
    shell: "mkdir {output}; for i in 1 2; do echo $i > {output}/$i; done"
rule square:
    input: "parts/{i}"
    output: temp("squares/{i}")
    shell: "echo $(( $(cat {input}) ** 2 )) > {output}"
def squares(wildcards):
    folder = checkpoints.split.get().output[0]
    return expand("squares/{i}", i=sorted(glob_wildcards(folder + "/{i,[0-9]+}").i))
rule gathered:
    input: squares
    output: "gathered"
    shell: "cat {input} > {output}"
rule server:
    output: service("socket")
    shell: "touch {output}; sleep 10000"
rule served:
    input: "socket"
    output: "served"
    shell: "test -e {input} && echo yes > {output}"
rule scripted:
    output: "scripted"
    run:
        with open(output[0], "w") as stream:
            stream.write("yes")
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_the_guide_calls_working_works(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(TRANSLATED)

    done = snakemake(tmp_path, "--bursar-deadline", "1h")

    assert done.returncode == 0, done.stdout
    wanted = {
        "shadowed": "yes", "here": "none", "tried": "100", "piped": "100",
        "gathered": "1\n4", "served": "yes", "scripted": "yes",
    }  # fmt: skip
    assert {name: (tmp_path / name).read_text().strip() for name in wanted} == wanted
    assert not (tmp_path / "stray").exists()
    assert not list((tmp_path / "squares").glob("*"))


def test_a_deadline_out_of_reach_is_refused_before_a_job_begins(tmp_path: Path) -> None:
    """Three jobs of a minute each need longer than ten seconds, on whatever there is."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)

    done = snakemake(tmp_path, "--bursar-deadline", "10s", "out/0", "out/1", "out/2")

    assert done.returncode == 1
    assert "bursar: --bursar-deadline: no plan meets the deadline; in more time: " in done.stdout
    assert ran(tmp_path) == []


@pytest.mark.ci
def test_the_goal_is_told_before_and_kept_within_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(SNAKEFILE)

    done = snakemake(tmp_path, "--bursar-deadline", "1h", "out/0", "out/1", "out/2")

    assert done.returncode == 0, done.stdout
    told = done.stdout.index("bursar: deadline 1 h 0 min: expected end ")
    assert told < done.stdout.index("rule make:")
    assert ran(tmp_path) == ["0", "1", "2"]


@pytest.mark.ci
def test_jobs_that_run_at_the_deadline_are_ended(tmp_path: Path) -> None:
    """Their outputs go with them, and the reason is said."""
    text = 'rule slow:\n    output: "x"\n    shell: "echo a >> ran; sleep 300; touch x"\n'
    (tmp_path / "Snakefile").write_text(text)

    done = snakemake(tmp_path, "--bursar-deadline", "12s", "x")

    assert done.returncode == 1
    assert "bursar: the deadline of 12 s passed" in done.stdout
    assert not (tmp_path / "x").exists()


def until(what: Callable[[], bool], process: "subprocess.Popen[bytes]", said: Path) -> None:
    """Wait for something to become true while Snakemake runs."""
    give_up = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < give_up, said.read_text()
        assert process.poll() is None, said.read_text()
        time.sleep(0.05)


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_jobs_at_a_service_go_on_when_snakemake_is_killed(tmp_path: Path) -> None:
    """Killed in the middle and begun again: each job has run once."""
    home, work = tmp_path / "served", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    text = SNAKEFILE.replace("sleep 0.3", "while [ ! -e go ]; do sleep 0.1; done")
    (work / "Snakefile").write_text(text)
    said = work / "said"
    service = ServiceLives(home, start_command, 60.0)
    service.start()
    try:
        options = ("--bursar-service", f"http://127.0.0.1:{service.port}")
        first = snakemake(work, *options, begin=True)
        until(lambda: len(ran(work)) > 0, first, said)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()

        subprocess.run(
            [sys.executable, "-m", "snakemake", "--unlock"], cwd=work, check=True,
            capture_output=True,
        )  # fmt: skip
        again = snakemake(work, *options, begin=True)
        until(lambda: "goes on as" in said.read_text(), again, said)
        (work / "go").touch()

        assert again.wait(PATIENCE) == 0, said.read_text()
        assert ran(work) == ["0", "1", "2", "wide"]
    finally:
        service.kill()
