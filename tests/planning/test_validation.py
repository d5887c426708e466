"""Valid plans pass the validator; each broken rule is told, and nothing else."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.valid_plans import Instance, instances, plan_of, slot, totalled
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.network import Link
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import File, Task
from bursar.planning.validation import violations

WHOLE = slot("a", 0, 100, 3)
ALSO = slot("a", 40, 60, 2)
GROWS = slot("a", 100, 10, 1, extensible=True)
PART = slot("b", 10, 90, 4, divisible=True)
LEASE = slot("b", 100, 50, 4, divisible=True, leased=True)

SITES = (
    SiteFacts(
        name="a",
        processors=5,
        speed=2.0,
        memory=1000,
        slots=(WHOLE, ALSO, GROWS),
        links={"b": Link(5.0, 10.0)},
    ),
    SiteFacts(name="b", processors=4, slots=(PART, LEASE)),
)

# On site a everything takes half of its runtime, and one second more:
#   first   3 processors,  39 + 1 s:   0 to  40 in WHOLE
#   across  4 processors,  49 + 1 s:  40 to  90 in WHOLE (2) and ALSO (2)
#   beside  1 processor,    9 + 1 s:  40 to  50 in WHOLE
#   longer  1 processor,   19 + 1 s: 100 to 120 in GROWS, 10 s past its end
# Site b has first's 100 bytes at 40 + 5 + 100 / 10 = 55 s:
#   parted  2 processors,  29 + 1 s:  55 to  85 in PART
#   apart   3 processors,   4 + 1 s:  90 to  95 in PART
#   leased  2 processors,  19 + 1 s: 105 to 125 in LEASE
#   follow  1 processor,    9 + 1 s: 105 to 115 in LEASE
WORKFLOW = Workflow(
    (
        Task(id="first", runtime=78, processors=3, outputs=(File("f", 100), File("log", 999))),
        Task(id="across", runtime=98, processors=4, after=("first",)),
        Task(id="beside", runtime=18, after=("first",), memory=500),
        Task(id="longer", runtime=38, after=("across",)),
        Task(id="parted", runtime=29, processors=2, inputs=(File("f"),)),
        Task(id="apart", runtime=4, processors=3, after=("parted",)),
        Task(id="leased", runtime=19, processors=2, after=("apart",)),
        Task(id="follow", runtime=9, after=("apart",)),
    )
)
FIRST, ACROSS, BESIDE, LONGER, PARTED, APART, LEASED, FOLLOW = range(8)

PURCHASES = (
    Purchase(slot=WHOLE),  # processors 0 to 2 of a
    Purchase(slot=replace(PART, start=55, duration=40, processors=3), part=75.0),  # 0 to 2 of b
    Purchase(slot=ALSO),  # 3 and 4 of a
    Purchase(slot=replace(LEASE, duration=25, processors=3)),  # 3 to 5 of b
    Purchase(slot=replace(GROWS, duration=20)),  # 5 of a
)
IN_WHOLE, IN_PART, IN_ALSO, IN_LEASE, IN_GROWS = range(5)

PLACEMENTS = (
    Placement(FIRST, "a", 0, 40, (0, 1, 2)),
    Placement(ACROSS, "a", 40, 90, (0, 2, 3, 4)),
    Placement(BESIDE, "a", 40, 50, (1,)),
    Placement(LONGER, "a", 100, 120, (5,)),
    Placement(PARTED, "b", 55, 85, (0, 2)),
    Placement(APART, "b", 90, 95, (0, 1, 2)),
    Placement(LEASED, "b", 105, 125, (3, 5)),
    Placement(FOLLOW, "b", 105, 115, (4,)),
)

VALID = plan_of(PURCHASES, PLACEMENTS, WORKFLOW)


def changed(task: int, **how: object) -> Plan:
    """The valid plan with one task placed otherwise, the totals right."""
    placements = [replace(p, **how) if p.task == task else p for p in VALID.placements]  # type: ignore[arg-type]
    return totalled(replace(VALID, placements=tuple(placements)), WORKFLOW)


def moved(task: int, by: float) -> Plan:
    """The valid plan with one task so much later."""
    place = next(p for p in VALID.placements if p.task == task)
    return changed(task, start=place.start + by, finish=place.finish + by)


def bought(number: int, purchase: Purchase | None) -> Plan:
    """The valid plan with another purchase, or one less, the totals right."""
    purchases = list(VALID.purchases)
    purchases[number : number + 1] = [] if purchase is None else [purchase]
    return totalled(replace(VALID, purchases=tuple(purchases)), WORKFLOW)


def cut(number: int, **how: object) -> Plan:
    """The valid plan with a purchase of another shape, the totals right."""
    purchase = VALID.purchases[number]
    return bought(number, replace(purchase, slot=replace(purchase.slot, **how)))  # type: ignore[arg-type]


def found(plan: Plan, sites: Sequence[SiteFacts] = SITES) -> list[str]:
    """What is wrong with it."""
    return violations(plan, WORKFLOW, sites, overhead=1.0)


def test_a_valid_plan_passes() -> None:
    """Every kind of slot, a task across two slots, a transfer, and a use past a slot's end."""
    assert found(VALID) == []


