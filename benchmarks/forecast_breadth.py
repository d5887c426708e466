"""
How well campaigns' ends are foreseen elsewhere than in ``forecasts.py``, and what bounds it.

Tables:

examples
    Executions of ``examples/epidemic`` and ``examples/mosaic`` that are made here and now; each is
    forecast from the others as ``forecasts.py`` does.
behind load
    Recorded executions in one batch job of a real log: the end is the job's wait in the simulated
    cluster and the schedule of the tasks after; the wait is forecast from the queue.
test cluster
    Recorded executions replayed by ``bursar`` under Slurm on this machine, tasks scaled and asleep;
    the forecasts are those that the runs kept in their history.
cold start
    Nothing is known, and the first 2 % of the tasks run alone before all else.
probe
    A few tasks of each kind of another execution are known, and how many tasks it had.
a tenth done
    What a tenth of the tasks says, by what else is known, and what the best forecast could be.
constants
    Executions by constants of the model that were chosen on the other workflows.

Use::

    python benchmarks/forecast_breadth.py [--data FOLDER] [--quick | --smallest] [--json FILE]
        [--only load cold probe tenth constants slurm examples]    # keeps the file's other tables
"""

import argparse
import heapq
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from figures import Benchmark, Table
from waits import LOGS, LiveQueue

import bursar
import forecasts
from bursar.api.planning import resolve_campaign
from bursar.cluster.simulation import simulate
from bursar.compiling import prefer_machine_code
from bursar.forecasts import runtime_draws, runtime_model
from bursar.forecasts.campaign_forecast import CampaignForecaster
from bursar.forecasts.dispatch_replay import ANYWHERE, DispatchProblem, replay_dispatch
from bursar.forecasts.known_runtimes import family_of, known_runtimes
from bursar.formats.trace_files import read_swf
from bursar.history.forecast_records import GRID
from bursar.history.store import History
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BursarError
from bursar.model.plan import Placement, Purchase
from bursar.model.slot import Slot
from bursar.model.task import Exec, Status, Task
from bursar.provisioning.queue_forecaster import project_waits
from bursar.provisioning.wait_forecast import WaitForecast
from bursar.provisioning.wait_prediction import WaitPredictor
from forecasts import (
    FOUR,
    NOTHING,
    ONE,
    OTHER,
    SEED,
    STARTED,
    TWO,
    Execution,
    RecordedHistory,
    Score,
    Trial,
    read_executions,
    schedule,
    score_corrected,
    score_plain,
    trials_of,
    upward_ranks,
)

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {"epidemic": "epidemic/epidemic.pln", "mosaic": "mosaic/mosaic.toml"}
SMALL = ((2,), (4,), (8,), (16,), (4, 8))
"""Processors of the sites that the examples' schedules are made for."""
REPLAYED = {"blast-chameleon-small": 6, "bwa-chameleon-small": 6, "srasearch-chameleon-10a": 400}
"""Executions that run under Slurm, and by what their run times are divided."""
FOLLOWED, SCORED, WARM_UP = 5, 0.1, 2000
"""One job in so many is forecast, of these a share counts, after so many jobs."""
COLD = 0.02
PARTS = ("load", "cold", "probe", "tenth", "constants", "slurm", "examples")
DRIFTS, SIZES, OTHERS = (0.5, 1.0, 2.0), (0.1, 0.25, 0.5), (0.1, 0.3, 1.0)
"""Constants that are tried: those that the model has are the middle ones."""


# Examples, executed here.


def executed(name: str, times: int, folder: Path) -> dict[str, Execution]:
    """Run an example some times, and return what each execution took."""
    path = ROOT / "examples" / EXAMPLES[name]
    history = folder / f"{name}.sqlite"
    for _ in range(times):
        bursar.run(path, runs=folder / "runs", history=history, fresh=True, anyway=True)
    campaign = resolve_campaign(path)
    by_task: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in History(history).rows():
        if row.status is Status.SUCCEEDED:
            by_task[row.execution][row.task] = row
    tasks = tuple(replace(task, runtime=None) for task in campaign.workflow.tasks)
    campaign = replace(campaign, workflow=Workflow(tasks), templates={})
    found = {}
    for number, rows in enumerate(by_task.values()):
        seconds = np.array([max(rows[task.id].seconds, 1e-3) for task in tasks])
        worked = [
            (rows[t.id].user_seconds or 0.0) + (rows[t.id].system_seconds or 0.0) for t in tasks
        ]
        found[f"{name} {number}"] = Execution(
            workflow=name,
            size=name,
            campaign=campaign,
            seconds=seconds,
            busy=np.array(worked) / seconds,
            sizes=np.full(len(tasks), np.nan),
        )
    return found


# Recorded executions behind the load of a log.


