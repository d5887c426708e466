"""A computing element tells what first come, first served then does."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.cluster.element import ComputingElement
from bursar.cluster.simulation import simulate
from bursar.model.errors import InputError
from bursar.model.trace import Trace

WIDTH, LENGTH = st.integers(1, 5), st.integers(1, 12)
ROWS = st.lists(st.tuples(st.integers(0, 20), WIDTH, LENGTH), min_size=1, max_size=25)


def _trace(rows: Sequence[tuple[int, int, int]], processors: int) -> Trace:
    submit, width, runtime = (np.array(column) for column in zip(*sorted(rows), strict=True))
    count = len(rows)
    return Trace(
        name="t",
        number=np.arange(1, count + 1),
        submit=submit.astype(float),
        runtime=runtime.astype(float),
        estimate=runtime.astype(float),
        processors=np.minimum(width, processors),
        wait=np.full(count, math.nan),
        user=np.full(count, -1),
    )


@given(ROWS, st.integers(1, 6))
@settings(max_examples=examples(300))
def test_where_estimates_are_true_jobs_wait_as_long_as_was_told(
    rows: list[tuple[int, int, int]], processors: int
) -> None:
    """
    The simulator of traces starts every job when the element said, told so by what had been
    submitted until then; and what the element would start is what is started.
    """
    log = _trace(rows, processors)
    ran = simulate(log, processors=processors, policy="fcfs")
    element = ComputingElement(processors)
    moments = sorted({*log.submit.tolist(), *ran.start.tolist(), *ran.finish.tolist()})

    for now in moments:
        for job in np.flatnonzero(ran.finish == now).tolist():
            element.ended(job, now)
        for job in np.flatnonzero(log.submit == now).tolist():
            width = int(log.processors[job])
            assert element.traversal_time(now, width) == ran.start[job] - now
            element.submit(job, width, float(log.estimate[job]), now)
        begun = np.flatnonzero(ran.start == now).tolist()
        assert element.startable() == begun
        for job in begun:
            element.began(job, now)

    assert (element.running, element.waiting, element.free_processors) == (0, 0, processors)


class Plain:
    """The same element as plainly as it can be: one end for each processor, made anew each time."""

    def __init__(self, processors: int) -> None:
        self.processors = processors
        self.waiting: dict[int, tuple[int, float | None]] = {}
        self.running: dict[int, tuple[int, float | None, float]] = {}
        self.took: list[float] = []
        self.stated: list[float] = []

    def traversal_time(self, now: float, width: int) -> float | None:
        known = self.took or self.stated
        mean = sum(known) / len(known) if known else None
        here = [*self.waiting.values(), *(job[:2] for job in self.running.values())]
        if mean is None and any(seconds is None for _, seconds in here):
            used = sum(job[0] for job in self.running.values())
            return 0.0 if not self.waiting and used + width <= self.processors else None
        ends = []
        for held, stated, start in self.running.values():
            seconds = mean if stated is None else stated
            assert seconds is not None
            while 0 < seconds < now - start - 1e-6:
                seconds *= 2
            ends += [max(now, start + seconds)] * held
        ends.sort()
        excess = len(ends) - self.processors
        free = ends[excess:] if excess > 0 else [now] * -excess + ends
        begin = now
        for asked, stated in [*self.waiting.values(), (width, 0.0)]:
            seconds = mean if stated is None else stated
            assert seconds is not None
            free.sort()
            begin = max(begin, free[asked - 1])
            free = [begin + seconds] * asked + free[asked:]
        return begin - now


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "submit", "begin", "begin any", "end", "end on time", "cancel", "ask"]
        ),
        st.integers(0, 7),
        WIDTH,
        st.none() | LENGTH,
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 5))
@settings(max_examples=examples(300))
def test_whatever_happens_the_kept_forecast_is_the_one_made_anew(
    steps: list[tuple[str, int, int, int | None]], processors: int
) -> None:
    """
    Estimates that are wrong or missing, jobs that overtake, are cancelled, or begin where
    there is no room: asked at any moment, the answer is that of the plain twin.
    """
    element, plain = ComputingElement(processors), Plain(processors)
    now = 0.0
    for key, (what, after, width, seconds) in enumerate(steps):
        width = min(width, processors)
        ends = {job: start + (s or 3) for job, (_, s, start) in plain.running.items()}
        now = max(now, min(ends.values())) if what == "end on time" and ends else now + after
        waiting, running = list(plain.waiting), list(plain.running)
        if what == "submit":
            element.submit(key, width, seconds, now)
            plain.waiting[key] = (width, seconds)
            plain.stated += [] if seconds is None else [float(seconds)]
        elif what.startswith("begin") and waiting:
            job = waiting[0 if what == "begin" else after % len(waiting)]
            element.began(job, now)
            plain.running[job] = (*plain.waiting.pop(job), now)
        elif what == "cancel" and waiting:
            job = waiting[after % len(waiting)]
            element.ended(job, now)
            del plain.waiting[job]
        elif what.startswith("end") and running:
            job = min(ends, key=ends.__getitem__) if "on time" in what else running[0]
            element.ended(job, now)
            plain.took.append(now - plain.running.pop(job)[2])
        told = element.traversal_time(now, width)
        assert told == pytest.approx(plain.traversal_time(now, width), abs=1e-6)


def test_time_that_passes_shortens_the_wait() -> None:
    """Both processors are busy, to 10 and to 20; one waits, to run from 10 to 15."""
    element = ComputingElement(2)
    for key, seconds in enumerate((10.0, 20.0)):
        element.submit(key, 1, seconds, 0.0)
        element.began(key, 0.0)
    element.submit(2, 1, 5.0, 0.0)

    assert element.traversal_time(0.0) == 15
    assert element.traversal_time(4.0) == 11
    assert element.traversal_time(4.0, 2) == 16
    assert element.traversal_time(4.0, 3) == math.inf


def test_a_job_that_outlives_its_estimate_is_one_of_twice_that() -> None:
    """Of 10 s, begun at 0: it is expected to end at 10, then 20, then 40."""
    element = ComputingElement(1)
    element.submit("job", 1, 10.0, 0.0)
    element.began("job", 0.0)

    assert element.traversal_time(10.0) == 0
    assert element.traversal_time(11.0) == 9
    assert element.traversal_time(20.0) == 0
    assert element.traversal_time(25.0) == 15


def test_a_job_of_no_length_is_always_about_to_end() -> None:
    element = ComputingElement(1)
    element.submit("job", 1, 0.0, 0.0)
    element.began("job", 0.0)
    assert element.traversal_time(100.0) == 0


def test_what_is_unknown_is_the_mean_of_what_ended() -> None:
    """First nothing is known, then one that asked for 8, then that it took 4."""
    element = ComputingElement(1)
    element.submit("a", 1, None, 0.0)
    element.began("a", 0.0)
    assert element.traversal_time(0.0) is None
    assert element.mean_seconds is None
    element.submit("b", 1, 8.0, 0.0)
    assert element.traversal_time(0.0) == 16
    element.submit("c", 1, None, 0.0)
    assert element.traversal_time(0.0) == 24
    element.ended("a", 4.0)
    element.began("b", 4.0)
    assert element.mean_seconds == 4
    assert element.traversal_time(4.0) == 12


def test_an_idle_processor_is_one_for_what_is_unknown_too() -> None:
    element = ComputingElement(2)
    element.submit("a", 1, None, 0.0)
    element.began("a", 0.0)
    assert element.traversal_time(5.0) == 0
    assert element.traversal_time(5.0, 2) is None


def test_jobs_that_run_beyond_what_there_is_owe_their_processors() -> None:
    """Three run on two processors, to 5, 10 and 20: the first end makes no room."""
    element = ComputingElement(2)
    for key, seconds in enumerate((5.0, 10.0, 20.0)):
        element.submit(key, 1, seconds, 0.0)
        element.began(key, 0.0)
    assert element.free_processors == 0
    assert element.traversal_time(0.0) == 10


def test_it_says_how_it_is() -> None:
    element = ComputingElement(4, speed=2.0)
    for key in "ab":
        element.submit(key, 3, element.seconds_of(20.0), 0.0)
    element.began("a", 0.0)

    said = element.status(1.0, "here")

    assert (said.site, said.at, said.free_processors) == ("here", 1.0, 1)
    assert (said.running, said.waiting, said.traversal_time) == (1, 1, 9.0)  # behind "b"
    assert element.seconds_of(None) is None


def test_the_end_of_a_job_that_is_not_there_changes_nothing() -> None:
    element = ComputingElement(1)
    element.ended("nobody", 0.0)
    assert element.traversal_time(0.0) == 0


def test_what_cannot_be_is_refused() -> None:
    element = ComputingElement(2)
    with pytest.raises(InputError, match="between 1 and 2"):
        element.submit("a", 3, 1.0, 0.0)
    for seconds in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="finite and not negative"):
            element.submit("a", 1, seconds, 0.0)
    element.submit("a", 1, 1.0, 0.0)
    with pytest.raises(InputError, match="here already"):
        element.submit("a", 1, 1.0, 0.0)
    element.began("a", 0.0)
    with pytest.raises(InputError, match="does not wait"):
        element.began("a", 0.0)
    with pytest.raises(InputError, match="at least 1"):
        ComputingElement(0)
    with pytest.raises(InputError, match="must be positive"):
        ComputingElement(1, math.nan)
