"""Our own adviser: what it sends to learn, keeps free, prefers and waits for."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.situations import off_peak, posted, situation
from tests.thoroughness import examples

from bursar.broker.adaptive import AdaptiveScheduleAdviser, probes_left
from bursar.broker.adviser import ScheduleAdvice, SchedulingSnapshot, SiteSnapshot
from bursar.broker.estimates import RuntimeEstimates
from bursar.model.campaign import Goal

CHEAPEST = AdaptiveScheduleAdviser(Goal(deadline=1.0))
"""A deadline alone asks for the cheapest way; the limits come with the situation."""
FASTEST = AdaptiveScheduleAdviser(Goal(budget=1.0))


def one(name: str, price: float, *, processors: int = 1, **more: object) -> SiteSnapshot:
    """A site with a price that stays."""
    return SiteSnapshot(name=name, processors=processors, prices=posted(price), **more)  # type: ignore[arg-type]


def sent(advice: ScheduleAdvice) -> list[int]:
    """Jobs that each site gets now."""
    return [sum(jobs) if now else 0 for jobs, now in zip(advice.given, advice.now, strict=True)]


def observed(at: SchedulingSnapshot, spread: float) -> SchedulingSnapshot:
    """The same after jobs have ended everywhere, as expected on average, but for a spread."""
    estimates = RuntimeEstimates(dict(at.estimates.speeds), known=True)
    for name, speed in at.estimates.speeds.items():
        for seconds in (1.0 - spread, 1.0 + spread) * 3:
            estimates.learn(name, 1.0, seconds / speed, seconds / speed)
    return replace(at, estimates=estimates)


# What is sent to learn.


QUEUES = [one(f"queue-{price}", float(price)) for price in range(10, 30, 2)]
"""One processor each, as in table 2 of Buyya, Abramson, Giddy (2000)."""


@pytest.mark.parametrize(
    ("deadline", "budget", "used"),
    [
        # 1,980 s hold 21 jobs of 91.3 s on each of four queues, and 16 on the fifth: 1,380 s of
        # work at a price of 10, 126,000 in all. No longer job can be afforded in time.
        (1980.0, 126_000.0, 5),
        # The same with 29 jobs of 100.6 s on three queues and 13 on the fourth: 1,252 x 100.6.
        (2970.0, 126_000.0, 4),
        # Ten rounds of 99 s on all ten queues: no processor can be spared.
        (990.0, math.inf, 10),
    ],
)
def test_first_jobs_of_the_cheapest_way_go_where_the_longest_jobs_would_need_them(
    deadline: float, budget: float, used: int
) -> None:
    at = situation(QUEUES, [1.0] * 100, known=False, time_left=deadline, money_left=budget)

    assert sent(CHEAPEST.advise(at)) == [1] * used + [0] * (10 - used)


def test_first_jobs_of_the_fastest_way_take_every_processor() -> None:
    """Whatever a job takes, an idle queue would be time lost; the money suffices for all."""
    at = situation(QUEUES, [1.0] * 100, known=False, time_left=1980.0, money_left=171_000.0)

    assert sent(FASTEST.advise(at)) == [1] * 10


def test_first_jobs_do_not_make_the_cheapest_way_much_dearer() -> None:
    """
    A job on the dear site costs 50 more than one on the cheap site, and 100 of these cost 100.

    A day would need the dear site if jobs took hours; nothing says that they do.
    """
    places = [one("cheap", 1.0), one("dear", 51.0, processors=1000)]
    at = situation(places, [1.0] * 100, known=False, time_left=86_400.0)

    advice = CHEAPEST.advise(at)

    assert sent(advice) == [1, 0]
    assert 0 < advice.wake < 86_400.0 / 2


def test_more_is_sent_once_a_first_job_has_run_so_long_that_others_are_needed() -> None:
    """
    100 jobs and 86,400 s: when a job has run for 600 s it may take 1,200 s, and the cheap
    processor alone would need 120,000 s.
    """
    cheap = one("cheap", 1.0, running=((1.0, 600.0),))
    dear = one("dear", 51.0, processors=1000)
    at = situation([cheap, dear], [1.0] * 99, known=False, time_left=85_800.0, jobs=100)

    jobs = sent(CHEAPEST.advise(at))

    assert jobs[0] == 0
    assert jobs[1] > 0


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[SchedulingSnapshot, float]:
    """Sites and limits before anything has ended, and a weight of cost against time."""
    places = [
        one(f"s{i}", draw(st.integers(1, 20)), processors=draw(st.integers(1, 5)))
        for i in range(draw(st.integers(1, 6)))
    ]
    at = situation(
        places,
        [1.0] * draw(st.integers(1, 60)),
        known=False,
        time_left=draw(st.sampled_from([math.inf, 100.0, 1000.0])),
        money_left=draw(st.sampled_from([math.inf, 500.0, 5000.0])),
    )
    return at, draw(st.sampled_from([0.0, 0.5, 1.0]))


@given(beginnings(), st.floats(0.05, 0.999))
@settings(max_examples=examples(80))
def test_first_jobs_leave_the_goal_within_reach(
    beginning: tuple[SchedulingSnapshot, float], share: float
) -> None:
    """
    Where jobs take up to nine tenths of the longest run time that the goal allows, all jobs can
    still be done within both limits after the first ones were sent.

    The oracle lays every job on a processor by hand: first the ones sent, then the cheapest way.
    """
    at, weight = beginning
    given_out = sent(AdaptiveScheduleAdviser(Goal(deadline=1.0, trade_off=weight)).advise(at))
    count = at.sizes.jobs

    def cost_of_all(seconds: float, first: list[int]) -> float:
        rounds = math.inf if math.isinf(at.time_left) else (at.time_left + 1e-9) // seconds
        cost, left = 0.0, count
        for site, sent_there in zip(at.sites, first, strict=True):
            if sent_there and rounds < 1:
                return math.inf
            cost += sent_there * seconds * site.price
            left -= sent_there
        for site, sent_there in sorted(
            zip(at.sites, first, strict=True), key=lambda pair: pair[0].price
        ):
            room = left if math.isinf(rounds) else rounds * site.processors - sent_there
            taken = min(left, room)
            cost += taken * seconds * site.price
            left -= int(taken)
        return cost if not left else math.inf

    nothing = [0] * len(at.sites)
    reachable = [
        seconds
        for seconds in (1000.0 * 0.97**k for k in range(400))
        if cost_of_all(seconds, nothing) <= at.money_left
    ]
    assert 1 <= sum(given_out) <= count
    if reachable and not math.isinf(min(at.time_left, at.money_left)):
        seconds = 0.9 * reachable[0] * share
        if cost_of_all(seconds, nothing) <= at.money_left:
            assert cost_of_all(seconds, given_out) <= at.money_left * (1 + 1e-6)


def test_first_jobs_go_where_work_is_cheapest() -> None:
    """At 4 and speed 8 a job costs 0.5, at 1 and speed 1 it costs 1."""
    places = [one("slow", 1.0), one("dear", 9.0), one("fast", 4.0)]
    at = situation(places, [1.0] * 20, known=False, speeds={"fast": 8.0})

    advice = CHEAPEST.advise(at)

    assert sent(advice) == [0, 0, 1]
    assert "first job" in advice.reasons["fast"]
    assert "nothing is known" in advice.reasons["dear"]


def test_it_wakes_in_time_to_come_however_little_is_left() -> None:
    """Shares of what is left have no end: soon the clock would stand still."""
    places = [one("a", 1.0, running=((1.0, 0.0),)), one("b", 2.0)]
    at = situation(places, [1.0] * 10, known=False, time_left=4e-15, probes=1)
    wake = CHEAPEST.advise(at).wake
    assert 12.0 + wake > 12.0


def test_a_site_nobody_tried_gets_a_job_where_sites_are_not_as_expected() -> None:
    at = situation([one("a", 1.0), one("b", 2.0), one("c", 50.0)], [1.0] * 100, time_left=1000.0)
    for site, seconds in (("a", 1.0), ("b", 3.0)):
        for _ in range(3):
            at.estimates.learn(site, 1.0, seconds, seconds)
    tried = [replace(site, probed=site.name != "c") for site in at.sites]
    at = replace(at, sites=tried)

    assert sent(CHEAPEST.advise(at)) == [100, 0, 1]
    assert sent(CHEAPEST.advise(replace(at, probes=5))) == [100, 0, 0]
    as_expected = replace(at, estimates=observed(at, 0.0).estimates)
    assert sent(CHEAPEST.advise(as_expected)) == [100, 0, 0]


@pytest.mark.parametrize(
    ("time", "money", "sent_there"),
    [(5000.0, math.inf, 1), (900.0, math.inf, 0), (5000.0, 40_000.0, 0)],
)
def test_a_job_to_learn_from_ends_in_time_and_within_the_money(
    time: float, money: float, sent_there: int
) -> None:
    """On the site that nobody tried a job should take 1,000 s and cost 50,000."""
    sites = [one("a", 1.0, probed=True), one("b", 2.0, probed=True), one("c", 50.0)]
    at = situation(sites, [100.0] * 3, speeds={"c": 0.1}, time_left=time, money_left=money)
    for site, seconds in (("a", 70.0), ("b", 130.0)):
        for _ in range(3):
            at.estimates.learn(site, 100.0, seconds, seconds)

    assert sent(CHEAPEST.advise(at))[2] == sent_there


# What is kept free.

CHEAP_AND_DEAR = situation(
    [one("cheap", 1.0), one("dear", 2.0, processors=100)], [10.0] * 40, time_left=400.0
)


def test_a_deadline_is_used_to_the_full_where_no_spread_was_observed() -> None:
    assert sent(CHEAPEST.advise(CHEAP_AND_DEAR)) == [40, 0]
    assert sent(CHEAPEST.advise(observed(CHEAP_AND_DEAR, 0.0))) == [40, 0]


@given(st.lists(st.floats(0.0, 0.6), min_size=2, max_size=6))
@settings(max_examples=examples(40))
def test_more_time_is_kept_free_the_wider_the_spread(spreads: list[float]) -> None:
    """
    By the formula: what a job may be off, once, and once more over the processors' share.

    101 processors share the 40 jobs: the margin is q s 10 (1 + sqrt(40) / 101).
    """
    in_time = []
    for spread in sorted(spreads):
        at = observed(CHEAP_AND_DEAR, spread)
        margin = at.estimates.quantile * at.estimates.spread * 10.0 * (1 + math.sqrt(40) / 101)
        cheap, dear = sent(CHEAPEST.advise(at))
        assert cheap + dear == 40
        assert cheap in {math.floor((400 - margin) / 10 + e) for e in (-1e-6, 1e-6)}
        in_time.append(cheap)
    assert in_time == sorted(in_time, reverse=True)


@given(st.lists(st.floats(0.0, 0.6), min_size=2, max_size=6))
@settings(max_examples=examples(40))
def test_more_money_is_kept_back_the_wider_the_spread(spreads: list[float]) -> None:
    """As fast as the budget allows: what is kept back makes the dear site do less."""
    tight = replace(CHEAP_AND_DEAR, time_left=math.inf, money_left=700.0, budget=700.0)
    dear = []
    for spread in sorted(spreads):
        given_out = sent(FASTEST.advise(observed(tight, spread)))
        assert sum(given_out) == 40
        assert given_out[0] * 10 + given_out[1] * 20 <= 700.0 + 1e-6
        dear.append(given_out[1])
    assert dear == sorted(dear, reverse=True)
    # 40 jobs at 10 leave 300: without a spread, 30 of them at 20.
    assert sent(FASTEST.advise(observed(tight, 0.0))) == [10, 30]


def test_margins_are_given_up_before_jobs_are() -> None:
    """Nothing but the whole time does for all: then it is used."""
    at = situation([one("only", 1.0)], [10.0] * 5, time_left=50.0)

    assert sent(CHEAPEST.advise(observed(at, 0.5))) == [5]


def test_money_that_running_jobs_may_still_need_is_not_given_to_others() -> None:
    """
    A job that is stopped for want of money has cost all it took and brings nothing.

    The running job may take longer than the mean by a margin; 10 pays for one more job, but
    only by taking that margin away.
    """
    running = one("s", 1.0, processors=2, running=((10.0, 5.0),))
    at = situation([running], [10.0], money_left=10.0, jobs=2)

    assert sent(CHEAPEST.advise(observed(at, 0.0))) == [1]
    assert sent(CHEAPEST.advise(observed(at, 0.3))) == [0]


def test_as_many_as_fit_are_sent_where_not_all_do() -> None:
    """30 s and 50 units: three jobs at 10, and one at 20."""
    at = situation(
        [one("cheap", 1.0), one("dear", 2.0, processors=9)],
        [10.0] * 10,
        time_left=30.0,
        money_left=50.0,
    )

    assert sent(CHEAPEST.advise(at)) == sent(FASTEST.advise(at)) == [3, 1]


def test_failures_make_jobs_count_as_longer() -> None:
    """Where every other attempt fails, a job takes two: half as many fit into the time."""
    at = observed(CHEAP_AND_DEAR, 0.0)
    for _ in range(12):
        at.estimates.failed("dear")
    assert at.estimates.failures == 0.5

    assert sent(CHEAPEST.advise(at)) == [20, 20]


# What is preferred.


@st.composite
def choices(draw: st.DrawFn) -> SchedulingSnapshot:
    """Sites of different speeds and prices, jobs of one size."""
    count = draw(st.integers(2, 4))
    places = [
        one(f"s{i}", draw(st.integers(1, 9)), processors=draw(st.integers(1, 3)))
        for i in range(count)
    ]
    speeds = {f"s{i}": draw(st.sampled_from([0.5, 1.0, 2.0])) for i in range(count)}
    return situation(places, [10.0] * draw(st.integers(1, 30)), time_left=2000.0, speeds=speeds)


def cost_and_end(at: SchedulingSnapshot, given_out: list[int]) -> tuple[float, float]:
    """Of jobs shared evenly on each site's processors."""
    cost = end = 0.0
    for site, jobs in zip(at.sites, given_out, strict=True):
        seconds = 10.0 / at.estimates.speeds[site.name]
        cost += jobs * seconds * site.price
        end = max(end, math.ceil(jobs / site.processors) * seconds)
    return cost, end


