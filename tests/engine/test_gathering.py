"""Tasks that need a share of their parents only: when they start, and what cannot run any more."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.engine.run_tasks import RunTasks
from bursar.engine.task_states import FAILED, READY, SKIPPED, SUCCEEDED, WAITING
from bursar.model.campaign import Retry, UnreachableTasks, Workflow, spare_parents
from bursar.model.task import File, Outcome, Status, Task


@st.composite
def workflows(draw: st.DrawFn) -> Workflow:
    """Return up to nine tasks, each after some before it, of which some need a share of these."""
    tasks = []
    for number in range(draw(st.integers(1, 9))):
        parents = draw(st.sets(st.integers(0, number - 1), max_size=4)) if number else set()
        needs = draw(st.none() | st.sampled_from([0.0, 0.3, 0.5, 0.95, 1.0]))
        after = tuple(f"t{parent}" for parent in sorted(parents))
        tasks.append(Task(id=f"t{number}", after=after, needs=needs))
    return Workflow(tuple(tasks))


def queued(workflow: Workflow) -> RunTasks:
    """Return a queue with all tasks of a workflow, one try each."""
    queue = RunTasks(Retry(attempts=1, backoff=0.0))
    queue.extend(workflow.tasks, workflow.parents)
    return queue


@given(workflows(), st.data())
def test_a_task_starts_when_its_parents_have_ended_and_enough_succeeded(
    workflow: Workflow, data: st.DataObject
) -> None:
    """In whatever order tasks end, the columns say what the definition and the plain twin say."""
    queue, twin = queued(workflow), UnreachableTasks(workflow)
    states, unreachable = queue.tasks.states, set()
    while True:
        for task, parents in enumerate(workflow.parents):
            ended = [states[p] >= SUCCEEDED for p in parents]
            enough = len(parents) - spare_parents(len(parents), workflow.tasks[task].needs)
            good = sum(states[p] == SUCCEEDED for p in parents)
            bad = sum(ended) - good
            if states[task] == READY:
                assert all(ended)
                assert good >= enough
            elif states[task] == SKIPPED:
                assert len(parents) - bad < enough
            elif states[task] == WAITING:
                assert not all(ended)
                assert len(parents) - bad >= enough
        assert {t for t, state in enumerate(states) if state == SKIPPED} == unreachable
        ready = [task for task, state in enumerate(states) if state == READY]
        if not ready:
            break
        task = data.draw(st.sampled_from(ready))
        if data.draw(st.booleans()):
            queue.tasks.move(task, SUCCEEDED)
            queue.tasks.release(task)
        else:
            queue.tasks.end(task, FAILED)
            unreachable |= set(twin.end(task))
    assert all(state >= SUCCEEDED for state in states)


@given(workflows(), st.data())
def test_a_restored_queue_stands_where_the_last_life_ended(
    workflow: Workflow, data: st.DataObject
) -> None:
    """Whatever had ended by then, and in whatever order the attempts are read back."""
    queue = queued(workflow)
    states, past, now = queue.tasks.states, [], 0.0
    for _ in range(data.draw(st.integers(0, len(workflow.tasks)))):
        ready = [task for task, state in enumerate(states) if state == READY]
        if not ready:
            break
        task = data.draw(st.sampled_from(ready))
        good = data.draw(st.booleans())
        status = Status.SUCCEEDED if good else Status.FAILED
        past.append(Outcome(task=task, attempt=1, status=status, start=now, end=now + 1))
        now += 2
        if good:
            queue.tasks.move(task, SUCCEEDED)
            queue.tasks.release(task)
        else:
            queue.tasks.end(task, FAILED)
    again = queued(workflow)
    again.restore(data.draw(st.permutations(past)))
    assert list(again.tasks.states) == list(states)


def outcome(task: int, status: Status, start: float, attempt: int = 1) -> Outcome:
    return Outcome(task=task, attempt=attempt, status=status, start=start, end=start + 1)


def gathering(**more: Any) -> Workflow:
    """Return two makers, one that gathers of any of them, and one that reads what was gathered."""
    makers = [Task(id=f"m{n}", outputs=(File(f"m{n}"),)) for n in range(2)]
    gather = Task(id="g", inputs=(File("m0"), File("m1")), outputs=(File("g"),), needs=0.0, **more)
    return Workflow((*makers, gather, Task(id="r", inputs=(File("g"),))))


PAST = [
    outcome(0, Status.SUCCEEDED, 0.0),
    outcome(1, Status.FAILED, 0.0),
    outcome(2, Status.SUCCEEDED, 2.0),
    outcome(3, Status.SUCCEEDED, 4.0),
]


def test_what_was_gathered_counts_until_an_absent_input_is_made_again() -> None:
    """A parent that is tried again, or has succeeded since, has the gathering done anew."""
    queue = queued(gathering())
    queue.restore(PAST)
    assert list(queue.tasks.states) == [SUCCEEDED, FAILED, SUCCEEDED, SUCCEEDED]

    queue = queued(gathering())
    queue.restore(PAST, retry_failed=True)
    assert list(queue.tasks.states) == [SUCCEEDED, READY, WAITING, WAITING]
    assert queue.tasks.attempts[2] == 1  # the next attempt has another number

    queue = queued(gathering())
    queue.restore([*PAST, outcome(1, Status.SUCCEEDED, 9.0, attempt=2)])  # killed just then
    assert list(queue.tasks.states) == [SUCCEEDED, SUCCEEDED, READY, WAITING]

    queue = queued(gathering())
    queue.restore(
        [
            *PAST,
            outcome(1, Status.SUCCEEDED, 9.0, attempt=2),
            outcome(2, Status.SUCCEEDED, 11.0, attempt=2),
        ]
    )
    # What reads the gathered file is of the first gathering, and older than the second.
    assert list(queue.tasks.states) == [SUCCEEDED, SUCCEEDED, SUCCEEDED, READY]


@pytest.mark.parametrize(
    ("parents", "needs", "spare"),
    [
        (4, None, 0),
        (4, 1.0, 0),
        (4, 0.0, 3),
        (20, 0.95, 1),
        (100, 0.07, 93),
        (3, 0.5, 1),
        (0, 0, 0),
    ],
)
def test_spare_parents(parents: int, needs: float | None, spare: int) -> None:
    """Shares are rounded up: 50 % of three are two. At least one must succeed."""
    assert spare_parents(parents, needs) == spare
