"""From event to event: nothing happens in between, and the end is the same."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.cluster.job_table import Early, Policy
from bursar.cluster.machine import Machine, Reservation

JOBS = st.lists(
    st.tuples(
        st.integers(0, 30),  # submitted
        st.integers(1, 6),  # processors
        st.integers(1, 12),  # run time
        st.integers(1, 3),  # times of it asked for
    ),
    min_size=1,
    max_size=12,
)


def _machine(rows: list[tuple[int, int, int, int]], policy: Policy, early: Early) -> Machine:
    machine = Machine(6, policy, early=early)
    machine.reserve(10.0, 5.0, 3)
    for submit, processors, runtime, loose in sorted(rows):
        machine.submit(processors, float(runtime * loose), runtime=float(runtime), at=float(submit))
    return machine


@given(
    JOBS, st.sampled_from(["fcfs", "easy", "conservative"]), st.sampled_from(["keep", "compress"])
)
@settings(max_examples=examples(200))
def test_stepping_from_event_to_event_is_running_at_once(
    rows: list[tuple[int, int, int, int]], policy: Policy, early: Early
) -> None:
    at_once = _machine(rows, policy, early)
    at_once.run()
    stepped = _machine(rows, policy, early)
    jobs = np.arange(len(rows))
    steps = 0
    while not stepped.jobs.ended(jobs, stepped.now).all():
        moment = stepped.next_event
        assert moment < math.inf
        before = stepped.jobs.ended(jobs, stepped.now).sum(), len(stepped.running)
        if moment > stepped.now:
            between = stepped.copy()
            between.advance((stepped.now + moment) / 2)
            assert (between.jobs.ended(jobs, between.now).sum(), len(between.running)) == before
        stepped.advance(moment)
        steps += 1
        assert steps < 500

    assert [a.tolist() for a in at_once.jobs.outcome()[:3]] == [
        a.tolist() for a in stepped.jobs.outcome()[:3]
    ]


def test_an_idle_machine_waits_for_nothing() -> None:
    machine = Machine(4)
    assert machine.next_event == math.inf
    assert isinstance(machine.reserve(3.0, 2.0, 1), Reservation)
    assert machine.next_event == 5.0
    machine.submit(1, 2.0, at=1.0)
    assert machine.next_event == 1.0
    machine.advance(1.0)
    assert (machine.next_event, machine.jobs.ended(np.array([0]), machine.now).tolist()) == (
        3.0,
        [False],
    )
