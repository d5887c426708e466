"""Table 1 and figure 2 on real Slurm: a cluster of 96 processors on this machine, for each run."""

import asyncio
import fcntl
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.model.allocation import AllocationRequest
from bursar.model.provisioning import ACQUISITIONS, Acquisition, AcquisitionPolicy, BatchScheduler
from bursar.model.slot import Slot
from bursar.provisioning.lrm.resource_manager import JobRequest
from bursar.provisioning.lrm.slurm import Slurm
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.sites.queue_observer import backfill_windows_of, project_queue
from bursar_devtools.testgrid.slurm import SlurmCluster
from bursar_papers.drp.acquiring import Acquirer, TaskBacklog
from bursar_papers.drp.anl_uc_site import (
    FIRST,
    FREE,
    HORIZON,
    RELEASE,
    SCENARIOS,
    WANTED,
    Scenario,
    measures,
)
from bursar_papers.drp.drp_findings import curve, find_curves, find_table
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row

if TYPE_CHECKING:
    import altair

NODES, PER_NODE = 8, 12
SCALE = 1 / 10
"""Seconds for each of the paper's; what Slurm takes is not scaled."""
LATENCY = round(FIRST * SCALE)
"""Seconds that Slurm is made to wait after each submission, as the paper's site did."""
QUICK = 6.0
"""Seconds of a run without that latency, which shows how soon workers can be there."""
LOOK = 0.2
"""Seconds between two polls of the queue."""
WORK = TaskBacklog(wanted=WANTED, tasks=WANTED * 10, seconds=60.0)
LONGEST = 600.0
"""Duration limit of one allocation, seconds."""

WORKERS = """\
ready={folder}/{name}.$BURSAR_ELEMENT
export ready
workers=${{SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))}}
if [ "${{SLURM_JOB_NUM_NODES:-1}}" -gt 1 ]; then
  exec srun --ntasks="$workers" --input=none sh -c '
    : > "$ready.$SLURM_PROCID"
    exec sleep 900'
fi
while [ "$workers" -gt 0 ]; do
  workers=$((workers - 1))
  : > "$ready.$workers"
done
exec sleep 900
"""
"""Every worker reports by a file; on one node one process does for all, as a pilot's does."""


