"""The solver's schedules: valid, never worse than any list scheduler's, with true bounds."""

import itertools
import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.planning.random_problems import site_lists, workflows
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.building import build_option, build_plan
from bursar.planning.exact import (
    ExactSolution,
    Objective,
    cost_of,
    polish,
    reason_not_solved,
    solving,
)
from bursar.planning.kernels.availability import FloatArray, IntArray
from bursar.planning.policy import PlacementPolicy, ScheduleRecipe
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import schedule
from bursar.planning.validation import violations

needs_solver = pytest.mark.skipif(
    find_spec("ortools") is None, reason="needs OR-Tools: pip install 'bursar[exact]'"
)
few = settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG = 60.0
"""Seconds; no instance here takes one."""


def slot(site: str = "a", **changes: object) -> Slot:
    """Two processors for ten seconds at 1 per processor-second, paid whole."""
    usual = {"start": 0, "duration": 10, "processors": 2, "unit_price": 1.0, "divisible": False}
    return Slot(site=site, **(usual | changes))  # type: ignore[arg-type]


def site(*slots: Slot, name: str = "a", **more: object) -> SiteFacts:
    processors = sum(s.processors for s in slots)
    return SiteFacts(name=name, processors=processors, slots=slots, **more)  # type: ignore[arg-type]


def tasks(*shapes: tuple[float, int], chain: bool = False) -> Workflow:
    """Tasks of these runtimes and widths, one after the other or free."""
    return Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=r,
                processors=n,
                after=(f"t{i - 1}",) if chain and i else (),
            )
            for i, (r, n) in enumerate(shapes)
        )
    )


def best(problem: PlanningProblem, minimise: Objective, **more: float) -> ExactSolution:
    """What the solver says without a hint."""
    answer = polish(problem, minimise=minimise, time_limit=LONG, **more)  # type: ignore[arg-type]
    assert answer is not None
    return answer


def every_list_schedule(problem: PlanningProblem) -> list[Schedule]:
    """By every order of the tasks and every purchase of whole slots, for time and for cost."""
    found = []
    parents = [
        set(problem.parent_index[a:b].tolist())
        for a, b in itertools.pairwise(problem.parent_start.tolist())
    ]
    orders = [
        np.array(order)
        for order in itertools.permutations(range(problem.n_tasks))
        if all(parents[task] <= set(order[:i]) for i, task in enumerate(order))
    ]
    purchases = itertools.product((False, True), repeat=problem.n_slots)
    for bought in purchases:
        caps = np.where(bought, problem.everything, 0)
        for order in orders:
            for policy in (
                PlacementPolicy(scheduler="list"),
                PlacementPolicy(scheduler="list-cost", weight=1.0),
            ):
                made = schedule(problem, caps, policy, priority=order)
                if made.complete:
                    found.append(made)
    return found


def assert_valid(
    answer: ExactSolution, problem: PlanningProblem, workflow: Workflow, sites: list[SiteFacts]
) -> None:
    """The independent validator has nothing against the schedule; it comes to what is said."""
    caps = tuple(problem.everything.tolist())
    option = build_option(problem, ScheduleRecipe(caps=caps, schedule=answer.schedule))
    assert violations(build_plan(problem, option, "exact"), workflow, sites) == []
    assert option.makespan == answer.makespan == answer.schedule.finish.max()
    assert option.cost == pytest.approx(answer.cost, nan_ok=True)


def same(a: FloatArray | IntArray, b: FloatArray | IntArray) -> bool:
    return bool(np.array_equal(a, b))


@needs_solver
@few
@given(workflows(most=4, least_runtime=1), site_lists(slots_each=3), st.data())
def test_no_list_scheduler_beats_the_solver_nor_its_bound(
    workflow: Workflow, sites: list[SiteFacts], data: st.DataObject
) -> None:
    """
    All times are multiples of half a second, all prices whole: every answer is optimal.
    """
    try:
        problem = build_problem(workflow, sites)
    except InputError:  # a task is wider than every site
        return
    others = every_list_schedule(problem)
    points = [(other.makespan, cost_of(problem, other)) for other in others]
    shortest = polish(problem, minimise="makespan", time_limit=LONG)
    if shortest is None:
        assert not others
        return
    assert_valid(shortest, problem, workflow, sites)
    assert shortest.optimal
    assert shortest.bound == shortest.makespan
    assert all(makespan >= shortest.makespan for makespan, _ in points)

    deadline = shortest.makespan * data.draw(st.sampled_from([1.0, 1.2, 2.0]))
    cheapest = best(problem, "cost", deadline=deadline)
    assert_valid(cheapest, problem, workflow, sites)
    assert cheapest.makespan <= deadline
    assert cheapest.optimal
    assert cheapest.bound == pytest.approx(cheapest.cost)
    assert all(cost >= cheapest.cost - 1e-9 for makespan, cost in points if makespan <= deadline)

    within = best(problem, "makespan", budget=cheapest.cost)
    assert_valid(within, problem, workflow, sites)
    assert within.cost <= cheapest.cost + 1e-9
    assert within.optimal
    assert shortest.makespan <= within.makespan <= deadline


