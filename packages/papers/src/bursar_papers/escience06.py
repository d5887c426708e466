"""
e-Science 2006: a genetic algorithm against Min-Min on total cost.

Singh, Kesselman, Deelman, *Application-level resource provisioning on the Grid*.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bursar.model.campaign import Goal, Workflow
from bursar.model.slot import Slot
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.elitist import elitist
from bursar.planning.methods.genetic import genetic
from bursar.planning.methods.search import PlanSearch
from bursar.planning.methods.sweep import minmin
from bursar.planning.policy import PlacementPolicy, Scheduler, SearchLimits
from bursar.planning.problem import PlanningProblem, build_problem
from bursar_papers import drawing
from bursar_papers.equivalence import BELOW, Comparison, compare_per_cent, compare_with_bounds
from bursar_papers.escience06_sites import offered_slots, one_processor_each, priced_slots, sites_of
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.summary import Summary, clustered, grouped, selected
from bursar_papers.workflows import layered

if TYPE_CHECKING:
    import altair

WEIGHTS = [k / 10 for k in range(11)]
SIZES = [100, 200, 300, 400, 500]
WORTH = 1.0
"""Currency units for a second of makespan, as in the paper."""
GA, MINMIN, OURS = "GA", "Min-Min", "ours"
POPULATION, ITERATIONS = 50, 20
Charts = dict[str, "altair.TopLevelMixin"]


def application(tasks: int, seed: int) -> Workflow:
    """Depth sqrt(n), two predecessors, run times of 100 s, transfers as long (CCR 1)."""
    rng = np.random.default_rng([seed, tasks])
    return layered(rng, tasks=tasks, depth=round(math.sqrt(tasks)), mean_transfer=100.0)


def _problem(cell: Cell) -> PlanningProblem:
    slots: tuple[Slot, ...] = offered_slots(cell["seed"])
    if cell["prices"] == "random":
        slots = priced_slots(slots, cell["seed"])
    if cell["fine"]:
        slots = one_processor_each(slots)
    return build_problem(application(cell["tasks"], cell["seed"]), sites_of(slots))


def _total(points: np.ndarray, weight: float) -> float | None:
    """Return the least total cost, equation 5; None without a plan."""
    if not len(points):
        return None
    return float((weight * points[:, 1] + (1 - weight) * WORTH * points[:, 0]).min())


def _by_ga(
    problem: PlanningProblem, weight: float, cell: Cell, size: int, iterations: int
) -> PlanSearch:
    scheduler: Scheduler = cell["scheduler"]
    policy = PlacementPolicy(scheduler=scheduler, weight=weight, worth=WORTH)
    limits = SearchLimits(population=size, generations=iterations, seed=cell["seed"])
    search = PlanSearch(PurchaseEvaluator(problem, policy, threads=1), limits)
    genetic(search, Goal())
    return search


def _by_minmin(problem: PlanningProblem, weight: float) -> PlanSearch:
    search = PlanSearch(
        PurchaseEvaluator(problem, PlacementPolicy(weight=weight, worth=WORTH), threads=1)
    )
    minmin(search, [weight])
    return search


def _measure(cell: Cell, data: Path) -> list[Row]:
    problem = _problem(cell)
    # As many evaluations as one run of the paper's GA, the first population included.
    limits = SearchLimits(evaluations=POPULATION * (ITERATIONS + 1), seed=cell["seed"])
    ours = PlanSearch(PurchaseEvaluator(problem, PlacementPolicy(worth=WORTH), threads=1), limits)
    elitist(ours)
    rows: list[Row] = []
    for weight in cell["weights"]:
        found = {
            GA: _by_ga(problem, weight, cell, POPULATION, ITERATIONS).points,
            MINMIN: _by_minmin(problem, weight).points,
            # One search for all weights: the front it keeps holds a best plan for each.
            OURS: ours.archive.points,
        }
        totals = {kind: _total(points, weight) for kind, points in found.items()}
        below = totals[MINMIN]
        rows += [
            {
                "seed": cell["seed"],
                "tasks": cell["tasks"],
                "weight": weight,
                "slots": problem.n_slots,
                "kind": kind,
                "total": total,
                "reduction": None if total is None or not below else 100 * (1 - total / below),
            }
            for kind, total in totals.items()
        ]
    return rows


def _cells(
    effort: Effort, *, scheduler: Scheduler = "list", prices: str = "one", fine: bool = False
) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 1, "normal": 3, "full": 6}
    count = min(repetitions[effort], 3) if fine else repetitions[effort]
    if effort == "quick":
        sizes, weights = [100, 300], [0.0, 0.5, 1.0]
    else:
        sizes, weights = SIZES, WEIGHTS
    return [
        {"tasks": tasks, "seed": seed, "weights": weights, "scheduler": scheduler,
         "prices": prices, "fine": fine}
        for tasks in reversed(sizes)  # the long ones first
        for seed in range(count)
    ]  # fmt: skip


def _cells_5(effort: Effort) -> list[Cell]:
    return _cells(effort)


def _cells_6(effort: Effort) -> list[Cell]:
    return _cells(effort, prices="random")


def _cells_7(effort: Effort) -> list[Cell]:
    return _cells(effort, scheduler="list-cost", prices="random")


def _cells_8(effort: Effort) -> list[Cell]:
    return _cells(effort, fine=True)


INCOMPLETE = 30.0
"""Per cent of Min-Min's schedules in figure 5 that are incomplete, as the paper states."""


