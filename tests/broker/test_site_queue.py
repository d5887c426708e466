"""The queue of one site: who gets which processors, and when these go back."""

from collections.abc import Callable, Sequence

import pytest

from bursar.broker.brokered_scheduler import FreezableClock
from bursar.broker.estimates import GUESS
from bursar.broker.held_pilots import AHEAD, MOST_AHEAD, SiteQueue
from bursar.cluster.element import ComputingElement
from bursar.model.allocation import Allocation
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.task import Task


def queue_of(processors: int = 2, *, shared: bool = False, speed: float = 1.0) -> SiteQueue:
    """Of a site; its pilots are p1, p2 and so on."""
    background = BackgroundLoad(trace="log.swf") if shared else None
    facts = SiteFacts(name="s", processors=processors, speed=speed, background=background)
    names = iter(f"p{i}" for i in range(1, 10_000))
    element = ComputingElement(processors, speed)
    return SiteQueue(facts, element, clock=lambda: 0.0, new_name=lambda: next(names))


def join(queue: SiteQueue, *tasks: Task) -> None:
    """They wait, under the numbers of their ids."""
    for task in tasks:
        queue.join(int(task.id), task)


def jobs(numbers: Sequence[int], **what: float | int | None) -> list[Task]:
    """Alike, with these numbers."""
    return [Task(id=str(number), **what) for number in numbers]  # type: ignore[arg-type]


def given(pilots: Sequence[Allocation]) -> dict[str, tuple[int, ...]]:
    """Which pilot gets which jobs."""
    return {pilot.name: pilot.tasks for pilot in pilots}


def test_first_come_first_served_even_where_a_later_job_would_fit() -> None:
    queue = queue_of(3)
    join(queue, *jobs([0], processors=2), *jobs([1], processors=2), *jobs([2]))

    assert given(queue.start(0.0)) == {"p1": (0,)}
    assert queue.waiting == [1, 2]
    assert (queue.busy, queue.running) == (2, 1)
    queue.leave(0)
    assert given(queue.start(1.0)) == {"p1": (1,), "p2": (2,)}
    assert queue.busy == 3


def test_a_pilot_goes_on_to_a_job_of_its_width_only() -> None:
    queue = queue_of(2)
    join(queue, *jobs([0]), *jobs([1]), *jobs([2], processors=2))
    queue.start(0.0)
    queue.leave(0)
    queue.leave(1)

    assert given(queue.start(1.0)) == {"p3": (2,)}
    assert not queue.holds("p1")
    assert not queue.holds("p2")


def test_an_idle_pilot_is_not_gone_on_with_where_others_took_its_processors() -> None:
    queue = queue_of(2)
    join(queue, *jobs([0], processors=2), *jobs([1]), *jobs([2], processors=2))
    queue.start(0.0)
    queue.leave(0)

    assert given(queue.start(1.0)) == {"p2": (1,)}
    assert queue.busy == 1
    assert not queue.holds("p1")


def test_short_jobs_are_given_ahead_and_long_ones_are_not() -> None:
    """Jobs of a quarter of what may be ahead: the one that runs and three more, then it is full."""
    queue = queue_of(1)
    join(queue, *jobs(range(10), runtime=AHEAD / 4))
    assert given(queue.start(0.0)) == {"p1": (0, 1, 2, 3)}

    long = queue_of(1)
    join(long, *jobs(range(3), runtime=10 * AHEAD))
    assert given(long.start(0.0)) == {"p1": (0,)}

    unknown = queue_of(1)
    join(unknown, *jobs(range(3)))
    assert given(unknown.start(0.0)) == {"p1": (0,)}


def test_not_more_jobs_are_ahead_than_may_be() -> None:
    queue = queue_of(1)
    join(queue, *jobs(range(MOST_AHEAD + 10), runtime=0.0))

    assert given(queue.start(0.0)) == {"p1": tuple(range(MOST_AHEAD))}


def test_a_pilot_that_failed_its_job_gets_no_other() -> None:
    queue = queue_of(1)
    join(queue, *jobs([0, 1]))
    queue.start(0.0)
    queue.retire(0)
    queue.leave(0)

    assert given(queue.start(0.0)) == {"p2": (1,)}
    assert not queue.holds("p1")


