"""Jobs into the time that processors have left: beside a slow twin, and beside what is optimal."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from tests.thoroughness import examples

from bursar.broker.packing import CLASSES, JobPacking, JobSizeClasses, PackingResult, ResourcePool

# Values that floats hold exactly, so that the twin's whole numbers are not a matter of rounding.
pools = st.lists(
    st.builds(
        ResourcePool,
        seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
        cost=st.sampled_from([0.0, 1.0, 2.0, 5.0]),
        fixed=st.sampled_from([0.0, 0.0, 6.0]),
        free_at=st.lists(st.sampled_from([0.0, 0.5, 4.0, 9.0]), min_size=1, max_size=3).map(tuple),
        until=st.sampled_from([math.inf, math.inf, 7.0, 20.0]),
    ),
    min_size=1,
    max_size=4,
)
mixed = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), max_size=25).map(JobSizeClasses.of)
alike = st.builds(
    lambda size, jobs: JobSizeClasses.of([size] * jobs),
    st.sampled_from([0.5, 1.0, 4.0]),
    st.integers(1, 12),
)
moments = st.one_of(st.just(math.inf), st.integers(0, 60).map(lambda n: n / 2))
budgets = st.one_of(st.just(math.inf), st.integers(0, 150).map(float))

PRECISION = 2e-3
"""Of a job's time: what the moments found by bisection may be late."""


def price(pool: ResourcePool, size: float) -> float:
    """Of one job."""
    return pool.cost * size + pool.fixed


def filled_by_hand(
    places: list[ResourcePool], sizes: JobSizeClasses, moment: float
) -> list[list[int]]:
    """Class by class and processor by processor, without a shortcut."""
    mean = sum(s * n for s, n in zip(sizes.size, sizes.count, strict=True)) / max(1, sizes.jobs)
    order = sorted(range(len(places)), key=lambda b: price(places[b], mean))
    if moment == math.inf:
        moment = 1e9  # far more than all jobs take on any processor
    room = [[min(pool.until, moment) - free for free in pool.free_at] for pool in places]
    table = []
    for size, count in zip(sizes.size, sizes.count, strict=True):
        row = [0] * len(places)
        for b in order:
            for p in range(len(room[b])):
                while sum(row) < count and room[b][p] >= size * places[b].seconds:
                    room[b][p] -= size * places[b].seconds
                    row[b] += 1
        table.append(row)
    return table


def cost_by_hand(
    places: list[ResourcePool], sizes: JobSizeClasses, table: list[list[int]]
) -> float:
    """Job by job."""
    return sum(
        n * price(pool, size)
        for size, row in zip(sizes.size, table, strict=True)
        for pool, n in zip(places, row, strict=True)
    )


@given(pools, mixed, moments)
@settings(max_examples=examples(150))
def test_filling_does_what_loops_over_processors_do(
    places: list[ResourcePool], sizes: JobSizeClasses, moment: float
) -> None:
    filled = JobPacking(places, sizes).by(moment)

    table = filled_by_hand(places, sizes, moment)
    assert filled.given.tolist() == table
    assert filled.left.tolist() == [n - sum(row) for n, row in zip(sizes.count, table, strict=True)]
    assert filled.cost == pytest.approx(cost_by_hand(places, sizes, table))
    assert filled.is_whole == (filled.given.sum() == sizes.jobs)


@st.composite
def one_size(draw: st.DrawFn) -> tuple[list[ResourcePool], JobSizeClasses, float]:
    """Bays, jobs that are all alike, and their size."""
    sizes = draw(alike)
    return draw(pools), sizes, float(sizes.size[0])


def processors(places: list[ResourcePool]) -> list[tuple[ResourcePool, float]]:
    """Each processor's bay, and when it is free."""
    return [(pool, free) for pool in places for free in pool.free_at]


@given(one_size(), moments)
@settings(max_examples=examples(50))
def test_as_many_jobs_of_one_size_as_can_be_are_done_for_the_least(
    case: tuple[list[ResourcePool], JobSizeClasses, float], moment: float
) -> None:
    """
    An integer programme does as many, and none of as many costs less.

    Variables: jobs on each processor. Each job is worth more than all of them may cost.
    """
    places, sizes, size = case
    each = processors(places)
    most = [min(pool.until, moment, 1e6) - free for pool, free in each]
    room = [
        max(0.0, left) / (size * pool.seconds) for (pool, _), left in zip(each, most, strict=True)
    ]
    worth = 1.0 + sizes.jobs * max(price(pool, size) for pool in places)
    solved = milp(
        [price(pool, size) - worth for pool, _ in each],
        integrality=np.ones(len(each)),
        bounds=Bounds(0, np.minimum(np.array(room) + 1e-9, sizes.jobs)),
        constraints=LinearConstraint(np.ones((1, len(each))), 0, sizes.jobs),
    )
    jobs = round(sum(solved.x))

    filled = JobPacking(places, sizes).by(moment)

    assert filled.given.sum() == jobs
    assert filled.cost == pytest.approx(solved.fun + worth * jobs, abs=1e-5)


