"""Buyya, Giddy, Abramson 2000, section 4: the strategies on ten test queues."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.api.simulating import simulate
from bursar.broker.strategies import Strategy
from bursar.dispatch.journal import read_journal
from bursar.model.campaign import Campaign
from bursar.model.goal import Goal
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.model.workflow import Workflow
from bursar.papers import drawing
from bursar.papers.experiment import Cell, Effort, Experiment, Finding, Row

if TYPE_CHECKING:
    import altair

JOBS, SECONDS = 100, 90.0
PRICES = range(10, 30, 2)
"""Of the ten queues, per processor-second."""
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


def campaign(deadline: float, budget: float) -> Campaign:
    """A hundred jobs of 90 seconds."""
    tasks = tuple(Task(id=str(i), runtime=SECONDS) for i in range(JOBS))
    return Campaign(
        name="test-queues",
        workflow=Workflow(tasks),
        goal=Goal(deadline=deadline, budget=budget),
    )


def queues() -> tuple[SiteFacts, ...]:
    """Each runs its jobs one after the other."""
    return tuple(
        SiteFacts(name=f"queue-{price}", kind="simulated", processors=1, unit_price=float(price))
        for price in PRICES
    )


def optimum(strategy: str, deadline: float, budget: float) -> float | None:
    """
    The least cost, or the least time, at which all jobs are done within both limits.

    As all jobs are alike, a deadline lets each queue run so many, and filling the cheapest
    first costs least: no linear programme can do better. None where that is too late or
    too dear; of a strategy that minimises neither, the least cost.
    """
    most = int(deadline // SECONDS)
    for rounds in range(1, most + 1) if strategy == "time" else [most]:
        left, cost = JOBS, 0.0
        for price in PRICES:
            jobs = min(left, rounds)
            left -= jobs
            cost += jobs * price * SECONDS
        if not left and cost <= budget:
            return rounds * SECONDS if strategy == "time" else cost
    return None


# Table 2.


def _scenarios(effort: Effort) -> list[Cell]:
    return [
        {"strategy": strategy, "deadline": deadline, "budget": budget, "seed": 0}
        for strategy in STRATEGIES
        for deadline in DEADLINES
        for budget in BUDGETS
    ]


def _measure_scenario(cell: Cell, data: Path) -> list[Row]:
    wanted = campaign(cell["deadline"], cell["budget"])
    told = simulate(wanted, queues(), strategy=cell["strategy"]).to_dict()
    return [
        dict(cell)
        | {
            "completed": 100 * told["succeeded"] / JOBS,
            "time": told["makespan_s"],
            "cost": told["cost"],
            "optimum": optimum(cell["strategy"], cell["deadline"], cell["budget"]),
        }
    ]


def _find_scenarios(rows: Sequence[Row]) -> list[Finding]:
    found = []
    for row in rows:
        strategy, deadline, budget = row["strategy"], row["deadline"], row["budget"]
        completed, seconds, cost = STATED[strategy, deadline, budget]
        best = row["optimum"]
        unit = "s" if strategy == "time" else "units"
        found.append(
            Finding(
                what=f"{strategy}, {deadline} s, {budget:,}",
                paper=f"{completed} %, {seconds:,} s, {cost:,}",
                ours=f"{row['completed']:.0f} %, {row['time']:,.0f} s, {row['cost']:,.0f}",
                agrees=abs(completed - row["completed"]) <= _NEAR
                and abs(cost - row["cost"]) <= _NEAR / 100 * cost,
                remark="infeasible" if best is None else f"optimum: {best:,.0f} {unit}",
            )
        )
    return found


_NEAR = 5.0
"""Points of completion and per cent of the cost within which two runs agree."""


def _draw_scenarios(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [row | {"scenario": f"{row['deadline']} s, {row['budget']:,}"} for row in rows]
    draw = partial(drawing.bars, shown, x="scenario", by="strategy")
    return {
        "completed": draw(y="completed", titles=("deadline, budget", "jobs completed (%)")),
        "cost": draw(y="cost", titles=("deadline, budget", "cost")),
        "time": draw(y="time", titles=("deadline, budget", "time (s)")),
    }


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
        simulate(wanted, queues(), strategy=cell["strategy"], name="run", runs=folder)
        records = read_journal(Path(folder) / "run" / "journal.sqlite").records
    spans = [(record.outcome.start, record.outcome.end) for record in records]
    return [
        dict(cell) | {"time": at, "queues": sum(start <= at < end for start, end in spans)}
        for at in range(0, int(max(end for _, end in spans)) + STEP, STEP)
    ]


def _find_usage(rows: Sequence[Row]) -> list[Finding]:
    strategy = rows[0]["strategy"]
    ours = []
    for budget in BUDGETS:
        used = [row["queues"] for row in rows if row["budget"] == budget and row["time"] >= SECONDS]
        busy = [n for n in used if n]
        ours.append(f"{budget:,}: {min(busy, default=0)} to {max(busy, default=0)}")
    paper = {
        "cost": "10 at first, then the 4 or 5 cheapest, whatever the budget",
        "time": "10 to the end, but for the lowest budget",
        "none": "as time at the largest budget, nearly as cost at the lowest",
    }[strategy]
    at_first = max(row["queues"] for row in rows if row["time"] < SECONDS)
    return [
        Finding(
            what="queues in use after the first jobs, by budget",
            paper=paper,
            ours=f"{at_first} at first; {', '.join(ours)}",
            agrees=None,
        )
    ]


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
