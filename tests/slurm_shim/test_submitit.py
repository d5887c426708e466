"""submitit itself, on the stand-ins: results, arrays, failures, cancellation, checkpoints."""

import sys
from collections.abc import Iterator

import pytest
from tests.slurm_shim.shim_process import Shim, shim_process

pytest.importorskip("submitit")

BEGIN = """
import os, sys, time
from pathlib import Path
import submitit

executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(
    timeout_min=2, cpus_per_task=1, mem_gb=0.2, slurm_array_parallelism=2, name="fit"
)

def ends(job, *states):
    give_up = time.monotonic() + 60
    while job.get_info(mode="force").get("State", "").split()[:1] not in [[s] for s in states]:
        assert time.monotonic() < give_up, job.get_info(mode="force")
        time.sleep(0.2)
    return job.state

def wait_for(path):
    give_up = time.monotonic() + 60
    while not Path(path).exists():
        assert time.monotonic() < give_up, path
        time.sleep(0.05)
"""

CHECKPOINT = """
class Counting:
    # Ends once a file is there; what it counted before it was put back comes along.
    def __init__(self, counted=0):
        self.counted = counted

    def __call__(self, name):
        Path(name + "-begun-" + str(self.counted)).touch()
        while not Path(name + "-enough").exists():
            time.sleep(0.02)
        return self.counted, os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT")

    def checkpoint(self, name):
        return submitit.helpers.DelayedSubmission(Counting(self.counted + 1), name)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shim]:
    with shim_process(tmp_path_factory.mktemp("submitit")) as found:
        yield found


def run(shim: Shim, text: str) -> list[str]:
    """Return the lines that a program which uses submitit prints."""
    path = shim.work / "program.py"
    path.write_text(BEGIN + text)
    return shim.run(f"{sys.executable} program.py").splitlines()


@pytest.mark.ci
def test_results_come_back(shim: Shim) -> None:
    """One call, the context that gathers calls into an array, and map_array with its limit."""
    said = run(
        shim,
        "job = executor.submit(pow, 2, 10)\n"
        "print(job.result(), ends(job, 'COMPLETED'))\n"
        "with executor.batch():\n"
        "    jobs = [executor.submit(pow, n, 2) for n in range(3)]\n"
        "print([job.result() for job in jobs])\n"
        "jobs = executor.map_array(pow, [1, 2, 3, 4], [2, 2, 2, 2])\n"
        "print([job.result() for job in jobs], len({job.job_id.split('_')[0] for job in jobs}))\n"
        "print({ends(job, 'COMPLETED') for job in jobs}, jobs[0].get_info()['NodeList'] != '')\n",
    )
    assert said == [
        "1024 COMPLETED",
        "[0, 1, 4]",
        "[1, 4, 9, 16] 1",
        "{'COMPLETED'} True",
    ]


@pytest.mark.ci
def test_an_error_comes_back_with_its_traceback(shim: Shim) -> None:
    said = run(
        shim,
        "def bad():\n"
        "    raise ValueError('no good')\n"
        "job = executor.submit(bad)\n"
        "try:\n"
        "    job.result()\n"
        "except submitit.core.utils.FailedJobError as error:\n"
        "    print('ValueError: no good' in str(error), ends(job, 'FAILED'))\n"
        "print('no good' in job.stderr(), 'exit code' in job.stderr())\n",
    )
    assert said == ["True FAILED", "True True"]


@pytest.mark.ci
def test_a_job_is_cancelled(shim: Shim) -> None:
    said = run(
        shim,
        "job = executor.submit(time.sleep, 100)\n"
        "ends(job, 'RUNNING')\n"
        "job.cancel(check=True)\n"
        "print(ends(job, 'CANCELLED').split()[0])\n"
        "try:\n"
        "    job.result()\n"
        "except submitit.core.utils.UncompletedJobError:\n"
        "    print('no result')\n",
    )
    assert said == ["CANCELLED", "no result"]


@pytest.mark.ci
@pytest.mark.parametrize("array", [False, True])
def test_a_job_that_is_preempted_goes_on_from_its_checkpoint(shim: Shim, array: bool) -> None:
    """submitit's own simulation of a preemption: SIGTERM, then SIGUSR2, to the job's steps."""
    submit = "executor.map_array(Counting(), ['a', 'b'])[1]" if array else "executor.submit(c, 'b')"
    said = run(
        shim,
        f"{CHECKPOINT}\nfor name in ('a-enough', 'b-enough'): Path(name).unlink(missing_ok=True)\n"
        "for path in Path().glob('b-begun*'): path.unlink()\n"
        f"c = Counting()\nPath('a-enough').touch()\njob = {submit}\n"
        "wait_for('b-begun-0')\njob._interrupt()\nwait_for('b-begun-1')\n"
        "print(ends(job, 'RUNNING'))\nPath('b-enough').touch()\n"
        "counted, number, restarts = job.result()\n"
        "print(counted, restarts, ends(job, 'COMPLETED'))\n",
    )
    assert said == ["RUNNING", "1 1 COMPLETED"]


@pytest.mark.ci
def test_a_job_is_put_back_before_its_limit(shim: Shim) -> None:
    """
    The signal comes 58 of 60 seconds before the limit, twice; submitit asks scontrol each time.
    """
    said = run(
        shim,
        f"{CHECKPOINT}\nPath('b-enough').unlink(missing_ok=True)\n"
        "for path in Path().glob('b-begun*'): path.unlink()\n"
        "executor = submitit.SlurmExecutor(folder='logs')\n"
        "executor.update_parameters(time=1, signal_delay_s=58, job_name='limit')\n"
        "job = executor.submit(Counting(), 'b')\n"
        "wait_for('b-begun-2')\nPath('b-enough').touch()\n"
        "print(job.result()[0], ends(job, 'COMPLETED'))\n",
    )
    assert said == ["2 COMPLETED"]