def behind_load(
    log: str, data: Path, executions: dict[str, Execution], count: int, draws: int
) -> Iterator[Trial]:
    """Forecast executions that run in batch jobs of a log's stretch, as if each were the job."""
    file, processors = LOGS[log]
    trace = read_swf(data / file)
    result = simulate(trace, processors=processors, policy="easy", early="compress")
    first = int(0.2 * len(trace))
    live = LiveQueue(trace, result.start, result.finish, first)
    predictor, random = WaitPredictor(), np.random.default_rng([SEED, len(log), processors])
    names = [name for name, one in executions.items() if one.workflow in forecasts.REPEATED]
    waiting: list[tuple[float, int]] = []
    found = 0
    for number, job in enumerate(range(first, len(trace))):
        now, width = float(trace.submit[job]), int(trace.processors[job])
        asked = float(trace.estimate[job])
        live.advance(now)
        while waiting and waiting[0][0] <= now:
            at, other = heapq.heappop(waiting)
            predictor.began(str(other), at)
        if width >= 4 and number % FOLLOWED == 0:
            seen = live.projected(now, processors, "easy")
            projection = project_waits(seen, live.ended, width, asked, random)
            waited = predictor.forecast("", width, asked, projection)
            predictor.asked(str(job), "", width, asked, now, projection)
            heapq.heappush(waiting, (float(result.start[job]), job))
            # Days apart, and not before the forecasts of waits have been corrected a while.
            if waited is not None and number >= WARM_UP and random.random() < SCORED:
                name = str(random.choice(names))
                wait = float(result.start[job] - trace.submit[job])
                yield _behind(name, executions, width, waited, wait, draws, log, random)
                found += 1
                if found == count:
                    return
        live.submit(job)


def _behind(
    name: str,
    executions: dict[str, Execution],
    width: int,
    waited: WaitForecast,
    wait: float,
    draws: int,
    log: str,
    random: np.random.Generator,
) -> Trial:
    own = executions[name]
    same = [n for n, one in executions.items() if one.size == own.size and n != name]
    known, rank = _known(name, executions, list(random.permutation(same)[:2]))
    truth = schedule(own.campaign.workflow, own.seconds, rank, (width,), (1.0,))
    forecaster = CampaignForecaster(
        own.campaign.workflow, known, draws=draws, seed=int(random.integers(2**31))
    )
    forecast = forecaster.of_plan(
        _purchases((width,)),
        _placements(rank),
        {"site0": 1.0},
        comes={0: waited.sample(draws, random)},
    )
    end = wait + float(truth[2].max())
    return Trial(name, own.workflow, log, forecast.end.draws, 0.0, end, known.basis)


def _known(
    name: str, executions: dict[str, Execution], earlier: Sequence[str]
) -> tuple[Any, np.ndarray]:
    own = executions[name]
    foreign = {n: one for n, one in executions.items() if one.workflow != own.workflow}
    source = RecordedHistory({n: executions[n] for n in earlier} | foreign)
    known = known_runtimes(own.campaign, ["site0", "site1"], source)
    expected = known.medians()
    expected = np.where(np.isfinite(expected), expected, 1.0)
    return known, upward_ranks(own.campaign.workflow, expected)


def _purchases(platform: Sequence[int]) -> list[Purchase]:
    return [
        Purchase(slot=Slot(site=f"site{at}", start=0.0, duration=1e9, processors=count))
        for at, count in enumerate(platform)
    ]


def _placements(rank: np.ndarray) -> list[Placement]:
    return [Placement(i, "", float(-rank[i]), 0.0, ()) for i in range(len(rank))]


# Replays by the product itself under Slurm.


def replayed(executions: dict[str, Execution], times: int, folder: Path) -> list[tuple[Any, Any]]:
    """Run executions under Slurm on this machine; return what the runs forecast, and the truth."""
    from bursar_devtools.testgrid.slurm import SlurmCluster

    history = folder / "replays.sqlite"
    cluster = SlurmCluster.up(folder / "slurm", name="replay", nodes=2, cpus=4)
    try:
        sites = folder / "sites.toml"
        sites.write_text(
            f'[site.c]\nkind = "slurm"\nprocessors = {cluster.processors}\nqueue = "main"\n'
            f'unit_price = "2 SU/core-hour"\nreach = "127.0.0.1"\n'
            f'environment = {{ SLURM_CONF = "{cluster.environment["SLURM_CONF"]}" }}\n'
        )
        for size, divisor in REPLAYED.items():
            members = [one for one in executions.values() if one.size == size]
            for own in members[:times]:
                campaign = asleep(own, size, divisor)
                bursar.run(
                    campaign, sites, runs=folder / "runs", history=history, fresh=True, anyway=True
                )
    finally:
        cluster.down()
    return [(one.forecast, one) for one in History(history).forecasts()]


def asleep(own: Execution, name: str, divisor: float) -> Campaign:
    """Return a campaign whose tasks sleep for a part of what those of an execution took."""
    tasks, parents = own.campaign.workflow.tasks, own.campaign.workflow.parents
    sleepers = tuple(
        Task(
            id=task.id,
            name=task.name,
            steps=(Exec(("sleep", f"{seconds / divisor:.3f}")),),
            after=tuple(tasks[at].id for at in before),
        )
        for task, seconds, before in zip(tasks, own.seconds, parents, strict=True)
    )
    return Campaign(name=name, workflow=Workflow(sleepers))


