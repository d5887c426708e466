"""The queue's answers one by one: earlier lives, places, orders, delays, times that end."""

import math
from collections.abc import Callable, Sequence

import pytest
from tests.dispatch.queue_rig import QueueRig

from bursar.engine.instance_tasks import RetryVerdict
from bursar.engine.pool_demand import GUESS, UnplaceableTasks
from bursar.engine.run_tasks import TaskCounts
from bursar.engine.task_states import FAILED, SUCCEEDED, EngineTaskState
from bursar.model.campaign import Retry
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.model.task import Outcome, Status, Task


def tasks(*runtimes: float | None, processors: int = 1) -> list[Task]:
    return [Task(id=f"t{i}", runtime=r, processors=processors) for i, r in enumerate(runtimes)]


def queue_of(
    listed: Sequence[Task],
    parents: Sequence[Sequence[int]] | None = None,
    *,
    attempts: int = 1,
    backoff: float = 0.0,
    again_at: str | None = None,
    placed: Sequence[str] | None = None,
) -> QueueRig:
    queue = QueueRig(Retry(attempts=attempts, backoff=backoff), again_at)
    queue.extend(listed, parents, placed=placed)
    return queue


def take(queue: QueueRig, worker: str, room: int, now: float = 0.0) -> list[int]:
    """Numbers of the tasks that a worker claims."""
    return [task for task, _, _ in claims(queue, worker, room, now, lambda task: math.inf)]


def claims(
    queue: QueueRig,
    worker: str,
    room: int,
    now: float = 0.0,
    admit: Callable[[int], float | Refusal] = float,
) -> list[tuple[int, int, float]]:
    """Task, attempt and seconds of each claim of a worker."""
    found = queue.claim(worker, room, now, lambda task, lease: admit(task))
    return [(claim.task, claim.attempt, claim.seconds) for claim in found]


def asked_back(
    queue: QueueRig, now: float, takers: Sequence[str], donors: Sequence[str]
) -> list[tuple[str, int]]:
    """Who is asked for tasks where only these workers are open."""
    for name, worker in queue.workers.items():
        worker.open = name in (*takers, *donors)
    return queue.to_ask_back(now)


def end(
    queue: QueueRig,
    worker: str,
    task: int,
    status: Status = Status.SUCCEEDED,
    *,
    attempt: int = 1,
    took: float = 1.0,
    now: float = 0.0,
) -> RetryVerdict | None:
    outcome = Outcome(task=task, attempt=attempt, status=status, start=5.0, end=5.0 + took)
    return queue.finish(worker, outcome, now)


def states(queue: QueueRig) -> list[EngineTaskState]:
    return [queue.tasks.states[task] for task in range(queue.counts.total)]


# An earlier life.


def told(task: int, attempt: int, status: Status) -> Outcome:
    return Outcome(task=task, attempt=attempt, status=status)


def test_an_earlier_lifes_attempts_are_taken_in() -> None:
    """
    Successes count whatever failed before; cancelled attempts are no failures; numbers of
    attempts go on from the largest, in whatever order they are told.
    """
    queue = queue_of(tasks(*[1.0] * 6), [[], [], [], [], [0], [1]], attempts=2)

    queue.restore(
        [
            told(0, 3, Status.SUCCEEDED),
            told(0, 1, Status.FAILED),
            told(0, 2, Status.FAILED),
            told(1, 1, Status.FAILED),
            told(1, 2, Status.LOST),
            told(2, 2, Status.CANCELLED),
            told(2, 1, Status.CANCELLED),
            told(3, 1, Status.FAILED),
        ]
    )

    assert states(queue) == [
        EngineTaskState.SUCCEEDED,
        EngineTaskState.FAILED,
        EngineTaskState.READY,
        EngineTaskState.READY,
        EngineTaskState.READY,
        EngineTaskState.SKIPPED,
    ]
    queue.join("w", "", 3)
    assert claims(queue, "w", 3) == [
        (2, 3, 2.0),
        (3, 2, 3.0),
        (4, 1, 4.0),
    ]
    # One failure was told, so that the second is the last.
    assert end(queue, "w", 3, Status.FAILED, attempt=2) == RetryVerdict(FAILED)
    assert end(queue, "w", 2, Status.FAILED, attempt=3) == RetryVerdict()


