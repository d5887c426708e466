"""
Planning: how good the plans are, and how long they take.

Four tables:

quality
    HEFT's makespan over the published optimum of the standard task graphs
    (960 instances; those whose value is provably out of reach left out, and
    counted), over the proven lower bound, and the same for tasks placed in the
    order they are listed instead of by rank, and for the search over orders
    (400 schedules a graph).
curves
    Recorded and synthetic workflows: time for the whole curve after the first
    call, time for one schedule, points, and the largest gap to the bound.
command
    ``bursar plan`` as a process, kernels compiled before, from the campaign file to the printed
    curve: processor time of the whole curve over three sites.
compiled
    One schedule by the compiled kernels and by the same kernels as plain Python
    (in a process of its own), in one run, with the ratio.

Use::

    python benchmarks/planning.py [--data FOLDER]

The folder of reference data may also be named by ``BURSAR_DATA``; without it
only the synthetic workflows are measured. Times are the least of some runs on
a machine that may be doing other things too.
"""

import argparse
import csv
import itertools
import json
import lzma
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from figures import Benchmark, Figure

from bursar.formats.dax import read_dax
from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.bounds import makespan_bounds
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, SearchLimits
from bursar.planning.problem import build_problem
from bursar.planning.schedulers import schedule
from bursar.planning.trade_off_solver import trade_off

DEFAULT = Path(__file__).resolve().parents[2] / "shared" / "data"
CLUSTER = SiteFacts(name="cluster", processors=64, unit_price=0.001, fixed_price=0.1)
GRID = [
    CLUSTER,
    SiteFacts(name="fast", processors=430, speed=1.7, unit_price=0.002, fixed_price=0.5),
    SiteFacts(name="cheap", processors=16, speed=0.6, unit_price=0.0005),
]
SEARCH = 400
"""Schedules that the search makes of each graph."""
RECORDED = ("Montage_1000", "CyberShake_1000", "Epigenomics_997")