# A cold start.


def cold_start(
    executions: dict[str, Execution], platforms: Sequence[Sequence[int]], draws: int
) -> Iterator[tuple[str, float, Trial]]:
    """Run the first tasks of each execution alone; yield what that cost, and the forecast then."""
    random = np.random.default_rng(SEED)
    for name, own in executions.items():
        known, rank = _known(name, executions, [])
        workflow = own.campaign.workflow
        for platform in platforms:
            speeds = forecasts.SPEEDS[: len(platform)]
            whole = schedule(workflow, own.seconds, rank, platform, speeds)
            count = max(1, int(np.ceil(COLD * len(rank))))
            first = np.lexsort((np.arange(len(rank)), whole[1]))[:count]
            # Those that are first to start; what they need ended earlier, so that it is among them.
            alone = float(whole[2][first].max())
            left = np.where(np.isin(np.arange(len(rank)), first), 0.0, own.seconds)
            site, start, end = schedule(workflow, left, rank, platform, speeds)
            site[first], start[first], end[first] = (one[first] for one in whole)
            rest = np.setdiff1d(np.arange(len(rank)), first)
            start[rest], end[rest] = start[rest] + alone, end[rest] + alone
            if not len(rest):
                continue
            progress = forecasts.progress_when(known, alone, (site, start, end))
            forecaster = CampaignForecaster(
                workflow, known, progress, draws=draws, seed=int(random.integers(2**31))
            )
            names = [f"site{at}" for at in range(len(platform))]
            forecast = forecaster.of_plan(
                _purchases(platform),
                _placements(rank),
                dict(zip(names, speeds, strict=True)),
            )
            cost = float(end.max() / whole[2].max() - 1)
            trial = Trial(
                *(name, own.workflow, "cold", forecast.end.draws, alone, float(end.max())),
                known_from=known.basis,
                share=COLD,
            )
            yield own.workflow, cost, trial


# A probe.


def few_of_each(own: Execution, each: int, random: np.random.Generator) -> Execution:
    """Return an execution of which only so many tasks of each kind were observed."""
    members: dict[str, list[int]] = defaultdict(list)
    for at, task in enumerate(own.campaign.workflow.tasks):
        members[task.name].append(at)
    chosen = sorted(at for found in members.values() for at in random.permutation(found)[:each])
    part = tuple(replace(own.campaign.workflow.tasks[at], after=(), inputs=()) for at in chosen)
    return replace(
        own,
        campaign=replace(own.campaign, workflow=Workflow(part)),
        seconds=own.seconds[chosen],
        busy=own.busy[chosen],
        sizes=own.sizes[chosen],
    )


def after_probe(
    executions: dict[str, Execution],
    platforms: Sequence[Sequence[int]],
    draws: int,
    each: int,
) -> Iterator[Trial]:
    """Forecast executions from a few tasks of another execution of their size."""
    for number, (name, own) in enumerate(executions.items()):
        random = np.random.default_rng([SEED, number])
        same = [n for n, one in executions.items() if one.size == own.size and n != name]
        if not same:
            continue
        other = str(random.permutation(same)[0])
        earlier = {other: few_of_each(executions[other], each, random)}
        foreign = {n: one for n, one in executions.items() if one.workflow != own.workflow}
        source = RecordedHistory(earlier | foreign, {other: len(own.seconds)})
        known = known_runtimes(own.campaign, ["site0", "site1"], source)
        expected = known.medians()
        rank = upward_ranks(own.campaign.workflow, np.where(np.isfinite(expected), expected, 1.0))
        for platform in platforms:
            speeds = forecasts.SPEEDS[: len(platform)]
            names = [f"site{at}" for at in range(len(platform))]
            truth = schedule(own.campaign.workflow, own.seconds, rank, platform, speeds)
            for share in (0.0, 0.1):
                progress = forecasts.progress_at(known, share, truth)
                forecaster = CampaignForecaster(
                    own.campaign.workflow,
                    known,
                    progress,
                    draws=draws,
                    seed=int(random.integers(2**31)),
                )
                forecast = forecaster.of_plan(
                    _purchases(platform), _placements(rank), dict(zip(names, speeds, strict=True))
                )
                basis = f"{each} of each kind" + (STARTED if share else "")
                end = float(truth[2].max())
                yield Trial(
                    *(name, own.workflow, basis, forecast.end.draws, progress.now, end),
                    known_from=known.basis,
                    share=share,
                )


# What a tenth says.


