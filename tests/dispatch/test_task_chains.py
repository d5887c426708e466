"""Tasks that go to a worker before the tasks which they follow have ended there."""

import math

import hypothesis.strategies as st
from hypothesis import given
from tests.dispatch.queue_rig import QueueRig

from bursar.engine.held_tasks import blamed_claims
from bursar.engine.task_states import (
    CLAIMED,
    FAILED,
    READY,
    SKIPPED,
    SUCCEEDED,
    WAITING,
)
from bursar.model.campaign import Retry
from bursar.model.money import Refusal
from bursar.model.task import Outcome, Status, Task


def queue_of(*parents: tuple[int, ...], attempts: int = 3) -> QueueRig:
    """A queue of tasks, and the worker "far" with two processors, which takes followers."""
    queue = QueueRig(Retry(attempts=attempts, backoff=0.0))
    queue.extend([Task(id=f"t{i}") for i in range(len(parents))], parents)
    queue.join("far", "lease", 2).takes_followers = True
    return queue


def fill(queue: QueueRig, refused: frozenset[int] = frozenset()) -> dict[str, list[int]]:
    """Return the tasks that each worker is given."""

    def admit(task: int, lease: str) -> float | Refusal:
        return Refusal("no money", final=False) if task in refused else math.inf

    given = queue.fill(0.0, admit)
    return {worker.name: [claim.task for claim in claims] for worker, claims in given}


def end(queue: QueueRig, task: int, status: Status = Status.SUCCEEDED) -> None:
    """Report the end of a task's present attempt at the worker "far"."""
    attempt = queue.tasks.attempts.get(task, 0) + 1
    outcome = Outcome(task=task, attempt=attempt, status=status)
    verdict = queue.finish("far", outcome, 0.0, hold=True)
    assert verdict is not None
    if status is Status.SUCCEEDED:
        queue.tasks.release(task)
    elif not verdict.final:
        queue.tasks.recorded(task, 0.0)


def test_what_follows_goes_along_through_all_generations() -> None:
    """The worker is told after which tasks of its own; only what may begin holds processors."""
    queue = queue_of((), (0,), (0, 1), (2,))
    given = queue.fill(0.0, lambda task, lease: math.inf)
    assert [(c.task, c.after) for _, claims in given for c in claims] == [
        (0, ()),
        (1, (0,)),
        (2, (0, 1)),
        (3, (2,)),
    ]
    worker = queue.workers["far"]
    assert worker.used == 1
    assert (queue.counts.running, queue.counts.waiting) == (1, 3)
    end(queue, 0)
    assert fill(queue) == {}
    assert worker.used == 1  # that of task 1
    for task in (1, 2, 3):
        end(queue, task)
    assert queue.counts.succeeded == 4
    assert worker.is_idle


def test_a_task_with_a_parent_elsewhere_waits() -> None:
    """Here and at another worker, which takes no followers."""
    queue = queue_of((), (), (), (0, 1, 2), (3,))
    queue.join("near", "lease", 1)
    given = fill(queue)
    assert sorted(task for tasks in given.values() for task in tasks) == [0, 1, 2]
    assert queue.tasks.states[3] == queue.tasks.states[4] == WAITING


def test_without_money_what_follows_waits() -> None:
    """It is asked for again when it is ready."""
    queue = queue_of((), (0,), (1,))
    assert fill(queue, frozenset({1})) == {"far": [0]}
    end(queue, 0)
    assert fill(queue) == {"far": [1, 2]}


def test_what_comes_back_waits_for_its_parents_again() -> None:
    """A task is not tried before those that it follows, however its own attempt ended."""
    for status in (Status.CANCELLED, Status.FAILED):
        queue = queue_of((), (0,))
        fill(queue)
        end(queue, 1, status)
        assert queue.tasks.states[1] == WAITING
        end(queue, 0)
        assert queue.tasks.states[1] == READY
    queue = queue_of((), (0,))
    fill(queue)
    assert queue.give_back("far", 1, 1)
    assert queue.tasks.states[1] == WAITING


def test_what_follows_a_failure_is_skipped_when_it_comes_back() -> None:
    """Also what follows it in turn."""
    queue = queue_of((), (0,), (1,), attempts=1)
    fill(queue)
    end(queue, 0, Status.FAILED)
    assert queue.tasks.states[1] == CLAIMED
    assert queue.give_back("far", 1, 1)
    assert queue.give_back("far", 2, 1)
    assert bytes(queue.tasks.states) == bytes([FAILED, SKIPPED, SKIPPED])
    assert queue.workers["far"].is_idle


