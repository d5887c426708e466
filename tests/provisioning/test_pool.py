"""What a pool decides: how many, when, and never too many."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.provisioning.pool_rig import Ground, Work, World
from tests.thoroughness import examples

from bursar.model.allocation import Allocation, AllocationLoad, AllocationLoss, AllocationRequest
from bursar.model.provisioning import (
    ACQUISITIONS,
    Acquisition,
    AcquisitionPolicy,
    ProcessorDemand,
    Release,
)
from bursar.provisioning.acquisition import HOLD
from bursar.provisioning.counting import PARTING
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolSite, PoolSnapshot
from bursar.provisioning.wait_prediction import STARTS

SOME = 8
"""Processors of a small site."""


def site(name: str = "a", processors: int = 96, **more: object) -> PoolSite:
    """A batch site."""
    rules = {
        key: more.pop(key) for key in list(more) if key in AcquisitionPolicy.__dataclass_fields__
    }
    abilities = {"arrays": True, "node_ranges": True, "per_node": 12, **more}
    return PoolSite(
        name=name,
        rules=AcquisitionPolicy(**rules),  # type: ignore[arg-type]
        processors=processors,
        **abilities,  # type: ignore[arg-type]
    )


def bag(tasks: int, seconds: float = 100.0, width: int = 1, arrives: float = 0.0) -> list[Work]:
    """Tasks that are alike."""
    return [Work(arrives, width, seconds) for _ in range(tasks)]


def world(view: PoolSite, work: list[Work], **more: object) -> World:
    """One site."""
    ground = {k: more.pop(k) for k in ("free", "delay", "tells", "shows") if k in more}
    grounds = {view.name: Ground(view, **ground)}  # type: ignore[arg-type]
    return World(grounds, work, **more)  # type: ignore[arg-type]


# What is asked.


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("one-at-a-time", [1] * 48),
        ("additive", [1, 2, 3, 4, 5, 6, 7, 8, 9, 3]),
        ("exponential", [1, 2, 4, 8, 16, 17]),
        ("all-at-once", [48]),
        ("array", [1] * 48),
        ("node-range", [48]),
        ("optimal", [47]),
        ("adaptive", [12, 12, 12, 6, 3, 1, 1]),
    ],
)
def test_a_pool_makes_the_requests_of_its_policy(policy: Acquisition, expected: list[int]) -> None:
    """48 tasks on the paper's site, of which 47 processors are free."""
    made = world(site(acquisition=policy), bag(48), free=[(0.0, 47)])
    made.run(0.5)
    assert [ask.processors for ask in made.asked()] == expected
    bundled = {"array": 48, "adaptive": 2}.get(policy, 0)
    assert sum(bool(ask.bundle) for ask in made.asked()) == bundled
    assert len({ask.bundle for ask in made.asked() if ask.bundle}) == min(bundled, 1)
    least = 12 if policy == "node-range" else None
    assert all(ask.least_processors == least for ask in made.asked())


@pytest.mark.parametrize("delay", [1.0, 40.0, 100.0])
def test_what_does_not_fit_is_asked_for_when_what_fits_has_begun(delay: float) -> None:
    """The 48th processor, on the paper's busy site: not before the 47 that are free are there."""
    made = world(site(), bag(48, 1000.0), free=[(0.0, 47)], delay=delay)
    made.run(delay - 0.5)
    assert sum(ask.processors for ask in made.asked()) == 47
    made.run(delay + 0.5)
    assert [ask.processors for ask in made.asked()][-1] == 1
    assert sum(ask.processors for ask in made.asked()) == 48


def test_what_fits_and_does_not_begin_holds_the_rest_back_for_two_minutes() -> None:
    """The scheduler's word was wrong, or somebody else was quicker."""
    made = world(site(), bag(48, 3000.0), free=[(0.0, 47)], delay=1e6)
    made.run(HOLD - 1)
    assert sum(ask.processors for ask in made.asked()) == 47
    made.run(HOLD + 1)
    assert sum(ask.processors for ask in made.asked()) == 48


