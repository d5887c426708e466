"""The searches: what they are made of, and what all of them keep to."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.random_problems import site_lists, workflows
from tests.thoroughness import examples

from bursar.model.campaign import Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.evaluation import PurchaseEvaluator, PurchaseScores
from bursar.planning.front import ParetoFront
from bursar.planning.methods import elitist, genetic
from bursar.planning.methods.genetic import (
    crossed,
    domination,
    mutated,
    random_subsets,
    sampled,
    unique,
)
from bursar.planning.methods.search import PlanSearch
from bursar.planning.policy import METHODS, Method, PlacementPolicy, SearchLimits
from bursar.planning.problem import build_problem
from bursar.planning.trade_off_solver import plan_option, problem_of, trade_off
from bursar.planning.validation import violations
from bursar_devtools.front_measures import nondominated

FEW = SearchLimits(population=6, generations=3, evaluations=60)


def _front(workflow: Workflow, sites: list[SiteFacts], **options: object) -> ParetoFront | None:
    try:
        return trade_off(workflow, sites, limits=FEW, **options)  # type: ignore[arg-type]
    except InputError as error:
        if not re.search("no plan holds every task|processors", error.message):
            raise
        return None


@pytest.mark.parametrize("method", METHODS)
@given(workflow=workflows(), sites=site_lists(), whole=st.booleans())
@settings(max_examples=examples(40))
def test_every_plan_of_every_method_keeps_the_rules(
    method: Method, workflow: Workflow, sites: list[SiteFacts], whole: bool
) -> None:
    front = _front(workflow, sites, method=method, whole=whole)
    if front is None:
        return

    points = np.array([(o.makespan, o.cost) for o in front.options])
    assert nondominated(points).tolist() == list(range(len(points)))
    for (fast, dear), (slow, cheap) in itertools.pairwise(points.tolist()):
        assert fast < slow
        assert dear > cheap
    for option in front.options:
        plan = plan_option(front, option)
        if not whole:
            assert violations(plan, workflow, front.sites) == []
        assert plan.makespan == option.makespan
        assert option.bound is not None
        assert option.bound <= option.makespan * (1 + 1e-9)  # type: ignore[operator]
        if option.cost_bound is not None:
            assert option.cost_bound <= option.cost * (1 + 1e-6) + 1e-6  # type: ignore[operator]


@pytest.mark.parametrize("method", METHODS)
def test_equal_seeds_give_equal_fronts_on_any_number_of_threads(method: Method) -> None:
    workflow, sites = _some_instance(3)
    one = trade_off(workflow, sites, method=method, limits=FEW)
    two = trade_off(workflow, sites, method=method, limits=FEW)

    assert one == two


def test_what_runs_nowhere_is_paid_only_in_the_whole_accounting() -> None:
    workflow = Workflow((Task(id="a", runtime=5),))
    slots = tuple(
        Slot(site="s", start=10.0 * i, duration=8, processors=1, unit_price=1.0, divisible=False)
        for i in range(3)
    )
    problem = build_problem(workflow, [SiteFacts(name="s", processors=1, slots=slots)])

    costs = [
        PurchaseEvaluator(problem, PlacementPolicy(), whole=whole)
        .evaluate(problem.everything[None])
        .cost[0]
        for whole in (False, True)
    ]

    assert costs == [8.0, 24.0]


def test_the_genetic_algorithm_only_gets_better_and_keeps_to_its_goal() -> None:
    workflow, sites = _some_instance(5)
    problem = build_problem(workflow, sites)
    best = []
    for generations in (0, 4, 12):
        search = PlanSearch(
            PurchaseEvaluator(problem, PlacementPolicy(weight=0.5, worth=50.0)),
            SearchLimits(population=12, generations=generations, seed=1),
        )
        genetic.genetic(search, Goal())
        points = search.archive.points
        best.append(float((0.5 * points[:, 1] + 0.5 * 50 * points[:, 0]).min()))

    assert best == sorted(best, reverse=True)
    scores = search.bits(random_subsets(np.random.default_rng(0), 30, problem.n_slots))
    deadline = float(np.median(scores.makespan[scores.feasible]))
    total = genetic.total_cost(search, scores, Goal(deadline=deadline))
    assert np.isinf(total[~(scores.makespan <= deadline)]).all()
    assert np.isfinite(total[scores.makespan <= deadline]).all()


def test_offspring_of_the_genetic_algorithm_are_exclusive_or_and_its_complement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Section 3: in exactly one parent; in both or neither."""
    workflow, sites = _some_instance(2)
    problem = build_problem(workflow, sites)
    search = PlanSearch(
        PurchaseEvaluator(problem, PlacementPolicy()),
        SearchLimits(population=2, generations=1, seed=4),
    )
    seen: list[np.ndarray] = []
    plain = PlanSearch.bits

    def spy(self: PlanSearch, bits: np.ndarray) -> PurchaseScores:
        seen.append(bits)
        return plain(self, bits)

    monkeypatch.setattr(PlanSearch, "bits", spy)
    genetic.genetic(search, Goal())

    (a, b), offspring = seen[0], seen[1]
    assert {row.tobytes() for row in offspring} <= {(a ^ b).tobytes(), (~(a ^ b)).tobytes()}


OBJECTIVES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)) | st.just((np.inf, np.inf)),
    min_size=2,
    max_size=25,
)