def test_a_lost_worker_takes_no_try_of_what_had_not_begun() -> None:
    """Except of a task with a single try, which must not run twice."""
    for attempts, blamed in ((1, [0, 1]), (2, [0])):
        queue = queue_of((), (0,), attempts=attempts)
        fill(queue)
        worker = queue.workers["far"]
        lost = blamed_claims(worker, worker.held())
        assert sorted(claim.task for claim in lost) == blamed


@given(st.data())
def test_no_task_is_given_before_those_that_it_follows(data: st.DataObject) -> None:
    """
    Whatever happens: a claimed task has all parents that have not succeeded at its own worker, the
    processors are those of claims whose parents have all succeeded, and all tasks come to an end.
    """
    count = data.draw(st.integers(1, 8))
    parents = [
        tuple(sorted(data.draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else ()
        for i in range(count)
    ]
    queue = queue_of(*parents, attempts=data.draw(st.integers(1, 3)))
    queue.join("near", "lease", 1)
    states = queue.tasks.states
    unreleased: list[int] = []
    unrecorded: list[int] = []

    def check() -> None:
        for worker in queue.workers.values():
            assert worker.used == sum(c.processors for c in worker.claims.values())
            assert not worker.chained or worker.takes_followers
            mine = {claim.task for claim in worker.held()}
            for claim in worker.held():
                for parent in parents[claim.task]:
                    assert (
                        states[parent] == SUCCEEDED
                        or parent in mine
                        or (claim.number in worker.chained and claim.task in returned_or_barred())
                    )
            assert not mine & set(unrecorded)
            for claim in worker.claims.values():
                assert all(states[parent] == SUCCEEDED for parent in parents[claim.task])

    def returned_or_barred() -> set[int]:
        """Return chained tasks of which a parent's attempt has ended without success."""
        return {
            task
            for task in range(count)
            if any(p in spoilt for p in parents[task]) or task in queue.tasks.barred
        }

    spoilt: set[int] = set()
    for _ in range(200):
        fill(queue)
        check()
        held = [(w, c) for w in queue.workers.values() for c in w.held()]
        steps = ["end", "back"] if held else []
        steps += ["release"] if unreleased else []
        steps += ["record"] if unrecorded else []
        if not steps:
            break
        step = data.draw(st.sampled_from(steps))
        if step == "release":
            queue.tasks.release(unreleased.pop(0))
        elif step == "record":
            queue.tasks.recorded(unrecorded.pop(0), 0.0)
        else:
            worker, claim = data.draw(st.sampled_from(held))
            can_succeed = all(states[parent] == SUCCEEDED for parent in parents[claim.task])
            if step == "back" and data.draw(st.booleans()):
                spoilt.add(claim.task)
                assert queue.give_back(worker.name, claim.task, claim.attempt)
            else:
                status = data.draw(
                    st.sampled_from(
                        [Status.SUCCEEDED] * 3 + [Status.FAILED, Status.CANCELLED]
                        if can_succeed
                        else [Status.CANCELLED]
                    )
                )
                outcome = Outcome(task=claim.task, attempt=claim.attempt, status=status)
                verdict = queue.finish(worker.name, outcome, 0.0, hold=True)
                assert verdict is not None
                if status is Status.SUCCEEDED:
                    unreleased.append(claim.task)
                    spoilt.discard(claim.task)
                else:
                    spoilt.add(claim.task)
                    unrecorded.extend([] if verdict.final else [claim.task])
        check()
    for task in unrecorded:
        queue.tasks.recorded(task, 0.0)
    unrecorded.clear()
    while unreleased or any(w.held() for w in queue.workers.values()) or queue.tasks.ready:
        while unreleased:
            queue.tasks.release(unreleased.pop(0))
        fill(queue)
        for worker in queue.workers.values():
            for claim in worker.held():
                if all(states[parent] == SUCCEEDED for parent in parents[claim.task]):
                    outcome = Outcome(
                        task=claim.task, attempt=claim.attempt, status=Status.SUCCEEDED
                    )
                    queue.finish(worker.name, outcome, 0.0, hold=True)
                    unreleased.append(claim.task)
                else:
                    queue.give_back(worker.name, claim.task, claim.attempt)
    assert all(state in (SUCCEEDED, FAILED, SKIPPED) for state in states)