def test_halves_are_asked_for_where_starts_are_slow_or_not_known() -> None:
    """The first time nothing is known; then the site has shown that it starts within a second."""
    made = world(site(arrays=False, idle=5.0), bag(48, 50.0) + bag(48, 50.0, arrives=500.0))
    made.run(400.0)
    assert [ask.processors for ask in made.asked()] == [24, 12, 6, 3, 2, 1]
    made.run(600.0)
    assert [ask.processors for ask in made.asked()][6:] == [48]

    slow = world(
        site(arrays=False, idle=5.0), bag(48, 50.0) + bag(48, 50.0, arrives=500.0), delay=40.0
    )
    slow.run(600.0)
    assert [ask.processors for ask in slow.asked()] == [24, 12, 6, 3, 2, 1] * 2


def test_a_site_that_refuses_is_asked_by_one_request_at_a_time() -> None:
    """Six refusals at once the first time; from then on one shows whether it still does."""
    made = world(site(arrays=False), bag(48), fate=lambda ask, number: ("refused", 0.0))
    made.run(20.0)
    assert [ask.processors for ask in made.asked()][:6] == [24, 12, 6, 3, 2, 1]
    later = [ask.processors for ask in made.asked()][6:]
    assert later
    assert set(later) == {48}


def test_a_lost_node_loses_its_own_pilot_only() -> None:
    """48 tasks on four nodes, one of which fails: the 36 tasks on the others go on."""
    pool = PilotPool()
    for _ in range(STARTS):
        pool.waits.started("a", 0.5)
    made = world(
        site(), bag(48, 500.0), pool=pool, fate=lambda ask, n: ("lost", 100.0) if n == 1 else None
    )
    made.run(5000.0)
    assert made.done()
    assert [ask.processors for ask in made.asked()] == [12] * 5
    assert sum(w.ended == pytest.approx(501.0) for w in made.work) == 36


def test_what_is_asked_for_counts_as_there() -> None:
    """Nothing is asked twice, however long the queue takes."""
    made = world(site(acquisition="additive"), bag(20), delay=500.0, deadline=None)
    made.run(400.0)
    assert sum(ask.processors for ask in made.asked()) == 20


def test_no_more_wait_in_a_queue_than_may() -> None:
    """And the rest is asked for as these begin."""
    view = site(acquisition="one-at-a-time", max_pending=5, processors=20)
    made = world(view, bag(12, 1000.0))
    made.on_step = _holds(view)
    made.run(10.0)
    assert made.held() == 12


def test_few_tasks_do_not_trigger_a_request_unless_nothing_else_would_run_them() -> None:
    """Three tasks wait beside processors that are there: not four, so no more are asked for."""
    view = site(trigger=4, acquisition="all-at-once", processors=SOME)
    made = world(view, bag(4, 1000.0) + bag(3, 10.0, arrives=50.0))
    made.run(500.0)
    assert [ask.processors for ask in made.asked()] == [4]

    alone = world(view, bag(2))
    alone.run(500.0)
    assert alone.done()


def test_the_least_number_is_kept_while_there_is_work() -> None:
    """And goes back when there is none any more."""
    view = site(fewest=4, release="idle", idle=10.0, longest=300.0)
    made = world(view, bag(1, 1000.0 / 4) + bag(1, 100.0, arrives=2000.0))
    low: list[float] = []

    def look(w: World) -> None:
        if 2.0 < w.now < 2000.0 and w.held() < 4:
            low.append(w.now)

    made.on_step = look
    made.run(5000.0)
    assert made.done()
    assert low == []  # also while one allocation takes the place of another
    assert made.there == {}


def test_wide_tasks_get_processors_that_are_together() -> None:
    """Requests of single processors would never run them."""
    made = world(site(acquisition="one-at-a-time"), bag(5, width=4))
    made.run(2000.0)
    assert {ask.processors for ask in made.asked()} == {4}
    assert made.done()


def test_a_node_range_that_got_less_is_asked_for_the_rest() -> None:
    """It starts with the nodes that are free."""
    made = world(site(acquisition="node-range"), bag(48, 500.0), free=[(0.0, 24), (100.0, 96)])
    made.run(50.0)
    assert made.held() == 24
    made.run(2000.0)
    assert made.done()


