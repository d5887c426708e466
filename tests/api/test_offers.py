"""Whoever takes a counter-offer, as it is printed, has the campaign done within it."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.api.planning import plan
from bursar.api.queues import run_outside_loop
from bursar.api.quote import Quote
from bursar.api.simulating import simulate
from bursar.api.simulator import Simulator
from bursar.api.strategy_quotes import quote_strategy
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.strategies import Named, OutOfReach
from bursar.formats.units import parse_amount, parse_duration
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.provisioning import AcquisitionPolicy, BatchScheduler
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.tables import amount, amount_above, span, span_above
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar.simulation.simulated_grid import SimulatedGrid

prices = st.sampled_from([1 / 3600, 0.01, 1.0, 2.0, 7.0])


@st.composite
def markets(draw: st.DrawFn) -> tuple[SiteFacts, ...]:
    """Up to three simulated sites at different prices and speeds."""
    return tuple(
        SiteFacts(
            name=f"s{i}",
            kind="simulated",
            processors=draw(st.integers(1, 4)),
            speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
            unit_price=draw(prices),
        )
        for i in range(draw(st.integers(1, 3)))
    )


def bag(jobs: int, seconds: float, goal: Goal) -> Campaign:
    """Independent tasks of one length."""
    tasks = tuple(Task(id=f"t{i}", runtime=seconds) for i in range(jobs))
    return Campaign(name="bag", workflow=Workflow(tasks), goal=goal)


def typed_back(offer: GoalCounterOffer) -> Goal:
    """The goal of a user who reads an offer on the screen and types it."""
    assert offer.cost is not None
    return Goal(
        deadline=parse_duration(span(offer.makespan)),
        budget=parse_amount(amount(offer.cost, "SU"))[0],
    )


@given(seconds=st.floats(1e-3, 1e7))
def test_a_time_rounded_up_is_read_back_as_it_is_printed(seconds: float) -> None:
    """And is at most five per cent more."""
    above = span_above(seconds)

    assert parse_duration(span(above)) == pytest.approx(above, rel=1e-12)
    assert seconds * (1 - 1e-9) <= above <= seconds * 1.05


@given(cost=st.floats(1e-9, 1e9))
def test_an_amount_rounded_up_is_read_back_as_it_is_printed(cost: float) -> None:
    """And is at most a thousandth more."""
    above = amount_above(cost)

    assert parse_amount(amount(above, "SU"))[0] == above
    assert cost * (1 - 1e-9) <= above <= cost * 1.0011


def check_strategy(
    strategy: Named, jobs: int, seconds: float, sites: tuple[SiteFacts, ...], hurry: float
) -> int:
    """Take every offer that a strategy makes; return how many there were."""
    work = jobs * seconds
    goal = Goal(
        deadline=hurry * work / sum(s.processors * s.speed for s in sites),
        budget=hurry * work * min((s.unit_price or 0.0) / s.speed for s in sites),
    )
    offers = quote_strategy(
        bag(jobs, seconds, goal), sites, SupplyPolicy(kind="economy", strategy=strategy)
    ).counter_offers
    for offer in offers:
        if offer.kind == "share":
            told = simulate(bag(jobs, seconds, goal), sites, strategy=strategy, anyway=True)
            assert told.to_dict()["succeeded"] >= offer.tasks
            continue
        taken = typed_back(offer)
        summary = simulate(bag(jobs, seconds, taken), sites, strategy=strategy).to_dict()
        assert summary["succeeded"] == jobs
        assert summary["deadline_met"]
        assert summary["cost"] <= taken.budget
        assert summary["exit_status"] == 0
    return len(offers)


@given(
    strategy=st.sampled_from(get_args(Named)),
    jobs=st.integers(1, 12),
    seconds=st.sampled_from([0.5, 2.0, 30.0, 1800.0]),
    sites=markets(),
    hurry=st.floats(0.3, 1.4),
)
@settings(max_examples=10)
def test_what_a_strategy_offers_holds(
    strategy: Named, jobs: int, seconds: float, sites: tuple[SiteFacts, ...], hurry: float
) -> None:
    """In simulated time, whatever limit was out of reach."""
    check_strategy(strategy, jobs, seconds, sites, hurry)


@pytest.mark.long
@pytest.mark.timeout(600)
@given(
    strategy=st.sampled_from(get_args(Named)),
    jobs=st.integers(1, 40),
    seconds=st.sampled_from([0.5, 2.0, 30.0, 1800.0]),
    sites=markets(),
    hurry=st.floats(0.3, 1.4),
)
@settings(max_examples=examples(200))
def test_what_a_strategy_offers_holds_in_many_markets(
    strategy: Named, jobs: int, seconds: float, sites: tuple[SiteFacts, ...], hurry: float
) -> None:
    """The same with more jobs, often."""
    check_strategy(strategy, jobs, seconds, sites, hurry)


def test_a_strategy_makes_offers_at_all() -> None:
    """The property holds of something: every strategy offers all jobs for more money."""
    sites = tuple(
        SiteFacts(name=f"s{p}", kind="simulated", processors=2, unit_price=p) for p in (1.0, 3.0)
    )
    for strategy in get_args(Named):
        assert check_strategy(strategy, 12, 10.0, sites, 1.2) >= 2


def check_plan(
    runtimes: list[float],
    limit: float | None,
    sites: tuple[SiteFacts, ...],
    hurry: float,
    kinds: tuple[bool, bool],
) -> int:
    """Take every offer of ``plan``; return how many there were."""
    tasks = tuple(
        Task(id=f"t{i}", runtime=seconds, wall_limit=None if limit is None else limit * seconds)
        for i, seconds in enumerate(runtimes)
    )
    work = sum(runtimes)
    timed, paid = kinds
    goal = Goal(
        deadline=hurry * work / sum(s.processors * s.speed for s in sites) if timed else None,
        budget=hurry * work * min((s.unit_price or 0.0) / s.speed for s in sites) if paid else None,
    )
    offers = plan(Campaign(name="c", workflow=Workflow(tasks), goal=goal), sites).counter_offers
    for offer in offers:
        taken = typed_back(offer)
        part = sorted(tasks, key=lambda task: task.runtime or 0.0)[: offer.tasks]
        campaign = Campaign(name="c", workflow=Workflow(tuple(part)), goal=taken)
        chosen = plan(campaign, sites).chosen
        if chosen is None and offer.kind == "share" and limit is None:
            # A known gap, told in the reference: the plans of the part may all be wider, and so
            # dearer to hold, than the plan that the offer was taken from.
            continue
        assert chosen is not None
        simulator = Simulator(campaign, SimulatedGrid(sites), ExecutionUncertainty())
        summary = run_outside_loop(lambda c=chosen, s=simulator: s.carry_out(SupplyPolicy(), c, {}))
        assert summary["succeeded"] == offer.tasks
        assert summary["deadline_met"]
        assert summary["cost"] <= taken.budget
    return len(offers)


def machines(*shapes: tuple[int, float]) -> tuple[SiteFacts, ...]:
    """Sites whose processors are leased until they are given back, as on a machine of one's own."""
    return tuple(
        SiteFacts(name=f"m{i}", kind="local", processors=n, unit_price=price)
        for i, (n, price) in enumerate(shapes)
    )


