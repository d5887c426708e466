"""
Holds the bill of runs on a real Slurm against Slurm's own records, in good and bad moments.

    python benchmarks/settlement.py                      # every fault once, as a table
    python benchmarks/settlement.py --rounds 30  # and random kills for each policy

Each fault happens to a run of its own on a throwaway cluster (see ``bursar testgrid``). What Slurm
charges is read from its file of ended jobs, without any of our code.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Benchmark, Table
from job_records import slurm_jobs
from run_lives import RunLives

from bursar.runs.folder import RunFolder
from bursar_devtools.testgrid.slurm import SlurmCluster
from bursar_devtools.testgrid.slurm_configuration import completions
from bursar_devtools.testgrid.slurm_requirements import PACKAGES, missing_programs

PRICE = 2.0 / 3600.0
"""Currency units for a processor-second: 2 SU a core-hour."""

POLICIES = (
    "adaptive",
    "optimal",
    "one-at-a-time",
    "all-at-once",
    "additive",
    "exponential",
    "array",
    "node-range",
)

CAMPAIGN = """\
[campaign]
name = "money"
command = "sleep {seconds}"
[parameters]
i = {{ from = 1, to = {count}, step = 1 }}
[task]
runtime = {seconds}
[retry]
attempts = 6
"""

SITES = """\
[site.c]
kind = "slurm"
processors = {processors}
unit_price = "2 SU/core-hour"
queue = "main"
environment = {{ SLURM_CONF = "{conf}" }}
reach = "127.0.0.1"
[site.c.pool]
acquisition = "{policy}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    A run's bill beside what Slurm recorded.

    Parameters
    ----------
    billed, recorded
        Processor-seconds: paid by the bill, and by Slurm's file of ended jobs.
    paid, worth
        Currency units: paid by the bill, and of what Slurm recorded at the site's price.
    budget
        Currency units; None: there is none.
    agrees
        What the bill itself says of its agreement with the site.
    jobs
        How many jobs there were.
    attempts
        The most attempts that a task has on the bill.
    unsettled
        Leases without a settlement.
    """

    billed: float
    recorded: float
    paid: float
    worth: float
    budget: float | None
    agrees: bool | None
    jobs: int
    attempts: int
    unsettled: int


class Scene(RunLives):
    """
    A run on a Slurm cluster, in a folder of its own.

    Parameters
    ----------
    folder
        Made if it is not there.
    cluster
        A cluster that runs.
    policy
        Acquisition policy of its pool.
    budget
        Currency units; None: none.
    count, seconds
        Tasks, and how long each takes.
    """

    def __init__(
        self,
        folder: Path,
        cluster: SlurmCluster,
        *,
        policy: str = "adaptive",
        budget: float | None = None,
        count: int = 40,
        seconds: float = 1.5,
    ) -> None:
        super().__init__(folder, budget=budget)
        self.cluster = cluster
        text = CAMPAIGN.format(count=count, seconds=seconds)
        (folder / "c.toml").write_text(text)
        (folder / "s.toml").write_text(
            SITES.format(
                conf=cluster.environment["SLURM_CONF"],
                policy=policy,
                processors=cluster.processors,
            )
        )

    def close(self) -> None:
        """End what still runs, and the run's jobs."""
        super().close()
        if self.cluster.is_up and (left := self.jobs()):
            self.cluster.run("scancel", *left)

    def until(self, what: Callable[[], Any], patience: float = 150.0) -> None:
        """Waits until something is so; the run must be there."""
        give_up = time.monotonic() + patience
        while not what():
            if not self.is_alive:
                raise AssertionError("the run has ended")
            if time.monotonic() > give_up:
                raise AssertionError("it did not happen in time")
            time.sleep(0.02)

    @property
    def name(self) -> str:
        """How the names of the run's jobs begin."""
        return f"bursar-{RunFolder(self.folder / 'runs' / 'r').identity}-"

    def jobs(self, *options: str) -> list[str]:
        """Ids of the run's jobs that are there."""
        said = self.cluster.run("squeue", "--noheader", "--array", "--format=%i|%j", *options)
        rows = [line.split("|") for line in said.splitlines()]
        return [id for id, name in rows if name.startswith(self.name)]

    def wait_for_tasks(self, seconds: float = 1.5) -> None:
        """Until tasks run, and a while more."""
        work = self.made / "work"
        self.until(lambda: work.exists() and any(work.iterdir()))
        time.sleep(seconds)

    def wait_for_jobs_to_end(self, patience: float = 150.0) -> None:
        """Until Slurm has recorded the end of each job."""
        give_up = time.monotonic() + patience
        while self.jobs():
            if time.monotonic() > give_up:
                raise AssertionError(f"jobs {self.jobs()} do not end")
            time.sleep(0.2)

    def held(self) -> Held:
        """The bill beside Slurm's record, once every job has ended."""
        self.wait_for_jobs_to_end()
        rows = slurm_jobs(completions(self.cluster.folder), self.name)
        bill = self.bill()
        seconds = sum(processors * length for processors, length in rows)
        figures = [one for one in bill["sites"] if one["site"] == "c"]
        return Held(
            billed=sum(one["billed_cpu_s"] for one in figures),
            recorded=seconds,
            paid=bill["total"],
            worth=seconds * PRICE,
            budget=self.budget,
            agrees=all(one["agrees"] is not False for one in figures) if figures else None,
            jobs=len(rows),
            attempts=max((task["attempts"] for task in bill["tasks"]), default=0),
            unsettled=len(bill["unsettled"]),
        )