def earliest_by_programme(
    places: list[ResourcePool], size: float, jobs: int, budget: float, limit: float
) -> float | None:
    """
    The least makespan by an integer programme; None where there is none.

    Variables: the makespan; jobs on each processor; whether it has any.
    """
    each = processors(places)
    n = len(each)
    rows, most = [], []
    for p, (pool, free) in enumerate(each):
        seconds = size * pool.seconds
        last = np.zeros(1 + 2 * n)  # free + jobs * seconds <= makespan, if it has any
        last[0], last[1 + p], last[1 + n + p] = -1.0, seconds, free
        some = np.zeros(1 + 2 * n)
        some[1 + p], some[1 + n + p] = 1.0, -jobs
        rows += [last, some]
        most.append(min(float(jobs), max(0.0, math.floor((min(pool.until, 1e6) - free) / seconds))))
    all_of_them = np.concatenate([[0.0], np.ones(n), np.zeros(n)])
    paid = np.concatenate([[0.0], [price(pool, size) for pool, _ in each], np.zeros(n)])
    constraints = [
        LinearConstraint(np.array(rows), -np.inf, 0),
        LinearConstraint(all_of_them[None], jobs, jobs),
    ]
    if math.isfinite(budget):
        constraints.append(LinearConstraint(paid[None], 0, budget))
    solved = milp(
        np.eye(1, 1 + 2 * n)[0],
        integrality=np.concatenate([[0], np.ones(2 * n)]),
        bounds=Bounds(0, np.concatenate([[min(limit, 1e6)], most, np.ones(n)])),
        constraints=constraints,
    )
    return float(solved.x[0]) if solved.success else None


@given(one_size(), budgets, moments)
@settings(max_examples=examples(40))
def test_no_moment_is_earlier_for_jobs_of_one_size(
    case: tuple[list[ResourcePool], JobSizeClasses, float], budget: float, limit: float
) -> None:
    places, sizes, size = case

    found = JobPacking(places, sizes).earliest(budget, limit)

    best = earliest_by_programme(places, size, sizes.jobs, budget, limit)
    if best is None:
        assert found is None
    else:
        assert found is not None
        late = PRECISION * size * min(pool.seconds for pool in places)
        assert best - 1e-5 <= found <= best + late + 1e-5


@given(pools, mixed, budgets, moments)
@settings(max_examples=examples(100))
def test_the_earliest_moment_holds_all_jobs_within_the_budget(
    places: list[ResourcePool], sizes: JobSizeClasses, budget: float, limit: float
) -> None:
    """Of several sizes, too."""
    filling = JobPacking(places, sizes)

    found = filling.earliest(budget, limit)

    if found is not None:
        filled = filling.by(found)
        assert found <= limit
        assert filled.is_whole
        assert filled.cost <= budget + 1e-6


@given(pools, mixed, budgets, moments)
@settings(max_examples=examples(150))
def test_a_budget_is_never_exceeded(
    places: list[ResourcePool], sizes: JobSizeClasses, budget: float, moment: float
) -> None:
    filled = JobPacking(places, sizes).within(moment, budget)

    assert filled.cost <= budget + 1e-6
    assert filled.cost == pytest.approx(cost_by_hand(places, sizes, filled.given.tolist()))
    assert (filled.given.sum(axis=1) + filled.left == sizes.count).all()
    assert (filled.given >= 0).all()
    assert (filled.left >= 0).all()


@given(one_size(), budgets, moments)
@settings(max_examples=examples(100))
def test_a_budget_does_as_many_jobs_of_one_size_as_it_can(
    case: tuple[list[ResourcePool], JobSizeClasses, float], budget: float, moment: float
) -> None:
    """All ways tried out, on two bays."""
    places, sizes, size = case
    places = places[:2]
    fits = [
        sum(
            max(0, math.floor((min(pool.until, moment, 1e6) - free) / (size * pool.seconds)))
            for free in pool.free_at
        )
        for pool in places
    ]
    most = max(
        sum(way)
        for way in itertools.product(*(range(min(n, sizes.jobs) + 1) for n in fits))
        if sum(way) <= sizes.jobs
        and sum(n * price(pool, size) for n, pool in zip(way, places, strict=True)) <= budget
    )

    assert JobPacking(places, sizes).within(moment, budget).given.sum() == most


@given(one_size(), st.tuples(moments, moments), st.tuples(budgets, budgets))
@settings(max_examples=examples(100))
def test_more_time_or_money_never_does_fewer_jobs_of_one_size(
    case: tuple[list[ResourcePool], JobSizeClasses, float],
    times: tuple[float, float],
    money: tuple[float, float],
) -> None:
    places, sizes, _ = case
    filling = JobPacking(places, sizes)
    (soon, late), (little, much) = sorted(times), sorted(money)

    def jobs(filled: PackingResult) -> int:
        return int(filled.given.sum())

    assert jobs(filling.by(soon)) <= jobs(filling.by(late))
    assert jobs(filling.within(soon, little)) <= jobs(filling.within(late, much))
    if filling.by(soon).is_whole:
        assert filling.by(late).cost <= filling.by(soon).cost + 1e-6
    rich, poor = filling.earliest(much), filling.earliest(little)
    assert poor is None or (rich is not None and rich <= poor + 1e-6)


