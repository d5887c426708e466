"""Serial tasks with gaps for each processor, against a plain twin and the general schedulers."""

from bisect import insort
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.planning.random_problems import site_lists, workflows
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning import schedulers
from bursar.planning.building import build_option, build_plan
from bursar.planning.kernels import serial
from bursar.planning.policy import PlacementPolicy, ScheduleRecipe
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import priority_of, run, schedule
from bursar.planning.validation import violations

Gap = tuple[float, float, int]


def _twin(problem: PlanningProblem, caps: list[int]) -> tuple[list[int], list[int], list[float]]:
    """Site, slot and start of each task: one list of gaps for each site, looked through."""
    arrays = problem.offers.arrays
    gaps: list[list[Gap]] = [
        [
            (float(arrays.begin[slot]), float(arrays.last[slot]), slot)
            for slot in range(arrays.first[s], arrays.first[s + 1])
            if arrays.last[slot] > arrays.begin[slot]
            for _ in range(caps[slot])
        ]
        for s in range(problem.n_sites)
    ]
    bought = [sum(caps[a:b]) for a, b in zip(arrays.first[:-1], arrays.first[1:], strict=True)]
    site, slot = [-1] * problem.n_tasks, [-1] * problem.n_tasks
    start, finish = [0.0] * problem.n_tasks, [0.0] * problem.n_tasks
    for task in priority_of(problem, np.array(caps), "heft").tolist():
        places = []
        for s in range(problem.n_sites):
            duration = float(problem.runtimes[task, s])
            if not bought[s] or duration == np.inf:
                continue
            edges = range(problem.parent_start[task], problem.parent_start[task + 1])
            ready = max(
                (finish[problem.parent_index[e]] + _delay(problem, site, e, s) for e in edges),
                default=0.0,
            )
            if duration == 0:
                places.append((ready, s, ready, -1))
                continue
            now = [i for i, (a, b, _) in enumerate(gaps[s]) if a <= ready and ready + duration <= b]
            later = [i for i, (a, b, _) in enumerate(gaps[s]) if a > ready and a + duration <= b]
            if now or later:
                i = now[-1] if now else later[0]
                begins = max(ready, gaps[s][i][0])
                places.append((begins + duration, s, begins, i))
        if not places:
            break
        finish[task], site[task], start[task], i = min(places, key=lambda p: p[:2])
        if i >= 0:
            own = gaps[site[task]]
            a, b, slot[task] = own.pop(i)
            if start[task] > a:
                own.insert(i, (a, start[task], slot[task]))
            if b > finish[task]:
                insort(own, (finish[task], b, slot[task]), key=lambda gap: gap[0])
    return site, slot, start


def _delay(problem: PlanningProblem, site: list[int], edge: int, s: int) -> float:
    origin = site[problem.parent_index[edge]]
    if origin == s:
        return 0.0
    pace = problem.seconds_per_byte[origin, s]
    return float(problem.latency[origin, s] + problem.parent_bytes[edge] * pace)


def _one_processor_each(workflow: Workflow, sites: list[SiteFacts]) -> PlanningProblem:
    """The workflow with serial tasks, on the sites with nothing leased."""
    tasks = tuple(replace(task, processors=1) for task in workflow.tasks)
    bought = [
        replace(site, slots=tuple(replace(slot, leased=False) for slot in site.slots))
        for site in sites
    ]
    return build_problem(Workflow(tasks), bought)


