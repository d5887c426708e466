"""Strategies give out no more than there is, and what their rule says."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

import bursar
from bursar.api.simulating import simulate
from bursar.broker.strategies import Named, Strategy, StrategyResource, allocate_jobs
from bursar.model.campaign import Campaign, Retry, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar_papers.nimrodg import BUDGETS, DEADLINES, campaign, optimum, queues

NAMES: tuple[Strategy, ...] = ("time", "cost", "none", "cost-time", "conservative-time")

resources = st.lists(
    st.builds(
        StrategyResource,
        seconds=st.sampled_from([1.0, 2.0, 3.0, 5.0]),
        cost=st.sampled_from([0.0, 1.0, 2.0, 4.0]),
        free_at=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=4,
)
limits = st.one_of(st.just(math.inf), st.integers(0, 40).map(float))


@given(st.sampled_from(NAMES), resources, st.integers(0, 30), limits, limits)
@settings(max_examples=examples(250))
def test_no_more_is_given_than_there_is_time_money_and_work_for(
    name: Strategy, known: list[StrategyResource], jobs: int, time_left: float, money_left: float
) -> None:
    given_out = allocate_jobs(name, known, jobs, time_left, money_left)

    assert len(given_out) == len(known)
    assert 0 <= sum(given_out) <= jobs
    cost = sum(n * r.cost for n, r in zip(given_out, known, strict=True) if n)
    assert cost <= money_left + 1e-9
    for n, r in zip(given_out, known, strict=True):
        ends = sorted(f + (k + 1) * r.seconds for f in r.free_at for k in range(n))[:n]
        assert all(end <= time_left + 1e-6 for end in ends)
    if time_left == money_left == math.inf:
        assert sum(given_out) == jobs


@given(resources, st.integers(0, 8), st.integers(0, 12), limits)
@settings(max_examples=examples(100))
def test_cost_minimisation_costs_least(
    known: list[StrategyResource], jobs: int, time_left: int, money_left: float
) -> None:
    """Of all ways to place as many jobs in time; tried out."""
    given_out = allocate_jobs("cost", known, jobs, float(time_left), math.inf)

    room = [sum(max(0, math.floor((time_left - f) / r.seconds)) for f in r.free_at) for r in known]
    assert sum(given_out) == min(jobs, sum(room))
    least = min(
        sum(n * r.cost for n, r in zip(way, known, strict=True))
        for way in itertools.product(*(range(min(r, jobs) + 1) for r in room))
        if sum(way) == sum(given_out)
    )
    assert sum(n * r.cost for n, r in zip(given_out, known, strict=True)) == pytest.approx(least)


@given(resources, st.integers(0, 12))
@settings(max_examples=examples(100))
def test_time_minimisation_without_limits_ends_first(
    known: list[StrategyResource], jobs: int
) -> None:
    """No way to share the jobs among the processors ends earlier."""
    given_out = allocate_jobs("time", known, jobs, math.inf, math.inf)

    def end(moment: float) -> int:
        return sum(
            max(0, math.floor((moment - f) / r.seconds + 1e-9)) for r in known for f in r.free_at
        )

    last = max(
        (
            sorted(f + (k + 1) * r.seconds for f in r.free_at for k in range(n))[n - 1]
            for n, r in zip(given_out, known, strict=True)
            if n
        ),
        default=0.0,
    )
    assert sum(given_out) == jobs
    assert end(last - 1e-6) < jobs or not jobs


def test_neither_shares_in_inverse_proportion_to_completion_times() -> None:
    """The paper's own example: 5 seconds gets twice as many as 10."""
    pair = [StrategyResource(seconds=s, cost=1.0, free_at=(0.0,)) for s in (5.0, 10.0)]

    assert allocate_jobs("none", pair, 30, 1e6, 1e6) == [20, 10]


def test_cost_time_takes_the_time_rule_among_equal_prices() -> None:
    """Where cost minimisation would fill the first one only."""
    trio = [StrategyResource(seconds=5.0, cost=c, free_at=(0.0,)) for c in (1.0, 1.0, 2.0)]

    assert allocate_jobs("cost-time", trio, 8, 100.0, 1e6) == [4, 4, 0]
    assert allocate_jobs("cost", trio, 8, 100.0, 1e6) == [8, 0, 0]


def test_a_resource_is_affordable_again_when_a_cheap_job_leaves_just_enough() -> None:
    """
    A job that costs exactly the money left per job may be given out.

    3 for two jobs leave 1.5 for each, too little for the fast resource; after one job at 1, the
    other may cost 2, and the slow resource would end a second job too late.
    """
    fast, slow = (
        StrategyResource(seconds=s, cost=c, free_at=(0.0,)) for s, c in ((1.0, 2.0), (5.0, 1.0))
    )

    assert allocate_jobs("time", [fast, slow], 2, 9.0, 3.0) == [1, 1]
    assert allocate_jobs("time", [fast, slow], 2, 9.0, 2.9) == [0, 1]


