"""HPDC 2007, figures 1 to 4: plans over 124 slots, and the free slots of a schedule."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bursar.cluster.machine import Machine
from bursar.cluster.slots import offered_slots
from bursar.model.errors import InputError
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.genetic import moga
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import PlacementPolicy, Scheduler, SearchLimits
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.simulation.workloads import poisson_arrivals
from bursar_devtools.front_measures import at_trade_off, nondominated
from bursar_papers import drawing
from bursar_papers.equivalence import (
    ABOVE,
    Comparison,
    compare_with_bounds,
    compare_with_stated,
)
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.summary import Summary, grouped, selected
from bursar_papers.workflows import BANDWIDTH, SITES, layered

if TYPE_CHECKING:
    import altair

TRADE_OFFS = tuple(k / 10 for k in range(11))
SCHEDULERS: tuple[Scheduler, ...] = ("heft", "greedy", "minmin", "maxmin")
REPETITIONS: dict[Effort, int] = {"quick": 3, "normal": 10, "full": 20}
Charts = dict[str, "altair.TopLevelMixin"]

MEAN_GAP = MEAN_DURATION = 1000.0
"""Mean time between the starts of a site's slots, and their mean duration, seconds."""


def poisson_slots(
    rng: np.random.Generator, *, until: float = 30_000.0, count: int | None = 124
) -> list[Slot]:
    """
    Draw the slots on offer of section 3, by start.

    The first slot of each site starts at 0 and each further one an exponential time later;
    durations are exponential, processors uniform from 1 to the site's. All cost 1 for each
    processor-second and nothing besides, and can neither be divided nor extended. As in the paper,
    slots of one site may together be wider than it.

    Parameters
    ----------
    until
        Seconds: the last slot starts before.
    count
        How many there shall be, over all sites: drawn again until they are. The paper's set has
        124, which is what one expects of it. None: as many as come.

    Raises
    ------
    InputError
        When so many never come.
    """
    for _ in range(10_000):
        slots = [
            Slot(
                site=name,
                start=start,
                duration=max(duration, 1e-3),
                processors=width,
                unit_price=1.0,
                fixed_price=0.0,
                divisible=False,
                extensible=False,
            )
            for name, processors in SITES.items()
            for start, duration, width in _slots_of_site(rng, processors, until)
        ]
        # Drawn again as a whole, so that the set is one that the process really gives.
        if count is None or len(slots) == count:
            return sorted(slots, key=lambda slot: (slot.start, slot.site))
    raise InputError(f"{count} slots are too far from what these sites offer in {until:g} s")


def _slots_of_site(
    rng: np.random.Generator, processors: int, until: float
) -> list[tuple[float, float, int]]:
    """Draw the start, the duration and the processors of each slot of one site."""
    starts = np.concatenate(([0.0], poisson_arrivals(rng, until, MEAN_GAP)))
    durations = rng.exponential(MEAN_DURATION, len(starts))
    widths = rng.integers(1, processors + 1, len(starts))
    return list(zip(starts.tolist(), durations.tolist(), widths.tolist(), strict=True))


def slots_and_tasks(seed: int) -> PlanningProblem:
    """Return the problem of section 3: 124 slots of four sites, 100 tasks of 100 s."""
    rng = np.random.default_rng(seed)
    offered = poisson_slots(rng)
    names = sorted({slot.site for slot in offered})
    sites = []
    for name in names:
        slots = tuple(slot for slot in offered if slot.site == name)
        sites.append(
            SiteFacts(
                name=name,
                processors=sum(slot.processors for slot in slots),  # they may overlap there
                slots=slots,
                links={other: Link(bandwidth=BANDWIDTH) for other in names if other != name},
            )
        )
    return build_problem(layered(rng, tasks=100, depth=10, mean_transfer=100.0), sites)


def _search(
    problem: PlanningProblem, seed: int, scheduler: Scheduler, generations: int
) -> PlanSearch:
    """MOGA with the paper's accounting: a slot of the plan is paid though nothing runs in it."""
    evaluator = PurchaseEvaluator(
        # One thread: cells are measured side by side in processes already.
        problem,
        PlacementPolicy(scheduler=scheduler),
        whole=True,
        threads=1,
    )
    search = PlanSearch(evaluator, SearchLimits(population=50, generations=generations, seed=seed))
    moga(search)
    return search