@pytest.mark.parametrize("free", [[(0.0, 94)], [(0.0, 47), (160.0, 48)]])
@pytest.mark.parametrize("shows", [True, False])
def test_ours_gathers_no_less_than_any_other(free: list[tuple[float, int]], shows: bool) -> None:
    """The paper's sites, idle and busy; 40 s to a request's start, longer than between looks."""
    gathered = {}
    for policy in ACQUISITIONS:
        view = site(acquisition=policy, max_pending=48, shortest=3600.0)
        made = world(view, bag(480, 600.0), free=free, delay=40.0, shows=shows)
        made.grounds["a"].view = replace(view, rules=replace(view.rules, most=48))
        made.run(180.0)
        gathered[policy] = made.held_seconds
    assert gathered["all-at-once"] == (48 * 140 if free[0][1] == 94 else 48 * 20)
    assert gathered["adaptive"] == max(gathered.values()) > 0


# For how long.


def test_processors_are_asked_for_as_long_as_there_is_work() -> None:
    """40 tasks of 100 s on 4 processors: 1,000 s each, a quarter more, and the start."""
    view = site(processors=4, acquisition="all-at-once")
    made = world(view, bag(40))
    made.run(0.5)
    (ask,) = made.asked()
    assert ask.duration == 40 * 100 / 4 * 1.25 + 30


@pytest.mark.parametrize(("seconds", "asked"), [(1.0, 60.0), (100.0, 155.0), (3000.0, 3600.0)])
def test_time_is_bounded_and_holds_the_longest_task(seconds: float, asked: float) -> None:
    """The rules' shortest and longest; an hour here."""
    made = world(site(acquisition="all-at-once"), bag(1, seconds))
    made.run(0.5)
    assert [ask.duration for ask in made.asked()] == [asked]


def test_the_queues_limit_holds() -> None:
    """Whatever the rules allow."""
    view = replace(site(acquisition="all-at-once", processors=4), longest=1800.0)
    made = world(view, bag(500))
    made.run(0.5)
    assert [ask.duration for ask in made.asked()] == [1800.0]


def test_a_task_that_fits_nowhere_is_said_to() -> None:
    """Rather than waiting for ever."""
    view = site(longest=3600.0)
    made = world(view, bag(1, 3 * 3600.0))
    made.run(100.0)
    assert made.asked() == []
    assert made.pool.verdict(made.view()) == (
        "a task needs 3 h, the longest allocation at a is 1 h"
    )
    wide = world(view, bag(1, width=13))
    wide.run(100.0)
    assert wide.asked() == []
    assert wide.pool.verdict(wide.view()) == (
        "a task needs 13 processors, the largest node at a has 12"
    )
    fits = world(view, bag(1))
    assert fits.pool.verdict(fits.view()) is None


def test_the_longest_task_gets_a_site_that_has_the_time_for_it() -> None:
    """Although another is cheaper."""
    short = site("short", longest=600.0, unit_price=1.0)
    long = site("long", longest=7200.0, unit_price=2.0)
    grounds = {view.name: Ground(view) for view in (short, long)}
    made = World(grounds, bag(30, 60.0) + bag(1, 5000.0))
    made.run(10_000.0)
    assert made.done()
    assert sum(a.processors for a in made.asked() if a.site == "long") == 1


# Of whom.


def test_the_cheapest_come_first_and_unknown_prices_last() -> None:
    """By what work costs: twice as fast at 3 is cheaper than 2."""
    views = [
        site("unknown", SOME),
        site("dear", SOME, unit_price=2.0),
        site("fast", SOME, unit_price=3.0, speed=2.0),
    ]
    made = World({v.name: Ground(v) for v in views}, bag(20))
    made.run(0.5)
    per_site = {v.name: sum(a.processors for a in made.asked() if a.site == v.name) for v in views}
    assert per_site == {"fast": 8, "dear": 8, "unknown": 4}


def test_of_equal_prices_those_that_are_free_come_first() -> None:
    """6 are free at one, all at the other."""
    views = [site("a", SOME), site("b", SOME)]
    grounds = {"a": Ground(views[0], free=[(0.0, 6)]), "b": Ground(views[1])}
    made = World(grounds, bag(14))
    made.run(0.5)
    per_site = {v.name: sum(a.processors for a in made.asked() if a.site == v.name) for v in views}
    assert per_site == {"a": 6, "b": 8}