def test_the_totals_of_the_valid_plan_are_these() -> None:
    """So that they do not agree by a common mistake."""
    # Paid: 3 x 100 + 75 + 2 x 60 + 3 x 25 + 1 x 20 = 590 at 2, and 5 for each of the five.
    assert VALID.cost == 2 * 590 + 25
    assert VALID.makespan == 125
    # Held: 120 + 200 + 10 + 20 + 60 + 15 + 40 + 10 = 475.
    assert VALID.utilisation == pytest.approx(475 / 590)


BROKEN: dict[str, tuple[Plan, list[str]]] = {
    "a task left out": (
        replace(VALID, placements=tuple(p for p in VALID.placements if p.task != BESIDE)),
        ['Task "beside" is not placed', "utilisation is said"],
    ),
    "a task twice": (
        replace(VALID, placements=(*VALID.placements, PLACEMENTS[BESIDE])),
        ['Task "beside" is placed 2 times'],
    ),
    "no such task": (
        replace(VALID, placements=(*VALID.placements, Placement(99, "a", 50, 60, (1,)))),
        ["task number 99, there are 8"],
    ),
    "the task after the last": (
        replace(VALID, placements=(*VALID.placements, Placement(8, "a", 50, 60, (1,)))),
        ["task number 8, there are 8"],
    ),
    "a task before the campaign": (
        totalled(
            replace(
                VALID, placements=(*PLACEMENTS[1:], replace(PLACEMENTS[0], start=-2e-9, finish=40))
            ),
            WORKFLOW,
        ),
        ['"first" starts at -2e-09 s, before', "outside its time"],
    ),
    "a negative task": (
        replace(VALID, placements=(*VALID.placements, Placement(-1, "b", 130, 140, (1,)))),
        ["task number -1"],
    ),
    "no such site": (
        replace(
            VALID,
            placements=tuple(
                replace(p, site="c") if p.task == BESIDE else p for p in VALID.placements
            ),
        ),
        ['Task "beside" is placed on site "c"', "utilisation is said"],
    ),
    "no time": (
        replace(
            VALID,
            placements=tuple(
                replace(p, start=math.nan) if p.task == BESIDE else p for p in VALID.placements
            ),
        ),
        ["times that are not finite", "utilisation is said"],
    ),
    "too long": (changed(BESIDE, finish=51.0), ['"beside" takes 11 s .*needs 10 s']),
    "too short": (changed(BESIDE, start=41.0), ['"beside" takes 9 s .*needs 10 s']),
    "before its parent": (
        # Processor 1 is then held by two, too.
        moved(BESIDE, -1),
        [
            '"beside" starts .* 39 s, .* ends on site "a" at 40 s',
            'both hold processor 1 of site "a"',
        ],
    ),
    "before its files": (
        moved(PARTED, -0.5),
        ['"parted" starts .*54.5 s.* is there at 55 s', "outside"],
    ),
    "too few processors": (
        changed(BESIDE, processors=()),
        ['"beside" holds 0 processors, it needs 1'],
    ),
    "too many processors": (
        changed(FOLLOW, start=125, finish=135, processors=(3, 4)),
        ['"follow" holds 2', "outside its time", "leased until", "leases 3 .* 2 are in use"],
    ),
    "a processor twice": (
        changed(PARTED, processors=(2, 2)),
        ["numbers do not ascend", "pays 75 processor-seconds, tasks use 45"],
    ),
    "not ascending": (changed(PARTED, processors=(2, 0)), ["2, 0; their numbers do not ascend"]),
    "one processor for two": (
        changed(BESIDE, processors=(2,)),
        ['"beside" and "across" both hold processor 2 of site "a" at 40 s'],
    ),
    "processors for two": (
        changed(FOLLOW, processors=(5,)),
        ['"follow" and "leased" both hold processor 5 of site "b"'],
    ),
    "not bought": (
        changed(BESIDE, processors=(6,)),
        ['holds processor 6 of site "a", where 6 are'],
    ),
    "a negative processor": (changed(BESIDE, processors=(-1,)), ["holds processor -1"]),
    "past the end of what is bought": (
        moved(APART, 1),
        ['"apart" runs from 91 s to 96 s on 3 .*purchase 1 .*outside'],
    ),
    "before what is bought": (
        cut(IN_PART, start=56, duration=39),
        ['"parted" runs .* on 2 processors of purchase 1 .*outside'],
    ),
    "one processor of them too early": (
        changed(ACROSS, start=39.0, finish=89.0),
        [
            '"across" runs from 39 s to 89 s on 2 processors of purchase 2 .*outside',
            'what it needs of task "first"',
            "both hold processors 0, 2",
        ],
    ),
    "of no site": (
        bought(IN_GROWS, Purchase(slot=replace(GROWS, site="c", duration=20))),
        ['Purchase 4 is of site "c"', 'processor 5 of site "a", where 5 are bought'],
    ),
    "not on offer": (
        totalled(
            replace(VALID, purchases=(*PURCHASES, Purchase(slot=slot("a", 300, 10, 1)))), WORKFLOW
        ),
        ["Purchase 5 .*300 s to 310 s.* starts at 300", "Purchase 5 .* ends at 310", "is not ext"],
    ),
    "twice": (
        totalled(replace(VALID, purchases=(*PURCHASES, PURCHASES[IN_ALSO])), WORKFLOW),
        ["Purchase 5 .* is bought more often than it is offered"],
    ),
    "whole, begun later": (
        cut(IN_ALSO, start=41, duration=59),
        ["Purchase 2 .* starts at 41", "outs"],
    ),
    "whole, ended sooner": (cut(IN_ALSO, duration=55), ["ends at 95 s, .* paid until 100 s"]),
    "whole, past its end": (cut(IN_WHOLE, duration=101), ["cannot be used after 100 s"]),
    "sold as not to be extended": (
        cut(IN_GROWS, extensible=False),
        ["is not extensible, the slot is ext"],
    ),
    "whole, in part": (
        bought(IN_ALSO, Purchase(slot=ALSO, part=100.0)),
        ["pays 100 processor-seconds, the slot is paid whole"],
    ),
    "extended too little": (
        cut(IN_GROWS, duration=15),
        ["ends at 115 s, the slot is paid until 120 s", '"longer" runs .*outside'],
    ),
    "extended too far": (cut(IN_GROWS, duration=25), ["need only be paid until 120 s"]),
    "another price": (cut(IN_ALSO, unit_price=1.0), ["costs 1 per processor-second, .* costs 2"]),
    "a price unknown": (cut(IN_ALSO, unit_price=None), ["costs unknown per processor-second"]),
    "another fixed price": (cut(IN_PART, fixed_price=0.0), ["costs 0 per slot, the slot costs 5"]),
    "sold as to be extended": (
        cut(IN_PART, extensible=True),
        ["is extensible, the slot is not extensible"],
    ),
    "part, paid less": (
        bought(IN_PART, replace(PURCHASES[IN_PART], part=74.0)),
        ["Purchase 1 .* pays 74 processor-seconds, tasks use 75"],
    ),
    "part, paid whole": (
        bought(IN_PART, replace(PURCHASES[IN_PART], part=None)),
        ["Purchase 1 .* pays 120 processor-seconds, tasks use 75"],
    ),
    "part, too soon": (
        cut(IN_PART, start=9, duration=86),
        ["starts at 9 s, the slot starts at 10"],
    ),
    "part, too late": (cut(IN_PART, duration=46), ["cannot be used after 100 s"]),
    "leased, later": (cut(IN_LEASE, start=101, duration=24), ["starts at 101 s, .* starts at 100"]),
    "leased, too long": (cut(IN_LEASE, duration=26), ["leased until 126 s, its last use .* 125"]),
    "leased, too short": (cut(IN_LEASE, duration=24), ["leased until 124 s", '"leased" .*outside']),
    "leased, too wide": (cut(IN_LEASE, processors=4), ["leases 4 processors, 3 are in use"]),
    "leased, in part": (
        bought(IN_LEASE, replace(PURCHASES[IN_LEASE], part=50.0)),
        ["the lease is paid whole"],
    ),
    "another makespan": (
        replace(VALID, makespan=124.0),
        ["makespan is said to be 124 s.* at 125 s"],
    ),
    "no makespan": (replace(VALID, makespan=None), ["makespan is said to be unknown"]),
    "another cost": (replace(VALID, cost=1204.0), ["cost is said to be 1204, the .* cost 1205"]),
    "another utilisation": (
        replace(VALID, utilisation=1.0),
        ["utilisation is said to be 1, .* fill 475 of 590 processor-seconds, 0.80508"],
    ),
    "another currency": (
        replace(VALID, currency="EUR"),
        ['counts in EUR, site "a" in SU', 'counts in EUR, site "b" in SU'],
    ),
}


