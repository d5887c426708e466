"""An outcome as files: a tidy table, a document with what it shows, and charts."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

from bursar.model.errors import BursarError
from bursar.report.charts import save_chart
from bursar_papers.experiment import ExperimentResult, Row

FORMATS = ("svg", "png", "html")


def to_dict(outcome: ExperimentResult) -> dict[str, Any]:
    """Return all results for JSON."""
    experiment = outcome.experiment
    return {
        "paper": experiment.paper,
        "figure": experiment.figure,
        "title": experiment.title,
        "about": experiment.about,
        "effort": outcome.effort,
        "cells": outcome.cells,
        "cached": outcome.cached,
        "seeds": outcome.seeds,
        "processor_seconds": round(outcome.seconds, 3),
        "findings": [finding.to_dict() for finding in outcome.findings],
        "rows": outcome.rows,
    }


def write(outcome: ExperimentResult, folder: Path) -> list[Path]:
    """
    Writes ``NAME.csv``, ``NAME.json`` and the charts, in each format.

    Raises
    ------
    BursarError
        When a file cannot be written.
    """
    experiment = outcome.experiment
    stem = f"figure-{experiment.figure}"
    document = msgspec.json.format(msgspec.json.encode(to_dict(outcome)), indent=1)
    files = {f"{stem}.csv": _as_csv(outcome.rows).encode(), f"{stem}.json": document + b"\n"}
    written = []
    for name, content in files.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise BursarError(f"{path}: cannot be written: {error.strerror}") from None
        written.append(path)
    for name, chart in experiment.charts(outcome.rows).items():
        for suffix in FORMATS:
            path = folder / f"{stem}-{name}.{suffix}"
            save_chart(chart, path)
            written.append(path)
    return written


def _as_csv(rows: Sequence[Row]) -> str:
    """A column for every factor and measure; empty where a row has none."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
