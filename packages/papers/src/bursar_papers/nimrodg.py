"""Buyya, Giddy, Abramson 2000, section 4: the strategies on ten test queues."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bursar.api.running import run
from bursar.api.simulating import simulate
from bursar.broker.strategies import Strategy
from bursar.dispatch.journal import read_journal
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Shell, Task
from bursar_papers import drawing
from bursar_papers.equivalence import (
    POINTS,
    Comparison,
    compare_with_bounds,
    compare_with_stated,
    describe_comparison,
)
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.summary import selected

if TYPE_CHECKING:
    import altair

JOBS, SECONDS = 100, 90.0
PRICES = range(10, 30, 2)
"""Prices of the ten queues, per processor-second."""
DEADLINES, BUDGETS = (990, 1980, 2970), (126_000, 171_000, 252_000)
STRATEGIES: tuple[Strategy, ...] = ("cost", "none", "time")

STATED: dict[tuple[str, int, int], tuple[int, int, int]] = {
    ("cost", 990, 126_000): (85, 946, 125_820),
    ("cost", 990, 171_000): (84, 942, 139_500),
    ("cost", 990, 252_000): (94, 928, 156_420),
    ("cost", 1980, 126_000): (97, 1927, 124_740),
    ("cost", 1980, 171_000): (99, 1918, 128_520),
    ("cost", 1980, 252_000): (98, 1931, 127_620),
    ("cost", 2970, 126_000): (98, 2931, 116_820),
    ("cost", 2970, 171_000): (98, 2925, 116_820),
    ("cost", 2970, 252_000): (100, 2918, 118_800),
    ("none", 990, 126_000): (78, 919, 120_060),
    ("none", 990, 171_000): (99, 930, 168_480),
    ("none", 990, 252_000): (100, 941, 171_000),
    ("none", 1980, 126_000): (97, 1902, 125_100),
    ("none", 1980, 171_000): (100, 1376, 160_740),
    ("none", 1980, 252_000): (100, 908, 171_000),
    ("none", 2970, 126_000): (99, 2928, 125_100),
    ("none", 2970, 171_000): (100, 1320, 161_460),
    ("none", 2970, 252_000): (100, 952, 171_000),
    ("time", 990, 126_000): (36, 955, 50_040),
    ("time", 990, 171_000): (100, 913, 171_000),
    ("time", 990, 252_000): (100, 930, 171_000),
    ("time", 1980, 126_000): (80, 1968, 101_340),
    ("time", 1980, 171_000): (100, 909, 171_000),
    ("time", 1980, 252_000): (100, 949, 171_000),
    ("time", 2970, 126_000): (100, 2193, 126_000),
    ("time", 2970, 171_000): (100, 928, 171_000),
    ("time", 2970, 252_000): (100, 922, 171_000),
}
"""Table 2: jobs completed (%), time (s) and cost of each strategy, deadline and budget."""


def cost_range(jobs: int, seconds: float) -> tuple[float, float]:
    """
    Return the least and the greatest possible cost of a number of jobs.

    Every queue does at most as many jobs as fit into the time in sequence.

    Parameters
    ----------
    jobs
        Number of completed jobs.
    seconds
        Time within which the jobs were completed.
    """
    each = int(seconds // SECONDS)

    def cost(prices: Sequence[int]) -> float:
        left, total = jobs, 0.0
        for price in prices:
            here = min(each, left)
            total, left = total + here * price * SECONDS, left - here
        return math.inf if left else total

    # Filled from the cheapest queue, and from the dearest.
    return cost(PRICES), cost(PRICES[::-1])


def is_possible(jobs: int, seconds: float, cost: float) -> bool:
    """Return whether a row of table 2 is possible on these queues under any rule."""
    least, most = cost_range(jobs, seconds)
    return least <= cost <= most


WISHES: dict[str, float | None] = {"cost": 1.0, "none": None, "time": 0.0}
"""What our own strategy is told of a scenario: the weight of cost against time. With None it
looks for the cheapest way, as there is a deadline."""


def campaign(deadline: float, budget: float, trade_off: float | None = None) -> Campaign:
    """A hundred jobs of 90 seconds."""
    tasks = tuple(Task(id=str(i), runtime=SECONDS) for i in range(JOBS))
    return Campaign(
        name="test-queues",
        workflow=Workflow(tasks),
        goal=Goal(deadline=deadline, budget=budget, trade_off=trade_off),
    )


def queues() -> tuple[SiteFacts, ...]:
    """Return the sites: queues of one processor each, by price."""
    return tuple(
        SiteFacts(name=f"queue-{price}", kind="simulated", processors=1, unit_price=float(price))
        for price in PRICES
    )


def optimum(strategy: str, deadline: float, budget: float) -> float | None:
    """
    Return the least cost, or the least time, of all jobs within both limits.

    By an integer programme: jobs for each queue, and of how many the longest queue is; of a
    strategy that minimises neither, the least cost. None where no schedule does all jobs.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    cost = np.array([price * SECONDS for price in PRICES])
    n = len(cost)
    least = np.append(np.zeros(n), 1.0) if strategy == "time" else np.append(cost, 0.0)
    # The last variable is the number of jobs in the longest queue, and so the makespan.
    found = milp(
        least,
        integrality=np.ones(n + 1),
        bounds=Bounds(0, np.full(n + 1, deadline // SECONDS)),
        constraints=[
            LinearConstraint(np.append(np.ones(n), 0.0), JOBS, JOBS),
            LinearConstraint(np.append(cost, 0.0), 0, budget),
            LinearConstraint(np.hstack([np.eye(n), np.full((n, 1), -1.0)]), -np.inf, 0),
        ],
    )
    if found.x is None:
        return None
    return float(round(found.fun) * (SECONDS if strategy == "time" else 1.0))


# Table 2.


def _scenarios(effort: Effort) -> list[Cell]:
    return [
        {"strategy": strategy, "deadline": deadline, "budget": budget, "by": by, "seed": 0}
        for strategy in STRATEGIES
        for deadline in DEADLINES
        for budget in BUDGETS
        for by in ("stated", "own")
    ]


def _measure_scenario(cell: Cell, data: Path) -> list[Row]:
    strategy: Strategy = cell["strategy"]
    wanted = campaign(cell["deadline"], cell["budget"], _wish(cell))
    told = simulate(
        wanted,
        queues(),
        strategy="adaptive" if cell["by"] == "own" else strategy,
        anyway=True,
    ).to_dict()
    return [_row(cell, told, 1.0)]


def _wish(cell: Cell) -> float | None:
    return WISHES[cell["strategy"]] if cell["by"] == "own" else None


def _row(cell: Cell, told: Mapping[str, Any], scale: float) -> Row:
    """Return what a scenario came to, in the paper's seconds."""
    return dict(cell) | {
        "completed": 100 * told["succeeded"] / JOBS,
        "time": (told["makespan_s"] or 0.0) / scale,
        "cost": told["cost"],
        "optimum": optimum(cell["strategy"], cell["deadline"], cell["budget"]),
    }


def _find_scenarios(rows: Sequence[Row], *, live: bool = False) -> list[PaperFinding]:
    """
    Hold the stated rule's completion, time and cost against the paper's; show our own strategy.

    A live run is one of other queues: nothing is held against the paper.
    """
    found = []
    own = {_scenario(row): row for row in rows if row["by"] == "own"}
    over: list[float] = []
    whole: list[bool] = []
    for row in rows:
        if row["by"] == "own":
            continue
        strategy, deadline, budget = _scenario(row)
        stated = STATED[strategy, deadline, budget]
        mine, best = own[_scenario(row)], row["optimum"]
        remarks = ["infeasible"]
        if best is not None:
            over_optimum = mine["time"] if strategy == "time" else mine["cost"]
            over.append(over_optimum / best - 1)
            whole.append(mine["completed"] == 100 and mine["time"] <= deadline)
            unit = "s" if strategy == "time" else "units"
            remarks = [f"optimum {best:,.0f} {unit}"]
        possible = is_possible(*stated)
        if not possible:
            least, _ = cost_range(*stated[:2])
            remarks.append(
                f"{stated[0]} jobs within {stated[1]} s cost at least {least:,.0f} on these queues"
            )
        found.append(
            PaperFinding(
                what=f"{strategy}, {deadline:,} s, {budget:,}",
                paper=_words(*stated),
                ours=f"stated rule {_words_of(row)}; own {_words_of(mine)}",
                comparisons=() if live else _beside(row, *stated),
                uncounted=None if possible else "impossible",
                remark="; ".join(remarks),
            )
        )
    found.append(
        PaperFinding(
            what="our own strategy in the feasible scenarios",
            paper="",
            ours=f"all jobs within both limits in {sum(whole)} of {len(whole)}; over the optimum: "
            f"mean {np.mean(over):.1%}, most {max(over):.1%}",
        )
    )
    return found


def _beside(row: Row, completed: int, seconds: int, cost: int) -> tuple[Comparison, ...]:
    """Compare all three: points of completion, and shares of the time and of the cost."""
    done = compare_with_bounds(
        row["completed"], completed - POINTS, completed + POINTS, name="completed (%)"
    )
    return (
        done,
        compare_with_stated(row["time"], seconds, name="time (s)"),
        compare_with_stated(row["cost"], cost, name="cost"),
    )


def _scenario(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["strategy"], row["deadline"], row["budget"]


def _words(completed: float, seconds: float, cost: float) -> str:
    return f"{completed:.0f} %, {seconds:,.0f} s, {cost:,.0f}"


def _words_of(row: Row) -> str:
    return _words(row["completed"], row["time"], row["cost"])


def _draw_scenarios(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [
        row
        | {
            "scenario": f"{row['deadline']} s, {row['budget']:,}",
            "who": f"{row['strategy']}, {row['by']}",
        }
        for row in rows
    ]
    draw = partial(drawing.bars, shown, x="scenario", by="who")
    return {
        "completed": draw(y="completed", titles=("deadline, budget", "jobs completed (%)")),
        "cost": draw(y="cost", titles=("deadline, budget", "cost")),
        "time": draw(y="time", titles=("deadline, budget", "time (s)")),
    }


# The same live: sites of this machine, and jobs that last as long as they say.

SCALE = 1 / 30
"""Seconds for each of the paper's."""


def _live_scenarios(effort: Effort) -> list[Cell]:
    every = _scenarios(effort)
    if effort == "quick":
        return [cell for cell in every if (cell["deadline"], cell["budget"]) == (990, 252_000)]
    return every


def _measure_live(cell: Cell, data: Path) -> list[Row]:
    sites = tuple(
        SiteFacts(name=f"queue-{price}", kind="local", processors=1, unit_price=price / SCALE)
        for price in PRICES
    )
    wanted = campaign(cell["deadline"] * SCALE, cell["budget"], _wish(cell))
    job = (Shell(f"sleep {SECONDS * SCALE:g}"),)
    tasks = tuple(
        replace(task, runtime=SECONDS * SCALE, steps=job) for task in wanted.workflow.tasks
    )
    with tempfile.TemporaryDirectory(prefix="bursar-") as folder:
        told = run(
            replace(wanted, workflow=Workflow(tasks)),
            sites,
            strategy="adaptive" if cell["by"] == "own" else cell["strategy"],
            anyway=True,
            runs=folder,
        ).to_dict()
    return [_row(cell, told, SCALE)]


# Figures 3 to 5: queues in use over time.

STEP = 30
"""Seconds between two looks."""


def _usage_cells(strategy: Strategy, effort: Effort) -> list[Cell]:
    return [
        {"strategy": strategy, "deadline": 1980, "budget": budget, "seed": 0} for budget in BUDGETS
    ]


def _measure_usage(cell: Cell, data: Path) -> list[Row]:
    wanted = campaign(cell["deadline"], cell["budget"])
    with tempfile.TemporaryDirectory() as folder:
        simulate(wanted, queues(), strategy=cell["strategy"], anyway=True, name="run", runs=folder)
        records = read_journal(Path(folder) / "run" / "journal.sqlite").records
    spans = [(record.outcome.start, record.outcome.end) for record in records]
    return [
        dict(cell) | {"time": at, "queues": sum(start <= at < end for start, end in spans)}
        for at in range(0, int(max(end for _, end in spans)) + STEP, STEP)
    ]


def _find_usage(rows: Sequence[Row]) -> list[PaperFinding]:
    strategy = rows[0]["strategy"]
    first = PaperFinding(
        what="queues in use by the first jobs",
        paper="10",
        ours=str(max(row["queues"] for row in rows if row["time"] < SECONDS)),
        uncounted="identity",
        remark="each queue is given one job at the start, which the paper leaves open",
    )
    return [first, *(_usage_of(strategy, budget, rows) for budget in BUDGETS)]


STATED_USAGE: dict[str, dict[int, tuple[str, float, float]]] = {
    "cost": dict.fromkeys(BUDGETS, ("the 4 or 5 cheapest, whatever the budget", 4, 5)),
    "time": {
        126_000: ("as figure 3 has it", 4, 5),
        171_000: ("10 to the end", 10, 10),
        252_000: ("10 to the end", 10, 10),
    },
    "none": {
        126_000: ("almost as figure 3 has it", 4, 5),
        252_000: ("as figure 4 has it: 10", 10, 10),
    },
}
"""Figures 3 to 5: queues in use after the first jobs, by budget, in words and as bounds."""


def _usage_of(strategy: str, budget: int, rows: Sequence[Row]) -> PaperFinding:
    """Hold the median and the most queues in use against the paper's words."""
    used = [
        row["queues"]
        for row in selected(rows, budget=budget)
        if row["time"] >= SECONDS and row["queues"]
    ]
    middle, most = float(np.median(used)), float(max(used, default=0))
    paper, low, high = STATED_USAGE[strategy].get(budget, ("", -math.inf, math.inf))
    comparisons = (
        compare_with_bounds(middle, low, high, name="median"),
        compare_with_bounds(most, low, high, name="most"),
    )
    return PaperFinding(
        what=f"queues in use after the first jobs, budget {budget:,}",
        paper=paper,
        ours=", ".join(map(describe_comparison, comparisons)),
        comparisons=comparisons if paper else (),
    )


def _draw_usage(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [row | {"of": f"budget {row['budget']:,}"} for row in rows]
    titles = ("time (s)", "queues in use")
    return {"usage": drawing.curves(shown, x="time", y="queues", by="of", titles=titles, zero=True)}


FIGURES: tuple[tuple[str, Strategy], ...] = (("3", "cost"), ("4", "time"), ("5", "none"))

ABOUT = (
    "100 jobs of 90 s on ten queues at 10 to 28 per processor-second; nothing is random. The "
    "paper's queues took some seconds between jobs; these take none."
)

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="nimrodg",
        figure="table-2",
        title="what each strategy completes, when and for how much",
        about=ABOUT,
        cells=_scenarios,
        measure=_measure_scenario,
        findings=_find_scenarios,
        charts=_draw_scenarios,
    ),
    Experiment(
        paper="nimrodg",
        figure="table-2-live",
        title="the same on ten sites of this machine, jobs of 3 s",
        about=f"{ABOUT} Here real sleeping jobs by the real dispatcher, at 1/30 of the time.",
        cells=_live_scenarios,
        measure=_measure_live,
        findings=partial(_find_scenarios, live=True),
        charts=_draw_scenarios,
        live=True,
    ),
    *(
        Experiment(
            paper="nimrodg",
            figure=figure,
            title=f"queues in use over time, {strategy} strategy, deadline 1,980 s",
            about=ABOUT,
            cells=partial(_usage_cells, strategy),
            measure=_measure_usage,
            findings=_find_usage,
            charts=_draw_usage,
        )
        for figure, strategy in FIGURES
    ),
)
