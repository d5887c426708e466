"""
Planning: how good the plans are, and how long they take.

Three tables:

quality
    HEFT's makespan over the published optimum of the standard task graphs
    (960 instances; those whose value is provably out of reach left out, and
    counted), over the proven lower bound, and the same for tasks placed in the
    order they are listed instead of by rank, and for the search over orders
    (400 schedules a graph).
curves
    Recorded and synthetic workflows: time for the whole curve after the first
    call, time for one schedule, points, and the largest gap to the bound.
compiled
    One schedule by the compiled kernels and by the same kernels as plain Python
    (in a process of its own), in one run, with the ratio.

Use::

    python benchmarks/planning.py [--data FOLDER]

The folder of reference data may also be named by ``BURSAR_DATA``; without it
only the synthetic workflows are measured. Times are the least of some runs on
a machine that may be doing other things too.
"""

import csv
import json
import lzma
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bursar.formats.dax import read_dax
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.model.workflow import Workflow
from bursar.planning.bounds import makespan_bounds
from bursar.planning.evaluation import Evaluator
from bursar.planning.front import trade_off
from bursar.planning.limits import Limits
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.search import Search
from bursar.planning.policy import Policy
from bursar.planning.problem import build_problem
from bursar.planning.schedulers import schedule

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


def main() -> None:
    """All three tables."""
    if sys.argv[1:] == ["--one-schedule"]:
        print(json.dumps(_time_of_one(_layers(1_000, 40), repeats=3)))
        return
    data = _data_folder()
    _warm_up()
    if data is None:
        print("quality: skipped, no reference data (name its folder by --data or BURSAR_DATA)\n")
    else:
        _quality(data)
    _curves(data)
    _compiled()


def _data_folder() -> Path | None:
    if "--data" in sys.argv[1:-1]:
        folder = Path(sys.argv[sys.argv.index("--data") + 1])
    elif len(sys.argv) > 1:
        sys.exit(f"expected [--data FOLDER], got {' '.join(sys.argv[1:])}")
    else:
        folder = Path(os.environ.get("BURSAR_DATA", DEFAULT))
    return folder if folder.is_dir() else None


def _warm_up() -> None:
    began = time.perf_counter()
    trade_off(_layers(20, 4), [CLUSTER])
    print(f"first call, compiling or loading the kernels: {time.perf_counter() - began:.2f} s\n")


def _quality(data: Path) -> None:
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
    with (folder / "stg_optimal.csv").open() as file:
        for row in csv.DictReader(file):
            problem, processors = graphs[row["graph"]], int(row["processors"])
            optimum, bought = float(row["optimal_makespan"]), np.array([processors])
            bound = float(makespan_bounds(problem, bought[None, :])[0])
            if bound > optimum:
                out_of_reach += 1
                continue
            made = schedule(problem, bought)
            listed = schedule(problem, bought, Policy(scheduler="list")).makespan
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
    print("quality, standard task graphs: makespan over the published optimum")
    print(
        f"{'processors':>10} {'HEFT':>8} {'worst':>7} {'as listed':>10} {'searched':>9} "
        f"{'worst':>7} "
        f"{'HEFT/bound':>11} {'HEFT optimal':>13} {'searched optimal':>17}"
    )
    for processors, values in sorted(rows.items()):
        heft, listed, searched, gap, hit, found = np.mean(values, axis=0)
        worst, _, worst_searched, *_ = np.max(values, axis=0)
        print(
            f"{processors:>10} {heft:>8.4f} {worst:>7.3f} {listed:>10.4f} {searched:>9.4f} "
            f"{worst_searched:>7.3f} {gap:>11.4f} {hit:>13.0%} {found:>17.0%}"
        )
    print(f"left out: {out_of_reach}, whose published value is below a proven bound\n")


def _searched(workflow: Workflow, processors: int) -> float:
    """The shortest makespan that the search finds on so many processors."""
    slot = Slot(
        site="s", start=0.0, duration=1.0, processors=processors, unit_price=1.0, extensible=True
    )
    site = SiteFacts(name="s", processors=processors, slots=(slot,))
    search = Search(
        Evaluator(build_problem(workflow, [site]), Policy()), Limits(evaluations=SEARCH)
    )
    elitist(search)
    return float(search.points[:, 0].min())


def _curves(data: Path | None) -> None:
    workflows: dict[str, Workflow] = {}
    if data is not None:
        for name in RECORDED:
            path = data / "workflows" / "dax" / f"{name}.xml.xz"
            workflows[name] = read_dax(path).workflow
    workflows["layers 1,000"] = _layers(1_000, 40)
    workflows["layers 8,000"] = _layers(8_000, 200)
    workflows["bag 100,000"] = _bag(100_000)
    print("curves (time after the first call)")
    print(
        f"{'workflow':>16} {'sites':>6} {'curve':>9} {'schedule':>10} "
        f"{'tried':>6} {'points':>7} {'largest gap':>12}"
    )
    for name, workflow in workflows.items():
        for sites in ([CLUSTER], GRID):
            curve, front = _least(lambda w=workflow, s=sites: trade_off(w, s), repeats=3)
            one = _time_of_one(workflow, sites)
            gap = max(option.gap or 0.0 for option in front.options)
            print(
                f"{name:>16} {len(sites):>6} {curve:>7.2f} s {1000 * one:>7.1f} ms "
                f"{front.evaluations:>6} {len(front.options):>7} {gap:>12.1%}"
            )
    print()


def _compiled() -> None:
    found = subprocess.run(
        [sys.executable, __file__, "--one-schedule"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    plain = float(json.loads(found.stdout))
    compiled = _time_of_one(_layers(1_000, 40))
    print("compiled (one schedule of 1,000 tasks on 64 processors)")
    print(f"{'plain Python':>16} {1000 * plain:>8.1f} ms")
    print(f"{'compiled':>16} {1000 * compiled:>8.1f} ms {plain / compiled:>7.0f} times faster")


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
