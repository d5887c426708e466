"""Requests in the shape of holes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from bursar.model.allocation import Allocation
from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.slot import Slot
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.provisioning.request_shaping import (
    SLACK,
    RequestShape,
    evenly,
    fitting,
    free_now,
    halves,
    requests_to_move,
    shape_requests,
)


def site(*holes: tuple[float, float, int], **more: object) -> PoolSite:
    """With holes of (start, seconds, processors)."""
    made = tuple(Slot(start=s, duration=d, processors=n) for s, d, n in holes)
    return PoolSite(
        name="a", rules=AcquisitionPolicy(), processors=96, backfill_windows=made, **more
    )  # type: ignore[arg-type]


def hunt(view: PoolSite, processors: int, **more: object) -> list[RequestShape]:
    """From 300 s on, an hour if possible."""
    options = {"unit": 1, "least": 300.0, "wanted": 3600.0, "most": 64, **more}
    return shape_requests(view, processors, **options)  # type: ignore[arg-type]


def brief(shapes: list[RequestShape]) -> list[tuple[int, float, bool]]:
    """What matters here."""
    return [(s.processors, s.seconds, s.fits) for s in shapes]


def test_a_request_has_the_size_and_the_length_of_its_hole() -> None:
    """In whole minutes, and a little shorter: it takes a moment to get there."""
    view = site((0.0, math.inf, 10), (0.0, 1000.0, 20), (0.0, 200.0, 40))
    assert brief(hunt(view, 20)) == [(10, 3600.0, True), (10, 960.0, True)]


def test_the_rest_is_asked_for_as_it_becomes_free_in_pieces() -> None:
    """Jobs end sooner than was said, and one by one."""
    view = site((600.0, math.inf, 8), (900.0, 400.0, 9), (950.0, 100.0, 50))
    assert brief(hunt(view, 9)) == [*[(2, 3600.0, False)] * 4, (1, 360.0, False)]


def test_nothing_that_waits_is_asked_for_before_what_fits_has_begun() -> None:
    """A request for the last processor could overtake the others, and take one of theirs."""
    view = site((0.0, math.inf, 10), (600.0, math.inf, 8))
    assert brief(hunt(view, 19)) == [(10, 3600.0, True)]
    claimed = [RequestShape(processors=10, seconds=3600.0)]
    assert hunt(view, 9, claims=claimed, only_fitting=True) == []
    assert sum(s.processors for s in hunt(view, 9, claims=claimed)) == 9


def test_without_holes_what_is_free_is_asked_for_as_one() -> None:
    """The paper's busy site: 47 of 48, and one that waits when these have begun."""
    assert brief(hunt(site(free=47), 48)) == [(47, 3600.0, True)]
    assert brief(hunt(site(free=0), 1)) == [(1, 3600.0, False)]
    assert brief(hunt(site(free=94), 48)) == [(48, 3600.0, True)]


def test_what_fits_is_asked_for_in_halves_where_starts_are_slow() -> None:
    """The largest first, so that one that is quicker than the others does not wait for them."""
    assert halves(48) == [24, 12, 6, 3, 2, 1]
    shapes = hunt(site(free=47), 48, in_halves=True)
    assert [s.processors for s in shapes] == [24, 12, 6, 3, 1, 1]
    assert all(s.fits for s in shapes)
    assert [s.processors for s in hunt(site(free=47), 48, in_halves=True, most=3)] == [24, 12, 11]


def test_where_nobody_says_anything_halves_are_asked_for() -> None:
    """Much comes at once where there is room."""
    assert [s.processors for s in hunt(site(), 48)] == [24, 12, 6, 3, 2, 1]


def test_a_request_over_several_nodes_is_an_array_of_one_for_each() -> None:
    """A job ends as a whole with one of its nodes; an array costs no more submissions."""
    nodes = {"per_node": 12, "arrays": True}
    shapes = hunt(site(free=94, **nodes), 50)
    assert [(s.processors, s.group) for s in shapes] == [(12, 1)] * 4 + [(2, 0)]
    blind = hunt(site(**nodes), 48)
    assert [(s.processors, s.group) for s in blind] == [
        *[(12, 1)] * 2,
        *[(n, 0) for n in (12, 6, 3, 2, 1)],
    ]
    one_by_one = hunt(site(free=94, per_node=12), 50)  # each would be a submission of its own
    assert [(s.processors, s.group) for s in one_by_one] == [(50, 0)]


def test_no_more_requests_than_may_wait_come_of_the_nodes() -> None:
    """96 processors on nodes of one: 16 parts of six; and one request where no more may wait."""
    nodes = {"per_node": 1, "arrays": True}
    assert [s.processors for s in hunt(site(free=96, **nodes), 96)] == [6] * 16
    assert [s.processors for s in hunt(site(free=96, **nodes), 96, most=2)] == [96]


def test_short_requests_are_as_long_as_whole_tasks() -> None:
    """In 25 minutes: two tasks of 600 s and 30 s for the start; in 11: one, rounded up to 11."""
    (shape,) = hunt(site((0.0, 1500.0, 4)), 4, least=630.0, task=600.0)
    assert shape.seconds == 1230.0
    (shape,) = hunt(site((0.0, 666.0, 4)), 4, least=630.0, task=600.0)
    assert shape.seconds == 630.0
    assert hunt(site((0.0, 664.0, 4)), 4, least=630.0, task=600.0, only_fitting=True) == []