@needs_solver
@few
@given(workflows(most=4, least_runtime=1), site_lists(slots_each=3), st.integers(3, 7))
def test_rounded_times_leave_bounds_true_and_schedules_feasible(
    workflow: Workflow, sites: list[SiteFacts], divisor: int
) -> None:
    """
    No step divides the run times, so that the solver's times are not the schedule's.
    """
    workflow = Workflow(
        tuple(
            Task(
                id=task.id,
                runtime=(task.runtime or 0.0) / divisor,
                processors=task.processors,
                inputs=task.inputs,
                outputs=task.outputs,
            )
            for task in workflow.tasks
        )
    )
    try:
        problem = build_problem(workflow, sites)
    except InputError:
        return
    points = [(o.makespan, cost_of(problem, o)) for o in every_list_schedule(problem)]
    shortest = polish(problem, minimise="makespan", time_limit=LONG)
    if shortest is None:
        assert not points
        return
    assert_valid(shortest, problem, workflow, sites)
    assert shortest.bound is not None
    assert shortest.bound <= shortest.makespan
    assert shortest.makespan == pytest.approx(shortest.bound, rel=1e-3, abs=1e-3)
    assert all(makespan >= shortest.bound - 1e-9 for makespan, _ in points)
    assert all(makespan >= shortest.makespan * (1 - 1e-4) for makespan, _ in points)

    cheapest = best(problem, "cost", deadline=shortest.makespan)
    assert_valid(cheapest, problem, workflow, sites)
    assert cheapest.makespan <= shortest.makespan * (1 + 1e-9)
    assert cheapest.bound is not None
    assert cheapest.bound <= cheapest.cost
    reached = [cost for makespan, cost in points if makespan <= shortest.makespan]
    assert all(cost >= cheapest.bound * (1 - 1e-9) for cost in reached)
    assert all(cost >= cheapest.cost * (1 - 1e-4) for cost in reached)


@needs_solver
@few
@given(workflows(most=6), site_lists())
def test_any_schedule_is_valid(workflow: Workflow, sites: list[SiteFacts]) -> None:
    """
    Tasks without duration, and all slots at once, do not lead to broken plans.
    """
    try:
        problem = build_problem(workflow, sites)
    except InputError:
        return
    hint = schedule(problem, problem.everything)
    answer = polish(problem, minimise="cost", hint=hint, time_limit=LONG)
    if answer is None:
        return
    assert_valid(answer, problem, workflow, sites)
    assert answer.bound is not None
    assert answer.bound <= answer.cost
    if hint.complete:
        assert answer.cost <= cost_of(problem, hint)


@needs_solver
def test_a_schedule_is_as_the_kernels_make_it() -> None:
    """
    All arrays are there, so that what takes a kernel's schedule takes the solver's.
    """
    problem = build_problem(tasks((10, 1), (10, 3)), [site(slot(), slot())])
    answer = best(problem, "makespan")
    made = schedule(problem, problem.everything)
    assert answer.makespan == made.makespan == 10
    for name in ("site", "start", "finish", "held_count", "used", "until", "peak", "paid"):
        ours, theirs = getattr(answer.schedule, name), getattr(made, name)
        assert same(ours, theirs), name
        assert ours.dtype == theirs.dtype
    for task in range(2):
        first, count = answer.schedule.held_first[task], answer.schedule.held_count[task]
        assert answer.schedule.held_width[first : first + count].sum() == problem.widths[task]


@needs_solver
def test_a_task_takes_processors_of_several_slots() -> None:
    """
    Three processors in two slots of two, while both are there: from 4 to 10.
    """
    problem = build_problem(tasks((6, 3)), [site(slot(), slot(start=4))])
    answer = best(problem, "makespan")
    assert answer.schedule.start.tolist() == [4]
    assert sorted(answer.schedule.held_width.tolist()) == [1, 2]
    assert answer.optimal


@needs_solver
def test_only_tasks_that_need_it_take_several_slots_if_asked() -> None:
    """
    Of two tasks of two processors one fits the wide slot, the other the two narrow
    ones together. No task needs these, so both queue in the wide one if asked.
    """
    narrow = (slot(processors=1, duration=20), slot(processors=1, duration=20))
    problem = build_problem(tasks((10, 2), (10, 2)), [site(*narrow, slot(duration=20))])
    assert best(problem, "makespan").makespan == 10
    answer = polish(problem, minimise="makespan", time_limit=LONG, crossing="needed")
    assert answer is not None
    assert answer.makespan == 20
    assert answer.bound is None
    assert not answer.optimal


@needs_solver
def test_a_lease_is_a_rectangle() -> None:
    """
    Run times 5 and 3: one after the other 1 x 8, at once 2 x 5.
    """
    lease = slot(divisible=True, leased=True)
    problem = build_problem(tasks((5, 1), (3, 1)), [site(lease)])
    assert best(problem, "cost").cost == 8
    answer = best(problem, "cost", deadline=7)
    assert (answer.makespan, answer.cost) == (5, 10)
    assert best(problem, "makespan", budget=9).makespan == 8