@given(choices())
@settings(max_examples=examples(30))
def test_the_trade_off_moves_between_the_fastest_and_the_cheapest_way(
    at: SchedulingSnapshot,
) -> None:
    ways = []
    for weight in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        given_out = sent(AdaptiveScheduleAdviser(Goal(trade_off=weight)).advise(at))
        assert sum(given_out) == at.sizes.jobs
        ways.append(cost_and_end(at, given_out))

    costs, ends = [cost for cost, _ in ways], [end for _, end in ways]
    assert costs == pytest.approx(sorted(costs, reverse=True))
    assert ends == pytest.approx(sorted(ends))
    each = [10.0 * site.price / at.estimates.speeds[site.name] for site in at.sites]
    finishes = sorted(
        k * 10.0 / at.estimates.speeds[site.name]
        for site in at.sites
        for _ in range(site.processors)
        for k in range(1, at.sizes.jobs + 1)
    )
    assert ends[0] == pytest.approx(finishes[at.sizes.jobs - 1])
    room = {
        site.name: site.processors * math.floor(2000 * at.estimates.speeds[site.name] / 10)
        for site in at.sites
    }
    if room[at.sites[each.index(min(each))].name] >= at.sizes.jobs:
        assert costs[-1] == pytest.approx(min(each) * at.sizes.jobs)


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (Goal(), [20, 20]),
        (Goal(budget=1e6), [20, 20]),
        (Goal(deadline=400.0), [40, 0]),
        (Goal(deadline=400.0, budget=1e6), [40, 0]),
        (Goal(deadline=400.0, trade_off=0.0), [20, 20]),
        (Goal(budget=1e6, trade_off=1.0), [40, 0]),
    ],
)
def test_without_a_preference_a_deadline_asks_for_the_cheapest_way(
    goal: Goal, expected: list[int]
) -> None:
    at = situation(
        [one("cheap", 1.0), one("dear", 2.0)],
        [10.0] * 40,
        time_left=goal.deadline or math.inf,
        money_left=goal.budget or math.inf,
    )

    assert sent(AdaptiveScheduleAdviser(goal).advise(at)) == expected


