"""The engine's reactions, with a recorded link and a store that is committed by hand."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bursar.dispatch.journal_records import AttemptRecord, AttemptStart
from bursar.dispatch.spending_guard import SpendingGuard
from bursar.dispatch.wire import Hello, OutputPiece, OutputQuery, Welcome, WireJob
from bursar.engine import reactor
from bursar.engine.core import EngineCore, EngineSettings, RestoredAttempts, RunPaths
from bursar.engine.figures import EngineFigures
from bursar.engine.run_tasks import RunTasks
from bursar.engine.run_workers import InProcessEngineLink
from bursar.engine.transactions import EngineTransaction
from bursar.engine.worker_slots import WorkerSlot
from bursar.model.campaign import Retry
from bursar.model.errors import BursarError
from bursar.model.money import Refusal, Transfer
from bursar.model.task import Outcome, Status, Task
from bursar_devtools.unlimited_spending import UnlimitedSpending


class RecordedLink:
    """Writes down each order instead of sending it."""

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []

    def welcome(self, welcome: Welcome) -> None:
        self.orders.append(("welcome",))

    def give(self, jobs: Iterable[WireJob]) -> None:
        self.orders.append(("give", [(job.task, job.attempt) for job in jobs]))

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        raise AssertionError("a run gives jobs as they are")

    def recall(self, count: int) -> None:
        self.orders.append(("recall", count))

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        self.orders.append(("cancel", list(tasks), grace, reason))

    def acknowledge(self, count: int) -> None:
        self.orders.append(("acknowledge", count))

    def ask_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        self.orders.append(("ask output", query.task, query.attempt, query.stream, query.offset))
        answer(OutputPiece(query.query, start=1.0, size=3, content=b"abc"))

    def leave(self) -> None:
        self.orders.append(("leave",))

    def hang_up(self) -> None:
        self.orders.append(("hang up",))

    def abort(self) -> None:
        self.orders.append(("abort",))

    def told(self) -> list[tuple[Any, ...]]:
        """Orders since the last look."""
        told, self.orders = self.orders, []
        return told


@dataclass
class HandStore:
    """A store whose transactions become durable when the test says so."""

    pending: EngineTransaction = field(default_factory=EngineTransaction)
    fault: BursarError | None = None
    wanted: int = 0

    def commit_soon(self) -> None:
        self.wanted += 1

    def fail(self, error: BaseException) -> None:
        self.fault = BursarError(str(error))


class HandTimer:
    def __init__(self, moment: float, callback: Callable[[], None]) -> None:
        self.moment = moment
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandClock:
    """A clock whose callbacks are called when the test says so."""

    def __init__(self) -> None:
        self.time = 100.0
        self.callbacks: list[Callable[[], None]] = []
        self.timers: list[HandTimer] = []

    def now(self) -> float:
        return self.time

    def soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def at(self, moment: float, callback: Callable[[], None]) -> HandTimer:
        self.timers.append(HandTimer(moment, callback))
        return self.timers[-1]


class Bench:
    """An engine without loop, journal or socket."""

    def __init__(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        guard: SpendingGuard | None = None,
        attempts: int = 3,
        restored: RestoredAttempts | None = None,
        **settings: Any,
    ) -> None:
        queue = RunTasks(Retry(attempts=attempts, backoff=0.0))
        queue.extend(tasks, parents)
        restored = restored or RestoredAttempts()
        queue.restore([], held=restored.starts)
        self.store, self.clock = HandStore(), HandClock()
        self.durable: list[tuple[int, Status]] = []
        nowhere = Path("/nowhere")
        self.core = EngineCore(
            queue=queue,
            tasks=list(tasks),
            guard=guard or UnlimitedSpending(),
            store=self.store,
            clock=self.clock,
            restored=restored,
            settings=EngineSettings(
                run="run",
                folders=RunPaths(root=nowhere, files=nowhere, work=nowhere, logs=nowhere),
                on_outcome=lambda r: self.durable.append((r.outcome.task, r.outcome.status)),
                **settings,
            ),
        )
        reactor.attach(self.core)
        self.figures = EngineFigures(self.core)

    def join(
        self,
        name: str,
        processors: int = 1,
        lease: str = "lease-1",
        *,
        is_pilot: bool = False,
        holds: Sequence[tuple[int, int]] = (),
    ) -> tuple[WorkerSlot[RunTasks], RecordedLink]:
        link = RecordedLink()
        hello = Hello("secret", name, "here", processors, lease, holds=tuple(holds))
        return reactor.worker_joined(self.core, hello, link, is_pilot=is_pilot), link

    def settle(self) -> None:
        """Call back all that was to be called soon."""
        while self.clock.callbacks:
            self.clock.callbacks.pop(0)()
        assert self.store.fault is None

    def pass_time(self, seconds: float) -> None:
        """Call back what was to be called within some seconds."""
        self.clock.time += seconds
        for timer in [t for t in self.clock.timers if t.moment <= self.clock.time]:
            self.clock.timers.remove(timer)
            if not timer.cancelled:
                timer.callback()
        self.settle()

    def commit(self) -> None:
        """Make the pending transaction durable."""
        transaction, self.store.pending = self.store.pending, EngineTransaction()
        reactor.committed(self.core, transaction)
        self.settle()

    def ended(
        self,
        worker: WorkerSlot[RunTasks],
        task: int,
        status: Status = Status.SUCCEEDED,
        attempt: int = 1,
    ) -> None:
        outcome = Outcome(
            task=task, attempt=attempt, status=status, start=self.clock.time, end=self.clock.time
        )
        reactor.outcomes_reported(self.core, worker, [outcome])


def tasks(count: int, **more: Any) -> list[Task]:
    return [Task(id=f"t{i}", **more) for i in range(count)]


def test_a_worker_that_joins_is_welcomed_and_filled_once_for_a_burst() -> None:
    bench = Bench(tasks(3))
    _, one = bench.join("one")
    _, two = bench.join("two", 2)
    assert one.told() == two.told() == [("welcome",)]
    assert len(bench.clock.callbacks) == 1

    bench.settle()

    assert one.told() == [("give", [(0, 1)])]
    assert two.told() == [("give", [(1, 1), (2, 1)])]
    assert bench.figures.counts.running == 3


def test_nobody_hears_of_an_outcome_before_it_is_durable() -> None:
    """A child starts, and the owner is told, only after the transaction."""
    bench = Bench(tasks(2), [(), (0,)])
    worker, link = bench.join("one")
    bench.settle()
    link.told()

    bench.ended(worker, 0)
    bench.settle()

    assert link.told() == []
    assert bench.durable == []
    assert [record.outcome.task for record in bench.store.pending.records] == [0]
    bench.commit()
    assert bench.durable == [(0, Status.SUCCEEDED)]
    assert link.told() == [("give", [(1, 1)])]


def test_a_task_is_tried_again_once_the_attempt_before_is_durable() -> None:
    """
    A run that is killed in between would else adopt the attempt that has ended, and drop what
    comes of the one that runs.
    """
    bench = Bench(tasks(1))
    worker, link = bench.join("one")
    bench.settle()
    link.told()

    bench.ended(worker, 0, Status.FAILED)
    bench.settle()

    assert link.told() == []
    bench.commit()
    assert link.told() == [("give", [(0, 2)])]


def test_the_tasks_of_a_worker_that_left_run_elsewhere() -> None:
    bench = Bench(tasks(1))
    lost, _ = bench.join("lost")
    bench.settle()
    _, link = bench.join("other")
    bench.settle()
    link.told()

    reactor.worker_disconnected(bench.core, lost)
    bench.settle()

    assert [r.outcome.status for r in bench.store.pending.records] == [Status.LOST]
    reactor.worker_disconnected(bench.core, lost)  # a second time it changes nothing
    assert len(bench.store.pending.records) == 1
    bench.commit()
    assert link.told() == [("give", [(0, 2)])]


def with_waiting_tasks(**more: Any) -> tuple[Bench, WorkerSlot[RunTasks]]:
    """A worker that runs task 10, or a later one, and has some more to begin after that."""
    bench = Bench(tasks(60), **more)
    worker, _ = bench.join("one")
    bench.settle()
    for task in range(10):
        bench.ended(worker, task)
        bench.commit()
    assert len(worker.claims) > 2
    return bench, worker


def test_only_what_can_have_run_uses_up_a_try_when_a_worker_is_lost() -> None:
    bench, worker = with_waiting_tasks(attempts=2, keeps_starts=True)
    first, *behind = list(worker.claims)
    bench.commit()

    reactor.worker_lost(bench.core, worker)

    assert [r.outcome.task for r in bench.store.pending.records] == [first]
    assert {s.task for s in bench.store.pending.starts if not s.room} == set(behind)
    columns = bench.core.queue.tasks
    assert columns.failures == {first: 1}
    # Not numbered again: the worker may run them yet.
    assert all(columns.attempts[task] == 1 for task in behind)
    bench.commit()
    _, link = bench.join("two")
    bench.settle()
    assert link.told()[1] == ("give", [(first, 2)])


def test_what_may_run_only_once_never_begins_again_once_it_may_have_begun() -> None:
    """The report that made room for it may have been lost with its worker."""
    bench, worker = with_waiting_tasks(attempts=1)
    claimed = set(worker.claims)
    reactor.worker_lost(bench.core, worker)
    assert {r.outcome.task for r in bench.store.pending.records if r.final} == claimed


def test_an_outcome_of_an_attempt_that_was_given_up_is_dropped() -> None:
    bench = Bench(tasks(1))
    worker, _ = bench.join("one")
    bench.settle()
    bench.ended(worker, 0, attempt=2)
    assert not bench.store.pending.records
    bench.ended(worker, 0)
    bench.ended(worker, 0)
    assert len(bench.store.pending.records) == 1


def test_returned_tasks_start_elsewhere_at_once_and_use_up_no_try() -> None:
    bench = Bench(tasks(2), attempts=1, keeps_starts=True)
    first, _ = bench.join("first", 2)
    bench.settle()
    _, link = bench.join("second")
    bench.settle()
    link.told()

    reactor.tasks_returned(bench.core, first, [(1, 1), (1, 1), (0, 9)])
    bench.settle()

    assert [(s.task, s.room) for s in bench.store.pending.starts if s.task == 1] == [
        (1, 2),
        (1, 0),
        (1, 1),
    ]
    assert link.told() == [("give", [(1, 1)])]


class Stingy(UnlimitedSpending):
    """Sets money aside for every task, and refuses while it has none."""

    def __init__(self) -> None:
        self.has_money = True
        self.moved: list[Transfer] = []
        self.withdrawn: list[int] = []

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        if not self.has_money:
            return Refusal("no money", final=False)
        number = len(self.moved) + 1
        self.moved.append(Transfer(number, 0.0, "", "hold", "budget", "held", 1))
        return math.inf

    def withdraw(self, task: int, now: float) -> None:
        self.withdrawn.append(task)

    def transfers(self) -> list[Transfer]:
        moved, self.moved = self.moved, []
        return moved


def test_what_follows_a_job_that_waits_for_its_money_waits_too() -> None:
    """A cancellation cannot overtake the job that it is meant for."""
    bench = Bench(tasks(1), guard=Stingy())
    worker, link = bench.join("one")
    bench.settle()
    assert link.told() == [("welcome",)]

    assert not reactor.cancel(bench.core, 0)

    assert (link.told(), worker.withheld) == ([], 2)
    bench.commit()
    assert link.told() == [("give", [(0, 1)]), ("cancel", [0], 0.0, "cancelled")]
    assert worker.withheld == 0


def test_a_guard_that_refuses_for_now_is_asked_again() -> None:
    guard = Stingy()
    guard.has_money = False
    bench = Bench(tasks(1), guard=guard)
    _, link = bench.join("one")
    bench.settle()
    assert link.told() == [("welcome",)]
    assert bench.figures.refusal == "no money"
    assert [timer.moment for timer in bench.clock.timers] == [100.2]


def test_cancelling_a_task_that_waits_needs_no_worker() -> None:
    bench = Bench(tasks(2))
    _, link = bench.join("one")
    bench.settle()
    link.told()
    assert reactor.cancel(bench.core, 1)
    assert not reactor.cancel(bench.core, 0)
    assert link.told() == [("cancel", [0], 0.0, "cancelled")]


def test_draining_calls_back_what_has_not_started_and_stopping_cancels_the_rest() -> None:
    bench = Bench(tasks(4))
    _, link = bench.join("one", 2)
    bench.settle()
    link.told()

    reactor.stop(bench.core, "over", 3.0)
    bench.settle()

    assert link.told() == [("recall", 2), ("cancel", [], 3.0, "over")]
    assert bench.figures.counts.waiting == 2


def test_a_vacated_lease_gets_nothing_more_and_latecomers_leave() -> None:
    bench = Bench(tasks(2))
    worker, link = bench.join("one")
    bench.settle()
    link.told()

    reactor.vacate(bench.core, "lease-1", "over")
    bench.ended(worker, 0, Status.CANCELLED)
    bench.settle()
    bench.commit()

    assert link.told() == [("cancel", [], 0.0, "over")]
    _, late = bench.join("late")
    bench.settle()
    assert late.told() == [("welcome",), ("leave",)]
    assert bench.figures.demand().tasks == 2


def test_a_worker_that_must_go_leaves_with_its_last_outcome() -> None:
    bench = Bench(tasks(2))
    worker, link = bench.join("one")
    bench.settle()
    link.told()

    reactor.leave_requested(bench.core, worker, must=True)
    assert link.told() == []
    bench.ended(worker, 0)
    bench.commit()

    assert link.told() == [("leave",)]
    assert bench.figures.demand().tasks == 1


def test_idle_workers_get_what_waits_at_others() -> None:
    """What was given ahead of time is called back for a worker that is idle."""
    bench = Bench(tasks(40))
    busy, link = bench.join("busy")
    bench.settle()
    for task in range(8):  # short ones, so that others are given ahead of time
        if task in busy.claims:
            bench.ended(busy, task)
            bench.commit()
    assert len(busy.claims) > 2
    link.told()
    for number in set(range(40)) - set(busy.claims):
        reactor.cancel(bench.core, number)
    bench.join("idle")
    bench.settle()
    assert [order[0] for order in link.told()] == ["recall"]


def test_pilots_that_hold_tasks_too_long_are_cut_off_and_others_are_not() -> None:
    bench = Bench(tasks(2))
    _, near = bench.join("near")
    _, far = bench.join("far", is_pilot=True)
    bench.settle()
    reactor.cut_off(bench.core)
    assert near.told()[-1][0] == "give"
    assert far.told()[-1] == ("abort",)


def test_a_revoked_credential_turns_its_pilots_out() -> None:
    bench = Bench(tasks(1))
    worker, link = bench.join("far", is_pilot=True)
    bench.settle()
    link.told()
    assert reactor.turn_out(bench.core, "lease-1") == [worker]
    assert link.told() == [("cancel", [], 0.0, "its processors go back"), ("leave",)]


def test_a_job_that_cannot_be_sent_fails_by_its_size() -> None:
    bench = Bench(tasks(1), attempts=1)
    worker, _ = bench.join("one")
    bench.settle()
    job = WireJob(0, 1, 1, 0.0, "f", ())
    reactor.job_too_large(bench.core, worker, job, 10**9)
    bench.commit()
    assert bench.durable == [(0, Status.FAILED)]


def test_loads_of_leases_count_who_is_there_and_who_was() -> None:
    bench = Bench(tasks(1))
    one, _ = bench.join("one", 2)
    bench.join("two", 3)
    bench.settle()
    load = bench.figures.leases()["lease-1"]
    assert (load.ready, load.busy, load.idle_since, load.joined) == (5, 1, None, 5)
    bench.clock.time = 107.0
    reactor.worker_disconnected(bench.core, one)
    load = bench.figures.leases()["lease-1"]
    assert (load.ready, load.joined, load.silent_since) == (3, 5, 107.0)


def test_a_worker_of_this_process_never_interrupts_the_engine() -> None:
    """Its reports are taken in once the engine has finished with their cause, in order."""
    bench = Bench(tasks(2))
    worker, link = bench.join("one")
    port = InProcessEngineLink(bench.core, worker)
    bench.settle()
    link.told()

    outcome = Outcome(task=0, attempt=1, status=Status.SUCCEEDED, start=100.0, end=100.0)
    port.report([outcome])
    port.lose()
    port.report([outcome])
    assert not bench.store.pending.records
    assert bench.figures.counts.running == 1
    bench.settle()

    assert [r.outcome.status for r in bench.store.pending.records] == [Status.SUCCEEDED]
    assert bench.core.workers == {}


def test_a_fault_of_ours_stops_the_engine_and_is_kept() -> None:
    class Broken(UnlimitedSpending):
        def admit(self, task: int, lease: str, now: float) -> float | Refusal:
            raise ArithmeticError("of ours")

    bench = Bench(tasks(1), guard=Broken())
    bench.join("one")
    bench.clock.callbacks.pop(0)()
    assert str(bench.store.fault) == "of ours"
    bench.join("two")
    bench.clock.callbacks.pop(0)()  # it gives nothing out any more
    assert bench.figures.counts.waiting == 1


def test_processors_of_a_share_are_not_kept_for_a_worker_that_gets_no_tasks() -> None:
    """One that leaves keeps those of its running task only."""
    bench = Bench(tasks(1))
    leaving, _ = bench.join("leaving", 4)
    bench.settle()
    reactor.leave_requested(bench.core, leaving, must=True)
    _, link = bench.join("one", 4, lease="lease-2")
    reactor.limit(bench.core, "here", 4)
    for task in tasks(4):
        reactor.submit(bench.core, [task])
    bench.settle()
    assert link.told() == [("welcome",), ("give", [(1, 1), (2, 1), (3, 1)])]


def test_a_chained_task_counts_on_its_processors_once_its_parents_are_durable() -> None:
    bench = Bench(tasks(2), [[], [0]])
    worker, link = bench.join("far")
    worker.takes_followers = True
    bench.settle()
    assert link.told() == [("welcome",), ("give", [(0, 1), (1, 1)])]
    bench.ended(worker, 0)
    bench.settle()
    assert worker.used == 0
    bench.commit()
    assert worker.used == 1
    assert bench.figures.counts.running == 1


# Workers that outlive their connection, and the engine.


def outliving(count: int, **more: Any) -> Bench:
    return Bench(tasks(count), outlives=600.0, absence=30.0, **more)


def test_a_worker_that_comes_back_goes_on_with_what_it_has() -> None:
    bench = outliving(2)
    worker, _ = bench.join("one", 2)
    bench.settle()

    reactor.worker_disconnected(bench.core, worker)
    _, other = bench.join("other", 2)
    bench.settle()
    assert other.told() == [("welcome",)]
    assert bench.figures.leases()["lease-1"].ready == 2
    again, link = bench.join("one", 2, holds=[(0, 1), (1, 1)])
    bench.settle()

    assert again is worker
    assert link.told() == [("welcome",)]
    bench.ended(worker, 0)
    bench.pass_time(100.0)  # nothing is given up any more
    assert bench.figures.counts.running == 1
    assert [r.outcome.status for r in bench.store.pending.records] == [Status.SUCCEEDED]


def test_what_was_lost_on_the_way_to_a_worker_runs_again_without_using_up_a_try() -> None:
    bench = outliving(2, attempts=1)
    worker, _ = bench.join("one", 2)
    bench.settle()

    reactor.worker_disconnected(bench.core, worker)
    _, link = bench.join("one", 2, holds=[(0, 1)])
    bench.settle()

    assert link.told() == [("welcome",), ("give", [(1, 1)])]
    assert not bench.store.pending.records


def test_a_worker_that_comes_back_with_nothing_has_lost_all() -> None:
    bench = outliving(1)
    worker, _ = bench.join("one")
    bench.settle()
    _, link = bench.join("one")  # the end of the former connection was not noticed
    bench.settle()
    assert worker.connected
    assert [r.outcome.status for r in bench.store.pending.records] == [Status.LOST]
    bench.commit()
    assert link.told() == [("welcome",), ("give", [(0, 2)])]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("comes_back", [False, True])
def test_no_try_is_used_up_by_a_job_that_was_never_sent(
    attempts: int, is_sent: bool, comes_back: bool
) -> None:
    """The worker that was to get the job is lost while the job waits for its money."""
    bench = outliving(1, guard=Stingy(), attempts=attempts)
    worker, _ = bench.join("one")
    bench.settle()
    if is_sent:
        bench.commit()
    if comes_back:
        bench.join("one")  # with nothing, as a process that was started anew
    else:
        reactor.worker_lost(bench.core, worker)
    bench.settle()
    assert bench.core.queue.tasks.failures == ({0: 1} if is_sent else {})
    assert len(bench.store.pending.records) == is_sent
    bench.commit()
    bench.join("two")
    bench.settle()
    assert bench.figures.counts.running == (is_sent is False or attempts == 2)
    assert bench.figures.counts.failed == (is_sent and attempts == 1)


def test_a_worker_that_stays_away_too_long_is_lost_and_ends_its_tasks_if_it_returns() -> None:
    bench = outliving(1)
    worker, _ = bench.join("one")
    bench.settle()
    reactor.worker_disconnected(bench.core, worker)
    _, other = bench.join("other")
    bench.settle()
    other.told()

    bench.pass_time(29.0)
    assert other.told() == []
    bench.pass_time(1.0)
    bench.commit()

    assert other.told() == [("give", [(0, 2)])]
    assert list(bench.core.workers) == ["other"]
    _, link = bench.join("one", holds=[(0, 1)])
    assert link.told()[1:] == [("cancel", [0], 0.0, "it is not wanted any more")]


def test_a_worker_without_tasks_is_not_waited_for() -> None:
    bench = outliving(0)
    worker, _ = bench.join("one")
    reactor.worker_disconnected(bench.core, worker)
    assert bench.core.workers == {}


def test_an_outcome_is_acknowledged_when_it_is_durable_and_every_time_it_is_repeated() -> None:
    bench = outliving(2)
    worker, link = bench.join("one")
    bench.settle()
    link.told()

    bench.ended(worker, 0)
    bench.ended(worker, 0)
    assert link.told() == []
    bench.commit()

    assert link.told() == [("acknowledge", 1), ("acknowledge", 1), ("give", [(1, 1)])]
    assert (worker.unrecorded, len(bench.durable)) == (0, 1)


def test_a_worker_leaves_after_its_last_outcome_was_acknowledged() -> None:
    bench = outliving(1)
    worker, link = bench.join("one")
    bench.settle()
    reactor.leave_requested(bench.core, worker, must=True)
    link.told()
    bench.ended(worker, 0)
    assert link.told() == []
    bench.commit()
    assert link.told() == [("acknowledge", 1), ("leave",)]


def test_a_worker_that_asks_to_leave_before_its_last_outcome_is_durable_leaves_then() -> None:
    """A worker asks once: one that is refused, and gets no task any more, would stay for ever."""
    bench = outliving(2)
    worker, link = bench.join("one")
    bench.settle()
    bench.ended(worker, 0)
    bench.settle()
    bench.ended(worker, 1)
    link.told()
    reactor.leave_requested(bench.core, worker, must=False)
    assert link.told() == []
    reactor.submit(bench.core, [Task(id="late")])
    bench.commit()
    assert link.told() == [("acknowledge", 1), ("acknowledge", 1), ("leave",)]


def test_a_cancelled_task_is_ended_when_its_worker_comes_back() -> None:
    """The order may have been lost with the connection, or there was none."""
    bench = outliving(1)
    worker, _ = bench.join("one")
    bench.settle()
    reactor.worker_disconnected(bench.core, worker)
    assert not reactor.cancel(bench.core, 0)
    _, link = bench.join("one", holds=[(0, 1)])
    assert link.told() == [("welcome",), ("cancel", [0], 0.0, "it is not wanted any more")]
    bench.ended(worker, 0, Status.CANCELLED)
    assert bench.figures.counts.cancelled == 1


def start_of(task: int, worker: str = "old", attempt: int = 1) -> AttemptStart:
    return AttemptStart(task, attempt, "here", "lease-1", worker, 1, 1, 50.0)


def cut(task: int) -> AttemptRecord:
    outcome = Outcome(
        task=task, attempt=1, status=Status.CANCELLED, start=50.0, end=60.0, reason="killed"
    )
    return AttemptRecord(outcome, False, "here", "lease-1")


def test_a_worker_of_an_earlier_life_goes_on_and_the_rest_starts_when_all_are_back() -> None:
    """Task 1 has ended meanwhile, and task 2 never reached the worker."""
    starts = [start_of(task) for task in range(3)]
    bench = outliving(4, restored=RestoredAttempts.of(starts, [cut(0)]))
    _, fresh = bench.join("fresh")
    bench.settle()
    assert fresh.told() == [("welcome",), ("give", [(3, 1)])]  # the only one that nobody can have

    worker, link = bench.join("old", holds=[(0, 1), (1, 1)])
    bench.ended(worker, 1)
    bench.settle()

    assert link.told() == [("welcome",)]
    assert bench.figures.counts.running == 2
    assert bench.figures.counts.waiting == 1  # may start now
    assert [r.outcome.task for r in bench.store.pending.records] == [1]
    # An attempt that was adopted is noted anew, for the life after this one.
    assert [(s.task, s.time) for s in bench.store.pending.starts] == [(0, 100.0), (1, 100.0)]
    assert worker.joined_at == 50.0  # so that times before this life are believed


def test_after_a_restart_the_task_that_runs_is_blamed_and_not_the_one_of_the_least_number() -> None:
    """A worker says what it holds in the order in which it was given."""
    starts = [start_of(task) for task in range(2)]
    bench = outliving(2, restored=RestoredAttempts.of(starts))
    old, _ = bench.join("old", holds=[(1, 1), (0, 1)])
    bench.settle()
    reactor.worker_lost(bench.core, old)
    assert [record.outcome.task for record in bench.store.pending.records] == [1]


def test_restored_tasks_start_elsewhere_when_no_worker_brings_them_back() -> None:
    starts = [start_of(0), start_of(1, attempt=2)]
    bench = outliving(2, restored=RestoredAttempts.of(starts, [cut(0)]))
    assert not bench.figures.is_done
    assert not reactor.cancel(bench.core, 1)
    _, link = bench.join("new")
    bench.settle()
    assert link.told() == [("welcome",)]

    reactor.settle(bench.core)
    bench.settle()

    assert link.told() == [("give", [(0, 2)])]
    assert bench.figures.counts.cancelled == 1
    bench.commit()
    assert bench.durable == [(0, Status.CANCELLED)]
    _, late = bench.join("old", holds=[(0, 1), (1, 2)])
    assert late.told()[1:] == [("cancel", [0, 1], 0.0, "it is not wanted any more")]


def test_a_restored_attempt_without_money_is_ended() -> None:
    guard = Stingy()
    guard.has_money = False
    bench = outliving(1, restored=RestoredAttempts.of([start_of(0)]), guard=guard)
    _, link = bench.join("old", holds=[(0, 1)])
    assert link.told() == [("welcome",), ("cancel", [0], 0.0, "it is not wanted any more")]
