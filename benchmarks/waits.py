"""
Forecasts of waits in batch queues: how often they hold, and how sharp they are.

Jobs of real logs are simulated under EASY and conservative backfilling. When a job is submitted,
each method says how long the job will wait, from what a user could see at that moment: the queue
with what was asked for, how long jobs have run, and jobs that have ended. Methods:

queue
    The product's forecast from the live queue.
history
    The product's forecast from past waits alone.
BMBP
    Binomial bounds on quantiles with trimming at changes (Brevik, Nurmi, Wolski 2006), raw, and
    with its quantile tuned afterwards so that as many bounds hold as of the first method.
scheduler
    The start if all jobs ran as long as they asked and none came later: under conservative
    backfilling the promise. Raw, and times the factor by which as many hold.

A share is *covered* if the wait is no longer than the bound; of a wait that equals an atom of the
forecast, such as none at all, the part that lies below the share counts (Czado, Gneiting, Held
2009). Jobs of the first tenth of a stretch are not scored. Intervals of 95 % are from a bootstrap
over weeks.

Use::

    python benchmarks/waits.py [--data FOLDER] [--quick | --smallest] [--json FILE]
"""

import argparse
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from binomial_bounds import BinomialBounds
from figures import Benchmark, Cell, Figure, Table
from numpy.typing import NDArray

from bursar.cluster.job_table import Policy
from bursar.cluster.machine import Machine
from bursar.cluster.simulation import simulate
from bursar.formats.trace_files import read_swf
from bursar.model.trace import Trace
from bursar.provisioning.queue_forecaster import EndedJob, EndedJobs, ProjectedQueue, project_waits
from bursar.provisioning.wait_forecast import WaitForecast
from bursar.provisioning.wait_prediction import WaitPredictor

FloatArray = NDArray[np.float64]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LOGS = {
    "KTH": ("swf/KTH-SP2-1996-2.1-cln.swf.xz", 100),
    "CTC": ("swf/CTC-SP2-1996-predictsim.swf.xz", 430),
    "HPC2N": ("swf/HPC2N-2002-first-3170.swf.xz", 240),
}
"""File and processors of each log."""

UNSEEN = "HPC2N"
"""Log by which no constant of the forecasts was chosen."""

POLICIES: tuple[Policy, ...] = ("easy", "conservative")
SHARES = (0.05, 0.5, 0.9, 0.95)
LOWEST, MIDDLE, HIGH, HIGHEST = range(4)
FIRST = 0.2
"""Where in a log the stretch begins, as a share of its jobs."""
WARM_UP = 0.1
"""Part of the stretch that is not scored."""
WEEK = 7 * 86_400.0
DRAWS = 1000
"""Bootstrap samples."""
MINUTE = 60.0
FINE = np.arange(1, 100) / 100
"""Shares among which the ends of an atom are looked for."""

COVERED_90, COVERED_50 = (0.88, 0.92), (0.46, 0.54)


@dataclass(slots=True)
class Forecasts:
    """
    What one method said of each scored job.

    Parameters
    ----------
    bounds
        Seconds, a column for each of ``SHARES``, shape ``(n, 4)``; NaN where nothing was said.
    covered
        How far each bound held, shape ``(n, 4)``.
    """

    bounds: FloatArray
    covered: FloatArray


@dataclass(slots=True)
class Stretch:
    """
    Jobs of a log under a policy, and what was said of each when it was submitted.

    Parameters
    ----------
    waits, weeks, at_once
        Seconds that each scored job waited, its week, and whether it was to start at once.
    """

    trace: Trace
    start: FloatArray
    jobs: range
    waits: FloatArray
    weeks: NDArray[np.int64]
    stated: FloatArray
    methods: dict[str, Forecasts] = field(default_factory=dict)

    @property
    def at_once(self) -> NDArray[np.bool_]:
        return np.asarray(self.stated <= 0)


def covered(forecast: WaitForecast, wait: float, bounds: list[float]) -> list[float]:
    """Return how far each bound held; see the top."""
    if wait not in bounds:
        return [float(wait <= bound) for bound in bounds]
    fine = np.array(forecast.wait_quantiles(FINE.tolist()))
    low, high = (int(np.searchsorted(fine, wait, side=side)) / 100 for side in ("left", "right"))
    if high >= 0.99:
        high = 1.0
    if high <= low:
        return [float(wait <= bound) for bound in bounds]
    return [min(max((share - low) / (high - low), 0.0), 1.0) for share in SHARES]


