"""The sequences of DRP section 3.1."""

import math

import pytest

from bursar.model.provisioning import Acquisition
from bursar.provisioning.acquisition import additive_requests, exponential_requests, sizes

BLIND: tuple[Acquisition, ...] = (
    "one-at-a-time",
    "all-at-once",
    "additive",
    "exponential",
    "array",
    "node-range",
)


def test_the_requests_for_48_processors_are_the_papers() -> None:
    """Section 3.2: the last requests are for 1, 3, 17 and 48 processors."""
    assert sizes("one-at-a-time", 48) == (1,) * 48
    assert sizes("additive", 48) == (1, 2, 3, 4, 5, 6, 7, 8, 9, 3)
    assert sizes("exponential", 48) == (1, 2, 4, 8, 16, 17)
    assert sizes("all-at-once", 48) == (48,)


@pytest.mark.parametrize("policy", BLIND)
def test_requests_sum_to_what_was_asked(policy: Acquisition) -> None:
    """No processor is asked for twice, and none is forgotten."""
    for n in range(5001):
        made = sizes(policy, n)
        assert sum(made) == n
        assert all(size > 0 for size in made)


def test_there_are_as_many_requests_as_the_formulas_say() -> None:
    """The additive formula counts the full requests; the remainder, if any, is one more."""
    for n in range(1, 5001):
        full = math.floor((math.sqrt(8 * n + 1) - 1) / 2)
        remainder = n - full * (full + 1) // 2
        assert additive_requests(n) == full
        assert len(sizes("additive", n)) == full + (remainder > 0)
        assert sizes("additive", n)[:full] == tuple(range(1, full + 1))
        assert remainder <= full

        count = math.ceil(math.log2(n + 1))
        assert exponential_requests(n) == count
        made = sizes("exponential", n)
        assert len(made) == count
        assert made[:-1] == tuple(2**i for i in range(count - 1))
        assert made[-1] <= 2 ** (count - 1)  # trimmed, never more


def test_optimal_asks_for_no_more_than_is_free() -> None:
    """And for all that is wanted where the scheduler does not say."""
    assert sizes("optimal", 48, 47) == (47,)
    assert sizes("optimal", 48, 94) == (48,)
    assert sizes("optimal", 48, 0) == ()
    assert sizes("optimal", 48) == (48,)
    assert sizes("optimal", 48, -3) == ()


def test_wide_tasks_make_the_sequences_count_units() -> None:
    """A request smaller than a task would be of no use."""
    assert sizes("additive", 28, unit=4) == (4, 8, 12, 4)
    assert sizes("optimal", 28, 27, unit=4) == (24,)
    with pytest.raises(ValueError, match="multiple of 4"):
        sizes("additive", 30, unit=4)


def test_our_own_policy_has_no_sequence() -> None:
    """What it asks depends on what is free."""
    with pytest.raises(ValueError, match="adaptive"):
        sizes("adaptive", 3)