def in_units(
    *, work: float = 1.0, second: float = 1.0, money: float = 1.0, processors: int = 2
) -> SchedulingSnapshot:
    """Two sites with jobs that are overdue, jobs of several lengths, and a spread."""
    running = ((20.0 * work, 50.0 * second), (10.0 * work, 1.0 * second))
    sites = [
        one("a", 1.0 * money / second, processors=processors, running=running),
        one("b", 3.0 * money / second, processors=processors),
    ]
    sizes = [(10.0 + number / 7) * work for number in range(500)]  # jobs of a class differ
    speeds = {"a": 1.0 * work / second, "b": 2.5 * work / second}
    at = situation(sites, sizes, speeds=speeds, time_left=1e4 * second, money_left=1e5 * money)
    for name, seconds in (("a", 12.0), ("a", 9.0), ("b", 4.5), ("b", 3.5)):
        at.estimates.learn(name, 10.0 * work, seconds * second, 1.2 * seconds * second)
    return at


@pytest.mark.parametrize("work", [1.0, 1000.0])
@pytest.mark.parametrize("second", [1.0, 60.0])
@pytest.mark.parametrize("money", [1.0, 0.01])
def test_what_is_kept_free_does_not_depend_on_the_units(
    work: float, second: float, money: float
) -> None:
    """Those of time, of money and of the lengths of jobs have no meaning of their own."""
    time, amount, started = CHEAPEST._margins(in_units())
    assert min(time, amount, started) > 0

    assert CHEAPEST._margins(in_units(work=work, second=second, money=money)) == pytest.approx(
        (time * second, amount * money, started * money)
    )


