"""The baseline of the forecasts of waits does what its paper says."""

import numpy as np
import pytest
from binomial_bounds import BinomialBounds, bound_index, dependence, fewest, rare_run
from scipy.stats import binom


def test_as_many_waits_are_needed_as_the_paper_says() -> None:
    """59 for a bound of 0.95 that holds with a certainty of 0.95; 29 for one of 0.9."""
    assert (fewest(0.95), fewest(0.9)) == (59, 29)
    assert (bound_index(58, 0.95), bound_index(59, 0.95)) == (None, 59)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95])
def test_the_bound_is_the_least_with_the_certainty(quantile: float) -> None:
    """As by the binomial distribution of another library; off by one at most where it is normal."""
    for count in range(fewest(quantile), 600, 7):
        exact = min(int(binom.ppf(0.95, count, quantile)) + 1, count)
        found = bound_index(count, quantile)
        assert found is not None
        if count * (1 - quantile) <= 20:
            assert found == exact
        assert abs(found - exact) <= 1


def test_three_independent_misses_are_rare_and_more_dependent_ones() -> None:
    """The stronger neighbours depend on each other, the longer a run must be."""
    runs = [rare_run(0.95, tenths) for tenths in (0, 3, 6, 9)]
    assert runs[0] == 3
    assert runs == sorted(runs)
    assert runs[-1] > 10


def test_dependence_is_that_of_the_logarithms() -> None:
    """An autoregressive process of 0.7 among 20,000; none of equal waits."""
    rng = np.random.default_rng(1)
    level, levels = 0.0, []
    for step in rng.normal(size=20_000):
        level = 0.7 * level + step
        levels.append(level)
    assert dependence(np.exp(np.array(levels) + 5).tolist()) == 7
    assert dependence([1.0, 1.0, 1.0]) == 0


def test_independent_waits_are_covered_at_least_as_often_as_stated() -> None:
    rng = np.random.default_rng(2)
    bounds, held = BinomialBounds(0.9, training=100), []
    for wait in rng.exponential(100.0, 3000).tolist():
        bound, lower = bounds.bound(1), bounds.lower(1)
        if bound is not None and lower is not None:
            assert lower <= bound
            held.append(wait <= bound)
        bounds.add(1, wait)
    assert len(held) == 3000 - 29
    assert 0.9 <= np.mean(held) <= 0.93


def test_a_change_is_noticed_after_a_rare_run() -> None:
    """Waits of 1 s, then of 1,000 s: after three misses as few are kept as make a bound."""
    bounds = BinomialBounds(0.9, training=10**9)
    for number in range(100):
        bounds.add(1, 1.0 + number % 7 / 10)
    for _ in range(3):
        before = bounds.bound(1)
        assert before is not None
        assert before < 2.0
        bounds.add(1, 1000.0)
    # 29 waits are left, and the longest of them is the bound.
    assert bounds.bound(1) == 1000.0
    assert bounds.bound(64) is None  # of another class nothing is known
