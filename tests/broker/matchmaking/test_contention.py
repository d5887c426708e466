"""The share of the sites that our jobs take, and what that makes a wait cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.matchmaking.broker_rig import Grid, job, site, status
from tests.thoroughness import examples

from bursar.broker.matchmaking.inflight import LEAST_SPANS, MOST, PART, ContentionModel


def stream(
    gap: float, work: float, jobs: int, capacity: float = 10.0
) -> tuple[ContentionModel, float]:
    """Jobs of 60 s, one each gap; and when the last came."""
    crowding = ContentionModel(capacity)
    for number in range(jobs):
        crowding.sent(number * gap, work, 60.0)
    return crowding, (jobs - 1) * gap


def test_a_stream_takes_its_share() -> None:
    """60 processor-seconds each 12 s are 5 processors of 10."""
    crowding, now = stream(12.0, 60.0, 200)

    assert crowding.share(now) == pytest.approx(0.5, abs=0.05)
    assert crowding.toll(now) == pytest.approx(1.0, abs=0.2)


def test_a_burst_is_no_stream() -> None:
    """However many come at once, they count as what can be done in the span they came in."""
    crowding, now = stream(0.0, 60.0, 10_000)

    assert crowding.share(now) == 0.0
    assert crowding.share(now + 60 * PART) == pytest.approx(1 / LEAST_SPANS)


def test_what_is_past_is_forgotten() -> None:
    crowding, now = stream(12.0, 60.0, 200)

    assert crowding.share(now + 1e6) == 0.0
    crowding.sent(now + 1e6, 60.0, 60.0)
    assert crowding.share(now + 1e6) == 0.0


def test_jobs_of_no_length_tell_nothing() -> None:
    crowding = ContentionModel(10.0)
    crowding.sent(0.0, 0.0, 0.0)

    assert crowding.share(5.0) == 0.0


@given(
    st.lists(
        st.tuples(st.floats(0, 1e4), st.floats(0, 1e6), st.floats(0, 1e4)), min_size=1, max_size=50
    )
)
@settings(max_examples=examples(100))
def test_it_is_a_share_whatever_comes(jobs: list[tuple[float, float, float]]) -> None:
    """And the toll is finite."""
    crowding, now = ContentionModel(3.0), 0.0
    for gap, work, length in jobs:
        now += gap
        crowding.sent(now, work, length)
        assert 0 <= crowding.share(now) <= MOST
        assert 0 <= crowding.toll(now) <= MOST / (1 - MOST) + 1e-9


def test_under_load_a_job_takes_the_slow_site_that_is_free() -> None:
    """60 s at the slow one, or 45 s of waiting and 10 s of running: sooner for the job itself;
    but where half of all is in use those to come lose another 45 s by it."""
    sites = [site("fast", 1, speed=6.0), site("slow", 1)]
    said = [status("fast", wait=45.0), status("slow", free=1)]
    assert Grid(sites, said).send(job(runtime=60.0)) == "fast"

    grid = Grid(sites, said)
    for number in range(100):  # each 17 s a job of 60 s, to processors that do 7 s in one
        grid.clock.now = number * 17.0
        grid.broker.sent(job(number, runtime=60.0), "fast")
        grid.broker.ended(number)
    grid.index.tell(*(replace(one, at=grid.clock.now) for one in said))

    match = grid.broker.choose(job(runtime=60.0))
    assert match.site == "slow"
    assert "costs jobs to come" in match.reason_of("fast")
