"""
Our own strategy beside the stated rules: run times known and unknown, without and with spread.

Buyya, Abramson, Giddy (2000) tell their broker no run times. So our strategy is run without
them, too; and both are run on jobs that differ, by equal seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bursar.api.simulating import simulate
from bursar.simulation.execution_model import ExecutionModel, ExecutionUncertainty
from bursar_papers import drawing
from bursar_papers.equivalence import BELOW, Comparison, compare_with_bounds
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.nimrodg import (
    BUDGETS,
    DEADLINES,
    JOBS,
    PRICES,
    SECONDS,
    STRATEGIES,
    WISHES,
    campaign,
    optimum,
    queues,
)
from bursar_papers.summary import Summary, selected

if TYPE_CHECKING:
    import altair

SPREAD = 0.2
"""Standard deviation of a job's time over its mean; log-normal."""

MOST_ABOVE = 1.0
"""Per cent that our strategy may need more than the stated rule, in any scenario."""

SEEDS: dict[Effort, int] = {"quick": 1, "normal": 4, "full": 12}

RULE, KNOWN, UNKNOWN = "stated rule", "own, run times known", "own, run times unknown"


def _cells(effort: Effort) -> list[Cell]:
    """Return the feasible scenarios for each rule; in a quick run, of one deadline only."""
    return [
        {
            "strategy": strategy,
            "deadline": deadline,
            "budget": budget,
            "by": by,
            "spread": spread,
            "seed": seed,
        }
        for strategy in STRATEGIES
        for deadline in (DEADLINES[:1] if effort == "quick" else DEADLINES)
        for budget in BUDGETS
        if optimum(strategy, deadline, budget) is not None
        for by in (RULE, KNOWN, UNKNOWN)
        for spread, seeds in ((0.0, 1), (SPREAD, SEEDS[effort]))
        for seed in range(seeds)
    ]


def _measure(cell: Cell, data: Path) -> list[Row]:
    strategy = cell["strategy"]
    own = cell["by"] != RULE
    wanted = campaign(cell["deadline"], cell["budget"], WISHES[strategy] if own else None)
    chance = ExecutionUncertainty(
        spread=cell["spread"], seed=cell["seed"], hidden=cell["by"] == UNKNOWN
    )
    told = simulate(
        wanted, queues(), strategy="adaptive" if own else strategy, chance=chance, anyway=True
    ).to_dict()
    world = ExecutionModel(wanted.workflow, queues(), chance)
    work = [world.attempt(task, 1, f"queue-{PRICES[0]}")[0] for task in range(JOBS)]
    most, best = bounds(strategy, cell["deadline"], cell["budget"], work)
    return [
        dict(cell)
        | {
            "completed": told["succeeded"],
            "time": told["makespan_s"] or 0.0,
            "cost": told["cost"],
            "most": most,
            "bound": best,
        }
    ]


def bounds(
    strategy: str, deadline: float, budget: float, work: Sequence[float]
) -> tuple[int, float | None]:
    """
    Bound what any schedule can do that knows all run times, by linear programming.

    The programme shares work among the queues as if jobs could be divided; the cheapest queues
    are filled to the deadline, which solves the programme. No strategy that learns run times as
    jobs end can be expected to come this far.

    Parameters
    ----------
    strategy
        What is minimised: the time for ``"time"``, else the cost.
    deadline, budget
        Seconds; currency units.
    work
        Seconds that each job takes.

    Returns
    -------
    tuple
        Most jobs that can be completed within both limits; and, if these are all, the least
        cost, or the least time, of all of them.
    """
    most, done = 0, 0.0
    for seconds in sorted(work):
        cost = _fluid_cost(done + seconds, deadline)
        if cost is None or cost > budget * (1 + 1e-9):
            break
        done += seconds
        most += 1
    if most < len(work):
        return most, None
    if strategy != "time":
        return most, _fluid_cost(done, deadline)
    low, high = max(done / len(PRICES), max(work)), float(deadline)
    for _ in range(60):
        middle = (low + high) / 2
        cost = _fluid_cost(done, middle)
        if cost is None or cost > budget * (1 + 1e-9):
            low = middle
        else:
            high = middle
    return most, high


def _fluid_cost(work: float, seconds: float) -> float | None:
    """Least cost of work that can be divided, on queues of so many seconds; None: no room."""
    cost = 0.0
    for price in PRICES:
        here = min(work, seconds)
        cost += here * price
        work -= here
    return cost if work <= 1e-9 * seconds else None


# What comes out.


def _find(rows: Sequence[Row]) -> list[PaperFinding]:
    return [
        finding
        for by in (KNOWN, UNKNOWN)
        for spread in (0.0, SPREAD)
        for finding in _of_kind(rows, by, spread)
    ]


