"""Deadlines and budgets by factors: 0 is the least that is feasible, 1 the most."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

import bursar
from bursar.api.planning import with_factors
from bursar.api.simulating import simulate
from bursar.api.strategy_quotes import quote_strategy
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.strategies import Named
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar_papers.nimrodg import queues

ADAPTIVE = SupplyPolicy(kind="economy", strategy="adaptive")


def bag(*runtimes: float | None, goal: Goal | None = None) -> Campaign:
    """Independent tasks."""
    tasks = tuple(Task(id=f"t{i}", runtime=r) for i, r in enumerate(runtimes))
    return Campaign(name="bag", workflow=Workflow(tasks), goal=goal or Goal())


def site(name: str, price: float | None, *, processors: int = 1, speed: float = 1.0) -> SiteFacts:
    """A simulated one."""
    return SiteFacts(
        name=name, kind="simulated", processors=processors, unit_price=price, speed=speed
    )


def limits(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    time: float | None = None,
    money: float | None = None,
) -> tuple[float, float]:
    """Deadline and budget; infinite for none."""
    goal = with_factors(campaign, sites, deadline_factor=time, budget_factor=money).goal
    return (
        math.inf if goal.deadline is None else goal.deadline,
        math.inf if goal.budget is None else goal.budget,
    )


def test_the_test_queues_of_the_paper_by_factors() -> None:
    """
    100 jobs of 90 s on ten queues at 10 to 28.

    All queues take 10 rounds, 900 s; one alone takes 9,000 s. In 900 s each queue does ten
    jobs: 900 (10 + 12 + ... + 28) = 171,000 is the least and the most. In 9,000 s the cheapest
    does all for 90,000, the dearest for 252,000. Half way there are 4,950 s, 55 rounds: 55 and
    45 jobs, 90 (55 * 10 + 45 * 12) = 98,100 or 90 (55 * 28 + 45 * 26) = 243,900.
    """
    jobs, sites = bag(*[90.0] * 100), queues()

    assert limits(jobs, sites, 0.0, 0.0) == (pytest.approx(900.0, abs=0.1), 171_000.0)
    assert limits(jobs, sites, 0.0, 1.0)[1] == 171_000.0
    assert limits(jobs, sites, 1.0, 0.0) == (9_000.0, 90_000.0)
    assert limits(jobs, sites, 1.0, 1.0) == (9_000.0, 252_000.0)
    time, money = limits(jobs, sites, 0.5, 0.5)
    assert time == pytest.approx(4950.0, abs=0.1)
    assert money == pytest.approx((98_100 + 243_900) / 2)


@given(
    sites=st.lists(
        st.builds(
            site,
            name=st.uuids().map(str),
            price=st.integers(0, 9).map(float),
            processors=st.integers(1, 3),
            speed=st.sampled_from([0.5, 1.0, 2.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    jobs=st.integers(1, 20),
    time=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(max_examples=examples(100))
def test_the_least_is_feasible_and_less_is_not(
    sites: list[SiteFacts], jobs: int, time: float
) -> None:
    """By what a strategy can be expected to do; jobs of one size."""
    work = bag(*[8.0] * jobs)

    for money in (0.0, 0.5, 1.0):
        wanted = with_factors(work, sites, deadline_factor=time, budget_factor=money)
        assert quote_strategy(wanted, sites, ADAPTIVE).feasible

    least_time, least_money = limits(work, sites, time, 0.0)
    most_time, most_money = limits(work, sites, time, 1.0)
    assert least_time == most_time
    assert least_money <= most_money + 1e-6
    soonest = limits(work, sites, 0.0)[0]
    for goal in (
        Goal(deadline=soonest - 0.05),
        Goal(deadline=least_time, budget=max(0.0, least_money - 1e-3)),
    ):
        feasible = quote_strategy(replace(work, goal=goal), sites, ADAPTIVE).feasible
        assert not feasible or (goal.budget == 0.0 == least_money)


@given(st.lists(st.sampled_from([2.0, 5.0, 11.0]), min_size=1, max_size=15))
@settings(max_examples=examples(60))
def test_factors_move_both_limits_up(runtimes: list[float]) -> None:
    """Of several sizes, too."""
    sites = [site("a", 1.0, processors=2), site("b", 4.0, speed=2.0), site("c", 2.0, speed=0.5)]
    work = bag(*runtimes)

    times = [limits(work, sites, factor)[0] for factor in (0.0, 0.4, 1.0)]

    assert times == sorted(times)
    assert times[-1] == pytest.approx(sum(runtimes) / 0.5)
    for time in (0.4, 1.0):
        money = [limits(work, sites, time, factor)[1] for factor in (0.0, 0.4, 1.0)]
        assert money == pytest.approx(sorted(money))


def test_one_factor_leaves_the_other_limit_as_it_was() -> None:
    """And a budget by factor is within the goal's own deadline."""
    sites = [site("cheap", 1.0), site("dear", 5.0)]
    work = bag(10.0, 10.0, goal=Goal(deadline=10.0, budget=99.0, trade_off=0.3))

    timed = with_factors(work, sites, deadline_factor=1.0).goal
    paid = with_factors(work, sites, budget_factor=0.0).goal

    assert (timed.deadline, timed.budget, timed.trade_off) == (20.0, 99.0, 0.3)
    assert (paid.deadline, paid.budget) == (10.0, 60.0)  # both in 10 s: one on each
    assert with_factors(work, sites).goal == work.goal


