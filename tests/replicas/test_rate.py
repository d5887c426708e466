"""A limit on bytes per second, shared."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.replicas.copying import TransferRateLimiter


class Clock:
    """Turned by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bandwidth_is_positive_and_finite(bandwidth: float) -> None:
    """Without a limit there is no rate."""
    with pytest.raises(ValueError, match="must be positive and finite"):
        TransferRateLimiter(bandwidth)


@settings(max_examples=examples(50))
@given(
    st.integers(100, 10**6),
    st.lists(st.tuples(st.integers(1, 10**5), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_no_more_passes_than_the_bandwidth_and_a_short_burst(
    bandwidth: int, turns: list[tuple[int, float]]
) -> None:
    """Whoever waits as told never exceeds it, idle times included; all of it is used."""
    clock = Clock()
    rate = TransferRateLimiter(bandwidth, clock)
    passed = 0
    for size, idle in turns:
        clock.now += rate.take(size)
        passed += size
        assert passed <= bandwidth * (clock.now + 0.1) * (1 + 1e-9)
        clock.now += idle
    idle = sum(idle for _, idle in turns)
    assert clock.now - idle <= passed / bandwidth + 1e-6


def test_those_who_take_in_turns_get_equal_shares() -> None:
    """Three transfers of a link, each with its next piece as soon as it may."""
    clock = Clock()
    rate = TransferRateLimiter(1000.0, clock)
    due = dict.fromkeys("abc", 0.0)
    got = dict.fromkeys("abc", 0)
    while min(due.values()) < 30:
        clock.now = min(due.values())
        who = min(due, key=lambda who: due[who])
        due[who] = clock.now + rate.take(100)
        got[who] += 100
    assert max(got.values()) - min(got.values()) <= 200
    assert sum(got.values()) == pytest.approx(30_000, rel=0.02)