shapes = st.lists(st.tuples(st.integers(1, 4), prices), min_size=1, max_size=2)


@given(
    runtimes=st.lists(st.sampled_from([0.5, 2.0, 7.0, 60.0]), min_size=1, max_size=10),
    limit=st.sampled_from([None, 1.0, 3.0]),
    shapes=shapes,
    hurry=st.floats(0.2, 1.2),
    kinds=st.sampled_from([(True, True), (True, False), (False, True)]),
)
@settings(max_examples=12)
def test_what_a_plan_offers_holds(
    runtimes: list[float],
    limit: float | None,
    shapes: list[tuple[int, float]],
    hurry: float,
    kinds: tuple[bool, bool],
) -> None:
    """In simulated time under the guard of real runs, with and without wall limits."""
    check_plan(runtimes, limit, machines(*shapes), hurry, kinds)


@pytest.mark.long
@pytest.mark.timeout(600)
@given(
    runtimes=st.lists(st.sampled_from([0.5, 2.0, 7.0, 60.0]), min_size=1, max_size=25),
    limit=st.sampled_from([None, 1.0, 3.0, 40.0]),
    shapes=shapes,
    hurry=st.floats(0.2, 1.2),
    kinds=st.sampled_from([(True, True), (True, False), (False, True)]),
)
@settings(max_examples=examples(100))
def test_what_many_plans_offer_holds(
    runtimes: list[float],
    limit: float | None,
    shapes: list[tuple[int, float]],
    hurry: float,
    kinds: tuple[bool, bool],
) -> None:
    """The same with more tasks, often."""
    check_plan(runtimes, limit, machines(*shapes), hurry, kinds)


