"""Raicu, Dumitrescu, Foster 2006: acquiring processors from a batch scheduler, and DeeF."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bursar.model.provisioning import ACQUISITIONS, Acquisition, AcquisitionPolicy
from bursar.provisioning.pool_snapshot import PoolSite
from bursar_papers import drawing
from bursar_papers.drp import live_runs, log_traces, service_throughput, wait_bounds
from bursar_papers.drp.acquiring import Acquirer, TaskBacklog, run_acquisition
from bursar_papers.drp.anl_uc_site import (
    FIRST_SPREAD,
    FREE,
    HORIZON,
    PROCESSORS,
    RELEASE,
    SCENARIOS,
    STATED,
    WANTED,
    Latencies,
    PaperSite,
    Scenario,
    calibrated,
    measures,
    moments,
)
from bursar_papers.drp.drp_findings import BLIND, above, curve, find_curves, find_table, order
from bursar_papers.equivalence import describe_comparison
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.summary import grouped, selected

if TYPE_CHECKING:
    import altair

LOOK = 1.0
"""Seconds between two looks at the queue."""
WORK = TaskBacklog(wanted=WANTED, tasks=WANTED * 60, seconds=60.0)
"""More than anybody could do in the time."""


def acquired(
    policy: Acquisition, scenario: Scenario, latencies: Latencies, firsts: Sequence[float] = ()
) -> tuple[list[float], int]:
    """
    When each worker has registered, seconds from the first request, and how many requests.

    Parameters
    ----------
    firsts
        See :class:`bursar_papers.drp.anl_uc_site.PaperSite`.
    """
    site = PaperSite(FREE[scenario], RELEASE, latencies, firsts)
    told = PoolSite(
        name="anl-uc",
        rules=AcquisitionPolicy(),
        processors=PROCESSORS,
        per_node=1,
        arrays=policy == "array",
        node_ranges=policy == "node-range",
    )
    acquirer = Acquirer(policy, WORK, told, longest=3600.0)
    run_acquisition(site, acquirer, horizon=HORIZON, every=LOOK)
    return moments(site), site.submissions


# Table 1 and figure 2.


def _cells(effort: Effort) -> list[Cell]:
    return [{"scenario": s, "policy": p, "seed": 0} for s in SCENARIOS for p in ACQUISITIONS]


def _measure_table(cell: Cell, data: Path) -> list[Row]:
    times, requests = acquired(cell["policy"], cell["scenario"], calibrated())
    return [dict(cell) | measures(times, requests)]


def _measure_curve(cell: Cell, data: Path) -> list[Row]:
    times, _ = acquired(cell["policy"], cell["scenario"], calibrated())
    return curve(cell, times)


def _draw_table(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    ours = [{**row, "who": "ours"} for row in rows]
    paper = [
        {"policy": p, "scenario": s, "cpu": cpu, "who": "paper"}
        for p, stated in STATED.items()
        for s, cpu in zip(SCENARIOS, stated, strict=True)
    ]
    titles = ("policy", f"accumulated CPU time after {HORIZON:.0f} s (s)")
    return {
        scenario: drawing.bars(
            [row for row in order([*paper, *ours]) if row["scenario"] == scenario],
            x="policy", y="cpu", by="who", titles=titles,
        )
        for scenario in SCENARIOS
    }  # fmt: skip


def _draw_curves(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    titles = ("time (s)", "workers registered")
    return {
        scenario: drawing.curves(
            [row for row in rows if row["scenario"] == scenario],
            x="time", y="workers", by="policy", titles=titles, zero=True,
        )
        for scenario in SCENARIOS
    }  # fmt: skip


# Variants: another reading of the latencies, and overheads as the paper saw them elsewhere.

RANDOM = ("30 to 100 s",)
"""Variants with chance in them; the others are run once."""
SEEDS: dict[Effort, int] = {"quick": 10, "normal": 50, "full": 200}


def _overhead_cells(effort: Effort) -> list[Cell]:
    kinds = [("own door", 1), ("30 to 100 s", SEEDS[effort])]
    return [
        {"variant": variant, "scenario": scenario, "policy": policy, "seed": seed}
        for variant, seeds in kinds
        for scenario in SCENARIOS
        for policy in ACQUISITIONS
        for seed in range(seeds)
    ]


def _measure_overheads(cell: Cell, data: Path) -> list[Row]:
    if cell["variant"] == "own door":
        run = acquired(cell["policy"], cell["scenario"], calibrated("own"))
    else:
        rng = np.random.default_rng([cell["seed"], 30_100])
        firsts = rng.uniform(*FIRST_SPREAD, 2 * WANTED).tolist()
        run = acquired(cell["policy"], cell["scenario"], calibrated(), firsts)
    return [dict(cell) | measures(*run)]


def _find_overheads(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for (variant, scenario, policy), cpu in grouped(
        rows, ("variant", "scenario", "policy"), "cpu"
    ).items():
        stated = STATED.get(policy)
        paper = f"{stated[SCENARIOS.index(scenario)]:,.0f}" if stated else ""
        found.append(
            PaperFinding(
                what=f"{variant}: {policy}, {scenario}, CPU s",
                paper=paper,
                ours=str(cpu) if cpu.count > 1 else f"{cpu.mean:,.0f}",
            )
        )
    return [*found, *_against_best(rows)]


def _against_best(rows: Sequence[Row]) -> list[PaperFinding]:
    """
    Compare the CPU time of our policy with that of each blind policy, seed by seed.

    There is one finding for each variant and scenario. Its figures are per cent of the other
    policy's mean, above zero where ours obtained more.
    """
    found = []
    for variant, scenario in dict.fromkeys((row["variant"], row["scenario"]) for row in rows):
        here = selected(rows, variant=variant, scenario=scenario)
        comparisons = [
            above(here, policy, is_random=variant in RANDOM, name=policy) for policy in BLIND
        ]
        found.append(
            PaperFinding(
                what=f"{variant}, {scenario}: adaptive above each blind policy (%)",
                paper="at least as good",
                own=True,
                ours=", ".join(map(describe_comparison, comparisons)),
                comparisons=tuple(comparisons),
            )
        )
    return found


def _draw_overheads(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    titles = ("policy", f"accumulated CPU time after {HORIZON:.0f} s (s)")
    return {
        scenario: drawing.bars(
            [row for row in order(rows) if row["scenario"] == scenario],
            x="policy", y="cpu", by="variant", titles=titles,
        )
        for scenario in SCENARIOS
    }  # fmt: skip


ABOUT = (
    f"{WANTED} workers on {PROCESSORS} processors, of which 94 are free, or 47 until "
    f"{RELEASE:.0f} s and 48 then. The first worker comes after 40 s (text); "
    f"{calibrated().submission:.3f} s a submission and {calibrated().worker:.3f} s a worker are "
    "from the idle figures of one-at-a-time and all-at-once, from which one-at-a-time's and "
    "all-at-once's busy ones and optimal's follow; additive's and exponential's are predictions."
)

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="drp",
        figure="2",
        title="workers over time, by policy, on the idle and the busy site",
        about=ABOUT,
        cells=_cells,
        measure=_measure_curve,
        findings=find_curves,
        charts=_draw_curves,
    ),
    Experiment(
        paper="drp",
        figure="table-1",
        title="accumulated CPU time after 180 s",
        about=ABOUT,
        cells=_cells,
        measure=_measure_table,
        findings=find_table,
        charts=_draw_table,
    ),
    Experiment(
        paper="drp",
        figure="overheads",
        title="table 1 with other latencies",
        about="Workers that come through a door for each submission, and overheads of each request "
        "drawn evenly from the 30 to 100 s that the paper saw in other experiments.",
        cells=_overhead_cells,
        measure=_measure_overheads,
        findings=_find_overheads,
        charts=_draw_overheads,
    ),
    *log_traces.EXPERIMENTS,
    *wait_bounds.EXPERIMENTS,
    *live_runs.experiments(_draw_table, _draw_curves),
    *service_throughput.EXPERIMENTS,
)