def test_a_site_in_two_halves_keeps_as_much_free_as_the_whole() -> None:
    whole = situation([one("a", 1.0, processors=4)], [10.0] * 40)
    halves = situation([one("a", 1.0, processors=2), one("b", 1.0, processors=2)], [10.0] * 40)
    for at in (whole, halves):
        for seconds in (8.0, 12.0):  # ten on average, as expected of both halves
            at.estimates.learn("a", 10.0, seconds, seconds)

    assert CHEAPEST._margins(halves) == pytest.approx(CHEAPEST._margins(whole))


def test_less_time_is_kept_free_where_more_processors_share_the_work() -> None:
    few, many = (CHEAPEST._margins(in_units(processors=n))[0] for n in (2, 20))

    assert few > many > 0


def test_some_jobs_of_a_large_campaign_may_go_where_nobody_knows_how_long_they_take() -> None:
    """5 % of the jobs, one in any case; 2 % where there is a budget."""
    jobs = [one("s", 1.0)], [10.0] * 100
    few = [one("s", 1.0)], [10.0] * 3

    assert probes_left(situation(*jobs, probes=2)) == 3
    assert probes_left(situation(*jobs, money_left=1e6)) == 2
    assert probes_left(situation(*few)) == 1
    assert probes_left(situation(*few, probes=1)) == 0


