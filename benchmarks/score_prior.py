"""
Makes the scores of recorded executions that correct a user's first forecasts.

Each execution is forecast from others of its workflow, from other sizes, from stated run times, or
from nothing, as ``benchmarks/forecasts.py`` does: once with a history of nothing else, and once
with the other workflows in it, as users have either. Stated run times are wrong by a factor of 0.3
to 3 for each kind. A cost is the processor seconds that tasks use. Of the scores of each workflow a
few quantiles are kept::

    python benchmarks/score_prior.py [--data FOLDER]    # src/bursar/forecasts/score_prior.json
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import forecast_breadth
import numpy as np

import forecasts
from bursar.compiling import prefer_machine_code
from bursar.forecasts.calibration import Distribution
from bursar.history.forecast_records import SHARES

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "src" / "bursar" / "forecasts" / "score_prior.json"
DRAWS, QUANTILES = 400, 10
DIGITS = 2

Cells = dict[str, dict[float, dict[str, list[float]]]]
"""Scores by basis, share of the tasks done, and workflow."""


def all_trials(
    executions: dict[str, forecasts.Execution], names: list[str]
) -> Iterator[forecasts.Trial]:
    """Forecast some of the executions."""
    stated = forecast_breadth.with_estimates(executions)
    for name in names:
        for alone in (True, False):
            yield from _trials(name, executions, alone)
            # Stated run times count where nothing else is known, which comes first.
            trials = _trials(name, stated, alone)
            yield from takewhile(lambda one: one.known_from == "estimates", trials)


def _trials(
    name: str, executions: dict[str, forecasts.Execution], alone: bool
) -> Iterator[forecasts.Trial]:
    return forecasts.trials_of(
        name, executions, forecasts.PLATFORMS, DRAWS, shares=SHARES, alone=alone
    )


def table_of(trials: Iterator[forecasts.Trial]) -> dict[str, Cells]:
    """Return quantiles of the scores of forecasts of ends and of costs."""
    ends: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    costs: dict[tuple[str, float, str], list[float]] = defaultdict(list)
    for one in trials:
        key = one.known_from, one.share, one.workflow
        ends[key].append(Distribution.of(one.draws, offset=one.now).score(one.end))
        if one.cost_draws is not None:
            costs[key].append(Distribution.of(one.cost_draws).score(one.cost))
    return {"end": _cells(ends), "cost": _cells(costs)}


def _cells(scores: dict[tuple[str, float, str], list[float]]) -> Cells:
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    found: Cells = {}
    for basis, share, workflow in sorted(scores):
        values = np.quantile(scores[basis, share, workflow], shares)
        cell = found.setdefault(basis, {}).setdefault(share, {})
        cell[workflow] = [round(float(value), DIGITS) for value in values]
    return found


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=forecasts.DATA)
    executions = forecasts.read_executions(parser.parse_args().data / "executions")
    prefer_machine_code()
    table = table_of(all_trials(executions, list(executions)))
    lines = [
        f' "{what}": {{\n'
        + ",\n".join(
            f'  "{basis}": {{\n'
            + ",\n".join(f'   "{share}": {json.dumps(cell)}' for share, cell in cells.items())
            + "\n  }"
            for basis, cells in found.items()
        )
        + "\n }"
        for what, found in table.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