def test_only_what_finishes_in_time_is_asked_for() -> None:
    """100 tasks of 100 s in 2,000 s: 10,000 s of work and a quarter, by 1,970 s: 7 processors."""
    made = world(site(acquisition="all-at-once"), bag(100), deadline=2000.0)
    made.run(0.5)
    assert [ask.processors for ask in made.asked()] == [7]
    made.run(2000.0)
    assert made.done()

    late = world(site(acquisition="all-at-once"), bag(50), deadline=120.0)
    late.run(0.5)
    assert [ask.processors for ask in late.asked()] == [50]


def test_no_more_is_asked_than_there_is_money_for() -> None:
    """In the worst case, in which all of it lasts to its end: 155 s at 1 a processor-second."""
    view = site(acquisition="one-at-a-time", unit_price=1.0)
    made = world(view, bag(10), budget=4.5 * 155.0)
    made.run(0.5)
    total = sum(a.processors * a.duration for a in made.asked())
    assert made.asked()
    assert total <= 4.5 * 155.0

    poor = world(view, bag(1), budget=10.0)
    poor.run(0.5)
    assert poor.asked() == []
    assert poor.pool.verdict(poor.view()) == (
        "a task costs up to 155 where it is cheapest, 10 are left"
    )


def test_the_same_need_races_on_several_sites() -> None:
    """As soon as one begins, the other is withdrawn; no more than may race at a site."""
    views = [site("a", 48, max_racing=2), site("b", 48, max_racing=2)]
    grounds = {
        "a": Ground(views[0], free=[(0.0, 0)]),
        "b": Ground(views[1], free=[(0.0, 0), (100.0, 48)]),
    }
    made = World(grounds, bag(8, 1000.0))

    def look(w: World) -> None:
        for name in w.grounds:
            raced = [a for a in w.there.values() if a.race and a.granted is None and a.site == name]
            assert len(raced) <= 2

    made.on_step = look
    made.run(90.0)
    races = [ask.race for ask in made.asked() if ask.race]
    assert races
    assert all(races.count(race) == 2 for race in races)
    assert len({ask.site for ask in made.asked() if ask.race}) == 2
    made.run(110.0)
    assert any(isinstance(d, AllocationRelease) and "b was sooner" in d.reason for _, d in made.log)


# What goes back.


@pytest.mark.parametrize("release", ["adaptive", "idle", "no-tasks", "queue"])
def test_everything_goes_back_when_all_is_done(release: Release) -> None:
    """By whichever rule."""
    made = world(site(release=release, acquisition="additive"), bag(30))
    made.run(5000.0)
    assert made.done()
    assert made.there == {}
    assert made.pool.wake == math.inf


def test_an_idle_allocation_goes_back_after_its_time() -> None:
    """And not before."""
    view = site(acquisition="one-at-a-time", release="idle", idle=30.0)
    made = world(view, bag(1, 100.0) + bag(1, 300.0))
    made.run(1000.0)
    first = min(moment for moment, d in made.log if isinstance(d, AllocationRelease))
    assert first == pytest.approx(1.0 + 100.0 + 30.0)


def test_what_was_acquired_together_goes_back_together() -> None:
    """One of a bundle works: the others stay; unless the scheduler takes a part."""
    tasks = [*bag(5, 50.0), *bag(1, 1000.0)]
    together = world(site(acquisition="array"), list(tasks))
    together.run(500.0)
    assert together.held() == 6

    tasks = [*bag(5, 50.0), *bag(1, 1000.0)]
    apart = world(site(acquisition="array", shrinks=True), tasks)
    apart.run(500.0)
    assert apart.held() == 1


def test_one_request_at_a_time_goes_back_when_few_are_queued() -> None:
    """The paper: if the number of queued tasks is less than q, release a resource."""
    view = site(release="queue", below=1, acquisition="one-at-a-time")
    made = world(view, bag(4, 50.0))
    made.run(200.0)
    moments = [moment for moment, d in made.log if isinstance(d, AllocationRelease)]
    assert len(moments) == 4
    assert len(set(moments)) == 4


def test_requests_are_withdrawn_when_the_demand_for_them_is_gone() -> None:
    """After a while; and at once when nothing is left to do at all."""
    made = world(site(acquisition="one-at-a-time", idle=30.0), bag(10, 5.0), free=[(0.0, 2)])
    made.run(500.0)
    assert made.done()
    assert made.there == {}
    withdrawn = [
        m for m, d in made.log if isinstance(d, AllocationRelease) and "waits for it" in d.reason
    ]
    assert len(withdrawn) == 8
    assert max(withdrawn) == pytest.approx(26.0)  # five rounds of two