# What is waited for.


def test_the_cheapest_way_waits_for_a_lower_price_where_there_is_time() -> None:
    """From 50 s on a second costs 1 and not 5; two jobs of 10 s, by 100 s or by 40 s."""
    site = SiteSnapshot(name="s", processors=1, prices=off_peak(5.0, 50.0, 1.0))
    at = situation([site], [10.0] * 2, time_left=100.0)

    waiting = CHEAPEST.advise(at)
    hurried = CHEAPEST.advise(replace(at, time_left=40.0))

    assert sent(waiting) == [0]
    assert waiting.now == [False]
    assert waiting.wake == 50.0
    assert "wait 50 s" in waiting.reasons["s"]
    assert sent(hurried) == [2]


def test_the_fastest_way_waits_only_for_money() -> None:
    """100 pays for both now; 60 for one now and one later."""
    site = SiteSnapshot(name="s", processors=2, prices=off_peak(5.0, 50.0, 1.0))
    at = situation([site], [10.0] * 2)

    assert sent(FASTEST.advise(replace(at, money_left=100.0))) == [2]
    assert sum(sent(FASTEST.advise(replace(at, money_left=20.0)))) == 0


@given(
    jobs=st.integers(1, 12),
    begin=st.sampled_from([20.0, 50.0, 75.0]),
    deadline=st.sampled_from([30.0, 80.0, 100.0]),
)
@settings(max_examples=examples(30))
def test_only_what_the_cheap_time_does_not_hold_is_done_before(
    jobs: int, begin: float, deadline: float
) -> None:
    """One processor, jobs of 10 s: both periods hold whole jobs, none lies across."""
    site = SiteSnapshot(name="s", processors=1, prices=off_peak(5.0, begin, 1.0))
    later = max(0, math.floor((deadline - begin) / 10))
    before = math.floor(min(begin, deadline) / 10)

    given_out = sum(sent(CHEAPEST.advise(situation([site], [10.0] * jobs, time_left=deadline))))

    assert given_out == min(before, max(0, jobs - later))


