"""A clock that never goes back."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.service.startup import AHEAD, SteadyClock


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-1000, 1000)), max_size=20))
def test_it_never_goes_back(steps: list[tuple[float, float]]) -> None:
    """Whatever is done to the time of day, the clock goes at its pace, and follows when told to."""
    steady, wall = 0.0, 1e9
    clock = SteadyClock(lambda: steady, lambda: wall)
    before = clock()
    for seconds, jump in steps:
        steady += seconds
        wall += seconds + jump
        assert clock() == pytest.approx(before + seconds)
        followed = clock.follow()
        now = clock()
        assert now >= wall - AHEAD - 1e-6
        if followed is None:
            assert now == pytest.approx(before + seconds)
        else:
            assert followed == (pytest.approx(before + seconds), pytest.approx(now))
        before = now


@pytest.mark.parametrize("back", [0.0, 2400.0, 1e8])
def test_between_lives_it_is_no_earlier_than_what_was_noted(tmp_path: Path, back: float) -> None:
    """The service was killed, and the machine comes up with a clock that is behind."""
    wall = 1e9
    killed = SteadyClock(lambda: 7.0, lambda: wall)
    killed.keep(tmp_path / "clock")
    last = killed()
    with closing(SteadyClock(lambda: 3.0, lambda: wall - back)) as clock:
        clock.keep(tmp_path / "clock")
        assert clock() == pytest.approx(last)
    killed.close()


@pytest.mark.parametrize("noted", [b"", b"9" * 20, b"99999999999999999999 deadbeef\n", b"\0" * 40])
def test_a_note_that_is_damaged_holds_nobody_up(tmp_path: Path, noted: bytes) -> None:
    """After a power cut it may be anything; a year 5138 would end every agreement."""
    (tmp_path / "clock").write_bytes(noted)
    with closing(SteadyClock(lambda: 3.0, lambda: 1e9)) as clock:
        clock.keep(tmp_path / "clock")
        assert clock() == pytest.approx(1e9)
