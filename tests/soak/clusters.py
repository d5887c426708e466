"""Rounds on real Slurm and Grid Engine: runs, workers, controllers and nodes are killed."""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.job_records import gridengine_jobs, slurm_jobs
from benchmarks.run_lives import Start, start_command
from tests.soak.campaigns import (
    PATIENCE,
    Soaked,
    check_end,
    check_outputs,
    kill_run,
    kill_workers,
    wait_for_moment,
)
from tests.soak.leftovers import kill_all, processes_of
from tests.soak.rounds import Findings

from bursar.model.errors import SiteError
from bursar.provisioning.accounting import agree
from bursar.runs.folder import RunFolder
from bursar_devtools.testgrid.gridengine import GridEngineCluster
from bursar_devtools.testgrid.slurm import SlurmCluster
from bursar_devtools.testgrid.slurm_configuration import completions

PRICE = 2.0 / 3600.0
"""Currency units for a processor-second: 2 SU a core-hour."""

SITES = """\
[site.c]
kind = "{kind}"
processors = {processors}
unit_price = "2 SU/core-hour"
queue = "{queue}"
environment = {{ {environment} }}
reach = "127.0.0.1"
[site.c.pool]
acquisition = "{policy}"
"""

POLICIES = ("adaptive", "all-at-once", "exponential", "one-at-a-time", "array")


class SlurmDaemons:
    """Daemons of a Slurm with four nodes of four processors."""

    name = "slurm"
    kind = "slurm"
    queue = "main"
    longest_away = 6.0
    controller_chance = 0.25
    forgets = False

    def __init__(self, folder: Path) -> None:
        self.cluster = SlurmCluster.up(folder, name="soak", nodes=4, cpus=4)
        self.processors = self.cluster.processors
        self.environment = {"SLURM_CONF": self.cluster.environment["SLURM_CONF"]}

    def jobs(self, name: str) -> list[str]:
        """Return the ids of jobs that are queued or run and whose name begins so."""
        said = self.cluster.run("squeue", "--noheader", "--array", "--format=%i|%j")
        rows = [line.split("|") for line in said.splitlines()]
        return [id for id, job in rows if job.startswith(name)]

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs."""
        self.cluster.run("scancel", *jobs)

    def records(self, name: str) -> list[tuple[int, float]]:
        """Return processors and seconds of ended jobs, by Slurm's own file."""
        return slurm_jobs(completions(self.cluster.folder), name)

    def kill_controller(self) -> None:
        """Kill the controller; it forgets its last five seconds."""
        self.cluster.stop_controller(crash=True)

    def start_controller(self) -> None:
        """Start the controller again."""
        self.cluster.start_controller()

    def kill_node(self, rng: random.Random) -> str:
        """Kill a node; half of the times the controller is told, else it finds out by itself."""
        node = rng.choice(self.cluster.nodes)
        self.cluster.stop_node(node, at_once=rng.random() < 0.5)
        return node

    def start_node(self, node: str) -> None:
        """Start a node again."""
        self.cluster.start_node(node)

    def recover(self) -> None:
        """
        Take nodes into service again that the controller has drained.

        A controller that forgot its last seconds gives out numbers of jobs a second time, and
        drains the nodes that know such a job ("Duplicate jobid"). An operator resumes them.
        """
        for line in self.cluster.run("sinfo", "--noheader", "--Node", "--format=%N|%T").split():
            node, state = line.split("|")
            if state.startswith("drain"):
                self.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def down(self) -> None:
        """End the cluster and remove its folder."""
        self.cluster.down()


class GridEngineDaemons:
    """Daemons of a Grid Engine with one node of six slots."""

    name = "gridengine"
    kind = "gridengine"
    queue = "all.q"
    longest_away = 3.0
    # Its node finds a controller again only after a minute.
    controller_chance = 0.05
    # Version 8.1.9 now and then writes no record of a job that ends within a second of its begin.
    forgets = True

    def __init__(self, folder: Path) -> None:
        self.cluster = GridEngineCluster.up(folder, slots=6)
        self.processors = 6
        self.environment = dict(self.cluster.environment)

    def jobs(self, name: str) -> list[str]:
        """Return the ids of jobs that are queued or run and whose name begins so."""
        said = self.cluster.run("qstat", "-u", "*", "-r")
        found, id = [], ""
        for line in said.splitlines():
            if line[:10].strip().isdigit():
                id = line.split()[0]
            elif line.strip().startswith("Full jobname:") and line.split()[-1].startswith(name):
                found.append(id)
        return sorted(set(found))

    def cancel(self, jobs: Sequence[str]) -> None:
        """End jobs, also such as a lost node holds."""
        self.cluster.run("qdel", "-f", *jobs)

    def records(self, name: str) -> list[tuple[int, float]]:
        """Return slots and seconds of ended jobs, by Grid Engine's own file."""
        path = self.cluster.folder / "default" / "common" / "accounting"
        return gridengine_jobs(path, name)

    def kill_controller(self) -> None:
        """Kill the queue master."""
        self.cluster.stop_controller()

    def start_controller(self) -> None:
        """Start the queue master again."""
        self.cluster.start_controller()

    def kill_node(self, rng: random.Random) -> str:
        """Kill the only node."""
        self.cluster.stop_node()
        return "localhost"

    def start_node(self, node: str) -> None:
        """Start the node again."""
        self.cluster.start_node(patience=120.0)

    def recover(self) -> None:
        """Do nothing: this scheduler takes no node out of service by itself."""

    def down(self) -> None:
        """End the cluster and remove its folder."""
        self.cluster.down()