def expect(sentences: list[str], patterns: list[str]) -> None:
    """Each sentence is of one of the kinds, and each kind is told once."""
    assert len(sentences) == len(patterns), sentences
    for pattern in patterns:
        assert sum(bool(re.search(pattern, s)) for s in sentences) == 1, (pattern, sentences)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_rule_is_told_and_no_other(how: str) -> None:
    """One sentence for the rule, with the figures; further ones only for what it drags along."""
    plan, patterns = BROKEN[how]

    expect(found(plan), patterns)


def test_many_processors_are_told_by_the_first_four() -> None:
    """Both where they are held twice and where they were never bought."""
    missing = found(changed(ACROSS, processors=(0, 2, 3, 4, 6, 7, 8, 9, 10, 11)))
    assert any("holds processors 6, 7, 8, 9 and 2 more of site" in s for s in missing)
    four = found(changed(ACROSS, processors=(0, 6, 7, 8, 9)))
    assert any("holds processors 6, 7, 8, 9 of site" in s for s in four)


def test_each_parent_is_looked_at_though_another_is_not_placed() -> None:
    """The first parent is missing, the second ends too late."""
    workflow = Workflow(
        (Task(id="gone", runtime=5.0), Task(id="late", runtime=5.0),
         Task(id="child", runtime=5.0, after=("gone", "late")))
    )  # fmt: skip
    whole = slot("a", 0, 10, 2)
    plan = plan_of(
        [Purchase(slot=whole)],
        [Placement(1, "a", 0, 5, (0,)), Placement(2, "a", 4, 9, (1,))],
        workflow,
    )
    expect(
        violations(plan, workflow, [SiteFacts(name="a", processors=2, slots=(whole,))]),
        ['"gone" is not placed', '"child" starts .* at 4 s, .* "late", .* is there at 5 s'],
    )


