"""Workers and what they started, told apart by what the system knows of processes."""

import os
import subprocess
import sys

from bursar.dispatch.linux_processes import RUN, WORKER, workers_of

FORKS = """
import os, sys, time
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""


def test_a_child_that_has_not_begun_its_program_is_not_taken_for_its_worker() -> None:
    """Between fork and exec it has the command line and the environment of the worker."""
    run = f"run-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, "bursar.worker.worker"],
        env={**os.environ, RUN: run, WORKER: "w-0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        child = int(worker.stdout.readline())
        assert os.path.exists(f"/proc/{child}")

        assert workers_of(run) == {"w-0": worker.pid}

        worker.stdin.close()
