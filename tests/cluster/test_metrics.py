"""Figures of a schedule against sums written out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.cluster.simulation import (
    SimulatedSchedule,
    bounded_slowdowns,
    measure,
    processors_busy,
    queue_length,
    simulate,
)
from bursar.model.errors import InputError
from bursar.model.trace import Trace

JOBS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 40), st.integers(1, 40), st.integers(1, 8)),
    min_size=1,
    max_size=20,
)


def trace_of(rows: list[tuple[int, int, int, int]]) -> Trace:
    """Submit, run time, estimate and processors of each job."""
    submit, runtime, estimate, width = (np.array(c) for c in zip(*sorted(rows), strict=True))
    count = len(rows)
    return Trace(
        name="test",
        number=np.arange(1, count + 1),
        submit=submit.astype(float),
        runtime=runtime.astype(float),
        estimate=estimate.astype(float),
        processors=width,
        wait=np.full(count, math.nan),
        user=np.zeros(count, dtype=np.int64),
    )


@given(JOBS, st.sampled_from([1.0, 10.0]))
def test_the_figures_are_what_their_names_say(
    rows: list[tuple[int, int, int, int]], tau: float
) -> None:
    """Each by its definition, job by job."""
    trace = trace_of(rows)
    result = simulate(trace, processors=8, policy="easy")
    found = measure(trace, result, tau=tau)

    jobs = list(
        zip(trace.submit.tolist(), result.start.tolist(), result.finish.tolist(),
            trace.processors.tolist(), strict=True)
    )  # fmt: skip
    slowdowns = [max(1.0, (end - sub) / max(end - begin, tau)) for sub, begin, end, _ in jobs]
    makespan = max(end for _, _, end, _ in jobs) - min(sub for sub, _, _, _ in jobs)
    assert found.jobs == len(jobs)
    assert found.average_wait_s == pytest.approx(sum(b - s for s, b, _, _ in jobs) / len(jobs))
    assert found.average_response_s == pytest.approx(sum(e - s for s, _, e, _ in jobs) / len(jobs))
    assert found.average_bounded_slowdown == pytest.approx(sum(slowdowns) / len(jobs))
    assert bounded_slowdowns(trace, result, tau) == pytest.approx(slowdowns)
    assert found.makespan_s == makespan
    work = sum((end - begin) * width for _, begin, end, width in jobs)
    assert found.utilisation == pytest.approx(work / (8 * makespan))
    waits = sorted(begin - sub for sub, begin, _, _ in jobs)
    for share, value in found.waits_s.items():
        assert value == waits[math.ceil(share / 100 * len(waits)) - 1]
    assert found.killed == sum(run > asked for _, run, asked, _ in rows)


@given(JOBS)
def test_steps_are_counts_at_each_moment(rows: list[tuple[int, int, int, int]]) -> None:
    """Of who waits, and of who holds processors."""
    trace = trace_of(rows)
    result = simulate(trace, processors=8, policy="conservative")

    times, waiting = queue_length(trace, result)
    for moment, count in zip(times.tolist(), waiting.tolist(), strict=True):
        assert count == int(((trace.submit <= moment) & (result.start > moment)).sum())
    times, busy = processors_busy(trace, result)
    for moment, count in zip(times.tolist(), busy.tolist(), strict=True):
        held = (result.start <= moment) & (result.finish > moment)
        assert count == int(trace.processors[held].sum())
    assert busy.max() <= 8
    assert busy[-1] == 0


def test_a_job_wider_than_the_machine_is_named() -> None:
    """Before anything runs."""
    with pytest.raises(InputError, match="1 jobs need more than 4 processors, the first is job 2"):
        simulate(trace_of([(0, 1, 1, 1), (1, 1, 1, 5)]), processors=4, policy="fcfs")
    with pytest.raises(InputError, match="unknown estimates"):
        simulate(trace_of([(0, 1, 1, 1)]), processors=4, policy="fcfs", estimates="x")  # type: ignore[arg-type]


def test_actual_estimates_are_the_run_times() -> None:
    """Then nothing is killed, and the backfilling knows the truth."""
    trace = trace_of([(0, 10, 2, 4), (1, 5, 50, 4)])

    user: SimulatedSchedule = simulate(trace, processors=4, policy="easy")
    actual: SimulatedSchedule = simulate(trace, processors=4, policy="easy", estimates="actual")

    assert user.finish.tolist() == [2.0, 7.0]
    assert user.killed.tolist() == [True, False]
    assert actual.finish.tolist() == [10.0, 15.0]