def test_jobs_of_a_pilot_that_is_gone_leave_and_its_processors_are_free() -> None:
    queue = queue_of(1)
    join(queue, *jobs(range(3), runtime=AHEAD / 4))
    queue.start(0.0)

    assert queue.forget("p1") == [0, 1, 2]
    assert queue.forget("p1") == []
    assert (queue.busy, queue.running, queue.element.running) == (0, 0, 0)


def test_all_that_waited_leaves_at_once() -> None:
    queue = queue_of(1)
    join(queue, *jobs(range(4)))
    queue.start(0.0)

    assert queue.forget_all() == [1, 2, 3]
    assert queue.waiting == []
    assert queue.element.waiting == 0
    assert queue.running == 1


def test_jobs_without_money_are_taken_back_from_a_pilot_that_keeps_its_own() -> None:
    queue = queue_of(1)
    join(queue, *jobs([0], runtime=AHEAD / 4))
    queue.start(0.0)
    join(queue, *jobs([1, 2], runtime=AHEAD / 4))
    queue.start(0.0)

    assert queue.take_back("p1", (1, 2)) == [1, 2]
    assert queue.holds("p1")
    assert (queue.busy, queue.running) == (1, 1)
    assert queue.take_back("p1", (0,)) == [0]
    assert not queue.holds("p1")
    assert queue.take_back("p1", (0,)) == []


def test_a_pilot_that_never_began_gives_all_its_jobs_back() -> None:
    """Others came to it since it was asked for."""
    queue = queue_of(1)
    join(queue, *jobs([0], runtime=AHEAD / 4))
    queue.start(0.0)
    join(queue, *jobs([1], runtime=AHEAD / 4))
    queue.start(0.0)

    assert queue.take_back("p1", (0,)) == [0, 1]
    assert not queue.holds("p1")


def test_at_a_shared_site_each_job_has_a_pilot_of_its_own() -> None:
    """Its scheduler has a queue: more are asked for than it has processors."""
    queue = queue_of(1, shared=True)
    join(queue, *jobs(range(3), runtime=0.01))
    pilots = queue.start(0.0)

    assert given(pilots) == {"p1": (0,), "p2": (1,), "p3": (2,)}
    assert not any(pilot.extensible for pilot in pilots)
    queue.leave(0)
    join(queue, *jobs([3], runtime=0.01))
    assert given(queue.start(0.0)) == {"p4": (3,)}
    assert not queue.holds("p1")


def test_a_job_whose_time_was_never_over_gets_its_estimate() -> None:
    queue = queue_of(1, shared=True)
    join(queue, *jobs([0], runtime=10.0))

    assert [pilot.duration for pilot in queue.start(0.0)] == [10.0]


@pytest.mark.parametrize(
    ("task", "shared", "stretch", "seconds"),
    [
        (Task(id="0", runtime=10.0), False, 1.0, 5.0),
        (Task(id="0", runtime=10.0, wall_limit=3.0), False, 1.0, 3.0),
        (Task(id="0"), False, 1.0, GUESS),
        (Task(id="0"), False, 4.0, GUESS),
        (Task(id="0", runtime=10.0), True, 1.0, 5.0),
        (Task(id="0", runtime=10.0), True, 4.0, 20.0),
        (Task(id="0", runtime=10.0, wall_limit=30.0), True, 4.0, 30.0),
    ],
)
def test_what_is_asked_for_a_job(task: Task, shared: bool, stretch: float, seconds: float) -> None:
    """Of a site twice as fast; at a shared one, more each time that its time was over."""
    queue = queue_of(shared=shared, speed=2.0)
    queue.join(0, task, stretch)

    assert [pilot.duration for pilot in queue.start(7.0)] == [seconds]


def test_a_moment_stands_still_until_the_outermost_holder_lets_go() -> None:
    times = iter([1.0, 2.0, 3.0, 4.0])
    tick: Callable[[], float] = lambda: next(times)  # noqa: E731
    moment = FreezableClock(tick)

    assert (moment(), moment.number) == (1.0, None)
    with moment.held():
        first = moment.number
        assert (moment(), moment()) == (2.0, 2.0)
        with moment.held():
            assert (moment(), moment.number) == (2.0, first)
        assert moment() == 2.0
    assert (moment(), moment.number) == (3.0, None)
    with moment.held():
        assert moment.number != first
