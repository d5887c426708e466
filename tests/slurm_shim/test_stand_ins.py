"""
The stand-ins as programs call them: real commands, a real service, and what is left of both.

Command lines and what is read from answers are those of Nextflow's SlurmExecutor, of the Slurm
executor plugin of Snakemake, of its cluster-generic plugin with the usual status script, of
Dask-jobqueue, of JUBE and of submitit, as their sources have them.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.service.service_process import served
from tests.slurm_shim.shim_process import PATIENCE, Shim, shim_process

from bursar.model.errors import InputError
from bursar.slurm_shim.shim_folder import COMMANDS, ShimFolder


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shim]:
    with shim_process(tmp_path_factory.mktemp("shim")) as found:
        yield found


def test_nextflow_finds_its_jobs(shim: Shim) -> None:
    """Header of .command.run, submission by name, and the question for the queue."""
    task = shim.work / "ab" / "cdef"
    task.mkdir(parents=True)
    (task / ".command.run").write_text(
        "#!/bin/bash\n"
        "#SBATCH -J nf-align_(1)\n"
        f"#SBATCH -o {task}/.command.log\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --signal B:USR2@30\n"
        "#SBATCH -c 2\n"
        "#SBATCH -t 00:10:00\n"
        "#SBATCH --mem 300M\n"
        "#SBATCH -p long\n"
        "NXF_CHDIR=$PWD\n"
        "touch .command.begin; echo $NXF_CHDIR $SLURM_CPUS_PER_TASK; sleep 1\n"
        "echo -n $? > .exitcode\n"
    )
    said = shim.run(f"cd {task} && sbatch .command.run")
    match = re.search(r"Submitted batch job (\d+)", said)
    assert match is not None
    job = match[1]

    user = shim.run("id -un").strip()
    line = f"squeue --noheader -o '%i %t' -t all -p long -u {user}"
    states = dict(row.split() for row in shim.run(line).splitlines())
    assert states[job] in ("PD", "R", "CD")
    assert shim.state(job) == "COMPLETED"
    assert dict(row.split() for row in shim.run(line).splitlines())[job] == "CD"
    assert (task / ".exitcode").read_text() == "0"
    assert (task / ".command.log").read_text() == f"{task} 2\n"
    other = line.replace("-p long", "-p short")
    assert job not in shim.run(other).split()


@pytest.mark.ci
def test_nextflow_kills_its_jobs(shim: Shim) -> None:
    jobs = [shim.submit("--wrap 'exec sleep 100'") for _ in range(2)]
    shim.run(f"scancel {' '.join(jobs)}")
    assert [shim.state(job) for job in jobs] == ["CANCELLED by " + str(os.getuid())] * 2


@pytest.mark.ci
def test_the_slurm_plugin_of_snakemake_reads_states(shim: Shim) -> None:
    run = "0b5f4e1c-6a5e-4d0f-9f2b-5c3a8e7d1f00"
    (shim.work / "logs").mkdir()
    jobs = {}
    for name, command in (("good", "true"), ("bad", "exit 4")):
        said = shim.run(
            f"sbatch --parsable --job-name {run} --output '{shim.work}/logs/%j.log' --export=ALL "
            f"--comment rule_{name}_wildcards_a -A project -p cpu -t 10 --mem 100 --ntasks=1 "
            f'--cpus-per-task=1 -D {shim.work} --wrap="{command}; echo $MINE"'
        )
        jobs[said.strip().split(";")[0]] = name
    for job in jobs:
        shim.state(job)
    since = time.strftime("%Y-%m-%dT%H:00", time.localtime(time.time() - 2 * 86400))
    rows = shim.run(
        "sacct -X --parsable2 --clusters all --noheader --format=JobIdRaw,State "
        f"--starttime {since} --endtime now --name {run}"
    )
    found = {jobs[row.split("|")[0]]: row.split("|")[1] for row in rows.splitlines()}
    assert found == {"good": "COMPLETED", "bad": "FAILED"}
    good = next(job for job, name in jobs.items() if name == "good")
    assert (shim.work / "logs" / f"{good}.log").read_text() == "yes\n"
    assert shim.run(f"scancel {good} --clusters=all") == ""


STATUS = r"""
output=`sacct -j "$1" --format State --noheader | head -n 1 | awk '{print $1}'`
if [[ $output =~ ^(COMPLETED).* ]]; then echo success
elif [[ $output =~ ^(RUNNING|PENDING|COMPLETING|CONFIGURING|SUSPENDED).* ]]; then echo running
else echo failed
fi
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "status"),
    [("true", "success"), ("false", "failed")],
)
def test_the_usual_status_script_of_cluster_generic(shim: Shim, command: str, status: str) -> None:
    (shim.work / "status.sh").write_text(STATUS)
    going = f"go-{status}"
    wait = f"until [ -f {going} ]; do sleep 0.05; done"
    job = shim.submit(f"-c 1 --mem=100 --wrap '{wait}; {command}'")
    assert shim.run(f"bash status.sh {job}") == "running\n"
    (shim.work / going).touch()
    shim.state(job)
    assert shim.run(f"bash status.sh {job}") == f"{status}\n"
    brief = shim.run(f"sacct -P -b -j {job} -n")
    assert dict(row.split("|")[:2] for row in brief.splitlines()).keys() == {job, f"{job}.batch"}
    said = shim.run(f"scontrol -o show job {job}")
    match = re.search(r"JobState=(\w+)", said)
    assert match is not None
    assert match[1] == ("COMPLETED" if status == "success" else "FAILED")


