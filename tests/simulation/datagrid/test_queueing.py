"""The simulator against queueing theory."""

import math

import numpy as np
import pytest
from tests.simulation.datagrid.grids import ONCE, job, load_of, site

from bursar.simulation.datagrid.grid_outcome import GridOutcome, batch_means, interval
from bursar.simulation.datagrid.grid_simulation import DataGridSimulation, simulate
from bursar.simulation.datagrid.scenario import DataGrid, GridJobClass, poisson

JOBS, WARM_UP = 4000, 400


def queue(processors: int, load: float, seed: int, jobs: int = JOBS) -> GridOutcome:
    """M/M/c: mean service time 1, so much load for each processor."""
    submitted = poisson(
        np.random.default_rng(seed),
        [GridJobClass(runtime=1.0, spread="exponential")],
        gap=1 / (load * processors),
        jobs=jobs,
    )
    grid = DataGrid(sites=(site("one", processors),))
    return simulate(grid, submitted, services=ONCE, seed=seed)


def erlang_c(processors: int, load: float) -> float:
    """Probability that a job of M/M/c has to wait."""
    offered = load * processors
    last = offered**processors / math.factorial(processors) / (1 - load)
    return last / (sum(offered**k / math.factorial(k) for k in range(processors)) + last)


@pytest.mark.ci
@pytest.mark.parametrize(("processors", "load"), [(1, 0.6), (4, 0.75)])
def test_mean_waits_are_those_of_theory(processors: int, load: float) -> None:
    """
    M/M/1 at 0.6: 0.6 / 0.4 = 1.5. M/M/4 at 0.75: C / (4 - 3) = 0.509. Ten replications, seeds
    0 to 9; the 99 % interval of their mean is narrow, and holds it.
    """
    theory = erlang_c(processors, load) / (processors * (1 - load))

    waits = [queue(processors, load, seed).waits[WARM_UP:].mean() for seed in range(10)]

    found = interval(waits, level=0.99)
    assert found.half < 0.2 * theory
    assert found.holds(theory)


@pytest.mark.ci
def test_mean_waits_by_batch_means() -> None:
    """One long run (seed 5) in 20 batches, M/M/1 at 0.5: theory's 1.0."""
    found = batch_means(queue(1, 0.5, seed=5, jobs=20_000).waits, 20, level=0.99)

    assert found.half < 0.15
    assert found.holds(1.0)


def test_the_sum_of_lifetimes_is_the_area_under_the_number_of_jobs() -> None:
    """Little's law, which holds for every trace, and counts jobs where they are."""
    area, last, inside = 0.0, 0.0, 0

    def watch(world: DataGridSimulation) -> None:
        nonlocal area, last, inside
        area += (world.now - last) * inside
        census = world.census
        last, inside = world.now, world.submitted - census["finished"] - census["failed"]

    load = poisson(
        np.random.default_rng(2),
        [GridJobClass(runtime=1.0, spread="exponential")],
        gap=0.4,
        jobs=500,
    )
    grid = DataGrid(sites=(site("a", 2), site("b", 1, speed=2.0)))
    outcome = simulate(grid, load, services=ONCE, watch=watch)

    assert outcome.finished == 500
    assert area == pytest.approx(outcome.lifetimes.sum())


def test_a_deterministic_queue_is_exact() -> None:
    """D/D/1: jobs of 3 s each 2 s wait 0, 1, 2, ... seconds."""
    load = load_of(*(job(2.0 * i, 3.0) for i in range(6)))

    outcome = simulate(DataGrid(sites=(site("one"),)), load, services=ONCE)

    assert outcome.waits.tolist() == pytest.approx([0, 1, 2, 3, 4, 5])