SITES = """
[site.cluster]
kind = "local"
processors = 64
unit_price = "0.001 EUR/core-second"
fixed_price = "0.1 EUR"
[site.fast]
kind = "local"
processors = 430
speed = 1.7
unit_price = "0.002 EUR/core-second"
fixed_price = "0.5 EUR"
[site.cheap]
kind = "local"
processors = 16
speed = 0.6
unit_price = "0.0005 EUR/core-second"
"""
SPREAD = """
[campaign]
command = "sleep {seconds}"
[parameters]
seconds = { from = 1, to = 100, points = POINTS }
[task]
runtime = "{seconds}"
"""
HUNDRED = """
[campaign]
command = "sleep {seconds} {k}"
[parameters]
seconds = { from = 1, to = 100, points = 100 }
k = { from = 1, to = 1000, points = POINTS }
[task]
runtime = "{seconds}"
"""
CHAINS = """
[parameters]
seconds = { from = 1, to = 100, points = POINTS }
[task]
runtime = "{seconds}"
[tasks.s0]
command = "sleep {seconds}"
""" + "".join(
    f"""
[tasks.s{k}]
command = "sleep {{seconds}}"
after = ["s{k - 1}"]
"""
    for k in range(1, 10)
)
"""Campaigns of the command; ``POINTS`` stands for a number."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DEFAULT)))


def main() -> None:
    """Measure all tables."""
    if "--one-schedule" in sys.argv:
        print(json.dumps(_time_of_one(_layers(int(sys.argv[-1]), 40), repeats=3)))
        return
    bench = Benchmark(__file__, __doc__, _options)
    data = bench.given.data if bench.given.data.is_dir() else None
    _warm_up(bench)
    if data is None:
        bench.skip("quality: no reference data (name its folder by --data or BURSAR_DATA)")
    else:
        _quality(bench, data)
    _curves(bench, data)
    _command(bench)
    _compiled(bench)
    bench.write()


def _warm_up(bench: Benchmark) -> None:
    began = time.perf_counter()
    trade_off(_layers(20, 4), [CLUSTER])
    seconds = time.perf_counter() - began
    bench.figures("first call", [Figure("compiling or loading the kernels", seconds, "s")])


def _quality(bench: Benchmark, data: Path) -> None:
    folder = data / "optimal" / "stg"
    graphs = {}
    workflows = {}
    with (
        lzma.open(folder / "stg-rnc50-rnc100.tar.xz") as packed,
        tarfile.open(fileobj=packed) as members,
    ):
        for member in members:
            file = members.extractfile(member)
            if file is not None:
                workflows[member.name] = _read_stg(file.read().decode())
                graphs[member.name] = build_problem(workflows[member.name], [CLUSTER])
    rows: dict[int, list[tuple[float, ...]]] = {}
    out_of_reach = 0
    most = bench.of(None, 200, 3)
    with (folder / "stg_optimal.csv").open() as file:
        for row in itertools.islice(csv.DictReader(file), most):
            problem, processors = graphs[row["graph"]], int(row["processors"])
            optimum, bought = float(row["optimal_makespan"]), np.array([processors])
            bound = float(makespan_bounds(problem, bought[None, :])[0])
            if bound > optimum:
                out_of_reach += 1
                continue
            made = schedule(problem, bought)
            listed = schedule(problem, bought, PlacementPolicy(scheduler="list")).makespan
            searched = _searched(workflows[row["graph"]], processors)
            rows.setdefault(processors, []).append(
                (
                    made.makespan / optimum,
                    listed / optimum,
                    searched / optimum,
                    made.makespan / bound,
                    float(made.makespan == optimum),
                    float(searched == optimum),
                )
            )
    table = bench.table(
        "standard task graphs: makespan over the published optimum",
        *("processors", "HEFT", "worst", "as listed", "searched", "worst", "HEFT/bound"),
        *("HEFT optimal, %", "searched optimal, %"),
    )
    for processors, values in sorted(rows.items()):
        heft, listed, searched, gap, hit, found = map(float, np.mean(values, axis=0))
        worst, _, worst_searched, *_ = map(float, np.max(values, axis=0))
        ratios = (heft, worst, listed, searched, worst_searched, gap)
        shown = (f"{ratio:.4f}" for ratio in ratios)
        table.add(f"{processors}", *shown, 100 * hit, 100 * found)
    left_out = Figure("optima below a proven bound, left out", out_of_reach, "")
    bench.figures("standard task graphs", [left_out])


def _searched(workflow: Workflow, processors: int) -> float:
    """The shortest makespan that the search finds on so many processors."""
    slot = Slot(
        site="s", start=0.0, duration=1.0, processors=processors, unit_price=1.0, extensible=True
    )
    site = SiteFacts(name="s", processors=processors, slots=(slot,))
    search = PlanSearch(
        PurchaseEvaluator(build_problem(workflow, [site]), PlacementPolicy()),
        SearchLimits(evaluations=SEARCH),
    )
    elitist(search)
    return float(search.points[:, 0].min())


def _curves(bench: Benchmark, data: Path | None) -> None:
    workflows: dict[str, Workflow] = {}
    if data is not None and bench.size != "smallest":
        for name in RECORDED:
            path = data / "workflows" / "dax" / f"{name}.xml.xz"
            workflows[name] = read_dax(path).workflow
    layers, bags = bench.of(
        (((1_000, 40), (8_000, 200)), (100_000,)), (((1_000, 40),), (10_000,)), (((40, 8),), (50,))
    )
    for tasks, width in layers:
        workflows[f"layers {tasks:,}"] = _layers(tasks, width)
    for tasks in bags:
        workflows[f"bag {tasks:,}"] = _bag(tasks)
    table = bench.table(
        "curves (time after the first call)",
        *("workflow", "sites", "curve, s", "schedule, ms", "tried", "points", "largest gap, %"),
    )
    repeats = bench.of(3, 1, 1)
    for name, workflow in workflows.items():
        for sites in ([CLUSTER], GRID):
            curve, front = _least(lambda w=workflow, s=sites: trade_off(w, s), repeats=repeats)
            one = _time_of_one(workflow, sites)
            gap = max(option.gap or 0.0 for option in front.options)
            table.add(
                name,
                len(sites),
                curve,
                1000 * one,
                front.evaluations,
                len(front.options),
                100.0 * gap,
            )


def _command(bench: Benchmark) -> None:
    tasks, repeats = bench.of((100_000, 3), (10_000, 1), (200, 1))
    table = bench.table(
        "bursar plan as a process, three sites, processor time",
        *("campaign", "tasks", "s", "aim, s", "met"),
    )
    campaigns = {
        "a bag, runtimes from 1 to 100 s": (tasks, tasks, SPREAD),
        "a bag, 100 runtimes": (tasks, tasks // 100, HUNDRED),
        "a bag, one runtime": (tasks, tasks // 100, HUNDRED.replace('"{seconds}"', '"50"')),
        "chains of ten tasks": (tasks // 10, tasks // 100, CHAINS),
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sites.toml").write_text(SITES)
        for name, (count, points, text) in campaigns.items():
            (Path(folder) / "campaign.toml").write_text(text.replace("POINTS", str(points)))
            _processor_seconds(folder)  # compiles, or loads, what it needs
            seconds = min(_processor_seconds(folder) for _ in range(repeats))
            table.add(name, count, seconds, 5.0, seconds <= 5.0)


def _processor_seconds(folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "bursar", "plan", "campaign.toml", "--sites", "sites.toml"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _compiled(bench: Benchmark) -> None:
    tasks = bench.of(1_000, 1_000, 40)
    found = subprocess.run(
        [sys.executable, __file__, "--one-schedule", str(tasks)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    plain = float(json.loads(found.stdout))
    compiled = _time_of_one(_layers(tasks, 40))
    bench.figures(
        f"one schedule of {tasks:,} tasks on 64 processors",
        [
            Figure("plain Python", 1000 * plain, "ms"),
            Figure("compiled", 1000 * compiled, "ms"),
            Figure("plain Python / compiled", plain / compiled, "times"),
        ],
    )


def _time_of_one(
    workflow: Workflow, sites: list[SiteFacts] | None = None, repeats: int = 5
) -> float:
    problem = build_problem(workflow, sites or [CLUSTER])
    return _least(lambda: schedule(problem, problem.everything), repeats)[0]


def _least(action: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Least time of some runs, seconds, and what the last one answered."""
    times, answer = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        answer = action()
        times.append(time.perf_counter() - began)
    return min(times), answer


def _read_stg(text: str) -> Workflow:
    """Number, time, number of predecessors, predecessors; first the number of tasks."""
    lines = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    return Workflow(
        tuple(
            Task(id=task, runtime=float(length), after=tuple(parents))
            for task, length, _, *parents in lines[1:]
        )
    )


def _layers(tasks: int, width: int) -> Workflow:
    """Layers of the given width, two random parents in the one before; a tenth is wide."""
    rng = np.random.default_rng(1)
    runtimes = rng.uniform(1, 100, tasks)
    parents = rng.integers(0, width, (tasks, 2))
    return Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=float(runtimes[i]),
                processors=4 if i % 10 == 0 else 1,
                after=tuple({f"t{i // width * width - width + int(k)}" for k in parents[i]})
                if i >= width
                else (),
            )
            for i in range(tasks)
        )
    )


def _bag(tasks: int) -> Workflow:
    """Independent tasks of 1 to 100 s."""
    runtimes = np.random.default_rng(1).uniform(1, 100, tasks)
    return Workflow(tuple(Task(id=f"t{i}", runtime=float(r)) for i, r in enumerate(runtimes)))


if __name__ == "__main__":
    main()