def test_dask_jobqueue_starts_and_ends_workers(shim: Shim) -> None:
    (shim.work / "worker.sh").write_text(
        "#!/usr/bin/env bash\n\n#SBATCH -J dask-worker\n"
        "#SBATCH -e dask-worker-%J.err\n#SBATCH -o dask-worker-%J.out\n"
        "#SBATCH -p regular\n#SBATCH -n 1\n#SBATCH --cpus-per-task=1\n#SBATCH --mem=200M\n"
        "#SBATCH -t 00:30:00\n\nJOB_ID=${SLURM_JOB_ID%;*}\necho $JOB_ID\nexec sleep 100\n"
    )
    match = re.search(r"(?P<job_id>\d+)", shim.run("sbatch worker.sh"))
    assert match is not None
    job = match["job_id"]
    file = shim.work / f"dask-worker-{job}.out"
    give_up = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert file.read_text() == f"{job}\n"
    shim.run(f"scancel {job}")
    assert shim.state(job).startswith("CANCELLED")


def test_jube_waits_for_the_file_at_the_end(shim: Shim) -> None:
    """Its platform file for Slurm: names, standard output and error, and a line behind."""
    (shim.work / "submit.job").write_text(
        "#!/bin/bash -x\n#SBATCH --job-name=bench\n#SBATCH --mail-user=\n#SBATCH --mail-type=NONE\n"
        "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=1\n"
        "#SBATCH --time=00:30:00\n#SBATCH --output=job.out\n#SBATCH --error=job.err\n"
        "#SBATCH --export=ALL\n\nsrun -n 1 echo measured\nJUBE_ERR_CODE=$?\n"
        "if [ $JUBE_ERR_CODE -ne 0 ]; then exit $JUBE_ERR_CODE; fi\ntouch ready\n"
    )
    shim.run("sbatch submit.job")
    give_up = time.monotonic() + PATIENCE
    while not (shim.work / "ready").exists():
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert (shim.work / "job.out").read_text() == "measured\n"