@given(pools, mixed, moments, st.tuples(budgets, budgets))
@settings(max_examples=examples(100))
def test_more_money_never_does_fewer_jobs_of_any_sizes(
    places: list[ResourcePool], sizes: JobSizeClasses, moment: float, money: tuple[float, float]
) -> None:
    """More time may, as for any first fit."""
    filling = JobPacking(places, sizes)
    little, much = sorted(money)

    fewer, more = filling.within(moment, little), filling.within(moment, much)

    assert fewer.given.sum() <= more.given.sum()


@given(one_size(), moments, budgets)
@settings(max_examples=examples(75))
def test_the_end_of_jobs_of_one_size_is_that_of_the_last(
    case: tuple[list[ResourcePool], JobSizeClasses, float], moment: float, budget: float
) -> None:
    """Each bay's jobs end one after the other; the end is that of the one it needs last."""
    places, sizes, size = case
    filling = JobPacking(places, sizes)
    filled = filling.within(moment, budget)
    expected = 0.0
    for pool, jobs in zip(places, filled.given[0].tolist(), strict=True):
        ends = sorted(
            free + k * size * pool.seconds for free in pool.free_at for k in range(1, jobs + 1)
        )
        if jobs:
            expected = max(expected, ends[jobs - 1])

    found = filling.ends(filled)

    late = PRECISION * size * min(pool.seconds for pool in places)
    assert expected - 1e-5 <= found <= expected + late + 1e-5
    assert found <= max(moment, 0.0) + late + 1e-5


def test_a_job_on_two_idle_processors_ends_when_one_of_them_has_done_it() -> None:
    filling = JobPacking(
        [ResourcePool(seconds=10.0, cost=1.0, free_at=(0.0, 0.0))], JobSizeClasses.of([1.0] * 5)
    )

    # Ends at 10, 10, 20, 20, 30; the money is for one, and for three.
    assert filling.ends(filling.within(100.0, 1.0)) == pytest.approx(10.0, abs=0.02)
    assert filling.ends(filling.within(100.0, 3.0)) == pytest.approx(20.0, abs=0.02)


def test_what_a_job_pays_besides_counts_by_the_size_of_jobs() -> None:
    """At size 10, 10 + 5 * 1 = 15 is more than 1 * 10 + 4 = 14; at size 1 it is less."""
    dear_start = ResourcePool(seconds=1.0, cost=1.0, fixed=4.0, free_at=(0.0,))
    dear_time = ResourcePool(seconds=1.0, cost=1.5, fixed=0.0, free_at=(0.0,))

    long = JobPacking([dear_time, dear_start], JobSizeClasses.of([10.0])).by(100.0)
    short = JobPacking([dear_time, dear_start], JobSizeClasses.of([1.0])).by(100.0)

    assert (long.given.tolist(), long.cost) == ([[0, 1]], 14.0)
    assert (short.given.tolist(), short.cost) == ([[1, 0]], 1.5)


def test_without_a_deadline_a_slow_bargain_that_ends_is_used_to_its_end() -> None:
    """Not only for as long as the fast processor, whose price never ends, would take."""
    bargain = ResourcePool(seconds=100.0, cost=1.0, free_at=(0.0,), until=450.0)
    fast = ResourcePool(seconds=1.0, cost=5.0, free_at=(0.0,))
    filling = JobPacking([bargain, fast], JobSizeClasses.of([1.0] * 10))

    filled = filling.by(math.inf)

    assert (filled.given.tolist(), filled.cost) == ([[4, 6]], 4 + 30)
    assert filling.earliest(34.0) == pytest.approx(400.0, abs=0.01)


def test_nothing_fits_where_there_is_nothing() -> None:
    nowhere, nothing = JobPacking([], JobSizeClasses.of([1.0, 1.0])), JobSizeClasses.of([])

    assert nowhere.by(10.0).left.tolist() == [2]
    assert nowhere.within(10.0, 5.0).left.tolist() == [2]
    assert nowhere.earliest(math.inf) is None
    idle = JobPacking([ResourcePool(seconds=1.0, cost=1.0, free_at=(0.0,))], nothing)
    assert idle.by(10.0).is_whole
    assert idle.earliest(0.0) == 0.0
    assert idle.ends(idle.by(10.0)) == 0.0


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=200))
@settings(max_examples=examples(100))
def test_classes_keep_the_count_and_the_work_and_their_order(sizes: list[float]) -> None:
    """Few sizes stay as they are; of many, classes hold nearly equal numbers of jobs."""
    classes = JobSizeClasses.of(sizes)

    assert classes.jobs == len(sizes)
    assert classes.work == pytest.approx(sum(sizes))
    assert len(classes.size) <= CLASSES
    assert (classes.count > 0).all()
    assert (np.diff(classes.size) <= 1e-9 * classes.size[0]).all()
    if len(set(sizes)) <= CLASSES:
        assert classes.size.tolist() == pytest.approx(sorted(set(sizes), reverse=True))
    else:
        assert classes.count.max() - classes.count.min() <= 1
