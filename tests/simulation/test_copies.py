"""Copies in simulated time: stragglers end sooner, and the bill says what the copies cost."""

from pathlib import Path

import pytest

from bursar.api.simulating import simulate
from bursar.model.campaign import Campaign, Retry, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.simulation.execution_model import ExecutionUncertainty


def _simulated(seed: int, *, copies: bool) -> dict[str, object]:
    tasks = tuple(Task(id=f"t{n}", name="t", runtime=100.0) for n in range(60))
    campaign = Campaign(
        name="slow", workflow=Workflow(tasks), root=Path.cwd(), retry=Retry(copies=copies)
    )
    site = SiteFacts(name="here", kind="local", processors=16, unit_price=0.01)
    chance = ExecutionUncertainty(stragglers=0.1, seed=seed)
    return simulate(campaign, [site], processors=16, chance=chance).to_dict()


def test_copies_end_campaigns_with_stragglers_sooner_for_what_the_bill_says() -> None:
    sums = {True: 0.0, False: 0.0}
    faster = 0
    for seed in range(6):
        for copies in sums:
            told = _simulated(seed, copies=copies)
            assert told["succeeded"] == 60
            # One lease of 16 processors is held from the begin to the end.
            makespan, cost = float(str(told["makespan_s"])), float(str(told["cost"]))
            assert cost == pytest.approx(makespan * 16 * 0.01)
            sums[copies] += makespan
            found = told.get("copies")
            assert copies or found is None
            faster += found["faster"] if isinstance(found, dict) else 0

    assert faster > 0
    assert sums[True] < sums[False]