@dataclass(slots=True)
class LiveAcquisition:
    """One policy on a cluster where other jobs run already."""

    manager: Slurm
    acquirer: Acquirer
    folder: Path
    """Folder where workers report by files."""
    began: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    jobs: dict[str, str] = field(default_factory=dict)
    """Job id by allocation."""
    reports: dict[str, str] = field(default_factory=dict)
    """Prefix of the workers' files, by allocation."""
    requests: int = 0

    @property
    def now(self) -> float:
        """Seconds from the begin."""
        return time.time() - self.began

    async def go(
        self,
        until: float,
        at: float = math.inf,
        then: Callable[[], object] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Acquires until a moment.

        Parameters
        ----------
        until
            Seconds from the begin.
        at, then
            Something else that happens, and when.
        enough
            Whether it need not go on.
        """
        while self.now < until and not enough():
            if then is not None and self.now >= at:
                await asyncio.to_thread(then)
                then = None
            await self._hear()
            await self._act()
            await asyncio.sleep(LOOK)

    async def end(self) -> None:
        """Cancel all jobs of the run."""
        if self.jobs:
            await self.manager.cancel(list(self.jobs.values()))

    async def _hear(self) -> None:
        """Ask what became of the jobs."""
        said = await self.manager.poll(list(self.jobs.values())) if self.jobs else {}
        there = self._reported()
        for name, job in list(self.jobs.items()):
            report, known = said[job], self.acquirer.allocations[name]
            if report.state == "running" and known.granted is None:
                began = (report.began or time.time()) - self.began
                width = report.processors or known.processors
                self.acquirer.on_began(name, max(0.0, began), width)
                known = self.acquirer.allocations[name]
            workers = len(there.get(self.reports[name], ()))
            if known.granted is not None and workers != known.workload.ready:
                self.acquirer.on_ready(name, workers, self.now)
            if report.state == "ended":
                self.acquirer.on_ended(name, self.now)
                del self.jobs[name]

    async def _act(self) -> None:
        """Carry out the decisions: submit and cancel jobs."""
        free: int | None = None
        holes: tuple[Slot, ...] = ()
        waiting = 0
        if self.acquirer.looks:
            free, holes, waiting = await self.poll()
        asks, back = self.acquirer.decide(self.now, free, holes, waiting)
        if back:
            await self.manager.cancel([self.jobs.pop(name) for name in back])
            for name in back:
                self.acquirer.on_ended(name, self.now)
        # Requests of one bundle become one job array: one submission, as the paper counts them.
        for bundle, group in groupby(asks, key=lambda named: named[1].bundle or named[0]):
            named = list(group)
            request = self._request(bundle, named[0][1], len(named))
            # The name of a request is in the names of its workers' files, so that each worker can
            # be told from others' without asking Slurm.
            ids = await self.manager.submit(request)
            for element, ((name, _), job) in enumerate(zip(named, ids, strict=True)):
                self.jobs[name] = job
                self.reports[name] = f"{request.name}.{element}"
            self.requests += 1

    async def poll(self) -> tuple[int, tuple[Slot, ...], int]:
        """
        Return the free processors, the backfill windows, and the number of others' waiting jobs.

        A site polls before the pool decides anything; the first poll of a process takes longer, as
        compiled code is loaded.
        """
        state = await self.manager.queue()
        waiting = sum(not job.running and not job.own for job in state.jobs)
        return state.free, backfill_windows_of(project_queue(state).machine), waiting

    def _request(self, name: str, ask: AllocationRequest, copies: int) -> JobRequest:
        nodes = None
        processors = ask.processors
        if ask.least_processors is not None:
            most = max(1, ask.processors // PER_NODE)
            nodes = (min(most, math.ceil(ask.least_processors / PER_NODE)), most)
            processors = PER_NODE
        unique = f"drp-{name}-{self.requests}"
        return JobRequest(
            name=unique,
            processors=processors,
            seconds=ask.duration,
            script=WORKERS.format(folder=self.folder, name=unique),
            folder=str(self.folder),
            copies=copies,
            nodes=nodes,
            least_seconds=ask.least_duration,
        )

    def moments(self) -> list[float]:
        """Return the times of the workers' registrations, seconds from the begin, ascending."""
        return sorted(at for times in self._reported().values() for at in times)

    def _reported(self) -> dict[str, list[float]]:
        """Return the times of registrations by the prefix of the workers' files."""
        found: dict[str, list[float]] = {}
        for file in self.folder.iterdir():
            of, _, worker = file.name.rpartition(".")
            if worker.isdigit():
                found.setdefault(of, []).append(file.stat().st_mtime - self.began)
        return found


def measured(
    policy: Acquisition, scenario: Scenario, latency: int, until: float
) -> tuple[list[float], int]:
    """
    Run a policy on a fresh cluster; return the times of registrations, and the requests.

    Parameters
    ----------
    latency
        Seconds that jobs wait at least.
    until
        Seconds that are looked at.

    Raises
    ------
    SiteError
        When Slurm is not on this machine, or does not start.
    """
    with (
        _one_cluster_at_a_time(),
        tempfile.TemporaryDirectory(prefix="drp-", ignore_cleanup_errors=True) as folder,
    ):
        cluster = SlurmCluster.up(
            Path(folder) / "slurm", name="drp", nodes=NODES, cpus=PER_NODE, latency=latency
        )
        try:
            ready = Path(folder) / "ready"
            ready.mkdir()
            run = LiveAcquisition(manager_of(cluster), _acquirer(policy), ready)
            release = _occupy(cluster, scenario)
            # Once before the clock starts: the first look loads compiled code.
            asyncio.run(run.poll())
            # Slurm counts whole seconds: where in one a run begins is not to tell policies apart.
            time.sleep(1.0 - time.time() % 1.0)
            run.began = time.time()
            asyncio.run(run.go(until, RELEASE * SCALE, release))
            return run.moments(), run.requests
        finally:
            cluster.down(grace=0.0)


def manager_of(cluster: SlurmCluster) -> Slurm:
    """Return the resource manager of a test cluster."""
    return Slurm(BatchScheduler(manager="slurm", environment=cluster.environment))


def _acquirer(policy: Acquisition) -> Acquirer:
    told = PoolSite(
        name="slurm",
        rules=AcquisitionPolicy(),
        processors=NODES * PER_NODE,
        per_node=PER_NODE,
        arrays=True,
        node_ranges=True,
    )
    return Acquirer(policy, WORK, told, LONGEST)


def _occupy(cluster: SlurmCluster, scenario: Scenario) -> Callable[[], object] | None:
    """Others take what is not free; how one of them goes, where one does."""
    first, later = FREE[scenario]
    others = NODES * PER_NODE - later
    jobs = [_other(cluster, others, minutes=60)]
    last = None
    if later > first:
        last = _other(cluster, later - first, minutes=1)
        jobs.append(last)
    deadline = time.time() + 20.0
    while time.time() < deadline:
        said = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%A").split()
        if set(jobs) <= set(said):
            break
        time.sleep(0.1)
    return None if last is None else lambda: cluster.run("scancel", last)


def _other(cluster: SlurmCluster, processors: int, minutes: int) -> str:
    return cluster.run(
        "sbatch", "--parsable", f"--ntasks={processors}", f"--time={minutes}",
        "--output=/dev/null", "--wrap=exec sleep 3600",
    ).strip()  # fmt: skip


@contextmanager
def _one_cluster_at_a_time() -> Iterator[None]:
    """One cluster at a time: two would be each other's latency."""
    # A descriptor of the module's own file: a file in a folder that all may write to would have a
    # name that others can foresee, and put a link there.
    with Path(__file__).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# The experiments.

REPETITIONS: dict[Effort, int] = {"quick": 1, "normal": 1, "full": 3}


def _curve_cells(effort: Effort) -> list[Cell]:
    return [
        {"scenario": scenario, "policy": policy, "latency": LATENCY, "seed": seed}
        for scenario in SCENARIOS
        for policy in ACQUISITIONS
        for seed in range(REPETITIONS[effort])
    ]


def _table_cells(effort: Effort) -> list[Cell]:
    quick = [{**cell, "latency": 0} for cell in _curve_cells(effort) if cell["scenario"] == "idle"]
    return [*_curve_cells(effort), *quick]


def _measure_table(cell: Cell, data: Path) -> list[Row]:
    latency = cell["latency"]
    until = HORIZON * SCALE if latency else QUICK
    times, requests = measured(cell["policy"], cell["scenario"], latency, until)
    scaled = measures([at / SCALE for at in times], requests)
    return [
        dict(cell)
        | (scaled if latency else {"workers": len(times), "requests": requests})
        | {
            "first_s": times[0] if times else None,
            "all_s": times[WANTED - 1] if len(times) >= WANTED else None,
        }
    ]


def _measure_curve(cell: Cell, data: Path) -> list[Row]:
    times, _ = measured(cell["policy"], cell["scenario"], cell["latency"], HORIZON * SCALE)
    return curve(cell, [at / SCALE for at in times])


def _find_table(rows: Sequence[Row]) -> list[PaperFinding]:
    slow = [row for row in rows if row["latency"]]
    return [*find_table(slow, live=True), *_find_soonest(rows)]


def _find_curves(rows: Sequence[Row]) -> list[PaperFinding]:
    return find_curves(rows, live=True)


def _find_soonest(rows: Sequence[Row]) -> list[PaperFinding]:
    """Report the real seconds until all workers were there, on the idle cluster without delays."""
    return [
        PaperFinding(
            what=f"idle, without latency: {row['policy']}, real seconds to the first and to all",
            paper="",
            ours=f"{row['workers']} of {WANTED} came"
            if row["all_s"] is None
            else f"{row['first_s']:.2f} and {row['all_s']:.2f}",
        )
        for row in rows
        if not row["latency"]
    ]


def _slow(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["latency"]]


ABOUT = (
    f"{WANTED} workers on a cluster of {NODES} nodes of {PER_NODE} processors under real Slurm, "
    "of which 94 are free, or 47 until another job ends. The paper's 180 s are 18 s here, and "
    f"CPU time is told in its seconds. Slurm starts no job within {LATENCY} s, a tenth of what "
    "the paper's site took; what else it takes is its own, and not scaled."
)


def experiments(
    draw_table: "Callable[[Sequence[Row]], dict[str, altair.TopLevelMixin]]",
    draw_curves: "Callable[[Sequence[Row]], dict[str, altair.TopLevelMixin]]",
) -> tuple[Experiment, ...]:
    """Return the experiments that need Slurm on this machine."""
    return (
        Experiment(
            paper="drp",
            figure="2-live",
            title="workers over time on real Slurm",
            about=ABOUT,
            cells=_curve_cells,
            measure=_measure_curve,
            findings=_find_curves,
            charts=draw_curves,
            live=True,
        ),
        Experiment(
            paper="drp",
            figure="table-1-live",
            title="accumulated CPU time on real Slurm",
            about=ABOUT,
            cells=_table_cells,
            measure=_measure_table,
            findings=_find_table,
            charts=lambda rows: draw_table(_slow(rows)),
            live=True,
        ),
    )
