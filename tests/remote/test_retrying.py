"""When to try again."""

import os

from hypothesis import given
from hypothesis import strategies as st

from bursar.remote.connection import LONGEST, RetryBackoff, random_fraction


def none(size: int) -> bytes:
    """The least of random numbers."""
    return bytes(size)


def most(size: int) -> bytes:
    """The largest."""
    return b"\xff" * size


def test_the_waits_double_up_to_a_ceiling() -> None:
    """With the largest jitter: 0.1 s, 0.2 s, 0.4 s ... and never more than the longest."""
    tries = RetryBackoff(1e9, most)

    waits = [tries.after_failure(0.0) for _ in range(40)]

    assert [round(wait or 0, 9) for wait in waits[:4]] == [0.1, 0.2, 0.4, 0.8]
    assert all(wait is not None and wait <= LONGEST for wait in waits)


def test_it_is_given_up_when_patience_ends() -> None:
    """Counted from the first failure, not from the begin of a long request."""
    tries = RetryBackoff(10.0, none)

    assert tries.after_failure(1000.0) == 0.0
    assert tries.after_failure(1010.0) == 0.0
    assert tries.after_failure(1010.1) is None


def test_who_is_told_to_wait_does_and_a_little_longer() -> None:
    """Many who were told the same would all come at the same moment."""
    assert RetryBackoff(10.0, none).after_failure(0.0, 5.0) == 5.0
    later = RetryBackoff(10.0, most).after_failure(0.0, 5.0)
    assert later is not None
    assert 5.0 < later <= 5.1


def test_a_wait_longer_than_patience_is_not_begun() -> None:
    """The failure is told at once instead."""
    assert RetryBackoff(10.0, none).after_failure(0.0, 60.0) is None


@given(st.binary(min_size=7, max_size=7))
def test_a_fraction_is_below_1(data: bytes) -> None:
    """From 0 to 1, 1 excluded, whatever the bytes."""
    assert 0.0 <= random_fraction(lambda size: data[:size]) < 1.0


def test_fractions_differ() -> None:
    """Real entropy spreads."""
    assert len({random_fraction(os.urandom) for _ in range(100)}) == 100
