"""The profile of free processors: the compiled kernel, its plain twin, and a count by hand."""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar import profile_kernel
from bursar.model.slot import ResourceProfile

TIMES = st.integers(0, 12).map(float)
ENDS = st.one_of(TIMES, st.just(math.inf))
CHANGES = st.lists(st.tuples(TIMES, ENDS, st.integers(-4, 4)), max_size=12)
FREE = 3


@dataclass
class ByHand:
    """Changes as a list; what is free at a moment is counted anew each time."""

    changes: list[tuple[float, float, int]] = field(default_factory=list)

    def free(self, moment: float) -> int:
        return FREE + sum(n for begin, end, n in self.changes if begin <= moment < end)

    def least_free(self, begin: float, end: float) -> int:
        moments = {t for b, e, _ in self.changes for t in (b, e) if begin < t < end}
        return min(self.free(t) for t in {begin, *moments})

    def earliest_start(self, ready: float, duration: float, width: int, promised: float) -> float:
        """The first of the moments at which anything changes, since nothing is better between."""
        ends = {t for b, e, _ in self.changes for t in (b, e) if ready < t < math.inf}
        for start in sorted({ready, *ends}):
            end = min(start + duration, promised)
            if start < promised and self.least_free(start, end) >= width:
                return start
        return promised


class Compiled:
    """A profile in arrays, in the middle of others, changed by the compiled kernel."""

    def __init__(self) -> None:
        self.times = np.full(64, 99.0)
        self.free = np.full(64, 99)
        self.low, self.high = 5, 6
        self.times[5], self.free[5] = 0.0, FREE

    def change(self, begin: float, end: float, amount: int) -> int:
        self.high, least = profile_kernel.change(
            self.times, self.free, self.low, self.high, begin, end, amount
        )
        return least

    def steps(self) -> list[tuple[float, int]]:
        part = slice(self.low, self.high)
        return list(zip(self.times[part].tolist(), self.free[part].tolist(), strict=True))


def _all_three(
    changes: list[tuple[float, float, int]],
) -> tuple[ByHand, ResourceProfile, Compiled]:
    by_hand, plain, compiled = ByHand(), ResourceProfile(FREE), Compiled()
    for begin, end, amount in changes:
        by_hand.changes.append((begin, end, amount))
        plain.change(begin, end, amount)
        least = compiled.change(begin, end, amount)
        assert least == by_hand.least_free(begin, end)
    return by_hand, plain, compiled


@given(CHANGES)
@settings(max_examples=examples(300))
def test_steps_are_what_is_free_and_neighbours_differ(
    changes: list[tuple[float, float, int]],
) -> None:
    by_hand, plain, compiled = _all_three(changes)

    steps = list(plain.steps(0.0))

    assert [(start, free) for start, _, free in steps] == compiled.steps()
    assert [end for _, end, _ in steps] == [*(start for start, _, _ in steps[1:]), math.inf]
    for start, _, free in steps:
        assert free == by_hand.free(start)
    for (_, _, before), (_, _, after) in pairwise(steps):
        assert before != after
    moments = {t for begin, end, _ in changes for t in (begin, end) if t < math.inf}
    assert {t for t in moments if t > 0 and by_hand.free(t) != by_hand.free(t - 0.5)} == {
        start for start, _, _ in steps[1:]
    }
    assert list(ResourceProfile.summed(changes, FREE).steps()) == list(plain.steps())
    # What lies beside the profile in the arrays belongs to others.
    assert set(compiled.times[:5].tolist()) == {99.0}
    assert set(compiled.free[:5].tolist()) == {99}


@given(CHANGES, TIMES, ENDS)
@settings(max_examples=examples(300))
def test_least_free_is_the_minimum_over_the_interval(
    changes: list[tuple[float, float, int]], begin: float, end: float
) -> None:
    by_hand, plain, compiled = _all_three(changes)

    least, over = profile_kernel.least_free(
        compiled.times, compiled.free, compiled.low, compiled.high, begin, end
    )

    assert least == plain.least_free(begin, end) == by_hand.least_free(begin, end)
    # Until the second figure, an interval that begins later has no more.
    moments = [t for t, _ in compiled.steps() if begin < t < over]
    for later in moments:
        assert by_hand.least_free(later, later + max(0.0, end - begin)) <= least


