"""
How well a campaign's end is foreseen: recorded executions, each forecast from others.

The tasks of one execution are scheduled on a platform with the run times that they had, which is
the truth. Its forecasts know other executions of the same workflow (one, two or four of the same
size, some of another size, or none), the recorded executions of other workflows, and, where a tenth
of the tasks has ended, these. Each forecast is corrected by how the ones before it came out, as a
user's are: the campaigns come in a random order, many orders are tried, and no forecast is
corrected by another one of the execution that it foretells.

Tables:

coverage
    How often the 50 % and 90 % intervals held the truth, the median error of the 50 % figure, and
    the median width of the 90 % interval as a share of the truth; plain and corrected.
aims
    What is asked of these.
speed
    A thousand draws for a thousand tasks, compiled, on one processor.

Use::

    python benchmarks/forecasts.py [--data FOLDER] [--quick]
"""

import argparse
import heapq
import json
import lzma
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from figures import Benchmark, at_most

from bursar.compiling import prefer_machine_code
from bursar.forecasts.calibration import WEIGHT_OF_OTHERS, Distribution, EarlierScore
from bursar.forecasts.campaign_forecast import CampaignForecaster, TaskProgress
from bursar.forecasts.known_runtimes import KnownRuntimes, known_runtimes
from bursar.forecasts.runtime_draws import CampaignTasks
from bursar.forecasts.runtime_model import RuntimeColumns
from bursar.forecasts.score_prior import recorded_table
from bursar.formats.wfformat import read_wfformat
from bursar.history.columns import ObservationColumns
from bursar.history.encoding import STATUS_CODES
from bursar.model.campaign import Campaign, Workflow
from bursar.model.plan import Placement, Purchase
from bursar.model.slot import Slot
from bursar.model.task import Status, Task, Value

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SEED = 20260101
ORDERS = 20
"""Random orders in which campaigns come."""
REPEATED = ("blast", "bwa", "srasearch")
"""Workflows that were executed several times at one size."""
PLATFORMS = ((4,), (8,), (16,), (48,), (8, 16))
"""Processors of the sites; the first is where all was recorded."""
SPEEDS = (1.0, 0.7)
HIDDEN = 0.15
"""Deviation of what the second site's speed really is (logarithm), where no task has run before."""
NOTHING, ONE, TWO, FOUR, OTHER = "none", "1 execution", "2", "4", "another size"
STARTED = ", a tenth done"


@dataclass(frozen=True, slots=True)
class Execution:
    """
    A recorded execution: its workflow's name, size, and campaign, and the truth of each task.

    The campaign is as it is known before: without run times, and without the sizes of files that
    tasks make. What was read in truth is in ``sizes``, NaN where unknown.
    """

    workflow: str
    size: str
    campaign: Campaign
    seconds: np.ndarray
    busy: np.ndarray
    sizes: np.ndarray


def _before(task: Task, made: set[str]) -> Task:
    inputs = tuple(replace(f, size=None) if f.name in made else f for f in task.inputs)
    return replace(task, runtime=None, inputs=inputs)


def _input_bytes(task: Task) -> float:
    sizes = [file.size for file in task.inputs]
    if not sizes or None in sizes:
        return float("nan")
    return float(sum(size or 0 for size in sizes))


