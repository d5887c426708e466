"""The trade-off curve: what is on it, that its plans can be run, and what is unknown."""

import itertools
import math
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.matching import Matching
from bursar.model.network import Link
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.model.task import File, Task
from bursar.planning.front import ParetoFront
from bursar.planning.methods.sweep import widths
from bursar.planning.trade_off_solver import plan_option, trade_off

LINKS = {("s0", "s1"): Link(latency=1.0, bandwidth=2.0), ("s1", "s0"): Link(latency=3.0)}


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    """Up to twelve tasks that hand files on; some wide, some without duration."""
    tasks: list[Task] = []
    for i in range(draw(st.integers(1, 12))):
        read = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
        tasks.append(
            Task(
                id=f"t{i}",
                runtime=draw(st.one_of(st.integers(0, 9), st.floats(0, 9))),
                processors=draw(st.integers(1, 3)),
                inputs=tuple(File(f"f{p}") for p in sorted(read)),
                outputs=(File(f"f{i}", draw(st.integers(0, 8))),),
            )
        )
    return Workflow(tuple(tasks))


@st.composite
def site_lists(draw: st.DrawFn) -> list[SiteFacts]:
    """One to three sites where every task fits, some of unknown price."""
    return [
        SiteFacts(
            name=f"s{i}",
            processors=draw(st.integers(3, 9)),
            speed=draw(st.sampled_from([0.5, 1.0, 3.0])),
            unit_price=draw(st.sampled_from([None, 0.0, 1.0, 2.5])),
            fixed_price=draw(st.sampled_from([None, 0.0, 4.0])),
        )
        for i in range(draw(st.integers(1, 3)))
    ]


def linked(sites: list[SiteFacts]) -> list[SiteFacts]:
    """The sites with the links between them."""
    return [
        replace(s, links={there: link for (here, there), link in LINKS.items() if here == s.name})
        for s in sites
    ]


@given(workflow=workflows(), sites=site_lists(), overhead=st.sampled_from([0.0, 0.25]))
@settings(max_examples=examples(80))
def test_every_plan_of_the_curve_can_be_run(
    workflow: Workflow, sites: list[SiteFacts], overhead: float
) -> None:
    """Within what is bought, after its parents and their data, no processor shared."""
    front = trade_off(workflow, linked(sites), overhead=overhead)

    for option in front.options:
        plan = plan_option(front, option)
        assert plan.makespan == option.makespan
        assert plan.purchases == option.purchases
        _check_schedule(workflow, {s.name: s for s in sites}, plan, overhead)
        _check_money({s.name: s for s in sites}, plan)


def _check_schedule(
    workflow: Workflow, sites: dict[str, SiteFacts], plan: Plan, overhead: float
) -> None:
    placed = {p.task: p for p in plan.placements}
    assert sorted(placed) == list(range(len(workflow.tasks)))
    assert [p.start for p in plan.placements] == sorted(p.start for p in plan.placements)
    assert plan.makespan == pytest.approx(max(p.finish for p in plan.placements))
    bought = {purchase.slot.site: purchase.slot for purchase in plan.purchases}
    for task, parents in enumerate(workflow.parents):
        here = placed[task]
        facts = workflow.tasks[task]
        length = (facts.runtime or 0.0) / sites[here.site].speed + overhead
        assert here.finish == pytest.approx(here.start + length)
        assert len(set(here.processors)) == facts.processors
        assert max(here.processors) < bought[here.site].processors
        assert here.finish <= bought[here.site].duration + 1e-9
        for parent in parents:
            arrival = placed[parent].finish
            link = LINKS.get((placed[parent].site, here.site))
            if link is not None:
                size = workflow.tasks[parent].outputs[0].size or 0
                arrival += link.latency + size / link.bandwidth
            assert here.start >= arrival - 1e-9
    held: dict[tuple[str, int], float] = {}
    for place in plan.placements:
        if place.finish > place.start:
            for processor in place.processors:
                assert held.get((place.site, processor), 0.0) <= place.start + 1e-9
                held[place.site, processor] = place.finish


def _check_money(sites: dict[str, SiteFacts], plan: Plan) -> None:
    """The rectangle from 0 to the site's last finish, at its price; unknown stays unknown."""
    total: float | None = 0.0
    for slot in (purchase.slot for purchase in plan.purchases):
        facts = sites[slot.site]
        assert slot.processors <= facts.processors
        if facts.unit_price is None or facts.fixed_price is None or total is None:
            total = None
        else:
            total += slot.processors * slot.duration * facts.unit_price + facts.fixed_price
    assert plan.cost == (None if total is None else pytest.approx(total))
    assert plan.utilisation is not None
    assert 0 <= plan.utilisation <= 1 + 1e-9