@given(
    name=st.sampled_from([*NAMES, "adaptive"]),
    budget=st.integers(0, 4000),
    deadline=st.one_of(st.none(), st.integers(1, 200)),
    spread=st.sampled_from([0.0, 0.5]),
    failures=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(40))
def test_the_budget_holds_whatever_happens(
    name: Named,
    budget: int,
    deadline: int | None,
    spread: float,
    failures: float,
    seed: int,
) -> None:
    """Wrong estimates, failures, hopeless goals: never a unit more, and no job twice."""
    work = Workflow(tuple(Task(id=str(i), runtime=10.0) for i in range(20)))
    sites = tuple(
        SiteFacts(name=f"s{p}", kind="simulated", processors=n, unit_price=float(p), speed=v)
        for p, n, v in ((5, 1, 1.0), (9, 2, 0.5), (20, 3, 2.0))
    )
    goal = bursar.Goal(budget=float(budget), deadline=deadline)
    wanted = Campaign(name="c", workflow=work, goal=goal, retry=Retry(attempts=3))

    told = simulate(
        wanted,
        sites,
        strategy=name,
        chance=ExecutionUncertainty(spread=spread, failures=failures, seed=seed),
        anyway=True,
    ).to_dict()

    assert told["cost"] <= budget
    assert told["held"] == 0
    assert told["succeeded"] + told["failed"] + told["not_run"] + told["skipped"] == 20


@pytest.mark.parametrize("deadline", DEADLINES)
def test_what_table_2_says_of_the_strategies(deadline: int) -> None:
    """With money to spare time ends in 900 s and cost is near the least at any deadline."""
    fast = simulate(campaign(deadline, 252_000), queues(), strategy="time")
    cheap = simulate(campaign(deadline, 252_000), queues(), strategy="cost")

    assert (fast.makespan, fast.cost) == (900.0, 171_000.0)
    assert fast.succeeded
    assert cheap.succeeded
    least = optimum("cost", deadline, 252_000)
    assert least is not None
    assert cheap.cost is not None
    # The first job of every queue is the price of knowing nothing: the dear ones' at most.
    assert least <= cheap.cost <= least + sum((p - 10) * 90 for p in range(10, 30, 2))


def test_what_does_not_fit_is_said_and_not_begun() -> None:
    """Refused before the start with what could be had; or begun all the same, within limits."""
    with pytest.raises(bursar.GoalOutOfReach) as caught:
        simulate(campaign(990, 126_000), queues(), strategy="time")
    offers = {offer.kind: offer for offer in caught.value.quote.counter_offers}
    # The least time for that money is 1,800 s; the stated rule takes 1,980 s, and what is offered
    # is rounded up to what is printed.
    assert 1980 <= offers["time"].makespan <= 1981
    assert offers["budget"].cost == 162_900
    assert offers["share"].tasks == 40  # by the rule, which gives dear queues nothing; 84 fit

    told = simulate(campaign(990, 126_000), queues(), strategy="time", anyway=True).to_dict()
    assert (told["state"], told["exit_status"], told["succeeded"]) == ("goal-stopped", 4, 40)
    nothing = simulate(campaign(10, 126_000), queues(), strategy="cost", anyway=True).to_dict()
    assert (nothing["succeeded"], nothing["cost"], nothing["state"]) == (0, 0.0, "goal-stopped")


@pytest.mark.parametrize("wish", [0.0, 1.0, None])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("deadline", DEADLINES)
def test_our_own_reaches_the_optimum_of_every_feasible_scenario(
    deadline: int, budget: int, wish: float | None
) -> None:
    """All jobs, within both limits, at the least time or cost; it is what runs by default."""
    wanted = campaign(deadline, budget)
    wanted = replace(wanted, goal=replace(wanted.goal, trade_off=wish))
    best = optimum("time" if wish == 0 else "cost", deadline, budget)

    told = simulate(wanted, queues(), anyway=True).to_dict()

    assert told["provisioning"] == "adaptive"
    if best is None:
        assert (told["succeeded"], told["exit_status"]) == (84, 4)
    else:
        assert told["succeeded"] == 100
        assert told["deadline_met"]
        assert (told["makespan_s"] if wish == 0 else told["cost"]) == pytest.approx(best)


def test_a_workflow_is_planned_by_what_a_strategy_stands_for() -> None:
    """Jobs that wait for others are not brought to sites one by one."""
    work = Workflow((Task(id="a", runtime=90.0), Task(id="b", runtime=90.0, after=("a",))))
    wanted = Campaign(name="c", workflow=work, goal=bursar.Goal(deadline=1000))

    fast = simulate(wanted, queues(), strategy="time").to_dict()
    cheap = simulate(wanted, queues(), strategy="cost").to_dict()

    assert fast["provisioning"] == cheap["provisioning"] == "planned"
    assert cheap["cost"] == 2 * 90 * 10


def test_a_price_that_is_not_known_cannot_be_kept_to() -> None:
    sites = (*queues(), SiteFacts(name="odd", kind="simulated", unit_price=None))

    with pytest.raises(bursar.InputError, match=r"site\.odd\.unit_price"):
        simulate(campaign(990, 126_000), sites, strategy="cost")
