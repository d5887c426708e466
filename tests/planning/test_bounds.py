"""Bounds against the true optimum, found by trying everything."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.planning.bounds import cost_bound, makespan_bounds, prove_bounds
from bursar.planning.kernels.availability import IntArray
from bursar.planning.problem import build_problem
from bursar.planning.schedulers import schedule
from bursar.planning.trade_off_solver import trade_off


@st.composite
def tiny_workflows(draw: st.DrawFn) -> Workflow:
    """Up to four tasks, some of them wide, with any parents before them."""
    n = draw(st.integers(1, 4))
    return Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=draw(st.integers(0, 6)),
                processors=draw(st.integers(1, 2)),
                after=tuple(f"t{p}" for p in sorted(draw(st.sets(st.integers(0, i - 1)))))
                if i
                else (),
            )
            for i in range(n)
        )
    )


@st.composite
def tiny_sites(draw: st.DrawFn) -> list[SiteFacts]:
    return [
        SiteFacts(
            name=f"s{i}",
            processors=draw(st.integers(2, 3)),
            speed=draw(st.sampled_from([0.5, 1.0, 2.0])),
            unit_price=draw(st.sampled_from([0.0, 1.0, 3.0])),
            fixed_price=draw(st.sampled_from([0.0, 2.0])),
        )
        for i in range(draw(st.integers(1, 2)))
    ]


def _every_schedule(
    workflow: Workflow, sites: list[SiteFacts], bought: tuple[int, ...], overhead: float
) -> list[tuple[float, ...]]:
    """
    Last finish on each site, of every schedule that starts nothing needlessly late.

    Tasks join one by one, each at the first moment with room, in every order that
    keeps parents first and with every choice of sites. Makespan and cost grow with
    the finish of each task, so the best of these are the best there are.
    """
    tasks = workflow.tasks
    lengths = [[(t.runtime or 0.0) / s.speed + overhead for s in sites] for t in tasks]
    ends = []
    for order in itertools.permutations(range(len(tasks))):
        place = {task: k for k, task in enumerate(order)}
        if any(place[p] > place[t] for t in order for p in workflow.parents[t]):
            continue
        for where in itertools.product(range(len(sites)), repeat=len(tasks)):
            if any(tasks[t].processors > bought[where[t]] for t in order):
                continue
            held: list[list[tuple[float, float, int]]] = [[] for _ in sites]
            finish: dict[int, float] = {}
            for t in order:
                s, width = where[t], tasks[t].processors
                ready = max((finish[p] for p in workflow.parents[t]), default=0.0)
                length = lengths[t][s]
                finish[t] = _first_room(held[s], ready, length, width, bought[s]) + length
                held[s].append((finish[t] - length, finish[t], width))
            ends.append(
                tuple(
                    max((finish[t] for t in order if where[t] == s), default=-1.0)
                    for s in range(len(sites))
                )
            )
    return ends


def _first_room(
    held: list[tuple[float, float, int]], ready: float, length: float, width: int, most: int
) -> float:
    if length == 0:
        return ready
    for start in sorted({ready, *(end for _, end, _ in held if end > ready)}):
        points = [start, *(b for b, _, _ in held if start < b < start + length)]
        if all(sum(w for b, e, w in held if b <= at < e) + width <= most for at in points):
            return start
    raise AssertionError("there is room after the last end")


@given(workflow=tiny_workflows(), sites=tiny_sites(), overhead=st.sampled_from([0.0, 0.5]))
@settings(max_examples=examples(60))
def test_no_schedule_at_all_beats_a_bound(
    workflow: Workflow, sites: list[SiteFacts], overhead: float
) -> None:
    """The least makespan and cost over every schedule; HEFT is no better either."""
    problem = build_problem(workflow, sites, overhead=overhead)
    purchases = list(itertools.product(*(range(s.processors + 1) for s in sites)))
    rows = [row for row in purchases if max(row) >= max(t.processors for t in workflow.tasks)]
    each = makespan_bounds(problem, _array(rows))
    least_cost = math.inf
    least_makespan = math.inf
    for row, bound in zip(rows, each, strict=True):
        schedules = _every_schedule(workflow, sites, row, overhead)
        optimum = min(max(ends) for ends in schedules)
        made = schedule(problem, _array(row))
        assert bound <= optimum + 1e-9
        assert made.complete
        assert made.makespan >= optimum - 1e-9
        least_makespan = min(least_makespan, optimum)
        least_cost = min(least_cost, *(_cost(sites, row, ends) for ends in schedules))

    proven = prove_bounds(problem)

    assert proven.makespan is not None
    assert proven.makespan <= least_makespan + 1e-9
    assert proven.cost is not None
    assert proven.cost <= least_cost + 1e-9


def _cost(sites: list[SiteFacts], row: tuple[int, ...], ends: tuple[float, ...]) -> float:
    """What is used is paid, from 0 to its last finish; -1 marks a site without tasks."""
    return sum(
        n * end * (s.unit_price or 0.0) + (s.fixed_price or 0.0)
        for s, n, end in zip(sites, row, ends, strict=True)
        if end >= 0
    )


def _array(rows: object) -> IntArray:
    import numpy as np

    return np.array(rows, dtype=np.int64)


def _task(name: str, runtime: float | None, *after: str, wide: int = 1) -> Task:
    return Task(id=name, runtime=runtime, after=after, processors=wide)


def test_each_bound_is_what_its_name_says() -> None:
    # a -> (b, c, d) -> e: path 2 + 6 + 1 = 9. Work 2 + 3 x 6 + 1 = 21 on 2 = 10.5.
    # b, c, d lie between a and e: 2 + 18 / 2 + 1 = 12.
    middle = [_task(name, 6, "a") for name in "bcd"]
    workflow = Workflow((_task("a", 2), *middle, _task("e", 1, "b", "c", "d")))
    site = SiteFacts(name="here", processors=2, unit_price=2.0, fixed_price=5.0)

    bounds = trade_off(workflow, [site]).bounds

    assert (bounds.critical_path, bounds.work, bounds.energetic) == (9.0, 10.5, 12.0)
    assert bounds.makespan == 12.0
    assert bounds.cost == 21 * 2 + 5  # one processor does it all, never idle


def test_a_wide_task_is_paid_for_the_whole_path() -> None:
    # 4 processors for 1 s and then one for 10 s: the rectangle is 4 x 11.
    workflow = Workflow((_task("wide", 1, wide=4), _task("long", 10, "wide")))
    site = SiteFacts(name="here", processors=4, unit_price=1.0)

    assert cost_bound(build_problem(workflow, [site])) == 44.0


def test_unknown_runtimes_count_as_nothing_and_are_counted() -> None:
    workflow = Workflow((_task("a", 4), _task("b", None)))
    site = SiteFacts(name="here", processors=1, unit_price=1.0)

    bounds = trade_off(workflow, [site]).bounds

    assert (bounds.makespan, bounds.cost) == (4.0, 4.0)
    assert (bounds.tasks, bounds.unknown_tasks) == (2, 1)


def test_nothing_known_bounds_nothing() -> None:
    site = SiteFacts(name="here", processors=1, unit_price=1.0)

    bounds = trade_off(Workflow((_task("a", None),)), [site]).bounds

    assert (bounds.makespan, bounds.cost) == (None, None)


@pytest.mark.parametrize("price", [None, 1.0])
def test_an_unpriced_site_is_named(price: float | None) -> None:
    sites = [SiteFacts(name="s", unit_price=price)]

    bounds = trade_off(Workflow((_task("a", 4),)), sites).bounds

    assert bounds.cost == (None if price is None else 4.0)
    assert bounds.unpriced_sites == (("s",) if price is None else ())
