"""Pilots hold what the plan holds, and cost what it costs."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from tests.planning.valid_plans import Instance, instances
from tests.thoroughness import examples

from bursar.broker.pilot_plan import pilot_windows, plan_pilots
from bursar.model.allocation import Allocation
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.slot import Slot
from bursar.model.task import Task


def _cost(pilot: Allocation, last: float) -> float:
    """What it costs when it is given back at its end, or at a moment where it has none."""
    assert pilot.start is not None
    seconds = pilot.duration if math.isfinite(pilot.duration) else last - pilot.start
    return pilot.paid * seconds * (pilot.unit_price or 0.0) + (pilot.fixed_price or 0.0)


@given(instances())
@settings(max_examples=examples(150))
def test_pilots_cost_what_the_plan_costs_and_run_each_task_once(instance: Instance) -> None:
    """Slots of every kind, tasks across slots, tasks without duration."""
    plan, workflow, _ = instance
    pilots = plan_pilots(plan, workflow.tasks)
    by_task = {task: pilot for pilot in pilots if pilot.works for task in pilot.tasks}

    assert Counter(t for p in pilots for t in p.tasks) == Counter(p.task for p in plan.placements)
    assert len({p.name for p in pilots}) == len(pilots)
    for placement in plan.placements:
        pilot = by_task[placement.task]
        assert pilot.site == placement.site
        assert pilot.processors >= workflow.tasks[placement.task].processors
        assert pilot.start is not None
        assert pilot.start <= placement.start
        assert placement.finish <= pilot.latest_end + 1e-6 * (1 + len(pilot.tasks))
    leased = {p.slot.site: p.slot.end for p in plan.purchases if p.slot.leased}
    if len(leased) == sum(p.slot.leased for p in plan.purchases):  # one a site: we know its end
        paid = sum(_cost(p, leased.get(p.site, 0.0)) for p in pilots)
        assert paid == pytest.approx(plan.cost, rel=1e-9, abs=1e-5)


@given(instances())
@settings(max_examples=examples(150))
def test_windows_hold_what_pilots_hold(instance: Instance) -> None:
    """At any moment, at every site, what is bought with an end; whole slots among it."""
    plan, workflow, sites = instance
    pilots = [p for p in plan_pilots(plan, workflow.tasks) if math.isfinite(p.duration)]
    for site in sites:
        here = [p for p in pilots if p.site == site.name]
        kept = pilot_windows(here)
        moments = sorted({m for p in here for m in (p.start or 0.0, p.latest_end)})
        for begin, end in itertools.pairwise(moments):
            middle = (begin + end) / 2
            if end - begin < 1e-9:
                continue
            assert sum(n for s, d, n in kept if s <= middle < s + d) == sum(
                p.paid for p in here if (p.start or 0.0) <= middle < p.latest_end
            )
        assert all(duration > 0 for _, duration, _ in kept)


def _plan(slot: Slot, *places: tuple[int, float, float, tuple[int, ...]], part: float) -> Plan:
    return Plan(
        purchases=(Purchase(slot=slot, part=part),),
        placements=tuple(Placement(t, "s", a, b, held) for t, a, b, held in places),
        makespan=None,
        cost=None,
        currency="SU",
        utilisation=None,
        algorithm="by hand",
    )


def test_tasks_that_follow_at_once_share_a_pilot_of_a_divisible_slot() -> None:
    """Its fixed price is paid once; a gap begins another pilot."""
    slot = Slot(site="s", start=0.0, duration=50.0, processors=2, unit_price=1.0, fixed_price=7.0)
    places = [(0, 0.0, 5.0, (0,)), (1, 5.0, 9.0, (0,)), (2, 10.0, 12.0, (0,)), (3, 0.0, 5.0, (1,))]
    plan = _plan(slot, *places, part=16.0)

    pilots = plan_pilots(plan, [Task(id=str(i)) for i in range(4)], before=10)

    assert [(p.name, p.tasks, p.start, p.duration, p.fixed_price) for p in pilots] == [
        ("lease-11", (0, 1), 0.0, 9.0, 7.0),
        ("lease-12", (3,), 0.0, 5.0, 0.0),
        ("lease-13", (2,), 10.0, 2.0, 0.0),
    ]
    assert pilot_windows(pilots) == [(0.0, 5.0, 2), (5.0, 4.0, 1), (10.0, 2.0, 1)]


def test_a_task_across_leased_slots_has_their_processors_and_so_do_tasks_beside_it() -> None:
    """
    A slot that a wide task needs as well as another one is paid and held, and runs no task.

    Its narrow tasks run beside the wide one, on processors that are paid already; a task on a slot
    that no wide task needs runs on that slot's own pilot.
    """
    slots = [
        Slot(site="s", start=0.0, duration=50.0, processors=n, unit_price=1.0, leased=True)
        for n in (2, 2, 1)
    ]
    places = [
        Placement(0, "s", 0.0, 5.0, (0, 1, 2, 3)),
        Placement(1, "s", 5.0, 9.0, (0,)),
        Placement(2, "s", 0.0, 9.0, (4,)),
    ]
    plan = replace(
        _plan(slots[0], part=100.0),
        purchases=tuple(Purchase(slot=slot, part=50.0 * slot.processors) for slot in slots),
        placements=tuple(places),
    )
    tasks = [Task(id="wide", processors=4), Task(id="beside"), Task(id="alone")]

    pilots = plan_pilots(plan, tasks)

    assert sorted((p.processors, p.paid, p.works, p.tasks) for p in pilots) == [
        (1, 0, True, (1,)),
        (1, 1, True, (2,)),
        (2, 2, False, ()),
        (2, 2, False, ()),
        (4, 0, True, (0,)),
    ]


def test_a_pilot_that_begins_when_there_is_work_for_it_ends_at_no_known_moment() -> None:
    """No window can be held for it, and nothing that begins later is kept waiting for its end."""
    pilot = Allocation(
        name="lease-1",
        site="s",
        processors=1,
        start=None,
        duration=5.0,
        unit_price=1.0,
        fixed_price=None,
    )

    assert pilot.latest_end == math.inf
    assert pilot_windows([pilot]) == []


def test_processors_that_were_not_bought_are_refused() -> None:
    slot = Slot(site="s", start=0.0, duration=50.0, processors=1, unit_price=1.0)

    with pytest.raises(ValueError, match="task 0 holds processors that were not bought"):
        plan_pilots(_plan(slot, (0, 0.0, 5.0, (1,)), part=5.0), [Task(id="a")])