def with_estimates(executions: dict[str, Execution]) -> dict[str, Execution]:
    """Return executions with run times stated for each kind, wrong by a factor of 0.3 to 3."""
    random = np.random.default_rng([SEED, 3])
    found = {}
    for name, own in executions.items():
        tasks = own.campaign.workflow.tasks
        wrong: dict[str, float] = {}
        usual: dict[str, list[float]] = defaultdict(list)
        for task, seconds in zip(tasks, own.seconds, strict=True):
            wrong.setdefault(task.name, float(np.exp(random.uniform(np.log(0.3), np.log(3)))))
            usual[task.name].append(seconds)
        stated = tuple(
            replace(task, runtime=wrong[task.name] * float(np.median(usual[task.name])))
            for task in tasks
        )
        campaign = replace(own.campaign, workflow=Workflow(stated))
        found[name] = replace(own, campaign=campaign)
    return found


class _Begun(NamedTuple):
    """
    An execution on a platform when a tenth of its tasks has ended.

    Parameters
    ----------
    kinds
        Number of the kind of each task.
    rank, speeds
        Order of the tasks, and speeds of the sites.
    truth
        See :func:`forecasts.schedule`.
    now
        Seconds since the begin.
    begun
        Whether a task of its kind has begun, for each task.
    """

    name: str
    platform: Sequence[int]
    kinds: np.ndarray
    rank: np.ndarray
    speeds: Sequence[float]
    truth: tuple[np.ndarray, np.ndarray, np.ndarray]
    now: float
    begun: np.ndarray


def _begun(
    name: str, executions: dict[str, Execution], platform: Sequence[int], rank: np.ndarray
) -> _Begun:
    own = executions[name]
    tasks = own.campaign.workflow.tasks
    kinds = np.unique([family_of(task.name) for task in tasks], return_inverse=True)[1]
    speeds = forecasts.SPEEDS[: len(platform)]
    truth = schedule(own.campaign.workflow, own.seconds, rank, platform, speeds)
    now = float(np.sort(truth[2])[max(1, int(np.ceil(0.1 * len(rank)))) - 1])
    begun = np.isin(kinds, np.unique(kinds[truth[1] < now]))
    return _Begun(name, platform, kinds, rank, speeds, truth, now, begun)


class Bound(NamedTuple):
    """
    What forecasters tell of one campaign's end that know more than any user's can.

    Parameters
    ----------
    end
        The truth, seconds.
    told
        Draws of the end by what the forecaster knows: :data:`ORACLES`.
    """

    workflow: str
    end: float
    told: dict[str, np.ndarray]


KNOWN, FROM_ENDED = "bound, begun known", "bound, from the ended"
WORD = " (word)"
ORACLES = (FROM_ENDED, KNOWN, FROM_ENDED + WORD, KNOWN + WORD)
"""
The distribution of each kind that has begun is known as it is in this execution, without which task
takes how long; or its shape is, and its level as well as tasks tell of which as many as have ended
were chosen at random. Both also with the user's estimates of the other kinds.
"""


def best_possible(
    executions: dict[str, Execution],
    stated: dict[str, Execution],
    platforms: Sequence[Sequence[int]],
    draws: int,
) -> list[Bound]:
    """
    Return what could be told when a tenth of the tasks has ended.

    A kind that has not begun takes, beside the mean of those that have, what a kind of another
    workflow has taken, any workflow as likely as another; or its estimate, which is wrong by a
    factor of 0.3 to 3.
    """
    random = np.random.default_rng([SEED, 4])
    at: list[_Begun] = []
    beside: dict[str, list[float]] = defaultdict(list)
    for name, own in executions.items():
        _, rank = _known(name, executions, [])
        for platform in platforms:
            seen = _begun(name, executions, platform, rank)
            at.append(seen)
            mean = own.seconds[seen.begun].mean()
            for kind in np.unique(seen.kinds[~seen.begun]):
                others = own.seconds[seen.kinds == kind].mean()
                beside[own.workflow].append(float(np.log(others / mean)))
    found = []
    for seen in at:
        own = executions[seen.name]
        words = np.array([task.runtime for task in stated[seen.name].campaign.workflow.tasks])
        # A workflow alone has no others: its kinds are as long as each other.
        pools = [v for name, v in beside.items() if name != own.workflow] or [[0.0]]
        mean = own.seconds[seen.begun].mean()
        drawn = _unlike_which(own, seen, draws, random)
        hidden = np.tile(own.seconds, (draws, 1))
        worded = hidden.copy()
        for kind in np.unique(seen.kinds[~seen.begun]):
            here = seen.kinds == kind
            chosen = random.integers(len(pools), size=draws)
            factors = [random.choice(pools[number]) for number in chosen]
            hidden[:, here] = mean * np.exp(factors)[:, None]
            error = random.uniform(-np.log(3), -np.log(0.3), draws)
            worded[:, here] = words[here][None, :] * np.exp(error)[:, None]
        begun = seen.begun[None, :]
        estimated = drawn * np.exp(_level_errors(own, seen, random))[None, :]
        told = {
            name: np.maximum(_ends(own, seen, np.where(begun, known, guessed)), seen.now)
            for name, known, guessed in zip(
                ORACLES,
                (estimated, drawn, estimated, drawn),
                (hidden, hidden, worded, worded),
                strict=True,
            )
        }
        found.append(Bound(own.workflow, float(seen.truth[2].max()), told))
    return found


