"""
Compares acquisition policies on machines that run the jobs of real logs.

The paper stops at two scenarios that were made by hand, and concludes that each policy suits
another load. Here all of them meet the same moments of recorded loads.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bursar.cluster.job_table import Policy
from bursar.model.provisioning import Acquisition, AcquisitionPolicy
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.sites.queue_observer import backfill_windows_of
from bursar_papers import drawing
from bursar_papers.drp.acquiring import Acquirer, TaskBacklog, run_acquisition
from bursar_papers.drp.drp_findings import BLIND, MARGIN
from bursar_papers.equivalence import compare_with_bounds, describe_comparison
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.loads import LOGS, read_ctc_log
from bursar_papers.summary import Summary, grouped, selected

if TYPE_CHECKING:
    import altair

HORIZON = 7200.0
"""Seconds after the request, in which processor time counts."""
TASK = 600.0
"""Seconds of a task; each takes one processor."""
LOOK = 60.0
"""Seconds between two looks at the queue."""
SHARES = (0.125, 0.25, 0.5)
"""Of the machine's processors, that are asked for."""
ON = ("CTC", "KTH", "HPC2N")
"""Logs with what users asked for."""
SMALL = ("KTH", "HPC2N")
"""Those whose moments take seconds; a moment of CTC takes as long as four of these."""
QUEUES: tuple[Policy, ...] = ("easy", "conservative")
POLICIES: tuple[Acquisition, ...] = (
    "one-at-a-time",
    "additive",
    "exponential",
    "all-at-once",
    "optimal",
    "adaptive",
)
CALIBRATED = (87.0, 93.0)
"""Per cent of the 90 % bounds within which these hold as often as they say."""
MOMENTS_SEED = 180
"""Of the moments that are reported; our policy was made on others (48), which are not."""


class TraceSite:
    """
    A loaded machine as :class:`bursar_papers.drp.acquiring.SimulatedQueue`.

    Pilots are jobs of the machine. A pilot runs until its limit; its workers register when it
    starts.
    """

    def __init__(self, cluster: LoadedCluster) -> None:
        self._cluster = cluster
        self._machine = cluster.machine
        self._own: list[int] = []
        self.submissions = 0

    @property
    def now(self) -> float:
        """Seconds on the log's clock."""
        return self._machine.now

    @property
    def free(self) -> int:
        """Processors on which a job could start now."""
        return self._machine.free

    @property
    def holes(self) -> tuple[Slot, ...]:
        """Backfill windows, by the times that the queue's jobs requested."""
        return backfill_windows_of(self._machine)

    @property
    def waiting(self) -> int:
        """Number of waiting jobs of other users."""
        return len(np.setdiff1d(self._machine.waiting, self._own, assume_unique=True))

    @property
    def next_event(self) -> float:
        """Time of the machine's next event, seconds."""
        return self._cluster.next_event

    def submit(
        self, processors: int, seconds: float, *, fewest: int | None = None, with_last: bool = False
    ) -> int:
        """Submit a job; the submission takes no time."""
        self._own.append(self._machine.submit(processors, seconds))
        self.submissions += not with_last
        return self._own[-1]

    def cancel(self, number: int) -> None:
        """Cancel a job."""
        self._machine.cancel(number)

    def began(self, number: int) -> float | None:
        """Return the time at which a job started, seconds; None: not yet."""
        return self._machine.jobs.times(number, self._machine.now)[0]

    def ended(self, number: int) -> bool:
        """Return whether a job has ended."""
        return self._machine.jobs.times(number, self._machine.now)[1] is not None

    def processors(self, number: int) -> int:
        """Return the number of processors that a job requests."""
        return self._machine.job(number).processors

    def ready(self, number: int) -> int:
        """Return the number of workers: all while the job runs, none otherwise."""
        start, finish = self._machine.jobs.times(number, self._machine.now)
        return self.processors(number) if start is not None and finish is None else 0

    def advance(self, until: float) -> None:
        """Advance the clock to a time, seconds."""
        self._cluster.advance(until)

    def spans(self, until: float) -> Iterator[tuple[float, float, int]]:
        """Yield start, end and processors of each of our jobs that started, up to a time."""
        for number in self._own:
            job = self._machine.job(number)
            if job.start is not None:
                yield job.start, min(job.finish or math.inf, until), job.processors


def cluster_at_work(data: Path, name: str, seed: int, policy: Policy) -> LoadedCluster:
    """
    Return a log's machine at a random time in the middle three fifths of the log.

    Jobs request what the log states; when one ends early, waiting jobs move forward.
    """
    trace = read_ctc_log(data, name)
    share = np.random.default_rng([seed, MOMENTS_SEED]).uniform(0.2, 0.8)
    at = float(np.floor(trace.submit[0] + share * (trace.submit[-1] - trace.submit[0])))
    return LoadedCluster(
        trace, LOGS[name][1], at=at, policy=policy, early="compress", looseness=None
    )