def test_failures_of_an_earlier_life_can_be_forgotten() -> None:
    queue = queue_of(tasks(1.0, 1.0))

    queue.restore(
        [told(0, 1, Status.FAILED), told(1, 1, Status.SUCCEEDED), told(1, 4, Status.CANCELLED)],
        retry_failed=True,
    )

    assert states(queue) == [EngineTaskState.READY, EngineTaskState.SUCCEEDED]
    queue.join("w", "", 2)
    assert claims(queue, "w", 2) == [(0, 2, 0.0)]


def test_what_an_earlier_life_ended_hides_nothing_that_is_ready() -> None:
    """Keys of ended tasks lie before, between and behind the others, in one order."""
    queue = QueueRig(Retry())
    queue.extend(tasks(*[1.0] * 8), order=[3, 7, 1, 5, 0, 6, 2, 4])
    queue.restore([told(task, 1, Status.SUCCEEDED) for task in (4, 6, 1)])
    queue.join("w", "", 8)

    assert take(queue, "w", 8) == [2, 0, 7, 3, 5]


# Parents.


def test_tasks_that_come_later_may_follow_earlier_ones() -> None:
    """A parent that has succeeded before is waited for no more; one that failed takes all along."""
    queue = QueueRig(Retry(attempts=1))
    assert queue.extend([], []) == range(0)
    assert queue.extend(tasks(1.0, 1.0, 1.0), [[], [0], []]) == range(3)
    queue.join("w", "", 2)
    assert take(queue, "w", 2) == [0, 2]
    assert end(queue, "w", 0) == RetryVerdict(SUCCEEDED)
    assert end(queue, "w", 2, Status.FAILED) == RetryVerdict(FAILED)
    assert queue.extend(tasks(1.0, 1.0, 1.0, 1.0), [[0], [1, 0], [0, 2], [5]]) == range(3, 7)
    assert states(queue)[3:] == [
        EngineTaskState.READY,
        EngineTaskState.WAITING,
        EngineTaskState.SKIPPED,
        EngineTaskState.SKIPPED,
    ]
    assert take(queue, "w", 2) == [1, 3]
    assert end(queue, "w", 1) == RetryVerdict(SUCCEEDED)
    assert take(queue, "w", 2) == [4]


def test_more_retries_than_can_be_counted_are_as_many_as_can() -> None:
    queue = queue_of([Task(id="t", retries=2**40), Task(id="u", retries=1)])
    queue.join("w", "", 1)
    for attempt in (1, 2, 3):
        assert take(queue, "w", 1) == [0]
        assert end(queue, "w", 0, Status.FAILED, attempt=attempt) == RetryVerdict()


def test_a_failure_skips_what_follows_from_it_through_all_generations() -> None:
    """And leaves alone what was cancelled before, with what follows from that."""
    queue = queue_of(tasks(*[1.0] * 6), [[], [0], [1], [2], [], [0, 4]])
    queue.join("w", "", 2)
    assert queue.cancel_at_worker(2) is None
    assert take(queue, "w", 1) == [0]
    assert end(queue, "w", 0, Status.FAILED) == RetryVerdict(FAILED)
    assert states(queue) == [
        EngineTaskState.FAILED,
        EngineTaskState.SKIPPED,
        EngineTaskState.CANCELLED,
        EngineTaskState.SKIPPED,
        EngineTaskState.READY,
        EngineTaskState.SKIPPED,
    ]
    assert queue.counts == TaskCounts(
        total=6, waiting=1, running=0, succeeded=0, failed=1, skipped=3, cancelled=1, refused=0
    )
    assert queue.cancel_at_worker(2) is None
    assert queue.counts.cancelled == 1