def _level_errors(own: Execution, seen: _Begun, random: np.random.Generator) -> np.ndarray:
    """Return by how much (logarithm) the levels of begun kinds are mistaken, for each task left."""
    ended = seen.truth[2] <= seen.now
    errors = np.zeros(len(ended))
    for kind in np.unique(seen.kinds[seen.begun]):
        here = seen.kinds == kind
        count = max(int((here & ended).sum()), 1)
        deviation = float(np.std(np.log(own.seconds[here])))
        errors[here & ~ended] = deviation / np.sqrt(count) * random.standard_normal()
    return errors


def _unlike_which(
    own: Execution, seen: _Begun, draws: int, random: np.random.Generator
) -> np.ndarray:
    """Return run times of tasks of begun kinds, drawn from all of their kind in this execution."""
    site, start, end = seen.truth
    drawn = np.tile(own.seconds, (draws, 1))
    for task in np.flatnonzero(seen.begun & (end > seen.now)):
        times = own.seconds[seen.kinds == seen.kinds[task]]
        if start[task] < seen.now:
            elapsed = (seen.now - start[task]) * seen.speeds[site[task]]
            times = times[times >= min(elapsed, times.max())]
        drawn[:, task] = random.choice(times, draws)
    return drawn


def _ends(own: Execution, seen: _Begun, seconds: np.ndarray) -> np.ndarray:
    """Return the end of each draw of run times, as :func:`forecasts.schedule` has it."""
    workflow = own.campaign.workflow
    order = np.argsort(-seen.rank, kind="stable")
    place = np.argsort(order)
    below = [[int(place[child]) for child in workflow.children[task]] for task in order]
    count = len(order)
    problem = DispatchProblem(
        lease=np.full(count, ANYWHERE),
        width=np.ones(count, np.int64),
        parents=np.array([len(workflow.parents[task]) for task in order]),
        first_child=np.cumsum([0, *map(len, below)]),
        children=np.array([child for one in below for child in one], np.int64),
        processors=np.array(seen.platform),
    )
    shape = len(seconds), len(seen.platform)
    slowness = np.tile(1 / np.array(seen.speeds), (len(seconds), 1))
    runtimes = np.ascontiguousarray(seconds[:, order])
    return replay_dispatch(problem, runtimes, np.zeros(shape), slowness).end


def errors_in_hindsight(bounds: Sequence[Bound], oracle: str) -> np.ndarray:
    """Return the error of each campaign, by the quantile that turns out best for all of them."""
    shares = np.linspace(0.05, 0.95, 19)
    errors = np.array(
        [np.abs(np.quantile(one.told[oracle], shares) / one.end - 1) for one in bounds]
    )
    return np.asarray(errors[:, np.median(errors, axis=0).argmin()])


FORM = ("tasks", "parents", "children", "place", "share of all tasks")
"""What the graph says of a kind, before it has begun; all but the place as logarithms."""


def length_by_form(bench: Benchmark, executions: dict[str, Execution]) -> None:
    """Show how well the graph tells, learned on other workflows, how long later kinds are."""
    rows: list[tuple[str, float, list[float]]] = []
    for name, own in executions.items():
        workflow = own.campaign.workflow
        _, rank = _known(name, executions, [])
        seen = _begun(name, executions, (8,), rank)
        depth = np.zeros(len(rank))
        for task in workflow.order:
            depth[task] = 1 + max((depth[parent] for parent in workflow.parents[task]), default=0)
        parents = np.array([len(found) for found in workflow.parents])
        children = np.array([len(found) for found in workflow.children])
        mean = own.seconds[seen.begun].mean()
        for kind in np.unique(seen.kinds[~seen.begun]):
            here = seen.kinds == kind
            form = [
                np.log(here.sum()),
                np.log(max(parents[here].mean(), 1)),
                np.log1p(children[here].mean()),
                depth[here].mean() / depth.max(),
                np.log(here.mean()),
            ]
            rows.append((own.workflow, float(np.log(own.seconds[here].mean() / mean)), form))
    names = np.array([row[0] for row in rows])
    longer = np.array([row[1] for row in rows])
    forms = np.array([[1.0, *row[2]] for row in rows])
    weight = np.array([1 / (names == name).sum() for name in names])
    table = bench.table(
        "Length of kinds that have not begun, by the form of the graph, learned on the other "
        "workflows",
        *("learned from", "missed by a factor of"),
    )
    chosen = {"nothing": [0], "all": list(range(len(FORM) + 1))}
    chosen |= {name: [0, number + 1] for number, name in enumerate(FORM)}
    for label, columns in chosen.items():
        squares = []
        for workflow in sorted(set(names)):
            others = names != workflow
            if not others.any():
                continue
            root = np.sqrt(weight[others])[:, None]
            learned = forms[others][:, columns] * root
            # A little ridge: some forms are nearly the same.
            normal = learned.T @ learned + 0.05 * np.eye(len(columns))
            fit = np.linalg.solve(normal, learned.T @ (longer[others] * root[:, 0]))
            missed = longer[~others] - forms[~others][:, columns] @ fit
            squares.append(float((missed**2).mean()))
        table.add(label, float(np.exp(np.sqrt(np.mean(squares)))) if squares else 1.0)