@given(OBJECTIVES)
def test_fitness_falls_with_the_rank_and_is_shared_within_it(
    objectives: list[tuple[float, float]],
) -> None:
    array = np.array(objectives, dtype=float)

    rank = genetic.ranks(array)
    fitness = genetic.shared_fitness(array)

    beaten = [
        sum(all(a <= b for a, b in zip(o, p, strict=True)) and o != p for o in objectives)
        for p in objectives
    ]
    assert rank.tolist() == [1 + n for n in beaten]
    assert (fitness > 0).all()
    assert fitness.sum() == pytest.approx(len(array) * (len(array) + 1) / 2)
    for low, high in itertools.pairwise(np.unique(rank)):
        assert fitness[rank == low].mean() > fitness[rank == high].mean()


@given(OBJECTIVES)
def test_fronts_and_crowding_are_pymoos(objectives: list[tuple[float, float]]) -> None:
    pytest.importorskip("pymoo")
    from pymoo.operators.survival.rank_and_crowding.metrics import calc_crowding_distance
    from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

    array = np.array([o for o in objectives if np.isfinite(o[0])] or [(1.0, 1.0)], dtype=float)

    front = genetic.fronts(array)

    expected = NonDominatedSorting().do(array)
    assert [sorted(np.flatnonzero(front == k)) for k in range(len(expected))] == [
        sorted(members) for members in expected
    ]
    first = np.unique(array[front == 0], axis=0)
    if len(first) > 2:  # pymoo divides by the number of objectives
        ours = genetic.crowding(first)
        theirs = calc_crowding_distance(first, filter_out_duplicates=False)
        assert ours / 2 == pytest.approx(theirs)


def test_what_is_impossible_is_beaten_by_all_that_is_possible() -> None:
    array = np.array([(1.0, 9.0), (np.inf, np.inf), (9.0, 1.0)])

    assert domination(array).tolist() == [
        [False, True, False],
        [False, False, False],
        [False, True, False],
    ]


@given(st.integers(0, 99), st.integers(2, 12), st.integers(1, 3))
def test_crossover_takes_each_bit_from_one_parent_and_the_other_from_the_other(
    seed: int, bits: int, points: int
) -> None:
    rng = np.random.default_rng(seed)
    first, second = np.zeros((5, bits), dtype=bool), np.ones((5, bits), dtype=bool)

    one, other = crossed(rng, first, second, points)

    assert (one ^ other).all()
    turns = (np.diff(one.astype(int), axis=1) != 0).sum(axis=1)
    assert (turns == min(points, bits - 1)).all()


@given(st.integers(0, 99))
def test_sampling_gives_each_its_share_rounded(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fitness = rng.random(6) + 0.01

    drawn = np.bincount(sampled(rng, fitness, 20), minlength=6)

    share = fitness / fitness.sum() * 20
    assert (drawn >= np.floor(share)).all()
    assert (drawn <= np.ceil(share)).all()


def test_subsets_are_all_different_and_mutation_flips_at_its_rate() -> None:
    rng = np.random.default_rng(0)
    assert len(unique(random_subsets(rng, 8, 3))) == 8
    assert len(random_subsets(rng, 50, 3)) == 8
    flipped = mutated(rng, np.zeros((2000, 50), dtype=bool), 1 / 50)
    assert flipped.mean() == pytest.approx(1 / 50, rel=0.05)


def test_a_front_says_how_it_was_made() -> None:
    workflow, sites = _some_instance(1)

    front = trade_off(workflow, sites, method="moga", scheduler="list", limits=FEW)

    assert (front.method, front.scheduler) == ("moga", "list")
    # A set of slots that comes again is not scheduled again.
    assert 12 <= front.evaluations <= FEW.population * (FEW.generations + 1)  # type: ignore[operator]
    assert len(front.tried) <= front.evaluations
    assert problem_of(front).n_slots == sum(len(s.offers) for s in sites)


def _some_instance(seed: int, tasks: int = 14, slots: int = 10) -> tuple[Workflow, list[SiteFacts]]:
    """Rigid tasks in chains, and slots of two sites one after the other."""
    rng = np.random.default_rng(seed)
    workflow = Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=float(rng.integers(20, 90)),
                processors=int(rng.integers(1, 5)),
                after=(f"t{i - 3}",) if i >= 3 else (),
            )
            for i in range(tasks)
        )
    )
    sites = []
    for name, processors in (("a", 6), ("b", 9)):
        offered = tuple(
            Slot(
                site=name,
                start=float(160 * k),
                duration=150.0,
                processors=int(rng.integers(3, processors + 1)),
                unit_price=float(rng.integers(1, 4)),
                divisible=False,
            )
            for k in range(slots)
        )
        sites.append(SiteFacts(name=name, processors=processors, slots=offered))
    return workflow, sites


@given(
    workflow=workflows(),
    moves=st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from([-2.0, 0.0, 0.25, 3.0])), max_size=4
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(60))
def test_tasks_moved_one_by_one_are_in_the_order_of_all_sorted(
    workflow: Workflow, moves: list[tuple[int, float]], seed: int
) -> None:
    """Ties, parents and tasks that do not move included."""
    sites = [SiteFacts(name="s", processors=64, unit_price=1.0)]
    problem = build_problem(workflow, sites, 0.0)
    random = np.random.default_rng(seed)
    keys = random.integers(0, 4, problem.n_tasks).astype(float)
    changed = keys.copy()
    for task, by in moves:
        changed[task % problem.n_tasks] += by
    orders = elitist.TaskOrders(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elitist, "MANY_TASKS", 0)
        patch.setattr(elitist, "FEW_MOVED", 1.0)

        found = orders.sort(changed, orders.sort(keys))

    expected = orders.sort(changed)
    assert found.order.tolist() == expected.order.tolist()
    assert found.raised.tolist() == expected.raised.tolist()