def test_what_follows_waits_for_the_latest_of_its_data() -> None:
    """Files of two parents arrive 3 s after 10 s and 1 s after 11 s; a third sends none."""
    queue = queue_of(tasks(*[1.0] * 5), [[], [], [], [0, 1, 2], [0]])
    queue.join("w", "", 3)
    assert take(queue, "w", 3) == [0, 1, 2]
    for task in (0, 1, 2):
        outcome = Outcome(task=task, attempt=1, status=Status.SUCCEEDED)
        assert queue.finish("w", outcome, 9.0, hold=True) == RetryVerdict(SUCCEEDED)
    assert queue.tasks.next_wake() is None
    queue.tasks.release(0, 10.0, {3: 3.0, 4: 0.0}.__getitem__)
    assert queue.tasks.states[4] == EngineTaskState.READY
    queue.tasks.release(1, 11.0, {3: 1.0}.__getitem__)
    assert queue.tasks.states[3] == EngineTaskState.WAITING
    queue.tasks.release(2, 11.5, {3: 0.0}.__getitem__)
    assert queue.tasks.states[3] == EngineTaskState.DELAYED
    assert queue.tasks.next_wake() == 13.0
    assert queue.tasks.wake(12.99) == 0
    assert queue.tasks.wake(13.0) == 1
    assert queue.tasks.states[3] == EngineTaskState.READY
    assert queue.tasks.next_wake() is None


def test_data_that_has_arrived_by_the_last_end_delays_nothing() -> None:
    queue = queue_of(tasks(*[1.0] * 3), [[], [], [0, 1]])
    queue.join("w", "", 2)
    assert take(queue, "w", 2) == [0, 1]
    for task in (0, 1):
        queue.finish("w", Outcome(task=task, attempt=1, status=Status.SUCCEEDED), 1.0, hold=True)
    queue.tasks.release(0, 1.0, {2: 4.0}.__getitem__)
    queue.tasks.release(1, 5.0)
    assert queue.tasks.states[2] == EngineTaskState.READY


def test_a_wait_of_a_task_that_was_cancelled_wakes_nobody() -> None:
    queue = queue_of(tasks(1.0, 1.0), attempts=2, backoff=4.0)
    queue.join("w", "", 2)
    assert take(queue, "w", 2) == [0, 1]
    assert end(queue, "w", 0, Status.FAILED, now=2.0) == RetryVerdict(retry_at=6.0)
    assert end(queue, "w", 1, Status.FAILED, now=3.0) == RetryVerdict(retry_at=7.0)
    assert queue.counts.waiting == 2  # not ready, but not at an end either
    queue.cancel_at_worker(0)
    assert queue.tasks.wake(100.0) == 1
    assert states(queue) == [EngineTaskState.CANCELLED, EngineTaskState.READY]


# Places.


def test_tasks_of_a_lease_run_on_its_workers_alone() -> None:
    queue = queue_of(tasks(*[1.0] * 3), placed=["near", "", "far"])
    for name in ("near", "far"):
        queue.join(f"at {name}", name, 4)
    with pytest.raises(ValueError, match="at near is there already"):
        queue.join("at near", "far", 1)
    assert [queue.tasks.ready_tasks.left(lease) for lease in ("near", "far", "never heard of")] == [
        1,
        1,
        0,
    ]
    assert take(queue, "at far", 4) == [1, 2]
    assert take(queue, "at near", 4) == [0]
    with pytest.raises(ValueError, match="at near still has tasks"):
        queue.leave("at near")
    assert end(queue, "at near", 0) == RetryVerdict(SUCCEEDED)
    queue.leave("at near")
    assert list(queue.workers) == ["at far"]
    assert queue.tasks.ready_tasks.left("near") == 0


def test_tasks_are_bound_anew_with_another_order() -> None:
    """Claimed and ended ones stay as they are; what was ready is found at its new place."""
    queue = queue_of(tasks(*[1.0] * 5), [[], [], [], [], [3]], placed=["near"] * 5)
    queue.join("near", "near", 4)
    queue.join("far", "far", 4)
    assert take(queue, "near", 1) == [0]
    queue.assign(dict.fromkeys(range(5), "far"), {0: 9, 1: 3, 2: 2, 3: 1, 4: 0})
    assert (queue.tasks.ready_tasks.left("near"), queue.tasks.ready_tasks.left("far")) == (1, 4)
    assert take(queue, "near", 4) == []
    assert take(queue, "far", 4) == [3, 2, 1]
    assert end(queue, "far", 3) == RetryVerdict(SUCCEEDED)
    assert take(queue, "far", 4) == [4]


