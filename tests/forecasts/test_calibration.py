"""Corrected distributions: intervals hold as often as they say, whatever the draws are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.forecasts.calibration import Distribution, EarlierScore


def draws(random, spread, count=200):
    return np.exp(random.normal(3.0, spread, count))


@pytest.mark.parametrize("claimed", [0.1, 1.0, 4.0])
def test_intervals_hold_although_the_draws_are_too_narrow_or_too_wide(claimed):
    random = np.random.default_rng(5)
    scores, held = [], []
    for number in range(1500):
        found = Distribution.of(draws(random, claimed), scores=scores)
        truth = float(np.exp(random.normal(3.2, 1.0)))  # and off by a fifth
        if number >= 100:
            held.append(found.quantile(0.05) <= truth <= found.quantile(0.95))
        scores.append(EarlierScore(Distribution.of(found.draws).score(truth)))
    # 0.90 within four standard errors of 1,400 trials.
    assert 0.868 <= np.mean(held) <= 0.932


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.floats(0.0, 50.0))
def test_quantiles_rise_and_probabilities_are_their_inverse(seed, count, offset):
    random = np.random.default_rng(seed)
    scores = [EarlierScore(float(s)) for s in random.normal(0, 1, count)]
    found = Distribution.of(draws(random, 0.5), scores=scores, offset=offset)
    values = [found.quantile(share) for share in (0.05, 0.2, 0.5, 0.8, 0.95)]
    assert values == sorted(values)
    assert values[0] >= offset
    for share, value in zip((0.05, 0.2, 0.5, 0.8, 0.95), values, strict=True):
        assert found.probability(value) == pytest.approx(share, abs=0.02)


def test_what_cannot_vary_is_certain():
    found = Distribution.of(np.full(10, 60.0))
    assert found.quantile(0.1) == found.quantile(0.9) == 60.0
    assert found.probability(60.0) == 1.0
    assert found.probability(59.0) < 0.1


def test_what_has_come_already_cannot_be_undone():
    found = Distribution.of(np.array([1.0, 2.0]), offset=100.0)
    assert found.probability(99.0) == 0.0
    assert found.quantile(0.5) > 100.0


def test_own_scores_count_more_than_those_of_other_campaigns():
    random = np.random.default_rng(1)
    base = draws(random, 0.5)
    own = [EarlierScore(s, 1.0) for s in random.normal(0.0, 0.1, 50)]
    others = [EarlierScore(s, 0.3) for s in random.normal(0.0, 3.0, 50)]
    width = {}
    for name, scores in (("both", [*others, *own]), ("others", others)):
        found = Distribution.of(base, scores=scores)
        width[name] = found.quantile(0.9) - found.quantile(0.1)
    assert width["both"] < width["others"] / 2


def test_one_run_that_missed_badly_does_not_make_the_next_forecast_absurd():
    base = np.exp(np.random.default_rng(2).normal(3.0, 0.1, 200))
    found = Distribution.of(base, scores=[EarlierScore(40.0)])
    assert found.quantile(0.9) < 3 * Distribution.of(base).quantile(0.9)
