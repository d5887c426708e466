"""
Figures of Cavalieri, Monforte and Scibilia (2003): allocation policies by simulation.

References
----------
.. [1] Cavalieri, Monforte, Scibilia (2003). Proposing and evaluating allocation algorithms in
   a grid environment.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.simulation.datagrid.grid_outcome import GridOutcome
from bursar.simulation.datagrid.grid_simulation import simulate
from bursar_papers import drawing
from bursar_papers.datagrid import datagrid_findings
from bursar_papers.datagrid.datagrid_grids import (
    OURS,
    PAPER,
    POLICIES,
    VARIANTS,
    WARM_UP,
    heavy,
    heavy_load,
    light,
    light_load,
    policy,
    services,
)
from bursar_papers.experiment import Cell, Effort, Experiment, Row

if TYPE_CHECKING:
    import altair

LIGHT_GAPS = (45, 50, 60, 70, 80, 100, 120, 150, 200)
HEAVY_GAPS = (450, 500, 600, 720, 1000, 1500)
SENSITIVITY_GAPS = (60, 120)
"""Mean seconds between two submissions."""

LIGHT_WEIGHTS = (0.75, 0.25)
HEAVY_WEIGHTS = (0.25, 0.25)
"""Alpha and beta, as stated."""

SLOW = 10
"""Submissions between two refreshes of the index, where it is refreshed slowly (figure 5)."""
SLOWED = (*PAPER, "completion", "best-of-d")
"""Policies that are looked at with both."""

LIGHT_JOBS: dict[Effort, int] = {"quick": 240, "normal": 600, "full": 2000}
HEAVY_JOBS: dict[Effort, int] = {"quick": 800, "normal": 1600, "full": 4000}
"""The heavy ones take some 50,000 s, in which a hundred others come."""
REPETITIONS: dict[Effort, int] = {"quick": 3, "normal": 8, "full": 30}
FEWER: dict[Effort, int] = {"quick": 2, "normal": 5, "full": 20}
"""Of each variant."""


def _cells(
    effort: Effort,
    cells: Sequence[Cell],
    jobs: dict[Effort, int],
    repetitions: dict[Effort, int] = REPETITIONS,
) -> list[Cell]:
    return [
        {**cell, "jobs": jobs[effort], "seed": seed}
        for cell in cells
        for seed in range(repetitions[effort])
    ]


def _light_cells(unbalanced: bool, effort: Effort) -> list[Cell]:
    gaps = LIGHT_GAPS[1::2] if effort == "quick" else LIGHT_GAPS
    return _cells(
        effort,
        [{"unbalanced": unbalanced, "policy": p, "gap": gap} for p in POLICIES for gap in gaps],
        LIGHT_JOBS,
    )


def _heavy_cells(effort: Effort) -> list[Cell]:
    gaps = HEAVY_GAPS[1::2] if effort == "quick" else HEAVY_GAPS
    return _cells(
        effort,
        [
            {"policy": p, "refresh": refresh, "gap": gap}
            for p in POLICIES
            for refresh in ((1, SLOW) if p in SLOWED else (1,))
            for gap in gaps
        ],
        HEAVY_JOBS,
    )


def _sensitivity_cells(effort: Effort) -> list[Cell]:
    return _cells(
        effort,
        [
            {"unbalanced": unbalanced, "variant": variant, "policy": p, "gap": gap}
            for unbalanced in (False, True)
            for variant in VARIANTS
            for p in (*PAPER, "completion")
            for gap in SENSITIVITY_GAPS
        ],
        LIGHT_JOBS,
        FEWER,
    )


def _measure_light(cell: Cell, data: Path) -> list[Row]:
    variant = VARIANTS[cell.get("variant", "as assumed")]
    # As many processors as many times the load.
    gap = cell["gap"] / variant.processors
    outcome = simulate(
        light(data, cell["seed"], unbalanced=cell["unbalanced"], variant=variant),
        light_load(cell["seed"], gap, cell["jobs"]),
        policy=policy(cell["policy"], *LIGHT_WEIGHTS, direct=variant.direct),
        services=services(gap, variant=variant),
        seed=cell["seed"],
    )
    return [_row(cell, outcome)]


def _measure_heavy(cell: Cell, data: Path) -> list[Row]:
    outcome = simulate(
        heavy(data, cell["seed"]),
        heavy_load(cell["seed"], cell["gap"], cell["jobs"]),
        policy=policy(cell["policy"], *HEAVY_WEIGHTS),
        services=services(cell["gap"], slow=cell["refresh"]),
        seed=cell["seed"],
    )
    return [_row(cell, outcome)]


def _row(cell: Cell, outcome: GridOutcome) -> Row:
    later = slice(int(WARM_UP * len(outcome.submitted)), None)
    brought = (outcome.arrived - outcome.submitted)[later]
    queued = (outcome.began - outcome.arrived)[later]
    return dict(cell) | {
        "lifetime": outcome.mean_lifetime(WARM_UP),
        "staged": float(brought.mean()),
        "queued": float(queued.mean()),
        "ran": float((outcome.ended - outcome.began)[later].mean()),
    }


def _draw(rows: Sequence[Row], by: str = "policy") -> "dict[str, altair.TopLevelMixin]":
    improved = datagrid_findings.improvements(rows)
    of_paper = (*PAPER, f"stochastic, {datagrid_findings.SLOWLY}", "completion")
    charts = {}
    for name, kept in (("paper", of_paper), ("ours", ("current", "stochastic", *OURS))):
        for y, shown, title in (
            ("lifetime", rows, "mean job lifetime (s)"),
            ("improvement", improved, "shorter than the current policy's (%)"),
        ):
            charts[f"{y}-{name}"] = drawing.curves(
                [row for row in shown if row[by] in kept],
                x="gap",
                y=y,
                by=by,
                titles=("mean time between submissions (s)", title),
                zero=y == "lifetime",
                spread=lambda sample: sample.half_width,
            )
    return charts


def _draw_heavy(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    return _draw(datagrid_findings.with_refresh(rows))


def _draw_sensitivity(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    improved = datagrid_findings.improvements(rows)
    return {
        f"{'unbalanced' if unbalanced else 'balanced'}-{gap}": drawing.bars(
            [r for r in improved if (r["unbalanced"], r["gap"]) == (unbalanced, gap)],
            x="variant",
            y="improvement",
            by="policy",
            titles=("assumed", "shorter than the current policy's (%)"),
        )
        for unbalanced in (False, True)
        for gap in SENSITIVITY_GAPS
    }


_COMMON = (
    "Poisson submissions of one kind of job; the first quarter is left out. Spreads are half the "
    "95 % interval of a mean over independent replications; equal seeds submit at equal moments "
    "under every policy. What the paper leaves open is in docs/papers/datagrid.md."
)
_LIGHT = (
    "Jobs of 10^5 million instructions that read 1 GB and 50 MB; 16 elements of 300, 200 and "
    "100 MIPS on a network like GARR-B; alpha 0.75, beta 0.25. "
)

EXPERIMENTS: tuple[Experiment, ...] = (
    *(
        Experiment(
            paper="datagrid",
            figure=figure,
            title=f"light jobs, {'un' if unbalanced else ''}balanced: mean lifetime by load",
            about=_LIGHT + _COMMON,
            cells=partial(_light_cells, unbalanced),
            measure=_measure_light,
            findings=findings,
            charts=_draw,
        )
        for figure, unbalanced, findings in (
            ("3", False, datagrid_findings.find_balanced),
            ("4", True, datagrid_findings.find_unbalanced),
        )
    ),
    Experiment(
        paper="datagrid",
        figure="5",
        title="heavy jobs, index refreshed as often as jobs come, and a tenth of that",
        about="Jobs of 10^7 million instructions that read 1 MB and 300 kB; five sites of 20 to "
        "30 processors of 100 to 300 MIPS; alpha = beta = 0.25. " + _COMMON,
        cells=_heavy_cells,
        measure=_measure_heavy,
        findings=datagrid_findings.find_heavy,
        charts=_draw_heavy,
    ),
    Experiment(
        paper="datagrid",
        figure="sensitivity",
        title="light jobs under other assumptions",
        about=_LIGHT + _COMMON,
        cells=_sensitivity_cells,
        measure=_measure_light,
        findings=datagrid_findings.find_variants,
        charts=_draw_sensitivity,
    ),
)
