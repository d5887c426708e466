"""
HPDC 2007: provisioned against best effort.

Singh, Kesselman, Deelman, *A provisioning model and its comparison with best-effort
for performance-cost optimization in grids*.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bursar.model.campaign import Workflow
from bursar_papers import drawing
from bursar_papers.equivalence import (
    ABOVE,
    BELOW,
    RELATIVE,
    compare_per_cent,
    compare_with_bounds,
)
from bursar_papers.execution_comparison import (
    BEST_EFFORT,
    BOUND,
    DEPENDENT,
    MOGA,
    OURS,
    PlanSearchSettings,
    compare,
)
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.hpdc07_slots import SLOT_EXPERIMENTS, TRADE_OFFS, Charts, compare_mean
from bursar_papers.loads import LOGS, cluster_at, cluster_of_log, submission_moment
from bursar_papers.summary import Summary, deviation_ratio, grouped, paired, selected
from bursar_papers.workflows import cybershake, layered

if TYPE_CHECKING:
    pass


# Figures 1 to 3: plans over 124 slots.


# Figure 4: free slots.


# Figures 5 to 7: a hundred tasks on the CTC cluster.


def _workflow(seed: int, mean_processors: float) -> Workflow:
    """Section 5: 100 tasks of 1,000 s on 10 levels."""
    rng = np.random.default_rng([seed, 100])
    return layered(rng, tasks=100, depth=10, mean_runtime=1000.0, mean_processors=mean_processors)


SUBMISSIONS: dict[Effort, int] = {"quick": 4, "normal": 50, "full": 50}
SEARCHED: dict[Effort, int] = {"quick": 1500, "normal": 3000, "full": 6000}


def _settings(cell: Cell) -> PlanSearchSettings:
    return PlanSearchSettings(
        population=cell["population"],
        generations=cell["generations"],
        evaluations=cell["evaluations"],
        seed=cell["seed"],
    )


def _cells(
    repetitions: int,
    evaluations: int,
    shape: tuple[int, int] = (50, 20),
    **factors: Sequence[Any],
) -> list[Cell]:
    """
    Every combination of the factors, submitted at as many moments.

    Parameters
    ----------
    evaluations
        Of our search; 0: it is left out.
    shape
        Population and generations of the paper's.
    """
    cells: list[dict[str, Any]] = [{}]
    for name, values in factors.items():
        cells = [cell | {name: value} for cell in cells for value in values]
    search = {"population": shape[0], "generations": shape[1], "evaluations": evaluations}
    return [cell | {"seed": seed} | search for cell in cells for seed in range(repetitions)]


def _measure_workflow(cell: Cell, data: Path) -> list[Row]:
    cluster = cluster_at(data, submission_moment(cell["seed"]), cell.get("utilisation"))
    workflow = _workflow(cell["seed"], cell["processors"])
    found = compare(cluster, workflow, cell["trade_offs"], _settings(cell))
    factors = {k: cell.get(k) for k in ("seed", "processors", "utilisation")}
    return [factors | row for row in found]


def _trade_off_cells(effort: Effort) -> list[Cell]:
    count = SUBMISSIONS[effort]
    return _cells(count, SEARCHED[effort], processors=[22], trade_offs=[list(TRADE_OFFS)])


def _find_trade_off(rows: Sequence[Row]) -> list[PaperFinding]:
    findings = []
    for kind in (MOGA, OURS):
        ratios = {
            w: paired(rows, ("seed",), "makespan", {"kind": kind, "trade_off": w}, _queue())
            for w in TRADE_OFFS
        }
        shorter = [
            compare_with_bounds(r, at_most=1 + BELOW, name=f"{w:g}") for w, r in ratios.items()
        ]
        findings.append(
            PaperFinding(
                what=f"{kind}: makespan of best effort's, by trade-off",
                paper="below 1 at each" if kind == MOGA else "",
                ours=", ".join(f"{w:g}: {r}" for w, r in ratios.items()),
                comparisons=tuple(shorter) if kind == MOGA else (),
            )
        )
        cost = paired(rows, ("seed",), "cost", {"kind": kind, "trade_off": 0.0}, _queue())
        same = compare_with_bounds(cost, at_most=1 + RELATIVE)
        findings.append(
            PaperFinding(
                what=f"{kind}: cost of best effort's at trade-off 0",
                paper="little or no increase" if kind == MOGA else "",
                ours=str(cost),
                comparisons=(same,) if kind == MOGA else (),
            )
        )
    told = (_find_slower(rows), _find_spread(rows), _find_others(rows, ("seed",)))
    return [*findings, *itertools.chain.from_iterable(told)]


def _find_slower(rows: Sequence[Row]) -> list[PaperFinding]:
    """Count the single submissions in which the plan is slower."""
    queued = {row["seed"]: row["makespan"] for row in selected(rows, kind=BEST_EFFORT)}
    told = []
    for weight in (0.0, 0.5, 1.0):
        plans = selected(rows, kind=MOGA, trade_off=weight)
        # Equal makespans are sums in different orders and may differ in the last digits.
        slower = sum(row["makespan"] > queued[row["seed"]] * (1 + 1e-9) for row in plans)
        told.append(f"{slower} at {weight:g}")
    return [
        PaperFinding(
            what=f"of {len(queued)} submissions, with MOGA's plan slower, by trade-off",
            paper="none on average",
            ours=", ".join(told),
        )
    ]


def _queue() -> Row:
    return {"kind": BEST_EFFORT}


def _find_spread(rows: Sequence[Row]) -> list[PaperFinding]:
    queue = [r["makespan"] for r in selected(rows, kind=BEST_EFFORT)]
    plan = [r["makespan"] for r in selected(rows, kind=MOGA, trade_off=0.0)]
    ratio = deviation_ratio(queue, plan)
    return [
        PaperFinding(
            what="standard deviation of the makespan, best effort and provisioned (h)",
            paper="best effort's is generally higher",
            ours=f"{Summary.of(queue).deviation:.2f} and {Summary.of(plan).deviation:.2f}; "
            f"logarithm of their ratio {ratio}",
            comparisons=(compare_with_bounds(ratio, at_least=ABOVE),),
        )
    ]


def _find_others(rows: Sequence[Row], on: Sequence[str]) -> list[PaperFinding]:
    waits = grouped(rows, ("kind",), "others_wait")
    told = ", ".join(f"{kind} {s.mean:.2f}" for (kind,), s in waits.items())
    dependent = paired(rows, on, "makespan", {"kind": DEPENDENT}, _queue())
    bound = paired(rows, on, "makespan", {"kind": BOUND}, _queue())
    return [
        PaperFinding(
            what="mean wait of the others' jobs meanwhile, beside each (h)",
            paper="",
            ours=told,
        ),
        PaperFinding(
            what="queued at once with dependencies: makespan of best effort's",
            paper="may decrease the makespan (section 7)",
            ours=f"{dependent}; proven bound {bound.mean:.2f}",
            comparisons=(compare_with_bounds(dependent, at_most=1 + BELOW),),
        ),
    ]


def _draw_trade_off(rows: Sequence[Row]) -> Charts:
    return {
        what: drawing.curves(
            _along_trade_offs(rows), x="trade_off", y=what, by="kind",
            titles=("trade-off factor", title), zero=True,
        )
        for what, title in (("makespan", "makespan (h)"), ("cost", "allocation cost (SU)"))
    }  # fmt: skip


def _along_trade_offs(rows: Sequence[Row]) -> list[Row]:
    """Repeat rows that do not depend on the trade-off at both ends of the axis."""
    flat = (BEST_EFFORT, DEPENDENT, BOUND)
    ends = [row | {"trade_off": w} for row in rows if row["kind"] in flat for w in (0.0, 1.0)]
    return [*ends, *(row for row in rows if row["trade_off"] is not None)]


WIDTHS = [3, 10, 20, 30]


def _size_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 20, "full": 30}
    return _cells(
        repetitions[effort], SEARCHED[effort], processors=WIDTHS, trade_offs=[[0.0, 0.5, 1.0]]
    )


def _find_sizes(rows: Sequence[Row]) -> list[PaperFinding]:
    return [_trend(rows, "processors", 0.0, "by mean processors of a task", "tasks grow")]


def _trend(
    rows: Sequence[Row], factor: str, trade_off: float, by: str, as_what: str
) -> PaperFinding:
    """
    Compare provisioned makespans, over best effort's, at a factor's largest and least value.

    The submissions of one seed share a moment of the log: each seed counts once.
    """
    same = ("seed", "processors", "utilisation")
    below = {tuple(r[k] for k in same): r["makespan"] for r in selected(rows, kind=BEST_EFFORT)}
    ratios = [
        row | {"ratio": row["makespan"] / below[tuple(row[k] for k in same)]}
        for row in selected(rows, **_plan(trade_off))
    ]
    means = {
        value: grouped(selected(ratios, **{factor: value}), ("seed",), "ratio")
        for value in sorted({row[factor] for row in rows})
    }
    least, *_, largest = means.values()
    change = Summary.of([largest[s].mean - least[s].mean for s in largest if s in least])
    told = ", ".join(
        f"{value:g}: {Summary.of([s.mean for s in by_seed.values()])}"
        for value, by_seed in means.items()
    )
    return PaperFinding(
        what=f"provisioned makespan of best effort's, {by}",
        paper=f"improves as {as_what}",
        ours=f"{told}; from the first to the last {change}",
        comparisons=(compare_with_bounds(change, at_most=BELOW, name="last less first"),),
    )


def _plan(trade_off: float) -> Row:
    return {"kind": MOGA, "trade_off": trade_off}


def _relative(rows: Sequence[Row], what: str, factors: Sequence[str]) -> list[Row]:
    """Return provisioned rows with a measure in per cent of the paired best effort's."""
    below = {tuple(r[k] for k in factors): r[what] for r in selected(rows, kind=BEST_EFFORT)}
    return [
        row | {what: 100 * row[what] / below[tuple(row[k] for k in factors)]}
        for row in rows
        if row["trade_off"] is not None
    ]


