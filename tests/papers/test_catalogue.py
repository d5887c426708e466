"""Every experiment there is: its cells, a small measurement, and what it writes."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.papers.checking import check_findings

from bursar.planning.problem import build_problem
from bursar_papers.catalogue import EXPERIMENTS, find
from bursar_papers.escience06_sites import SLOTS, offered_slots, one_processor_each, sites_of
from bursar_papers.execution_comparison import (
    BEST_EFFORT,
    BOUND,
    DEPENDENT,
    MOGA,
    OURS,
    PlanSearchSettings,
    compare,
)
from bursar_papers.experiment import EFFORTS, Cell, Experiment, ExperimentResult
from bursar_papers.experiment_runner import run_experiment
from bursar_papers.summary import selected
from bursar_papers.workflows import layered
from bursar_papers.writing import write

NOWHERE = Path("nowhere")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_efforts_grow_and_cells_are_plain_values(experiment: Experiment) -> None:
    counts = [len(list(experiment.cells(effort))) for effort in EFFORTS]
    assert counts == sorted(counts)
    for cell in experiment.cells("full"):
        assert json.loads(json.dumps(dict(cell))) == dict(cell)
        assert "seed" in cell


@pytest.mark.parametrize(
    ("paper", "figure"), [pytest.param("escience06", "6", marks=pytest.mark.ci), ("hpdc07", "4")]
)
def test_what_needs_no_data_runs_and_is_written(paper: str, figure: str, tmp_path: Path) -> None:
    (experiment,) = find(paper, figure)
    cells = [{**experiment.cells("quick")[0], "tasks": 20}]
    rows = [row for cell in cells for row in experiment.measure(cell, tmp_path)]
    again = [row for cell in cells for row in experiment.measure(cell, tmp_path)]
    assert rows == again
    outcome = ExperimentResult(
        experiment=experiment,
        effort="quick",
        rows=rows,
        cells=1,
        cached=0,
        seconds=0.0,
        findings=experiment.findings(rows),
    )
    check_findings(outcome.findings)
    files = {path.suffix for path in write(outcome, tmp_path / "out")}
    assert files == {".csv", ".json", ".svg", ".png", ".html"}


@pytest.mark.parametrize("seed", range(3))
def test_the_grid_offers_as_many_slots_as_the_paper_states(seed: int) -> None:
    slots = offered_slots(seed)
    assert len(slots) == SLOTS
    fine = one_processor_each(slots)
    assert {slot.processors for slot in fine} == {1}
    area = sum(slot.processors * slot.duration for slot in slots)
    assert sum(slot.duration for slot in fine) == pytest.approx(area)
    work = layered(np.random.default_rng(seed), tasks=9, depth=3)
    build_problem(work, sites_of(slots))  # no two slots overlap on a processor


def test_one_workflow_is_run_in_every_way(data: Path) -> None:
    from bursar_papers.loads import cluster_at

    cluster = cluster_at(data, 40 * 86_400.0)
    work = layered(
        np.random.default_rng(0), tasks=30, depth=5, mean_runtime=1000.0, mean_processors=22
    )
    settings = PlanSearchSettings(population=10, generations=5, evaluations=300, seed=0)

    rows = compare(cluster, work, [0.0, 0.5, 1.0], settings)

    (queued,) = selected(rows, kind=BEST_EFFORT)
    (bound,) = selected(rows, kind=BOUND)
    (dependent,) = selected(rows, kind=DEPENDENT)
    plans = [*selected(rows, kind=MOGA), *selected(rows, kind=OURS)]
    assert len(plans) == 6
    for row in [queued, dependent, *plans]:
        assert row["makespan"] >= bound["makespan"] * (1 - 1e-9)
        assert row["cost"] >= queued["cost"] * (1 - 1e-9)  # nobody pays less than the work
    assert rows == compare(cluster, work, [0.0, 0.5, 1.0], settings)


HPDC07 = {"population": 6, "generations": 2, "evaluations": 60, "seed": 0}


@pytest.mark.parametrize(
    ("figure", "cells"),
    [
        ("5", [{"processors": 4, "trade_offs": [k / 10 for k in range(11)]}]),
        pytest.param(
            "6",
            [{"processors": n, "trade_offs": [0.0]} for n in (3, 10, 20, 30)],
            marks=pytest.mark.ci,
        ),
        pytest.param(
            "7",
            [{"utilisation": x, "processors": 3, "trade_offs": [0.5]} for x in (0.66, 0.88)],
            marks=pytest.mark.ci,
        ),
    ],
)
def test_figures_on_the_cluster_are_judged_by_the_rule(
    figure: str, cells: list[Cell], data: Path
) -> None:
    """One submission, so that nothing can be told: its interval is infinite."""
    (experiment,) = find("hpdc07", figure)
    rows = [r for cell in cells for r in experiment.measure({**HPDC07, **cell}, data)]
    findings = experiment.findings(rows)
    check_findings(findings)
    assert {f.verdict for f in findings} <= {"open", None}


def test_schedulers_are_judged_by_the_rule() -> None:
    (experiment,) = find("hpdc07", "3")
    check_findings(experiment.findings(experiment.measure({"seed": 0}, NOWHERE)))


@pytest.mark.parametrize(
    "figure",
    [
        "5",
        pytest.param("7", marks=pytest.mark.ci),
        pytest.param("8", marks=pytest.mark.ci),
        "shape",
    ],
)
def test_total_costs_are_judged_by_the_rule(figure: str) -> None:
    """The smallest application, one background."""
    (experiment,) = find("escience06", figure)
    cell = {**experiment.cells("quick")[-1], "tasks": 20, "seed": 0}
    findings = experiment.findings(experiment.measure(cell, NOWHERE))
    check_findings(findings)


@pytest.mark.ci
def test_few_scenarios_of_nimrodg_are_judged_by_the_rule() -> None:
    for figure in ("table-2", "4"):
        (experiment,) = find("nimrodg", figure)
        cells = [c for c in experiment.cells("full") if (c["deadline"], c["strategy"]) in (
            (990, "cost"), (1980, "time"))]  # fmt: skip
        rows = [r for cell in cells for r in experiment.measure(cell, NOWHERE)]
        check_findings(experiment.findings(rows))


def test_an_interrupted_figure_goes_on(tmp_path: Path) -> None:
    (experiment,) = find("hpdc07", "4")
    kept = tmp_path / "cells.jsonl"
    assert run_experiment(experiment, "quick", data=tmp_path, kept=kept).cached == 0
    assert run_experiment(experiment, "full", data=tmp_path, kept=kept).cached == 1