def _seeds(effort: Effort) -> list[Cell]:
    return [{"seed": seed} for seed in range(REPETITIONS[effort])]


def _measure_front(cell: Cell, data: Path) -> list[Row]:
    search = _search(slots_and_tasks(cell["seed"]), cell["seed"], "heft", 50)
    front = search.archive.points
    rows: list[Row] = [
        {
            "seed": cell["seed"],
            "kind": "count",
            "feasible": len(search.points),
            "pareto": len(front),
        }
    ]
    if cell["seed"] == 0:  # one is drawn
        rows += [_point(cell, "feasible", *p) for p in search.points.tolist()]
        rows += [_point(cell, "Pareto", *p) for p in front.tolist()]
    for weight in TRADE_OFFS:
        makespan, cost = front[at_trade_off(front, weight)].tolist()
        rows.append(_point(cell, "chosen", makespan, cost) | {"trade_off": weight})
    return rows


def _point(cell: Cell, kind: str, makespan: float, cost: float) -> Row:
    return {
        "seed": cell["seed"],
        "kind": kind,
        "trade_off": None,
        "makespan": makespan / 1000,
        "cost": cost / 1000,
    }


def _find_front(rows: Sequence[Row]) -> list[PaperFinding]:
    """Compare how many feasible and Pareto plans a search met with the paper's 1742 and 40."""
    counts = selected(rows, kind="count")
    feasible = Summary.of([r["feasible"] for r in counts])
    pareto = Summary.of([r["pareto"] for r in counts])
    return [
        compare_mean("feasible plans met", 1742, feasible),
        compare_mean(
            "Pareto plans among them",
            40,
            pareto,
            "where every slot of a plan is paid, a front is as long as there are ways to trade "
            "a slot; docs/papers/hpdc07.md",
        ),
    ]


def _find_choice(rows: Sequence[Row]) -> list[PaperFinding]:
    chosen = grouped(selected(rows, kind="chosen"), ("trade_off",), "makespan")
    cost = grouped(selected(rows, kind="chosen"), ("trade_off",), "cost")
    slower = chosen[(1.0,)].mean / chosen[(0.0,)].mean - 1
    cheaper = 1 - cost[(1.0,)].mean / cost[(0.0,)].mean
    return [
        PaperFinding(
            what="from trade-off 0 to 1: makespan longer, cost lower by",
            paper="a considerable reduction in cost for little increase in makespan",
            ours=f"{slower:.0%} longer, {cheaper:.0%} lower",
        )
    ]


def _draw_front(rows: Sequence[Row]) -> Charts:
    shown = [row for row in rows if row["kind"] in ("feasible", "Pareto")]
    titles = ("makespan (1,000 s)", "allocation cost (1,000)")
    return {"plans": drawing.points(shown, x="makespan", y="cost", by="kind", titles=titles)}


def _draw_choice(rows: Sequence[Row]) -> Charts:
    chosen = selected(rows, kind="chosen")
    axis = "trade-off factor"
    return {
        what: drawing.curves(chosen, x="trade_off", y=what, by="kind", titles=(axis, title))
        for what, title in (
            ("makespan", "makespan (1,000 s)"),
            ("cost", "allocation cost (1,000)"),
        )
    }


def _measure_schedulers(cell: Cell, data: Path) -> list[Row]:
    problem = slots_and_tasks(cell["seed"])
    fronts = [_search(problem, cell["seed"], name, 20).archive.points for name in SCHEDULERS]
    # Dominance over the common front: a plan counts for the scheduler that found it.
    owners = np.repeat(SCHEDULERS, [len(front) for front in fronts])
    kept = owners[nondominated(np.concatenate(fronts))]
    return [
        {"seed": cell["seed"], "scheduler": name, "surviving": int((kept == name).sum())}
        for name in SCHEDULERS
    ]


def _find_schedulers(rows: Sequence[Row]) -> list[PaperFinding]:
    surviving = grouped(rows, ("scheduler",), "surviving")
    total = sum(s.mean for s in surviving.values())
    return [
        PaperFinding(
            what="plans of the common front that are the scheduler's",
            paper="most of 39 are HEFT's",
            ours=", ".join(f"{k[0]} {s.mean:.1f}" for k, s in surviving.items())
            + f" of {total:.1f}",
            comparisons=tuple(_more_than(rows, name) for name in SCHEDULERS if name != "heft"),
        )
    ]