# Constants that are chosen on the other workflows.


@contextmanager
def constants(drift: float, size: float, between: dict[str, float]) -> Iterator[None]:
    """Put constants in the place of the model's."""
    kept = runtime_draws.DRIFT, runtime_draws.SIZE_EFFECT, dict(runtime_model.SPREAD_BETWEEN)
    runtime_draws.DRIFT, runtime_draws.SIZE_EFFECT = drift, size
    runtime_model.SPREAD_BETWEEN.update(between)
    try:
        yield
    finally:
        runtime_draws.DRIFT, runtime_draws.SIZE_EFFECT = kept[:2]
        runtime_model.SPREAD_BETWEEN.update(kept[2])


def spread_between(executions: Sequence[Execution]) -> dict[str, float]:
    """Return how kinds of each class differ between executions of one size, in the middle."""
    levels: dict[tuple[str, str], list[float]] = defaultdict(list)
    busy: dict[str, list[float]] = defaultdict(list)
    for own in executions:
        names = np.array([task.name for task in own.campaign.workflow.tasks])
        for name in np.unique(names):
            here = names == name
            # Less than a fifth of the time says more of clocks than of machines.
            if own.seconds[here].sum() > 0.05 * own.seconds.sum():
                levels[own.size, name].append(float(np.median(np.log(own.seconds[here]))))
                busy[name].append(float(np.nanmean(own.busy[here])))
    found: dict[str, list[float]] = defaultdict(list)
    for (_, name), values in levels.items():
        if len(values) > 1:
            of = "computes" if np.mean(busy[name]) >= runtime_model.BUSY else "waits"
            found[of].append(max(float(np.std(values, ddof=1)), 0.01))
    return {name: float(np.exp(np.mean(np.log(values)))) for name, values in found.items()}


def loss(trials: Sequence[Trial]) -> float:
    """Return the mean loss of quantiles of the logarithm of the end (pinball)."""
    shares = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    total = []
    for one in trials:
        told = np.log(np.quantile(one.draws, shares) + one.now)
        over = np.log(one.end) - told
        total.append(float(np.maximum(shares * over, (shares - 1) * over).mean()))
    return float(np.mean(total)) if total else 0.0


def chosen_elsewhere(
    bench: Benchmark, executions: dict[str, Execution], platforms: Any, draws: int
) -> None:
    """Compare the model's constants with those chosen, for each workflow, on the others."""
    workflows = sorted({one.workflow for one in executions.values()})
    platforms = platforms[::2]
    grid = [(drift, size) for drift in DRIFTS for size in SIZES]
    own = spread_between(list(executions.values()))
    trials: dict[tuple[float, float], list[Trial]] = {}
    for drift, size in grid:
        with constants(drift, size, own):
            trials[drift, size] = list(_all_trials(executions, platforms, draws))
    table = bench.table(
        "Constants chosen on the other workflows (drift, size effect, spread of kinds that compute"
        " and that wait)",
        *("workflow", "drift", "size effect", "computes", "waits"),
    )
    honest: list[Trial] = []
    for workflow in workflows:
        others = {
            setting: loss([one for one in found if one.workflow != workflow])
            for setting, found in trials.items()
        }
        drift, size = min(others, key=lambda setting: others[setting])
        between = spread_between([o for o in executions.values() if o.workflow != workflow])
        table.add(workflow, drift, size, between.get("computes"), between.get("waits"))
        with constants(drift, size, between):
            mine = {n: one for n, one in executions.items() if one.workflow == workflow}
            honest += [t for n in mine for t in trials_of(n, executions, platforms, draws)]
    shipped = list(_all_trials(executions, platforms, draws))
    table = _coverage_table(bench, "As the model has them, and chosen on the other workflows")
    for label, found, weight in (
        ("as they are", shipped, None),
        ("chosen elsewhere", honest, OTHERS),
    ):
        _add_coverage(table, label, _scored(found, weight, bench.of(10, 3, 2)))


def _scored(trials: list[Trial], weights: Sequence[float] | None, orders: int) -> dict[str, Score]:
    """Score trials, the weight of others' scores chosen on the other workflows where asked."""
    if weights is None:
        return score_corrected(trials, orders)[0]
    found = {}
    for weight in weights:
        found[weight] = score_corrected(trials, orders, weight)[0]
    made: dict[str, Score] = defaultdict(Score.empty)
    for workflow in sorted({one.workflow for one in trials}):

        def off(weight: float, mine: str = workflow) -> float:
            held = [
                [ok for ok, name in zip(score.held_90, score.workflow, strict=True) if name != mine]
                for score in found[weight].values()
            ]
            return float(np.mean([abs(float(np.mean(one)) - 0.9) for one in held if one] or [0.0]))

        best = found[min(found, key=off)]
        for basis, score in best.items():
            for field in ("held_90", "held_50", "error", "width", "place"):
                values = getattr(score, field)
                getattr(made[basis], field).extend(
                    v for v, n in zip(values, score.workflow, strict=True) if n == workflow
                )
            made[basis].workflow.extend(n for n in score.workflow if n == workflow)
    return made


