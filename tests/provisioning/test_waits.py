"""Bounds on waits, which score themselves."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from bursar.model.errors import InputError
from bursar.provisioning.waits import CHANGED, Waits, rank


def wait(waits: Waits, seconds: float, number: int, *, site: str = "a", size: int = 4) -> None:
    """A request that waits so long."""
    waits.asked(f"lease-{number}", site, size, 3600.0, 1000.0 * number)
    waits.began(f"lease-{number}", 1000.0 * number + seconds)


@given(st.integers(1, 250), st.sampled_from([0.5, 0.75, 0.9, 0.95]), st.sampled_from([0.8, 0.9]))
def test_the_rank_is_the_least_that_is_sure_enough(n: int, quantile: float, sure: float) -> None:
    """P(fewer than k of n lie below the quantile) >= confidence: by scipy's binomial."""
    k = rank(n, quantile, sure)
    places = [k for k in range(1, n + 1) if binom.cdf(k - 1, n, quantile) >= sure]
    assert k == (min(places) if places else None)


def test_22_waits_are_needed_for_the_ninth_decile() -> None:
    """0.9 ** 22 is the first power below 0.1."""
    waits = Waits()
    for number in range(21):
        wait(waits, 10.0 * number, number)
        assert waits.bound("a", 4, 3600.0) is None
    wait(waits, 5.0, 21)
    assert waits.bound("a", 4, 3600.0) == 200.0
    assert waits.bound("b", 4, 3600.0) is None


def test_other_sizes_of_a_site_count_while_there_are_too_few() -> None:
    """And no longer when there are enough."""
    waits = Waits()
    for number in range(30):
        wait(waits, 100.0, number, size=1)
    assert waits.bound("a", 256, 3600.0) == 100.0
    for number in range(30, 60):
        wait(waits, 5000.0, number, size=256)
    assert waits.bound("a", 1, 3600.0) == 100.0
    assert waits.bound("a", 256, 3600.0) >= 5000.0


@pytest.mark.parametrize("seed", range(5))
def test_bounds_hold_as_often_as_they_should(seed: int) -> None:
    """Waits of one heavy-tailed distribution: 90 % of 2,000 bounds, and no less than 88."""
    rng = np.random.default_rng(seed)
    waits = Waits()
    for number, seconds in enumerate(np.exp(rng.normal(5.0, 1.5, 2022)).tolist()):
        wait(waits, seconds, number)
    score = waits.score("a")
    assert score.given >= 1900
    assert 0.88 <= score.held / score.given <= 0.97
    assert str(score) == f"90 % bounds given {score.given} times, held {score.held}"


def test_what_was_before_a_change_is_forgotten() -> None:
    """Waits become a hundred times as long; a few failures later the bounds have followed."""
    rng = np.random.default_rng(1)
    waits = Waits()
    for number, seconds in enumerate(rng.uniform(10, 20, 150).tolist()):
        wait(waits, seconds, number)
    for number, seconds in enumerate(rng.uniform(1000, 2000, 60).tolist(), 150):
        wait(waits, seconds, number)
    bound = waits.bound("a", 4, 3600.0)
    assert bound is not None
    assert bound >= 1000
    score = waits.score()
    assert score.given - score.held <= 15 + CHANGED + 4


def test_bounds_are_widened_while_too_few_hold() -> None:
    """Each wait is longer than all before: every bound fails, and they grow beyond what was."""
    waits = Waits()
    for number in range(40):
        wait(waits, 100.0 * 1.05**number, number)
    longest = 100.0 * 1.05**39
    bound = waits.bound("a", 4, 3600.0)
    assert bound is not None
    assert bound > longest


def test_a_request_that_is_withdrawn_counts_only_against_a_bound_that_it_outlasted() -> None:
    """How long it would have waited, nobody knows."""
    waits = Waits()
    for number in range(30):
        wait(waits, 100.0, number)
    given = waits.score().given
    waits.asked("soon", "a", 4, 3600.0, 0.0)
    waits.gone("soon", 50.0)
    assert waits.score().given == given
    waits.asked("late", "a", 4, 3600.0, 0.0)
    waits.gone("late", 5000.0)
    assert waits.score().given == given + 1
    waits.gone("late", 6000.0)
    waits.began("never asked", 1.0)
    assert waits.score().given == given + 1


def test_a_history_is_kept_between_runs() -> None:
    """As JSON; the same bounds and the same score come back."""
    waits = Waits()
    rng = np.random.default_rng(3)
    for number, seconds in enumerate(rng.exponential(100.0, 300).tolist()):
        wait(waits, seconds, number, size=int(rng.integers(1, 64)))
    again = Waits.of_kept(json.loads(json.dumps(waits.kept())))
    assert again.kept() == waits.kept()
    assert again.bound("a", 4, 3600.0) == waits.bound("a", 4, 3600.0)
    assert again.score() == waits.score()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 2, "kinds": []},
        {"version": 1, "kinds": [{"site": "a"}]},
        {"version": 1, "kinds": 3},
        {
            "version": 1,
            "kinds": [
                {
                    "site": "a",
                    "size": 1,
                    "length": 1,
                    "waits": [-math.inf],
                    "misses": 0,
                    "wider": 1.0,
                    "given": 0,
                    "held": 0,
                }
            ],
        },
    ],
)
def test_what_is_no_history_is_refused(data: dict[str, object]) -> None:
    """With what is wrong, and never with a traceback of ours."""
    with pytest.raises(InputError):
        Waits.of_kept(data)