def _draw_sizes(rows: Sequence[Row]) -> Charts:
    charts: Charts = {}
    for what in ("makespan", "cost"):
        shown = [
            row | {"kind": f"{row['kind']}, trade-off {row['trade_off']:g}"}
            for row in _relative(rows, what, ("seed", "processors"))
            if row["trade_off"] != 0.5
        ]
        titles = ("mean processors of a task", f"{what}, % of best effort's")
        charts[what] = drawing.curves(shown, x="processors", y=what, by="kind", titles=titles)
    return charts


LOADS = [0.66, 0.76, 0.88]
"""The log alone is 65.7 % of 430 processors here, not the paper's 63 %."""


def _load_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 10, "full": 20}
    widths = [3, 20] if effort == "quick" else WIDTHS
    return _cells(
        repetitions[effort], SEARCHED[effort],
        utilisation=LOADS, processors=widths, trade_offs=[[0.5]],
    )  # fmt: skip


def _find_loads(rows: Sequence[Row]) -> list[PaperFinding]:
    return [_trend(rows, "utilisation", 0.5, "by load", "the load rises")]


def _draw_loads(rows: Sequence[Row]) -> Charts:
    charts: Charts = {}
    for what in ("makespan", "cost"):
        shown = [
            row | {"size": f"{row['processors']} processors", "load": f"{row['utilisation']:.0%}"}
            for row in _relative(rows, what, ("seed", "processors", "utilisation"))
            if row["kind"] == MOGA
        ]
        titles = ("load", f"{what}, % of best effort's")
        charts[what] = drawing.bars(shown, x="load", y=what, by="size", titles=titles)
    return charts