def test_a_price_that_rises_is_used_while_it_is_low() -> None:
    """Three of 10 s until it rises at 30 s; the fourth on the other site at 2, not at 9."""
    rises = SiteSnapshot(name="rises", processors=1, prices=off_peak(1.0, 30.0, 9.0))
    at = situation([rises, one("stays", 2.0)], [10.0] * 4, time_left=100.0)

    assert sent(CHEAPEST.advise(at)) == [3, 1]


# What is left out.


def test_sites_that_cannot_help_get_nothing_and_are_told_why() -> None:
    places = [one("good", 1.0, processors=20), one("slow", 0.1), one("dear", 1e6)]
    at = situation(places, [10.0] * 20, time_left=100.0, money_left=1e5, speeds={"slow": 0.01})

    advice = CHEAPEST.advise(at)

    assert sent(advice) == [20, 0, 0]
    assert advice.reasons["slow"] == "a job takes 1000 s, 100 s are left"
    assert advice.reasons["dear"] == "a job costs 1e+07, 100000 are left"


def test_a_first_job_that_fails_is_followed_by_another() -> None:
    """Otherwise the failure of one job ends a campaign of ten as out of reach."""
    at = situation([one("s", 1.0), one("t", 1.0)], [1.0] * 10, known=False, probes=1)
    at.estimates.failed("s")

    assert sum(sent(CHEAPEST.advise(at))) >= 1


def test_a_job_to_learn_from_leaves_the_money_for_the_others() -> None:
    """A hundred jobs cost some 110 of the 120 that are left; one on the dear site costs 50."""
    at = situation(
        [one("a", 1.0, probed=True), one("b", 1.0, probed=True), one("c", 50.0)],
        [1.0] * 100,
        time_left=1000.0,
        money_left=120.0,
    )
    for site, seconds in (("a", 1.0), ("b", 1.3)):
        for _ in range(3):
            at.estimates.learn(site, 1.0, seconds, seconds)

    assert sent(CHEAPEST.advise(at)) == [100, 0, 0]


@pytest.mark.parametrize("second", [1.0, 0.1], ids=["seconds", "tenths"])
def test_no_more_is_bought_at_once_than_the_deadline_needs(second: float) -> None:
    """
    Two processors must go on buying until the cheap time, or two jobs come too late.

    They are of site "a", whose jobs of 5 s end before 9 s or are booked for then: two of them
    end in 15 s, or three where the second is bought at once. On site "b" jobs take 4 s; one bought
    at once takes a cheap one's place, and three are done either way. The unit of time is no matter.
    """

    def site(name: str, processors: int, begin: float) -> SiteSnapshot:
        booked = ((begin * second, math.inf, 0.5, begin * second),)
        return one(name, 1.0, processors=processors, bookable=booked)

    sites = [site("a", 2, 9.0), site("b", 20, 7.0)]
    speeds = {"a": 4.0 / second, "b": 5.0 / second}
    at = situation(sites, [20.0] * 66, speeds=speeds, time_left=15.0 * second)

    advice = CHEAPEST.advise(at)

    assert advice.feasible
    assert advice.cost == pytest.approx((2 * (5 + 5 + 2.5) + 20 * (4 + 2 + 2)) * second)