def read_executions(folder: Path) -> dict[str, Execution]:
    """Read all executions; kinds of tasks get their workflow's name, as programs share names."""
    found = {}
    for path in sorted(folder.glob("*.json.xz")):
        name = path.name.removesuffix(".json.xz")
        campaign = read_wfformat(path)
        workflow = name.partition("-")[0]
        repeated = workflow in REPEATED
        record = json.loads(lzma.decompress(path.read_bytes()))
        busy = {task["id"]: task.get("avgCPU") for task in record["workflow"]["execution"]["tasks"]}
        tasks = tuple(
            replace(task, name=f"{workflow} {task.name}") for task in campaign.workflow.tasks
        )
        made = {file.name for task in tasks for file in task.outputs}
        found[name] = Execution(
            workflow=workflow,
            size=name.rpartition("-")[0] if repeated else name,
            campaign=replace(
                campaign,
                workflow=Workflow(tuple(_before(task, made) for task in tasks)),
            ),
            sizes=np.array([_input_bytes(task) for task in tasks]),
            seconds=np.array([max(task.runtime or 0.0, 1e-3) for task in tasks]),
            busy=np.array([np.nan if busy[t.id] is None else busy[t.id] / 100 for t in tasks]),
        )
    return found


class RecordedHistory:
    """
    A history of some executions, as arrays in memory.

    The class is a :class:`bursar.forecasts.known_runtimes.ObservationSource`.

    Parameters
    ----------
    sizes
        Number of tasks of the campaigns of which some executions are a part.
    """

    def __init__(
        self, executions: dict[str, Execution], sizes: Mapping[str, int] | None = None
    ) -> None:
        self._executions = executions
        self._sizes = sizes or {}

    def kinds(self) -> list[str]:
        """Return the names of all kinds, sorted."""
        return sorted(
            {task.name for one in self._executions.values() for task in one.campaign.workflow.tasks}
        )

    def observations_of(
        self, kinds: Sequence[str], *, newest: int | None = None, parameters: bool = False
    ) -> ObservationColumns:
        """Return the observations of some kinds."""
        number = {name: at for at, name in enumerate(kinds)}
        rows: list[tuple[int, int, float, float, float]] = []
        count: dict[int, int] = defaultdict(int)
        points: list[Mapping[str, Value]] = []
        for at, one in enumerate(self._executions.values()):
            for task, seconds, busy, total in zip(
                one.campaign.workflow.tasks, one.seconds, one.busy, one.sizes, strict=True
            ):
                kind = number.get(task.name)
                if kind is None or (newest is not None and count[kind] >= newest):
                    continue
                count[kind] += 1
                rows.append((kind, at, seconds, busy * seconds, total))
                points.append(task.parameters)
        table = np.array(rows).reshape(len(rows), 5)
        unknown, none = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
        return ObservationColumns(
            kinds=tuple(kinds),
            templates=("",),
            executions=tuple(self._executions),
            sites=("site0",),
            kind=table[:, 0].astype(np.int64),
            template=none,
            execution=table[:, 1].astype(np.int64),
            site=none,
            seconds=table[:, 2],
            speed=np.ones(len(rows)),
            processors=np.ones(len(rows), np.int64),
            status=np.full(len(rows), STATUS_CODES[Status.SUCCEEDED]),
            input_bytes=table[:, 4],
            estimate=unknown,
            waited=unknown,
            transferred=unknown,
            max_rss=unknown,
            processor_seconds=table[:, 3],
            start=np.zeros(len(rows)),
            parameters=points if parameters else None,
            sizes=self._sizes,
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One forecast, before it is corrected, and what came."""

    execution: str
    workflow: str
    basis: str
    draws: np.ndarray
    now: float
    end: float
    known_from: str
    """Basis as the product names it, by which it finds scores of recorded executions."""
    share: float = 0.0
    cost_draws: np.ndarray | None = None
    """Processor seconds that were foretold to be used from this moment on."""
    cost: float = 0.0
    """Processor seconds that were."""


def upward_ranks(workflow: Workflow, seconds: np.ndarray) -> np.ndarray:
    """Return the longest path from each task to the end: those with most left go first."""
    rank = np.zeros(len(seconds))
    for task in reversed(workflow.order):
        below = max((rank[child] for child in workflow.children[task]), default=0.0)
        rank[task] = seconds[task] + below
    return rank


def schedule(
    workflow: Workflow,
    seconds: np.ndarray,
    rank: np.ndarray,
    platform: Sequence[int],
    speeds: Sequence[float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return site, start and end of each task, given out by rank to the fastest free processor."""
    left = [len(parents) for parents in workflow.parents]
    ready = [(-rank[task], task) for task, count in enumerate(left) if not count]
    heapq.heapify(ready)
    free, running, now = list(platform), [], 0.0
    site, start = np.zeros(len(left), np.int64), np.zeros(len(left))
    end = np.zeros(len(left))
    while ready or running:
        while ready and any(free):
            task = heapq.heappop(ready)[1]
            at = next(number for number, count in enumerate(free) if count)
            free[at] -= 1
            site[task], start[task] = at, now
            end[task] = now + seconds[task] / speeds[at]
            heapq.heappush(running, (end[task], task))
        now = running[0][0]
        while running and running[0][0] == now:
            task = heapq.heappop(running)[1]
            free[site[task]] += 1
            for child in workflow.children[task]:
                left[child] -= 1
                if not left[child]:
                    heapq.heappush(ready, (-rank[child], child))
    return site, start, end


def progress_at(
    known: KnownRuntimes,
    share: float,
    schedule_of: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> TaskProgress:
    """Return how far an execution has come when a share of its tasks has ended."""
    end = schedule_of[2]
    now = 0.0 if not share else float(np.sort(end)[max(1, int(np.ceil(share * len(end)))) - 1])
    return progress_when(known, now, schedule_of)


def progress_when(
    known: KnownRuntimes,
    now: float,
    schedule_of: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> TaskProgress:
    """Return how far an execution has come at a moment."""
    site, start, end = schedule_of
    ended = np.flatnonzero((end <= now) & (now > 0))
    going = np.flatnonzero((start < now) & (end > now))
    speeds = np.array(SPEEDS)[site]
    tasks: CampaignTasks = known.tasks
    unknown = np.full(len(ended), np.nan)
    return TaskProgress(
        now=now,
        ended=frozenset(map(int, ended)),
        elapsed={int(i): max((now - start[i]) * speeds[i], 1e-3) for i in going},
        observed=RuntimeColumns(
            kind=tasks.kind[ended],
            execution=np.zeros(len(ended), np.int64),
            site=np.array([known.sites[f"site{at}"] for at in site[ended]], np.int64),
            work=(end[ended] - start[ended]) * speeds[ended],
            whole=np.ones(len(ended), np.bool_),
            failed=np.zeros(len(ended), np.bool_),
            busy=unknown,
            estimate=tasks.estimate[ended],
            features=tasks.features[ended],
        ),
    )


def _used_after(now: float, schedule_of: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
    _, start, end = schedule_of
    return float(np.maximum(end - np.maximum(start, now), 0.0).sum())


def trials_of(
    name: str,
    executions: dict[str, Execution],
    platforms: Sequence[Sequence[int]],
    draws: int,
    *,
    shares: Sequence[float] = (0.0, 0.1),
    alone: bool = False,
) -> Iterator[Trial]:
    """
    Forecast one execution on all platforms from all that may be known before.

    Parameters
    ----------
    shares
        Shares of the tasks that have ended when the forecasts are made.
    alone
        Whether nothing is known of other workflows.
    """
    random = np.random.default_rng([SEED, list(executions).index(name)])
    own = executions[name]
    foreign = {
        n: one for n, one in executions.items() if one.workflow != own.workflow and not alone
    }
    same = [n for n, one in executions.items() if one.size == own.size and n != name]
    others = [
        n for n, one in executions.items() if one.workflow == own.workflow and one.size != own.size
    ]
    bases: list[tuple[str, list[str]]] = [(NOTHING, [])]
    for label, count in ((ONE, 1), (TWO, 2), (FOUR, 4)):
        if len(same) >= count:
            bases.append((label, list(random.permutation(same)[:count])))
    if others:
        bases.append((OTHER, list(random.permutation(others)[:3])))
    workflow = own.campaign.workflow
    for basis, earlier in bases:
        source = RecordedHistory({n: executions[n] for n in earlier} | foreign)
        names = [f"site{number}" for number in range(2)]
        known = known_runtimes(own.campaign, names, source)
        expected = known.medians()
        expected = np.where(np.isfinite(expected), expected, 1.0)
        rank = upward_ranks(workflow, expected)
        for platform in platforms:
            speeds = (SPEEDS[0], SPEEDS[1] * float(np.exp(HIDDEN * random.standard_normal())))
            truth = schedule(workflow, own.seconds, rank, platform, speeds)
            end = float(truth[2].max())
            purchases = [
                Purchase(
                    slot=Slot(
                        site=f"site{at}",
                        start=0.0,
                        duration=1e9,
                        processors=count,
                        unit_price=1.0,
                        divisible=True,
                    )
                )
                for at, count in enumerate(platform)
            ]
            for share in shares:
                if not share and not earlier and known.basis == "nothing":
                    continue
                progress = progress_at(known, share, truth)
                if len(progress.ended) == len(expected):
                    continue
                forecaster = CampaignForecaster(
                    workflow, known, progress, draws=draws, seed=int(random.integers(2**31))
                )
                # A task that runs stays where it is; the others go where there is room.
                placements = [
                    Placement(
                        i,
                        f"site{truth[0][i]}" if i in progress.elapsed else "",
                        -rank[i],
                        0.0,
                        (),
                    )
                    for i in range(len(expected))
                ]
                forecast = forecaster.of_plan(
                    purchases, placements, dict(zip(names, SPEEDS, strict=True))
                )
                yield Trial(
                    name,
                    own.workflow,
                    basis + (STARTED if share else ""),
                    forecast.end.draws,
                    progress.now,
                    end,
                    known.basis,
                    share,
                    None if forecast.cost is None else forecast.cost.draws,
                    _used_after(progress.now, truth),
                )


@dataclass(slots=True)
class Score:
    """How forecasts came out, one entry for each forecast of each order."""

    workflow: list[str]
    held_90: list[bool]
    held_50: list[bool]
    error: list[float]
    width: list[float]
    place: list[float]
    """Probability that was given to an end as early as the truth."""

    @classmethod
    def empty(cls) -> "Score":
        return cls([], [], [], [], [], [])

    def note(self, trial: Trial, corrected: Distribution) -> None:
        low, lower, middle, upper, high = (
            corrected.quantile(share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)
        )
        self.workflow.append(trial.workflow)
        self.held_90.append(low <= trial.end <= high)
        self.held_50.append(lower <= trial.end <= upper)
        self.error.append(abs(middle / trial.end - 1))
        self.width.append((high - low) / trial.end)
        self.place.append(corrected.probability(trial.end))

    def median(self, what: Sequence[float], workflow: str | None = None) -> float:
        chosen = [
            value
            for value, name in zip(what, self.workflow, strict=True)
            if workflow in (None, name)
        ]
        return float(np.median(chosen)) if chosen else float("nan")


def score_plain(trials: Sequence[Trial], *, prior: bool = False) -> dict[str, Score]:
    """Score forecasts that nothing corrects, or the scores of other, recorded workflows alone."""
    scores: dict[str, Score] = defaultdict(Score.empty)
    for trial in trials:
        known = prior_of(trial) if prior else ()
        scores[trial.basis].note(trial, Distribution.of(trial.draws, prior=known, offset=trial.now))
    return scores


def prior_of(trial: Trial) -> Sequence[EarlierScore]:
    """Return the scores of recorded executions, without those of the trial's own workflow."""
    return recorded_table().scores(trial.known_from, trial.share, trial.workflow).end


def _weight(earlier: Trial, trial: Trial, of_others: float) -> float:
    return 1.0 if earlier.workflow == trial.workflow else of_others


def score_corrected(
    trials: Sequence[Trial],
    orders: int,
    weight_of_others: float = WEIGHT_OF_OTHERS,
    *,
    prior: bool = True,
) -> tuple[dict[str, Score], dict[str, list[float]]]:
    """Score forecasts of campaigns that come one after the other, in several random orders."""
    scores: dict[str, Score] = defaultdict(Score.empty)
    by_order: dict[str, list[float]] = defaultdict(list)
    own = [Distribution.of(one.draws, offset=one.now).score(one.end) for one in trials]
    for order in range(orders):
        seen: dict[str, list[int]] = defaultdict(list)
        held: dict[str, list[bool]] = defaultdict(list)
        for at in np.random.default_rng([SEED, order]).permutation(len(trials)):
            trial = trials[at]
            others = [of for of in seen[trial.basis] if trials[of].execution != trial.execution]
            # Platforms of one execution share its truth: they are one run.
            same = Counter(trials[of].execution for of in others)
            before = [
                EarlierScore(
                    own[of],
                    _weight(trials[of], trial, weight_of_others),
                    1 / same[trials[of].execution],
                )
                for of in others
            ]
            corrected = Distribution.of(
                trial.draws,
                scores=before,
                prior=prior_of(trial) if prior else (),
                offset=trial.now,
            )
            scores[trial.basis].note(trial, corrected)
            held[trial.basis].append(scores[trial.basis].held_90[-1])
            seen[trial.basis].append(at)
        for basis, values in held.items():
            by_order[basis].append(float(np.mean(values)))
    return scores, by_order


def options(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the data."""
    parser.add_argument("--picture", type=Path, help="write the calibration as a picture, .svg")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DATA)))


def main() -> None:
    """Measure, and print the tables."""
    bench = Benchmark(__file__, __doc__, options)
    prefer_machine_code()
    folder = bench.given.data / "executions"
    if not folder.is_dir():
        bench.skip(f"recorded executions: {folder} is not there")
    else:
        measure(bench, folder)
    measure_speed(bench)
    bench.write()


def measure(bench: Benchmark, folder: Path) -> None:
    """Forecast the recorded executions."""
    executions = read_executions(folder)
    names = list(executions)
    if bench.size != "full":
        step = bench.of(1, 4, 12)
        names = names[::step]
    platforms = bench.of(PLATFORMS, PLATFORMS[1:4], PLATFORMS[1:2])
    draws = bench.of(400, 200, 40)
    trials = [one for name in names for one in trials_of(name, executions, platforms, draws)]
    campaigns = len({(one.execution, id(one)) for one in trials})
    plain, first = score_plain(trials), score_plain(trials, prior=True)
    corrected, by_order = score_corrected(trials, bench.of(ORDERS, 5, 2))
    table = bench.table(
        f"{len(names) * len(platforms)} campaigns, {campaigns} forecasts of the end, "
        f"{len(next(iter(by_order.values())))} orders, seed {SEED}",
        "known before",
        "forecasts",
        "90 %, plain",
        "50 %, plain",
        "90 %, first",
        "50 %, first",
        "width, first",
        "90 %",
        "spread",
        "50 %",
        "error",
        "width",
    )
    for basis in sorted(plain):
        mine, raw = corrected[basis], plain[basis]
        table.add(
            basis,
            len(raw.error),
            float(np.mean(raw.held_90)),
            float(np.mean(raw.held_50)),
            float(np.mean(first[basis].held_90)),
            float(np.mean(first[basis].held_50)),
            first[basis].median(first[basis].width),
            float(np.mean(mine.held_90)),
            float(np.std(by_order[basis])),
            float(np.mean(mine.held_50)),
            mine.median(mine.error),
            mine.median(mine.width),
        )
    apart = bench.table("By workflow, corrected", "known before", "workflow", "error", "width")
    for basis in sorted(plain):
        for workflow in sorted(set(corrected[basis].workflow)):
            mine = corrected[basis]
            apart.add(
                basis,
                workflow,
                mine.median(mine.error, workflow),
                mine.median(mine.width, workflow),
            )
    if bench.given.picture is not None:
        draw_calibration(bench.given.picture, {"plain": plain, "corrected": corrected})
    if bench.size == "full":
        aims(bench, corrected)


def draw_calibration(path: Path, scores: dict[str, dict[str, Score]]) -> None:
    """Draw how often ends came no later than told, by the probability that was told for them."""
    import altair

    shares = np.linspace(0.0, 1.0, 41)
    rows = [
        {
            "probability told": float(share),
            "share that came": float(np.mean(np.array(score.place) <= share)),
            "known before": basis,
            "forecasts": name,
        }
        for name, found in scores.items()
        for basis, score in found.items()
        for share in shares
    ]
    base = altair.Chart(altair.Data(values=rows))
    lines = base.mark_line().encode(
        x="probability told:Q", y="share that came:Q", color="known before:N"
    )
    ideal = base.mark_line(color="grey", strokeDash=[4, 4]).encode(
        x="probability told:Q", y="probability told:Q"
    )
    chart = altair.layer(ideal, lines).properties(width=260, height=260)
    chart.facet(column=altair.Column("forecasts:N", sort=["plain", "corrected"])).save(str(path))


def aims(bench: Benchmark, scores: dict[str, Score]) -> None:
    """Print what is asked of the forecasts."""
    figures = []
    for basis in (ONE, TWO, FOUR, OTHER, NOTHING + STARTED):
        found = scores[basis]
        for name, held, aim in (("90 %", found.held_90, 0.9), ("50 %", found.held_50, 0.5)):
            share = float(np.mean(held))
            off = 0.03 if aim == 0.9 else 0.04
            figures.append(at_most(f"{basis}: {name} intervals, off by", abs(share - aim), off))
    one, none = scores[ONE], scores[NOTHING + STARTED]
    for workflow in ("blast", "bwa"):
        figures.append(
            at_most(f"{workflow}: error from one", one.median(one.error, workflow), 0.06)
        )
        figures.append(
            at_most(
                f"{workflow}: width from four by width from none",
                scores[FOUR].median(scores[FOUR].width, workflow)
                / none.median(none.width, workflow),
                1 / 3,
            )
        )
    started = [
        error for basis, found in scores.items() if basis.endswith(STARTED) for error in found.error
    ]
    figures.append(at_most("error when a tenth is done, all", float(np.median(started)), 0.08))
    bench.figures("Aims", figures)


@cache
def _bag(count: int) -> Campaign:
    return Campaign(
        name="bag", workflow=Workflow(tuple(Task(id=f"t{i}", name="t") for i in range(count)))
    )


def measure_speed(bench: Benchmark) -> None:
    """Measure draws and replays of a bag of tasks."""
    count, draws = bench.of((1000, 1000), (1000, 200), (50, 20))
    campaign = _bag(count)
    random = np.random.default_rng(SEED)
    execution = Execution(
        "bag",
        "bag",
        campaign,
        random.lognormal(2.0, 0.5, count),
        np.full(count, np.nan),
        np.full(count, np.nan),
    )
    known = known_runtimes(campaign, ["here"], RecordedHistory({"a": execution}))
    purchases = [Purchase(slot=Slot(site="here", start=0.0, duration=1e9, processors=32))]
    took = []
    for _ in range(3):
        began = time.process_time()
        forecaster = CampaignForecaster(campaign.workflow, known, draws=draws)
        forecaster.of_plan(purchases, (), {"here": 1.0})
        took.append(time.process_time() - began)
    bench.figures(
        f"{draws:,} draws of {count:,} tasks on 32 processors, after the first call",
        [at_most("processor time", min(took[1:]), 1.0, "s")],
    )


if __name__ == "__main__":
    main()