@pytest.mark.parametrize(
    ("jobs", "seconds", "budget"), [(2, 1.0, 0.0005), (2, 1.0, 0.0005556), (8, 2.0, 0.003)]
)
def test_an_offer_for_a_few_short_tasks_covers_what_is_held_ahead(
    jobs: int, seconds: float, budget: float
) -> None:
    """On two processors at 1 SU an hour; an amount without any margin was offered before."""
    sites = machines((2, 1 / 3600))
    proposal = plan(bag(jobs, seconds, Goal(budget=budget)), sites)

    (offer,) = [offer for offer in proposal.counter_offers if offer.kind == "budget"]
    assert not proposal.feasible
    assert offer.cost is not None
    assert offer.cost - offer.margin_cost == pytest.approx(jobs * seconds / 3600)
    summary = simulate(bag(jobs, seconds, typed_back(offer)), sites, processors=2).to_dict()
    assert summary["succeeded"] == jobs


def test_a_budget_that_would_be_stopped_short_of_the_end_is_out_of_reach() -> None:
    """On one processor for 8 s, half a second must be held for the end: 8.5 s at 1."""
    for budget, feasible in ((8.0, False), (8.49, False), (8.501, True)):
        assert plan(bag(4, 2.0, Goal(budget=budget)), machines((1, 1.0))).feasible is feasible


@pytest.mark.ci
def test_offers_on_a_batch_site_hold_what_pilots_may_charge_while_nobody_watches() -> None:
    """
    A pilot of a killed run may go on for 90 s, and is asked for for 60 s at the least.

    So no processor can be had for less than 150 s at a price of 1, whatever the task takes; the
    cheapest plan of the task alone costs 2.
    """
    site = SiteFacts(
        name="cluster",
        kind="slurm",
        processors=1,
        unit_price=1.0,
        fixed_price=0.0,
        batch=BatchScheduler(manager="slurm"),
        acquiring=AcquisitionPolicy(shortest=60.0),
        slots=(Slot(site="cluster", start=0.0, duration=3600.0, processors=1, unit_price=1.0),),
    )
    tasks = (Task(id="a", runtime=2.0),)

    def proposed(budget: float) -> Quote:
        goal = Goal(budget=budget)
        return plan(Campaign(name="c", workflow=Workflow(tasks), goal=goal), [site])

    assert proposed(149.0).chosen is None
    (offer,) = (o for o in proposed(149.0).counter_offers if o.kind == "budget")
    assert offer.cost is not None
    assert 150.0 <= offer.cost <= 170.0
    assert proposed(offer.cost).chosen is not None


def test_the_start_of_pilots_can_put_a_campaign_out_of_reach() -> None:
    """
    Two jobs of 10 s on one processor fit into 21 s, but not with a worker that starts for each.

    A strategy does one of them then, unless it is told to refuse.
    """
    cluster = BatchScheduler(manager="slurm")
    site = SiteFacts(name="c", kind="batch", processors=1, unit_price=1.0, batch=cluster)

    def quoted(deadline: float, rule: OutOfReach) -> Quote:
        policy = SupplyPolicy(kind="economy", strategy="cost", out_of_reach=rule)
        return quote_strategy(bag(2, 10.0, Goal(deadline=deadline)), [site], policy)

    fitted, refused = quoted(21.0, "fit"), quoted(21.0, "refuse")
    offers = {offer.kind: offer for offer in refused.counter_offers}

    assert fitted.feasible
    assert fitted.reason.endswith("but 1 of 2 are expected to be done")
    assert fitted.jobs == 1
    assert not fitted.counter_offers
    assert not refused.feasible
    assert refused.reason == fitted.reason
    assert set(offers) == {"time", "share"}
    assert offers["share"].tasks == 1
    # Twice 10 s and 5 s at most for each start, and margins.
    assert 22.5 < offers["time"].makespan <= 45.0
    # 90 s are held beyond each lease, which is 40 s long.
    assert 130.0 <= offers["time"].cost <= 300.0
    taken = quoted(offers["time"].makespan, "refuse")
    assert taken.feasible
    assert taken.jobs == 2


def test_an_offer_holds_the_wall_limits_of_tasks_that_run_side_by_side() -> None:
    """
    At a price of 2, tasks of 7 s and 2 s run at the same time, with limits of 21 s and 6 s.

    Both limits are held at once: 42 and 12. An offer of the larger one alone, 44, was stopped
    with no task done, when the idle lease had used up what was left.
    """
    goal = Goal(deadline=1.6)
    tasks = tuple(Task(id=f"t{s}", runtime=s, wall_limit=3 * s) for s in (0.5, 7.0, 2.0))
    campaign = Campaign(name="c", workflow=Workflow(tasks), goal=goal)

    offers = plan(campaign, machines((1, 2.0), (3, 2.0))).counter_offers

    (offer,) = (o for o in offers if o.kind == "time")
    assert offer.cost is not None
    assert offer.cost >= 54.0