def _of_kind(rows: Sequence[Row], by: str, spread: float) -> list[PaperFinding]:
    """Find what one kind of run says: of our strategy, beside the rule and the bound."""
    own = selected(rows, by=by, spread=spread)
    rule = {_key(row): row for row in selected(rows, by=RULE, spread=spread)}
    scenarios = list(dict.fromkeys(_scenario(row) for row in own))
    what = f"{by}, {'all jobs of 90 s' if not spread else f'jobs with a spread of {spread:.0%}'}"
    kept = [(row, rule[_key(row)]) for row in own if _is_kept(row) and _is_kept(rule[_key(row)])]
    above = {
        scenario: [_above(row, other) for row, other in kept if _scenario(row) == scenario]
        for scenario in scenarios
    }
    values = [value for each in above.values() for value in each]
    compared = {scenario: each for scenario, each in above.items() if each}
    worst = max(compared, key=lambda scenario: float(np.mean(compared[scenario])), default=None)
    seeds = len({row["seed"] for row in own})
    lost = {name: _lost(selected(rows, by=name, spread=spread)) for name in (by, RULE)}
    out_of_reach = sum(JOBS - row["most"] for row in own)
    return [
        PaperFinding(
            what=f"{what}: per cent above the rule",
            paper=f"at most {MOST_ABOVE:g} in each scenario",
            ours=f"worst {_scenario_words(worst)}: {np.mean(compared[worst]):+.2f} %"
            if worst
            else "both keep the limits nowhere",
            comparisons=tuple(
                _at_most(each, MOST_ABOVE, _scenario_words(scenario), chance=bool(spread))
                for scenario, each in compared.items()
            ),
            own=True,
            remark=f"{len(compared)} of {len(scenarios)} scenarios, in which both complete all "
            f"jobs within both limits for some of {seeds} seeds",
        ),
        PaperFinding(
            what=f"{what}: per cent above the rule, over all scenarios",
            paper="below 0 in the mean",
            ours=f"{Summary.of(values)} %" if spread else f"{np.mean(values):.2f} %",
            comparisons=(_at_most(values, BELOW, "", chance=bool(spread)),) if values else (),
            own=True,
            remark=f"{len(values)} pairs of equal scenario and seed; "
            f"above the linear bound by {_over_bound(own):.2f} % in the mean",
        ),
        PaperFinding(
            what=f"{what}: jobs lost",
            paper="no more than by the rule",
            ours=f"{lost[by]} of {JOBS * len(own):,}; the rule {lost[RULE]}; "
            f"out of reach of any schedule {out_of_reach}",
            comparisons=(
                _at_most(
                    [rule[_key(row)]["completed"] - row["completed"] for row in own],
                    0.0,
                    "more jobs lost in a run than by the rule",
                    chance=bool(spread),
                ),
            ),
            own=True,
        ),
    ]


def _at_most(values: Sequence[float], most: float, name: str, *, chance: bool) -> Comparison:
    """Compare the mean of a sample with an upper bound; without variance the mean is exact."""
    ours = Summary.of(values) if chance else float(np.mean(values))
    return compare_with_bounds(ours, at_most=most, name=name)


def _is_kept(row: Row) -> bool:
    """Whether all jobs were completed within both limits."""
    return bool(
        row["completed"] == JOBS
        and row["time"] <= row["deadline"] * (1 + 1e-9)
        and row["cost"] <= row["budget"] * (1 + 1e-9)
    )


def _lost(rows: Sequence[Row]) -> int:
    return int(sum(JOBS - row["completed"] for row in rows))


def _minimised(row: Row) -> float:
    return float(row["time"] if row["strategy"] == "time" else row["cost"])


def _above(row: Row, other: Row) -> float:
    return 100 * (_minimised(row) / _minimised(other) - 1)


def _over_bound(rows: Sequence[Row]) -> float:
    over = [100 * (_minimised(r) / r["bound"] - 1) for r in rows if _is_kept(r) and r["bound"]]
    return float(np.mean(over)) if over else float("nan")


def _scenario(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["strategy"], row["deadline"], row["budget"]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*_scenario(row), row["seed"])


def _scenario_words(scenario: tuple[str, int, int]) -> str:
    strategy, deadline, budget = scenario
    return f"{strategy}, {deadline:,} s, {budget:,}"


def _draw(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [
        row | {"scenario": _scenario_words(_scenario(row))} for row in selected(rows, spread=SPREAD)
    ]
    return {
        "completed": drawing.bars(
            shown, x="scenario", by="by", y="completed", titles=("scenario", "jobs completed (%)")
        )
    }


EXPERIMENT = Experiment(
    paper="nimrodg",
    figure="own-strategy",
    title="our own strategy beside the stated rules, run times known and unknown",
    about=f"{JOBS} jobs of {SECONDS:g} s on the ten queues, in the 24 scenarios in which all can "
    f"be done; without a spread, and with a spread of {SPREAD:.0%} by equal seeds. The stated "
    "rules use no run times.",
    cells=_cells,
    measure=_measure,
    findings=_find,
    charts=_draw,
)