def test_a_hole_of_just_the_wanted_minutes_fits() -> None:
    """Schedulers round 20 minutes to 20 minutes: no further one is needed."""
    assert fitting(1205.0, 1200.0) == 1200.0
    assert fitting(1204.0, 1200.0) == 1140.0


def test_claims_take_of_the_holes() -> None:
    """What was asked since the scheduler was last looked at is not free any more."""
    view = site((0.0, math.inf, 10), (0.0, 1000.0, 20))
    claims = [
        RequestShape(processors=15, seconds=900.0),
        RequestShape(processors=4, seconds=3600.0),
    ]
    assert free_now(view, claims) == [(math.inf, 6), (1000.0, 5)]
    too_large = [RequestShape(processors=11, seconds=3600.0)]  # it waits, and others go ahead
    assert free_now(view, too_large) == [(math.inf, 10), (1000.0, 20)]


def test_a_limit_may_be_cut_where_the_scheduler_can() -> None:
    """Down to what the longest task needs."""
    (shape,) = hunt(site(free=48, time_ranges=True), 48)
    assert (shape.seconds, shape.least_seconds) == (3600.0, 300.0)


def test_lengths_are_learned_where_nothing_is_known() -> None:
    """Whoever chooses is offered the wanted length, half of it, and so on."""
    offered: list[tuple[float, ...]] = []

    def choose(processors: int, lengths: tuple[float, ...]) -> float:
        offered.append(lengths)
        return lengths[-1]

    shapes = hunt(site(), 4, choose=choose)
    assert offered[0] == (3600.0, 1800.0, 900.0, 450.0)
    assert {s.seconds for s in shapes} == {450.0}


def waiting(name: str, processors: int, asked: float = 0.0) -> Allocation:
    """A request in the queue."""
    return Allocation(name=name, site="a", processors=processors, asked=asked, duration=3600.0)


def test_requests_move_into_holes_that_have_opened() -> None:
    """The last first; not into such as are too short, and no more than fit."""
    queue = [waiting("old", 4), waiting("young", 5, 10.0), waiting("large", 40, 20.0)]
    chosen = requests_to_move(site((0.0, 1000.0, 8)), queue, 300.0)
    assert [a.name for a in chosen] == ["young"]
    assert requests_to_move(site((0.0, 200.0, 90)), queue, 300.0) == []
    assert requests_to_move(site(free=90), queue, 300.0) == []


def test_a_request_that_fits_as_it_is_does_not_move() -> None:
    """It is on its way, which takes longer at some sites than until the next look."""
    assert requests_to_move(site((0.0, math.inf, 47)), [waiting("on its way", 47)], 300.0) == []
    queue = [waiting("on its way", 40), waiting("too large", 7, 5.0), waiting("waits", 7, 9.0)]
    assert requests_to_move(site((0.0, math.inf, 41), (0.0, 400.0, 8)), queue, 300.0) == [queue[2]]


holes = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 100.0, 5000.0]),
        st.sampled_from([30.0, 400.0, 1000.0, 5000.0, math.inf]),
        st.integers(1, 40),
    ),
    max_size=6,
)


@given(
    holes,
    st.integers(1, 30),
    st.sampled_from([1, 1, 4]),
    st.integers(1, 64),
    st.booleans(),
    st.sampled_from([None, 3, 12]),
)
def test_requests_sum_to_what_was_asked_and_fit_where_they_are_said_to(
    drawn: list[tuple[float, float, int]],
    count: int,
    unit: int,
    most: int,
    in_halves: bool,
    per_node: int | None,
) -> None:
    """Whatever the schedule looks like."""
    view = site(*drawn, per_node=per_node, arrays=True)
    shapes = hunt(view, count * unit, unit=unit, most=most, in_halves=in_halves)
    assert len(shapes) <= most
    total = sum(s.processors for s in shapes)
    assert total <= count * unit
    if any(s.fits for s in shapes):  # the rest is asked for when these have begun
        assert all(s.fits for s in shapes)
    elif most >= 30:
        assert total == count * unit
    assert all(s.processors % unit == 0 and 300.0 <= s.seconds <= 3600.0 for s in shapes)
    for seconds in {s.seconds for s in shapes if s.fits}:
        # As many processors as are asked for at once so long or longer are free for so long.
        asked = sum(s.processors for s in shapes if s.fits and s.seconds >= seconds)
        free = sum(n for start, d, n in drawn if start <= 1.0 and d >= seconds + SLACK)
        assert asked <= free


@given(st.floats(1, 1e6), st.sampled_from([60.0, 600.0, 3600.0, 5000.5]))
def test_a_request_rounded_up_to_minutes_still_fits(hole: float, wanted: float) -> None:
    """As schedulers round, after the time that it took to get there."""
    seconds = fitting(hole, wanted)
    assert seconds <= wanted
    if seconds >= 60.0:
        assert math.ceil(seconds / 60.0) * 60.0 + SLACK <= hole


@given(st.integers(1, 500), st.integers(1, 5), st.integers(1, 20))
def test_pieces_are_as_even_as_can_be(count: int, unit: int, pieces: int) -> None:
    """No piece is more than a unit larger than another."""
    made = evenly(count * unit, unit, pieces)
    assert sum(made) == count * unit
    assert len(made) == min(count, pieces)
    assert max(made) - min(made) in (0, unit)
