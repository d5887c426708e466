"""Wires, and how much of them is there."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.model.network import BandwidthProfile, NetworkLink


def test_a_profile_goes_round() -> None:
    """0.5 for ten seconds, 0.2 for ten, then 0.5 again."""
    profile = BandwidthProfile(shares=(0.5, 0.2), step=10.0)

    assert [profile.share_at(t) for t in (0, 9.9, 10, 19.9, 20, 35)] == [
        0.5,
        0.5,
        0.2,
        0.2,
        0.5,
        0.2,
    ]
    assert [profile.change_after(t) for t in (0, 9.9, 10, 20)] == [10, 10, 20, 30]


@given(step=st.floats(1e-3, 1e5), number=st.integers(0, 10**6))
def test_a_change_lies_ahead_and_the_next_share_holds_then(step: float, number: int) -> None:
    """Rounding must neither leave time standing nor pass over a step."""
    profile = BandwidthProfile(shares=tuple(i / 7 for i in range(7)), step=step)
    moment = number * step

    assert profile.share_at(moment) == (number % 7) / 7
    assert profile.change_after(moment) == (number + 1) * step
    assert profile.change_after(math.nextafter(moment, math.inf)) > moment


@pytest.mark.parametrize(
    ("shares", "step", "message"),
    [
        ((), 1.0, "at least one share"),
        ((0.5, 1.5), 1.0, "between 0 and 1, got 1.5"),
        ((math.nan,), 1.0, "between 0 and 1"),
        ((0.5,), 0.0, "step must be finite and positive"),
        ((0.5,), math.inf, "step must be finite and positive"),
    ],
)
def test_a_profile_checks_itself(shares: tuple[float, ...], step: float, message: str) -> None:
    """Shares are shares and steps take time."""
    with pytest.raises(ValueError, match=message):
        BandwidthProfile(shares=shares, step=step)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "a"}, '"a" twice'),
        ({"bandwidth": 0.0}, "bandwidth must be positive, got 0"),
        ({"bandwidth": -1.0}, "bandwidth must be positive, got -1"),
        ({"bandwidth": math.nan}, "bandwidth must be positive"),
        ({"latency": -1.0}, "latency must be finite and not negative"),
        ({"latency": math.inf}, "latency must be finite and not negative"),
        ({"duplex": "both"}, 'duplex must be "full"'),
        (
            {"bandwidth": math.inf, "profile": BandwidthProfile(shares=(1.0,), step=1.0)},
            "finite bandwidth",
        ),
    ],
)
def test_a_wire_checks_itself(changes: dict[str, object], message: str) -> None:
    """What is out of range is said."""
    values: dict[str, object] = {"source": "a", "target": "b", "bandwidth": 1.0} | changes
    with pytest.raises(ValueError, match=message):
        NetworkLink(**values)  # type: ignore[arg-type]
