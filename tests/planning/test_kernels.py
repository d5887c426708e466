"""Each compiled kernel against the same thing written plainly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning import schedulers
from bursar.planning.bounds import makespan_bounds, prove_bounds
from bursar.planning.building import number_processors
from bursar.planning.policy import PlacementPolicy, Scheduler
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedulers import schedule, upward_ranks


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    """Up to eight tasks, some of them wide, with any parents before them."""
    n = draw(st.integers(1, 8))
    return Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=draw(st.integers(0, 9)),
                processors=draw(st.integers(1, 3)),
                after=tuple(
                    f"t{p}" for p in sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))
                )
                if i
                else (),
            )
            for i in range(n)
        )
    )


SITES = st.lists(
    st.tuples(st.integers(3, 5), st.sampled_from([0.5, 1.0, 2.0])), min_size=1, max_size=2
)


def _sites(facts: list[tuple[int, float]]) -> list[SiteFacts]:
    return [
        SiteFacts(name=f"s{i}", processors=n, speed=speed, unit_price=1.0)
        for i, (n, speed) in enumerate(facts)
    ]


@given(workflow=workflows(), facts=SITES)
@settings(max_examples=examples(150))
def test_ranks_are_the_longest_way_to_the_end(
    workflow: Workflow, facts: list[tuple[int, float]]
) -> None:
    problem = build_problem(workflow, _sites(facts))

    def rank(task: int) -> float:
        mean = float(np.mean(problem.runtimes[task]))
        return mean + max((rank(child) for child in workflow.children[task]), default=0.0)

    ranks = upward_ranks(problem, problem.offered)

    assert np.allclose(ranks, [rank(task) for task in range(problem.n_tasks)])


@given(workflow=workflows(), facts=SITES)
@settings(max_examples=examples(150))
def test_placing_is_heft_with_gaps_filled(
    workflow: Workflow, facts: list[tuple[int, float]]
) -> None:
    """Against a schedule kept as plain intervals, tried at every moment one ends."""
    problem = build_problem(workflow, _sites(facts))
    bought = problem.offered
    ranks = upward_ranks(problem, bought)
    priority = problem.order[np.argsort(-ranks[problem.order], kind="stable")]
    held: list[list[tuple[float, float, int]]] = [[] for _ in facts]
    finish: dict[int, float] = {}

    def earliest(site: int, ready: float, length: float, width: int) -> float:
        if not length:
            return ready  # what takes no time is in nobody's way
        moments = sorted({ready, *(end for _, end, _ in held[site] if end > ready)})
        for start in moments:
            points = [start, *(s for s, _, _ in held[site] if start < s < start + length)]
            if all(
                sum(w for s, e, w in held[site] if s <= point < e) + width <= bought[site]
                for point in points
            ):
                return start
        raise AssertionError("there is always room after the last end")

    for task in priority.tolist():
        ready = max((finish[p] for p in workflow.parents[task]), default=0.0)
        width = int(problem.widths[task])
        best = None
        for site in range(len(facts)):
            length = float(problem.runtimes[task, site])
            start = earliest(site, ready, length, width)
            if best is None or start + length < best[0]:
                best = (start + length, site, start)
        assert best is not None
        finish[task] = best[0]
        if best[0] > best[2]:
            held[best[1]].append((best[2], best[0], width))

    made = schedule(problem, bought)

    assert made.complete
    assert np.allclose(made.finish, [finish[t] for t in range(problem.n_tasks)])


@given(
    runtimes=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40),
    caps=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    scheduler=st.sampled_from(["heft", "list"]),
    start=st.sampled_from([0.0, -7.5]),
)
def test_a_bag_on_one_lease_is_placed_as_by_the_kernels(
    runtimes: list[float], caps: list[int], scheduler: Scheduler, start: float
) -> None:
    """The heap gives the very numbers of the general kernels: places, makespan, cost and area."""
    slot = Slot(site="s", start=start, duration=math.inf, processors=50, unit_price=0.7,
                fixed_price=3.0, leased=True)  # fmt: skip
    tasks = tuple(Task(id=f"t{i}", runtime=runtime) for i, runtime in enumerate(runtimes))
    site = SiteFacts(name="s", processors=50, unit_price=0.7, slots=(slot,))
    problem = build_problem(Workflow(tasks), [site])
    assert schedulers.is_bag_on_one_lease(problem)
    rows = np.array([[n] for n in caps])
    policy = PlacementPolicy(scheduler=scheduler)
    priorities = np.array([schedulers.priority_of(problem, row, scheduler) for row in rows])

    def outputs() -> schedulers.Outputs:
        n = len(rows)
        return np.empty(n), np.empty(n), np.zeros((n, 1), dtype=np.bool_), np.zeros((n, 1))

    ours, theirs = outputs(), outputs()
    schedulers.run(problem, rows, policy, priorities, False, ours)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedulers, "is_bag_on_one_lease", lambda problem: False)
        schedulers.run(problem, rows, policy, priorities, False, theirs)
        slow = schedule(problem, rows[-1], policy)
    made = schedule(problem, rows[-1], policy)

    for ours_one, theirs_one in zip(ours, theirs, strict=True):
        assert np.array_equal(ours_one, theirs_one)
    for name in ("site", "start", "finish", "held_count", "used", "until", "peak", "paid"):
        assert np.array_equal(getattr(made, name), getattr(slow, name)), name
    assert [part.tolist() for part in made.holdings] == [part.tolist() for part in slow.holdings]


@given(runtimes=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40))
def test_ranks_and_bounds_of_a_bag_are_those_of_the_kernels(runtimes: list[float]) -> None:
    """Without dependencies nothing comes before or after a task; the kernels say the same."""
    tasks = tuple(Task(id=f"t{i}", runtime=runtime) for i, runtime in enumerate(runtimes))
    problem = build_problem(Workflow(tasks), _sites([(4, 1.0), (5, 2.0)]))
    rows = np.array([[1, 0], [4, 5]])

    ranked = upward_ranks(problem, rows[1])
    bounds = makespan_bounds(problem, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanningProblem, "has_dependencies", True)

        assert np.array_equal(ranked, upward_ranks(problem, rows[1]))
        assert np.array_equal(bounds, makespan_bounds(problem, rows))


@given(workflow=workflows(), facts=SITES)
@settings(max_examples=examples(150))
def test_no_plan_beats_a_bound(workflow: Workflow, facts: list[tuple[int, float]]) -> None:
    from bursar.planning.trade_off_solver import trade_off

    sites = _sites(facts)
    front = trade_off(workflow, sites)
    bounds = prove_bounds(build_problem(workflow, front.sites))

    for option in front.options:
        assert option.makespan is not None
        assert option.bound is not None
        assert option.cost is not None
        assert bounds.makespan is not None
        assert bounds.cost is not None
        assert option.makespan >= option.bound - 1e-9
        assert option.makespan >= bounds.makespan - 1e-9
        assert option.cost >= bounds.cost - 1e-5
    for makespan, cost in front.tried:
        assert makespan >= bounds.makespan - 1e-9  # type: ignore[operator]
        assert cost >= bounds.cost - 1e-5  # type: ignore[operator]


@given(
    intervals=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(1, 3)), max_size=12
    )
)
def test_processor_numbers_are_never_shared(intervals: list[tuple[int, int, int]]) -> None:
    spans = [(float(s), float(s + d), w) for s, d, w in intervals]

    numbers = number_processors(spans)

    peak = max((sum(w for s, e, w in spans if s <= t < e) for t, _, _ in spans), default=0)
    for i, (start, end, width) in enumerate(spans):
        assert len(set(numbers[i])) == width
        assert all(number < peak for number in numbers[i])
        for j in range(i):
            if spans[j][0] < end and start < spans[j][1]:
                assert not set(numbers[i]) & set(numbers[j])


def test_whole_numbers_in_offers_make_the_same_arrays_as_fractions() -> None:
    """Arrays of another type would have every kernel compiled a second time, for many seconds."""

    def types(moment: float, price: float) -> list[str]:
        slot = Slot(site="s", start=moment, duration=9 * moment, processors=2, unit_price=price)
        site = SiteFacts(name="s", processors=2, speed=moment, slots=(slot,))
        task = Task(id="t", runtime=moment)
        problem = build_problem(Workflow((task,)), [site])
        arrays = (*problem.offers.arrays, problem.runtimes, problem.widths)
        return [str(array.dtype) for array in arrays]

    assert types(1, 2) == types(1.5, 2.5)
