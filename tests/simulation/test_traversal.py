"""How long a batch machine says that a job would wait, and how long it does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.test_loaded import trace
from tests.thoroughness import examples

from bursar.cluster.job_table import Policy
from bursar.cluster.machine import Machine
from bursar.model.errors import InputError
from bursar.simulation.loaded_cluster import LoadedCluster

POLICY = st.sampled_from(["fcfs", "easy", "conservative"])


def by_probe(machine: Machine, processors: int, seconds: float) -> float:
    """When a job starts that is put into a copy in which nobody submits any more."""
    twin = machine.copy()
    job = twin.submit(processors, seconds)
    twin.advance(twin.now)
    (at,) = np.nonzero(twin.waiting == job)
    return float(twin.expected_starts()[at[0]]) if len(at) else twin.now


@given(
    seed=st.integers(0, 50),
    at=st.integers(0, 9000),
    policy=POLICY,
    loose=st.sampled_from([1.0, None]),
    processors=st.integers(1, 32),
    seconds=st.integers(1, 400),
)
@settings(max_examples=examples(150))
def test_asking_is_what_a_probe_in_a_copy_finds(
    seed: int, at: int, policy: Policy, loose: float | None, processors: int, seconds: int
) -> None:
    """Under every policy, with windows reserved; and asking changes nothing."""
    cluster = LoadedCluster(trace(seed), 32, at=float(at), policy=policy, looseness=loose)
    cluster.machine.reserve(cluster.now + 5000.0, 100.0, 32)
    before = cluster.machine.waiting.tolist(), cluster.machine.schedule()[0].tolist()

    found = cluster.traversal_time(processors, float(seconds))

    assert found == by_probe(cluster.machine, processors, float(seconds)) - cluster.now >= 0
    assert (cluster.machine.waiting.tolist(), cluster.machine.schedule()[0].tolist()) == before


@given(seed=st.integers(0, 50), at=st.integers(0, 9000), policy=POLICY, width=st.integers(1, 32))
@settings(max_examples=examples(100))
def test_it_comes_true_where_estimates_do_and_nobody_else_comes(
    seed: int, at: int, policy: Policy, width: int
) -> None:
    cluster = LoadedCluster(trace(seed), 32, at=float(at), policy=policy, looseness=1.0)
    told = cluster.traversal_time(width, 50.0)

    job = cluster.machine.submit(width, 50.0)
    asked = cluster.now
    cluster.machine.run()

    assert cluster.machine.job(job).start == asked + told


def test_a_job_that_does_not_say_how_long_asks_for_what_the_others_do() -> None:
    """One runs on 8 of 12 processors to 100; the other 4 are reserved from 50 to 60."""
    cluster = LoadedCluster(trace(jobs=0), 12, at=0.0)
    assert cluster.traversal_time() == 0
    cluster.machine.submit(8, 100.0)
    cluster.advance(0.0)
    cluster.machine.reserve(50.0, 10.0, 4)

    assert cluster.traversal_time() == 60  # 100 s do not fit before it
    assert cluster.traversal_time(1, 50.0) == 0
    assert cluster.traversal_time(5, 1.0) == 100


def test_what_can_never_run_is_refused() -> None:
    cluster = LoadedCluster(trace(), 32, at=0.0)
    with pytest.raises(InputError, match="between 1 and 32 processors"):
        cluster.traversal_time(33)
    with pytest.raises(InputError, match="must be positive"):
        cluster.traversal_time(1, 0.0)
