"""A real queue on our own model of a machine: nothing is free that anybody holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.model.errors import InputError
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    QueuedJob,
    QueueReservation,
    QueueState,
)
from bursar.sites.queue_observer import UNLIMITED, backfill_windows_of, project_queue, slots_of

NOW = 1000.0


def nodes(*allocated: int, of: int = 4, up: bool = True) -> tuple[ClusterNode, ...]:
    return tuple(
        ClusterNode(name=f"n{i}", processors=of, allocated=held, up=up, state="idle")
        for i, held in enumerate(allocated)
    )


def running(processors: int, left: float | None, *on: str) -> QueuedJob:
    """A job that has so many seconds left."""
    return QueuedJob(
        id="r",
        running=True,
        processors=processors,
        began=NOW - 10,
        seconds=None if left is None else left + 10,
        nodes=on,
    )


def waiting(processors: int, seconds: float | None, *, held: bool = False) -> QueuedJob:
    return QueuedJob(id="w", running=False, processors=processors, seconds=seconds, held=held)


def free_at(state: QueueState, moment: float) -> int:
    """Processors that are offered at a moment, seconds from now."""
    return sum(
        hole.processors
        for hole in backfill_windows_of(project_queue(state).machine)
        if hole.start <= moment < hole.end
    )


def test_running_jobs_hold_until_their_limits() -> None:
    """4 of 8 for 60 s more, then all."""
    state = QueueState(at=NOW, nodes=nodes(4, 0), jobs=(running(4, 60.0),))

    assert [free_at(state, t) for t in (0, 59, 61)] == [4, 4, 8]


def test_the_first_that_waits_keeps_its_place() -> None:
    """It needs all 8 at 60 s, for 100 s: before that 4 are free, in it none, after it 8."""
    state = QueueState(at=NOW, nodes=nodes(4, 0), jobs=(running(4, 60.0), waiting(8, 100.0)))

    assert [free_at(state, t) for t in (0, 61, 159, 161)] == [4, 0, 0, 8]


def test_what_is_held_or_too_wide_waits_for_nothing() -> None:
    """Jobs that the scheduler will not start take nothing of what is free."""
    jobs = (waiting(8, 100.0, held=True), waiting(9, 100.0))

    assert free_at(QueueState(at=NOW, nodes=nodes(0, 0), jobs=jobs), 0) == 8


def test_hidden_jobs_hold_what_the_nodes_say() -> None:
    """3 of 8 are held, of which this user sees 1: the others have no end in sight."""
    state = QueueState(at=NOW, nodes=nodes(3, 0), jobs=(running(1, 60.0),))

    assert [free_at(state, t) for t in (0, 61, UNLIMITED - 1)] == [5, 6, 6]


def test_jobs_on_nodes_that_drain_take_nothing_of_the_others() -> None:
    """One of two nodes drains, with its job: the other node is free."""
    drained = ClusterNode(name="n9", processors=4, allocated=4, up=False, state="draining")
    state = QueueState(
        at=NOW,
        nodes=(*nodes(0), drained),
        jobs=(running(4, 60.0, "n9"), running(1, 30.0)),
    )

    assert [free_at(state, t) for t in (0, 31, 61)] == [3, 4, 4]


def test_reservations_are_kept_although_a_job_overruns_into_them() -> None:
    """
    All 8 from 50 s to 150 s; a job holds 4 of them until 100 s.

    All of it cannot be kept; what is free of it is, and not offered.
    """
    window = QueueReservation(name="maintenance", start=NOW + 50, seconds=100.0, processors=8)
    state = QueueState(at=NOW, nodes=nodes(4, 0), jobs=(running(4, 100.0),), windows=(window,))

    assert [free_at(state, t) for t in (0, 49, 51, 101, 149, 151)] == [4, 4, 0, 0, 0, 8]


def test_without_a_node_there_is_nothing_to_project() -> None:
    with pytest.raises(InputError, match="no node is up"):
        project_queue(QueueState(at=NOW, nodes=nodes(0, up=False)))


def test_offers_are_cut_to_what_may_be_held() -> None:
    """At most 5 at a time and 100 s each; holes of less than a minute are not advertised."""
    state = QueueState(at=NOW, nodes=nodes(0, 0, 4), jobs=(running(4, 30.0),))
    slots = slots_of(
        project_queue(state).machine,
        "here",
        most=5,
        longest=100.0,
        unit_price=1.0,
        fixed_price=None,
    )

    assert slots
    for slot in slots:
        assert 60 <= slot.duration <= 100
        there = [s for s in slots if s.start <= slot.start < s.end]
        assert sum(s.processors for s in there) <= 5


STATES = st.builds(
    lambda sizes, jobs, windows: QueueState(
        at=NOW,
        nodes=tuple(
            ClusterNode(name=f"n{i}", processors=size, allocated=min(held, size), up=up, state="s")
            for i, (size, held, up) in enumerate(sizes)
        ),
        jobs=tuple(sorted(jobs, key=lambda job: not job.running)),
        windows=tuple(windows),
    ),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9), st.booleans()), min_size=1),
    st.lists(
        st.one_of(
            st.builds(
                running,
                st.integers(0, 12),
                st.one_of(st.none(), st.floats(-50, 1e6)),
            ),
            st.builds(
                waiting,
                st.integers(0, 40),
                st.one_of(st.none(), st.just(math.inf), st.floats(1, 1e6)),
                held=st.booleans(),
            ),
        ),
        max_size=12,
    ),
    st.lists(
        st.builds(
            QueueReservation,
            name=st.just("w"),
            start=st.floats(NOW - 500, NOW + 1e5),
            seconds=st.floats(1, 1e5),
            processors=st.integers(1, 50),
        ),
        max_size=3,
    ),
)


@given(STATES)
def test_free_slots_never_overlap_what_is_held(state: QueueState) -> None:
    """
    At no time more is offered than the nodes that are up have, less running jobs and windows.

    Whatever a scheduler says; what it says may be at odds with itself.
    """
    if not state.processors:
        return
    holes = backfill_windows_of(project_queue(state).machine)
    held = sum(node.allocated for node in state.nodes if node.up)
    assert free_at(state, 0.0) <= state.processors - held
    for hole in holes:
        moment = hole.start
        free = sum(h.processors for h in holes if h.start <= moment < h.end)
        kept = [
            w.processors
            for w in state.windows
            if w.start - NOW <= moment < w.start + w.seconds - NOW - 1e-6
        ]
        assert free <= max(0, state.processors - max(kept, default=0))
