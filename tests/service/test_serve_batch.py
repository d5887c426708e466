"""A service whose site is a real Slurm cluster: killed, ended, started again."""

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.service.service_process import PATIENCE, Served, free_port, is_alive, served

from bursar.remote.client import ServiceClient
from bursar.remote.messages import TaskSpec
from bursar_devtools.testgrid.slurm import SlurmCluster

SITE = """\
worker_listen = '127.0.0.1:{port}'
[site]
kind = "slurm"
processors = {processors}
queue = "main"
reach = "127.0.0.1"
unit_price = "3600 SU/core-hour"
environment = {{ SLURM_CONF = "{conf}", PATH = "{programs}:{path}" }}
[site.pool]
idle = "1 s"
shortest = "{seconds} s"
longest = "{seconds} s"
{pool}
[market]
price_shared = true
"""
"""One SU a second. Programs that stand before Slurm's own lie in a folder of the test."""


def until(holds: Callable[[], bool]) -> None:
    """Waits for something that must come."""
    give_up = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@dataclass
class Ground:
    """A folder, the session's cluster, and the service that has it as its site."""

    folder: Path
    cluster: SlurmCluster
    service: Served

    def jobs(self, *states: str) -> dict[str, str]:
        """Pilots' jobs that are there, and their states, of those states only."""
        said = self.cluster.run("squeue", "--noheader", "--format=%i|%j|%T")
        rows = (line.split("|") for line in said.splitlines())
        return {
            id: state
            for id, name, state in rows
            if name.startswith("bursar-")
            and state != "COMPLETING"
            and (not states or state in states)
        }

    def program(self, text: str) -> None:
        """Stands before Slurm's own ``sbatch``, which it has as ``$SBATCH``."""
        path = self.folder / "bin" / "sbatch"
        real = shutil.which("sbatch")
        path.write_text(f"#!/bin/sh\nSBATCH={real}\n{text}")
        path.chmod(0o755)

    def submit(self, client: ServiceClient, count: int) -> str:
        """Tasks that say who they are, and end when they are told to by :meth:`let_go`."""
        handle = client.create_instance().id
        f = self.folder
        script = (
            f'echo $$ >> {f}/begun-"$1"; '
            f'while [ ! -e {f}/go-"$1" ]; do sleep 0.05; done; echo $$ done'
        )
        client.submit(
            handle,
            [TaskSpec(command=("/bin/sh", "-c", script, "sh", f"{i}")) for i in range(count)],
        )
        return handle

    def pid(self, number: int) -> int:
        """Process of a task that runs: its only one."""
        path = self.folder / f"begun-{number}"
        until(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    def let_go(self, number: int) -> None:
        (self.folder / f"go-{number}").touch()

    def stop(self, gently: bool) -> None:
        if gently:
            assert self.service.end() == 0
        else:
            self.service.kill()

    def see_it_empty(self) -> None:
        """Idle pilots go by themselves; nothing else is there."""
        until(lambda: not self.jobs())
        assert "No reservations" in self.cluster.run("scontrol", "show", "reservation")


@contextmanager
def ground(
    slurm: SlurmCluster, folder: Path, processors: int = 4, seconds: int = 600, pool: str = ""
) -> Iterator[Ground]:
    """Nothing of it is left in the queue, and what is left when a test fails is ended."""
    (folder / "bin").mkdir()
    text = SITE.format(
        port=free_port(),
        processors=processors,
        conf=slurm.environment["SLURM_CONF"],
        programs=folder / "bin",
        path=os.environ["PATH"],
        seconds=seconds,
        pool=pool,
    )
    try:
        with served(folder / "state", text) as service:
            made = Ground(folder, slurm, service)
            yield made
            made.see_it_empty()
            assert service.end() == 0
    finally:
        said = slurm.run("squeue", "--noheader", "--format=%i").split()
        if said:
            slurm.run("scancel", *said)


@pytest.mark.parametrize(
    "gently", [False, pytest.param(True, marks=pytest.mark.ci)], ids=["killed", "ended"]
)
def test_tasks_on_pilots_outlive_the_service(
    slurm: SlurmCluster, tmp_path: Path, gently: bool
) -> None:
    """They go on in the same jobs; each result is there once, and is paid once."""
    with ground(slurm, tmp_path) as here, here.service.client() as client:
        handle = here.submit(client, 4)
        pids = [here.pid(i) for i in range(4)]
        jobs = here.jobs()
        assert set(jobs.values()) == {"RUNNING"}
        here.let_go(0)
        until(lambda: client.instance(handle).results == 1)
        here.stop(gently)
        here.let_go(1)  # ends while nobody serves
        until(lambda: not is_alive(pids[1]))
        assert [is_alive(pid) for pid in pids] == [False, False, True, True]
        left = here.jobs()
        assert left.items() <= jobs.items()
        # On a busy machine the first task's pilot may have been idle for long enough to go.
        assert len(left) >= len(jobs) - 1

        here.service.start()
        # Workers come back one by one, in any order.
        until(lambda: client.instance(handle).results == 2)
        until(lambda: client.instance(handle).counts.running == 2)
        here.let_go(2)
        here.let_go(3)
        results = list(client.results(handle))

        assert Counter(r.task for r in results) == Counter(range(4))
        assert {r.task: (r.stdout, r.attempt) for r in results} == {
            i: (f"{pids[i]} done\n", 1) for i in range(4)
        }
        assert [here.pid(i) for i in range(4)] == pids
        used = sum(r.end - r.start for r in results)
        assert client.account().spent == pytest.approx(used * 1e6, abs=10)


def test_a_pilot_whose_job_nobody_wrote_down_is_ended(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm has the job, the service is killed before it hears so: the next life ends it."""
    with ground(slurm, tmp_path, processors=1) as here, here.service.client() as client:
        here.program(
            f'echo $$ > {tmp_path}/asking; "$SBATCH" "$@" > {tmp_path}/said; exec sleep 600\n'
        )
        handle = here.submit(client, 1)
        until(lambda: bool(here.jobs()))
        (lost,) = here.jobs()
        here.service.kill()
        # Runs of this user that are resumed meanwhile would wait for a submission that lasts.
        os.kill(int((tmp_path / "asking").read_text()), signal.SIGKILL)
        here.program('exec "$SBATCH" "$@"\n')
        here.service.start()
        until(lambda: lost not in here.jobs())
        here.let_go(0)
        (result,) = client.results(handle)
        assert result.state == "succeeded"
        assert len((tmp_path / "begun-0").read_text().split()) == 1


def test_a_request_that_outlives_who_made_it_is_ended(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Killed while its ``sbatch`` waits: that hands in a job in the next life, which ends it."""
    with ground(slurm, tmp_path, processors=1) as here, here.service.client() as client:
        here.program(
            f"echo $$ > {tmp_path}/asking; while [ ! -e {tmp_path}/answer ]; do sleep 0.05; done\n"
            'exec "$SBATCH" "$@"\n'
        )
        handle = here.submit(client, 1)
        until(lambda: (tmp_path / "asking").exists())
        asking = int((tmp_path / "asking").read_text())
        here.service.kill()
        here.program('exec "$SBATCH" "$@"\n')
        here.service.start()
        pid = here.pid(0)
        (job,) = here.jobs()
        (tmp_path / "answer").touch()
        until(lambda: not is_alive(asking))
        assert len(here.jobs()) == 2
        until(lambda: list(here.jobs()) == [job])
        here.let_go(0)
        (result,) = client.results(handle)
        assert result.stdout == f"{pid} done\n"


@pytest.mark.ci
@pytest.mark.parametrize("gently", [False, True], ids=["killed", "ended"])
def test_a_pilot_that_waits_keeps_its_place(
    slurm: SlurmCluster, tmp_path: Path, gently: bool
) -> None:
    """Its job waits on over the restart, for longer than its own time, and then has all of it."""
    others = ["--nodes=4", "--exclusive", "--partition=main", "--output=/dev/null"]
    with ground(slurm, tmp_path, processors=1, seconds=4) as here:
        busy = slurm.run("sbatch", "--parsable", *others, "--wrap=sleep 600").strip()
        until(lambda: busy in slurm.run("squeue", "--noheader", "--format=%i", "--states=R"))
        with here.service.client() as client:
            handle = here.submit(client, 1)
            until(lambda: bool(here.jobs("PENDING")))
            jobs = here.jobs()
            since = time.monotonic()
            here.stop(gently)
            here.service.start()
            until(lambda: time.monotonic() > since + 5.0)
            assert here.jobs() == jobs
            slurm.run("scancel", busy)
            pid = here.pid(0)
            assert list(here.jobs()) == list(jobs)
            here.let_go(0)
            (result,) = client.results(handle)

            assert (result.stdout, result.attempt) == (f"{pid} done\n", 1)
