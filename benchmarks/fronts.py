"""
Fronts over priced slots: how good the searches are, and how fast.

Tables:

searches
    Hypervolume of each method's front at about equal numbers of schedules, on
    random instances of 100 rigid tasks over 120 slots of four sites; medians,
    quartiles, and in how many instances ``auto`` is best.
exact
    ``auto`` against CP-SAT (60 s, no hint but HEFT's schedule) on some of them.
hpdc07
    The instance of HPDC'07 section 3 (124 slots, 100 tasks): feasible and Pareto
    plans, which scheduler finds the plans that survive, population against
    generations, and 1-, 2- and 3-point crossover.
speed
    One HEFT schedule of CyberShake (8,039 tasks) over a busy cluster's slots,
    MOGA 10 x 10 on it, the genetic algorithm 50 x 20 on 500 tasks, and growth.
peer
    HEFT on 1,000 serial tasks and 100 processors beside that of SAGA (installed
    on first use), and beside our own kernels as plain Python.

Use::

    python benchmarks/fronts.py [searches] [exact] [hpdc07] [speed] [peer] [--quick | --smallest]

Without names, all but ``exact`` and ``peer``. Every instance is made from its seed, which is
its number.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from figures import Benchmark, Figure, Table

from bursar.model.campaign import Goal, Workflow
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.energetic_bound import makespan_bound
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.genetic import genetic, moga, nsga2
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, Scheduler, SearchLimits
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedulers import schedule
from bursar_devtools.front_measures import hypervolume, nondominated
from bursar_papers.hpdc07_slots import slots_and_tasks
from bursar_papers.workflows import BANDWIDTH, cybershake, layered

HERE = Path(__file__).parent
SITES = {"a": 10, "b": 20, "c": 30, "d": 40}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))


def main() -> None:
    """Measure the tables named."""
    if "plain-heft" in sys.argv:
        _plain_heft(int(sys.argv[-1]))
        return
    bench = Benchmark(__file__, __doc__, _options)
    named = bench.given.tables or ["searches", "hpdc07", "speed"]
    for name in named:
        if name not in TABLES:
            sys.exit(f"expected {', '.join(TABLES)}, got {name}")
    for name in named:
        TABLES[name](bench)
    bench.write()


def instance(seed: int) -> PlanningProblem:
    """100 rigid tasks on 4 or 10 levels, 30 indivisible slots of each of four sites."""
    rng = np.random.default_rng(seed)
    levels = (10, 4)[seed % 2]
    level = np.sort(rng.integers(0, levels, 100))
    tasks = []
    for i in range(100):
        above = np.flatnonzero(level == level[i] - 1)
        parents = rng.choice(above, min(2, len(above)), replace=False) if len(above) else []
        tasks.append(
            Task(
                id=f"t{i}",
                runtime=float(rng.integers(60, 901)),
                processors=int(rng.integers(1, 17)),
                after=tuple(f"t{p}" for p in sorted(parents)),
            )
        )
    sites = [
        SiteFacts(name=name, processors=n, slots=tuple(_one_after_the_other(rng, name, n, 30)))
        for name, n in SITES.items()
    ]
    return build_problem(Workflow(tuple(tasks)), sites)


def _one_after_the_other(
    rng: np.random.Generator, site: str, processors: int, count: int, gap: float = 300.0
) -> list[Slot]:
    """Slots that never overlap on a processor, after exponential gaps."""
    free = np.zeros(processors)
    slots = []
    for _ in range(count):
        width = int(rng.integers(max(1, processors // 4), processors + 1))
        start = float(np.sort(free)[width - 1] + rng.exponential(gap))
        duration = float(rng.integers(600, 3000))
        free[np.argsort(free)[:width]] = start + duration
        price = float(np.round(rng.uniform(0.5, 2), 2))
        slots.append(
            Slot(
                site=site,
                start=start,
                duration=duration,
                processors=width,
                unit_price=price,
                divisible=False,
            )
        )
    return slots


def searches(bench: Benchmark) -> None:
    """Hypervolume, scaled to the box of all fronts found."""
    schedules, instances, size = bench.of((5000, 30, 50), (5000, 6, 50), (40, 1, 10))
    methods: dict[str, tuple[Callable[[PlanSearch], None], SearchLimits]] = {
        "moga": (moga, SearchLimits(population=size, generations=schedules // size - 1)),
        "nsga2": (nsga2, SearchLimits(population=size, generations=schedules // size - 1)),
        "ga": (
            lambda s: genetic(s, Goal()),
            SearchLimits(population=size, generations=schedules // size - 1),
        ),
        "auto": (elitist, SearchLimits(evaluations=schedules)),
    }
    volumes: dict[str, list[float]] = {name: [] for name in methods}
    for seed in range(instances):
        problem = instance(seed)
        points = {}
        for name, (method, limits) in methods.items():
            search = PlanSearch(PurchaseEvaluator(problem, PlacementPolicy(worth=50.0)), limits)
            method(search)
            points[name] = search.archive.points
        everyone = np.concatenate(list(points.values()))
        least, worst = everyone.min(axis=0), everyone.max(axis=0) * 1.05
        for name, front in points.items():
            box = float(np.prod(worst - least))
            volumes[name].append(hypervolume(front, worst.tolist()) / box)
    table = bench.table(
        f"searches: {instances} instances, {schedules} schedules each, scaled hypervolume",
        *("method", "quartile", "median", "quartile", "best in, %"),
    )
    best = np.argmax([volumes[name] for name in methods], axis=0)
    for k, name in enumerate(methods):
        low, middle, high = np.quantile(volumes[name], (0.25, 0.5, 0.75))
        table.add(name, float(low), float(middle), float(high), 100 * float((best == k).mean()))


def exact(bench: Benchmark) -> None:
    """Makespan on everything, and cost at 1.1, 1.3 and 1.6 times the fastest makespan."""
    from bursar.planning.exact import polish

    seconds = bench.of(60.0, 20.0, 1.0)
    table = bench.table(
        f"auto against CP-SAT ({seconds:g} s each, two threads, HEFT's schedule as the hint)",
        *("question", "seed", "auto", "CP-SAT", "proven", "excess, %"),
    )
    excesses: dict[str, list[float]] = {"makespan": [], "cost": []}
    for seed in range(bench.of(6, 2, 1)):
        problem = instance(seed)
        search = PlanSearch(PurchaseEvaluator(problem, PlacementPolicy()), SearchLimits())
        elitist(search)
        points = search.archive.points
        hint = schedule(problem, problem.everything)
        found = polish(problem, minimise="makespan", hint=hint, time_limit=seconds, workers=2)
        assert found is not None
        _compare(
            table, seed, "makespan", points[0, 0], found.makespan, found.bound, excesses["makespan"]
        )
        for factor in (1.1, 1.3, 1.6):
            deadline = float(hint.makespan * factor)
            ours = points[points[:, 0] <= deadline, 1].min()
            found = polish(
                problem,
                minimise="cost",
                deadline=deadline,
                hint=hint,
                time_limit=seconds,
                workers=2,
            )
            assert found is not None
            what = f"cost in {factor} x HEFT"
            _compare(table, seed, what, ours, found.cost, found.bound, excesses["cost"])
    bench.figures(
        "excess of auto over CP-SAT",
        [
            figure
            for what, values in excesses.items()
            for figure in (
                Figure(f"{what}, median", 100 * float(np.median(values)), "%"),
                Figure(f"{what}, worst", 100 * float(max(values)), "%"),
            )
        ],
    )


def _compare(
    table: Table,
    seed: int,
    what: str,
    ours: float,
    theirs: float,
    bound: float | None,
    kept: list[float],
) -> None:
    kept.append(ours / theirs - 1)
    table.add(what, seed, float(ours), float(theirs), bound, 100 * float(kept[-1]))


def hpdc07(bench: Benchmark) -> None:
    """Section 3: 124 slots, 100 tasks of 100 s on average, transfers as long."""
    repetitions = bench.of(20, 5, 1)
    population, generations = bench.of((50, 50), (50, 50), (6, 2))
    problems = [slots_and_tasks(seed) for seed in range(repetitions)]

    found = []
    for problem in problems:
        limits = SearchLimits(population=population, generations=generations)
        search = PlanSearch(PurchaseEvaluator(problem, PlacementPolicy(), whole=True), limits)
        moga(search)
        found.append((len(search.points), len(search.archive)))
    feasible, front = np.array(found).T
    table = bench.table(
        f"HPDC 2007, section 3, {repetitions} instances",
        *("what", "mean", "standard deviation", "paper"),
    )
    _spread(table, f"feasible plans, MOGA {population} x {generations}", feasible, 1742)
    _spread(table, f"Pareto plans, MOGA {population} x {generations}", front, 40)

    names: list[Scheduler] = ["heft", "greedy", "minmin", "maxmin"]
    surviving = {name: [] for name in names}  # type: dict[str, list[int]]
    for problem in problems:
        fronts = {}
        for name in names:
            policy = PlacementPolicy(scheduler=name)
            limits = SearchLimits(population=population, generations=min(20, generations))
            search = PlanSearch(PurchaseEvaluator(problem, policy, whole=True), limits)
            moga(search)
            fronts[name] = search.archive.points
        together = np.concatenate(list(fronts.values()))
        owners = np.repeat(names, [len(f) for f in fronts.values()])
        kept = owners[nondominated(together)]
        for name in names:
            surviving[name].append(int((kept == name).sum()))
    for name, counts in surviving.items():
        _spread(table, f"plans that survive, {name}", np.array(counts), None)

    many = bench.of(((10, 100), (32, 32), (100, 10)), ((10, 100), (32, 32), (100, 10)), ((4, 2),))
    shapes = {f"{size} x {rounds}": (size, rounds) for size, rounds in many}
    points = {"1 point": 1, "2 points": 2, "3 points": 3}
    for title, choices in (
        ("population x generations", {k: (*v, 2) for k, v in shapes.items()}),
        (
            f"crossover, {population} x {min(20, generations)}",
            {k: (population, min(20, generations), v) for k, v in points.items()},
        ),
    ):
        volumes: dict[str, list[float]] = {name: [] for name in choices}
        for problem in problems:
            fronts = {}
            for name, (size, rounds, cuts) in choices.items():
                limits = SearchLimits(population=size, generations=rounds, crossover_points=cuts)
                search = PlanSearch(
                    PurchaseEvaluator(problem, PlacementPolicy(), whole=True), limits
                )
                moga(search)
                fronts[name] = search.archive.points
            together = np.concatenate(list(fronts.values()))
            least, worst = together.min(axis=0), together.max(axis=0) * 1.05
            for name, front_points in fronts.items():
                box = float(np.prod(worst - least))
                volumes[name].append(hypervolume(front_points, worst.tolist()) / box)
        for name, values in volumes.items():
            _spread(table, f"hypervolume, {title}, {name}", np.array(values), None)


def _spread(table: Table, what: str, values: np.ndarray, paper: float | None) -> None:
    table.add(what, float(values.mean()), float(values.std()), paper)


def speed(bench: Benchmark) -> None:
    """Times after the first call; the least of a few."""
    began = time.perf_counter()
    schedule(instance(0), instance(0).everything)
    table = bench.table("times after the first call", "what", "ms", "makespan above the bound, %")
    table.add("first call, compiling or loading", 1000 * (time.perf_counter() - began), None)
    repeats = bench.of(20, 20, 1)
    cases = (("CyberShake, 8,039 tasks", 288), ("the same, all serial", 1))
    for title, wide in cases if bench.size != "smallest" else ():
        rng = np.random.default_rng(1)
        workflow = cybershake(rng, spread=0.4, wide=wide)
        problem = build_problem(workflow, [_busy_cluster(rng, stretch=3 if wide > 1 else 1)])
        made = schedule(problem, problem.everything)
        bound = makespan_bound(problem)
        one = PurchaseEvaluator(problem, PlacementPolicy(), threads=1)
        took = _least(lambda e=one, p=problem: e.evaluate(p.everything[None, :]), repeats)
        above = 100 * (made.makespan / bound - 1)
        table.add(f"{title}: one HEFT evaluation", 1000 * took, float(above))
        for threads in (1, 2):

            def run(p: PlanningProblem = problem, n: int = threads) -> None:
                moga(PlanSearch(PurchaseEvaluator(p, PlacementPolicy(), threads=n), SearchLimits()))

            table.add(f"{title}: MOGA 10 x 10, {threads} thread(s)", 1000 * _least(run, 2), None)
    tasks = bench.of(500, 500, 60)
    workflow = layered(np.random.default_rng(1), tasks=tasks, depth=22, mean_transfer=100.0)
    limits = bench.of(SearchLimits(), SearchLimits(), SearchLimits(population=4, generations=2))
    for title, fine in (("coarse slots", False), ("slots of one processor", True)):
        problem = build_problem(workflow, _sites_of_slots(np.random.default_rng(2), fine))

        def evolve(p: PlanningProblem = problem) -> None:
            search = PlanSearch(
                PurchaseEvaluator(p, PlacementPolicy(scheduler="list"), threads=1), limits
            )
            genetic(search, Goal())

        what = f"genetic algorithm, {tasks} tasks, {problem.n_slots} {title}"
        table.add(what, 1000 * _least(evolve, 1), None)
    grown = ((1000, 100), (10_000, 1000), (100_000, 10_000))
    for tasks, slots in bench.of(grown, grown[:2], ((200, 20),)):
        rng = np.random.default_rng(3)
        many = layered(rng, tasks=tasks, depth=100)
        offered = tuple(_one_after_the_other(rng, "s", 400, slots, gap=30.0))
        problem = build_problem(many, [SiteFacts(name="s", processors=400, slots=offered)])
        took = _least(lambda p=problem: schedule(p, p.everything), 2)
        assert schedule(problem, problem.everything).complete
        table.add(f"one HEFT schedule, {tasks:,} serial tasks, {slots:,} slots", 1000 * took, None)


def peer(bench: Benchmark) -> None:
    """One after the other; SAGA and the plain kernels once, ours the least of twenty."""
    from compare_dispatch import interpreter

    tasks = bench.of(1000, 300, 30)
    problem = _always_free(tasks)
    ours = _least(lambda: schedule(problem, problem.everything), 20)
    makespan = schedule(problem, problem.everything).makespan
    table = bench.table(
        f"HEFT, {tasks} serial tasks, 100 processors", "who", "s", "of ours", "makespan, s"
    )
    table.add("ours", ours, 1.0, float(makespan))
    parents = np.repeat(np.arange(tasks), np.diff(problem.parent_start))
    work = {
        "runtimes": problem.runtimes[:, 0].tolist(),
        "edges": np.column_stack((problem.parent_index, parents)).tolist(),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "work.json"
        file.write_text(json.dumps(work))
        saga = str(interpreter("saga", HERE / ".peers"))
        theirs = _told([saga, str(HERE / "peers" / "run_saga.py"), str(file), "100"])
    plain = _told(
        [sys.executable, __file__, "plain-heft", str(tasks)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    for name, told in (("SAGA 2.0.2", theirs), ("the kernels as plain Python", plain)):
        seconds = told["seconds"]
        table.add(name, seconds, seconds / ours, told["makespan"])


def _told(argv: list[str], env: dict[str, str] | None = None) -> dict[str, float]:
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def _plain_heft(tasks: int) -> None:
    problem = _always_free(tasks)
    began = time.perf_counter()
    made = schedule(problem, problem.everything)
    print(json.dumps({"seconds": time.perf_counter() - began, "makespan": made.makespan}))


def _always_free(tasks: int) -> PlanningProblem:
    """Serial tasks on 20 levels, and 100 processors that are free without end."""
    workflow = layered(np.random.default_rng(4), tasks=tasks, depth=20)
    slot = Slot(site="s", start=0.0, duration=1.0, processors=100, unit_price=1.0, extensible=True)
    return build_problem(workflow, [SiteFacts(name="s", processors=100, slots=(slot,))])


def _busy_cluster(rng: np.random.Generator, stretch: float) -> SiteFacts:
    """430 processors in ten groups, each free in twelve windows, the last without an end."""
    slots = []
    for _ in range(10):
        at = float(rng.uniform(0, 2000))
        for k in range(12):
            last = k == 11
            duration = float(rng.uniform(2000, 9000)) * stretch
            slots.append(
                Slot(
                    site="cluster",
                    start=at,
                    duration=duration,
                    processors=43,
                    unit_price=1.0,
                    divisible=last,
                    extensible=last,
                )
            )
            at += duration + float(rng.uniform(200, 2000))
    return SiteFacts(name="cluster", processors=430, slots=tuple(slots))


def _sites_of_slots(rng: np.random.Generator, fine: bool) -> list[SiteFacts]:
    """214 slots of four sites; ``fine``: the same in pieces of one processor."""
    sites = []
    for name, processors in SITES.items():
        count = 214 // 4 + (name < "c")
        slots = _one_after_the_other(rng, name, processors, count, gap=100.0)
        if fine:
            slots = [
                Slot(site=name, start=s.start, duration=s.duration, processors=1,
                     unit_price=1.0, divisible=False)
                for s in slots for _ in range(s.processors)
            ]  # fmt: skip
        links = {other: Link(bandwidth=BANDWIDTH) for other in SITES if other != name}
        sites.append(SiteFacts(name=name, processors=processors, slots=tuple(slots), links=links))
    return sites


def _least(work: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


TABLES: dict[str, Callable[[Benchmark], None]] = {
    "searches": searches,
    "exact": exact,
    "hpdc07": hpdc07,
    "speed": speed,
    "peer": peer,
}


if __name__ == "__main__":
    main()
