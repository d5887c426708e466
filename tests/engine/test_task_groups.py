"""Groups of tasks of which only so many may be under way at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.task_dependencies import TaskGroups
from bursar.engine.task_states import (
    CANCELLED,
    CLAIMED,
    DELAYED,
    HELD,
    READY,
    SUCCEEDED,
    WAITING,
)
from bursar.model.campaign import Retry

MOVES = ("start", "claim", "succeed", "again", "later", "wake", "cancel", "adopt")


def grouped(limits: list[tuple[str, int] | None], restored: int = 0) -> InstanceTasks:
    """Return held tasks of groups, the first of which may run since before a restart."""
    tasks = InstanceTasks(Retry(attempts=9, backoff=0.0))
    tasks.grow(len(limits))
    tasks.enter(range(len(limits)), [1] * len(limits), [1.0] * len(limits))
    tasks.groups = TaskGroups(tasks.states, tasks.dependencies)
    tasks.restored = restored
    for task, limit in enumerate(limits):
        if limit is not None:
            tasks.groups.add(task, *limit, is_restored=task < restored)
    return tasks


limits = st.none() | st.tuples(st.sampled_from("ab"), st.integers(1, 3))


@given(
    st.lists(limits, min_size=1, max_size=9),
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 8)), max_size=60),
)
def test_no_more_of_a_group_are_under_way_than_each_allows_and_none_waits_in_vain(
    of: list[tuple[str, int] | None], restored: int, moves: list[tuple[str, int]]
) -> None:
    restored = min(restored, len(of))
    tasks, adopted = grouped(of, restored), set[str]()
    states, could_start = tasks.states, set[int]()
    for what, task in moves:
        task %= len(of)
        state = states[task]
        match what, state:
            case "start", 1:
                could_start.add(task)
                tasks.start([task])
            case "claim", 4:
                tasks.move(task, CLAIMED)
            case "succeed", 5:
                tasks.move(task, SUCCEEDED)
            case "again", 5:
                tasks.requeue(task)
            case "later", 5:
                tasks.requeue(task, 1.0)
            case "wake", _:
                tasks.wake(1.0)
            case "cancel", _ if state < CLAIMED:
                tasks.end(task, CANCELLED)
            case "adopt", 1 if task < restored:
                # Nobody can keep a worker from having more since before.
                adopted.update(() if of[task] is None else (of[task][0],))  # type: ignore[index]
                could_start.add(task)
                tasks.move(task, CLAIMED)
        assert tasks.counts == [sum(s == n for s in states) for n in range(len(tasks.counts))]
        for name in "ab":
            members = [t for t, limit in enumerate(of) if limit is not None and limit[0] == name]
            under_way = [t for t in members if states[t] in (READY, CLAIMED)]
            most = max((of[t][1] for t in under_way), default=0)  # type: ignore[index]
            assert len(under_way) <= most or name in adopted
            ready = [t for t in members if states[t] == READY]
            if any(states[t] == HELD for t in members if t < restored):
                assert not ready  # a worker may still have that one
                continue
            waiting = [t for t in members if states[t] == WAITING]
            if waiting:  # nobody waits for a turn that is there
                assert len(under_way) >= of[min(waiting)][1]  # type: ignore[index]
    for task in could_start:
        if of[task] is None:
            assert states[task] not in (HELD, WAITING)


def test_the_turn_of_a_task_that_is_tried_later_goes_to_another() -> None:
    tasks = grouped([("a", 1)] * 2)
    tasks.start([0, 1])
    assert list(tasks.states) == [READY, WAITING]
    tasks.move(0, CLAIMED)
    tasks.requeue(0, 5.0)
    assert list(tasks.states) == [DELAYED, READY]
    tasks.wake(5.0)
    assert list(tasks.states) == [WAITING, READY]


def test_a_group_without_members_leaves_nothing_behind() -> None:
    tasks = grouped([("long", 1)] * 3)
    assert tasks.groups is not None
    assert [tasks.groups.forget(task) for task in (0, 1, 2, 2)] == [4, 4, 4, 0]
    assert not tasks.groups._groups
    assert 0 not in tasks.groups


@pytest.mark.parametrize("most", [1, 2])
def test_the_smallest_number_comes_first(most: int) -> None:
    tasks = grouped([("a", most)] * 4)
    tasks.start([3, 2, 1, 0])
    assert [t for t, state in enumerate(tasks.states) if state == READY] == list(range(most))