# Figure 9 and section 7: CyberShake.

SHAKE_SHAPE = (10, 10)
SHAKE_LOADS = [0.66, 0.70, 0.76, 0.82, 0.88, 0.94]


def _shake_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 10, "full": 20}
    loads = [0.66, 0.82, 0.94] if effort == "quick" else SHAKE_LOADS
    searched: dict[Effort, int] = {"quick": 0, "normal": 0, "full": 300}
    return _cells(repetitions[effort], searched[effort], SHAKE_SHAPE, utilisation=loads)


def _measure_cybershake(cell: Cell, data: Path) -> list[Row]:
    """Measure under the load, the looseness or the other assumptions that the cell names."""
    named = {k: cell[k] for k in ("utilisation", "looseness", "variant") if k in cell}
    assumed = VARIANTS[cell["variant"]] if "variant" in cell else named
    cluster = cluster_at(data, submission_moment(cell["seed"]), **assumed)
    factors = {"seed": cell["seed"]} | named
    return [factors | row for row in compare(cluster, cybershake(), [0.5], _settings(cell))]


def _find_shake(rows: Sequence[Row]) -> list[PaperFinding]:
    loads = sorted({row["utilisation"] for row in rows})
    on = ("seed", "utilisation")
    lower = {
        load: paired(selected(rows, utilisation=load), on, "makespan", _plan(0.5), _queue())
        for load in (loads[0], loads[-1])
    }
    queue = {
        load: Summary.of(
            [r["makespan"] for r in selected(rows, kind=BEST_EFFORT, utilisation=load)]
        )
        for load in loads
    }
    first = queue[loads[0]]
    findings = [
        compare_mean("best effort at the log's own load (h)", 476_811 / 3600, first),
        _reduction("provisioned below it there (%)", 23, lower[loads[0]]),
        _reduction(f"provisioned below it at {loads[-1]:.0%} load (%)", 56, lower[loads[-1]]),
        PaperFinding(
            what="best effort by load (h)",
            paper="rises sharply past 80 %",
            ours=", ".join(f"{k:.0%}: {s}" for k, s in queue.items()),
        ),
    ]  # fmt: skip
    return [*findings, *_find_others(rows, on)]


