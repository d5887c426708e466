"""Starts of a job for several guesses of how long the others run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.cluster.job_table import Policy
from bursar.cluster.machine import Machine
from bursar.cluster.sampled_starts import FutureJobs, sampled_starts
from bursar.model.errors import InputError

NONE = FutureJobs.none()


def busy(policy: Policy = "easy") -> Machine:
    """4 processors, all held for 100 s as far as is asked, and a job of 4 for 50 s behind."""
    machine = Machine(4, policy, now=1000.0)
    machine.submit(4, 100.0)
    machine.submit(4, 50.0)
    machine.advance(1000.0)
    return machine


def test_a_start_follows_from_each_guess() -> None:
    """As asked 100 + 50 s; the first ends after 10 s and the second after 5: 15 s."""
    guesses = np.array([[100.0, 50.0], [10.0, 5.0], [100.0, 5.0]])

    starts = sampled_starts(busy(), 1, 30.0, guesses, [NONE] * 3)

    assert starts.tolist() == [150.0, 15.0, 105.0]


def test_decisions_rest_on_what_was_asked() -> None:
    """A job of 1 for 30 s fits beside nothing now; guesses of 0 s are still some time."""
    (start,) = sampled_starts(busy(), 1, 30.0, np.array([[0.0, 0.0]]), [NONE])

    assert 0 < start < 0.01


def test_no_guess_is_longer_than_what_was_asked() -> None:
    """Also where the scheduler lets jobs go on for longer: nobody knows how much longer."""
    machine = Machine(4, "easy", overrun="extend")
    machine.submit(4, 100.0)
    machine.submit(4, 50.0)
    machine.advance(0.0)

    (start,) = sampled_starts(machine, 1, 30.0, np.array([[1e9, 1e9]]), [NONE])

    assert start == 150.0


def test_later_jobs_may_come_first() -> None:
    """
    4 processors, 3 held for 100 s; a job of 2 waits until 100 s.

    A job of 1 for 500 s that comes after 10 s leaves 3 of 4 at 100 s: nothing changes. Two such
    jobs would move the start of ours; EASY lets only one begin before it.
    """
    machine = Machine(4, "easy")
    machine.submit(3, 100.0)
    machine.advance(0.0)
    later = FutureJobs(
        submit=np.array([10.0, 20.0, 20.0]),
        processors=np.array([1, 1, 9]),
        estimate=np.array([500.0, 500.0, 1.0]),
        runtime=np.array([500.0, 500.0, 1.0]),
    )

    starts = sampled_starts(machine, 2, 30.0, np.array([[100.0], [100.0]]), [NONE, later])

    assert starts.tolist() == [100.0, 100.0]


def test_reservations_are_kept_in_every_guess() -> None:
    """All 4 from 20 s on for 60 s: a job of 15 s begins before them at 5 s, but not at 6 s."""
    machine = Machine(4, "easy", now=5.0)
    machine.submit(4, 10.0)
    machine.advance(5.0)
    machine.reserve(25.0, 60.0, 4)

    starts = sampled_starts(machine, 4, 15.0, np.array([[5.0], [6.0]]), [NONE] * 2)

    assert starts.tolist() == [5.0, 80.0]


def test_a_job_that_is_too_wide_is_refused() -> None:
    with pytest.raises(InputError, match="between 1 and 4 processors"):
        sampled_starts(busy(), 5, 30.0, np.array([[1.0, 1.0]]), [NONE])


JOBS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 500)), max_size=15)


@given(
    policy=st.sampled_from(["fcfs", "easy", "conservative"]),
    jobs=JOBS,
    width=st.integers(1, 8),
    seconds=st.integers(1, 500),
)
def test_guesses_as_asked_give_the_expected_start(
    policy: Policy, jobs: list[tuple[int, int]], width: int, seconds: int
) -> None:
    """Property: with every job as long as asked, the projection is that of the machine itself."""
    machine = Machine(8, policy)
    for processors, asked in jobs:
        machine.submit(processors, float(asked))
    machine.advance(0.0)
    order = np.concatenate((machine.running, machine.waiting))
    guesses = machine.jobs.estimates[order][None, :]

    starts = sampled_starts(machine, width, float(seconds), guesses, [NONE])

    assert starts.tolist() == [machine.expected_start(width, float(seconds))]
    assert machine.now == 0.0
