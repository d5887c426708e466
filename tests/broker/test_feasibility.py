"""What is told to be in reach is, and what is offered instead is no better than it could be."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.broker.situations import off_peak, posted, situation, situations
from tests.thoroughness import examples

from bursar.broker.adviser import SchedulingSnapshot, SiteSnapshot
from bursar.broker.estimates import RuntimeEstimates
from bursar.broker.feasibility import GoalFeasibility, assess_feasibility
from bursar.broker.packing import JobSizeClasses
from bursar.planning.plan_choice import GoalCounterOffer

NOW, PAID = 100.0, 7.0


def looked(at: SchedulingSnapshot) -> GoalFeasibility:
    """Where something is known."""
    outlook = assess_feasibility(at, NOW, PAID)
    assert outlook is not None
    return outlook


def offers(outlook: GoalFeasibility) -> dict[str, GoalCounterOffer]:
    """By their kinds."""
    return {offer.kind: offer for offer in outlook.counter_offers}


def shortest(at: SchedulingSnapshot) -> float:
    """Seconds of the shortest job where it is fastest."""
    return float(at.sizes.size.min()) * min(at.estimates.takes(site.name) for site in at.sites)


@given(situations())
@settings(max_examples=examples(75))
def test_the_time_that_is_offered_is_enough_and_less_is_not(at: SchedulingSnapshot) -> None:
    outlook = looked(at)
    assume(not outlook.feasible and at.time_left < math.inf)

    offer = offers(outlook).get("time")

    if offer is None:  # the money does not do at any time
        assert not looked(replace(at, time_left=math.inf)).feasible
        return
    seconds = offer.makespan - NOW
    assert offer.cost is not None
    assert offer.cost - PAID <= at.money_left + 1e-6
    assert offer.tasks == at.jobs
    assert looked(replace(at, time_left=seconds + 1e-9)).feasible
    assert not looked(replace(at, time_left=seconds - 2e-3 * shortest(at))).feasible


@given(situations())
@settings(max_examples=examples(75))
def test_the_budget_that_is_offered_is_enough_and_less_is_not(at: SchedulingSnapshot) -> None:
    outlook = looked(at)
    assume(not outlook.feasible)

    offer = offers(outlook).get("budget")

    if offer is None:  # there is not the time at any price
        assert not looked(replace(at, money_left=math.inf)).feasible
        assert outlook.cost is None
        return
    assert offer.cost is not None
    money = offer.cost - PAID
    assert money == pytest.approx(outlook.cost)
    assert offer.makespan - NOW <= at.time_left + 1e-9
    assert looked(replace(at, money_left=money + 1e-9)).feasible
    assert looked(replace(at, money_left=money + 1e-9, time_left=offer.makespan - NOW)).feasible
    assert not looked(replace(at, money_left=money * (1 - 1e-6) - 1e-6)).feasible


@given(situations())
@settings(max_examples=examples(75))
def test_the_share_that_is_offered_fits_and_one_job_more_does_not(at: SchedulingSnapshot) -> None:
    outlook = looked(at)
    assume(not outlook.feasible)
    size = float(at.sizes.size[0])

    def with_jobs(jobs: int) -> SchedulingSnapshot:
        return replace(at, sizes=JobSizeClasses.of([size] * jobs))

    offer = offers(outlook).get("share")

    assert outlook.left == at.sizes.jobs
    assert not looked(with_jobs(outlook.fit + 1)).feasible
    if offer is None:
        assert outlook.fit == 0
        return
    assert offer.tasks == at.jobs - at.sizes.jobs + outlook.fit
    assert offer.share == offer.tasks / at.jobs
    assert offer.cost is not None
    seconds, money = offer.makespan - NOW, offer.cost - PAID
    assert seconds <= at.time_left + 1e-9
    assert money <= at.money_left + 1e-6
    taken = replace(with_jobs(outlook.fit), time_left=seconds + 1e-9, money_left=money + 1e-9)
    assert looked(taken).feasible


@given(situations(sizes=(1.0, 2.0, 5.0)))
@settings(max_examples=examples(75))
def test_offers_for_jobs_of_several_sizes_are_true(at: SchedulingSnapshot) -> None:
    """Better ones may exist; these can be had."""
    outlook = looked(at)

    assert outlook.feasible == (outlook.fit == outlook.left)
    assert not (outlook.feasible and outlook.counter_offers)
    for kind, offer in offers(outlook).items():
        assert offer.cost is not None
        if kind == "time":
            assert looked(replace(at, time_left=offer.makespan - NOW + 1e-9)).feasible
        if kind == "budget":
            assert looked(replace(at, money_left=offer.cost - PAID + 1e-9)).feasible


@given(situations(), st.floats(0.0, 30.0), st.floats(0.0, 50.0))
@settings(max_examples=examples(75))
def test_a_wider_goal_never_fits_fewer_jobs(
    at: SchedulingSnapshot, time: float, money: float
) -> None:
    wider = replace(at, time_left=at.time_left + time, money_left=at.money_left + money)

    assert looked(at).fit <= looked(wider).fit


def test_a_share_is_of_all_jobs_however_few_they_are() -> None:
    """One job that the time does not do can be had later, and is then the whole campaign."""
    at = situation(
        [SiteSnapshot(name="s", processors=1, prices=posted(1.0))], [10.0], time_left=5.0
    )

    assert [(o.kind, o.tasks, o.share) for o in looked(at).counter_offers] == [("time", 1, 1.0)]


def test_what_could_be_had_instead_is_told_in_numbers() -> None:
    """
    Ten jobs of 10 s on one processor each at 1 and 3, by 30 s for 60.

    In 30 s there is room for 3 + 3 of them; 60 pays for 3 at 10 and 1 at 30. Within the 60
    that are left, all go to the cheap processor for 100 or nowhere; so no time is enough.
    """
    sites = [SiteSnapshot(name=f"s{p}", processors=1, prices=posted(p)) for p in (1.0, 3.0)]
    at = situation(sites, [10.0] * 10, time_left=30.0, money_left=60.0)

    outlook = assess_feasibility(at)

    assert outlook is not None
    assert (outlook.left, outlook.fit, outlook.cost) == (10, 4, None)
    assert set(offers(outlook)) == {"share"}
    assert str(outlook) == "4 of 10 jobs left fit into the deadline and the budget"

    # With 220, the cheap one takes n at 10, the dear one 10 - n at 30: n = 5 is cheap enough
    # for 50 + 150 = 200, and both end at 50 s.
    richer = assess_feasibility(replace(at, money_left=220.0), 5.0, 1000.0)
    assert richer is not None
    time = offers(richer)["time"]
    assert (time.makespan, time.cost) == (pytest.approx(55.0, abs=0.02), 1200.0)
    assert "all in 55" in str(richer)

    # By 60 s, six and four cost 60 + 120 = 180 at the least.
    poorer = assess_feasibility(replace(at, time_left=60.0, money_left=170.0))
    assert poorer is not None
    budget = offers(poorer)["budget"]
    assert (poorer.cost, budget.cost, budget.makespan) == (180.0, 180.0, pytest.approx(60.0))
    assert "in time for 180" in str(poorer)


def test_one_job_of_a_share_takes_its_whole_time_on_two_processors() -> None:
    site = SiteSnapshot(name="s", processors=2, prices=posted(1.0))

    outlook = assess_feasibility(situation([site], [10.0] * 4, time_left=100.0, money_left=10.0))

    assert outlook is not None
    share = offers(outlook)["share"]
    assert (share.tasks, share.cost) == (1, 10.0)
    assert share.makespan == pytest.approx(10.0, abs=0.02)


def test_more_time_reaches_a_cheaper_price() -> None:
    """
    Two jobs of 10 s for 20: at 5 each second none is paid; from 50 s on, at 1, both.
    """
    site = SiteSnapshot(name="s", processors=2, prices=off_peak(5.0, 50.0, 1.0))

    outlook = assess_feasibility(situation([site], [10.0] * 2, time_left=40.0, money_left=20.0))

    assert outlook is not None
    assert outlook.fit == 0
    time = offers(outlook)["time"]
    assert (time.makespan, time.cost) == (pytest.approx(60.0, abs=0.02), 20.0)
    assert offers(outlook)["budget"].cost == 100.0


def test_small_jobs_first_may_fit_where_large_ones_first_do_not() -> None:
    """
    The cheap processor has 10 s: 6 and 4 unused, or 5 and 5; the dear one takes the rest.

    Large first costs 6 + 5 * (5 + 5) = 56, small first 10 + 5 * 6 = 40.
    """
    cheap = SiteSnapshot(name="a", processors=1, prices=((0.0, 10.0, 1.0), (10.0, math.inf, 9.0)))
    dear = SiteSnapshot(name="b", processors=1, prices=posted(5.0))

    outlook = assess_feasibility(
        situation([cheap, dear], [6.0, 5.0, 5.0], time_left=10.0, money_left=40.0)
    )

    assert outlook is not None
    assert outlook.feasible
    assert outlook.cost == 40.0
    assert outlook.counter_offers == ()


def test_nothing_is_said_while_nothing_is_known() -> None:
    site = SiteSnapshot(name="s", processors=1, prices=posted(1.0))

    assert assess_feasibility(situation([site], [1.0], known=False)) is None


def test_a_deadline_that_has_passed_leaves_room_for_nothing() -> None:
    site = SiteSnapshot(name="s", processors=1, prices=posted(1.0))
    at = SchedulingSnapshot(
        sites=[site],
        sizes=JobSizeClasses.of([1.0]),
        jobs=1,
        estimates=RuntimeEstimates({"s": 1.0}, True),
        time_left=-5.0,
        money_left=-1.0,
    )

    outlook = assess_feasibility(at)

    assert outlook is not None
    assert (outlook.fit, outlook.feasible) == (0, False)