def _findings(
    rows: Sequence[Row], stated: str, comparisons: tuple[Comparison, ...]
) -> list[PaperFinding]:
    """Return the mean reductions; each seed counts once, as instances share a background."""
    return [
        PaperFinding(
            what="total cost of the GA below Min-Min's (%)",
            paper=stated,
            ours=f"{_reduced(rows)} (least {_least(rows):.3g})",
            comparisons=comparisons,
        ),
        PaperFinding(
            what="total cost of our search below Min-Min's (%), one search for all weights",
            paper="",
            ours=str(clustered(selected(rows, kind=OURS), ("seed",), "reduction")),
        ),
    ]


def _reduced(rows: Sequence[Row]) -> Summary:
    return clustered(selected(rows, kind=GA), ("seed",), "reduction")


def _least(rows: Sequence[Row]) -> float:
    """Return the GA's least reduction against Min-Min over all instances, per cent."""
    found = [r["reduction"] for r in selected(rows, kind=GA) if r["reduction"] is not None]
    return min(found, default=math.nan)


def _of_all(
    rows: Sequence[Row], at_least: float = -math.inf, at_most: float = math.inf
) -> Comparison:
    """
    Compare the least reduction of all instances there could be.

    It is at most the least one met: a sample can show that some are below 0, never that none is.
    """
    least = _least(rows)
    # Without a measured instance anything is possible, and the comparison stays open.
    high = math.inf if math.isnan(least) else least
    return Comparison(
        name="least", mean=least, low=-math.inf, high=high, at_least=at_least, at_most=at_most
    )


def _incomplete(rows: Sequence[Row]) -> Summary:
    """Return the per cent of Min-Min's schedules that are incomplete, seed by seed."""
    tried = [
        {"seed": row["seed"], "incomplete": 100.0 * (row["total"] is None)}
        for row in selected(rows, kind=MINMIN)
    ]
    return clustered(tried, ("seed",), "incomplete")


def _find_5(rows: Sequence[Row]) -> list[PaperFinding]:
    found, incomplete = _reduced(rows), _incomplete(rows)
    return [
        *_findings(rows, "25 to 30", (compare_with_bounds(found, 25.0, 30.0),)),
        PaperFinding(
            what="Min-Min incomplete (%)",
            paper=f"{INCOMPLETE:g}",
            ours=str(incomplete),
            comparisons=(compare_per_cent(incomplete, INCOMPLETE),),
        ),
    ]


def _find_6(rows: Sequence[Row]) -> list[PaperFinding]:
    return _findings(
        rows,
        "less than the 25 of figure 5; below 0 in some instances",
        (
            compare_with_bounds(_reduced(rows), at_most=25.0, name="mean"),
            _of_all(rows, at_most=BELOW),
        ),
    )


def _find_7(rows: Sequence[Row]) -> list[PaperFinding]:
    return _findings(
        rows,
        "more than in figure 6, never below 0",
        (_of_all(rows, at_least=0.0),),
    )


def _find_8(rows: Sequence[Row]) -> list[PaperFinding]:
    return [
        *_findings(rows, "5 to 10", (compare_with_bounds(_reduced(rows), 5.0, 10.0),)),
        PaperFinding(
            what="Min-Min incomplete (%)",
            paper="fewer than in figure 5",
            ours=str(_incomplete(rows)),
            comparisons=(compare_with_bounds(_incomplete(rows), at_most=INCOMPLETE),),
        ),
    ]


def _draw(rows: Sequence[Row]) -> Charts:
    titles = ("weight of the cost", "total cost below Min-Min's, %")
    shown = [row | {"size": f"{row['tasks']} tasks"} for row in selected(rows, kind=GA)]
    beside = [row for row in rows if row["kind"] != MINMIN]
    return {
        "reduction": drawing.bars(shown, x="weight", y="reduction", by="size", titles=titles),
        "methods": drawing.bars(beside, x="weight", y="reduction", by="kind", titles=titles),
    }


# Run times, and population against iterations.


def _time_cells(effort: Effort) -> list[Cell]:
    sizes = [100, 300] if effort == "quick" else SIZES
    return [
        {"tasks": tasks, "seed": 0, "scheduler": "list", "prices": "one", "fine": fine}
        for tasks in sizes
        for fine in (False, True)
    ]