class LiveQueue:
    """The queue of a simulated log as a user sees it at each submission."""

    def __init__(self, trace: Trace, start: FloatArray, finish: FloatArray, first: int) -> None:
        self._trace, self._start, self._finish = trace, start, finish
        self._waiting: dict[int, None] = {}
        self._running: dict[int, None] = {}
        self._due: list[tuple[float, int]] = []
        self._ends: list[tuple[float, int]] = []
        self.ended = EndedJobs()
        # What is there when the stretch begins; jobs that ended before are not known.
        for job in range(first):
            if finish[job] > trace.submit[first]:
                self.submit(job)

    def submit(self, job: int) -> None:
        """A job joins the queue."""
        self._waiting[job] = None
        heapq.heappush(self._due, (float(self._start[job]), job))

    def advance(self, now: float) -> None:
        """Move to the moment before the scheduler acts at a time."""
        while self._due and self._due[0][0] < now:
            _, job = heapq.heappop(self._due)
            del self._waiting[job]
            self._running[job] = None
            heapq.heappush(self._ends, (float(self._finish[job]), job))
        while self._ends and self._ends[0][0] <= now:
            end, job = heapq.heappop(self._ends)
            del self._running[job]
            self.ended.add(
                EndedJob(
                    submitted=float(self._trace.submit[job]),
                    processors=int(self._trace.processors[job]),
                    asked=float(self._trace.estimate[job]),
                    ran=end - float(self._start[job]),
                    user=str(self._trace.user[job]),
                )
            )

    def projected(self, now: float, processors: int, policy: Policy) -> ProjectedQueue:
        """Return the queue on a machine."""
        running = np.fromiter(self._running, dtype=np.int64)
        waiting = np.fromiter(self._waiting, dtype=np.int64)
        jobs = np.concatenate((running, waiting))
        gone = np.concatenate((now - self._start[running], np.zeros(len(waiting))))
        asked = self._trace.estimate[jobs].astype(np.float64)
        machine = Machine(processors, policy)
        for part in (slice(0, len(running)), slice(len(running), None)):
            left, width = (asked - gone)[part], self._trace.processors[jobs][part]
            machine.submit_all(np.zeros(len(left)), width, left, left)
            machine.advance(0.0)
        order = np.concatenate((machine.running, machine.waiting))
        users = tuple(str(user) for user in self._trace.user[jobs][order].tolist())
        return ProjectedQueue(machine, now, asked[order], gone[order], users)