def test_what_runs_again_goes_where_there_is_room() -> None:
    """After a failure and after a worker that was cancelled; not what a worker gives back."""
    queue = queue_of(tasks(*[1.0] * 3, processors=2), attempts=3, again_at="", placed=["near"] * 3)
    queue.join("near", "near", 6)
    queue.join("far", "far", 6)
    assert take(queue, "near", 6) == [0, 1, 2]
    assert end(queue, "near", 0, Status.FAILED) == RetryVerdict()
    assert end(queue, "near", 1, Status.CANCELLED) == RetryVerdict()
    assert queue.give_back("near", 2, 1)
    assert queue.tasks.ready_tasks.left("near") == 1
    assert queue.demand() == ProcessorDemand(
        tasks=2, processors=4, widest=2, work=4.0, longest=1.0, running=0, later=0
    )
    assert take(queue, "far", 6) == [0, 1]
    assert take(queue, "near", 6) == [2]


# In order.


def in_order(*listed: Task, order: Sequence[int]) -> QueueRig:
    queue = queue_of(listed, attempts=3)
    queue.join("w", "lease", 4)
    numbers = range(len(listed))
    queue.assign(dict.fromkeys(numbers, "lease"), dict(enumerate(order)), ["lease"])
    return queue


def test_a_lease_in_order_starts_nothing_before_its_turn() -> None:
    """A narrow task waits behind a wide one that does not fit, though it would."""
    wide = Task(id="wide", processors=3)
    queue = in_order(Task(id="a", processors=2), wide, Task(id="b"), order=[1, 2, 3])
    assert take(queue, "w", 4) == [0]
    assert take(queue, "w", 2) == []
    assert end(queue, "w", 0) == RetryVerdict(SUCCEEDED)
    assert take(queue, "w", 4) == [1, 2]


def test_a_turn_is_by_order_and_not_by_number() -> None:
    queue = in_order(*(Task(id=i) for i in "abcd"), order=[4, 2, 3, 1])
    assert take(queue, "w", 3) == [3, 1, 2]
    assert take(queue, "w", 3) == [0]


def test_what_waits_for_a_parent_holds_up_its_lease() -> None:
    """And what was cancelled or refused for good does not; refused for now, everybody waits."""
    queue = queue_of(tasks(*[1.0] * 5), [[], [0], [], [], []])
    queue.join("w", "lease", 4)
    queue.join("v", "", 4)
    assert take(queue, "v", 1) == [0]
    queue.cancel_at_worker(2)
    queue.assign(
        {2: "lease", 3: "lease", 1: "lease", 4: "lease"}, {2: 0, 3: 1, 1: 2, 4: 3}, ["lease"]
    )

    def admit(task: int) -> float | Refusal:
        return Refusal("no", final) if task == 3 else 9.0

    final = False
    assert claims(queue, "w", 4, 0.0, admit) == []
    assert queue.tasks.states[3] == EngineTaskState.READY
    final = True
    assert claims(queue, "w", 4, 0.0, admit) == []
    assert queue.tasks.states[3] == EngineTaskState.REFUSED
    assert end(queue, "v", 0) == RetryVerdict(SUCCEEDED)
    assert claims(queue, "w", 4, 0.0, admit) == [(1, 1, 9.0), (4, 1, 9.0)]


def test_what_had_its_turn_and_comes_back_is_first_again() -> None:
    """Failed or given back; what was never claimed keeps its place."""
    queue = in_order(*(Task(id=i) for i in "abcd"), order=[0, 1, 2, 3])
    assert take(queue, "w", 2) == [0, 1]
    assert end(queue, "w", 1, Status.FAILED) == RetryVerdict()
    assert take(queue, "w", 1) == [1]
    assert queue.give_back("w", 1, 2)
    assert queue.give_back("w", 0, 1)
    assert take(queue, "w", 4) == [0, 1, 2, 3]


# The end of a lease's time.


def test_a_task_that_would_not_end_in_time_is_left_to_others() -> None:
    """At twice the speed 10 s are 20 s of work; a task bound to the lease runs all the same."""
    queue = queue_of(tasks(24.0, 20.0, 3.0, 24.0), placed=["", "", "", "short"])
    queue.join("w", "short", 4)
    queue.join("v", "long", 4)
    queue.ends("short", 110.0, 2.0)
    queue.ends("long", None)
    assert queue.unplaceable(100.0, ["w"]) == UnplaceableTasks(tasks=1, processors=1, longest=24.0)
    assert queue.unplaceable(100.0, ["w", "v"]) == UnplaceableTasks()
    assert take(queue, "w", 4, 100.0) == [1, 2, 3]
    assert take(queue, "v", 4, 100.0) == [0]


