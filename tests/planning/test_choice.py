"""The goal picks a plan of the curve, or is told what could be had instead."""

import pytest

from bursar.model.campaign import Goal, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.planning.front import ParetoFront
from bursar.planning.plan_choice import best_effort, choose_plan
from bursar.planning.trade_off_solver import trade_off

HERE = SiteFacts(name="here", processors=4, unit_price=1.0, fixed_price=1.0)


def _bag(*runtimes: float | None) -> Workflow:
    return Workflow(tuple(Task(id=f"t{i}", runtime=r) for i, r in enumerate(runtimes)))


@pytest.fixture(name="front")
def _front() -> ParetoFront:
    # Three tasks of 4 s and one of 6 s: 18 processor-seconds.
    return trade_off(_bag(4, 4, 4, 6), [HERE])


def test_the_curve_holds_what_no_other_purchase_beats(front: ParetoFront) -> None:
    found = [(o.processors, o.makespan, o.cost) for o in front.options]

    assert found == [(4, 6.0, 25.0), (2, 10.0, 21.0), (1, 18.0, 19.0)]


@pytest.mark.parametrize(
    ("goal", "processors", "reason"),
    [
        (Goal(), 4, "the fastest"),
        (Goal(deadline=10), 2, "the cheapest plan that meets the deadline"),
        (Goal(deadline=9.9), 4, "the cheapest plan that meets the deadline"),
        (Goal(budget=24), 2, "the fastest plan within the budget"),
        (Goal(deadline=20, budget=30), 1, "the deadline and the budget"),
        (Goal(trade_off=0), 4, "weight 0"),
        (Goal(trade_off=1), 1, "weight 1"),
        (Goal(trade_off=0.5, budget=20), 1, "weight 0.5"),
    ],
)
def test_a_goal_picks_a_plan(front: ParetoFront, goal: Goal, processors: int, reason: str) -> None:
    choice = choose_plan(front, goal)

    assert choice.option is not None
    assert choice.option.processors == processors
    assert choice.plan is not None
    assert len(choice.plan.placements) == 4
    assert reason in choice.reason
    assert not choice.counter_offers


def test_a_goal_out_of_reach_gets_counter_offers(front: ParetoFront) -> None:
    choice = choose_plan(front, Goal(deadline=8, budget=21))

    offers = {offer.kind: offer for offer in choice.counter_offers}
    assert choice.infeasible
    assert choice.plan is None
    assert (offers["time"].makespan, offers["time"].cost) == (10.0, 21.0)
    assert (offers["budget"].makespan, offers["budget"].cost) == (6.0, 25.0)
    assert offers["share"].tasks == 3
    assert offers["share"].makespan <= 8
    assert offers["share"].cost is not None
    assert offers["share"].cost <= 21


def test_a_budget_below_every_price_leaves_no_share(front: ParetoFront) -> None:
    choice = choose_plan(front, Goal(budget=0.5))

    assert choice.infeasible
    assert "within the budget" in choice.reason
    assert [(o.kind, o.cost) for o in choice.counter_offers] == [("budget", 19.0)]
    assert best_effort(front, Goal(budget=0.5)).processors == 1


def test_best_effort_keeps_to_the_budget(front: ParetoFront) -> None:
    assert best_effort(front, Goal(deadline=1, budget=22)).processors == 2


def test_what_is_unknown_is_said_and_rules_nothing_out() -> None:
    front = trade_off(_bag(4, None), [HERE])

    choice = choose_plan(front, Goal(deadline=1, budget=1))

    assert choice.option is not None
    assert choice.option.makespan is None
    assert choice.option.cost is None
    assert "runtimes are unknown, and so is whether the deadline will be met" in choice.reason
    assert "the cost is unknown, and so is whether the budget suffices" in choice.reason
    assert "meets" not in choice.reason
    assert choice.plan is not None
    assert choice.plan.placements == ()


def test_an_unknown_price_leaves_the_makespan_known() -> None:
    front = trade_off(_bag(4, 4), [SiteFacts(name="here", processors=2)])

    choice = choose_plan(front, Goal(deadline=5))

    assert choice.option is not None
    assert choice.option.makespan == 4.0
    assert choice.option.cost is None