def test_submitit_reads_arrays(shim: Shim) -> None:
    (shim.work / "array.sh").write_text(
        "#!/bin/bash\n#SBATCH --array=0-2%1\n#SBATCH --open-mode=append\n#SBATCH -o array.out\n"
        "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID\n"
    )
    match = re.search(r"job (?P<id>[0-9]+)", shim.run("sbatch array.sh"))
    assert match is not None
    job = int(match["id"])
    rows = shim.run(f"sacct -o JobID,State --parsable2 -j {job}").splitlines()
    assert rows[0] == "JobID|State"
    form = r"(?P<main_id>\d+)_\[(?P<arrays>(\d+(-\d+)?(,)?)+)(\%\d+)?\]"
    for row in rows[1:]:
        name = row.split("|")[0]
        assert re.search(form, name) or re.fullmatch(rf"{job}_\d(\.batch)?", name)
    for index in range(3):
        assert shim.state(f"{job}_{index}") == "COMPLETED"
    # One at a time, so in order; the numbers of elements follow that of the job.
    lines = [f"{job} {index} {job + index}" for index in range(3)]
    assert (shim.work / "array.out").read_text().splitlines() == lines


@pytest.mark.ci
def test_a_shell_script_builds_a_chain(shim: Shim) -> None:
    said = shim.run(
        "set -e\n"
        "first=$(sbatch --parsable --wrap 'echo one > chain')\n"
        "second=$(sbatch --parsable -d afterok:$first --wrap 'cat chain; exit 3')\n"
        "never=$(sbatch --parsable --dependency=afterok:$second --wrap 'touch never')\n"
        "last=$(sbatch --parsable -d afterany:$second:$never --wrap 'echo last >> chain')\n"
        "sbatch --wait -d singleton -J wrap --wrap 'exit 5' || echo status $?\n"
        "echo $second $never $last"
    )
    second, never, last = said.splitlines()[-1].split()
    assert "status 5" in said
    assert shim.state(second) == "FAILED"
    assert shim.state(never).startswith("CANCELLED")
    assert shim.state(last) == "COMPLETED"
    assert (shim.work / "chain").read_text() == "one\nlast\n"
    assert not (shim.work / "never").exists()
    assert "DependencyNeverSatisfied" in shim.run(f"squeue -t all -h -o %r -j {never}")
    assert "ExitCode=3:0" in shim.run(f"scontrol show job {second}")


@pytest.mark.ci
def test_jobs_wait_for_failures_and_for_several_kinds(shim: Shim) -> None:
    """Each through a gate: two begin, one never does, and after asks for a begin that was."""
    said = shim.run(
        "set -e\n"
        "good=$(sbatch --parsable -W --wrap true)\n"
        "bad=$(sbatch --parsable --wrap 'until [ -f fail ]; do sleep 0.05; done; exit 3')\n"
        "mend=$(sbatch --parsable -d afternotok:$bad --wrap 'echo mended > mended')\n"
        "never=$(sbatch --parsable -d afternotok:$mend --wrap 'touch unneeded')\n"
        "both=$(sbatch --parsable -d afterok:$mend,afterany:$bad:$never --wrap 'cat mended')\n"
        "now=$(sbatch --parsable -d after:$good,afterany:$both --wrap true)\n"
        "squeue -h -j $both -o %E; touch fail; echo $mend $never $both $now"
    )
    mend, never, both, now = said.splitlines()[-1].split()
    assert f"afterok:{mend}(unfulfilled),afterany:" in said
    assert [shim.state(job) for job in (mend, both, now)] == ["COMPLETED"] * 3
    assert shim.state(never).startswith("CANCELLED")
    assert not (shim.work / "unneeded").exists()