def test_an_allocation_with_too_little_time_left_goes_back() -> None:
    """While its last task ran, one came that is longer than what is left."""
    view = site(acquisition="all-at-once", processors=1, idle=1000.0, longest=155.0)
    made = world(view, bag(1, 100.0) + bag(1, 120.0, arrives=90.0))
    made.run(3000.0)
    assert made.done()
    reasons = [d.reason for _, d in made.log if isinstance(d, AllocationRelease)]
    assert "no waiting task fits into its time" in reasons


# What goes wrong.


def test_a_site_that_refuses_is_asked_ever_more_rarely_and_given_up() -> None:
    """With its own words; the work is done elsewhere."""
    cheap, dear = site("cheap", unit_price=0.1), site("dear", unit_price=1.0)
    grounds = {"cheap": Ground(cheap), "dear": Ground(dear)}

    def fate(ask: AllocationRequest, number: int) -> tuple[AllocationLoss, float] | None:
        return ("refused", 0.0) if ask.site == "cheap" else None

    made = World(grounds, bag(3, 100.0), fate=fate)
    made.run(3000.0)
    assert made.done()
    moments = sorted(
        {m for m, d in made.log if isinstance(d, AllocationRequest) and d.site == "cheap"}
    )
    assert len(moments) <= 4

    alone = World({"cheap": Ground(cheap)}, bag(3), fate=fate)
    alone.run(3000.0)
    moments = sorted({m for m, d in alone.log if isinstance(d, AllocationRequest)})
    assert moments == [0.0, 5.0, 15.0, 35.0]
    assert alone.pool.given_up == {"cheap": "no such queue"}
    assert alone.pool.verdict(alone.view()) == "cheap: no such queue"


def test_a_site_that_cannot_be_reached_is_never_given_up() -> None:
    """Its time comes when it is back."""

    def fate(ask: AllocationRequest, number: int) -> tuple[AllocationLoss, float] | None:
        return ("unreachable", 0.0) if made.now < 5000.0 else None

    made = world(site(acquisition="all-at-once"), bag(3), fate=fate)
    made.run(20_000.0)
    assert made.done()
    assert made.pool.given_up == {}


def test_what_was_lost_is_asked_for_again() -> None:
    """A node fails after 70 s."""

    def fate(ask: AllocationRequest, number: int) -> tuple[AllocationLoss, float] | None:
        return ("lost", 70.0) if number == 1 else None

    made = world(site(acquisition="all-at-once"), bag(3), fate=fate)
    made.run(3000.0)
    assert [ask.processors for ask in made.asked()] == [3, 3]
    assert made.done()


def test_pilots_that_die_at_once_are_not_started_for_ever() -> None:
    """Without end it would be, every few seconds."""
    made = world(site(), bag(3), fate=lambda ask, number: ("lost", 1.0))
    made.run(100_000.0)
    assert made.pool.given_up == {"a": "node failure"}
    assert len({m for m, d in made.log if isinstance(d, AllocationRequest)}) <= 8


def test_a_refusal_while_others_are_held_is_a_limit_that_passes() -> None:
    """No more than 3 at a time: not a reason to give the site up."""

    def fate(ask: AllocationRequest, number: int) -> tuple[AllocationLoss, float] | None:
        return ("refused", 0.0) if len(made.there) >= 3 else None

    made = world(site(acquisition="one-at-a-time", longest=300.0), bag(60, 90.0), fate=fate)
    made.run(100_000.0)
    assert made.done()
    assert made.pool.given_up == {}


