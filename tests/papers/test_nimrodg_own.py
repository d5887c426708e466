"""Our own strategy beside the stated rules: the bound, the smallest study, hidden run times."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.papers.checking import check_findings
from tests.thoroughness import examples

from bursar.api.simulating import simulate
from bursar.model.errors import InputError
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar_papers.catalogue import find
from bursar_papers.nimrodg import PRICES, campaign, queues
from bursar_papers.nimrodg_own import KNOWN, RULE, UNKNOWN, bounds


@given(
    work=st.lists(st.floats(10.0, 200.0), min_size=1, max_size=30),
    deadline=st.sampled_from([100, 300, 900]),
    budget=st.sampled_from([2_000, 10_000, 30_000, 100_000]),
    strategy=st.sampled_from(["cost", "time"]),
)
@settings(max_examples=examples(60))
def test_the_bound_is_that_of_the_linear_programme(
    work: list[float], deadline: int, budget: int, strategy: str
) -> None:
    """
    The closed form against a solver: divided work on each queue, and the end of the longest.

    For the most jobs, the shortest ones are taken for as long as the programme has a solution.
    """

    def solved(total: float, least: str) -> float | None:
        n = len(PRICES)
        prices = np.append(np.array(PRICES, dtype=float), 0.0)
        goal = prices if least == "cost" else np.append(np.zeros(n), 1.0)
        found = linprog(
            goal,
            A_eq=[np.append(np.ones(n), 0.0)],
            b_eq=[total],
            A_ub=[prices, *np.hstack([np.eye(n), -np.ones((n, 1))])],
            b_ub=[budget, *np.zeros(n)],
            bounds=[(0, None)] * n + [(0, deadline)],
        )
        return float(found.fun) if found.status == 0 else None

    ordered = sorted(work)
    most = 0
    while most < len(work) and solved(sum(ordered[: most + 1]), "cost") is not None:
        most += 1

    told, best = bounds(strategy, deadline, budget, work)

    assert told == most
    if most == len(work) and max(work) <= deadline:
        wanted = solved(sum(work), strategy)
        assert wanted is not None
        # A job cannot be divided: the longest is a bound on the time as well.
        wanted = max(wanted, max(work)) if strategy == "time" else wanted
        assert best == pytest.approx(wanted, rel=1e-6)


def test_the_smallest_study_is_judged_by_the_rule() -> None:
    """Of one scenario of each kind, by each rule, without a spread."""
    (experiment,) = find("nimrodg", "own-strategy")
    cells = [
        cell
        for cell in experiment.cells("quick")
        if (cell["strategy"], cell["budget"]) in (("cost", 171_000), ("time", 171_000))
        and not cell["spread"]
    ]
    assert {cell["by"] for cell in cells} == {RULE, KNOWN, UNKNOWN}

    rows = [row for cell in cells for row in experiment.measure(cell, Path("nowhere"))]

    check_findings([f for f in experiment.findings(rows) if "spread" not in f.what])
    # No first job is late where every queue is needed: 900 s is ten rounds on ten queues, and
    # 162,900 eleven rounds on nine and one job on the tenth.
    done = {(row["strategy"], row["by"]): row for row in rows}
    for by in (KNOWN, UNKNOWN):
        assert done["time", by]["time"] == pytest.approx(900.0)
        assert done["cost", by]["cost"] == pytest.approx(162_900.0)


def test_hidden_runtimes_are_kept_from_plans() -> None:
    """A plan needs run times; only a strategy can learn them."""
    with pytest.raises(InputError, match="only a strategy can do without runtimes"):
        simulate(
            campaign(990, 171_000),
            queues(),
            provisioning="best-effort",
            chance=ExecutionUncertainty(hidden=True),
        )