def test_times_that_floats_blur_are_the_same() -> None:
    """A billionth of a second below one second, a billionth of the time above."""
    workflow = Workflow((Task(id="t", runtime=5.0),))
    for start, off, wrong in (
        (0.0, 1e-9, 0),
        (0.0, 1.1e-9, 1),
        (0.5, -0.9e-9, 0),
        (1e6, 0.9e-3, 0),
        (1e6, 1.1e-3, 1),
        (1e6, -0.9e-3, 0),
        (1e6, -1.1e-3, 1),
    ):
        whole = slot("a", start, 10, 1, extensible=True)
        later = replace(whole, start=start + off, duration=10 - off)
        plan = plan_of(
            [Purchase(slot=later)], [Placement(0, "a", start + 2, start + 7, (0,))], workflow
        )
        sites = [SiteFacts(name="a", processors=1, slots=(whole,))]

        told = violations(plan, workflow, sites)

        assert len(told) == wrong, (start, off, told)
        twice = violations(replace(plan, purchases=plan.purchases * 2), workflow, sites)
        assert sum("more often" in s for s in twice) == 1 - wrong, (start, off, twice)


def test_wider_than_the_slot_is_told() -> None:
    """A divisible slot has no more processors than it has."""
    narrow = replace(PART, processors=2)
    sites = (SITES[0], replace(SITES[1], slots=(narrow, LEASE)))

    expect(found(VALID, sites), ["Purchase 1 .* has 3 processors, the slot has 2"])