@pytest.mark.ci
def test_a_job_is_put_back_and_those_that_wait_for_it_wait_on(shim: Shim) -> None:
    """
    The job asks for it itself, as scripts at their limit do; what follows runs once, after it.
    """
    (shim.work / "again.sh").write_text(
        "#!/bin/bash\n#SBATCH -o again.out --open-mode=append\n"
        "echo begin ${SLURM_RESTART_COUNT-0} >> order\n"
        "until [ -f told ]; do sleep 0.05; done\n"
        '[ -n "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 100; }\n'
        "echo end >> order\n"
    )
    job = shim.submit("again.sh")
    chain = shim.submit(f"-d afterok:{job} --wrap 'echo after >> order'")
    last = shim.submit(f"-a 0-2%1 -d afterok:{chain} --wrap 'echo last >> order'")
    (shim.work / "told").touch()
    assert shim.state(last) == "COMPLETED"
    order = "begin 0 begin 1 end after last last last"
    assert " ".join((shim.work / "order").read_text().split()) == order
    assert "Restarts=1" in shim.run(f"scontrol show job {job}")
    assert "scancelled" not in (shim.work / "again.out").read_text()
    once = shim.submit("--no-requeue --wrap 'exit 1'")
    assert shim.state(once) == "FAILED"
    refused = shim.run(f"scontrol requeue {once}", status=1)
    assert refused == f"Requested operation is presently disabled for job {once}\n"
    shim.run(f"scontrol requeue {job}")
    shim.state(job)
    assert "Restarts=2" in shim.run(f"scontrol show job {job}")


def test_the_place_of_an_element_that_ends_goes_to_the_next(shim: Shim) -> None:
    """Two at a time: the first sleeps until all others have run one after another beside it."""
    array = shim.submit(
        "-a 0-4%2 --wrap '[ $SLURM_ARRAY_TASK_ID = 0 ] || { echo x >> ran; exit 0; }; "
        "until [ $(wc -l < ran) = 4 ]; do sleep 0.05; done'"
    )
    assert shim.state(array) == "COMPLETED"


@pytest.mark.ci
def test_signals_reach_steps_the_script_or_all(shim: Shim) -> None:
    """As Slurm's scancel: without --batch or --full steps only, with --full children, too."""
    (shim.work / "signals.sh").write_text(
        "#!/bin/bash\n#SBATCH -o signals.out\n"
        "trap 'echo script >> heard' USR1\n"
        'srun bash -c \'trap "echo step >> heard" USR1; touch ready; '
        "until [ -f heard-all ]; do sleep 0.05; done' &\n"
        "until [ -f heard-all ]; do sleep 0.05; done; wait\n"
    )
    job = shim.submit("signals.sh")
    give_up = time.monotonic() + PATIENCE
    while not (shim.work / "ready").exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    for options, expected in (("", ["step"]), ("-b", ["script"]), ("-f", ["script", "step"])):
        heard = shim.work / "heard"
        heard.unlink(missing_ok=True)
        shim.run(f"scancel {options} -s USR1 {job}")
        while not heard.exists() or sorted(heard.read_text().split()) != expected:
            assert time.monotonic() < give_up, (options, heard.exists() and heard.read_text())
            time.sleep(0.05)
    (shim.work / "heard-all").touch()
    assert shim.state(job) == "COMPLETED"
    before = shim.submit("--wrap 'sleep 100'")
    waiting = shim.submit(f"-d afterany:{before} --wrap true")
    said = shim.run(f"scancel -s USR1 {waiting}", status=1)
    assert "Job can not be altered now" in said
    shim.run(f"scancel {before} {waiting}")


def test_a_script_is_kept_as_it_was_submitted(shim: Shim) -> None:
    """A script may be changed or removed once sbatch has returned; its arguments are quoted."""
    (shim.work / "gone.sh").write_text(
        '#!/bin/sh\n#SBATCH -o gone-%j\nsleep 0.3; printf "<%s>" "$@"'
    )
    job = shim.submit("gone.sh a 'b  c' '$HOME'")
    (shim.work / "gone.sh").unlink()
    assert shim.state(job) == "COMPLETED"
    assert (shim.work / f"gone-{job}").read_text() == "<a><b  c><$HOME>"


@pytest.mark.ci
def test_variables_come_from_the_caller(shim: Shim) -> None:
    shim.run("sbatch -W -o v1 --wrap 'echo $MINE $OTHER $SLURM_JOB_NAME'")
    shim.run("sbatch -W -o v2 --export=NONE --wrap 'echo $MINE $OTHER $SLURM_JOB_NAME'")
    shim.run(
        "sbatch -W -o v3 -J n --export=MINE,OTHER=o --wrap 'echo $MINE $OTHER $SLURM_JOB_NAME'"
    )
    texts = [(shim.work / name).read_text() for name in ("v1", "v2", "v3")]
    assert texts == ["yes wrap\n", "wrap\n", "yes o n\n"]


