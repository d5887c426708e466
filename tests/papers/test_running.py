"""Cells: measured once, kept, gone on with, the same on any number of processes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bursar.model.errors import BursarError
from bursar_papers import experiment_runner
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.experiment_runner import key_of, read_kept, run_experiment, worker_processes

MEASURED: list[int] = []


def _cells(effort: Effort) -> list[Cell]:
    return [{"seed": seed} for seed in range(3 if effort == "quick" else 6)]


def _measure(cell: Cell, data: Path) -> list[Row]:
    MEASURED.append(cell["seed"])
    return [{"seed": cell["seed"], "square": cell["seed"] ** 2}]


def _findings(rows: Sequence[Row]) -> list[PaperFinding]:
    total = sum(row["square"] for row in rows)
    return [PaperFinding(what="sum", paper="", ours=str(total))]


EXPERIMENT = Experiment(
    paper="none",
    figure="1",
    title="squares",
    about="",
    cells=_cells,
    measure=_measure,
    findings=_findings,
    charts=lambda rows: {},
)


@pytest.fixture(autouse=True)
def _forget() -> None:
    MEASURED.clear()


def test_every_cell_is_measured_once_and_kept(tmp_path: Path) -> None:
    kept = tmp_path / "deep" / "cells.jsonl"

    first = run_experiment(EXPERIMENT, "normal", data=tmp_path, kept=kept)
    again = run_experiment(EXPERIMENT, "normal", data=tmp_path, kept=kept)

    assert list(range(6)) == MEASURED
    assert first.rows == again.rows == [{"seed": k, "square": k * k} for k in range(6)]
    assert (first.cached, again.cached) == (0, 6)
    assert again.findings[0].ours == "55"


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """
    A quick run leaves three cells, and a crash half a line; the others are measured.
    """
    kept = tmp_path / "cells.jsonl"
    run_experiment(EXPERIMENT, "quick", data=tmp_path, kept=kept)
    kept.write_text(kept.read_text() + '{"key": "abc", "rows": [')
    MEASURED.clear()

    told: list[tuple[int, int]] = []
    outcome = run_experiment(
        EXPERIMENT,
        "normal",
        data=tmp_path,
        kept=kept,
        on_progress=lambda done, total: told.append((done, total)),
    )

    assert MEASURED == [3, 4, 5]
    assert (outcome.cells, outcome.cached) == (6, 3)
    assert told == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert len(read_kept(kept)) == 6


def test_other_code_measures_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "cells.jsonl"
    run_experiment(EXPERIMENT, "quick", data=tmp_path, kept=kept)
    monkeypatch.setattr(experiment_runner, "code_stamp", lambda: "other")
    assert run_experiment(EXPERIMENT, "quick", data=tmp_path, kept=kept).cached == 0


def test_processes_change_nothing_but_the_order_of_the_file(tmp_path: Path) -> None:
    one = run_experiment(EXPERIMENT, "normal", data=tmp_path, kept=tmp_path / "a.jsonl")
    with worker_processes(2) as pool:
        two = run_experiment(
            EXPERIMENT, "normal", data=tmp_path, kept=tmp_path / "b.jsonl", pool=pool
        )
    assert one.rows == two.rows
    entries = [json.loads(line)["key"] for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert sorted(entries) == sorted(key_of(EXPERIMENT, cell) for cell in _cells("normal"))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BursarError, match="cannot be written"):
        run_experiment(EXPERIMENT, "quick", data=tmp_path, kept=tmp_path / "file" / "cells.jsonl")