def test_requests_that_serve_nobody_are_made_ever_more_rarely() -> None:
    """Tasks wait that no site may run: neither for ever nor every minute."""
    pool, view = PilotPool(), site(acquisition="all-at-once", idle=10.0)
    demand = ProcessorDemand(tasks=3, processors=3, widest=1, work=300.0, longest=100.0)
    now, there, asks, number = 0.0, [], 0, 0
    while now < 86_400.0:
        for decision in pool.decide(
            PoolSnapshot(now=now, demand=demand, allocations=tuple(there), sites={"a": view})
        ):
            if isinstance(decision, AllocationRequest):
                asks, number = asks + 1, number + 1
                name = f"lease-{number}"
                pool.asked(name, decision, now)
                pool.began(name, now)
                there.append(
                    Allocation(
                        name=name,
                        site="a",
                        processors=decision.processors,
                        asked=now,
                        duration=decision.duration,
                        granted=now,
                        until=now + decision.duration,
                        workload=AllocationLoad(ready=decision.processors, idle_since=now),
                    )
                )
            else:
                there = [a for a in there if a.name != decision.name]
                pool.ended(decision.name, now, "ended")
        ends = min((a.until for a in there), default=math.inf)
        now = max(now + 1e-6, min(pool.wake, ends))
        for a in [a for a in there if a.until <= now]:
            there.remove(a)
            pool.ended(a.name, now, "ended")
    assert 5 < asks < 200


# Laws.


def _holds(*views: PoolSite) -> Callable[[World], None]:
    """Never above the most, nor more in the queue than may be."""

    def look(w: World) -> None:
        for view in views:
            most = min(view.rules.most or view.processors, view.processors)
            assert w.taken(view.name) <= most
            assert w.pending(view.name) <= view.rules.max_pending

    return look


@st.composite
def views(draw: st.DrawFn, name: str) -> PoolSite:
    """A site with rules of all kinds."""
    most = draw(st.sampled_from([None, 1, 5, 16, 40]))
    shortest = draw(st.sampled_from([1.0, 60.0]))
    return PoolSite(
        name=name,
        processors=draw(st.sampled_from([1, 8, 96])),
        per_node=draw(st.sampled_from([None, 4, 12])),
        spans_nodes=draw(st.booleans()),
        speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
        unit_price=draw(st.sampled_from([None, 0.0, 1.0])),
        longest=draw(st.sampled_from([None, 900.0])),
        batch=draw(st.sampled_from([True, True, True, False])),
        arrays=draw(st.booleans()),
        node_ranges=draw(st.booleans()),
        time_ranges=draw(st.booleans()),
        shrinks=draw(st.booleans()),
        rules=AcquisitionPolicy(
            acquisition=draw(st.sampled_from(ACQUISITIONS)),
            fewest=draw(st.sampled_from([0, 0, 1])) if most is None else min(most, 3),
            most=most,
            shortest=shortest,
            longest=draw(st.sampled_from([300.0, 3600.0])),
            trigger=draw(st.sampled_from([1, 4])),
            release=draw(st.sampled_from(["adaptive", "idle", "no-tasks", "queue"])),
            idle=draw(st.sampled_from([0.0, 30.0])),
            below=draw(st.sampled_from([1, 5])),
            max_pending=draw(st.sampled_from([1, 3, 64])),
            max_racing=draw(st.integers(0, 2)),
        ),
    )


@st.composite
def grounds(draw: st.DrawFn) -> dict[str, Ground]:
    """One to three sites, now and then partly taken by others, but not for good."""
    made = {}
    for name in ["a", "b", "c"][: draw(st.integers(1, 3))]:
        view = draw(views(name))
        free = draw(st.lists(st.tuples(st.floats(0, 900), st.integers(0, 96)), max_size=3))
        free = [(moment, min(count, view.processors)) for moment, count in sorted(free)]
        made[name] = Ground(
            view,
            free=[*free, (1000.0, view.processors)],
            delay=draw(st.sampled_from([0.1, 1.0, 100.0])) if view.batch else 0.1,
            tells=draw(st.booleans()),
            shows=draw(st.booleans()),
        )
    return made


work = st.lists(
    st.builds(
        Work,
        arrives=st.sampled_from([0.0, 0.0, 10.0, 500.0]),
        width=st.sampled_from([1, 1, 1, 2, 4]),
        seconds=st.sampled_from([0.5, 20.0, 110.0]),
    ),
    min_size=1,
    max_size=25,
)


silences = st.lists(
    st.tuples(
        st.sampled_from([1, 4, 96]),
        st.sampled_from([0.0, 0.5, 5.0, 70.0]),
        st.sampled_from([0.5, 3.0, 40.0, 200.0, math.inf]),
    ).map(lambda drawn: (drawn[0], drawn[1], drawn[1] + drawn[2])),
    max_size=6,
)
"""Processors that fall silent, from when until when: of the first requests, one after the other."""