def _draw_shake(rows: Sequence[Row]) -> Charts:
    return {
        what: drawing.curves(
            [row | {"load": 100 * row["utilisation"]} for row in rows if row["kind"] != "nothing"],
            x="load", y=what, by="kind", titles=("load, %", title), zero=True,
        )
        for what, title in (("makespan", "makespan (h)"), ("cost", "allocation cost (SU)"))
    }  # fmt: skip


def _loose_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 2, "normal": 20, "full": 50}
    return _cells(repetitions[effort], 0, SHAKE_SHAPE, looseness=(1.0, 1.1, 1.2))


def _find_loose(rows: Sequence[Row]) -> list[PaperFinding]:
    plans = selected(rows, kind=MOGA)
    findings = []
    for loose, stated in ((1.1, 3.0), (1.2, 7.7)):
        ratio = paired(plans, ("seed",), "makespan", {"looseness": loose}, {"looseness": 1.0})
        longer = ratio.scaled(100.0, -100.0)
        findings.append(
            PaperFinding(
                what=f"provisioned makespan with estimates {loose - 1:.0%} loose, longer by (%)",
                paper=f"{stated:g}",
                ours=str(longer),
                comparisons=(compare_per_cent(longer, stated),),
            )
        )
    loosest = selected(rows, looseness=1.2)
    over = paired(loosest, ("seed",), "makespan", _queue(), {"kind": MOGA}).scaled(100.0, -100.0)
    findings.append(
        PaperFinding(
            what="best effort above provisioned at 20 % loose (%)",
            paper="30",
            ours=str(over),
            comparisons=(compare_per_cent(over, 30.0),),
        )
    )
    return findings


def _draw_loose(rows: Sequence[Row]) -> Charts:
    kinds = (BEST_EFFORT, MOGA)
    shown = [row for row in rows if row["kind"] in kinds]
    titles = ("estimate / run time", "makespan (h)")
    return {"makespan": drawing.bars(shown, x="looseness", y="makespan", by="kind", titles=titles)}


# Why figure 9 differs: the same at the log's own load under other assumptions.

VARIANTS: dict[str, dict[str, Any]] = {
    "as figure 9": {},
    "users' estimates, promises kept": {"looseness": None},
    "users' estimates, early ends used": {"looseness": None, "early": "compress"},
    "EASY": {"policy": "easy"},
    "EASY, users' estimates": {"policy": "easy", "looseness": None},
    "FCFS": {"policy": "fcfs"},
    "380 processors": {"processors": 380},
    "338 processors": {"processors": 338},
}


def _variant_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 1, "normal": 10, "full": 20}
    return _cells(repetitions[effort], 0, SHAKE_SHAPE, variant=list(VARIANTS))


def _find_variants(rows: Sequence[Row]) -> list[PaperFinding]:
    findings = []
    for variant in VARIANTS:
        own = selected(rows, variant=variant)
        queue = Summary.of([r["makespan"] for r in selected(own, kind=BEST_EFFORT)])
        ratio = paired(own, ("seed",), "makespan", _plan(0.5), _queue())
        findings.append(
            PaperFinding(
                what=f"best effort (h), provisioned below it: {variant}",
                paper="132.4, 23%",
                ours=f"{queue}, {ratio.scaled(-100.0, 100.0)} %",
            )
        )
    return findings


def _draw_variants(rows: Sequence[Row]) -> Charts:
    shown = [row for row in rows if row["kind"] in (BEST_EFFORT, MOGA)]
    titles = ("", "makespan (h)")
    return {"makespan": drawing.bars(shown, x="variant", y="makespan", by="kind", titles=titles)}


# Beyond the paper: other logs, and EASY.


def _log_cells(effort: Effort) -> list[Cell]:
    repetitions: dict[Effort, int] = {"quick": 1, "normal": 10, "full": 10}
    return _cells(
        repetitions[effort], SEARCHED[effort], log=list(LOGS), policy=["conservative", "easy"],
        trade_offs=[[0.0, 0.5, 1.0]],
    )  # fmt: skip


