"""The compiled filling, against max-min fairness done by hand in fractions."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.simulation.fairness import fill_progressively, recompute_rates


def paces_by_hand(
    lanes: Sequence[tuple[Sequence[int], Fraction, Fraction | None]],
    capacity: Sequence[Fraction],
) -> list[Fraction]:
    """
    Progressive filling, one limit at a time, exactly.

    A lane is its channels, its weight and its ceiling; each has a channel or a ceiling.
    """
    pace: dict[int, Fraction] = {}
    while len(pace) < len(lanes):
        levels: list[tuple[Fraction, list[int]]] = []
        for channel, room in enumerate(capacity):
            through = [i for i, (hops, _, _) in enumerate(lanes) if channel in hops]
            rising = [i for i in through if i not in pace]
            if rising:
                taken = sum(lanes[i][1] * pace[i] for i in through if i in pace)
                levels.append(((room - taken) / sum(lanes[i][1] for i in rising), rising))
        for i, (_, _, ceiling) in enumerate(lanes):
            if i not in pace and ceiling is not None:
                levels.append((ceiling, [i]))
        level, stopped = min(levels, key=lambda found: found[0])
        pace |= dict.fromkeys(stopped, level)
    return [pace[i] for i in range(len(lanes))]


def filled(
    lanes: Sequence[tuple[Sequence[int], Fraction, Fraction | None]], capacity: Sequence[Fraction]
) -> list[float]:
    """The same by the kernel."""
    count = len(lanes)
    hops = np.zeros((count, max(len(h) for h, _, _ in lanes) or 1), np.int64)
    for i, (channels, _, _) in enumerate(lanes):
        hops[i, : len(channels)] = channels
    pace = np.zeros(count)
    fill_progressively(
        count,
        hops,
        np.array([len(h) for h, _, _ in lanes]),
        np.array([float(w) for _, w, _ in lanes]),
        np.array([math.inf if c is None else float(c) for _, _, c in lanes]),
        np.array([float(c) for c in capacity]),
        np.ones(count, np.bool_),
        pace,
    )
    return [float(p) for p in pace]


def plain(*hops: Sequence[int]) -> list[tuple[Sequence[int], Fraction, Fraction | None]]:
    """Lanes of weight 1 without a ceiling."""
    return [(h, Fraction(1), None) for h in hops]


def test_one_channel_is_shared_evenly() -> None:
    """12 among three: 4 each."""
    assert filled(plain([0], [0], [0]), [Fraction(12)]) == [4.0, 4.0, 4.0]


def test_a_line_of_three_channels() -> None:
    """
    One flow over all three, one over each: all channels of 1 are halved.
    """
    assert filled(plain([0, 1, 2], [0], [1], [2]), [Fraction(1)] * 3) == [0.5] * 4


def test_what_a_bottleneck_leaves_is_for_the_others() -> None:
    """
    Channel 0 of 1 with two flows: 1/2 each. Of channel 1 of 10, the long one has 1/2; the
    other two share the rest: 4.75 each.
    """
    assert filled(plain([0], [0, 1], [1], [1]), [Fraction(1), Fraction(10)]) == [
        0.5,
        0.5,
        4.75,
        4.75,
    ]


def test_a_ceiling_leaves_more_for_the_others() -> None:
    """Of 9, one takes no more than 1: 4 each for the others."""
    lanes = [*plain([0], [0]), ([0], Fraction(1), Fraction(1))]

    assert filled(lanes, [Fraction(9)]) == [4.0, 4.0, 1.0]


def test_the_pace_is_what_is_fair_and_a_weight_counts_as_often() -> None:
    """12 for weights 1, 2 and 3: a pace of 2, and so 2, 4 and 6."""
    lanes = [([0], Fraction(w), None) for w in (1, 2, 3)]

    assert filled(lanes, [Fraction(12)]) == [2.0, 2.0, 2.0]


def test_a_dead_channel_carries_nothing() -> None:
    """And holds up whom else goes through it, not who does not."""
    assert filled(plain([0, 1], [1]), [Fraction(0), Fraction(6)]) == [0.0, 6.0]


small = st.fractions(min_value=0, max_value=8, max_denominator=4)
positive = st.fractions(min_value=Fraction(1, 4), max_value=4, max_denominator=4)
lanes_of = st.lists(
    st.tuples(
        st.lists(st.integers(0, 4), unique=True, min_size=1, max_size=4),
        positive,
        st.none() | positive,
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(80))
@given(lanes=lanes_of, capacity=st.lists(small, min_size=5, max_size=5))
def test_the_kernel_does_what_fractions_do(
    lanes: list[tuple[list[int], Fraction, Fraction | None]], capacity: list[Fraction]
) -> None:
    """Max-min fair rates are unique, so that both must find them."""
    by_hand = paces_by_hand(lanes, capacity)

    assert filled(lanes, capacity) == pytest.approx([float(p) for p in by_hand], rel=1e-9, abs=1e-9)


@settings(max_examples=examples(40))
@given(
    lanes=lanes_of,
    capacity=st.lists(positive, min_size=5, max_size=5),
    changed=st.integers(0, 11),
    weight=positive,
)
def test_only_who_is_concerned_is_looked_at_and_that_is_enough(
    lanes: list[tuple[list[int], Fraction, Fraction | None]],
    capacity: list[Fraction],
    changed: int,
    weight: Fraction,
) -> None:
    """After one lane's weight has changed, all paces are those of the new world."""
    changed %= len(lanes)
    count = len(lanes)
    hops = np.zeros((count, 5), np.int64)
    for i, (channels, _, _) in enumerate(lanes):
        hops[i, : len(channels)] = channels
    depth = np.array([len(h) for h, _, _ in lanes])
    weights = np.array([float(w) for _, w, _ in lanes])
    ceilings = np.array([math.inf if c is None else float(c) for _, _, c in lanes])
    tables = {name: np.zeros(count) for name in ("pace", "carried", "since", "ends")}
    stale = np.ones(count, np.bool_)

    def anew(now: float) -> int:
        return recompute_rates(
            count, now, hops, depth, weights, ceilings, np.array([float(c) for c in capacity]),
            stale, tables["pace"], tables["carried"], tables["since"], np.full(count, 100.0),
            tables["ends"],
        )  # fmt: skip

    anew(0.0)
    weights[changed] = float(weight)
    stale[changed] = True
    first = anew(1.0)

    lanes[changed] = (lanes[changed][0], weight, lanes[changed][2])
    by_hand = [float(p) for p in paces_by_hand(lanes, capacity)]
    assert tables["pace"] == pytest.approx(by_hand, rel=1e-9)
    assert not stale.any()
    assert tables["ends"][first] == tables["ends"].min()