def _by_processor(
    problem: PlanningProblem, caps: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> Schedule:
    with monkeypatch.context() as patch:
        patch.setattr(schedulers, "MANY_SERIAL", 1)
        patch.setattr(schedulers, "MANY_SLOTS", 0)
        return schedule(problem, caps)


@given(workflow=workflows(most=12), sites=site_lists(), choice=st.randoms(use_true_random=False))
@settings(max_examples=examples(200))
def test_tasks_go_where_the_plain_twin_puts_them(
    workflow: Workflow, sites: list[SiteFacts], choice: object
) -> None:
    problem = _one_processor_each(workflow, sites)
    caps = [choice.randint(0, slot.processors) for slot in problem.offers.slots]  # type: ignore[attr-defined]

    with pytest.MonkeyPatch.context() as patch:
        made = _by_processor(problem, np.array(caps), patch)

    site, slot, start = _twin(problem, caps)
    assert made.site.tolist() == site
    held = np.full(problem.n_tasks, -1)
    held[made.held_count > 0] = made.held_slot
    assert held.tolist() == slot
    assert [s for s, at in zip(made.start, site, strict=True) if at >= 0] == [
        s for s, at in zip(start, site, strict=True) if at >= 0
    ]


def _two_before(rng: np.random.Generator, i: int) -> tuple[str, ...]:
    if i <= 300:
        return ()
    return tuple(f"t{p}" for p in sorted(set(rng.integers(max(0, i - 400), i, 2).tolist())))


def _many(tasks: int, seed: int) -> PlanningProblem:
    """Enough gaps and tasks that blocks are split and whole groups passed over."""
    rng = np.random.default_rng(seed)
    made = [
        Task(
            id=f"t{i}",
            runtime=float(rng.integers(1, 50)),
            after=_two_before(rng, i),
        )
        for i in range(tasks)
    ]
    sites = [
        SiteFacts(
            name=name,
            kind="advertised",
            processors=400,
            speed=speed,
            slots=tuple(
                Slot(
                    site=name,
                    start=float(200 * k + rng.integers(0, 60)),
                    duration=float(rng.integers(20, 140)),
                    processors=int(rng.integers(1, 40)),
                    unit_price=1.0,
                    divisible=bool(k % 2),
                )
                for k in range(120)
                for _ in range(3)
            ),
        )
        for name, speed in (("a", 1.0), ("b", 1.7))
    ]
    return build_problem(Workflow(tuple(made)), sites)


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3))
def test_blocks_and_groups_pass_over_nothing_that_fits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _many(3000, seed)
    caps = problem.everything
    assert caps.sum() > 4 * serial.FULL * serial.GROUP

    made = _by_processor(problem, caps, monkeypatch)

    site, slot, start = _twin(problem, caps.tolist())
    assert made.complete
    assert (made.site.tolist(), made.held_slot[made.held_first].tolist(), made.start.tolist()) == (
        site,
        slot,
        start,
    )


@given(workflow=workflows(most=12, least_runtime=1), sites=site_lists())
@settings(max_examples=examples(100))
def test_plans_stand_before_the_validator(workflow: Workflow, sites: list[SiteFacts]) -> None:
    problem = _one_processor_each(workflow, sites)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedulers, "MANY_SERIAL", 1)
        patch.setattr(schedulers, "MANY_SLOTS", 0)
        made = schedule(problem, problem.everything)
        assume(made.complete)
        recipe = ScheduleRecipe(
            caps=tuple(problem.everything.tolist()), policy=PlacementPolicy(), schedule=made
        )
        option = build_option(problem, recipe)
        tasks = Workflow(tuple(replace(task, processors=1) for task in workflow.tasks))
        plan = build_plan(problem, option, "heft")
        assert violations(plan, tasks, problem.sites) == []


@given(workflow=workflows(most=12), sites=site_lists(), whole=st.booleans())
@settings(max_examples=examples(100))
def test_what_many_purchases_come_to_is_what_their_schedules_cost(
    workflow: Workflow, sites: list[SiteFacts], whole: bool
) -> None:
    problem = _one_processor_each(workflow, sites)
    n, arrays = problem.n_slots, problem.offers.arrays
    caps = np.stack([problem.everything, problem.everything // 2])
    priority = priority_of(problem, problem.everything, "heft")[None, :]
    outputs = (np.empty(2), np.empty(2), np.zeros((2, n), dtype=bool), np.zeros((2, n)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedulers, "MANY_SERIAL", 1)
        patch.setattr(schedulers, "MANY_SLOTS", 0)
        run(problem, caps, PlacementPolicy(), priority, whole, outputs)
        for i, row in enumerate(caps):
            made = schedule(problem, row, priority=priority[0])
            assert (outputs[0][i] < np.inf) == made.complete
            if not made.complete:
                continue
            assert outputs[0][i] == made.makespan
            assert outputs[2][i].tolist() == made.used.tolist()
            each = arrays.processors * (arrays.end - arrays.start) * arrays.unit_price
            idle = ~made.used & (row > 0) & ~arrays.divisible
            wasted = (each + arrays.fixed_price)[idle].sum()
            cost = (made.paid * arrays.unit_price + arrays.fixed_price)[made.used].sum()
            assert outputs[1][i] == pytest.approx(cost + whole * wasted)
