"""A clock that never goes back."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.service.steady import AHEAD, SteadyClock


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1000, 1000)), max_size=20))
def test_it_never_goes_back(steps: list[tuple[float, float]]) -> None:
    """Whatever is done to the time of day; it is not much behind that, and goes at its pace."""
    steady, wall = 0.0, 1e9
    clock = SteadyClock(lambda: steady, lambda: wall)
    before = clock()
    for seconds, jump in steps:
        steady += seconds
        wall += seconds + jump
        now = clock()
        assert now >= before + seconds - 1e-6
        assert now >= wall - AHEAD - 1e-6
        before = now