def _measure_log(cell: Cell, data: Path) -> list[Row]:
    """Tasks of a twentieth of the machine's processors on average, as figure 5's are."""
    cluster = cluster_of_log(data, cell["log"], cell["seed"], cell["policy"])
    workflow = _workflow(cell["seed"], LOGS[cell["log"]][1] / 20)
    found = compare(cluster, workflow, cell["trade_offs"], _settings(cell))
    factors = {k: cell[k] for k in ("seed", "log", "policy")}
    return [factors | row for row in found]


def _find_logs(rows: Sequence[Row]) -> list[PaperFinding]:
    findings = []
    for log in LOGS:
        own = selected(rows, log=log)
        told = []
        for policy in ("conservative", "easy"):
            here = selected(own, policy=policy)
            queue = Summary.of([r["makespan"] for r in selected(here, kind=BEST_EFFORT)])
            ratios = [
                paired(here, ("seed",), "makespan", {"kind": kind, "trade_off": 0.0}, _queue())
                for kind in (MOGA, OURS)
            ]
            beside = ", ".join(map(str, ratios))
            told.append(f"{policy}: best effort {queue.mean:.1f} h; {beside}")
        findings.append(
            PaperFinding(
                what=f"{log}: makespan of MOGA's and of our plan over best effort's",
                paper="",
                ours="\n".join(told),
            )
        )
    return findings


def _draw_logs(rows: Sequence[Row]) -> Charts:
    shown = [
        row | {"series": f"{row['kind']}, {row['policy']}"}
        for row in _relative(rows, "makespan", ("seed", "log", "policy"))
        if row["trade_off"] == 0.0
    ]
    titles = ("log", "makespan, % of best effort's")
    return {"makespan": drawing.bars(shown, x="log", y="makespan", by="series", titles=titles)}


# What is held against the paper's numbers.


def _reduction(what: str, stated: float, ratio: Summary) -> PaperFinding:
    """Hold by how many per cent a ratio of ours is below 1 against the paper's per cent."""
    ours = ratio.scaled(-100.0, 100.0)
    return PaperFinding(
        what=what,
        paper=f"{stated:g}",
        ours=str(ours),
        comparisons=(compare_per_cent(ours, stated),),
    )


_CTC = "CTC log on 430 processors, conservative backfilling, run times as estimates"
EXPERIMENTS = (
    *SLOT_EXPERIMENTS,
    Experiment(
        paper="hpdc07", figure="5", title="provisioned and best effort, by trade-off factor",
        about=f"{_CTC}; 100 tasks of 1,000 s and 22 processors on 10 levels; MOGA 50 x 20; "
            "seeds are submissions.",
        cells=_trade_off_cells, measure=_measure_workflow,
        findings=_find_trade_off, charts=_draw_trade_off,
    ),
    Experiment(
        paper="hpdc07", figure="6", title="the same relative to best effort, by size of the tasks",
        about=f"{_CTC}; 3, 10, 20 and 30 processors a task.",
        cells=_size_cells, measure=_measure_workflow,
        findings=_find_sizes, charts=_draw_sizes,
    ),
    Experiment(
        paper="hpdc07", figure="7", title="the same by size of the tasks and load",
        about=f"{_CTC}, second copy a week later.",
        cells=_load_cells, measure=_measure_workflow,
        findings=_find_loads, charts=_draw_loads,
    ),
    Experiment(
        paper="hpdc07", figure="9", title="CyberShake, by load",
        about=f"{_CTC}, second copy a week later; 8,039 tasks; MOGA 10 x 10, trade-off 0.5.",
        cells=_shake_cells, measure=_measure_cybershake,
        findings=_find_shake, charts=_draw_shake,
    ),
    Experiment(
        paper="hpdc07", figure="causes", title="figure 9 at the log's load, otherwise assumed",
        about="CTC log; CyberShake; MOGA 10 x 10, trade-off 0.5; seeds are submissions.",
        cells=_variant_cells, measure=_measure_cybershake,
        findings=_find_variants, charts=_draw_variants,
    ),
    Experiment(
        paper="hpdc07", figure="logs", title="other logs, and EASY beside conservative",
        about="Five logs; 100 tasks of 1,000 s and a twentieth of the machine on 10 levels; "
        "MOGA 50 x 20; seeds are submissions.",
        cells=_log_cells, measure=_measure_log, findings=_find_logs, charts=_draw_logs,
    ),
    Experiment(
        paper="hpdc07", figure="loose", title="CyberShake with loose estimates (section 7)",
        about=f"{_CTC} times 1, 1.1 and 1.2; MOGA 10 x 10, trade-off 0.5.",
        cells=_loose_cells, measure=_measure_cybershake,
        findings=_find_loose, charts=_draw_loose,
    ),
)  # fmt: skip
