"""Workers that fall silent while their allocation is still held, in the world of the pool."""

import math
from dataclasses import replace

import pytest
from tests.provisioning.pool_rig import Ground, Silence, Work, World

from bursar.model.allocation import Allocation, AllocationLoad, AllocationRequest
from bursar.model.provisioning import AcquisitionPolicy, ProcessorDemand
from bursar.provisioning.counting import (
    PARTING,
    RETURNING,
    SILENCE,
    STARTING,
    responsive_allocation,
)
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolSite, PoolSnapshot


def world(silence: Silence, tasks: int = 4, seconds: float = 1000.0, **rules: object) -> World:
    """A site of 16 processors on nodes of 4, which is asked for all processors at once."""
    view = PoolSite(
        name="a",
        processors=16,
        per_node=4,
        rules=AcquisitionPolicy(**{"acquisition": "all-at-once", **rules}),  # type: ignore[arg-type]
    )
    work = [Work(0.0, 1, seconds) for _ in range(tasks)]
    return World({"a": Ground(view)}, work, silence=silence)


def first_silent(processors: int, begin: float, end: float = math.inf) -> Silence:
    """Processors of the first request fall silent."""
    return lambda ask, number: (processors, begin, end) if number == 1 else None


def asked(made: World) -> list[tuple[float, int]]:
    return [(moment, d.processors) for moment, d in made.log if isinstance(d, AllocationRequest)]


def given_back(made: World) -> list[tuple[float, str]]:
    return [(moment, d.reason) for moment, d in made.log if isinstance(d, AllocationRelease)]


def test_silent_workers_are_replaced_at_once_and_their_allocation_goes_back() -> None:
    """The scheduler says for 300 s that a node of 4 runs which has crashed after 50 s."""
    made = world(first_silent(4, 50.0))
    made.later = 1
    made.run(5000.0)
    assert asked(made) == [(0.0, 4), (51.0 + RETURNING, 4)]
    assert given_back(made)[0] == (51.0 + PARTING, SILENCE)
    assert made.done()
    assert set(made.losses) >= {"lease-1"}


def test_once_they_are_replaced_silent_workers_are_not_waited_for() -> None:
    """No task waits any more and none will come: what is silent goes back like what is idle."""
    made = world(first_silent(4, 50.0))
    made.run(5000.0)
    assert given_back(made)[0] == (51.0 + RETURNING + 1.0, SILENCE)
    assert made.done()
    assert made.there == {}


def test_where_there_is_no_room_they_are_replaced_when_they_have_gone_back() -> None:
    """No more than may be held is held, silent processors included."""
    made = world(first_silent(4, 50.0), most=4)
    made.on_step = lambda w: _at_most(w, 4)
    made.run(5000.0)
    assert asked(made) == [(0.0, 4), (51.0 + PARTING + 0.5, 4)]
    assert made.done()


def _at_most(w: World, most: int) -> None:
    assert w.taken("a") <= most


def test_one_node_of_several_is_replaced_and_the_others_go_on() -> None:
    """Four of twelve processors fall silent: their tasks run on four new ones."""
    made = world(first_silent(4, 50.0), tasks=12)
    made.run(500.0)
    assert asked(made) == [(0.0, 12), (51.0 + RETURNING, 4)]
    assert given_back(made) == []
    assert made.there["lease-1"].workload.busy == 8
    made.run(5000.0)
    assert made.done()
    assert [w.speed for w in made.work if w.started == 1.0] == [1.0] * 8  # never cut off


@pytest.mark.parametrize("away", [0.3, RETURNING * 0.9])
def test_workers_that_are_back_in_a_moment_are_not_replaced(away: float) -> None:
    """A pilot starts another worker where one has died."""
    made = world(first_silent(4, 50.0, 50.0 + away))
    made.run(5000.0)
    assert asked(made) == [(0.0, 4)]
    assert made.done()


def test_workers_that_come_back_later_keep_their_allocation() -> None:
    """Replacements that nobody needs any more go back."""
    made = world(first_silent(4, 50.0, 58.0), idle=30.0)
    made.grounds["a"].delay = 10.0  # so that the first begins at 10 s
    made.run(200.0)
    assert asked(made) == [(0.0, 4), (61.0, 4)]
    assert [reason for _, reason in given_back(made)] == ["no task is left for it"]
    assert made.there["lease-1"].workload.busy == 4
    made.run(5000.0)
    assert made.done()
    assert made.there == {}


def test_a_slow_start_is_no_loss_until_its_time_is_over() -> None:
    """Workers that take 100 s to start are waited for, those that never come are replaced."""
    slow = world(first_silent(4, 0.0, 100.0))
    slow.run(5000.0)
    assert asked(slow) == [(0.0, 4)]
    assert slow.done()

    never = world(first_silent(4, 0.0))
    never.later = 1
    never.run(5000.0)
    assert asked(never) == [(0.0, 4), (1.0 + STARTING, 4)]
    assert (301.0, "no worker has registered") in given_back(never)
    assert never.done()


def test_silence_does_not_keep_the_least_number() -> None:
    """Four are to be held while there is work: silent ones do not count."""
    made = world(first_silent(4, 50.0), tasks=1, fewest=4)
    made.run(60.0)
    assert asked(made) == [(0.0, 4), (51.0 + RETURNING, 4)]


def test_without_work_a_silent_allocation_goes_back_at_once() -> None:
    made = world(first_silent(4, 50.0), tasks=4, seconds=49.5, release="idle", idle=600.0)
    made.run(5000.0)
    assert made.done()
    assert given_back(made) == [(51.0, SILENCE)]


def test_a_site_whose_workers_always_fall_silent_is_asked_ever_more_rarely() -> None:
    """Each within 5 s of its begin: given up in the end, as pilots are that die at once."""
    made = world(lambda ask, number: (16, 5.0, math.inf))
    made.run(100_000.0)
    assert made.pool.given_up == {"a": SILENCE}
    assert len(asked(made)) <= 16
    assert made.there == {}


def test_workers_that_took_leave_are_not_counted_on_and_not_held_against_their_site() -> None:
    """Their pilot ends by itself; tasks that have come meanwhile get other processors."""
    pool = PilotPool()
    view = PoolSite(name="a", processors=16, rules=AcquisitionPolicy(acquisition="all-at-once"))
    demand = ProcessorDemand(tasks=2, processors=2, widest=1, work=20.0, longest=10.0)
    ask = AllocationRequest(site="a", processors=4, duration=900.0)
    pool.asked("x", ask, 0.0)
    pool.began("x", 1.0)
    one = Allocation(
        name="x",
        site="a",
        processors=4,
        asked=0.0,
        duration=900.0,
        granted=1.0,
        until=901.0,
        workload=AllocationLoad(joined=4, idle_since=30.0),
    )
    shown = PoolSnapshot(now=30.0, demand=demand, allocations=(one,), sites={"a": view})
    (decision,) = pool.decide(shown)
    assert isinstance(decision, AllocationRequest)
    assert decision.processors == 2
    pool.ended("x", 31.0, "ended")
    assert pool.given_up == {}
    assert (
        responsive_allocation(
            replace(one, workload=replace(one.workload, ready=1)), 30.0
        ).processors
        == 1
    )


def test_who_counts_no_workers_has_no_silent_ones() -> None:
    one = Allocation(name="x", site="a", processors=4, asked=0.0, duration=900.0, granted=1.0)
    assert responsive_allocation(one, 800.0) is one
    assert (
        responsive_allocation(replace(one, workload=AllocationLoad(joined=0)), 800.0).processors
        == 0
    )
    assert PilotPool().wake == math.inf