@pytest.mark.parametrize("strategy", ["cost", "time", "adaptive"])
def test_below_0_nothing_is_feasible(strategy: Named) -> None:
    sites = queues()
    for factors in ({"deadline_factor": -0.01}, {"deadline_factor": 0.5, "budget_factor": -0.01}):
        wanted = with_factors(bag(*[90.0] * 100), sites, **factors)

        with pytest.raises(bursar.GoalOutOfReach):
            simulate(wanted, sites, strategy=strategy)


@pytest.mark.ci
def test_a_workflow_has_its_limits_from_its_plans() -> None:
    """Two of 10 s, the second after the first, at speeds 1 and 2 for 1 and 6 a second."""
    tasks = (Task(id="a", runtime=10.0), Task(id="b", runtime=10.0, after=("a",)))
    work = Campaign(name="two", workflow=Workflow(tasks), goal=Goal())
    sites = [site("slow", 1.0), site("fast", 6.0, speed=2.0)]

    # 10 s at 6 each, or 20 s at 1 each.
    assert limits(work, sites, 0.0, 0.0) == (pytest.approx(10.0), pytest.approx(60.0))
    assert limits(work, sites, 1.0, 0.0) == (pytest.approx(20.0), pytest.approx(20.0))


# Wrong input.

TWO = [site("a", 1.0), site("b", 2.0)]


def message(campaign: Campaign, sites: Sequence[SiteFacts], **factors: float) -> str:
    """Of the error."""
    with pytest.raises(bursar.InputError) as caught:
        with_factors(campaign, sites, **factors)
    return str(caught.value)


def test_a_factor_needs_runtimes() -> None:
    """The task is named, and what may help; no more than that."""
    told = message(bag(1.0, None), TWO, deadline_factor=0.5)

    assert told == (
        'deadline-factor: the runtime of task "t1" is unknown, and a factor needs it\n'
        "hint: give it a runtime, or one for all with --runtime"
    )
    assert "budget-factor" in message(bag(None), TWO, budget_factor=0.5)


def test_a_budget_factor_needs_prices() -> None:
    """The site is named; a deadline can do without."""
    sites = [*TWO, site("odd", None)]

    assert message(bag(1.0), sites, budget_factor=0.5) == "site.odd.unit_price: is unknown"
    assert limits(bag(1.0), sites, 1.0)[0] == 1.0


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_factor_is_a_number(factor: float) -> None:
    told = message(bag(1.0), TWO, deadline_factor=factor)

    assert told == f"deadline-factor: expected a number, got {factor}"


def test_a_limit_below_nothing_is_no_limit() -> None:
    """One task at 1 or 2 a second: 10 + f 10 is less than nothing from f = -1 down."""
    work = bag(10.0, goal=Goal(deadline=100.0))

    assert message(work, TWO, budget_factor=-2.0).startswith("budget-factor: leads to a budget")
    assert message(bag(10.0, 10.0), TWO, deadline_factor=-1.5).startswith(
        "deadline-factor: leads to a deadline must be positive"
    )


def test_a_budget_factor_needs_a_deadline_in_reach() -> None:
    told = message(bag(10.0, goal=Goal(deadline=5.0)), TWO, budget_factor=0.5)

    assert told == "deadline: is out of reach on these sites: 5 s\nhint: allow more"


def test_a_task_without_length_has_limits_too() -> None:
    assert limits(bag(0.0, 5.0), TWO, 1.0, 0.0) == (pytest.approx(5.0), pytest.approx(5.0))