# What happens to runs.


def nothing(scene: Scene) -> None:
    """nothing"""
    scene.start()
    scene.finish()


def killed(scene: Scene) -> None:
    """`kill -9`, resumed at once"""
    scene.start()
    scene.wait_for_tasks(0.5)
    scene.kill()
    scene.start()
    scene.finish()


def killed_for_long(scene: Scene) -> None:
    """`kill -9`, resumed after 75 s"""
    scene.start()
    scene.wait_for_tasks()
    scene.kill()
    time.sleep(75.0)
    scene.start()
    scene.finish()


def killed_while_handing_in(scene: Scene) -> None:
    """`kill -9` between `sbatch` and the record of the job"""
    scene.start()
    asked = scene.made / "pilots" / "c.jobs"
    scene.until(lambda: asked.exists() and b'"asked"' in asked.read_bytes())
    scene.kill()
    time.sleep(2.0)
    scene.start()
    scene.finish()


def killed_twice(scene: Scene) -> None:
    """`kill -9`, and again during the resume"""
    scene.start()
    scene.wait_for_tasks()
    scene.kill()
    scene.start()
    time.sleep(1.2)
    scene.kill()
    scene.start()
    scene.finish()


def cancelled(scene: Scene) -> None:
    """half of the pilots cancelled (`scancel`)"""
    scene.start()
    scene.wait_for_tasks()
    running = scene.jobs("--states=R")
    scene.cluster.run("scancel", *running[: max(1, len(running) // 2)])
    scene.finish()


def node_lost(scene: Scene) -> None:
    """a node dies"""
    scene.start()
    scene.wait_for_tasks()
    node = scene.cluster.nodes[0]
    scene.cluster.stop_node(node, at_once=True)
    try:
        scene.finish()
    finally:
        scene.cluster.start_node(node)


def requeued(scene: Scene) -> None:
    """a pilot is put back into the queue by an operator"""
    scene.start()
    scene.wait_for_tasks()
    job = scene.jobs("--states=R")[0]
    scene.cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    scene.cluster.run("scontrol", "requeue", job)
    scene.finish()


def controller_away(scene: Scene) -> None:
    """the controller is gone for 8 s near the end"""
    scene.start()
    scene.wait_for_tasks(2.0)
    scene.cluster.stop_controller()
    time.sleep(8.0)
    scene.cluster.start_controller()
    scene.finish()


def controller_gone(scene: Scene) -> None:
    """the controller is gone at the end; resumed once it is back"""
    scene.start()
    scene.wait_for_tasks(2.0)
    scene.cluster.stop_controller()
    try:
        status = scene.finish()
    finally:
        scene.cluster.start_controller()
    assert status == 6, scene.said
    scene.start()
    scene.finish()


def budget_reached(scene: Scene) -> None:
    """the budget is used up"""
    scene.start()
    scene.finish()


def budget_and_kill(scene: Scene) -> None:
    """`kill -9` with a small budget, resumed after 75 s"""
    scene.start()
    scene.wait_for_tasks(6.0)
    scene.kill()
    time.sleep(75.0)
    scene.start()
    scene.finish()


FAULTS: Sequence[tuple[Callable[[Scene], None], dict[str, Any]]] = (
    (nothing, {}),
    (killed, {}),
    (killed_for_long, {}),
    (killed_while_handing_in, {}),
    (killed_twice, {}),
    (cancelled, {"policy": "one-at-a-time"}),
    (node_lost, {"policy": "array"}),
    (requeued, {}),
    (controller_away, {}),
    (controller_gone, {"seconds": 4.0, "count": 16}),
    (budget_reached, {"budget": 0.2, "count": 400}),
    (budget_and_kill, {"budget": 0.3, "count": 100, "policy": "exponential"}),
)


def random_kills(scene: Scene, rng: random.Random, rounds: int) -> int:
    """
    Kills a run at random moments and resumes it, again and again.

    Returns
    -------
    int
        Rounds of a kill and a resume; fewer than asked for where the run came to its end.
    """
    scene.start()
    for number in range(rounds):
        if rng.random() < 0.7:  # while pilots run, as far as they do
            with contextlib.suppress(AssertionError):
                scene.until(lambda: scene.jobs("--states=R"), 10.0)
            time.sleep(rng.uniform(0.0, 4.0))
        else:  # while it begins, or looks after what was left
            time.sleep(rng.uniform(0.3, 4.0))
        if not scene.kill():
            return number
        time.sleep(rng.choice((0.0, rng.uniform(0.0, 3.0))))
        scene.start()
    scene.finish()
    return rounds


HEAD = (
    *("what happened", "jobs", "billed, CPU s", "Slurm's record, CPU s", "paid, SU"),
    *("record's worth, SU", "budget, SU", "agrees", "exit status"),
)


def add_row(table: Table, what: str, scene: Scene, held: Held) -> None:
    """Add one line of the table."""
    agrees = "yes" if held.agrees else "NO"
    table.add(
        *(what, held.jobs, held.billed, held.recorded, held.paid, held.worth, held.budget, agrees),
        scene.statuses[-1],
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0, help="random kills for each policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="faults whose functions are named like this")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument(
        "--budget", type=float, default=2.0, help="SU, of each run with random kills"
    )


def main() -> None:
    """Write the tables."""
    bench = Benchmark(__file__, __doc__, _options)
    if absent := missing_programs():
        bench.skip(f"runs on Slurm: {', '.join(absent)} not found; install {PACKAGES}")
        bench.write()
        return
    with tempfile.TemporaryDirectory(prefix="m") as made:
        folder = Path(made)
        cluster = SlurmCluster.up(folder / "c", name="money", nodes=4, cpus=4)
        try:
            try_faults(bench, folder, cluster)
            try_kills(bench, folder, cluster)
        finally:
            cluster.down()
    bench.write()


def try_faults(bench: Benchmark, folder: Path, cluster: SlurmCluster) -> None:
    """Let each fault happen to a run of its own."""
    table = bench.table("faults", *HEAD)
    smallest = ((nothing, {"count": 2, "seconds": 0.2}),)
    for number, (fault, how) in enumerate(bench.of(FAULTS, FAULTS[:2], smallest)):
        if not any(word in fault.__name__ for word in bench.given.only.split(",")):
            continue
        scene = Scene(folder / f"{number}", cluster, **how)
        try:
            fault(scene)
            held = scene.held()
            add_row(table, str(fault.__doc__), scene, held)
            if not held.agrees or held.unsettled:
                print(scene.said, file=sys.stderr, flush=True)
        except AssertionError as error:
            bench.skip(f"{fault.__doc__}: FAILED: {error}")
        finally:
            scene.close()


def try_kills(bench: Benchmark, folder: Path, cluster: SlurmCluster) -> None:
    """Kill runs of each acquisition policy at random moments."""
    given = bench.given
    if not given.rounds:
        return
    table = bench.table(f"random kills, seed {given.seed}", *HEAD)
    for policy in given.policies.split(","):
        rng = random.Random(f"{given.seed} {policy}")
        left, made_runs = given.rounds, 0
        while left > 0:
            made_runs += 1
            scene = Scene(
                folder / f"{policy}-{made_runs}",
                cluster,
                policy=policy,
                budget=given.budget,
                count=200,
                seconds=1.0,
            )
            try:
                done = random_kills(scene, rng, min(left, 6))
                add_row(table, f"{done} random kills, {policy}", scene, scene.held())
                left -= max(1, done)
            finally:
                scene.close()


if __name__ == "__main__":
    main()