def _measure_time(cell: Cell, data: Path) -> list[Row]:
    problem = _problem(cell)
    warm = _problem(dict(cell) | {"tasks": 20, "fine": False})
    rows: list[Row] = []
    for kind in (GA, MINMIN):
        for p in (warm, problem):  # the first compiles, or loads what was compiled
            began = time.perf_counter()
            if kind == GA:
                _by_ga(p, 0.5, cell, POPULATION, ITERATIONS)
            else:
                _by_minmin(p, 0.5)
            seconds = time.perf_counter() - began
        rows.append(
            {
                "tasks": cell["tasks"],
                "slots": problem.n_slots,
                "fine": cell["fine"],
                "kind": kind,
                "seconds": seconds,
            }
        )
    return rows


def _find_time(rows: Sequence[Row]) -> list[PaperFinding]:
    findings = []
    for fine, stated, most in ((False, "less than half", 0.5), (True, "a tenth", 0.2)):
        seconds = grouped(selected(rows, fine=fine), ("tasks", "kind"), "seconds")
        sizes = dict.fromkeys(tasks for tasks, _ in seconds)
        ratio = Summary.of([seconds[n, MINMIN].mean / seconds[n, GA].mean for n in sizes])
        findings.append(
            PaperFinding(
                what=f"time of Min-Min over the GA's, {'fine' if fine else 'coarse'} slots",
                paper=stated,
                ours=str(ratio),
                comparisons=(compare_with_bounds(ratio, at_most=most),),
                remark="a size of the application is a measurement",
            )
        )
    return findings


def _draw_time(rows: Sequence[Row]) -> Charts:
    shown = [r | {"series": f"{r['kind']}, {'fine' if r['fine'] else 'coarse'}"} for r in rows]
    titles = ("tasks", "seconds")
    return {"seconds": drawing.bars(shown, x="tasks", y="seconds", by="series", titles=titles)}


SHAPES = [(10, 100), (20, 50), (50, 20), (100, 10)]


def _shape_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 10, "full": 20}
    return [
        {"tasks": 200, "seed": seed, "scheduler": "list", "prices": "one", "fine": False}
        for seed in range(repetitions[effort])
    ]


def _measure_shape(cell: Cell, data: Path) -> list[Row]:
    problem = _problem(cell)
    rows: list[Row] = []
    for size, iterations in SHAPES:
        points = _by_ga(problem, 0.5, cell, size, iterations).points
        rows.append(
            {
                "seed": cell["seed"],
                "population": size,
                "iterations": iterations,
                "shape": f"{size} x {iterations}",
                "total": _total(points, 0.5),
            }
        )
    return rows


def _find_shape(rows: Sequence[Row]) -> list[PaperFinding]:
    totals = grouped(rows, ("shape",), "total")
    told = ", ".join(f"{shape}: {s}" for (shape,), s in totals.items())
    few = {row["seed"]: row["total"] for row in selected(rows, shape="10 x 100")}
    change = Summary.of(
        [
            100 * (row["total"] / few[row["seed"]] - 1)
            for row in selected(rows, shape="100 x 10")
            if row["total"] is not None and few.get(row["seed"])
        ]
    )
    return [
        PaperFinding(
            what="total cost by population and iterations, 1,000 schedules each",
            paper="population counts more than iterations",
            ours=f"{told}; the last above the first by {change} %",
            comparisons=(compare_with_bounds(change, at_most=BELOW),),
        )
    ]


def _draw_shape(rows: Sequence[Row]) -> Charts:
    titles = ("population x iterations", "total cost")
    return {"total": drawing.bars(rows, x="shape", y="total", by=None, titles=titles)}


_ABOUT = (
    "214 free slots of four sites under a Poisson background, FCFS; 100 to 500 tasks; "
    "GA 50 x 20; seeds are backgrounds and applications."
)
EXPERIMENTS = (
    Experiment(
        paper="escience06", figure="5", title="GA below Min-Min in total cost, unit prices of 1",
        about=_ABOUT, cells=_cells_5, measure=_measure, findings=_find_5, charts=_draw,
    ),
    Experiment(
        paper="escience06", figure="6", title="the same, unit prices uniform from 0 to 2",
        about=_ABOUT, cells=_cells_6, measure=_measure, findings=_find_6, charts=_draw,
    ),
    Experiment(
        paper="escience06", figure="7", title="the same, list scheduling on total cost in the GA",
        about=_ABOUT, cells=_cells_7, measure=_measure, findings=_find_7, charts=_draw,
    ),
    Experiment(
        paper="escience06", figure="8", title="as figure 5, slots of one processor",
        about=_ABOUT, cells=_cells_8, measure=_measure, findings=_find_8, charts=_draw,
    ),
    Experiment(
        paper="escience06", figure="times", title="run times of Min-Min and of the GA",
        about="One application of each size, weight 0.5, one thread; measured, so no two calls "
        "that measure give the same.",
        cells=_time_cells, measure=_measure_time, findings=_find_time, charts=_draw_time,
    ),
    Experiment(
        paper="escience06", figure="shape", title="population against iterations of the GA",
        about="200 tasks, weight 0.5; seeds are backgrounds and applications.",
        cells=_shape_cells, measure=_measure_shape, findings=_find_shape, charts=_draw_shape,
    ),
)  # fmt: skip