def gather_processors(
    cluster: LoadedCluster, policy: Acquisition, wanted: int, longest: float
) -> Row:
    """
    Measure what a policy acquires until the horizon, to which the cluster is advanced.

    Returns
    -------
    dict
        ``cpu``: processor time in per cent of what as many processors at once would have given;
        ``useful``: the same, in whole tasks only; ``first``, ``half``, ``all``: seconds until so
        many processors were held, None where they never were; ``requests``; ``bounds`` on their
        waits that were scored, and ``bounds_held`` of these.
    """
    began, end = cluster.now, cluster.now + HORIZON
    site = TraceSite(cluster)
    told = PoolSite(
        name="cluster", rules=AcquisitionPolicy(), processors=cluster.machine.processors
    )
    work = TaskBacklog(wanted=wanted, tasks=math.ceil(wanted * HORIZON / TASK), seconds=TASK)
    acquirer = Acquirer(policy, work, told, longest)
    run_acquisition(site, acquirer, horizon=end, every=LOOK)
    spans = list(site.spans(end))
    full = wanted * HORIZON
    return {
        "cpu": 100 * sum(n * (b - a) for a, b, n in spans) / full,
        # A microsecond against rounding: a span of exactly one task must hold one.
        "useful": 100 * sum(n * TASK * ((b - a + 1e-6) // TASK) for a, b, n in spans) / full,
        "most": max(_held(spans), default=(0.0, 0), key=lambda step: step[1])[1],
        **{
            name: reached(spans, began, number)
            for name, number in (("first", 1), ("half", math.ceil(wanted / 2)), ("all", wanted))
        },
        "requests": site.submissions,
        "bounds": acquirer.bounds.given,
        "bounds_held": acquirer.bounds.held,
    }


def _held(spans: Sequence[tuple[float, float, int]]) -> Iterator[tuple[float, int]]:
    """Yield the processors held from each time on; releases come before starts."""
    steps = sorted([(b, -n) for _, b, n in spans] + [(a, n) for a, _, n in spans])
    held = 0
    for at, change in steps:
        held += change
        yield at, held


def reached(
    spans: Sequence[tuple[float, float, int]], began: float, processors: int
) -> float | None:
    """Return the seconds until a number of processors was held at once; None: never."""
    return next((at - began for at, held in _held(spans) if held >= processors), None)


# The study.

MOMENTS: dict[Effort, int] = {"quick": 6, "normal": 25, "full": 120}


def _cells(longest: float, effort: Effort) -> list[Cell]:
    return [
        {"log": name, "queue": queue, "longest": longest, "seed": seed}
        for name in (ON if effort == "full" else SMALL)
        for queue in QUEUES
        for seed in range(MOMENTS[effort])
    ]


def _measure(cell: Cell, data: Path) -> list[Row]:
    """All policies and sizes at one moment, each on a copy of the same machine."""
    cluster = cluster_at_work(data, cell["log"], cell["seed"], cell["queue"])
    machine = cluster.machine
    state = {
        "free": machine.free / machine.processors,
        "waiting": len(machine.waiting),
    }
    return [
        dict(cell)
        | state
        | {"share": share, "policy": policy}
        | gather_processors(
            cluster.copy(), policy, max(1, round(share * machine.processors)), cell["longest"]
        )
        for share, policy in product(SHARES, POLICIES)
    ]


def differences(rows: Sequence[Row], policy: str, measure: str, other: str) -> list[float]:
    """Return the differences between two policies, paired by moment and machine."""
    on = ("log", "queue", "share", "seed")
    theirs = {tuple(r[k] for k in on): r[measure] for r in selected(rows, policy=other)}
    return [
        row[measure] - theirs[key]
        for row in selected(rows, policy=policy)
        if (key := tuple(row[k] for k in on)) in theirs
    ]


def by_moment(rows: Sequence[Row], policy: str, measure: str, other: str) -> list[float]:
    """Return the mean difference at each moment of a log: those of one moment are dependent."""
    moments = dict.fromkeys((row["log"], row["seed"]) for row in rows)
    return [
        float(np.mean(differences(selected(rows, log=name, seed=seed), policy, measure, other)))
        for name, seed in moments
    ]


def _find(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for policy in POLICIES:
        of = selected(rows, policy=policy)
        cpu, useful = (Summary.of([r[k] for r in of]) for k in ("cpu", "useful"))
        found.append(
            PaperFinding(
                what=f"{policy}: processor time of what was wanted (%)",
                paper="",
                ours=f"{cpu.mean:.1f}, in whole tasks {useful.mean:.1f}; "
                f"{np.mean([r['requests'] for r in of]):.0f} requests",
                remark=_times(of),
            )
        )
    for other in BLIND:
        found.append(_beside(rows, other))
        for queue in dict.fromkeys(row["queue"] for row in rows):
            found.append(_beside(selected(rows, queue=queue), other, f", {queue}"))
    for name in dict.fromkeys(row["log"] for row in rows):
        best = max(
            BLIND,
            key=lambda p: np.mean([r["cpu"] for r in selected(rows, policy=p, log=name)]),
        )
        found.append(_beside(selected(rows, log=name), best, f", {name}, its best blind one"))
    for share in SHARES:
        best = max(
            BLIND,
            key=lambda p: np.mean([r["cpu"] for r in selected(rows, policy=p, share=share)]),
        )
        found.append(
            _beside(selected(rows, share=share), best, f", {share:.3g} of the machine, best blind")
        )
    return [*found, _find_bounds(selected(rows, policy="adaptive"))]


def _find_bounds(rows: Sequence[Row]) -> PaperFinding:
    """Count the bounds on our own requests' waits that held, over moments with more or fewer."""
    given, held = (
        np.array([each.mean for each in grouped(rows, ("log", "seed"), name).values()])
        for name in ("bounds", "bounds_held")
    )
    share = held.sum() / given.sum() if given.sum() else math.nan
    # Linearised ratio estimator: its mean is the pooled share and its spread that of the ratio, so
    # moments with many bounds weigh more and each moment still counts once in the interval.
    by_moment = share + (held - share * given) / given.mean() if given.sum() else []
    found = Summary.of([100 * float(each) for each in by_moment])
    return PaperFinding(
        what="adaptive: 90 % bounds on the waits of its own requests that held (%)",
        paper="90",
        own=True,
        ours=f"{found}, of {sum(row['bounds'] for row in rows):,}",
        comparisons=(compare_with_bounds(found, *CALIBRATED),),
    )


def _times(rows: Sequence[Row]) -> str:
    """How often, and after how long in the median, so many processors were held."""
    told = []
    for name in ("first", "half", "all"):
        times = [row[name] for row in rows if row[name] is not None]
        median = f" after {np.median(times) / 60:.0f} min" if times else ""
        told.append(f"{name} in {len(times) / len(rows):.0%}{median}")
    return ", ".join(told)


def _beside(rows: Sequence[Row], other: str, where: str = "") -> PaperFinding:
    """Compare ours with another policy, both in time held and in whole tasks, in points."""
    comparisons = tuple(
        compare_with_bounds(
            Summary.of(by_moment(rows, "adaptive", measure, other)),
            at_least=-MARGIN * Summary.of([r[measure] for r in selected(rows, policy=other)]).mean,
            name=name,
        )
        for measure, name in (("cpu", "held"), ("useful", "in whole tasks"))
    )
    return PaperFinding(
        what=f"adaptive over {other}{where}, points",
        paper="at least as good",
        own=True,
        ours="; ".join(map(describe_comparison, comparisons)),
        comparisons=comparisons,
    )


def _draw(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [row | {"asked": f"{row['share']:.3g} of it, {row['queue']}"} for row in rows]
    title = "processor time of what was wanted (%)"
    charts: dict[str, altair.TopLevelMixin] = {
        "cpu": drawing.bars(
            shown, x="asked", y="cpu", by="policy", titles=("share of the machine", title)
        ),
        "useful": drawing.bars(
            shown, x="asked", y="useful", by="policy",
            titles=("share of the machine", "the same in whole tasks (%)"),
        ),
    }  # fmt: skip
    return charts


EXPERIMENTS: tuple[Experiment, ...] = tuple(
    Experiment(
        paper="drp",
        figure=figure,
        title=f"processor time on the machines of real logs, allocations of at most {hours}",
        about="At random moments of three logs, each policy asks a copy of the same machine for "
        "an eighth, a quarter and half of its processors, for tasks of 10 minutes and 2 hours of "
        "work; counted until 2 hours after the request. All choose an allocation's time from the "
        "queued work by the same rule. Differences are paired; intervals are of 95 %, over the "
        "moments.",
        cells=partial(_cells, longest),
        measure=_measure,
        findings=_find,
        charts=_draw,
    )
    for figure, hours, longest in (
        ("traces", "2 hours", HORIZON),
        ("traces-short", "20 minutes", 2 * TASK),
    )
)