def test_tasks_that_take_longer_than_estimated_are_expected_to_go_on_so() -> None:
    """Estimated 10 s, took 5 s at speed 4: half as long; without estimate as the mean, 20 s."""
    queue = queue_of(tasks(10.0, 30.0, 42.0, None))
    queue.join("w", "fast", 1)
    queue.ends("fast", 1000.0, 4.0)
    assert queue.demand().work == 10.0 + 30.0 + 42.0 + GUESS
    assert queue.demand().longest == GUESS
    assert take(queue, "w", 1) == [0]
    assert end(queue, "w", 0, took=5.0) == RetryVerdict(SUCCEEDED)
    # 5 s were taken where 10 / 4 s were guessed: twice as long.
    assert queue.demand() == ProcessorDemand(
        tasks=3, processors=3, widest=1, work=60.0 + 84.0 + 20.0, longest=84.0, running=0, later=0
    )
    queue.join("v", "slow", 4)
    queue.ends("slow", 50.0, 1.0)
    assert queue.unplaceable(0.0, ["v"]) == UnplaceableTasks(tasks=2, processors=1, longest=84.0)
    assert queue.unplaceable(30.5, ["v"]) == UnplaceableTasks(tasks=3, processors=1, longest=84.0)
    assert take(queue, "v", 4, 29.9) == [3]


def test_what_waits_behind_others_must_end_in_time_too() -> None:
    """Two processors have 12 s of work and 2 of unknown length before them: 10 s, then its own."""
    queue = queue_of(tasks(4.0, 6.0, None, 5.0), attempts=2)
    queue.join("w", "short", 2)
    queue.ends("short", 100.0)
    assert take(queue, "w", 1) == [0]
    assert end(queue, "w", 0, took=4.0) == RetryVerdict(SUCCEEDED)  # mean 4 s, no stretch
    assert take(queue, "w", 2) == [1, 2]
    worker = queue.workers["w"]
    assert (worker.used, worker.work, worker.unknown) == (2, 6.0, 1)
    # (6 + 4) / 2 before it begins, and 5 s: 10 s.
    assert take(queue, "w", 1, 90.5) == []
    assert take(queue, "w", 1, 90.0) == [3]
    assert (worker.used, worker.work, worker.unknown) == (3, 11.0, 1)
    assert end(queue, "w", 2, Status.FAILED) == RetryVerdict()
    assert (worker.used, worker.work, worker.unknown) == (2, 11.0, 0)
    assert queue.give_back("w", 1, 1)
    assert (worker.used, worker.work) == (1, 5.0)
    assert queue.give_back("w", 3, 1)
    assert (worker.used, worker.work, worker.claims) == (0, 0.0, {})


def test_many_tasks_too_long_for_a_worker_hide_none_that_fits() -> None:
    """All are about as long, so that they lie in one lane; only so many are looked at."""
    queue = queue_of(tasks(*[8.9] * 15, 8.0, *[8.9] * 20, 8.1))
    queue.join("w", "short", 4)
    queue.ends("short", 8.5)
    assert take(queue, "w", 4) == [15]
    assert take(queue, "w", 4) == []
    assert queue.demand().tasks == 36
    queue.ends("short", None)
    assert take(queue, "w", 3) == [0, 1, 2]


# Backfilling.


def test_what_cannot_delay_a_wide_task_overtakes_it() -> None:
    """Four processors: two free, two until 10 s. Three wait; one of 10 s fits before, 11 s not."""
    queue = QueueRig(Retry())
    widths = [(2, 10.0), (3, 5.0), (1, 11.0), (1, 10.0), (1, 11.0), (1, 99.0)]
    queue.extend([Task(id=f"t{i}", processors=p, runtime=r) for i, (p, r) in enumerate(widths)])
    queue.join("w", "", 4)
    assert take(queue, "w", 2) == [0]
    # At 10 s all four are free, three are kept: one that lasts longer has the spare one.
    assert take(queue, "w", 2) == [2, 3]
    assert take(queue, "w", 0) == []


def test_nothing_overtakes_where_no_end_is_known() -> None:
    queue = QueueRig(Retry())
    widths = [(2, None), (3, 5.0), (1, 1.0)]
    queue.extend([Task(id=f"t{i}", processors=p, runtime=r) for i, (p, r) in enumerate(widths)])
    queue.join("w", "", 3)
    assert take(queue, "w", 3) == [0]
    assert take(queue, "w", 1) == []