@pytest.mark.ci
def test_a_job_gets_its_signal_before_its_limit(shim: Shim) -> None:
    job = shim.submit(
        "-t 0:04 --signal=B:USR1@3 -o signal "
        "--wrap 'trap \"echo caught; exit 7\" USR1; while true; do sleep 0.1; done'"
    )
    assert shim.state(job) == "FAILED"
    assert (shim.work / "signal").read_text() == "caught\n"
    assert "7:0" in shim.run(f"sacct -X -n -o ExitCode -j {job}")


def test_a_job_is_ended_at_its_limit_and_its_memory(shim: Shim) -> None:
    late = shim.submit("-t 0:01 --wrap 'sleep 100'")
    (shim.work / "large.py").write_text("x = b'x' * (1 << 27); import time; time.sleep(60)")
    large = shim.submit("--mem 60M --wrap 'exec python3 large.py'")
    assert shim.state(late) == "TIMEOUT"
    assert shim.state(large) == "OUT_OF_MEMORY"


@pytest.mark.ci
def test_numbers_survive_the_death_of_the_service(shim: Shim) -> None:
    """Jobs that run go on, jobs that wait begin, each once; numbers are not given again."""
    (shim.work / "once.sh").write_text(
        "#!/bin/bash\n#SBATCH -a 1-5\n#SBATCH -o once-%a --open-mode=append\n"
        "echo begin; sleep 1; echo end\n"
    )
    job = int(shim.submit("once.sh"))
    time.sleep(0.5)
    shim.kill_service()
    assert str(job) in shim.run("squeue -h -o %F")
    shim.kill_service()
    assert int(shim.submit("--wrap true")) == job + 5
    for index in range(1, 6):
        assert shim.state(f"{job}_{index}") == "COMPLETED"
        assert (shim.work / f"once-{index}").read_text() == "begin\nend\n"


def test_a_job_that_died_on_its_way_is_handed_over_once(shim: Shim) -> None:
    """sbatch was killed before or after the service had the job, and had printed no number."""
    line = (
        "import os, asyncio, sys\n"
        "from bursar.slurm_shim import service_link, command_line\n"
        "link = service_link.ShimLink\n"
        "real = service_link.JobBook.deliver\n"
        "def dies(*_): os._exit(9)\n"
        "setattr(*((link, 'deliver') if sys.argv[1] == 'before' else "
        "(service_link.JobBook, 'deliver')), dies)\n"
        f"command_line.main([{str(shim.folder.folder)!r}, 'sbatch', '-J', 'died', '-o', "
        "'died', '--open-mode=append', '--wrap', 'echo ran'])\n"
    )
    for when in ("before", "after"):
        script = shim.work / "dies.py"
        script.write_text(line)
        shim.run(f"{sys.executable} dies.py {when}", status=9)
    shim.run("squeue")
    jobs = set(shim.run("sacct -n -X -P -o JobID --name died").split())
    assert len(jobs) == 2
    for job in jobs:
        assert shim.state(job) == "COMPLETED"
    assert (shim.work / "died").read_text() == "ran\nran\n"


DIES = """\
import os, sys
from bursar.slurm_shim import command_line, element_changes, job_book
def dies(*_): os._exit(9)
element_changes.ElementChanges.deliver_rerun = job_book.JobBook.deliver = dies
command_line.main(sys.argv[1:])
"""
"""Is killed when a service has tasks, and before the book says so."""