def follow(
    trace: Trace, processors: int, policy: Policy, jobs: range, *, seed: int, assumed: Policy
) -> Stretch:
    """
    Forecast the wait of each job of a stretch when it is submitted.

    Parameters
    ----------
    assumed
        Policy by which queues are projected.
    """
    result = simulate(trace, processors=processors, policy=policy, early="compress")
    start = result.start
    live = LiveQueue(trace, start, result.finish, jobs.start)
    by_queue, by_history = WaitPredictor(), WaitPredictor()
    rng = np.random.default_rng(seed)
    said: dict[str, list[tuple[list[float], list[float]]]] = {"queue": [], "history": []}
    nothing = ([math.nan] * len(SHARES),) * 2
    stated = []
    waiting: list[tuple[float, int]] = []
    for job in jobs:
        now, width = float(trace.submit[job]), int(trace.processors[job])
        seconds, wait = float(trace.estimate[job]), float(start[job] - trace.submit[job])
        live.advance(now)
        while waiting and waiting[0][0] <= now:
            at, other = heapq.heappop(waiting)
            for predictor in (by_queue, by_history):
                predictor.began(str(other), at)
        seen = live.projected(now, processors, assumed)
        projection = project_waits(seen, live.ended, width, seconds, rng)
        stated.append(projection.stated)
        for name, forecast in (
            ("queue", by_queue.forecast("", width, seconds, projection)),
            ("history", by_history.forecast("", width, seconds)),
        ):
            if forecast is None:
                said[name].append(nothing)
                continue
            bounds = forecast.wait_quantiles(SHARES)
            said[name].append((bounds, covered(forecast, wait, bounds)))
        by_queue.asked(str(job), "", width, seconds, now, projection)
        by_history.asked(str(job), "", width, seconds, now)
        heapq.heappush(waiting, (float(start[job]), job))
        live.submit(job)
    skipped = int(len(jobs) * WARM_UP)
    scored = np.arange(jobs.start, jobs.stop)[skipped:]
    return Stretch(
        trace,
        start,
        jobs,
        (start - trace.submit)[scored],
        ((trace.submit[scored] - trace.submit[scored[0]]) // WEEK).astype(np.int64),
        np.array(stated[skipped:]),
        {
            name: Forecasts(*(np.array(column)[skipped:] for column in zip(*rows, strict=True)))
            for name, rows in said.items()
        },
    )


def binomial(stretch: Stretch, quantile: float) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper binomial bounds of each scored job, seconds; NaN for none."""
    trace, jobs = stretch.trace, stretch.jobs
    method = BinomialBounds(quantile, training=max(len(jobs) // 40, 10))
    waiting: list[tuple[float, int]] = []
    found = []
    for job in jobs:
        now, width = float(trace.submit[job]), int(trace.processors[job])
        while waiting and waiting[0][0] <= now:
            at, other = heapq.heappop(waiting)
            method.add(int(trace.processors[other]), at - float(trace.submit[other]))
        low, high = method.lower(width), method.bound(width)
        found.append((math.nan if low is None else low, math.nan if high is None else high))
        heapq.heappush(waiting, (float(stretch.start[job]), job))
    low, high = np.array(found)[len(jobs) - len(stretch.waits) :].T
    return low, high


def tuned(held: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Return the parameter at which a share that rises with it is next to a target."""
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < target else (low, middle)
    return high


def pinball(wait: FloatArray, bound: FloatArray, share: float) -> FloatArray:
    """Return the quantile loss of each bound, seconds."""
    return np.maximum(share * (wait - bound), (share - 1) * (wait - bound))


def spread(
    ours: FloatArray, theirs: FloatArray, weeks: NDArray[np.int64]
) -> tuple[float, float, float]:
    """Return the ratio of two means, and its 95 % interval by a bootstrap over weeks."""
    many = int(weeks.max()) + 1
    sums = [np.bincount(weeks, values, many) for values in (ours, theirs)]
    drawn = np.random.default_rng(7).integers(many, size=(DRAWS, many))
    ratios = sums[0][drawn].sum(axis=1) / sums[1][drawn].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(ours.mean() / theirs.mean()), float(low), float(high)


def _ratio(found: tuple[float, float, float]) -> str:
    return f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"


def compare(
    name: str,
    stretch: Stretch,
    among: NDArray[np.bool_],
    table: Table,
    ratios: list[tuple[Cell, ...]],
) -> tuple[float, float, bool]:
    """
    Add the rows of one set of jobs; return the coverage at 0.9 and 0.5, and whether we are sharper.

    Parameters
    ----------
    among
        The jobs that count.
    """
    said = [forecast.bounds[:, HIGH] for forecast in stretch.methods.values()]
    raw = {q: binomial(stretch, q) for q in (0.5, 0.9, 0.95)}
    # All methods on the same jobs: those for which each has something to say.
    among = among & ~np.isnan(np.array([*said, *(high for _, high in raw.values())])).any(axis=0)
    wait, weeks = stretch.waits[among], stretch.weeks[among]
    ours = stretch.methods["queue"]
    bounds = ours.bounds[among]

    def held(bound: FloatArray) -> float:
        return float((wait <= bound[among]).mean())

    def inside(low: FloatArray, high: FloatArray) -> float:
        return float(((low[among] <= wait) & (wait <= high[among])).mean())

    def filled(high: FloatArray) -> FloatArray:
        # A quantile near 1 needs more waits than there may be: then the longest wait so far.
        return np.where(np.isnan(high), np.nanmax(high), high)

    def at(quantile: float) -> tuple[FloatArray, FloatArray]:
        low, high = binomial(stretch, quantile)
        return np.where(np.isnan(low), 0.0, low), filled(high)

    def upper(target: float) -> FloatArray:
        return at(tuned(lambda q: held(at(q)[1]), target, 0.02, 0.998))[1]

    def scaled(target: float) -> FloatArray:
        return stretch.stated * tuned(lambda f: held(stretch.stated * f), target, 0.0, 4.0)

    def row(
        method: str, middle: FloatArray, high: FloatArray, low: FloatArray, top: FloatArray
    ) -> None:
        mine = stretch.methods.get(method)
        cover = [float(mine.covered[among, i].mean()) if mine else None for i in (MIDDLE, HIGH)]
        table.add(
            f"{name}: {method}",
            len(wait),
            *cover,
            held(high),
            float(high[among].mean()) / MINUTE,
            float(np.median(high[among])) / MINUTE,
            float(pinball(wait, middle[among], 0.5).mean()) / MINUTE,
            float(pinball(wait, high[among], 0.9).mean()) / MINUTE,
            inside(low, top),
            float((top - low)[among].mean()) / MINUTE,
        )

    for method, forecasts in stretch.methods.items():
        columns = forecasts.bounds
        row(method, columns[:, MIDDLE], columns[:, HIGH], columns[:, LOWEST], columns[:, HIGHEST])
    row("BMBP", raw[0.5][1], raw[0.9][1], *raw[0.95])
    middle, high = (upper(held(ours.bounds[:, i])) for i in (MIDDLE, HIGH))
    target = inside(ours.bounds[:, LOWEST], ours.bounds[:, HIGHEST])
    low, top = at(tuned(lambda q: inside(*at(q)), target, 0.5, 0.998))
    row("BMBP, equal coverage", middle, high, low, top)
    none = np.zeros_like(stretch.stated)
    row("scheduler", stretch.stated, stretch.stated, none, stretch.stated)
    own = [scaled(held(ours.bounds[:, i])) for i in (MIDDLE, HIGH)]
    row("scheduler, equal coverage", *own, none, scaled(target))

    sharper = spread(bounds[:, HIGH], high[among], weeks)
    ratios.append(
        (
            name,
            int(weeks.max()) + 1,
            _ratio(sharper),
            _ratio(spread(bounds[:, HIGHEST] - bounds[:, LOWEST], (top - low)[among], weeks)),
            _ratio(
                spread(
                    pinball(wait, bounds[:, MIDDLE], 0.5), pinball(wait, middle[among], 0.5), weeks
                )
            ),
            _ratio(
                spread(pinball(wait, bounds[:, HIGH], 0.9), pinball(wait, high[among], 0.9), weeks)
            ),
            _ratio(spread(bounds[:, HIGH], own[1][among], weeks)),
        )
    )
    cover = ours.covered[among]
    return float(cover[:, HIGH].mean()), float(cover[:, MIDDLE].mean()), sharper[2] < 1.0


def _within(name: str, value: float, aim: tuple[float, float]) -> Figure:
    return Figure(name, value, "", f"{aim[0]:g} to {aim[1]:g}", aim[0] <= value <= aim[1])


def show(bench: Benchmark, data: Path) -> None:
    """Measure every log under each policy."""
    most = bench.of(20_000, 3_000, 250)
    logs = bench.of(("KTH", "CTC", UNSEEN), ("KTH", "CTC", UNSEEN), ("KTH",))
    aims: list[Figure] = []
    cells = []
    for log in logs:
        file, processors = LOGS[log]
        trace = read_swf(data / file)
        first = int(FIRST * len(trace)) if log != UNSEEN else 0
        jobs = range(first, min(first + most, len(trace)))
        for policy in POLICIES:
            run = partial(follow, trace, processors, policy, jobs)
            cells.append((f"{log}, {policy}", run(seed=1, assumed=policy)))
            if policy == "conservative" and bench.size == "full":
                stretch = run(seed=1, assumed="easy")
                cells.append((f"{log}, {policy}, projected as easy", stretch))
    columns = (
        *("log, policy: method", "jobs", "covered 0.5", "covered 0.9", "held 0.9"),
        *("mean bound 0.9, min", "median bound 0.9, min", "pinball 0.5, min", "pinball 0.9, min"),
        *("held 0.05 to 0.95", "mean width, min"),
    )
    against = (
        *("log, policy", "weeks", "mean bound 0.9", "mean width", "pinball 0.5", "pinball 0.9"),
        "mean bound 0.9 / scheduler's",
    )
    for title, all_jobs in (("all jobs", True), ("jobs that do not start at once", False)):
        table = bench.table(f"{title}: each method", *columns)
        ratios: list[tuple[Cell, ...]] = []
        for name, stretch in cells:
            among = np.ones(len(stretch.waits), dtype=bool) if all_jobs else ~stretch.at_once
            high, middle, sharper = compare(name, stretch, among, table, ratios)
            if not all_jobs or UNSEEN in name or "projected" in name:
                continue
            aims += [
                _within(f"{name}: covered 0.9", high, COVERED_90),
                _within(f"{name}: covered 0.5", middle, COVERED_50),
                Figure(f"{name}: sharper than BMBP", float(sharper), "", "yes", sharper),
            ]
        of = bench.table(f"{title}: queue over BMBP at equal coverage (95 %)", *against)
        for row in ratios:
            of.add(*row)
    bench.figures("aims", aims)


def main() -> None:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER")

    bench = Benchmark(__file__, __doc__, options)
    if bench.given.data.is_dir():
        show(bench, bench.given.data)
    else:
        bench.skip(f"all tables: no reference data at {bench.given.data}")
    bench.write()


if __name__ == "__main__":
    main()