def test_what_overtakes_shares_what_is_spare() -> None:
    """At 10 s eight processors are free, five are kept: three are spare for longer tasks."""
    queue = QueueRig(Retry())
    widths = [(4, 10.0), (5, 5.0), (1, 99.0), (2, 99.0), (1, 99.0)]
    queue.extend([Task(id=f"t{i}", processors=p, runtime=r) for i, (p, r) in enumerate(widths)])
    queue.join("w", "", 8)
    assert take(queue, "w", 4) == [0]
    assert take(queue, "w", 4) == [2, 3]


def test_a_wide_task_is_expected_at_the_first_end_that_makes_room() -> None:
    """At 10 s, not when the last has ended at 20 s: a task of 15 s may not overtake."""
    queue = QueueRig(Retry())
    widths = [(2, 10.0), (1, 20.0), (3, 5.0), (1, 15.0)]
    queue.extend([Task(id=f"t{i}", processors=p, runtime=r) for i, (p, r) in enumerate(widths)])
    queue.join("w", "", 4)
    assert take(queue, "w", 3) == [0, 1]
    assert take(queue, "w", 1) == []


def test_an_end_that_is_overdue_is_now() -> None:
    """The first task should have ended at 10 s, now it is 50 s: what takes no time overtakes."""
    queue = QueueRig(Retry())
    widths = [(2, 10.0), (3, 5.0), (1, 0.0), (1, 1.0)]
    queue.extend([Task(id=f"t{i}", processors=p, runtime=r) for i, (p, r) in enumerate(widths)])
    queue.join("w", "", 3)
    assert take(queue, "w", 2) == [0]
    assert take(queue, "w", 1, 50.0) == [2]


def test_an_answer_for_now_keeps_all_behind_it() -> None:
    """The queue is as before, in the same order, whatever was looked at."""
    queue = QueueRig(Retry())
    queue.extend(tasks(1.0, 1.0, 1.0))
    queue.join("w", "", 3)
    asked: list[int] = []

    def admit(task: int) -> float | Refusal:
        asked.append(task)
        return 7.0 if task != 1 else Refusal("wait", False)

    assert claims(queue, "w", 3, 0.0, admit) == [(0, 1, 7.0)]
    assert asked == [0, 1]
    assert take(queue, "w", 3) == [1, 2]


def test_draining_claims_nothing_and_waits_for_nothing() -> None:
    queue = queue_of(tasks(1.0, 1.0), attempts=2, backoff=5.0)
    queue.join("w", "", 2)
    assert take(queue, "w", 1) == [0]
    queue.drain()
    assert take(queue, "w", 1) == []
    assert queue.demand() == ProcessorDemand(running=1)
    assert queue.unplaceable(0.0, []) == UnplaceableTasks()
    assert not queue.idle
    assert end(queue, "w", 0) == RetryVerdict(SUCCEEDED)
    assert queue.idle


def test_a_cancelled_task_in_a_workers_hands_ends_there() -> None:
    """Failed or given back, it is not tried again; a success counts."""
    queue = queue_of(tasks(*[1.0] * 4), [[], [], [], [1]], attempts=3)
    queue.join("w", "", 3)
    assert take(queue, "w", 3) == [0, 1, 2]
    assert [queue.cancel_at_worker(task) for task in range(3)] == ["w", "w", "w"]
    assert end(queue, "w", 0, Status.FAILED) == RetryVerdict(FAILED)
    assert queue.give_back("w", 1, 1)
    assert end(queue, "w", 2) == RetryVerdict(SUCCEEDED)
    assert states(queue) == [
        EngineTaskState.FAILED,
        EngineTaskState.CANCELLED,
        EngineTaskState.SUCCEEDED,
        EngineTaskState.SKIPPED,
    ]
    assert not queue.give_back("w", 1, 1)
    assert not queue.give_back("nobody", 1, 1)


def test_ends_of_another_attempt_change_nothing() -> None:
    queue = queue_of(tasks(1.0), attempts=5)
    queue.join("w", "", 1)
    assert take(queue, "w", 1) == [0]
    for attempt in (0, 2):
        assert end(queue, "w", 0, attempt=attempt) is None
    assert end(queue, "w", 0, Status.FAILED) == RetryVerdict()
    assert take(queue, "w", 1) == [0]
    assert end(queue, "w", 0, attempt=1) is None
    assert queue.tasks.states[0] == EngineTaskState.CLAIMED
    assert end(queue, "w", 0, attempt=2) == RetryVerdict(SUCCEEDED)


