"""The search for weights, on functions whose least value is known."""

import numpy as np
import pytest

from bursar.model.matching import RankWeights
from bursar.simulation.datagrid.tuning import (
    WeightSearch,
    max_simulations,
    neighbouring_weights,
    weight_lattice,
)


def bowl(alpha: float, beta: float, noise: float) -> "tuple[WeightSearch, list[tuple[int, int]]]":
    """Least at some weights; the noise is common to all weights of a replication, but a tenth."""
    told: list[tuple[int, int]] = []

    def measure(weights: RankWeights, replication: int) -> float:
        common = np.random.default_rng(replication).normal(0, noise)
        own = np.random.default_rng(
            [replication, round(weights.alpha * 64), round(weights.beta * 64)]
        ).normal(0, noise / 10)
        return 100 + 50 * ((weights.alpha - alpha) ** 2 + (weights.beta - beta) ** 2) + common + own

    return WeightSearch(measure, lambda done, total: told.append((done, total))), told


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.8), (0.9, 0.1), (0.0, 0.45)])
def test_the_least_is_found_within_a_step(alpha: float, beta: float) -> None:
    search, told = bowl(alpha, beta, noise=3.0)

    tuned = search.run(RankWeights())

    assert abs(tuned.best.alpha - alpha) <= 0.125
    assert abs(tuned.best.beta - beta) <= 0.125
    assert tuned.gain.low > 0
    gain = 50 * ((0.5 - alpha) ** 2 + (0.5 - beta) ** 2)
    assert tuned.gain.mean == pytest.approx(gain, abs=2.0)
    assert told[-1] == (max_simulations(), max_simulations())
    assert all(done <= total for done, total in told)


def test_the_default_stays_where_nothing_is_better() -> None:
    search, _ = bowl(0.5, 0.5, noise=0.0)
    tuned = search.run(RankWeights())
    assert tuned.best == tuned.default == RankWeights()
    assert (tuned.gain.mean, tuned.gain.half) == (0.0, 0.0)


def test_common_luck_does_not_matter() -> None:
    """Noise of ten times the effect, common to all: the interval of the gain is still narrow."""
    search, _ = bowl(0.25, 0.75, noise=60.0)
    assert search.run(RankWeights()).gain.half < 10


def test_the_lattice_has_beta_where_it_counts() -> None:
    weights = weight_lattice(0.25)
    assert len(weights) == 21
    assert [w.beta for w in weights if w.alpha == 1.0] == [0.0]
    assert set(neighbouring_weights(RankWeights(alpha=0.0, beta=1.0), 0.5)) == {
        RankWeights(alpha=0.5, beta=1.0),
        RankWeights(alpha=0.0, beta=0.5),
        RankWeights(alpha=0.5, beta=0.5),
    }