def test_a_slot_sold_whole_is_bought_with_all_its_processors() -> None:
    """The idle one too."""
    sites = (replace(SITES[0], slots=(WHOLE, replace(ALSO, processors=3), GROWS)), SITES[1])

    expect(found(VALID, sites), ["has 2 processors, the slot is sold with all 3"])


def test_memory_is_told() -> None:
    """A site whose memory is known must have what the task needs."""
    sites = (replace(SITES[0], memory=499), SITES[1])

    expect(found(VALID, sites), ['"beside" needs 500 bytes .* "a" has 499'])


def test_a_slower_link_is_told() -> None:
    """100 bytes at 5 per second are there 5 s later than at 10: at 40 + 5 + 20 s."""
    sites = (replace(SITES[0], links={"b": Link(5.0, 5.0)}), SITES[1])

    expect(found(VALID, sites), ['"parted" .*at 55 s.*at 65 s'])


def test_a_task_starts_no_earlier_than_the_campaign() -> None:
    """Though the slot began before."""
    early = slot("a", -10, 20, 1)
    workflow = Workflow((Task(id="t", runtime=5.0),))
    sites = [SiteFacts(name="a", processors=1, slots=(early,))]
    plan = plan_of([Purchase(slot=early)], [Placement(0, "a", -5, 0, (0,))], workflow)

    assert violations(plan, workflow, sites) == ['Task "t" starts at -5 s, before the campaign.']
    later = plan_of([Purchase(slot=early)], [Placement(0, "a", 0, 5, (0,))], workflow)
    assert violations(later, workflow, sites) == []


def test_equal_slots_are_told_apart() -> None:
    """Two of three equal slots can be bought, and four cannot."""
    offers = tuple(slot("a", 0, 10, 1) for _ in range(3))
    workflow = Workflow((Task(id="t", runtime=5.0),))
    sites = [SiteFacts(name="a", processors=3, slots=offers)]
    for count, wrong in ((1, 0), (3, 0), (4, 1), (5, 2)):
        purchases = [Purchase(slot=offers[0])] * count
        plan = plan_of(purchases, [Placement(0, "a", 0, 5, (0,))], workflow)

        sentences = violations(plan, workflow, sites)

        expect(sentences, [f"Purchase {3 + i} .* more often" for i in range(wrong)])


def test_purchases_are_matched_to_offers_as_a_whole() -> None:
    """The first could be of either offer, the second of one only; the first gives way."""
    wide, narrow = (slot("a", 0, 10, n, divisible=True) for n in (2, 1))
    workflow = Workflow((Task(id="t", runtime=5.0), Task(id="u", runtime=5.0, processors=2)))
    sites = [SiteFacts(name="a", processors=3, slots=(wide, narrow))]
    purchases = [Purchase(slot=narrow, part=5.0), Purchase(slot=wide, part=10.0)]
    placements = [Placement(0, "a", 0, 5, (0,)), Placement(1, "a", 0, 5, (1, 2))]

    assert violations(plan_of(purchases, placements, workflow), workflow, sites) == []


def lease_with_idle(processors: int, until: float, held: tuple[int, ...]) -> list[str]:
    """What is wrong with a lease for one task of 10 s, then 3 processors for no time at 12 s."""
    workflow = Workflow(
        (Task(id="t", runtime=10.0), Task(id="end", runtime=0.0, processors=3, after=("t",)))
    )
    sites = [SiteFacts(name="a", processors=3, unit_price=1.0)]
    lease = replace(sites[0].offers[0], duration=until, processors=processors)
    placements = [Placement(0, "a", 0, 10, (0,)), Placement(1, "a", 12, 12, held)]
    return violations(plan_of([Purchase(slot=lease)], placements, workflow), workflow, sites)


