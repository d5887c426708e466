"""The stated strategies behave alike whether jobs of unknown length take a second or an hour."""

from typing import get_args

import pytest

from bursar.api.queues import run_outside_loop
from bursar.api.simulator import RecordedConditions, Simulator
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.strategies import Strategy
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar.simulation.simulated_grid import SimulatedGrid

PRICES = range(10, 30, 2)
"""Currency units per second of the ten queues of the Nimrod/G paper."""

JOBS = 100
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

STATED = [(deadline, budget) for deadline in (11, 22, 33) for budget in (1400, 1900, 2800)]
"""Deadlines in lengths of a job and budgets in job lengths times price: table 2 of the paper."""

CLOSE = 0.02
"""Largest difference between the shares of jobs done at two time scales."""


def share_done(strategy: Strategy, seconds: float, deadline: float, budget: float) -> float:
    """
    Simulate a hundred jobs whose length nobody knows, and return the share that is done.

    Parameters
    ----------
    seconds
        Length of a job; deadline and budget are multiples of it.
    """
    tasks = tuple(Task(id=f"t{i}") for i in range(JOBS))
    sites = tuple(
        SiteFacts(name=f"queue-{price}", kind="simulated", unit_price=float(price))
        for price in PRICES
    )
    campaign = Campaign(
        name="test-queues",
        workflow=Workflow(tasks),
        goal=Goal(deadline=deadline * seconds, budget=budget * seconds),
    )
    policy = SupplyPolicy(kind="economy", strategy=strategy)
    simulator = Simulator(
        campaign,
        SimulatedGrid(sites),
        ExecutionUncertainty(),
        recorded=RecordedConditions(work=dict.fromkeys(range(JOBS), seconds)),
    )
    summary = run_outside_loop(lambda: simulator.carry_out(policy, None, {}))
    return float(summary["succeeded"] / JOBS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_short_jobs_of_unknown_length_are_done_as_long_ones_are(strategy: Strategy) -> None:
    """A budget of 16 for each job is scarce: what first jobs waste, others lack."""
    shares = [share_done(strategy, seconds, 15, 1600) for seconds in (1.0, 3.0, 900.0)]

    assert max(shares) - min(shares) <= CLOSE
    assert min(shares) > 0.9


@pytest.mark.long
@pytest.mark.parametrize(("deadline", "budget"), STATED)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_stated_scenarios_have_one_shape_from_a_second_to_an_hour(
    strategy: Strategy, deadline: float, budget: float
) -> None:
    """All scenarios of the paper, at six time scales."""
    scales = (1.0, 3.0, 10.0, 60.0, 900.0, 3600.0)
    shares = [share_done(strategy, seconds, deadline, budget) for seconds in scales]

    assert max(shares) - min(shares) <= CLOSE