@given(
    CHANGES,
    TIMES,
    st.integers(0, 6).map(float),
    st.integers(-2, 9),
    st.one_of(TIMES, st.just(math.inf)),
    st.one_of(TIMES, st.just(math.inf)),
)
@settings(max_examples=examples(500))
def test_the_earliest_start_is_the_first_with_room(
    changes: list[tuple[float, float, int]],
    ready: float,
    duration: float,
    width: int,
    promised: float,
    give_up: float,
) -> None:
    by_hand, plain, compiled = _all_three(changes)

    found = profile_kernel.earliest_start(
        compiled.times, compiled.free, compiled.low, compiled.high,
        ready, duration, width, give_up, promised,
    )  # fmt: skip

    assert found == plain.earliest_start(ready, duration, width, give_up=give_up, promised=promised)
    expected = by_hand.earliest_start(ready, duration, width, promised)
    if expected < promised and expected + duration > give_up:
        expected = promised
    assert found == expected


@given(CHANGES, TIMES, st.integers(1, 9))
@settings(max_examples=examples(300))
def test_integrals_and_sums_are_areas(
    changes: list[tuple[float, float, int]], begin: float, length: int
) -> None:
    by_hand, plain, _ = _all_three(changes)
    end = begin + length
    area = sum(by_hand.free(begin + i) for i in range(length))  # all moments are whole seconds

    assert plain.integral(begin, end) == area
    assert plain.integral(begin, end, above=FREE) == area - FREE * length

    rows = np.array([(b, e, n) for b, e, n in [(0.0, math.inf, FREE), *changes] if e > b])
    times, heights = profile_kernel.summed(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.int64))
    first, last = profile_kernel.integral_until(times, heights, np.array([begin, end]))
    assert last - first == area
    times, heights = profile_kernel.merged(times, heights)
    assert list(zip(times.tolist(), heights.tolist(), strict=True)) == [
        (start, free) for start, _, free in plain.steps(0.0)
    ]


@given(CHANGES, TIMES)
@settings(max_examples=examples(300))
def test_layers_are_the_free_area_in_long_pieces(
    changes: list[tuple[float, float, int]], begin: float
) -> None:
    by_hand, plain, _ = _all_three(changes)

    layers = plain.layers(begin)

    assert layers == sorted(layers, key=lambda layer: layer[0])
    for moment in range(int(begin), 14):
        offered = sum(n for start, end, n in layers if start <= moment < end)
        assert offered == max(0, by_hand.free(float(moment)))
    assert all(start >= begin and end > start and n > 0 for start, end, n in layers)


def test_a_layer_goes_on_for_as_long_as_its_processors_are_free() -> None:
    """Of 5 processors, 2 are taken from 0 to 10 and 1 from 5 to 20: 3, 2, 4 and 5 are free."""
    profile = ResourceProfile.summed([(0.0, 10.0, -2), (5.0, 20.0, -1)], 5)

    assert profile.layers(0.0) == [
        (0.0, math.inf, 2),
        (0.0, 5.0, 1),
        (10.0, math.inf, 1),
        (10.0, math.inf, 1),
        (20.0, math.inf, 1),
    ]


def test_sums_of_several_kinds_at_once_are_kept_apart() -> None:
    """Two sites: 2 processors of the first from 0 to 4, 3 of the second from 1 on."""
    times, heights = profile_kernel.summed(
        np.array([0.0, 1.0]), np.array([4.0, math.inf]), np.array([[2, 0], [0, 3]])
    )

    assert times.tolist() == [0.0, 1.0, 4.0]
    assert heights.tolist() == [[2, 0], [2, 3], [0, 3]]


def test_machine_code_of_kernels_is_made_anew_when_the_profile_kernel_changes() -> None:
    """Kernels of planning and clusters hold its machine code, and lie in other folders."""
    from bursar.cluster.kernels import advance
    from bursar.planning.kernels.lists import evaluate

    for kernel in (advance, evaluate):
        cache = getattr(kernel, "_cache", None)  # absent where Numba is
        if cache is not None:
            assert "profile_kernel.py" in str(cache._cache_file._version)