def _all_trials(
    executions: dict[str, Execution], platforms: Sequence[Sequence[int]], draws: int
) -> Iterator[Trial]:
    for name in executions:
        yield from trials_of(name, executions, platforms, draws)


# Tables.


def _coverage_table(bench: Benchmark, title: str) -> Table:
    return bench.table(
        title, *("known before", "forecasts", "90 %", "50 %", "error", "width of 90 %")
    )


def _add_coverage(table: Table, label: str, scores: dict[str, Score], count: int = 0) -> None:
    for basis in sorted(scores):
        mine = scores[basis]
        table.add(
            f"{label}: {basis}" if label else basis,
            count or len(mine.error),
            float(np.mean(mine.held_90)),
            float(np.mean(mine.held_50)),
            mine.median(mine.error),
            mine.median(mine.width),
        )


def examples(bench: Benchmark, draws: int) -> None:
    """Execute the examples, and forecast each execution from the others."""
    times = bench.of(6, 3, 0)
    if not times:
        bench.skip("executions of the examples: they take minutes")
        return
    found: dict[str, Execution] = {}
    # The examples' programs want the packages of this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="bursar-forecasts-") as folder:
        for name in EXAMPLES:
            found |= executed(name, times, Path(folder))
    trials = [one for name in found for one in trials_of(name, found, SMALL, draws)]
    table = _coverage_table(
        bench,
        f"Epidemic and mosaic, {times} executions of each: {len(found) * len(SMALL)} campaigns, "
        f"{len(trials)} forecasts",
    )
    _add_coverage(table, "plain", score_plain(trials))
    _add_coverage(table, "first", score_plain(trials, prior=True))
    alone, _ = score_corrected(trials, bench.of(20, 5, 2), prior=False)
    _add_coverage(table, "own scores only", alone)
    scores, _ = score_corrected(trials, bench.of(20, 5, 2))
    _add_coverage(table, "corrected", scores)
    table = bench.table(
        "Epidemic and mosaic, corrected", "campaign: known before", "error", "width"
    )
    for name in EXAMPLES:
        for basis, score in sorted(scores.items()):
            if name in score.workflow:
                table.add(
                    f"{name}: {basis}",
                    score.median(score.error, name),
                    score.median(score.width, name),
                )


def load(bench: Benchmark, data: Path, executions: dict[str, Execution], draws: int) -> None:
    """Forecast executions that wait behind the jobs of logs."""
    count = bench.of(60, 15, 3)
    trials = [
        one
        for log in bench.of(("KTH", "CTC"), ("KTH",), ("KTH",))
        for one in behind_load(log, data, executions, count, draws)
    ]
    table = _coverage_table(
        bench, f"Behind the load of a log, EASY, from 2 executions: {len(trials)} campaigns"
    )
    _add_coverage(table, "plain", score_plain(trials))
    _add_coverage(table, "first", score_plain(trials, prior=True))
    orders = bench.of(20, 5, 2)
    _add_coverage(table, "own scores only", score_corrected(trials, orders, prior=False)[0])
    _add_coverage(table, "corrected", score_corrected(trials, orders)[0])


def slurm(bench: Benchmark, executions: dict[str, Execution]) -> None:
    """Replay executions under Slurm, and see what the runs forecast."""
    times = bench.of(5, 2, 0)
    if not times:
        bench.skip("replays under Slurm: they take minutes")
        return
    with tempfile.TemporaryDirectory(prefix="bursar-forecasts-") as folder:
        try:
            kept = replayed(executions, times, Path(folder))
        except BursarError as problem:
            bench.skip(f"replays under Slurm: {problem}")
            return
    table = bench.table(
        f"Replays under Slurm on this machine, {times} of each of {len(REPLAYED)} executions: "
        "what the runs forecast, each after those before",
        *("share done, known from", "forecasts", "90 %", "50 %", "error"),
    )
    rows: dict[str, list[tuple[bool, bool, float]]] = defaultdict(list)
    for forecast, whole in kept:
        if whole.truth.end is None:
            continue
        told = dict(zip(GRID, forecast.end, strict=True))
        end = whole.truth.end
        rows[f"{forecast.share:.0%}, {forecast.basis}"].append(
            (
                told[0.05] <= end <= told[0.95],
                told[0.25] <= end <= told[0.75],
                abs(told[0.5] / end - 1),
            )
        )
    for label, found in sorted(rows.items()):
        held_90, held_50, error = zip(*found, strict=True)
        table.add(
            label,
            len(found),
            float(np.mean(held_90)),
            float(np.mean(held_50)),
            float(np.median(error)),
        )