def test_a_task_without_duration_may_hold_its_processors_or_none() -> None:
    """What it holds must be leased, whoever else holds it; what it does not hold, need not."""
    assert lease_with_idle(3, 12.0, (0, 1, 2)) == []
    assert lease_with_idle(3, 12.0, ()) == []
    assert lease_with_idle(1, 10.0, ()) == []
    expect(lease_with_idle(3, 12.0, (0, 1)), ['"end" holds 2 processors'])
    expect(lease_with_idle(1, 12.0, (0, 1, 2)), ["processors 1, 2 of site"])
    expect(lease_with_idle(3, 11.0, (0, 1, 2)), ["outside its time", "leased until 11 s"])


def test_tasks_that_take_no_time_can_be_planned() -> None:
    """A slot has a length, so something is leased all the same; there is no utilisation to tell."""
    workflow = Workflow((Task(id="t", runtime=0.0, processors=2),))
    sites = [SiteFacts(name="a", processors=3, unit_price=1.0)]
    lease = replace(sites[0].offers[0], duration=1e-6, processors=2)
    plan = plan_of([Purchase(slot=lease)], [Placement(0, "a", 0, 0, (0, 1))], workflow)

    assert violations(plan, workflow, sites) == []
    part = slot("a", 0, 10, 1, divisible=True)
    free = plan_of([Purchase(slot=part, part=0.0)], [Placement(0, "a", 0, 0, ())], workflow)
    assert violations(free, workflow, [replace(sites[0], slots=(part,))]) == []


def test_an_unknown_price_makes_an_unknown_cost() -> None:
    """And a plan must not name one."""
    workflow = Workflow((Task(id="t", runtime=10.0),))
    sites = [SiteFacts(name="a", processors=1)]
    lease = replace(sites[0].offers[0], duration=10.0)
    plan = plan_of([Purchase(slot=lease)], [Placement(0, "a", 0, 10, (0,))], workflow)

    assert plan.cost is None
    assert violations(plan, workflow, sites) == []
    expect(
        violations(replace(plan, cost=0.0), workflow, sites),
        ["The cost is said to be 0, the purchases cost unknown"],
    )


def test_a_plan_with_an_unknown_runtime_names_only_what_could_be_bought() -> None:
    """No places, no totals; as many processors as there are, at their price."""
    workflow = Workflow((Task(id="t", runtime=10.0), Task(id="u")))
    sites = [SiteFacts(name="a", processors=4, unit_price=1.0)]
    lease = replace(sites[0].offers[0], processors=2)
    plan = Plan(
        purchases=(Purchase(slot=lease),),
        placements=(),
        makespan=None,
        cost=None,
        currency="SU",
        utilisation=None,
        algorithm="none",
    )

    assert violations(plan, workflow, sites) == []
    for wrong, pattern in (
        (replace(plan, makespan=10.0), 'makespan is said to be 10 although .* "u" is unknown'),
        (replace(plan, placements=(Placement(0, "a", 0, 10, (0,)),)), "Tasks are placed"),
        (replace(plan, purchases=(Purchase(slot=replace(lease, processors=5)),)), "slot has 4"),
        (replace(plan, purchases=(Purchase(slot=replace(lease, start=1.0)),)), "no slot of the"),
        (replace(plan, purchases=(Purchase(slot=replace(lease, site="z")),)), 'site "z"'),
        (replace(plan, purchases=(Purchase(slot=replace(lease, unit_price=2.0)),)), "costs 2 per"),
        (replace(plan, currency="EUR"), "counts in EUR"),
    ):
        expect(violations(wrong, workflow, sites), [pattern])


def test_each_purchase_of_an_outline_is_looked_at() -> None:
    """One of no site keeps none from being told; of slots that start together the widest counts."""
    workflow = Workflow((Task(id="u"),))
    offers = (slot("a", 0, 10, 2), slot("a", 0, 10, 4), slot("a", 0, 10, 3, unit_price=1.0))
    sites = [SiteFacts(name="a", processors=9, slots=offers)]

    def told(*slots: Slot) -> list[str]:
        plan = Plan(
            purchases=tuple(Purchase(slot=each) for each in slots),
            placements=(),
            makespan=None,
            cost=None,
            currency="SU",
            utilisation=None,
            algorithm="none",
        )
        return violations(plan, workflow, sites)

    assert told(*offers) == []
    expect(told(slot("z", 0, 10, 1), slot("a", 0, 10, 5)), ['site "z"', "has 5 .*, the slot has 4"])
    # At three processors either price may be paid, at four only that of the widest.
    assert told(slot("a", 0, 10, 3, unit_price=1.0)) == []
    expect(told(slot("a", 0, 10, 4, unit_price=1.0)), ["costs 1 per processor-second"])


