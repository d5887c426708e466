"""
Choosing processors by odds, beside choosing by point estimates with and without margins.

A thousand campaigns of 20 to 60 tasks of one to three kinds. Users state run times that are wrong
by a factor between 0.3 and 3 for each kind; one task in five is a straggler and takes two to four
times as long; executions of a kind differ as a whole. Each user has run the campaign once to five
times. On offer are two sites, one dear and fast, with up to 16 processors each, paid from start to
last use. Each rule picks processors for a deadline that the picked tasks could keep with the median
run times somewhere between the fastest and a middling choice; then the tasks take what they take.

Rules: the user's word; the same with 20 % and 50 % on top; the word, and after a quarter of the
tasks a second choice by what these took (adaptive); the median of earlier runs, without and with
margins; and the odds.

Two further tables: how often intervals of ends hold where processors come out of a batch queue,
whose waits are known from earlier ones alone (:class:`WaitPredictor`); and how often strategies
keep deadlines, told only the medians of earlier runs, and with the spare time that their odds need.
The truth of a strategy is the strategy carried out with run times that it was not told, those of
ten executions: kept is the mean over campaigns of the share that kept the deadline.

Last, bags by strategies and by a pool on two clusters under Slurm on this machine, whose jobs
sleep: what was forecast at the begin, and what came.

Use::

    python benchmarks/deciding.py [--quick]
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from figures import Benchmark, Figure, at_least, at_most

import bursar
from bursar.api.job_batches import JobBatches
from bursar.api.known_campaign import ForeseenCampaign
from bursar.api.strategy_forecasts import StrategyForecasts
from bursar.api.strategy_quotes import NOTHING_YET, simulate_strategy
from bursar.broker.strategies import Named
from bursar.broker.strategy_simulation import StrategyDraw, StrategySimulationResult
from bursar.compiling import prefer_machine_code
from bursar.forecasts.campaign_forecast import CampaignForecaster
from bursar.forecasts.dispatch_replay import ANYWHERE, DispatchProblem, replay_dispatch
from bursar.forecasts.known_runtimes import KnownRuntimes
from bursar.forecasts.runtime_draws import CampaignTasks
from bursar.forecasts.runtime_model import RuntimeColumns, learn_runtimes
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import BursarError
from bursar.model.plan import Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Exec, Task
from bursar.provisioning.wait_prediction import WaitPredictor

SEED = 4
CONFIDENCE = 0.9
SPEEDS = (1.0, 2.0)
PRICES = (1.0, 3.0)
"""For a processor and a second."""
COUNTS = (0, 1, 2, 4, 8, 16)
CHOICES = [(a, b) for a in COUNTS for b in COUNTS if a + b]
SITE_SPEEDS = dict(zip("ab", SPEEDS, strict=True))
SITES = tuple(
    SiteFacts(name=name, processors=16, speed=speed, unit_price=price)
    for name, speed, price in zip("ab", SPEEDS, PRICES, strict=True)
)
STRAGGLERS = 0.2
DRAWS = 300


@dataclass(frozen=True, slots=True)
class Case:
    """
    A campaign: kinds of its tasks, what they take, what is stated, and what is known.

    Parameters
    ----------
    again
        Draws what the tasks take in another execution.
    """

    kind: np.ndarray
    seconds: np.ndarray
    again: Callable[[np.random.Generator], np.ndarray]
    stated: np.ndarray
    known: KnownRuntimes
    earlier: RuntimeColumns
    deadline: float


def draw_case(random: np.random.Generator, others: Sequence[RuntimeColumns]) -> Case:
    """Draw a campaign, its history and its truth; other campaigns are known, too."""
    kinds = int(random.integers(1, 4))
    count = int(random.integers(20, 61))
    kind = random.integers(0, kinds, count)
    level = random.normal(4.0, 0.8, kinds)
    within = random.uniform(0.05, 0.3, kinds)
    between = random.uniform(0.03, 0.2)

    def execution(random: np.random.Generator) -> np.ndarray:
        whole = between * random.standard_normal()
        apart = 0.5 * between * random.standard_normal(kinds)
        times = np.exp(level[kind] + whole + apart[kind] + within[kind] * random.normal(size=count))
        slow = random.random(count) < STRAGGLERS
        return np.where(slow, times * random.uniform(2.0, 4.0, count), times)

    earlier = [execution(random) for _ in range(int(random.integers(1, 6)))]
    own = to_columns(
        np.tile(kind, len(earlier)), np.repeat(np.arange(len(earlier)), count), earlier
    )
    columns = joined([own, *others], kinds)
    model = learn_runtimes(columns, int(columns.kind.max()) + 1, 2)
    known = KnownRuntimes(
        model=model,
        tasks=CampaignTasks(
            kind=kind,
            features=np.zeros((count, 0)),
            estimate=np.full(count, np.nan),
            elapsed=np.zeros(count),
            tries=np.ones(count, np.int64),
        ),
        kinds=tuple(f"k{number}" for number in range(kinds)),
        sites={"a": 0, "b": 1},
        observed=count * len(earlier),
    )
    error = np.exp(random.uniform(np.log(0.3), np.log(3.0), kinds))
    typical = np.exp(level)[kind]
    fastest, _ = outcome(typical, (16, 16))
    middling, _ = outcome(typical, CHOICES[int(random.integers(len(CHOICES)))])
    deadline = fastest * 2.5 + random.uniform(0.0, 1.5) * max(middling - fastest, 0.0)
    seconds, stated = execution(random), (np.exp(level) * error)[kind]
    return Case(kind, seconds, execution, stated, known, own, float(deadline))


def to_columns(
    kind: np.ndarray, execution: np.ndarray, seconds: Sequence[np.ndarray]
) -> RuntimeColumns:
    """Return observed run times as columns, all at the first site."""
    work = np.concatenate(seconds)
    n = len(work)
    return RuntimeColumns(
        kind=kind,
        execution=execution,
        site=np.zeros(n, np.int64),
        work=work,
        whole=np.ones(n, np.bool_),
        failed=np.zeros(n, np.bool_),
        busy=np.full(n, np.nan),
        estimate=np.full(n, np.nan),
        features=np.zeros((n, 0)),
    )


def joined(parts: Sequence[RuntimeColumns], kinds: int) -> RuntimeColumns:
    """Return all columns; kinds and executions of each further campaign get new numbers."""
    kind, execution, work = [parts[0].kind], [parts[0].execution], [parts[0].work]
    first_kind, first_execution = kinds, int(parts[0].execution.max()) + 1
    for part in parts[1:]:
        kind.append(part.kind + first_kind)
        execution.append(part.execution + first_execution)
        work.append(part.work)
        first_kind += int(part.kind.max()) + 1
        first_execution += int(part.execution.max()) + 1
    return to_columns(np.concatenate(kind), np.concatenate(execution), work)


def outcome(
    seconds: np.ndarray,
    choice: Sequence[int],
    added: Sequence[int] = (0, 0),
    moment: float = 0.0,
) -> tuple[float, float]:
    """
    Return end and cost of tasks on processors of both sites, given out as they become free.

    Parameters
    ----------
    added, moment
        Processors of each site that come later, and when.
    """
    n = len(seconds)
    leases = [(site, count, 0.0) for site, count in enumerate(choice) if count]
    leases += [(site, count, moment) for site, count in enumerate(added) if count]
    problem = DispatchProblem(
        lease=np.full(n, ANYWHERE),
        width=np.ones(n, np.int64),
        parents=np.zeros(n, np.int64),
        first_child=np.zeros(n + 1, np.int64),
        children=np.zeros(0, np.int64),
        processors=np.array([count for _, count, _ in leases]),
    )
    slowness = np.array([[1 / SPEEDS[site] for site, _, _ in leases]])
    opening = np.array([[start for _, _, start in leases]])
    found = replay_dispatch(problem, seconds[None, :], opening, slowness)
    paid = sum(
        PRICES[site] * count * max(found.last_use[0, at] - start, 0.0)
        for at, (site, count, start) in enumerate(leases)
    )
    return float(found.end[0]), float(paid)


def by_points(seconds: np.ndarray, deadline: float, margin: float) -> tuple[int, int]:
    """Return the cheapest choice that keeps a deadline if tasks take a share more than told."""
    found = [(outcome(seconds * (1 + margin), choice), choice) for choice in CHOICES]
    keeping = [(cost, choice) for (end, cost), choice in found if end <= deadline]
    return min(keeping)[1] if keeping else min((end, choice) for (end, _), choice in found)[1]


def workflow_of(case: Case) -> Workflow:
    """Return the tasks of a case."""
    tasks = (Task(id=f"t{i}", name=case.known.kinds[k]) for i, k in enumerate(case.kind))
    return Workflow(tuple(tasks))


def purchases_of(choice: Sequence[int]) -> list[Purchase]:
    """Return the purchases of so many processors of each site."""
    return [
        Purchase(
            slot=Slot(
                site=site,
                start=0.0,
                duration=1e9,
                processors=count,
                unit_price=price,
                leased=True,
            )
        )
        for site, count, price in zip("ab", choice, PRICES, strict=True)
        if count
    ]


def by_odds(case: Case) -> tuple[tuple[int, int], bool]:
    """Return the cheapest choice that keeps the deadline surely enough, and if there is one."""
    forecaster = CampaignForecaster(workflow_of(case), case.known, draws=DRAWS)
    found = []
    for choice in CHOICES:
        forecast = forecaster.of_plan(purchases_of(choice), (), SITE_SPEEDS)
        assert forecast.cost is not None
        odds = forecast.end.probability(case.deadline)
        found.append((odds, forecast.cost.quantile(0.5), choice))
    sure = [(cost, choice) for odds, cost, choice in found if odds >= CONFIDENCE]
    if sure:
        return min(sure)[1], True
    return max((odds, -cost, choice) for odds, cost, choice in found)[2], False


def adaptive(case: Case) -> tuple[float, float]:
    """Choose by the user's word; after a quarter of the tasks, add what the rest then needs."""
    first = by_points(case.stated, case.deadline, 0.0)
    count = max(1, len(case.seconds) // 4)
    moment = outcome(case.seconds[:count], first)[0]
    ended = np.arange(len(case.seconds)) < count
    ratio = np.full(len(case.seconds), np.median(case.seconds[ended] / case.stated[ended]))
    for kind in np.unique(case.kind[ended]):
        of_kind = case.kind == kind
        ratio[of_kind] = np.median(case.seconds[ended & of_kind]) / case.stated[of_kind][0]
    expected = np.where(ended, case.seconds, case.stated * ratio)
    more = [(a, b) for a, b in [(0, 0), *CHOICES] if a + first[0] <= 16 and b + first[1] <= 16]
    found = [(outcome(expected, first, added, moment), added) for added in more]
    keeping = [(cost, added) for (end, cost), added in found if end <= case.deadline]
    added = min(keeping)[1] if keeping else min((end, added) for (end, _), added in found)[1]
    return outcome(case.seconds, first, added, moment)


def waiting(bench: Benchmark, count: int) -> list[Figure]:
    """Measure how often intervals hold of plans whose processors queue."""
    random = np.random.default_rng(SEED + 1)
    others: list[RuntimeColumns] = []
    places, blind = [], []
    shares = []
    for number in range(count):
        case = draw_case(random, others[-6:])
        others.append(case.earlier)
        # Most requests start soon, some late; days differ.
        typical = float(np.exp(random.normal(5.5, 1.0)))

        def wait(typical: float = typical) -> float:
            return 0.0 if random.random() < 0.2 else typical * float(np.exp(random.normal(0, 1.2)))

        predictor = WaitPredictor()
        for earlier in range(60):
            name, asked = f"{number}-{earlier}", earlier * 1e5
            predictor.asked(name, "a", 8, 3600.0, asked)
            predictor.began(name, asked + wait())
        known = predictor.forecast("a", 8, 3600.0)
        assert known is not None
        forecaster = CampaignForecaster(workflow_of(case), case.known, draws=DRAWS)
        drawn = known.sample(DRAWS, np.random.default_rng(number))
        purchases = purchases_of((8, 0))
        forecast = forecaster.of_plan(purchases, (), SITE_SPEEDS, comes={0: drawn})
        at_once = forecaster.of_plan(purchases, (), SITE_SPEEDS)
        end = outcome(case.seconds, (8, 0))[0] + wait()
        places.append(forecast.end.probability(end))
        blind.append(at_once.end.probability(end))
        assert forecast.waiting is not None
        shares.append(forecast.waiting.quantile(0.5) / forecast.end.quantile(0.5))
    table = bench.table(
        f"{count} plans on a batch queue, waits known from 60 earlier ones, seed {SEED + 1}",
        "forecast",
        "90 % intervals hold",
        "50 % intervals hold",
        "+- 95 % of the first",
        "ends by the 90 % figure",
    )
    held = {}
    for name, at in (("with waits", np.array(places)), ("without", np.array(blind))):
        inner = float(((at >= 0.05) & (at <= 0.95)).mean())
        middle = float(((at >= 0.25) & (at <= 0.75)).mean())
        spread = 1.96 * float(np.sqrt(inner * (1 - inner) / count))
        table.add(name, inner, middle, spread, float((at <= 0.9).mean()))
        held[name] = inner
    print(f"waiting is {np.median(shares):.0%} of the end in the median")
    return [at_least("90 % intervals of plans with waits", held["with waits"], 0.87)]


NAMES: tuple[Named, ...] = ("cost", "adaptive")
"""Strategies that are measured."""

PIECE = 10
"""Campaigns by strategies that are drawn by one seed."""

TRUTHS = 10
"""Executions by which each campaign is carried out: odds are of many, and told once."""

StrategyRows = dict[str, list[tuple[float, float, float]]]
"""
Of each campaign: in which share of the executions the deadline was kept, the odds that were told,
and the mean cost.
"""


def strategy_rows(piece: int, count: int) -> StrategyRows:
    """Carry campaigns out by strategies, with and without odds; pieces are independent."""
    random = np.random.default_rng([SEED + 2, piece])
    others: list[RuntimeColumns] = []
    rows: StrategyRows = {}
    for _ in range(count):
        case = draw_case(random, others[-6:])
        others.append(case.earlier)
        medians = case.known.medians()
        tasks = tuple(
            replace(task, runtime=float(f"{seconds:.2g}"))
            for task, seconds in zip(workflow_of(case).tasks, medians, strict=True)
        )
        goal = Goal(deadline=case.deadline, confidence=CONFIDENCE)
        truths = [_truth(case.again(random)) for _ in range(TRUTHS)]
        campaign = Campaign(name="case", workflow=Workflow(tasks), goal=goal)
        for name in NAMES:

            def simulate(
                campaign: Campaign,
                goal: Goal,
                spare: float,
                draw: StrategyDraw,
                batches: JobBatches | None = None,
                name: Named = name,
            ) -> StrategySimulationResult | None:
                return simulate_strategy(
                    campaign, SITES, name, goal, NOTHING_YET, {}, spare=spare, takes=draw.takes
                )

            foreseen = ForeseenCampaign(campaign=campaign, known=case.known)
            spare, forecast = StrategyForecasts(foreseen, SITES, simulate).choose(goal)
            told = forecast.odds(goal.deadline, None)
            for kind, part in ((name, 0.0), (f"{name}, by odds", spare)):
                results = [simulate(campaign, goal, part, truth) for truth in truths]
                kept = [result is not None and result.meets(goal) for result in results]
                cost = [result.cost for result in results if result is not None]
                row = float(np.mean(kept)), told, float(np.mean(cost))
                rows.setdefault(kind, []).append(row)
    return rows


def _truth(seconds: np.ndarray) -> StrategyDraw:
    """Return what a strategy meets in an execution, whose run times at speed 1 are given."""
    return StrategyDraw(takes=lambda task, site: float(seconds[task]) / SITE_SPEEDS[site])


def strategies(bench: Benchmark, count: int) -> list[Figure]:
    """Measure how often strategies keep deadlines, with and without odds."""
    rows: StrategyRows = {}
    for piece in range(-(-count // PIECE)):
        found = strategy_rows(piece, min(PIECE, count - piece * PIECE))
        for kind, more in found.items():
            rows.setdefault(kind, []).extend(more)
    return strategies_table(bench, rows, count)


def strategies_table(bench: Benchmark, rows: StrategyRows, count: int) -> list[Figure]:
    """Add the table of :func:`strategies`; return its figures."""
    table = bench.table(
        f"{count} campaigns by strategies, {TRUTHS} executions of each, seed {SEED + 2}",
        "strategy",
        "kept, all",
        "odds told, mean",
        "kept less told",
        "+- 95 %",
        "odds of 90 % told",
        "kept, of these",
        "+- 95 % of these",
        "cost beside that without odds, of these",
    )
    figures = []
    for name in NAMES:
        for kind in (name, f"{name}, by odds"):
            kept, told = (np.array([row[at] for row in rows[kind]], dtype=float) for at in (0, 1))
            sure = told >= CONFIDENCE
            share = float(kept[sure].mean()) if sure.any() else float("nan")
            spent, plain_spent = (
                sum(row[2] for row in rows[of] if row[1] >= CONFIDENCE) for of in (kind, name)
            )
            off, spread = float((kept - told).mean()), _spread(kept - told)
            ratio = spent / plain_spent if plain_spent else float("nan")
            # Of the strategy without spare time the odds are of another one.
            about = ("", "", "") if kind == name else (float(told.mean()), off, spread)
            table.add(
                kind, float(kept.mean()), *about, float(sure.mean()), share, _spread(kept[sure]),
                ratio,
            )  # fmt: skip
        figures.append(at_most(f"odds of {name} off by, at most", abs(off) + spread, 0.05))
        figures.append(at_least(f"deadlines kept by {name} with odds of 90 %", share, CONFIDENCE))
    return figures


def _spread(values: np.ndarray) -> float:
    """Return half the width of the 95 % interval of a mean."""
    if len(values) < 2:
        return float("nan")
    return 1.96 * float(values.std(ddof=1) / np.sqrt(len(values)))


# Strategies and a pool on real clusters.

BAGS = {24: 60.0, 60: 120.0}
"""Deadlines of bags by their number of jobs, seconds."""

JOB = 6.0
"""Seconds of a job; executions differ by 10 %, jobs of one by 20 %."""

EARLIER = 3
"""Executions that are known when a bag begins."""


def policies_tried(times: int, folder: Path, first: int = 0) -> Iterator[tuple[str, int, Any]]:
    """
    Run bags by each policy on two clusters under Slurm; yield policy, number of jobs, and the run.

    Parameters
    ----------
    times
        Runs of each size by each policy.
    first
        Number of the first of them, by which the run times are drawn.
    """
    from bursar_devtools.testgrid.slurm import SlurmCluster

    clusters, sites = [], ""
    for number, name in enumerate(("near", "far")):
        clusters.append(SlurmCluster.up(folder / name, name=name, nodes=2, cpus=4))
        sites += (
            f'[site.{name}]\nkind = "slurm"\nprocessors = {clusters[-1].processors}\n'
            f'queue = "main"\nunit_price = "{number + 1} SU/core-hour"\nreach = "127.0.0.1"\n'
            f'environment = {{ SLURM_CONF = "{clusters[-1].environment["SLURM_CONF"]}" }}\n'
        )
    (folder / "sites.toml").write_text(sites)
    try:
        for again in range(first, first + times):
            for jobs, deadline in BAGS.items():
                for number, policy in enumerate(("cost", "adaptive", "pool")):
                    random = np.random.default_rng([SEED, again, jobs, number])
                    whole = 0.1 * random.standard_normal((EARLIER + 1, 1))
                    spread = 0.2 * random.standard_normal((EARLIER + 1, jobs))
                    times_of = JOB * np.exp(whole + spread)
                    history = folder / f"{policy}-{jobs}-{again}.sqlite"
                    _note_executions(history, times_of[:-1])
                    tasks = tuple(
                        Task(id=f"t{at}", name="job", steps=(Exec(("sleep", f"{seconds:.3f}")),))
                        for at, seconds in enumerate(times_of[-1])
                    )
                    how: dict[str, Any] = {"strategy": policy}
                    if policy == "pool":
                        how = {"provisioning": "dynamic"}
                    yield (
                        policy,
                        jobs,
                        bursar.run(
                            Campaign(name="bag", workflow=Workflow(tasks)),
                            folder / "sites.toml",
                            deadline=deadline,
                            runs=folder / "runs",
                            history=history,
                            fresh=True,
                            anyway=True,
                            **how,
                        ),
                    )
    finally:
        for cluster in clusters:
            cluster.down()


def _note_executions(history: Path, seconds: np.ndarray) -> None:
    """Keep executions of a bag, shape ``(executions, jobs)``, in a history of their own."""
    History(history).add(
        TaskObservation(
            execution=f"run-{number}",
            task=f"t{at}",
            kind="job",
            site="near",
            start=1e9 + 1e4 * number + at,
            seconds=float(each),
        )
        for number, execution in enumerate(seconds)
        for at, each in enumerate(execution)
    )


def policies(bench: Benchmark) -> None:
    """Run bags by strategies and a pool under Slurm, and see what was forecast at the begin."""
    times = bench.of(3, 1, 0)
    if not times:
        bench.skip("policies under Slurm: they take minutes")
        return
    with tempfile.TemporaryDirectory(prefix="bursar-forecasts-") as folder:
        try:
            rows = [
                (policy, jobs, told_and_came(result))
                for policy, jobs, result in policies_tried(times, Path(folder))
            ]
        except BursarError as problem:
            bench.skip(f"policies under Slurm: {problem}")
            return
    policies_table(bench, rows)


def told_and_came(result: Any) -> tuple[float, ...]:
    """Return p10, p50, p90 and truth of end, then of cost, and the share of jobs done."""
    told = json.loads((result.path / "plan.json").read_text())["proposal"]["forecast"]
    summary = result.to_dict()
    ends, costs = told["end_s"], told["cost"]
    done = summary["succeeded"] / summary["tasks"]
    return (
        *(ends[share] for share in ("p10", "p50", "p90")),
        summary["makespan_s"],
        *(costs[share] for share in ("p10", "p50", "p90")),
        summary["cost"],
        done,
    )


def policies_table(bench: Benchmark, rows: Sequence[tuple[str, int, tuple[float, ...]]]) -> None:
    """Add the table of :func:`policies`."""
    table = bench.table(
        f"Bags of {' and '.join(map(str, BAGS))} jobs of {JOB:g} s on two clusters under Slurm on "
        f"this machine, {EARLIER} earlier executions known",
        *("policy", "runs", "all jobs done", "end, error", "end in 10 to 90 %"),
        *("cost, error", "cost in 10 to 90 %", "end by median", "cost by median"),
    )
    for policy in (*dict.fromkeys(row[0] for row in rows), "all"):
        found = np.array([told for name, _, told in rows if policy in (name, "all")])
        end, cost = found[:, 3], found[:, 7]
        table.add(
            policy,
            len(found),
            float((found[:, 8] == 1.0).mean()),
            float(np.median(np.abs(found[:, 1] / end - 1))),
            float(((found[:, 0] <= end) & (end <= found[:, 2])).mean()),
            float(np.median(np.abs(found[:, 5] / cost - 1))),
            float(((found[:, 4] <= cost) & (cost <= found[:, 6])).mean()),
            float(np.median(end / found[:, 1])),
            float(np.median(cost / found[:, 5])),
        )


def main() -> None:
    """Measure, and print the tables."""
    bench = Benchmark(__file__, __doc__)
    prefer_machine_code()
    count = bench.of(1000, 200, 8)
    random = np.random.default_rng(SEED)
    others: list[RuntimeColumns] = []
    kept: dict[str, list[tuple[bool, float]]] = {}
    sure = []
    for _ in range(count):
        case = draw_case(random, others[-6:])
        medians = case.known.medians()
        results = {}
        for name, times, margin in (
            ("the user's word", case.stated, 0.0),
            ("the user's word + 20 %", case.stated, 0.2),
            ("the user's word + 50 %", case.stated, 0.5),
            ("medians of earlier runs", medians, 0.0),
            ("medians + 20 %", medians, 0.2),
            ("medians + 50 %", medians, 0.5),
        ):
            results[name] = outcome(case.seconds, by_points(times, case.deadline, margin))
        results["the user's word, adaptive"] = adaptive(case)
        choice, is_sure = by_odds(case)
        results["odds of 90 %"] = outcome(case.seconds, choice)
        sure.append(is_sure)
        for name, (end, cost) in results.items():
            kept.setdefault(name, []).append((end <= case.deadline, cost))
        others.append(case.earlier)
    is_sure = np.array(sure)
    table = bench.table(
        f"{count} campaigns; {is_sure.mean():.0%} have a choice of 90 %, seed {SEED}",
        "rule",
        "kept, all",
        "kept, 90 % had",
        "+- 95 %",
        "cost by odds'",
        "cost per kept",
    )
    reference = np.array([cost for _, cost in kept["odds of 90 %"]])
    for name, rows in kept.items():
        met = np.array([one for one, _ in rows])
        cost = np.array([one for _, one in rows])
        among = met[is_sure]
        share = float(among.mean()) if len(among) else float("nan")
        table.add(
            name,
            float(met.mean()),
            share,
            1.96 * float(np.sqrt(max(share * (1 - share), 0.0) / max(len(among), 1))),
            float(cost.sum() / reference.sum()),
            float(cost.sum() / max(met.sum(), 1)),
        )
    if bench.size == "full":
        met = {n: np.array([one for one, _ in rows])[is_sure] for n, rows in kept.items()}
        spent = {n: float(sum(cost for _, cost in rows)) for n, rows in kept.items()}
        as_good = [n for n in kept if met[n].mean() >= CONFIDENCE and n != "odds of 90 %"]
        figures = [
            at_least("deadlines kept by odds", float(met["odds of 90 %"].mean()), CONFIDENCE)
        ]
        for name in as_good:
            figures.append(
                at_most(f"cost of odds by {name}", spent["odds of 90 %"] / spent[name], 1.0)
            )
    waits = waiting(bench, bench.of(500, 100, 4))
    policies(bench)
    by_strategies = strategies(bench, bench.of(60, 12, 1))
    if bench.size == "full":
        figures += [*waits, *by_strategies]
        bench.figures("Aims: kept with the confidence, at no more than any rule that does", figures)
    bench.write()


if __name__ == "__main__":
    main()