@settings(max_examples=examples(100))
@given(grounds(), work, st.integers(0, 7), st.sampled_from([None, 2000.0]), silences)
def test_a_pool_keeps_its_limits_leaks_nothing_and_comes_to_rest(
    sites: dict[str, Ground],
    tasks: list[Work],
    trouble: int,
    deadline: float | None,
    silent: list[tuple[int, float, float]],
) -> None:
    """Under any load, rules, losses and silences: whatever was asked for is gone in the end."""

    def fate(ask: AllocationRequest, number: int) -> tuple[AllocationLoss, float] | None:
        losses: dict[int, tuple[AllocationLoss, float]] = {
            1: ("refused", 0.0),
            2: ("unreachable", 0.0),
            3: ("lost", 3.0),
        }
        return losses.get(number % 5) if number <= trouble * 3 else None

    def silence(ask: AllocationRequest, number: int) -> tuple[int, float, float] | None:
        return silent[number - 1] if number <= len(silent) else None

    made = World(sites, tasks, fate=fate, silence=silence, deadline=deadline)
    laws = _holds(*(ground.view for ground in sites.values()))

    def look(w: World) -> None:
        laws(w)
        for a in w.there.values():  # what is silent and of use to nobody is not kept for long
            if (
                a.workload.joined
                and not a.workload.ready
                and a.workload.silent_since is not None
                and not a.leaving
            ):
                assert w.now < a.workload.silent_since + PARTING
        assert w.pool.decide(w.view()) == []  # a world that has not changed moves nothing

    made.on_step = look
    made.run(200_000.0)
    stuck = [w for w in made.work if math.isnan(w.ended)]
    if stuck:
        wide, long = max(w.width for w in stuck), max(w.seconds for w in stuck)
        assert not any(
            g.view.name not in made.pool.given_up
            and min(g.view.per_node or 99, g.view.rules.most or 99, g.view.processors) >= wide
            and min(g.view.rules.longest, g.view.longest or math.inf) >= long / g.view.speed * 1.6
            for g in sites.values()
        )
    else:
        assert made.there == {}
        assert set(made.losses) == set(made.asks)


@settings(max_examples=examples(80))
@given(grounds(), st.integers(1, 60), st.sampled_from([1, 1, 3]))
def test_a_load_that_does_not_change_moves_nothing(
    sites: dict[str, Ground], tasks: int, width: int
) -> None:
    """Tasks that never end: once all that can be had is there, there is nothing to decide."""
    for ground in sites.values():
        rules = replace(ground.view.rules, fewest=0, shortest=2000.0, longest=3600.0)
        ground.view = replace(ground.view, rules=rules, longest=None)
        ground.free, ground.delay = (), min(ground.delay, 1.0)
    made = World(sites, [Work(0.0, width, 200.0) for _ in range(tasks)])
    made.run(150.0)
    settled = len(made.log)
    made.run(199.0)
    assert [d for _, d in made.log[settled:] if isinstance(d, AllocationRequest)] == []


@settings(max_examples=examples(60))
@given(views("a"), st.integers(1, 90))
def test_requests_sum_to_what_was_asked(view: PoolSite, tasks: int) -> None:
    """As many processors as tasks wait, or as may be; all in the first breath."""
    made = world(view, bag(tasks, 30.0))
    made.run(0.0)
    total = sum(ask.processors for ask in made.asked())
    most = min(view.rules.most or view.processors, view.processors)
    if view.rules.trigger <= tasks and len(made.asked()) < view.rules.max_pending:
        expected = min(max(tasks, view.rules.fewest), most)
        whole = view.per_node or 1 if view.rules.acquisition == "node-range" else 1
        assert expected <= total < expected + whole


def test_where_a_request_cannot_span_nodes_there_is_one_for_each() -> None:
    """Ten processors on nodes of four: 4, 4 and 2."""
    view = site(acquisition="all-at-once")
    made = world(replace(view, per_node=4, spans_nodes=False), bag(10))
    made.run(0.5)
    assert [ask.processors for ask in made.asked()] == [4, 4, 2]
    made.run(1000.0)
    assert made.done()