@given(instances())
@settings(max_examples=examples(200))
def test_random_valid_plans_pass(instance: Instance) -> None:
    """Slots of every kind at odd times, tasks across slots, transfers, tasks without duration."""
    assert violations(*instance) == []


Mutation = Callable[[Plan, Placement], Plan]


def _instead(plan: Plan, place: Placement, **how: object) -> Plan:
    placements = [replace(p, **how) if p.task == place.task else p for p in plan.placements]  # type: ignore[arg-type]
    return replace(plan, placements=tuple(placements))


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "left out": (
        lambda plan, place: replace(
            plan, placements=tuple(p for p in plan.placements if p != place)
        ),
        'Task "{id}" is not placed',
    ),
    "longer": (
        lambda plan, place: _instead(plan, place, finish=place.finish + 0.01),
        'Task "{id}" takes ',
    ),
    "elsewhere": (
        lambda plan, place: _instead(plan, place, site="nowhere"),
        'Task "{id}" is placed on site "nowhere"',
    ),
    "wider": (
        lambda plan, place: _instead(plan, place, processors=(*place.processors, 77)),
        'Task "{id}" holds processor 77 of',
    ),
    "much later": (
        # In slots sold by use, only the time of their purchase tells.
        lambda plan, place: _instead(
            plan, place, start=place.start + 1e6, finish=place.finish + 1e6
        ),
        'Task "{id}" runs from ',
    ),
}


@given(instances(), st.sampled_from(sorted(MUTATIONS)), st.data())
@settings(max_examples=examples(300))
def test_a_task_placed_wrongly_is_told(instance: Instance, name: str, data: st.DataObject) -> None:
    """In any plan, of any task, the sentence names it."""
    plan, workflow, sites = instance
    holding = [p for p in plan.placements if p.processors]
    if not holding:
        return
    place = data.draw(st.sampled_from(holding))
    mutate, expected = MUTATIONS[name]

    sentences = violations(mutate(plan, place), workflow, sites)

    wanted = expected.format(id=workflow.tasks[place.task].id)
    assert any(s.startswith(wanted) for s in sentences), sentences


@given(instances(), st.data())
@settings(max_examples=examples(200))
def test_a_purchase_of_another_shape_is_told(instance: Instance, data: st.DataObject) -> None:
    """Paid a little too long, too wide or too cheaply, with totals that follow."""
    plan, workflow, sites = instance
    if not plan.purchases:
        return
    i = data.draw(st.integers(0, len(plan.purchases) - 1))
    purchase = plan.purchases[i]
    slot = purchase.slot
    wrong = [
        replace(purchase, slot=replace(slot, unit_price=1.0)),
        replace(purchase, slot=replace(slot, fixed_price=6.0)),
        replace(purchase, part=purchase.processor_seconds + 0.5),
        replace(purchase, slot=replace(slot, processors=slot.processors + 3)),
    ]
    idle = any(p.site == slot.site and p.finish <= p.start for p in plan.placements)
    if not slot.divisible or (slot.leased and not idle):  # an idle task may need it longer
        wrong.append(replace(purchase, slot=replace(slot, duration=slot.duration + 0.5)))
    purchases = list(plan.purchases)
    purchases[i] = data.draw(st.sampled_from(wrong))
    broken = totalled(replace(plan, purchases=tuple(purchases)), workflow)

    assert any(s.startswith(f"Purchase {i} ") for s in violations(broken, workflow, sites))


@given(instances(), st.data())
@settings(max_examples=examples(100))
def test_totals_that_are_a_little_off_are_told(instance: Instance, data: st.DataObject) -> None:
    """One sentence, whichever it is; what floats lose is let pass."""
    plan, workflow, sites = instance
    what = data.draw(st.sampled_from(["makespan", "cost", "utilisation"]))
    value = getattr(plan, what)
    if not value:
        return
    near = replace(plan, **{what: value * (1 + 1e-12)})
    off = replace(plan, **{what: value * (1 + 1e-6)})

    assert violations(near, workflow, sites) == []
    expect(violations(off, workflow, sites), [f"The {what} is said to be"])