def cold(bench: Benchmark, executions: dict[str, Execution], platforms: Any, draws: int) -> None:
    """Show what a cold start costs."""
    found = list(cold_start(executions, platforms, draws))
    table = bench.table(
        f"Cold start: the first {COLD:.0%} of the tasks alone, {len(found)} campaigns",
        *(
            "workflow",
            "campaigns",
            "longer, median",
            "longer, 90 %",
            "error then",
            "90 %, plain",
            "90 %",
            "width of 90 %",
        ),
    )
    plain = score_plain([trial for _, _, trial in found])["cold"]
    first = score_plain([trial for _, _, trial in found], prior=True)["cold"]
    for workflow in (*sorted({name for name, _, _ in found}), None):
        costs = [cost for name, cost, _ in found if workflow in (None, name)]
        held, held_first = (
            [
                ok
                for ok, name in zip(one.held_90, one.workflow, strict=True)
                if workflow in (None, name)
            ]
            for one in (plain, first)
        )
        table.add(
            workflow or "all",
            len(costs),
            float(np.median(costs)),
            float(np.quantile(costs, 0.9)),
            first.median(first.error, workflow),
            float(np.mean(held)),
            float(np.mean(held_first)),
            first.median(first.width, workflow),
        )


def probe(bench: Benchmark, executions: dict[str, Execution], platforms: Any, draws: int) -> None:
    """Show what a few tasks of each kind say."""
    table = _coverage_table(bench, "After a probe, for a user without scores")
    for each in (2, 3, 8):
        trials = list(after_probe(executions, platforms, draws, each))
        _add_coverage(table, "plain", score_plain(trials))
        _add_coverage(table, "first", score_plain(trials, prior=True))


def tenth(bench: Benchmark, executions: dict[str, Execution], platforms: Any, draws: int) -> None:
    """Show the error after a tenth of the tasks, by what else is known."""
    length_by_form(bench, executions)
    table = bench.table(
        "A tenth of the tasks done: median error of the 50 % figure, corrected",
        *("workflow", "nothing else", *ORACLES[:2], "user's word", *ORACLES[2:]),
        *("another size", "1 run", "2 runs", "4 runs"),
    )
    orders = bench.of(10, 3, 2)
    plain, _ = score_corrected(list(_all_trials(executions, platforms, draws)), orders)
    stated = with_estimates(executions)
    mine = [one for one in _all_trials(stated, platforms, draws) if one.basis == NOTHING + STARTED]
    told = score_corrected(mine, orders)[0][NOTHING + STARTED]
    bounds = best_possible(executions, stated, platforms, bench.of(400, 100, 20))
    errors = {oracle: errors_in_hindsight(bounds, oracle) for oracle in ORACLES}
    for workflow in (*sorted({one.workflow for one in executions.values()}), None):
        rows = np.array([workflow in (None, one.workflow) for one in bounds])
        best = {oracle: float(np.median(found[rows])) for oracle, found in errors.items()}
        cells: list[float | None] = [
            plain[NOTHING + STARTED].median(plain[NOTHING + STARTED].error, workflow),
            *(best[oracle] for oracle in ORACLES[:2]),
            told.median(told.error, workflow),
            *(best[oracle] for oracle in ORACLES[2:]),
        ]
        for basis in (OTHER, ONE, TWO, FOUR):
            score = plain.get(basis + STARTED)
            value = float("nan") if score is None else score.median(score.error, workflow)
            cells.append(None if np.isnan(value) else value)
        table.add(workflow or "all", *cells)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the data."""
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", forecasts.DATA))
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="measure these, keep the file's other tables"
    )


def main() -> None:
    """Measure, and print the tables."""
    bench = Benchmark(__file__, __doc__, options)
    prefer_machine_code()
    draws = bench.of(400, 200, 40)
    chosen = bench.given.only or PARTS
    folder = bench.given.data / "executions"
    if folder.is_dir():
        executions = read_executions(folder)
        if bench.size == "smallest":
            executions = {n: one for n, one in executions.items() if one.workflow == "blast"}
        platforms = bench.of(forecasts.PLATFORMS, forecasts.PLATFORMS[1:3], ((8,),))
        parts: dict[str, Callable[[], None]] = {
            "load": lambda: load(bench, bench.given.data, executions, draws),
            "cold": lambda: cold(bench, executions, platforms, draws),
            "probe": lambda: probe(bench, executions, platforms, draws),
            "tenth": lambda: tenth(bench, executions, platforms, bench.of(200, 100, 40)),
            "constants": lambda: chosen_elsewhere(
                bench, executions, platforms, bench.of(200, 50, 20)
            ),
            "slurm": lambda: slurm(bench, executions),
        }
        for name, measure in parts.items():
            if name in chosen:
                measure()
    else:
        bench.skip(f"recorded executions: {folder} is not there")
    if "examples" in chosen:
        examples(bench, draws)
    if bench.given.only and bench.given.json is not None and bench.given.json.exists():
        bench.keep_others(json.loads(bench.given.json.read_text()))
    bench.write()


if __name__ == "__main__":
    main()