@given(workflow=workflows(), sites=site_lists())
@settings(max_examples=examples(80))
def test_the_curve_falls_and_nothing_tried_lies_below_it(
    workflow: Workflow, sites: list[SiteFacts]
) -> None:
    priced = [s for s in sites if s.unit_price is not None and s.fixed_price is not None]
    if not priced:
        return
    front = trade_off(workflow, priced)

    points = [(o.makespan or 0.0, o.cost or 0.0) for o in front.options]
    for (fast, dear), (slow, cheap) in itertools.pairwise(points):
        assert fast < slow
        assert dear > cheap
    slack = 1 + 1e-8
    for makespan, cost in front.tried:
        assert any(m <= makespan * slack and c <= cost * slack for m, c in points)


@given(workflow=workflows(), sites=site_lists())
@settings(max_examples=examples(30))
def test_the_same_question_gets_the_same_answer(workflow: Workflow, sites: list[SiteFacts]) -> None:
    """To the last digit, the place of every task included."""
    one, two = trade_off(workflow, sites), trade_off(workflow, sites)

    assert one == two
    assert [plan_option(one, o) for o in one.options] == [plan_option(two, o) for o in two.options]


def _bag(*runtimes: float | None, wide: int = 1) -> Workflow:
    return Workflow(
        tuple(Task(id=f"t{i}", runtime=r, processors=wide) for i, r in enumerate(runtimes))
    )


def _points(front: ParetoFront) -> list[tuple[int, float | None, float | None]]:
    return [(o.processors, o.makespan, o.cost) for o in front.options]


def test_an_overhead_is_planned_and_paid() -> None:
    # Two tasks of 4 s and 0.5 s around each: 4.5 s on two processors, 9 s on one.
    site = SiteFacts(name="here", processors=2, unit_price=1.0, fixed_price=1.0)

    front = trade_off(_bag(4, 4), [site], overhead=0.5)

    assert _points(front) == [(2, 4.5, 10.0)]
    assert front.bounds.makespan == 4.5
    assert trade_off(_bag(4, 4), [site], processors=[1], overhead=0.5).options[0].makespan == 9.0


def test_no_more_is_bought_than_tasks_can_use() -> None:
    site = SiteFacts(name="here", processors=500, unit_price=1.0)

    assert _points(trade_off(_bag(3, 3, 3), [site])) == [(3, 3.0, 9.0)]


def test_the_numbers_asked_for_are_tried() -> None:
    site = SiteFacts(name="here", processors=8, unit_price=1.0, fixed_price=2.0)

    front = trade_off(_bag(*[6.0] * 8), [site], processors=[2])

    assert _points(front) == [(2, 24.0, 50.0)]


def test_a_faster_site_is_worth_its_price_to_some() -> None:
    cheap = SiteFacts(name="cheap", processors=1, unit_price=1.0)
    fast = SiteFacts(name="fast", processors=1, speed=2.0, unit_price=3.0)

    front = trade_off(_bag(4, 4), [fast, cheap])

    # Both: one task each, 4 s at 1 and 2 s at 3; the fast one alone: 4 s at 3, beaten.
    assert _points(front) == [(2, 4.0, 10.0), (1, 8.0, 8.0)]
    assert [s.name for s in front.sites] == ["cheap", "fast"]


def test_an_unknown_runtime_leaves_a_plan_to_run_on() -> None:
    site = SiteFacts(name="here", processors=8, unit_price=1.0)

    front = trade_off(_bag(4, None, 3), [site])

    assert _points(front) == [(3, None, None)]
    plan = plan_option(front, front.options[0])
    assert (plan.makespan, plan.cost, plan.placements, plan.processors) == (None, None, (), 3)
    assert math.isinf(plan.purchases[0].slot.duration)
    assert front.notes == ("the runtime of 1 of 3 tasks is unknown: so are makespan and cost",)


def test_an_unknown_price_is_never_nothing() -> None:
    free = SiteFacts(name="free", processors=1, unit_price=0.0)
    secret = SiteFacts(name="secret", processors=4)

    front = trade_off(_bag(2, 2, 2, 2), [secret, free])

    assert all(
        (o.cost is None) == any(p.slot.site == "secret" for p in o.purchases) for o in front.options
    )
    assert (1, 8.0, 0.0) in _points(front)
    assert (4, 2.0, None) in _points(front)
    assert front.notes == (
        "the price of secret is unknown: so is the cost of what is bought there",
    )


def test_tasks_that_take_no_time_cost_next_to_nothing() -> None:
    site = SiteFacts(name="here", processors=2, unit_price=1.0, fixed_price=3.0)

    (option,) = trade_off(_bag(0, 0), [site]).options

    assert option.makespan == 0.0
    assert option.cost == pytest.approx(3.0, abs=1e-5)


def test_requirements_are_left_to_the_broker() -> None:
    workflow = Workflow(
        (Task(id="a", runtime=1, matching=Matching(requirements='system == "linux"')),)
    )

    front = trade_off(workflow, [SiteFacts(name="here")])

    assert "1 of 1 tasks have requirements" in front.notes[-1]


