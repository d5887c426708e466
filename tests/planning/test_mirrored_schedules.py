"""Schedules pushed late: valid in the mirror, whatever slots there are."""

import numpy as np
from hypothesis import assume, given, settings
from tests.planning.random_problems import site_lists, workflows
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.problem import build_problem
from bursar.planning.schedulers import TimeReversedProblem, schedule


@given(workflow=workflows(), sites=site_lists(slots_each=6))
@settings(max_examples=examples(150))
def test_parents_still_come_first_when_pushed_late(
    workflow: Workflow, sites: list[SiteFacts]
) -> None:
    try:
        problem = build_problem(workflow, sites)
    except InputError:  # a task wider than any site
        assume(False)
    made = schedule(problem, problem.everything)
    assume(made.complete)

    late = TimeReversedProblem(problem).latest_starts(
        problem.everything, made.finish, made.makespan
    )

    if late is None:
        return
    shortest = problem.runtimes.min(axis=1)
    for task, parents in enumerate(workflow.parents):
        assert late[task] + shortest[task] <= made.makespan + 1e-9
        for parent in parents:
            assert late[parent] + shortest[parent] <= late[task] + 1e-9


def test_slots_after_the_end_are_left_out() -> None:
    slots = tuple(
        Slot(site="s", start=start, duration=9, processors=2, unit_price=1.0, divisible=False)
        for start in (0.0, 10.0, 500.0, 900.0)
    )
    workflow = Workflow((Task(id="a", runtime=4, processors=2), Task(id="b", runtime=3)))
    problem = build_problem(workflow, [SiteFacts(name="s", processors=2, slots=slots)])
    made = schedule(problem, problem.everything)

    late = TimeReversedProblem(problem).latest_starts(
        problem.everything, made.finish, made.makespan
    )

    assert made.makespan == 7
    assert late is not None
    assert late.tolist() == [0, 4]
    assert np.isfinite(late).all()