@pytest.mark.ci
def test_a_job_with_gates_that_died_on_its_way_is_handed_over_once(shim: Shim) -> None:
    """Its parent ends between the two deliveries, which does not change what is asked for."""
    (shim.work / "dies.py").write_text(DIES)
    bad = shim.submit("--wrap 'until [ -f fail-late ]; do sleep 0.05; done; exit 3'")
    folder = shim.folder.folder
    shim.run(
        f"{sys.executable} dies.py {folder} sbatch -J gated -a 0-1 -d afternotok:{bad} "
        "--wrap 'echo $SLURM_ARRAY_TASK_ID >> gated'",
        status=9,
    )
    (shim.work / "fail-late").touch()
    assert shim.state(bad) == "FAILED"
    (job,) = {one.split("_")[0] for one in shim.run("squeue -h -t all -n gated -o %i").split()}
    after = shim.submit(f"-d afterok:{job} --wrap 'echo after >> gated'")
    assert shim.state(after) == "COMPLETED"
    assert sorted((shim.work / "gated").read_text().split()) == ["0", "1", "after"]


@pytest.mark.ci
def test_a_job_whose_requeue_died_on_its_way_begins_anew_once(shim: Shim) -> None:
    (shim.work / "dies.py").write_text(DIES)
    job = shim.submit(
        "-o died-%j --open-mode=append --wrap "
        "'echo begin; until [ -f go-on ]; do sleep 0.05; done; echo end'"
    )
    file = shim.work / f"died-{job}"
    give_up = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    after = shim.submit(f"-d afterok:{job} --wrap 'echo after >> died-{job}'")
    shim.run(f"{sys.executable} dies.py {shim.folder.folder} scontrol requeue {job}", status=9)
    (shim.work / "go-on").touch()
    assert shim.state(after) == "COMPLETED"
    assert file.read_text().split() == ["begin", "begin", "end", "after"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sbatch --exclusive --wrap true", "sbatch: error: --exclusive: is not honoured"),
        ("sbatch --gres=gpu:1 --wrap true", 'holds 1 of "gpu", and the site has none'),
        ("sbatch -N 2 --wrap true", "--nodes: more than one node is not honoured"),
        ("sbatch absent.sh", "absent.sh: cannot be read: No such file or directory"),
        ("sbatch --wrap true x.sh", "--wrap: goes without a script"),
        ("echo 'echo no' | sbatch", "expected a first line such as #!/bin/bash"),
        ("sbatch --no-such-option x.sh", "--no-such-option is no option of sbatch"),
        ("sbatch -d expand:1 --wrap true", "--dependency: expected afterok:JOB"),
        ("sbatch -d afterok:99999 --wrap true", '--dependency: there is no job "99999"'),
        ("sbatch --signal=USR@9 --wrap true", "--signal: expected SIGNAL@SECONDS"),
        ("sbatch -c 9999 --wrap true", "sbatch: error: "),
        ("squeue --sort=k", "--sort: expected letters of "),
        ("squeue -i 5", "squeue: error: -i is not honoured"),
        ("squeue -o %!", "--format: expected a letter of squeue(1)"),
        ("squeue -O Jobid,Stat", 'no column "Stat" is known here'),
        ("squeue -j 99999", "Invalid job id specified"),
        ("squeue -t BROKEN", '--states: expected states of jobs, got "BROKEN"'),
        ("sacct -o JobID,Stat", 'no field "Stat" is known here'),
        ("sacct -S yesterdayish", "--starttime: expected a moment"),
        ("scancel", "No job identification provided"),
        ("scancel x", 'expected numbers of jobs, got "x"'),
        ("scancel -s USRX 1", "--signal: expected a signal such as USR1"),
        ("scontrol hold 1", "hold 1 is not honoured"),
        ("scontrol show job 99999", "Invalid job id specified"),
        ("scontrol requeue 99999", "Invalid job id specified for job 99999"),
        ("sinfo -R", "-R is not honoured"),
        ("srun true", "srun: error: starts steps within jobs only: sbatch --wait runs a script"),
        ("salloc -n 2", "salloc: error: has no stand-in here; sbatch hands a script over"),
        ("sacctmgr -n show assoc", "sacctmgr: error: has no stand-in here; accounts and budgets"),
        ("sshare -U", "sshare: error: has no stand-in here; what an account has left"),
        ("sprio", "sprio: error: has no stand-in here; jobs begin in the order"),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(shim: Shim, line: str, said: str) -> None:
    """One line, two with a hint, and the exit status of Slurm's commands."""
    answer = shim.run(line, status=1)
    assert said in answer
    assert len(answer.splitlines()) <= 2


def test_a_line_of_a_script_is_named(shim: Shim) -> None:
    (shim.work / "wrong.sh").write_text("#!/bin/sh\n#SBATCH -c 1\n#SBATCH --constraint=big\ntrue\n")
    said = shim.run("sbatch wrong.sh", status=1)
    assert said.startswith("sbatch: error: wrong.sh:3: --constraint: is not honoured")


def test_the_partition_has_one_node(shim: Shim) -> None:
    header, row = shim.run("sinfo").splitlines()
    assert header.split() == ["PARTITION", "AVAIL", "TIMELIMIT", "NODES", "STATE", "NODELIST"]
    assert row.split()[0] == "bursar*"
    assert re.fullmatch(r"\d+/\d+/0/\d+\n", shim.run("sinfo -h -o %C"))
    assert shim.run("sinfo --version").startswith("slurm ")
    assert shim.run("scontrol show hostnames 'n[1-2],m'") == "n1\nn2\nm\n"


def test_stand_ins_are_written_again_and_keep_the_jobs(shim: Shim, tmp_path: Path) -> None:
    job = shim.submit("--wrap true")
    shim.folder.write(None)
    assert shim.state(job) == "COMPLETED"
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec /usr/bin/squeue\n")
    with pytest.raises(ValueError, match="is there already, and no stand-in"):
        ShimFolder(tmp_path).write(None)
    assert sorted(COMMANDS) == sorted(p.name for p in shim.folder.folder.iterdir() if p.is_file())


@pytest.mark.ci
def test_many_submit_at_a_time(shim: Shim) -> None:
    """Arrays with a limit among them: their elements name others by numbers at the service."""
    lines = "\n".join(
        f"sbatch --parsable -a 0-2%1 -o many-{n} --open-mode=append "
        f"--wrap 'echo $SLURM_ARRAY_TASK_ID' > number-{n} &"
        for n in range(6)
    )
    shim.run(f"{lines}\nwait")
    jobs = sorted(int((shim.work / f"number-{n}").read_text()) for n in range(6))
    assert [later - job for job, later in pairwise(jobs)] == [3] * 5
    for job in jobs:
        assert shim.state(str(job)) == "COMPLETED"
    texts = {(shim.work / f"many-{n}").read_text() for n in range(6)}
    assert texts == {"0\n1\n2\n"}


def test_jobs_go_to_a_service_that_runs_already(tmp_path: Path) -> None:
    with served(tmp_path / "service", "[site]\nprocessors = 2\n") as service:
        shim = Shim(tmp_path, f"http://127.0.0.1:{service.port}")
        job = shim.submit("-o said --wrap 'echo said'")
        assert shim.state(job) == "COMPLETED"
        assert (shim.work / "said").read_text() == "said\n"
        with service.client() as client:
            (instance,) = client.instances()
            assert instance.counts.succeeded == 1
        with pytest.raises(InputError, match="its jobs go to another service"):
            shim.folder.stop()
        service.kill()
    with pytest.raises(InputError, match="there is no service"):
        ShimFolder(tmp_path / "other").write("nowhere")


def test_the_command_writes_and_stops(tmp_path: Path) -> None:
    def bursar(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "bursar", "slurm-shim", *words], capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    folder = str(tmp_path / "bin")
    status, said = bursar(folder)
    assert status == 0
    assert f'export PATH="{folder}:$PATH"' in said
    assert bursar(folder, "--stop") == (0, "the service did not run\n")
    assert bursar(folder, "--stop", "--site", "x")[0] == 2
    status, said = bursar(str(tmp_path), "--stop")
    assert status == 2
    assert "holds no stand-ins of Slurm's commands" in said