class ClusterRuns:
    """
    Target: ``bursar run`` on a throwaway cluster under a real scheduler.

    Parameters
    ----------
    kind
        Which scheduler.
    start
        How the command is started.
    """

    def __init__(
        self,
        kind: type[SlurmDaemons] | type[GridEngineDaemons],
        start: Start = start_command,
    ) -> None:
        self.name = kind.name
        self._kind = kind
        self._start = start
        self._daemons: SlurmDaemons | GridEngineDaemons

    @contextmanager
    def up(self, folder: Path) -> Iterator[None]:
        """Keep one cluster for all rounds."""
        self._daemons = self._kind(folder)
        try:
            yield
        finally:
            self._daemons.down()

    def strike(self, folder: Path, rng: random.Random, found: Findings) -> None:
        """Kill this and that a few times, resume the run, and hold its bill to the record."""
        daemons = self._daemons
        daemons.recover()
        sites = SITES.format(
            kind=daemons.kind,
            processors=daemons.processors,
            queue=daemons.queue,
            policy=rng.choice(POLICIES),
            environment=", ".join(f'{k} = "{v}"' for k, v in daemons.environment.items()),
        )
        soaked = Soaked.lay_out(
            folder,
            sites,
            self._start,
            pieces=rng.randint(8, 40),
            step=rng.choice((0.02, 0.1, 0.2)),
            budget=20.0,
        )
        found.tasks = soaked.pieces + 1
        name = f"bursar-{RunFolder(soaked.run.made).identity}-"
        try:
            soaked.run.start()
            for number in range(rng.randint(1, 3)):
                wait_for_moment(soaked, rng, number)
                self._strike_once(soaked, rng, found)
            status = soaked.run.finish(PATIENCE)
            if status == 6:  # what some pilots came to was not known yet
                soaked.run.start()
                status = soaked.run.finish(PATIENCE)
            found.need(status == 0, f"exit status {status}: {soaked.run.said[-600:]}")
            give_up = time.monotonic() + PATIENCE
            while (left := daemons.jobs(name)) and time.monotonic() < give_up:
                time.sleep(0.2)
            found.need(not left, f"jobs are left in the queue: {left}")
            bill = check_end(soaked, found, "pilots/c.jobs", "pilots/c.usage.jsonl")
            rows = daemons.records(name)
            found.recorded = sum(processors * seconds for processors, seconds in rows)
            check_record(bill, rows, found)
            may_forget = found.kills["controller"] or daemons.forgets
            found.need(
                may_forget or not found.bound, f"{found.bound} leases are paid by a bound: {rows}"
            )
            worth = found.recorded * PRICE
            found.need(worth <= bill["granted_micros"] / 1e6, f"{worth} SU recorded")
        finally:
            soaked.run.close()
            if left := daemons.jobs(name):
                daemons.cancel(left)
            kill_all(processes_of(folder))

    def _strike_once(self, soaked: Soaked, rng: random.Random, found: Findings) -> None:
        """Kill one or two things; whatever belongs to the cluster comes back after a while."""
        daemons = self._daemons
        what = rng.random()
        controller = rng.random() < daemons.controller_chance
        node = None
        if controller:
            daemons.kill_controller()
            found.kills["controller"] += 1
        elif what < 0.2:
            node = daemons.kill_node(rng)
            found.kills["node"] += 1
        elif what < 0.5:
            kill_workers(soaked, rng, found, rng.random())
        killed = what > 0.4
        if killed:
            kill_run(soaked, found)
            check_outputs(soaked, found, all_there=False)
        time.sleep(rng.choice((0.0, rng.uniform(0.0, daemons.longest_away))))
        first = rng.random() < 0.5  # the run or the cluster
        if killed and first:
            soaked.run.start()
        try:
            if controller:
                daemons.start_controller()
            if node is not None:
                daemons.start_node(node)
        except SiteError as error:
            found.need(False, f"the cluster did not come back: {error}")
        if killed and not first:
            soaked.run.start()


def check_record(bill: dict[str, Any], rows: Sequence[tuple[int, float]], found: Findings) -> None:
    """What is paid by the scheduler's record is that record; what is not is paid by a bound."""
    bounds = [lease for lease in bill["leases"] if lease["settled_by"] == "bound"]
    by_bound = sum(lease["processors"] * lease["seconds"] for lease in bounds)
    found.bound = len(bounds)
    by_record = found.billed - by_bound
    # A job that is paid by a bound may still be in the record, if only in its file; and a
    # controller that is killed forgets jobs whose time it had told before.
    least = 0.0 if found.kills["controller"] else by_record
    nearest = min(max(found.recorded, least), found.billed)
    found.need(
        agree(nearest, found.recorded, sum(processors for processors, _ in rows)),
        f"{by_record:g} s billed by records and {by_bound:g} s by bounds, recorded: {rows}",
    )
