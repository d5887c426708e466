"""Bounds over priced slots, against plans of small instances and against definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.covering import (
    _AssignmentProgramme,
    _CoveringProgramme,
    _MakespanCase,
    cost_bounds,
    relaxed_shares,
)
from bursar.planning.covering_columns import LinearProgramme
from bursar.planning.energetic_bound import TOLERANCE, EmptySlotCapacity, makespan_bound
from bursar.planning.kernels.capacity import is_overfull
from bursar.planning.policy import SCHEDULERS, PlacementPolicy
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import schedule

KINDS = {
    "whole": {"divisible": False},
    "whole-extensible": {"divisible": False, "extensible": True},
    "divisible": {},
    "divisible-extensible": {"extensible": True},
    "leased": {"leased": True},
    "leased-extensible": {"leased": True, "extensible": True},
}


def _slot(kind: str = "whole", **changes: float | None) -> Slot:
    values = {"start": 0.0, "duration": 10.0, "processors": 2, "unit_price": 1.0} | changes
    return Slot(site="s", **values, **KINDS[kind])  # type: ignore[arg-type]


def _problem(tasks: list[Task], *slots: Slot) -> PlanningProblem:
    facts = SiteFacts(name="s", processors=sum(s.processors for s in slots), slots=slots)
    return build_problem(Workflow(tuple(tasks)), [facts])


@st.composite
def problems(draw: st.DrawFn) -> PlanningProblem:
    """Up to five tasks, up to two sites and four slots of any kind."""
    n = draw(st.integers(1, 5))
    tasks = [
        Task(
            id=f"t{i}",
            runtime=draw(st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.5])),
            processors=draw(st.integers(1, 4)),
            after=tuple(f"t{p}" for p in range(i) if draw(st.integers(0, 3)) == 0),
        )
        for i in range(n)
    ]
    sites = []
    for s in range(draw(st.integers(1, 2))):
        slots = tuple(
            Slot(
                site=f"s{s}",
                start=draw(st.sampled_from([-1.0, 0.0, 1.0, 2.5, 6.0])),
                duration=draw(st.sampled_from([2.0, 4.0, 7.0, 15.0])),
                processors=draw(st.integers(1, 4)),
                unit_price=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
                fixed_price=draw(st.sampled_from([0.0, 0.0, 4.0])),
                **KINDS[draw(st.sampled_from(sorted(KINDS)))],  # type: ignore[arg-type]
            )
            for _ in range(draw(st.integers(1, 2)))
        )
        sites.append(
            SiteFacts(
                name=f"s{s}",
                processors=max(4, sum(slot.processors for slot in slots)),
                speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
                slots=slots,
                links={"s0": Link(latency=1.0)} if s else {},
            )
        )
    return build_problem(Workflow(tuple(tasks)), sites)


def _plans(problem: PlanningProblem, seed: int, n: int = 40) -> list[Schedule]:
    """Complete schedules of random purchases, orders and schedulers."""
    rng = np.random.default_rng(seed)
    plans = []
    for k in range(n):
        caps = np.where(rng.random(problem.n_slots) < 0.7, problem.everything, 0)
        caps = np.where(rng.random(len(caps)) < 0.3, rng.integers(0, caps + 1), caps)
        if k < len(SCHEDULERS) or not caps.any():
            caps = problem.everything
        policy = PlacementPolicy(
            scheduler=SCHEDULERS[k % len(SCHEDULERS)], weight=float(rng.random())
        )
        priority = None
        if policy.scheduler not in ("minmin", "maxmin"):
            priority = _random_order(problem, rng)
        plan = schedule(problem, caps, policy, priority=priority)
        if plan.complete:
            plans.append(plan)
    return plans


def _random_order(problem: PlanningProblem, rng: np.random.Generator) -> np.ndarray:
    order: list[int] = []
    while len(order) < problem.n_tasks:
        ready = [
            i
            for i in range(problem.n_tasks)
            if i not in order
            and all(
                p in order
                for p in problem.parent_index[problem.parent_start[i] : problem.parent_start[i + 1]]
            )
        ]
        order.append(int(rng.choice(ready)))
    return np.array(order)


def _paid(problem: PlanningProblem, plan: Schedule) -> np.ndarray:
    """Processor-seconds of each slot, by the tasks that hold some of it."""
    paid = np.zeros(problem.n_slots)
    for j, slot in enumerate(problem.offers.slots):
        held = [
            (plan.start[i], plan.finish[i], plan.held_width[k])
            for i in range(problem.n_tasks)
            for k in range(plan.held_first[i], plan.held_first[i] + plan.held_count[i])
            if plan.held_slot[k] == j
        ]
        if not held:
            continue
        until = max(finish for _, finish, _ in held)
        if slot.leased:
            peak = max(sum(w for s, f, w in held if s <= t < f) for t, _, _ in held)
            paid[j] = peak * (until - slot.start)
        elif slot.divisible:
            paid[j] = sum(w * (f - s) for s, f, w in held)
        else:
            paid[j] = slot.processors * (max(slot.end, until) - slot.start)
    return paid


def _cost(problem: PlanningProblem, plan: Schedule) -> float:
    slots = problem.offers.arrays
    paid = _paid(problem, plan)
    return float((slots.unit_price * paid + slots.fixed_price)[paid > 0].sum())


@settings(max_examples=examples(50))
@given(problems(), st.integers(0, 2**32 - 1))
def test_no_plan_beats_a_bound(problem: PlanningProblem, seed: int) -> None:
    """
    A makespan or a cost below a bound would make "within x % of the best" a lie.
    """
    plans = _plans(problem, seed)
    if not plans:
        return
    assert min(p.makespan for p in plans) >= makespan_bound(problem)
    moments = np.array([p.makespan for p in plans] + [math.inf])
    bounds = cost_bounds(problem, moments)
    costs = np.array([_cost(problem, p) for p in plans])
    assert (costs >= bounds[:-1]).all()
    assert costs.min() >= bounds[-1]


@settings(max_examples=examples(50))
@given(problems(), st.integers(0, 2**32 - 1))
def test_every_row_holds_for_every_plan(problem: PlanningProblem, seed: int) -> None:
    """
    A row that a plan breaks cuts plans off, even where no bound shows it yet.
    """
    plans = _plans(problem, seed, 24)
    if not plans:
        return
    room = EmptySlotCapacity(problem)
    makespan = max(plan.makespan for plan in plans)
    case = _MakespanCase.of(room, makespan)
    case.quick_bound(math.inf)
    if not len(case.busy):
        return
    assert case.covering is not None
    assignment = _AssignmentProgramme(case)
    assignment.solve(math.inf)
    for plan in plans:
        if plan.makespan <= makespan:
            solution = _as_columns(problem, plan, assignment)
            assert ((solution >= 0) & (solution <= assignment.programme.upper + 1e-9)).all()
            _assert_holds(assignment.programme, solution)
            _assert_holds(case.covering.programme, solution[: 2 * len(case.candidates)])
            price = float(solution @ assignment.programme.prices)
            assert price <= _cost(problem, plan) * (1 + 1e-12) + 1e-9


def _as_columns(
    problem: PlanningProblem, plan: Schedule, assignment: _AssignmentProgramme
) -> np.ndarray:
    """A plan as a point of the assignment programme."""
    wares = assignment.candidates
    slots = problem.offers.arrays
    span = slots.processors * (slots.end - slots.start)
    paid = _paid(problem, plan)
    beside = np.where(slots.divisible, paid, np.maximum(paid - span, 0.0))
    shares = np.zeros((problem.n_tasks, problem.n_slots))
    for task in range(problem.n_tasks):
        first, count = plan.held_first[task], plan.held_count[task]
        for k in range(first, first + count):
            shares[task, plan.held_slot[k]] += plan.held_width[k] / problem.widths[task]
    bought = np.where(wares.whole, paid[wares.slots] > 0, 1.0)
    return np.concatenate(
        (
            bought,
            np.divide(
                beside[wares.slots], wares.volume, out=np.zeros(len(wares)), where=wares.volume > 0
            ),
            shares[assignment.task, wares.slots[assignment.ware]],
        )
    )


def _assert_holds(programme: LinearProgramme, solution: np.ndarray) -> None:
    assert (programme.matrix @ solution >= programme.least - 1e-7).all()


@settings(max_examples=examples(100))
@given(problems(), st.lists(st.floats(0.5, 40.0), min_size=2, max_size=4))
def test_a_later_deadline_costs_no_more(problem: PlanningProblem, moments: list[float]) -> None:
    """
    The curve of bounds falls, and is never not a number.
    """
    bounds = cost_bounds(problem, np.sort(moments))
    assert not np.isnan(bounds).any()
    assert (bounds >= 0).all()
    assert (bounds[:-1] >= bounds[1:]).all()
    assert np.isinf(bounds[np.sort(moments) < makespan_bound(problem) * (1 - 1e-6)]).all()


def _fits_plainly(room: EmptySlotCapacity, makespan: float) -> bool:
    """Sort heads and deadlines of each makespan anew, and take the least of each row as it is."""
    windows = room.windows(makespan)
    if windows.empty:
        return False
    heads = np.where(windows.possible, windows.starts, np.inf).min(axis=1)
    deadlines = np.where(windows.possible, windows.finishes, -np.inf).max(axis=1)
    runtimes = np.where(windows.possible, room.problem.runtimes, 0.0)
    return not any(
        is_overfull(
            np.where(windows.possible, measure.rates * runtimes, np.inf).min(axis=1),
            np.argsort(heads, kind="stable"),
            np.argsort(deadlines, kind="stable"),
            measure.done_by(heads),
            measure.done_by(deadlines + room.slack),
            TOLERANCE,
        )
        for measure in room.measures
    )


@settings(max_examples=examples(100), deadline=None)
@given(problems(), st.lists(st.floats(0.5, 60.0), min_size=2, max_size=8))
def test_orders_kept_from_the_last_makespan_change_no_answer(
    problem: PlanningProblem, makespans: list[float]
) -> None:
    room = EmptySlotCapacity(problem)
    for makespan in makespans:
        assert room.fits(makespan) == _fits_plainly(room, makespan)


@settings(max_examples=examples(200))
@given(st.data())
def test_the_tree_finds_what_every_window_would(data: st.DataObject) -> None:
    """
    The energy test over a tree answers as trying each head with each deadline does.
    """
    n = data.draw(st.integers(1, 7))
    numbers = st.lists(st.integers(0, 9), min_size=n, max_size=n)
    heads, lengths, work = (np.array(data.draw(numbers), dtype=float) for _ in range(3))
    deadlines = heads + lengths
    rate = data.draw(st.integers(1, 4))
    expected = any(
        work[(heads >= h) & (deadlines <= d)].sum() > rate * (d - h)
        for h in heads
        for d in deadlines
        if ((heads >= h) & (deadlines <= d)).any()
    )

    assert expected == is_overfull(
        work,
        np.argsort(heads, kind="stable"),
        np.argsort(deadlines, kind="stable"),
        rate * heads,
        rate * deadlines,
        1e-11,
    )


@given(problem=problems(), seed=st.integers(0, 99))
@settings(max_examples=examples(50))
def test_relaxed_shares_cost_no_more_than_a_plan(problem: PlanningProblem, seed: int) -> None:
    """
    Of slots paid whole: a plan buys all of each that it uses, the relaxation part of some.
    """
    slots = problem.offers.arrays
    known = np.isfinite(slots.unit_price + slots.fixed_price)
    for plan in _plans(problem, seed, n=3):
        if (slots.divisible | np.isinf(slots.last))[plan.used].any() or not known.all():
            continue
        shares = relaxed_shares(problem, plan.makespan)
        if shares is None:  # every task without duration
            continue
        assert ((shares >= 0) & (shares <= 1 + 1e-9)).all()
        length = slots.processors * (slots.end - slots.start)
        price = np.where(slots.divisible, 0.0, length * slots.unit_price + slots.fixed_price)
        assert float(shares @ price) <= _cost(problem, plan) + 1e-6


def test_work_waits_for_processors() -> None:
    """
    Four tasks of 3 s on 2 processors from 1 to 4 and from 6 on: 6 processor-seconds
    are done by 4, the other 6 by 9.
    """
    tasks = [Task(id=f"t{i}", runtime=3.0) for i in range(4)]
    slots = (_slot(start=1.0, duration=3.0), _slot(start=6.0, duration=9.0))

    assert makespan_bound(_problem(tasks, *slots)) == pytest.approx(9.0, rel=1e-9)


def test_a_path_waits_for_a_wide_slot() -> None:
    """
    A task of 2 processors finds one only until 5, and two from 5 on; the child follows.
    """
    tasks = [Task(id="a", runtime=2.0, processors=2), Task(id="b", runtime=3.0, after=("a",))]
    slots = (_slot(processors=1, duration=5.0), _slot(start=5.0, duration=20.0))

    assert makespan_bound(_problem(tasks, *slots)) == 10.0


def test_two_slots_together_host_a_wide_task() -> None:
    """
    One processor from 0 to 9 and one from 4 on: together two from 4 to 9.
    """
    tasks = [Task(id="a", runtime=5.0, processors=2)]
    slots = (_slot(processors=1, duration=9.0), _slot(processors=1, start=4.0, duration=9.0))

    assert makespan_bound(_problem(tasks, *slots)) == 9.0
    assert makespan_bound(_problem(tasks, *slots), np.array([1, 0])) == math.inf


def test_wide_tasks_take_turns() -> None:
    """
    Two tasks of 3 of 5 processors never run at once, though their work alone would
    be done by 12: 2 x 3 x 10 / 5.
    """
    tasks = [Task(id=f"t{i}", runtime=10.0, processors=3) for i in range(2)]

    bound = makespan_bound(_problem(tasks, _slot(processors=5, duration=50.0)))
    assert bound == pytest.approx(20.0, rel=1e-9)


def test_an_impossible_deadline_has_no_cost() -> None:
    """
    Nothing of 5 s is done by 4.
    """
    problem = _problem([Task(id="a", runtime=5.0)], _slot())

    assert cost_bounds(problem, np.array([4.0, 5.0]))[0] == math.inf


@pytest.mark.parametrize(
    ("kind", "changes", "cost"),
    [
        # 2 processors x 10 s, whatever is used.
        ("whole", {}, 20.0),
        # 2 x 3 s, and the task's 5 - 3 s with both processors.
        ("whole-extensible", {"duration": 3.0}, 10.0),
        # The task's 5 s and the fixed charge.
        ("divisible", {"fixed_price": 7.0}, 12.0),
        # From the start, at -4, to the task's end at 5.
        ("leased", {"start": -4.0, "duration": 20.0}, 9.0),
        # An unknown price counts as nothing.
        ("whole", {"unit_price": None}, 0.0),
    ],
)
def test_one_task_pays_for_one_slot(kind: str, changes: dict[str, float], cost: float) -> None:
    """
    Where there is one thing to buy the bound is what it costs.
    """
    problem = _problem([Task(id="a", runtime=5.0)], _slot(kind, **changes))

    assert cost_bounds(problem, np.array([5.0])) == pytest.approx([cost], rel=1e-5)


def test_hurry_costs_more() -> None:
    """
    By 5 both tasks need the dear slot as well, 8 + 20; by 10 the cheap one is enough.
    """
    tasks = [Task(id=f"t{i}", runtime=4.0) for i in range(2)]
    slots = (
        _slot(processors=1, duration=8.0, unit_price=1.0),
        _slot(processors=1, duration=10.0, unit_price=2.0),
    )

    bounds = cost_bounds(_problem(tasks, *slots), np.array([5.0, 10.0]))
    assert bounds == pytest.approx([28.0, 8.0], rel=1e-5)


def test_the_solver_keeps_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    """
    Standard output is for data; a line of the solver's own would spoil it.
    """
    tasks = [Task(id=f"t{i}", runtime=2.0 + i, processors=1 + i % 3) for i in range(12)]
    slots = [_slot(start=3.0 * i, duration=9.0, processors=1 + i % 4) for i in range(12)]

    cost_bounds(_problem(tasks, *slots), np.array([30.0, 40.0]))
    assert capfd.readouterr().out == ""


def test_a_window_that_is_short_by_share_and_by_amount_is_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of rows that are reported is the number of rows that are added."""
    problem = build_problem(
        Workflow(tuple(Task(id=f"t{n}", runtime=5.0) for n in range(4))),
        [SiteFacts(name="s", processors=2, unit_price=1.0, fixed_price=0.0, slots=(_slot(),))],
    )
    added: list[tuple[int, int]] = []
    monkeypatch.setattr(
        _CoveringProgramme, "_add", lambda self, i, j, solution: added.append((i, j))
    )
    case = _MakespanCase.of(EmptySlotCapacity(problem), 10.0)
    covering = _CoveringProgramme(case)
    added.clear()

    reported = covering.add_broken(np.zeros(2 * len(case.candidates)))

    assert reported == len(added) == len(set(added)) > 0
