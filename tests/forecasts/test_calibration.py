"""Corrected distributions: intervals hold as often as they say, whatever the draws are."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.forecasts import calibration
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


@settings(max_examples=examples(60), deadline=None)
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


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_the_kth_of_n_scores_bounds_the_next_with_probability_k_of_n_plus_one(seed, count):
    random = np.random.default_rng(seed)
    base = draws(random, 0.5)
    # None so far out that it would be drawn nearer.
    scores = np.sort(random.uniform(-1.9, 1.9, count))
    with patch.object(calibration, "WEIGHT_OF_DRAWS", 1e-12):
        found = Distribution.of(base, scores=[EarlierScore(float(s), 0.3) for s in scores])
        told = [found.probability(found._value(float(score))) for score in scores]
    assert told == pytest.approx((np.arange(count) + 1) / (count + 1), abs=1e-6)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.3, 1.0]), st.integers(1, 6))),
)
def test_scores_of_one_run_count_once(seed, runs):
    base = draws(np.random.default_rng(seed), 0.5)
    whole = [EarlierScore(score, weight) for score, weight, _ in runs]
    split = [EarlierScore(s, weight, 1 / count) for s, weight, count in runs for _ in range(count)]
    prior = [EarlierScore(s, 0.3, 5.0) for s in (-3.0, -1.0, 1.0, 3.0)]
    one, other = (Distribution.of(base, scores=found, prior=prior) for found in (whole, split))
    # Equal scores stand side by side, so that the ends of their row are a little further apart.
    assert other.unseen == pytest.approx(one.unseen)
    assert other.weights.sum() == pytest.approx(one.weights.sum())
    for share in (0.05, 0.5, 0.95):
        below = other.weights[other.scores <= share].sum()
        assert below == pytest.approx(one.weights[one.scores <= share].sum())


def coverage_of_streams(is_one_run, runs=10, streams=500):
    """Return how often 90 % intervals hold after runs of five forecasts that share one truth."""
    random = np.random.default_rng(3)
    held = []
    for _ in range(streams):
        base = draws(random, 1.0, 100)
        plain = Distribution.of(base)
        truths = random.normal(3.0, 1.0, runs + 1)
        scores = [
            EarlierScore(plain.score(float(np.exp(truth + error))), 1.0, 0.2 if is_one_run else 1.0)
            for truth in truths[:-1]
            for error in random.normal(0.0, 0.1, 5)
        ]
        found = Distribution.of(base, scores=scores)
        held.append(found.quantile(0.05) <= float(np.exp(truths[-1])) <= found.quantile(0.95))
    return float(np.mean(held))


def test_forecasts_that_share_a_truth_are_counted_as_one_run():
    # 95 % of binomial shares of 500 with probability 0.9: 0.9 +- 1.96 sqrt(0.09 / 500).
    reach = 1.96 * (0.9 * 0.1 / 500) ** 0.5
    assert abs(coverage_of_streams(is_one_run=True) - 0.9) <= reach
    assert coverage_of_streams(is_one_run=False) < 0.9 - reach
