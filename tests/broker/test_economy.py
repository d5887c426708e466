"""
Jobs brought to sites one by one, in a world where everything can happen.

Whatever does: no job is in two places, no site has more than it has processors, what was
promised is not exceeded, and in the end every job has ended or the verdict says why.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.broker.supply_rig import CLOSE, World
from tests.thoroughness import examples

from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.economy import EconomyScheduler
from bursar.broker.strategies import Named
from bursar.model.campaign import Goal
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task

STATED: tuple[Named, ...] = ("time", "cost", "none", "cost-time", "conservative-time")
ALL: tuple[Named, ...] = (*STATED, "adaptive")

names = st.sampled_from(ALL)
goals = st.builds(
    Goal,
    deadline=st.sampled_from([None, 3.0, 12.0, 40.0, 200.0]),
    budget=st.sampled_from([None, 0.0, 15.0, 60.0, 400.0]),
    trade_off=st.sampled_from([None, 0.0, 0.5, 1.0]),
)


@st.composite
def site_lists(draw: st.DrawFn) -> list[SiteFacts]:
    """Up to three sites, of a few processors each."""
    return [
        SiteFacts(
            name=f"s{i}",
            kind="simulated",
            processors=draw(st.integers(1, 3)),
            speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
            unit_price=draw(st.sampled_from([0.0, 1.0, 2.0, 5.0])),
            fixed_price=draw(st.sampled_from([0.0, 0.0, 2.0])),
        )
        for i in range(draw(st.integers(1, 3)))
    ]


changes = st.dictionaries(
    st.sampled_from(["s0", "s1", "s2"]),
    st.lists(st.sampled_from([4.0, 10.0, 25.0]), unique=True, max_size=2)
    .map(sorted)
    .flatmap(
        lambda begins: st.tuples(*(st.sampled_from([0.5, 1.0, 4.0]) for _ in begins)).map(
            lambda prices: list(zip(begins, prices, strict=True))
        )
    ),
)


def site(name: str, price: float, processors: int = 1) -> SiteFacts:
    """Of speed 1."""
    return SiteFacts(name=name, kind="simulated", processors=processors, unit_price=price)


# Everything can happen.


class Happenings(RuleBasedStateMachine):
    """Events in any order; the world asserts after each."""

    @initialize(
        runtimes=st.one_of(
            st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=15),
            st.lists(st.sampled_from([0.01, 0.1]), min_size=5, max_size=60),
            st.lists(st.none(), min_size=1, max_size=15),
            st.lists(st.sampled_from([None, 2.0]), min_size=1, max_size=15),
        ),
        sites=site_lists(),
        goal=goals,
        name=names,
        changes=st.one_of(st.none(), changes),
        rule=st.sampled_from(["fit", "fit", "refuse"]),
    )
    def begin(self, runtimes, sites, goal, name, changes, rule) -> None:  # type: ignore[no-untyped-def]
        """Jobs and sites of any kind."""
        self.refuses = rule == "refuse"
        self.world = World(runtimes, sites, goal, name, changes=changes, out_of_reach=rule)
        self.world.begin()

    @precondition(lambda self: self.world.held and not self.world.is_over)
    @rule(
        data=st.data(),
        status=st.sampled_from([*[Status.SUCCEEDED] * 4, *Status]),
        seconds=st.sampled_from([0.0, 0.5, 2.0, 5.0, 30.0]),
    )
    def a_job_ends(self, data: st.DataObject, status: Status, seconds: float) -> None:
        """In one way or another, on any pilot."""
        name = data.draw(st.sampled_from(sorted(self.world.held)))
        self.world.end(name, status, seconds)

    @precondition(lambda self: self.world.held and not self.world.is_over)
    @rule()
    def a_job_ends_as_estimated(self) -> None:
        """The one that is due."""
        self.world.end_next()

    @precondition(lambda self: self.world.held and not self.world.is_over)
    @rule(data=st.data())
    def a_pilot_is_lost(self, data: st.DataObject) -> None:
        """Its jobs never were."""
        self.world.lose(data.draw(st.sampled_from(sorted(self.world.held))))

    @precondition(lambda self: not self.world.is_over)
    @rule(pilots=st.integers(1, 3))
    def money_is_refused(self, pilots: int) -> None:
        """For the next ones."""
        self.world.refusals = pilots

    @precondition(lambda self: not self.world.is_over)
    @rule(goal=goals)
    def the_goal_is_amended(self, goal: Goal) -> None:
        """To anything."""
        self.world.amend(goal)

    @precondition(lambda self: not self.world.is_over)
    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        """And prices change."""
        self.world.wait(self.world.now + seconds)

    @precondition(lambda self: not self.world.is_over and self.world.bazaar is not None)
    @rule(data=st.data(), price=st.sampled_from([0.5, 3.0]))
    def a_price_changes_unforeseen(self, data: st.DataObject, price: float) -> None:
        """As it does with demand: nobody is told."""
        name = data.draw(st.sampled_from(sorted(self.world.sites)))
        assert self.world.bazaar is not None
        listed = self.world.bazaar.changes[name]
        listed[:] = [*[c for c in listed if c[0] <= self.world.now], (self.world.now, price)]

    @precondition(lambda self: self.world.is_over)
    @rule()
    def no_site_is_left(self) -> None:
        """Nothing follows."""

    @invariant()
    def the_verdict_comes_when_nothing_runs(self) -> None:
        """Or where nothing more is begun on purpose."""
        world = self.world
        if world.economy.verdict and not self.refuses:
            assert not world.held
            assert world.waiting
            assert "do not fit" in world.economy.verdict

    def teardown(self) -> None:
        """All goes well from here on: every job ends, or the verdict says why not."""
        if not hasattr(self, "world"):
            return
        self.world.refusals = 0
        self.world.run_out()
        if not self.world.is_over:
            assert not self.world.waiting or self.world.economy.verdict
            assert not self.world.held


Happenings.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25)


class TestHappenings(Happenings.TestCase):  # type: ignore[misc]
    """Any order of events."""


# Jobs take what was estimated.


@given(
    runtimes=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=20),
    sites=site_lists(),
    goal=goals,
    name=names,
    changes=st.one_of(st.none(), changes),
)
@settings(max_examples=examples(40))
def test_what_is_spent_and_promised_stays_within_the_budget(
    runtimes: list[float],
    sites: list[SiteFacts],
    goal: Goal,
    name: Named,
    changes: dict[str, list[tuple[float, float]]] | None,
) -> None:
    """By its own accounting, without anybody else to refuse; at every event."""
    if name != "adaptive":  # the papers' rules know one size, the mean
        runtimes = [runtimes[0]] * len(runtimes)
    world = World(runtimes, sites, goal, name, changes=changes)
    limit = math.inf if goal.budget is None else goal.budget

    world.begin()
    while world.held or math.isfinite(world.economy.wake):
        assert world.spent + world.promised <= limit + CLOSE
        if world.held:
            world.end_next()
        else:
            world.wait(world.economy.wake)

    assert len(world.finished) + len(world.waiting) == len(runtimes)
    assert bool(world.waiting) == bool(world.economy.verdict)
    if goal.deadline is not None and name == "adaptive":
        assert world.now <= goal.deadline + CLOSE or not world.finished


@given(
    jobs=st.integers(1, 25),
    sites=site_lists(),
    goal=goals,
    changes=st.one_of(st.none(), changes),
)
@settings(max_examples=examples(40))
def test_our_own_keeps_what_it_said_at_the_begin(
    jobs: int,
    sites: list[SiteFacts],
    goal: Goal,
    changes: dict[str, list[tuple[float, float]]] | None,
) -> None:
    """Jobs of one size that fit at the begin are all done, in time and within the budget."""
    asked = World([2.0] * jobs, sites, goal, "adaptive", changes=changes)
    outlook = asked.economy.outlook(
        ResumeState(
            ended=frozenset(),
            succeeded=frozenset(),
            attempts=(),
            pilots=0,
            clock=lambda: 0.0,
            spent=lambda: 0.0,
        )
    )
    assert outlook is not None
    world = World([2.0] * jobs, sites, goal, "adaptive", changes=changes)

    world.begin()
    world.run_out()

    if outlook.feasible:
        assert len(world.finished) == jobs
        assert world.now <= (goal.deadline or math.inf) + CLOSE
        assert world.spent <= (math.inf if goal.budget is None else goal.budget) + CLOSE
        assert not world.economy.verdict
    else:
        # More than was said where a processor's fixed price, paid once, does for several jobs.
        assert len(world.finished) >= outlook.fit
        assert bool(world.economy.verdict) == bool(world.waiting)
        assert any("jobs left fit into" in text for text in world.said)


@given(jobs=st.integers(1, 30), sites=site_lists(), name=names)
@settings(max_examples=examples(30))
def test_without_limits_every_strategy_does_every_job(
    jobs: int, sites: list[SiteFacts], name: Named
) -> None:
    for runtime in (3.0, None):
        world = World([runtime] * jobs, sites, Goal(), name)

        world.begin()
        world.run_out()

        assert len(world.finished) == jobs
        assert world.economy.verdict == ""


# One thing at a time.


def test_jobs_wait_for_a_cheaper_time_and_then_run() -> None:
    """At 5 until 25 s, at 1 from then on: four jobs of 2 s on one processor for 8."""
    world = World(
        [2.0] * 4, [site("s0", 5.0)], Goal(deadline=40.0), "adaptive", changes={"s0": [(25.0, 1.0)]}
    )

    world.begin()

    assert not world.held
    assert world.economy.verdict == ""
    assert world.economy.wake == 25.0
    world.run_out()
    assert (world.now, world.spent, len(world.finished)) == (33.0, 8.0, 4)


def test_a_site_where_all_fails_gets_no_more() -> None:
    """Three failures there and a success elsewhere; of the other jobs it gets none."""
    world = World([2.0] * 12, [site("bad", 1.0, 3), site("good", 2.0)], Goal(), "adaptive")
    world.begin()
    for name in [name for name, held in world.held.items() if held.site == "bad"]:
        world.end(name, Status.FAILED, 1.0)
    good = next(name for name, held in world.held.items() if held.site == "good")

    world.end(good, Status.SUCCEEDED, 2.0)
    while any(held.site == "bad" for held in world.held.values()):
        name = next(name for name, held in world.held.items() if held.site == "bad")
        world.end(name, Status.FAILED, 1.0, most_attempts=9)

    assert {held.site for held in world.held.values()} == {"good"}
    world.run_out()
    assert len(world.finished) == 12


def test_a_site_that_gives_no_processor_is_left_out_after_some_patience() -> None:
    """And without any site left the run cannot go on."""
    world = World([2.0] * 4, [site("odd", 1.0), site("even", 2.0)], Goal(), "adaptive")
    world.begin()

    for _ in range(3):
        world.lose(next(name for name, held in world.held.items() if held.site == "odd"))
    assert "odd is left out: it went away" in world.said
    assert {held.site for held in world.held.values()} <= {"even"}

    while not world.is_over:
        if not world.held:
            pytest.fail("neither over nor going on")
        world.lose(next(iter(world.held)))


def test_what_there_is_no_money_for_waits_for_the_next_end() -> None:
    world = World([2.0] * 3, [site("s0", 1.0)], Goal(deadline=100.0), "adaptive")
    world.begin()
    (running,) = world.held
    world.refusals = 1
    world.end(running, Status.SUCCEEDED, 2.0)

    assert not world.held
    assert "2 of 3 jobs do not fit" in world.economy.verdict

    world.amend(Goal(deadline=200.0))
    assert world.economy.verdict == ""
    world.run_out()
    assert len(world.finished) == 3


def test_what_is_out_of_reach_is_refused_where_that_is_asked_for() -> None:
    """Once two jobs have taken five times as long, the rest would be late: nothing is begun."""
    world = World(
        [2.0] * 10, [site("s0", 1.0)], Goal(deadline=22.0), "adaptive", out_of_reach="refuse"
    )
    world.begin()

    world.end(next(iter(world.held)), Status.SUCCEEDED, 10.0)

    assert world.economy.verdict.startswith("out of reach: ")
    assert "of 9 jobs left fit" in world.economy.verdict
    assert not world.held


def test_a_run_is_taken_up_where_it_was() -> None:
    """Ended jobs are not sent again, names go on, and what was learnt is known."""
    tasks = [Task(id=f"t{i}") for i in range(4)]
    economy = EconomyScheduler(tasks, [site("s0", 1.0, 4)], Goal(), "adaptive")
    past = ResumeState(
        ended=frozenset({0, 2}),
        succeeded=frozenset({0, 2}),
        attempts=[
            (Outcome(task=i, attempt=1, status=Status.SUCCEEDED, start=0.0, end=7.0), "s0")
            for i in (0, 2)
        ],
        pilots=5,
        clock=lambda: 8.0,
        spent=lambda: 14.0,
    )

    pilots = economy.begin(past)

    assert [(p.name, p.tasks, p.duration) for p in pilots] == [
        ("lease-6", (1,), pytest.approx(7.0)),
        ("lease-7", (3,), pytest.approx(7.0)),
    ]


# What is not so yet.


def test_a_first_job_that_fails_does_not_end_the_campaign() -> None:
    world = World([None] * 10, [site("s0", 1.0), site("s1", 1.0)], Goal(), "adaptive")
    world.begin()

    world.end(next(iter(world.held)), Status.FAILED, 1.0)
    world.run_out()

    assert len(world.finished) == 10


def test_first_jobs_that_fail_everywhere_do_not_end_the_campaign() -> None:
    world = World([2.0] * 10, [site("s0", 1.0), site("s1", 1.0)], Goal(), "time")
    world.begin()

    for name in list(world.held):
        world.end(name, Status.FAILED, 1.0)
    world.run_out()

    assert len(world.finished) == 10


def test_a_processor_that_is_overdue_is_asked_for_until_after_now() -> None:
    """
    Thirty jobs of 0.01 s: twenty at once on the one processor, until 0.2 s.

    The first fails at 5 s; what is sent then is to end after that.
    """
    world = World([0.01] * 30, [site("s0", 1.0)], Goal(), "adaptive")
    world.begin()
    (lease,) = world.held
    assert len(world.held[lease].tasks) == 20

    world.end(lease, Status.FAILED, 5.0)

    assert len(world.held[lease].tasks) == 20
    assert world.held[lease].until > world.now


def test_what_there_was_no_money_for_is_tried_again_at_a_lower_price() -> None:
    world = World(
        [2.0] * 6, [site("s0", 5.0)], Goal(deadline=26.0), "adaptive", changes={"s0": [(20.0, 1.0)]}
    )
    world.refusals = 1
    world.begin()

    world.wait(20.0)

    assert world.held
    assert world.economy.verdict == ""


@pytest.mark.parametrize("strategy", ALL)
def test_a_resumed_run_whose_first_jobs_were_all_stopped_begins_again(strategy: Named) -> None:
    """A job that was stopped before its end has told nothing; its site gets another first job."""
    sites = [
        SiteFacts(name=f"s{i}", kind="simulated", processors=1, unit_price=1.0 + i)
        for i in range(3)
    ]
    stopped = [
        (Outcome(task=i, attempt=1, status=Status.CANCELLED, start=0.0, end=0.5), f"s{i}")
        for i in range(3)
    ]
    economy = EconomyScheduler(
        [Task(id=f"t{i}") for i in range(9)], sites, Goal(deadline=100.0, budget=50.0), strategy
    )

    pilots = economy.begin(
        ResumeState(
            ended=frozenset(),
            succeeded=frozenset(),
            attempts=stopped,
            pilots=3,
            clock=lambda: 1.0,
            spent=lambda: 2.0,
        )
    )

    assert pilots
    assert not economy.verdict
