"""Confidence intervals, against tables and by their coverage."""

import math

import numpy as np
import pytest

from bursar.simulation.datagrid.grid_outcome import batch_means, interval


def test_student_intervals() -> None:
    """Of 9, 10, 11: standard error 0.577, t of two degrees 4.303: 10 ± 2.484."""
    found = interval([9.0, 10.0, 11.0])
    assert (found.mean, found.half) == (10.0, pytest.approx(2.484, abs=1e-3))
    assert found.holds(7.6)
    assert not found.holds(7.4)
    assert math.isinf(interval([5.0]).half)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    """95 % of 1,000 samples of 10, seed 0: within three deviations, 93 to 97 %."""
    rng = np.random.default_rng(0)
    hits = sum(interval(rng.exponential(1.0, 400).reshape(10, 40).mean(1)).holds(1.0)
               for _ in range(1000))  # fmt: skip
    assert 925 <= hits <= 970


def test_batches_leave_out_what_does_not_fill_one() -> None:
    found = batch_means(np.array([1.0, 1.0, 3.0, 3.0, 99.0]), 2)
    assert found.mean == 2.0
