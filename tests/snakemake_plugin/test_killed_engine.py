"""Snakemake killed by SIGKILL, with the engine in it, at random instants and begun again."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("snakemake", reason="Snakemake is not installed: its plugin is not tested")

from bursar_devtools.testgrid.slurm import SlurmCluster

PATIENCE = 150.0

JOBS = [f"make{number}" for number in range(5)]

# Each job says that it begins, and that another copy of it runs: then its lock is held.
SNAKEFILE = f"""
rule all:
    input: "last"
for job in {JOBS}:
    rule:
        name: job
        output: "out/" + job
        params: job=job
        shell:
            "mkdir -p held; echo {{params.job}} >> begun; "
            "flock --nonblock held/{{params.job}} sh -c 'sleep 1; touch {{output}}' "
            "|| (echo {{params.job}} >> clashed; exit 1)"
rule last:
    input: expand("out/{{job}}", job={JOBS})
    output: "last"
    shell: "echo last >> begun; touch {{output}}"
"""
LOCAL = '[site.here]\nkind = "local"\nprocessors = 3\nunit_price = "1 SU/core-second"\n'
CLUSTER = """
[site.cluster]
kind = "slurm"
processors = 16
queue = "main"
unit_price = "1 SU/core-hour"
reach = "127.0.0.1"
environment = {{ SLURM_CONF = "{conf}" }}
"""


def begin(folder: Path, *options: str) -> "subprocess.Popen[bytes]":
    """Begin Snakemake, as its users do after a crash."""
    words = [
        *(sys.executable, "-m", "snakemake", "--executor", "bursar", "--jobs", "4", "--nolock"),
        *("--rerun-incomplete", "--latency-wait", "20", "--bursar-sites", "sites.toml"),
    ]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            words, cwd=folder, start_new_session=True, stdout=said, stderr=subprocess.STDOUT
        )


def lines(path: Path) -> list[str]:
    """Return the lines of a file; none where it is not there."""
    return path.read_text().split() if path.exists() else []


def finished(folder: Path) -> set[str]:
    """Return the jobs that have ended well in a life that was killed."""
    marks = (folder / ".snakemake" / "bursar" / "ended").glob("*-*")
    return {mark.name.partition("-")[0] for mark in marks if not mark.suffix}


def kill_and_begin_again(
    folder: Path, seed: int, kills: int = 4, options: tuple[str, ...] = ()
) -> set[str]:
    """
    Kill Snakemake at random instants, begin it again at once, and check what ran in each life.

    Returns
    -------
    set of str
        The jobs that have run.
    """
    draw = random.Random(seed)
    (folder / "Snakefile").write_text(SNAKEFILE)
    said = folder / "said"
    for _ in range(kills // 2):
        process = begin(folder, *options)
        awaited = len(lines(folder / "begun")) + draw.randint(1, 3)
        give_up = time.monotonic() + PATIENCE
        while len(lines(folder / "begun")) < awaited and process.poll() is None:
            assert time.monotonic() < give_up, said.read_text()
            time.sleep(0.02)
        time.sleep(draw.uniform(0.0, 2.0))
        process.kill()
        process.wait()
        done, before = finished(folder), len(lines(folder / "begun"))

        process = begin(folder, *options)
        give_up = time.monotonic() + PATIENCE
        while len(lines(folder / "begun")) == before and process.poll() is None:
            assert time.monotonic() < give_up, said.read_text()
            time.sleep(0.02)
        again = set(lines(folder / "begun")[before:])
        assert not again & done, f"seed {seed}: {sorted(again & done)} had ended and ran again"
        process.kill()
        process.wait()

    done, before = finished(folder), len(lines(folder / "begun"))
    assert begin(folder, *options).wait(PATIENCE) == 0, said.read_text()
    again = set(lines(folder / "begun")[before:])

    assert "spent before: " in said.read_text()
    assert not again & done, f"seed {seed}: ended jobs ran again"
    assert lines(folder / "clashed") == [], f"seed {seed}: two copies of a job ran at once"
    assert (folder / "last").exists()
    assert not finished(folder) & again
    bills = sorted((folder / ".snakemake" / "bursar").glob("*/bill.json"))
    billed = [task["name"] for task in json.loads(bills[-1].read_text())["tasks"]]
    # Once each: what a killed engine's worker still began before it noticed is not in this bill.
    assert len(billed) == len(set(billed)), f"seed {seed}: jobs ran twice in one life"
    assert set(billed) >= again - done
    campaign = json.loads((folder / ".snakemake" / "bursar" / "campaign.json").read_text())
    costs = [one["cost_micros"] for one in campaign["beginnings"]]
    assert campaign["ended"]
    # The killed ones left no bill; the first held processors, since a job of it began.
    assert costs[0] > 0
    assert campaign["cost_micros"] == sum(costs)
    assert finished(folder) == set(), f"seed {seed}: files of recorded jobs stay"
    return set(lines(folder / "begun"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 2), pytest.param(1, 4, marks=pytest.mark.ci), pytest.param(2, 4, marks=pytest.mark.ci)],
)
def test_a_killed_engine_on_this_machine(tmp_path: Path, seed: int, kills: int) -> None:
    (tmp_path / "sites.toml").write_text(LOCAL)
    assert kill_and_begin_again(tmp_path, seed, kills) == {*JOBS, "last"}


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_a_killed_engine_on_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(CLUSTER.format(conf=slurm.environment["SLURM_CONF"]))
    assert kill_and_begin_again(tmp_path, 3) == {*JOBS, "last"}


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_a_killed_engine_with_a_snakemake_for_each_job(tmp_path: Path) -> None:
    """Jobs that shell commands alone do not carry out, such as scripts, go this way."""
    (tmp_path / "sites.toml").write_text(LOCAL)
    made = kill_and_begin_again(tmp_path, 4, options=("--bursar-whole-snakemake",))
    assert made == {*JOBS, "last"}


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("where", ["here", "slurm"])
def test_engines_killed_more_often(
    slurm: SlurmCluster, tmp_path: Path, where: str, seed: int
) -> None:
    text = LOCAL if where == "here" else CLUSTER.format(conf=slurm.environment["SLURM_CONF"])
    (tmp_path / "sites.toml").write_text(text)
    assert kill_and_begin_again(tmp_path, seed) == {*JOBS, "last"}


def test_the_end_of_a_job_is_believed_only_where_it_is_of_these_outputs(tmp_path: Path) -> None:
    """A job of a killed Snakemake whose input has changed meanwhile runs again."""
    (tmp_path / "sites.toml").write_text(LOCAL)
    (tmp_path / "Snakefile").write_text(
        'rule copy:\n    input: "a"\n    output: "b"\n    shell: "echo copy >> begun; cp a b"\n'
    )
    (tmp_path / "a").write_text("old")
    process = begin(tmp_path)
    give_up = time.monotonic() + PATIENCE
    while not finished(tmp_path):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    process.kill()
    process.wait()
    (tmp_path / "a").write_text("new")

    assert begin(tmp_path).wait(PATIENCE) == 0
    assert (tmp_path / "b").read_text() == "new"
