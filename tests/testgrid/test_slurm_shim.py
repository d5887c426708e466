"""The same jobs under Slurm and under the stand-ins of its commands: both say the same of them."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.testgrid.clusters import need_slurm

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


# First, as the stand-ins forget jobs five minutes after their ends, as Slurm does.


@pytest.mark.ci
def test_json_says_the_same(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]],
) -> None:
    """
    Slurm 22.05 has v0.0.38, the stand-ins v0.0.41: the same keys, numbers and states wrapped.
    """
    said = []
    for run, _ in both:
        document = json.loads(run("squeue -t all --json").rpartition("}")[0] + "}")
        found = {}
        for job in document["jobs"]:
            if job["name"] in ("plain", "fails", "killed", "several", "inside", "later"):
                task = job["array_task_id"]
                task = task if not isinstance(task, dict) else task["number"] or None
                state = job["job_state"]
                found[f"{job['name']} {task or ''}"] = {
                    "job_state": state if isinstance(state, str) else state[0],
                    **{
                        key: job[key] if not isinstance(job[key], dict) else job[key]["number"]
                        for key in ("cpus", "node_count", "restart_cnt", "batch_flag")
                    },
                    **{key: job[key] for key in ("partition", "comment", "requeue", "user_id")},
                    "folder": alike(job["current_working_directory"], []),
                    "keys": job.keys(),
                }
        said.append(found)
    real, shim = said
    assert shim.keys() == real.keys()
    for name, job in shim.items():
        assert job.pop("keys") - real[name].pop("keys") <= {"batch_flag"}
        assert job == real[name]


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
        "squeue --start | head -n 1",
        "squeue --me -n plain,several,later -h -t all -S i -o '%j|%K|%T'",
        "squeue -u $(id -un) -n plain,several,later -h -t all -S -j,i -o '%j|%K'",
        "squeue -n plain,fails -h -t all -S i -o '%b|%d|%f|%h|%O|%v|%W|%x|%X|%y|%Y|%z'",
        "squeue -h -t PD,R | wc -l",
        "squeue -h -n absent -o %i | wc -l",
        "sinfo -s | head -n 1",
        "sinfo -N | head -n 1",
        "sinfo -h -t down -o %n",
        "scontrol show jobid -dd 999999",
        "scontrol requeue 999999",
        "scancel 999999",
        "scancel -s USR1 999999",
        "scancel --name=absent",
        "scontrol show hostnames n[01-03],m",
    ],
)
def test_commands_print_and_end_alike(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]], line: str
) -> None:
    (real, _), (shim, _) = both
    assert shim(line) == real(line)


@pytest.mark.ci
@pytest.mark.parametrize(
    "line",
    [
        "sbatch absent.sh",
        "sbatch --no-such-option --wrap true",
        "sbatch -d foo:1 --wrap true",
        "sbatch -d afterok:x --wrap true",
        "sbatch -d expand:1 --wrap true",
        "sbatch -t soon --wrap true",
        "sbatch -a 3-1 --wrap true",
        "echo 'echo no' | sbatch",
        "squeue -t BROKEN",
        "scancel",
        "scancel -s NOPE 1",
        "scontrol requeue",
    ],
)
def test_wrong_commands_fail_alike(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]], line: str
) -> None:
    """Both with a status other than 0; what is wrong is said in other words."""
    (real, _), (shim, _) = both
    assert "0" not in (shim(line).splitlines()[-1], real(line).splitlines()[-1])


SCENARIOS = {
    "dependencies": "bad=$(S --wrap 'until [ -f fail ]; do sleep 0.1; done; exit 3')\n"
    "mend=$(S -d afternotok:$bad --wrap 'echo mended > mended')\n"
    "never=$(S --kill-on-invalid-dep=yes -d afternotok:$mend --wrap 'touch unneeded')\n"
    "both=$(S -d afterok:$mend,afterany:$bad:$never --wrap 'cat mended')\n"
    "alone=$(S -J fit --wrap 'sleep 0.3; echo 1 >> alone')\n"
    "last=$(S -J fit -d singleton --wrap 'echo 2 >> alone')\n"
    "array=$(S -a 0-2 --wrap '[ $SLURM_ARRAY_TASK_ID != 1 ]')\n"
    "own=$(S -a 0-2 -d aftercorr:$array --kill-on-invalid-dep=yes --wrap true)\n"
    "begun=$(S -W --wrap true)\n"
    "after=$(S -d after:$begun --wrap true)\n"
    "touch fail; wait_for_all\n"
    "for j in $bad $mend $never $both $alone $last $array $own $after; do\n"
    "  squeue -h -t all -j $j -S i -r -o '%j %K %T'; done; cat alone; ls unneeded",
    "a limit": "a=$(S -W --wrap true)\n"
    "b=$(S -a 0-5%2 -d afterok:$a -J two --wrap 'echo + $SLURM_ARRAY_TASK_ID >> ran\n"
    "[ $SLURM_ARRAY_TASK_ID = 0 ] || exit 0; until [ $(wc -l < ran) = 6 ]; do sleep 0.1; done')\n"
    "wait_for_all; squeue -h -t all -j $b -S i -r -o '%j %K %T'; sort ran",
    "requeue": "j=$(S --no-requeue --wrap 'until [ -f enough ]; do sleep 0.1; done')\n"
    "scontrol requeue $j 2>&1 | sed s/$j/J/; k=$(S -d afterany:$j --wrap true)\n"
    "scontrol requeue $k 2>&1 | sed s/$k/K/; touch enough; wait_for_all\n"
    "scontrol requeue $j 2>&1 | sed s/$j/J/",
    "signals": "cat > signals.sh <<'E'\n#!/bin/bash\n#SBATCH -o signals.out\n"
    "trap 'echo script >> heard' USR1\n"
    'srun bash -c \'trap "echo step >> heard" USR1; touch ready; '
    "until [ -f enough ]; do sleep 0.05; done' &\n"
    "until [ -f enough ]; do sleep 0.05; done; wait; exit 5\nE\n"
    "j=$(S signals.sh); until [ -f ready ]; do sleep 0.1; done\n"
    "scancel -s USR1 $j; sleep 1; cat heard; rm -f heard; scancel -b -s SIGUSR1 $j; sleep 1\n"
    "cat heard; touch enough; wait_for_all; squeue -h -t all -j $j -o '%T'",
    "before the limit": "cat > late.sh <<'E'\n#!/bin/bash\n#SBATCH -t 1 --signal=USR2@57\n"
    "#SBATCH -o late.out\n"
    "srun bash -c 'trap \"echo step; exit 0\" USR2; while true; do sleep 0.05; done'\n"
    "echo script\nE\n"
    "j=$(S late.sh); wait_for_all; sort late.out",
    "some elements": "a=$(S -a 0-5%1 -J arr --wrap 'until [ -f enough ]; do sleep 0.1; done')\n"
    "until squeue -h -j ${a}_0 -o %t | grep -q R; do sleep 0.2; done\n"
    "scancel ${a}_[2-3] ${a}_5; sleep 0.5; squeue -h -j $a -S i -o '%i %T %r' | sed s/$a/A/\n"
    "squeue -h -r -j $a -S i -o '%i %T' | sed s/$a/A/; touch enough; wait_for_all\n"
    # Slurm's queue forgets elements that never began at once.
    "squeue -h -t all -r -j $a -S i -o '%K %T' | grep -v CANCELLED",
    "files of steps": "S -n 2 -N 1 -J fit --wrap 'srun -o %x-%t.txt -e err-%A-%%.txt sh -c "
    '"echo \\$SLURM_PROCID; echo e >&2"; srun -n 1 -o one echo a; '
    "srun -n 1 -o one --open-mode=append echo b' > number; wait_for_all\n"
    "mv err-$(cat number)-%.txt err; head fit-*.txt err one",
}
"""Lines of shell by name; ``S`` submits, ``wait_for_all`` waits for the queue to be empty."""


@pytest.mark.ci
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_story_has_the_same_end(
    both: tuple[tuple[Run, list[str]], tuple[Run, list[str]]], name: str
) -> None:
    """Each in a folder of its own, so that files are not mixed up."""
    begin = (
        f"mkdir 'story {name}'; cd 'story {name}'\n"
        'S() { sbatch --parsable -p main "$@"; }\n'
        "wait_for_all() { for n in $(seq 200); do\n"
        '  [ -n "$(squeue -h)" ] || return; sleep 0.3; done; squeue; }\n'
    )
    (real, _), (shim, _) = both
    assert shim(begin + SCENARIOS[name]) == real(begin + SCENARIOS[name])


RESOURCES = (
    "--gres=gpu:1", "--gres=gpu", "--gpus=2", "--gpus-per-node=1",
    "--gpus-per-task=1 -n 2 -N 1", "-L matlab:2", "--gpus=1 -L matlab",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.ci
def test_gpus_and_licences_are_held_alike(tmp_path: Path) -> None:
    """Two of each: what jobs see of them, what is said of the jobs, and what is refused."""
    need_slurm()
    extra = ("Licenses=matlab:2",)
    cluster = SlurmCluster.up(tmp_path / "c", name="gpus", nodes=1, cpus=4, gpus=2, extra=extra)
    shim = ShimFolder(tmp_path / "bin")
    shim.write(None)
    text = shim.service_file.read_text()
    shim.service_file.write_text(text.replace("{}", "{ gpu = 2, matlab = 2 }"))
    story = "".join(
        f"sbatch -W {option} -o o.txt --wrap 'env | grep GPUS | sort' | wc -l; cat o.txt\n"
        for option in RESOURCES
    )
    story += "squeue -h -t all -S i -o '%b|%W|%T'; scontrol show job | grep -o 'Licenses=[^ ]*'\n"
    story += "scontrol show job | grep -o 'TresPer.*'\n"
    # The first two hold all there is, and the third waits.
    story += (
        "for o in --gpus=1 '--gpus=1 -L matlab:2' '--gpus=2 -L matlab'; do sbatch -o x.txt $o "
        "--wrap 'until [ -f go ]; do sleep 0.1; done'; done | wc -l\n"
        "for n in $(seq 99); do [ $(squeue -h -t R | wc -l) = 2 ] && break; sleep 0.3; done\n"
        "sleep 1; squeue -h -S i -o %T; touch go\n"
        'for n in $(seq 99); do [ -z "$(squeue -h)" ] && break; sleep 0.3; done; squeue -h\n'
    )
    refused = [f"sbatch {o} --wrap true" for o in ("--gres=gpu:3", "-L ansys", "-L matlab:3")]
    path = f"{shim.folder}:{os.environ['PATH']}"
    try:
        real = shell(filled(tmp_path / "real"), {**os.environ, **cluster.environment})
        other = shell(filled(tmp_path / "shim"), {**os.environ, "PATH": path})
        assert other(story) == real(story)
        for line in refused:
            said, known = other(line), real(line)
            assert (said.splitlines()[-1], known.splitlines()[-1]) == ("1", "1")
            assert " of " in said
    finally:
        cluster.down()
        shim.stop()
        identity = shim.service_folder / "journal" / "service.json"
        kill_leftovers(str(json.loads(identity.read_bytes())["run"]))