@needs_solver
def test_an_extension_is_paid_past_the_end() -> None:
    """
    14 s in a slot of 2 x 10: 2 x 14; in two slots 2 x 20, but done after 7 s.
    """
    slots = (slot(extensible=True), slot(start=0))
    problem = build_problem(tasks((7, 2), (7, 2)), [site(*slots)])
    assert best(problem, "cost").cost == 28
    answer = best(problem, "cost", deadline=13)
    assert (answer.makespan, answer.cost) == (7, 40)


@needs_solver
def test_data_take_time_between_sites() -> None:
    """
    b runs the second task in 1 s rather than 8, but its data take 6: 2 + 6 + 1.
    """
    sites = [
        site(slot(duration=20), links={"b": Link(latency=6.0)}),
        site(slot("b", duration=20), name="b", speed=8.0, links={"a": Link(latency=9.0)}),
    ]
    problem = build_problem(tasks((2, 1), (8, 1), chain=True), sites)
    assert best(problem, "makespan").makespan == 1.25  # both on b
    kept = problem.runtimes.copy()
    kept[0, 1] = math.inf
    object.__setattr__(problem, "runtimes", kept)
    answer = best(problem, "makespan")
    assert answer.makespan == 9
    assert answer.schedule.site.tolist() == [0, 1]


@needs_solver
def test_without_time_the_hint_is_the_answer() -> None:
    """
    Whoever asks with a schedule in hand does not leave without one.
    """
    problem = build_problem(tasks((5, 1), (3, 1)), [site(slot())])
    hint = schedule(problem, problem.everything)
    answer = polish(problem, minimise="cost", hint=hint, time_limit=0.0)
    assert answer is not None
    assert answer.schedule is hint
    assert not answer.optimal


@needs_solver
def test_a_hint_that_is_too_late_or_too_dear_is_no_answer() -> None:
    """
    It may still lead the solver, but deadline and budget are kept.
    """
    problem = build_problem(tasks((5, 2), (5, 2)), [site(slot(), slot(unit_price=3.0))])
    late = schedule(problem, np.array([2, 0]))
    assert late.makespan == 10
    answer = polish(problem, minimise="cost", deadline=9, hint=late, time_limit=LONG)
    assert answer is not None
    assert (answer.makespan, answer.cost) == (5, 80)
    assert polish(problem, minimise="cost", deadline=9, hint=late, time_limit=0.0) is None
    answer = polish(problem, minimise="makespan", budget=79, hint=answer.schedule, time_limit=LONG)
    assert answer is not None
    assert answer.makespan == 10
    assert answer.cost <= 79


@needs_solver
@pytest.mark.parametrize("goal", [{"deadline": 4.0}, {"budget": 19.0}, {"deadline": -1.0}])
def test_there_is_no_answer_to_what_is_impossible(goal: dict[str, float]) -> None:
    """
    The solver shows that there is none; it does not offer something else.
    """
    problem = build_problem(tasks((5, 1)), [site(slot())])
    assert polish(problem, minimise="makespan", time_limit=LONG, **goal) is None  # type: ignore[arg-type]


@needs_solver
def test_slots_of_unknown_price_are_for_those_who_do_not_ask() -> None:
    """
    A cost that is not known is neither least nor within a budget.
    """
    problem = build_problem(tasks((5, 1)), [site(slot(unit_price=None), slot(start=3))])
    answer = best(problem, "makespan")
    assert answer.makespan == 5
    assert math.isnan(answer.cost)
    assert best(problem, "cost").schedule.start.tolist() == [3]
    assert best(problem, "makespan", budget=100).makespan == 8


@needs_solver
def test_one_worker_repeats_itself() -> None:
    """
    Equal questions have equal answers where the solver ends before its time.
    """
    problem = build_problem(
        tasks((5, 1), (3, 2), (4, 1), (2, 2), (6, 1)), [site(slot(), slot(start=2), slot(start=5))]
    )
    first, second = best(problem, "cost"), best(problem, "cost")
    assert same(first.schedule.start, second.schedule.start)
    assert same(first.schedule.held_slot, second.schedule.held_slot)


def test_too_many_ways_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The reason names the figures; the hint is still returned.
    """
    problem = build_problem(tasks((5, 1), (3, 1)), [site(slot(), slot(start=1))])
    assert reason_not_solved(problem) is None
    monkeypatch.setattr(solving, "MOST", 3)
    assert reason_not_solved(problem) == "tasks can be placed in 4 ways, more than 3"


def test_a_task_that_fits_nowhere_is_a_reason() -> None:
    """
    11 s do not fit into 10 s.
    """
    problem = build_problem(tasks((11, 1)), [site(slot())])
    assert reason_not_solved(problem) == "a task fits nowhere"


def test_the_missing_solver_is_told_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    OR-Tools is an extra.
    """
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    problem = build_problem(tasks((5, 1)), [site(slot())])
    with pytest.raises(InputError) as caught:
        polish(problem, minimise="makespan", time_limit=LONG)
    assert caught.value.hint == "pip install 'bursar[exact]'"
