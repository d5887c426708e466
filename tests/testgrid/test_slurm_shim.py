"""The same jobs under Slurm and under the stand-ins of its commands: both say the same of them."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bursar.dispatch.linux_processes import kill_leftovers
from bursar.slurm_shim.shim_folder import ShimFolder
from bursar_devtools.testgrid.slurm import SlurmCluster

JOBS = (
    "-p main -J plain --wrap 'echo out'",
    "-p main -J fails -t 5 --wrap 'exit 3'",
    "-p main -J killed --wrap 'kill -9 $$'",
    "-p main -J several -a 1-5:2%1 -c 2 --mem=100M -o %x-%a.txt --wrap 'exit $SLURM_ARRAY_TASK_ID'",
    "-p main -t 1-2:03 --comment=said job.sh some words",
    "-p main -d afterany:{0} -J later --wrap 'sleep 0.1'",
    "-p main -d afterok:{1} --kill-on-invalid-dep=yes -J never --wrap true",
)
"""Command lines of sbatch; a number in braces is that of an earlier job."""

COLUMNS = "%F|%K|%t|%T|%j|%l|%C|%D|%u|%m|%P|%k|%Z|%a|%w"
KEYS = (
    "JobName", "JobState", "ExitCode", "TimeLimit", "NumNodes", "NumCPUs", "MinMemoryNode",
    "WorkDir", "StdOut", "StdErr", "StdIn", "Partition", "ArrayTaskId", "BatchFlag",
)  # fmt: skip

Run = Callable[[str], str]


def shell(folder: Path, environment: dict[str, str]) -> Run:
    """Return what runs a line in a folder, and returns what it prints and its exit status."""

    def run(line: str) -> str:
        done = subprocess.run(
            ["/bin/bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        return f"{done.stdout}{done.stderr}{done.returncode}\n"

    return run


def submitted(run: Run) -> list[str]:
    """Submit the jobs and return their numbers once all have ended."""
    numbers: list[str] = []
    for line in JOBS:
        said = run(f"sbatch --parsable {line.format(*numbers)}").split()
        assert said[-1] == "0", said
        numbers.append(said[0])
    give_up = time.monotonic() + 90
    while run("squeue -h") != "0\n":
        assert time.monotonic() < give_up, run("squeue")
        time.sleep(0.3)
    return numbers


def filled(folder: Path) -> Path:
    folder.mkdir()
    (folder / "job.sh").write_text('#!/bin/bash\n#SBATCH -J inside -o said-%j\necho "$@"\n')
    return folder


@pytest.fixture(scope="module")
def both(
    slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[tuple[Run, list[str]], tuple[Run, list[str]]]]:
    """Slurm's commands and the stand-ins, each with the numbers of the jobs."""
    root = tmp_path_factory.mktemp("both")
    real = shell(filled(root / "real"), {**os.environ, **slurm.environment})
    shim = ShimFolder(root / "bin")
    shim.write(None)
    path = f"{shim.folder}:{os.environ['PATH']}"
    other = shell(filled(root / "shim"), {**os.environ, "PATH": path})
    try:
        yield (real, submitted(real)), (other, submitted(other))
    finally:
        shim.stop()
        identity = shim.service_folder / "journal" / "service.json"
        kill_leftovers(str(json.loads(identity.read_bytes())["run"]))


def alike(text: str, numbers: list[str]) -> str:
    """Return a text without what differs: numbers of jobs, the folder, and a year for no limit."""
    for position, number in enumerate(numbers):
        text = re.sub(rf"(^|slurm-|said-){number}\b", rf"\1JOB{position}", text)
    text = re.sub(r"slurm-\d+_", "slurm-JOB_", text)
    # Slurm names the limit of the partition once a job without one has begun.
    text = text.replace("365-00:00:00", "UNLIMITED")
    return re.sub(r"/\S*/(real|shim)\b", "FOLDER", text)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize(
    "line",
    [
        "squeue",
        "squeue -l | tail -n 1",
        "squeue -o '%.7i|%5t|%R'",
        "squeue -O JobArrayID,State:.9,TimeLimit:12,Name:5",
        "sinfo -o '%P %a %l %D %t' | head -n 1",
        "squeue -j 999999",
        "scontrol show job 999999",
        "scontrol show hostnames 'a[1-2],b'",
        "sbatch --parsable --wait -p main --wrap 'exit 9' | wc -w",
        "sbatch -p main --wrap true | sed 's/[0-9]*$/N/'",
    ],
)
def test_commands_print_and_end_alike(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]], line: str
) -> None:
    (real, _), (shim, _) = both
    assert shim(line) == real(line)


@pytest.mark.long
@pytest.mark.ci
def test_the_queue_says_the_same_of_ended_jobs(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]],
) -> None:
    """States, names, limits, processors, memory, folders, element by element."""
    said = []
    for run, numbers in both:
        rows = run(f"squeue -h -t all -j {','.join(numbers)} -o '{COLUMNS}'").splitlines()
        said.append(sorted(alike(row, numbers) for row in rows))
    assert said[1] == said[0]


@pytest.mark.long
@pytest.mark.ci
def test_records_of_jobs_say_the_same(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]],
) -> None:
    said = []
    for run, numbers in both:
        found = {}
        for position, number in enumerate(numbers):
            for row in run(f"scontrol -o show job {number}").splitlines()[:-1]:
                pairs = dict(re.findall(r"(\w+)=(\S*)", row))
                name = f"{position} {pairs.get('ArrayTaskId', '')}"
                if pairs:
                    found[name] = {
                        key: alike(pairs.get(key, ""), numbers if key.startswith("Std") else [])
                        for key in KEYS
                    }
        said.append(found)
    assert said[1] == said[0]
