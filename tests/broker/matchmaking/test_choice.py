"""Rules of choice: what they give each site, and what comes out of many draws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.thoroughness import examples

from bursar.broker.matchmaking import choice
from bursar.broker.matchmaking.choice import RULES, pick, probabilities
from bursar.model.errors import InputError
from bursar.model.matching import CHOICES

WAITS = np.array([60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0])
"""Six sites whose probabilities under the historical rules are known."""

RANKS = st.lists(
    st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -1.0, 1.0]),
    min_size=1,
    max_size=12,
).map(np.array)


def test_there_is_a_rule_for_each_name_that_a_campaign_may_give() -> None:
    assert tuple(RULES) == CHOICES


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("edg-2001", [0.197, 0.194, 0.190, 0.173, 0.148, 0.099]),
        ("glite-mid", [0.213, 0.211, 0.208, 0.179, 0.103, 0.085]),
        ("glite-2012", [0.25, 0.25, 0.25, 0.25, 1e-4, 0.0]),
    ],
)
def test_historical_rules_give_what_their_sources_give(rule: str, expected: list[float]) -> None:
    """Probabilities worked out from the formulas of the three releases, to three digits."""
    assert probabilities(rule, -WAITS) == pytest.approx(expected, abs=6e-4)


def test_softmax_at_the_mean_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the temperature at the mean wait, 2260 s: 0.294 for the first, e^(-240/2260) times
    that for the second, and so on."""
    monkeypatch.setattr(choice, "TEMPERATURE", 1.0)

    found = probabilities("softmax", -WAITS)

    assert found == pytest.approx([0.294, 0.264, 0.232, 0.136, 0.061, 0.0125], abs=6e-4)


def test_stochastic_is_the_share_of_inverse_ranks() -> None:
    """Ranks -1, -2, -4: K = 1, 1/2, 1/4, of 7/4 in all."""
    found = probabilities("stochastic", np.array([-1.0, -2.0, -4.0]))

    assert found == pytest.approx([4 / 7, 2 / 7, 1 / 7])


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([1.0, 10.0, 100.0], [1 / 111, 10 / 111, 100 / 111]),  # merits: free processors, say
        ([-1.0, -10.0, -100.0], [100 / 111, 10 / 111, 1 / 111]),  # costs: 1, 1/10, 1/100 of 1.11
        ([0.0, -1.0, 0.0], [0.5, 0.0, 0.5]),  # there is nothing better than to begin at once
        ([0.0, 3.0, 1.0], [0.0, 0.75, 0.25]),
        ([-2.0, 0.0, 2.0, 4.0], [1 / 13, 2 / 13, 4 / 13, 6 / 13]),  # 1/2, 1, 2, 3: S is 2
        ([-0.5, 0.5], [0.2, 0.8]),
        ([0.0, 0.0], [0.5, 0.5]),
    ],
)
def test_stochastic_gives_better_sites_more_for_ranks_of_any_sign(
    ranks: list[float], expected: list[float]
) -> None:
    """Ranks below 0 are costs, of which the inverse counts; those above are merits."""
    found = probabilities("stochastic", np.array(ranks))

    assert found == pytest.approx(expected, abs=1e-5)


def test_stochastic_gives_the_better_of_any_two_sites_more() -> None:
    """However the signs are mixed, in 300 draws of 2 to 12 different ranks."""
    rng = np.random.default_rng(20030602)
    for _ in range(300):
        ranks = np.sort(rng.choice(2001, rng.integers(2, 13), replace=False) - 1000.0)

        assert (np.diff(probabilities("stochastic", ranks)) > 0).all(), ranks


def test_best_of_two_by_counting_pairs() -> None:
    """Of the 6 pairs of 4 sites the best is in 3, the next the better one of 2, then of 1."""
    found = probabilities("best-of-d", np.array([-3.0, -1.0, -4.0, -2.0]))

    assert found == pytest.approx([1 / 6, 3 / 6, 0, 2 / 6])


def test_equals_share_what_they_have_in_best_of_two() -> None:
    """Pairs of (a, b, b): ab twice gives a, bb once gives either b."""
    found = probabilities("best-of-d", np.array([2.0, 1.0, 1.0]))

    assert found == pytest.approx([2 / 3, 1 / 6, 1 / 6])


@pytest.mark.parametrize("rule", CHOICES)
def test_undefined_ranks_come_last(rule: str) -> None:
    """A site of undefined rank has a chance only where there is no other."""
    nan = math.nan

    assert probabilities(rule, np.array([nan, -5.0, nan])).tolist() == [0, 1, 0]
    assert probabilities(rule, np.array([nan, nan])).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("rule", CHOICES)
def test_infinite_ranks(rule: str) -> None:
    """Nothing is better than infinity, and minus infinity comes last."""
    inf = math.inf

    assert probabilities(rule, np.array([inf, 1.0, inf, -inf])).tolist() == [0.5, 0, 0.5, 0]
    assert probabilities(rule, np.array([-inf, 1.0])).tolist() == [0, 1]
    assert probabilities(rule, np.array([-inf, -inf])).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("rule", CHOICES)
def test_no_site_and_one_site(rule: str) -> None:
    assert probabilities(rule, np.array([])).tolist() == []
    assert probabilities(rule, np.array([-7.0])).tolist() == [1.0]
    with pytest.raises(ValueError, match="no site"):
        pick(rule, np.array([]), np.random.default_rng(0))


def test_a_rule_that_is_none_says_which_there_are() -> None:
    with pytest.raises(InputError, match=r'completion, best.*got "fastest"') as error:
        probabilities("fastest", WAITS)
    assert error.value.where == "choice"


@given(RANKS, st.sampled_from(CHOICES))
@settings(max_examples=examples(300))
def test_probabilities_are_such_and_the_better_site_has_no_less(
    ranks: np.ndarray, rule: str
) -> None:
    """For any ranks: not negative, of sum 1, equal for equals; and where the choice is not
    plain chance they grow with the rank."""
    found = probabilities(rule, ranks)

    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    order = np.argsort(ranks)  # nan last
    known = order[~np.isnan(ranks[order])]
    if rule != "random":
        assert (np.diff(found[known]) >= -1e-9).all()
    for rank in set(ranks[known].tolist()):
        assert np.ptp(found[ranks == rank]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("rule", CHOICES)
def test_no_scale_changes_the_choice_but_under_glites_last_rule(rule: str) -> None:
    """Seconds or hours: a rule should not care."""
    one, other = probabilities(rule, -WAITS), probabilities(rule, -WAITS / 3600)

    assert (rule == "glite-2012") == (not np.allclose(one, other))


@pytest.mark.parametrize("rule", CHOICES)
def test_draws_follow_the_probabilities(rule: str) -> None:
    """Chi-square over 20,000 draws, at a level of one in 10,000; the seed is fixed."""
    rng = np.random.default_rng(20030601)
    expected = probabilities(rule, -WAITS)
    draws = 20_000

    counts = np.bincount([pick(rule, -WAITS, rng) for _ in range(draws)], minlength=len(WAITS))

    possible = expected * draws > 5
    assert counts[expected == 0].sum() == 0
    if np.count_nonzero(possible) > 1:
        of = expected[possible] / expected[possible].sum() * counts[possible].sum()
        assert chisquare(counts[possible], of).pvalue > 1e-4


def test_best_is_drawn_among_equals() -> None:
    """No site is favoured for its place in the list."""
    rng = np.random.default_rng(3)

    counts = np.bincount([pick("best", np.array([1.0, 2.0, 2.0, 2.0]), rng) for _ in range(6000)])

    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-4