def _more_than(rows: Sequence[Row], other: str) -> Comparison:
    """Compare HEFT's number of plans with another scheduler's, instance by instance."""
    theirs = {row["seed"]: row["surviving"] for row in selected(rows, scheduler=other)}
    ahead = [r["surviving"] - theirs[r["seed"]] for r in selected(rows, scheduler="heft")]
    return compare_with_bounds(Summary.of(ahead), at_least=ABOVE, name=f"HEFT's less {other}'s")


def _draw_schedulers(rows: Sequence[Row]) -> Charts:
    titles = ("scheduler", "plans that no other beats")
    return {"surviving": drawing.bars(rows, x="scheduler", y="surviving", by=None, titles=titles)}


def _one(effort: Effort) -> list[Cell]:
    return [{"seed": 0}]


def _measure_slots(cell: Cell, data: Path) -> list[Row]:
    """A schedule with what the text states: 5 nodes, 3 reservations, last end 4, horizon 6."""
    machine = Machine(5)
    planned = {"A": (0.0, 2.0, 2), "B": (1.0, 2.0, 2), "C": (3.0, 1.0, 1)}
    for start, duration, processors in planned.values():
        machine.reserve(start, duration, processors)
    rows: list[Row] = []
    busy: list[tuple[float, float, float, float]] = []

    def place(name: str, kind: str, begin: float, end: float, count: int) -> None:
        """On the lowest processors free all that time, which need not be neighbours."""
        left = count
        for low in range(machine.processors):
            taken = any(b < end and begin < e and lo <= low < hi for b, e, lo, hi in busy)
            if not taken and left:
                busy.append((begin, end, low, low + 1))
                rows.append(
                    {"name": name, "kind": kind, "begin": begin, "end": end,
                     "low": low, "high": low + 1}
                )  # fmt: skip
                left -= 1

    for name, (start, duration, processors) in planned.items():
        place(name, "reserved", start, start + duration, processors)
    for number, slot in enumerate(offered_slots(machine, horizon=6.0), 1):
        kind = "divisible, extensible" if slot.divisible else "paid whole"
        place(str(number), kind, slot.start, slot.end, slot.processors)
    return rows


def _find_slots(rows: Sequence[Row]) -> list[PaperFinding]:
    slots = {row["name"] for row in rows if row["kind"] != "reserved"}
    return [
        PaperFinding(
            what="free slots of three reservations on five nodes",
            paper="6",
            ours=str(len(slots)),
            uncounted="identity",
            remark="the paper's drawing is not in its text: the schedule was made here, so that it "
            "has all that is stated, the six slots included",
        )
    ]


def _draw_slots(rows: Sequence[Row]) -> Charts:
    return {"slots": drawing.rectangles(rows, titles=("time", "node"), by="kind")}


def compare_mean(what: str, stated: float, ours: Summary, remark: str = "") -> PaperFinding:
    """Hold a mean of ours against a number of the paper."""
    return PaperFinding(
        what=what,
        paper=f"{stated:,.4g}",
        ours=str(ours),
        comparisons=(compare_with_stated(ours, stated),),
        remark=remark,
    )


_SECTION_3 = "124 slots of four sites, 100 tasks of 100 s; MOGA 50 x 50; seeds are instances."


SLOT_EXPERIMENTS = (
    Experiment(
        paper="hpdc07", figure="1", title="all feasible plans and the Pareto front",
        about=_SECTION_3,
        cells=_seeds, measure=_measure_front,
        findings=_find_front, charts=_draw_front,
    ),
    Experiment(
        paper="hpdc07", figure="2", title="the plan chosen, by trade-off factor",
        about=_SECTION_3,
        cells=_seeds, measure=_measure_front,
        findings=_find_choice, charts=_draw_choice,
    ),
    Experiment(
        paper="hpdc07", figure="3", title="plans that survive in the common front, by scheduler",
        about="As figure 1, MOGA 50 x 20 with each scheduler.",
        cells=_seeds, measure=_measure_schedulers,
        findings=_find_schedulers, charts=_draw_schedulers,
    ),
    Experiment(
        paper="hpdc07", figure="4", title="free slots of a schedule",
        about="Five nodes, three reservations, horizon 6.",
        cells=_one, measure=_measure_slots,
        findings=_find_slots, charts=_draw_slots,
    ),
)  # fmt: skip
