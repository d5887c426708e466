"""A loaded cluster: best effort as the plain simulator has it, plans that occupy it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.cluster.job_table import Policy
from bursar.cluster.simulation import simulate
from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.task import Task
from bursar.model.trace import Trace
from bursar.planning.policy import PlacementPolicy as Placing
from bursar.planning.problem import build_problem
from bursar.planning.schedulers import schedule
from bursar.simulation.loaded_cluster import LoadedCluster, reserved_windows
from bursar_papers.workflows import layered


def trace(seed: int = 0, jobs: int = 300, processors: int = 32) -> Trace:
    """Jobs that keep a machine of so many processors busy, at whole seconds."""
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.integers(0, 40 * jobs, jobs)).astype(float)
    runtime = rng.integers(1, 200, jobs).astype(float)
    return Trace(
        name="t",
        number=np.arange(1, jobs + 1),
        submit=submit,
        runtime=runtime,
        estimate=runtime * rng.integers(1, 4, jobs),
        processors=rng.integers(1, processors + 1, jobs),
        wait=np.full(jobs, math.nan),
        user=np.full(jobs, -1),
    )


@given(
    seed=st.integers(0, 50),
    at=st.integers(0, 9000),
    policy=st.sampled_from(["fcfs", "easy", "conservative"]),
    loose=st.sampled_from([1.0, 1.5, None]),
)
@settings(max_examples=examples(60))
def test_best_effort_is_the_plain_simulation_of_the_same_jobs(
    seed: int, at: int, policy: Policy, loose: float | None
) -> None:
    """
    The workflow's tasks join the log at the moments they were submitted, and the
    simulator of traces starts every one of them when the cluster did.
    """
    log = trace(seed)
    cluster = LoadedCluster(log, 32, at=float(at), policy=policy, looseness=loose)
    rng = np.random.default_rng(seed)
    below = layered(rng, tasks=19, depth=4, mean_runtime=60.0, mean_processors=6.0)
    roots = [replace(t, after=("root",)) if not t.inputs else t for t in below.tasks]
    work = Workflow((Task(id="root", runtime=7.5), *roots))

    run = cluster.run(work)

    joined = at + run.submit
    width = np.array([task.processors for task in work.tasks])
    length = np.array([task.runtime for task in work.tasks])
    asked = log.estimate if loose is None else log.runtime * loose
    # Of one moment the log's jobs come first, then what one parent sets free, in order.
    submit = np.concatenate((log.submit, joined))
    order = np.lexsort((np.repeat((0, 1), (len(log), 20)), submit))
    both = replace(
        log,
        number=np.arange(1, len(submit) + 1),
        submit=submit[order],
        runtime=np.concatenate((log.runtime, length))[order],
        estimate=np.concatenate((asked, length))[order],
        processors=np.concatenate((log.processors, width))[order],
        wait=np.full(len(submit), math.nan),
        user=np.full(len(submit), -1),
    )
    plain = simulate(both, processors=32, policy=policy, early="keep")
    start = np.empty(len(submit))
    start[order] = plain.start
    assert start[len(log) :] - at == pytest.approx(run.start, abs=1e-6)


def test_tasks_wait_for_their_parents_and_all_run() -> None:
    cluster = LoadedCluster(trace(), 32, at=2000.0)
    work = layered(np.random.default_rng(3), tasks=40, depth=5, mean_runtime=50.0)

    run = cluster.run(work)

    for task, parents in enumerate(work.parents):
        assert run.submit[task] == max((run.finish[p] for p in parents), default=0.0)
        assert run.start[task] >= run.submit[task] - 1e-9
    assert run.makespan == run.finish.max() == pytest.approx(cluster.now - 2000.0)


def test_a_task_without_duration_is_over_at_once() -> None:
    tasks = (Task(id="a", runtime=0.0), Task(id="b", runtime=5.0, after=("a",)))
    run = LoadedCluster(trace(jobs=1), 32, at=5000.0).run(Workflow(tasks))
    assert run.finish.tolist() == [0.0, 5.0]


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(InputError, match="unknown runtime"):
        LoadedCluster(trace(), 32, at=0.0).run(Workflow((Task(id="a"),)))


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_is_reserved_as_advertised_and_the_others_queue_around_it(seed: int) -> None:
    """
    What is advertised can be reserved, whole; then it is not advertised any more.
    """
    cluster = LoadedCluster(trace(seed), 32, at=3000.0)
    work = layered(np.random.default_rng(seed), tasks=30, depth=3, mean_processors=8.0)
    problem = build_problem(work, [cluster.facts()])
    plan = schedule(problem, problem.everything, Placing())
    before = cluster.copy().waits(3000.0, 6000.0)

    cluster.provision(problem, plan)

    held = sum(duration * width for _, duration, width in reserved_windows(problem, plan))
    assert held >= sum(task.runtime * task.processors for task in work.tasks) - 1e-6  # type: ignore[operator]
    assert cluster.waits(3000.0, 6000.0).sum() >= before.sum()


def test_what_is_not_free_is_refused_and_leaves_nothing() -> None:
    """
    All processors are taken from the plan's first moment on.
    """
    cluster = LoadedCluster(trace(), 32, at=3000.0)
    work = layered(np.random.default_rng(2), tasks=5, depth=2, mean_processors=8.0)
    problem = build_problem(work, [cluster.facts()])
    plan = schedule(problem, problem.everything)
    begin = min(start for start, *_ in reserved_windows(problem, plan))
    free = [
        slot for slot in cluster.facts().slots if slot.start <= begin < slot.start + slot.duration
    ]
    cluster.machine.reserve(3000.0 + begin, 1.0, sum(slot.processors for slot in free))
    before = cluster.machine.reservations

    with pytest.raises(InputError, match="cannot be reserved"):
        cluster.provision(problem, plan)

    assert cluster.machine.reservations == before


def test_windows_hold_what_tasks_use_of_a_divisible_slot() -> None:
    """Two tasks that overlap: three rectangles."""
    cluster = LoadedCluster(trace(jobs=1), 4, at=5000.0)
    tasks = (
        Task(id="a", runtime=10.0),
        Task(id="b", runtime=20.0, processors=2),
        Task(id="c", runtime=5.0, processors=3, after=("a",)),
    )
    problem = build_problem(Workflow(tasks), [cluster.facts()])
    plan = schedule(problem, problem.everything)
    found = reserved_windows(problem, plan)
    assert sum(d * n for _, d, n in found) == pytest.approx(10 + 40 + 15)
    assert max(n for *_, n in found) <= 4


def test_the_log_is_left_as_it_is_by_a_copy() -> None:
    cluster = LoadedCluster(trace(), 32, at=1000.0)
    twin = cluster.copy()
    twin.run(layered(np.random.default_rng(1), tasks=10, depth=2, mean_processors=16.0))
    assert cluster.now == 1000.0
    again = LoadedCluster(trace(), 32, at=1000.0)
    assert cluster.waits(1000.0, 3000.0).tolist() == again.waits(1000.0, 3000.0).tolist()


def test_nobody_asks_for_less_than_he_takes() -> None:
    with pytest.raises(InputError, match="cannot ask for less"):
        LoadedCluster(trace(), 32, at=0.0, looseness=0.5)
