"""Independent serial tasks on heaps of processors, against a plain twin and the profiles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.random_problems import site_lists
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.planning import schedulers
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.kernels import bags, lists
from bursar.planning.policy import PlacementPolicy
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import SHORTEST, Outputs, priority_of, schedule

RUNTIMES = st.lists(
    st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.0, 2.0, 3.7, 9.0]), min_size=1, max_size=30
)


def _bag(runtimes: list[float]) -> Workflow:
    return Workflow(tuple(Task(id=f"t{i}", runtime=r) for i, r in enumerate(runtimes)))


def _outputs(problem: PlanningProblem, count: int) -> Outputs:
    shape = (count, problem.n_slots)
    return (np.empty(count), np.empty(count), np.ones(shape, dtype=np.bool_), np.ones(shape))


def _places(made: Schedule) -> tuple[list[int], list[int], list[float]]:
    """Site, slot and start of each task."""
    held = np.full(len(made.site), -1)
    task, slot, _ = made.holdings
    held[task] = slot
    return made.site.tolist(), held.tolist(), made.start.tolist()


def _twin(problem: PlanningProblem, caps: list[int]) -> tuple[list[int], list[int], list[float]]:
    """Site, slot and start of each task; each looks at every processor of every slot."""
    arrays = problem.offers.arrays
    free = [
        [float(arrays.begin[i])] * n if arrays.last[i] > arrays.begin[i] else []
        for i, n in enumerate(caps)
    ]
    used = [False] * len(caps)
    bought = [sum(caps[a:b]) for a, b in zip(arrays.first[:-1], arrays.first[1:], strict=True)]
    site, slot = [-1] * problem.n_tasks, [-1] * problem.n_tasks
    start = [0.0] * problem.n_tasks
    for task in priority_of(problem, np.array(caps), "heft").tolist():
        places = []
        for s in range(problem.n_sites):
            duration = float(problem.runtimes[task, s])
            if not bought[s] or duration == np.inf:
                continue
            if duration == 0:
                places.append((0.0, s, False, -1, 0.0))
                continue
            for i in range(arrays.first[s], arrays.first[s + 1]):
                places += [
                    (moment + duration, s, not used[i], i, moment)
                    for moment in free[i]
                    if moment + duration <= arrays.last[i]
                ]
        if not places:
            break
        finish, site[task], _, at, start[task] = min(places)
        if at >= 0:
            slot[task] = at
            used[at] = True
            free[at].remove(start[task])
            free[at].append(finish)
        else:
            _use_lease(problem, caps, site[task], used)
    return site, slot, start


def _use_lease(problem: PlanningProblem, caps: list[int], s: int, used: list[bool]) -> None:
    """A task without duration counts as a use of the first lease that is open when it runs."""
    arrays = problem.offers.arrays
    for i in range(arrays.first[s], arrays.first[s + 1]):
        if arrays.leased[i] and arrays.begin[i] <= 0 <= arrays.last[i] and caps[i]:
            used[i] = True
            return


@given(runtimes=RUNTIMES, sites=site_lists(), choice=st.randoms(use_true_random=False))
@settings(max_examples=examples(300))
def test_tasks_go_where_the_plain_twin_puts_them(
    runtimes: list[float], sites: list[SiteFacts], choice: object
) -> None:
    """The heaps find the processor that a look at all processors finds."""
    problem = build_problem(_bag(runtimes), sites)
    caps = [choice.randint(0, slot.processors) for slot in problem.offers.slots]  # type: ignore[attr-defined]
    assert schedulers.is_bag(problem)

    made = schedule(problem, np.array(caps))

    assert _places(made) == _twin(problem, caps)


@given(
    runtimes=RUNTIMES,
    sites=site_lists(),
    whole=st.booleans(),
    choice=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(300))
def test_schedules_and_costs_are_those_of_the_profiles(
    runtimes: list[float], sites: list[SiteFacts], whole: bool, choice: object
) -> None:
    """Heaps only save time: every figure is the one that the steps of the slots give."""
    problem = build_problem(_bag(runtimes), sites)
    caps = np.array(
        [[choice.randint(0, s.processors) for s in problem.offers.slots] for _ in range(3)]  # type: ignore[attr-defined]
    )
    priorities = np.array([priority_of(problem, row, "heft") for row in caps])
    tasks, slots = problem.tasks, problem.offers.arrays

    for given_ in (priorities, priorities[:1]):
        heaps, profiles = _outputs(problem, 3), _outputs(problem, 3)
        ours = bags.evaluate_bag(tasks, slots, caps, given_, whole, SHORTEST, *heaps)
        theirs = lists.evaluate(
            tasks, slots, caps, lists.FINISH, given_, 0.5, 1.0, whole, SHORTEST, *profiles
        )
        for a, b in zip(heaps, profiles, strict=True):
            np.testing.assert_array_equal(a, b)
        ours, theirs = (schedulers.from_draft(problem, made) for made in (ours, theirs))
        assert ours.complete == theirs.complete
        for name in ("site", "start", "finish", "used", "until", "peak", "paid"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        for a, b in zip(ours.holdings, theirs.holdings, strict=True):
            np.testing.assert_array_equal(a, b)


@given(runtimes=RUNTIMES, sites=site_lists(), choice=st.randoms(use_true_random=False))
@settings(max_examples=examples(50))
def test_machine_code_and_plain_python_agree(
    runtimes: list[float], sites: list[SiteFacts], choice: object
) -> None:
    """The kernel is right without a compiler too."""
    problem = build_problem(_bag(runtimes), sites)
    caps = np.array([[choice.randint(0, s.processors) for s in problem.offers.slots]])  # type: ignore[attr-defined]
    priorities = priority_of(problem, caps[0], "heft")[None, :]
    compiled, plain = _outputs(problem, 1), _outputs(problem, 1)
    given_ = (problem.tasks, problem.offers.arrays, caps, priorities, False, SHORTEST)

    bags.evaluate_bag.compiled(*given_, *compiled)
    with np.errstate(all="ignore"):
        bags.evaluate_bag.plain(*given_, *plain)

    for a, b in zip(compiled, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_processors_are_taken_in_turn() -> None:
    """A heap of hundreds stays in order through thousands of tasks."""
    rng = np.random.default_rng(0)
    sites = [
        SiteFacts(name="a", processors=300, unit_price=1.0),
        SiteFacts(name="b", processors=70, speed=1.7, unit_price=2.0),
    ]
    problem = build_problem(_bag(rng.uniform(1, 100, 3000).tolist()), sites)
    caps = problem.everything.tolist()

    made = schedule(problem, problem.everything)

    assert _places(made) == _twin(problem, caps)
    assert made.peak.tolist() == caps


@pytest.mark.parametrize("scheduler", ["heft", "list", "greedy"])
def test_purchases_that_share_an_order_are_scored_each_for_itself(scheduler: str) -> None:
    """Purchases of other sites lie between those that share an order, and keep their rows."""
    sites = [
        SiteFacts(name="a", processors=5, unit_price=1.0),
        SiteFacts(name="b", processors=3, speed=2.0, unit_price=2.0, fixed_price=1.0),
    ]
    workflow = Workflow(
        tuple(
            replace(task, after=() if i < 3 else (f"t{i - 3}",))
            for i, task in enumerate(_bag([3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0]).tasks)
        )
    )
    problem = build_problem(workflow, sites)
    policy = PlacementPolicy(scheduler=scheduler)  # type: ignore[arg-type]
    caps = np.array([[1, 0], [2, 1], [0, 3], [5, 0], [3, 2], [0, 1], [5, 3]])

    found = PurchaseEvaluator(problem, policy, threads=2).evaluate(caps)

    for i, row in enumerate(caps):
        made = schedule(problem, row, policy)
        assert found.makespan[i] == made.makespan
        assert found.used[i].tolist() == made.used.tolist()
        paid = made.paid * problem.offers.arrays.unit_price + problem.offers.arrays.fixed_price
        assert found.cost[i] == pytest.approx(paid[made.used].sum())