def test_a_wide_task_goes_where_it_fits() -> None:
    narrow = SiteFacts(name="narrow", processors=2, speed=9.0, unit_price=0.1)
    wide = SiteFacts(name="wide", processors=6, unit_price=1.0)
    workflow = Workflow((Task(id="w", runtime=5, processors=4), Task(id="n", runtime=1)))

    front = trade_off(workflow, [narrow, wide])

    for option in front.options:
        sites = {p.task: p.site for p in plan_option(front, option).placements}
        assert sites[0] == "wide"


GIB = 2**30


@pytest.mark.parametrize(
    ("task", "sites", "message", "where"),
    [
        (
            Task(id="w", processors=9),
            [SiteFacts(name="a", processors=4), SiteFacts(name="b", processors=8)],
            'task "w" needs 9 processors; the widest site, "b", has 8',
            "tasks.w.processors",
        ),
        (
            Task(id="m", memory=9 * GIB),
            [SiteFacts(name="a", memory=4 * GIB)],
            'task "m" needs 9663676416 bytes of memory; the site with most, "a", has 4294967296',
            "tasks.m.memory",
        ),
        (Task(id="t"), [], "there is no site to plan on", ""),
        (
            Task(id="t"),
            [SiteFacts(name="a"), SiteFacts(name="a")],
            'two sites are named "a"',
            "sites.a",
        ),
        (
            Task(id="t"),
            [SiteFacts(name="a", currency="SU"), SiteFacts(name="b", currency="EUR")],
            "one plan cannot mix currencies (b: EUR; a: SU)",
            "",
        ),
    ],
)
def test_what_cannot_be_planned_is_said(
    task: Task, sites: list[SiteFacts], message: str, where: str
) -> None:
    with pytest.raises(InputError) as caught:
        trade_off(Workflow((task,)), sites)

    assert caught.value.message == message
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "hoft"}, 'unknown method "hoft", expected one of auto, heft, minmin, ga'),
        ({"scheduler": "hoft"}, 'unknown scheduler "hoft", expected one of heft, greedy, minmin'),
        ({"processors": [0]}, "processors must be at least 1, got 0"),
        ({"processors": [2]}, "no plan with 2 processors holds every task"),
        ({"currency": "USD"}, 'no site asks "USD"; they ask SU'),
        ({"overhead": -1.0}, "overhead must be finite and not negative, got -1.0"),
        ({"overhead": math.nan}, "overhead must be finite and not negative, got nan"),
    ],
)
def test_a_wrong_question_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        trade_off(_bag(1, wide=3), [SiteFacts(name="here", processors=4)], **options)  # type: ignore[arg-type]


@given(st.integers(1, 50), st.integers(0, 2000), st.integers(8, 96))
def test_widths_are_few_and_hold_both_ends(lowest: int, more: int, limit: int) -> None:
    found = widths(lowest, lowest + more, limit)

    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (lowest, lowest + more)
    assert len(found) <= limit


def _layers(tasks: int, width: int) -> Workflow:
    rng = np.random.default_rng(1)
    runtimes = rng.uniform(1, 100, tasks)
    return Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=float(runtimes[i]),
                processors=4 if i % 10 == 0 else 1,
                after=tuple({f"t{i - width - int(k)}" for k in rng.integers(0, width, 2)})
                if i >= 2 * width
                else (),
            )
            for i in range(tasks)
        )
    )


@pytest.mark.parametrize(
    ("workflow", "limit"), [(_layers(1_000, 40), 1.0), (_bag(*[10.0] * 20_000), 5.0)]
)
def test_planning_takes_no_longer_than_one_waits(workflow: Workflow, limit: float) -> None:
    """A thousand dependent tasks take a small part of a second; the limit leaves room."""
    site = SiteFacts(name="here", processors=64, unit_price=1.0)
    trade_off(_bag(1), [site])  # compiles

    began = time.process_time()
    front = trade_off(workflow, [site])
    plan_option(front, front.options[0])

    assert time.process_time() - began < limit


def test_nouns_come_without_the_kernels() -> None:
    """Naming a Front or a Choice must not cost the import of NumPy and Numba."""
    code = (
        "import sys, bursar.planning.front, bursar.planning.plan_choice, bursar.model.network; "
        "print([m for m in ('numpy', 'numba') if m in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert found.stdout == "[]\n"


def test_kernels_work_where_no_code_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation and home: each process compiles anew, nothing fails."""
    numba = pytest.importorskip("numba")
    from numba.core import caching

    from bursar.compiling import compiled

    # Named with an underscore before Numba 0.61.
    implementation = getattr(caching, "CacheImpl", None) or caching._CacheImpl
    monkeypatch.setattr(implementation, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(lambda x: x + 1)

    assert compiled(lambda x: x + 1)(1) == 2
