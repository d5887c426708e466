"""Submissions: exponential intervals, and shares of kinds."""

import numpy as np
import pytest

from bursar.simulation.datagrid.scenario import GridJobClass, poisson


def test_intervals_are_exponential() -> None:
    """20,000 of mean 5: mean and deviation are 5 within 3 %; seed 0."""
    gaps = np.diff(
        poisson(np.random.default_rng(0), [GridJobClass(runtime=1.0)], gap=5.0, jobs=20_001).at
    )
    assert gaps.mean() == pytest.approx(5.0, rel=0.03)
    assert gaps.std() == pytest.approx(5.0, rel=0.03)


def test_equal_seeds_submit_the_same_at_any_load() -> None:
    """Only closer together: which is what makes loads comparable."""
    kinds = [GridJobClass(runtime=1.0, spread="exponential"), GridJobClass(runtime=2.0)]
    slow, fast = (
        poisson(np.random.default_rng(3), kinds, gap=gap, jobs=50, shares=(1, 3))
        for gap in (8.0, 2.0)
    )
    assert (slow.at / 4).tolist() == pytest.approx(fast.at.tolist())
    assert (slow.kind == fast.kind).all()
    assert (slow.work == fast.work).all()


def test_kinds_come_by_their_shares() -> None:
    load = poisson(
        np.random.default_rng(1),
        [GridJobClass(runtime=1.0), GridJobClass(runtime=2.0)],
        gap=1.0,
        jobs=4000,
        shares=(1, 3),
    )
    assert (load.kind == 1).mean() == pytest.approx(0.75, abs=0.03)
    assert set(load.work.tolist()) == {1.0, 2.0}


def test_what_is_told_of_a_job() -> None:
    told = [
        GridJobClass(runtime=5.0, told=what).estimate(7.0) for what in ("exact", "mean", "nothing")
    ]
    assert told == [7.0, 5.0, None]