# Asking back.


def holding(**waiting: int) -> QueueRig:
    """Return a queue whose workers, of one processor each, hold one task more than wait there."""
    queue = queue_of(tasks(*[1.0] * (sum(waiting.values()) + len(waiting))))
    for name, count in waiting.items():
        queue.join(name, "", 1)
        take(queue, name, count + 1)
    return queue


def test_as_many_workers_are_asked_as_occupy_the_idle_ones() -> None:
    """Half of what waits comes back from each, from those first with whom most waits."""
    queue = holding(long=6, middle=3, short=2)
    for name, processors in (("idle", 3), ("little", 1)):
        queue.join(name, "", processors)
    donors = ["short", "middle", "long"]

    assert asked_back(queue, 0.0, ["idle"], donors) == [("long", 3)]
    assert asked_back(queue, 0.0, ["idle", "little"], donors) == [("long", 3), ("middle", 2)]
    assert asked_back(queue, 0.0, ["idle", "little"], ["short"]) == [("short", 1)]
    queue.drain()
    assert asked_back(queue, 0.0, ["idle"], donors) == []


def test_one_waiting_task_is_asked_back_for_one_free_processor() -> None:
    """No task comes back for a worker without a free processor, nor from one where none waits."""
    queue = holding(busy=1, content=0)
    queue.join("idle", "", 1)

    assert asked_back(queue, 0.0, ["content"], ["busy"]) == []
    assert asked_back(queue, 0.0, ["idle"], ["content"]) == []
    assert asked_back(queue, 0.0, ["idle", "content"], ["busy", "content"]) == [("busy", 1)]


def test_tasks_come_back_up_to_one_that_an_idle_worker_may_run() -> None:
    """A worker in order runs only its own tasks, and one whose time ends runs no longer ones."""
    queue = queue_of(tasks(*[1.0] * 6, 50.0, 50.0, 50.0))
    for name in ("w", "ends", "in order"):
        queue.join(name, name, 1)
    queue.assign({0: "in order"}, {0: 0}, ["in order"])
    queue.ends("ends", 10.0)
    assert take(queue, "w", 8) == [1, 2, 3, 4, 5, 6, 7, 8]

    assert asked_back(queue, 0.0, ["in order"], ["w"]) == []
    assert asked_back(queue, 0.0, ["ends"], ["w"]) == [("w", 4)]
    assert asked_back(queue, 9.5, ["ends"], ["w"]) == []


def test_a_task_of_a_lease_comes_back_for_workers_of_that_lease() -> None:
    queue = queue_of(tasks(*[1.0] * 3), placed=["near"] * 3)
    for name in ("busy", "near"):
        queue.join(name, "near", 1)
    queue.join("far", "far", 1)
    assert take(queue, "busy", 3) == [0, 1, 2]

    assert asked_back(queue, 0.0, ["far"], ["busy"]) == []
    assert asked_back(queue, 0.0, ["far", "near"], ["busy"]) == [("busy", 1)]


# Counting.


def test_running_processors_are_those_that_there_are() -> None:
    """A worker with more in hand than it has processors runs on those that it has."""
    queue = queue_of(tasks(*[1.0] * 5))
    queue.join("w", "", 2)
    assert take(queue, "w", 4) == [0, 1, 2, 3]
    assert queue.demand() == ProcessorDemand(
        tasks=1, processors=1, widest=1, work=1.0, longest=1.0, running=2, later=0
    )


def test_infinite_sums_leave_no_trace() -> None:
    """Tasks without an estimate count by the mean alone."""
    queue = queue_of(tasks(None, None, 2.0))
    queue.join("w", "", 3)
    assert take(queue, "w", 3) == [0, 1, 2]
    assert end(queue, "w", 0, took=3.0) == RetryVerdict(SUCCEEDED)
    assert queue.give_back("w", 1, 1)
    assert queue.give_back("w", 2, 1)
    demand = queue.demand()
    assert (demand.work, demand.longest) == (5.0, 3.0)
    assert math.isfinite(queue.workers["w"].work)
