"""Two attempts of one task: one result, whatever the order in which the attempts end."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dispatch.test_reactor import Bench, RecordedLink
from tests.thoroughness import examples

from bursar.dispatch.journal_records import (
    COPIED,
    OUTRUN,
    AttemptRecord,
    AttemptStart,
    CopyStart,
    JournalState,
    RunEvent,
    copies_of,
    interrupted_attempts,
)
from bursar.engine import reactor, run_orders, task_copies
from bursar.engine.core import RestoredAttempts
from bursar.engine.figures import EngineFigures
from bursar.engine.run_tasks import RunTasks
from bursar.engine.task_copies import COPY, RaceStep, TaskRace
from bursar.engine.worker_slots import WorkerSlot
from bursar.model.money import Refusal, Transfer
from bursar.model.task import Copy, File, Outcome, Status, Task
from bursar_devtools.unlimited_spending import UnlimitedSpending

WHY = CopyStart(0, 0, 0, "", "", 1.0, 2.0, 3.0)
OK, FAILED, LOST, CANCELLED = Status.SUCCEEDED, Status.FAILED, Status.LOST, Status.CANCELLED


class CountingGuard(UnlimitedSpending):
    """Knows what is set aside, and by which number."""

    def __init__(self, *, refuses_copies: bool = False) -> None:
        super().__init__()
        self.held: set[int] = set()
        self.refuses_copies = refuses_copies

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        if self.refuses_copies and task & COPY:
            return Refusal("the budget does not cover it", final=False)
        self.held.add(task)
        return super().admit(task, lease, now)

    def withdraw(self, task: int, now: float) -> None:
        self.held.discard(task)

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        for outcome in outcomes:
            self.held.remove(outcome.task)  # an error where it holds nothing
        return super().settle(outcomes, now)


class Two(Bench):
    """A task that runs at worker ``a``, and its copy at worker ``b``."""

    def __init__(self, *, outputs: bool = False, start: bool = True, **more: Any) -> None:
        self.published: list[str] = []
        self.problem = ""
        self.records: list[AttemptRecord] = []
        self.events: list[RunEvent] = []
        self.counting = more.pop("guard", None) or CountingGuard()
        files = (File("out"),) if outputs else ()
        super().__init__(
            [Task(id="t", outputs=files)], guard=self.counting, publish=self._publish, **more
        )
        self.a, self.to_a = self.join("a")
        self.settle()
        self.commit()
        self.b, self.to_b = self.join("b")
        self.settle()
        if start:
            assert run_orders.copy(self.core, 0, "b", WHY) is None
            self.commit()

    def _publish(self, folder: Path, names: Sequence[str]) -> str:
        assert names == ["out"]
        self.published.append(folder.name)
        return self.problem

    def commit(self) -> None:
        self.records += self.store.pending.records
        self.events += self.store.pending.events
        super().commit()

    def first(self, status: Status = OK) -> None:
        self.ended(self.a, 0, status, attempt=1)

    def copy(self, status: Status = OK) -> None:
        self.ended(self.b, COPY, status, attempt=2)

    def told(self) -> list[tuple[int, Status, bool]]:
        self.commit()
        return [(r.outcome.attempt, r.outcome.status, r.final) for r in self.records]


def cancelled(link: RecordedLink) -> list[list[int]]:
    return [order[1] for order in link.orders if order[0] == "cancel"]


def test_a_copy_has_a_number_a_hold_and_an_event_of_its_own() -> None:
    two = Two()

    assert two.to_b.orders == [("welcome",), ("give", [(COPY, 2)])]
    assert two.counting.held == {0, COPY}
    (copy,) = copies_of(two.events)
    assert (copy.task, copy.attempt, copy.of, copy.worker) == (0, 2, 1, "b")
    assert (two.figures.counts.running, two.figures.counts.waiting) == (1, 0)


@pytest.mark.parametrize("outputs", [False, True])
def test_when_the_first_attempt_succeeds_the_copy_is_stopped_and_waited_for(outputs: bool) -> None:
    two = Two(outputs=outputs)
    two.first()

    assert two.told() == [(1, OK, True)]
    assert cancelled(two.to_b) == [[COPY]]
    assert not two.figures.is_done
    two.copy(CANCELLED)
    assert two.told() == [(1, OK, True), (2, CANCELLED, False)]
    assert two.figures.is_done
    assert two.published == []
    assert two.counting.held == set()


def test_a_copy_that_succeeds_too_is_not_a_second_result() -> None:
    two = Two()
    two.first()
    two.copy()

    assert two.told() == [(1, OK, True), (2, CANCELLED, False)]
    assert two.records[1].outcome.reason == OUTRUN
    assert two.durable == [(0, OK), (0, CANCELLED)]


def test_without_outputs_the_success_of_a_copy_counts_at_once() -> None:
    """A worker that stands still must not hold up the result."""
    two = Two()
    two.copy()

    assert two.told() == [(2, OK, True)]
    assert cancelled(two.to_a) == [[0]]
    two.first()
    assert two.told() == [(2, OK, True), (1, CANCELLED, False)]


@pytest.mark.parametrize("end", [CANCELLED, FAILED, LOST])
def test_outputs_of_a_copy_are_published_when_the_first_attempt_has_ended(end: Status) -> None:
    two = Two(outputs=True)
    two.copy()
    assert two.told() == []
    assert cancelled(two.to_a) == [[0]]
    assert two.published == []
    if end is LOST:
        reactor.worker_lost(two.core, two.a)
    else:
        two.first(end)

    assert two.told() == [(1, end, False), (2, OK, True)]
    assert two.published == ["0-t.2"]
    assert two.figures.is_done
    assert two.counting.held == set()


def test_a_first_attempt_that_has_published_meanwhile_is_the_one_that_counts() -> None:
    two = Two(outputs=True)
    two.copy()
    two.first()

    assert two.told() == [(2, CANCELLED, False), (1, OK, True)]
    assert two.published == []


def test_a_copy_whose_outputs_cannot_be_published_has_not_succeeded() -> None:
    two = Two(outputs=True)
    two.problem = "no room"
    two.copy()
    two.first(CANCELLED)

    assert two.told() == [(1, CANCELLED, False), (2, CANCELLED, False)]
    assert two.records[1].outcome.reason == "the copy ended without success: no room"
    assert two.figures.counts.running == 1  # it is tried again


def test_a_failing_copy_uses_up_no_try_and_the_first_attempt_goes_on() -> None:
    two = Two(attempts=1)
    two.copy(FAILED)

    assert two.told() == [(2, CANCELLED, False)]
    two.first()
    assert two.told() == [(2, CANCELLED, False), (1, OK, True)]


def test_a_failing_first_attempt_does_not_fail_the_task_while_the_copy_runs() -> None:
    two = Two(attempts=1)
    two.first(FAILED)

    assert two.told() == [(1, FAILED, False)]
    assert not two.figures.is_done
    two.copy()
    assert two.told() == [(1, FAILED, False), (2, OK, True)]


def test_when_both_fail_the_tries_of_the_first_attempts_decide() -> None:
    two = Two(attempts=1)
    two.first(FAILED)
    two.copy(FAILED)
    assert two.told() == [(1, FAILED, False), (2, FAILED, True)]

    two = Two(attempts=2)
    two.first(FAILED)
    two.copy(FAILED)
    assert two.told() == [(1, FAILED, False), (2, CANCELLED, False)]
    # The next attempt has a number that neither has had.
    assert [c.attempt for c in two.core.queue.scheduler.claims.values()] == [3]


def test_a_retry_after_a_failed_copy_has_a_number_that_neither_has_had() -> None:
    two = Two()
    two.copy(FAILED)
    two.first(FAILED)
    two.told()

    assert [c.attempt for c in two.core.queue.scheduler.claims.values()] == [3]


@pytest.mark.parametrize("lost", ["a", "b"])
def test_where_one_worker_is_lost_the_other_attempt_goes_on(lost: str) -> None:
    two = Two(attempts=1)
    reactor.worker_lost(two.core, two.a if lost == "a" else two.b)
    if lost == "a":
        two.copy()
        assert two.told() == [(1, LOST, False), (2, OK, True)]
    else:
        two.first()
        assert two.told() == [(2, CANCELLED, False), (1, OK, True)]
    assert two.figures.is_done


def test_no_copy_starts_for_which_there_is_no_money() -> None:
    two = Two(guard=CountingGuard(refuses_copies=True), start=False)

    answer = run_orders.copy(two.core, 0, "b", WHY)

    assert answer == Refusal("the budget does not cover it", final=False)
    assert two.to_b.orders == [("welcome",)]
    assert two.core.refusal == ""  # the run is not short of money


def test_a_second_copy_a_full_worker_and_a_drained_run_are_refused() -> None:
    two = Two()
    assert isinstance(run_orders.copy(two.core, 0, "b", WHY), Refusal)
    two = Two(start=False)
    assert isinstance(run_orders.copy(two.core, 0, "a", WHY), Refusal)
    reactor.drain(two.core)
    assert isinstance(run_orders.copy(two.core, 0, "b", WHY), Refusal)


def test_a_task_that_writes_into_the_files_of_the_run_by_a_step_gets_no_copy() -> None:
    """Such a step is no output, which is published when the winner is known."""
    bench = Bench(
        [Task(id="t", steps=(Copy("x", "y", source_at_root=False, target_at_root=True),))]
    )
    bench.join("a")
    bench.settle()
    bench.join("b")

    answer = run_orders.copy(bench.core, 0, "b", WHY)

    assert isinstance(answer, Refusal)
    assert answer.final


def test_cancelling_a_task_stops_both_attempts() -> None:
    two = Two()
    assert not reactor.cancel(two.core, 0)
    assert (cancelled(two.to_a), cancelled(two.to_b)) == ([[0]], [[COPY]])
    two.first(CANCELLED)
    two.copy(CANCELLED)

    assert two.told() == [(1, CANCELLED, False), (2, CANCELLED, True)]
    assert two.figures.is_done


def test_a_pilot_that_does_not_stop_what_was_outrun_is_given_up() -> None:
    """A machine that stands still is why tasks take long: the run must not wait for it."""
    two = Two(start=False)
    c, to_c = two.join("c", is_pilot=True)
    assert run_orders.copy(two.core, 0, "c", WHY) is None
    two.commit()
    two.first()
    two.commit()
    two.pass_time(reactor.STUBBORN + 1)
    assert to_c.orders[-1] == ("abort",)
    reactor.worker_disconnected(two.core, c)
    two.commit()

    assert two.figures.is_done


def test_a_worker_that_comes_back_goes_on_with_a_copy() -> None:
    two = Two(outlives=60.0, absence=60.0)
    reactor.worker_disconnected(two.core, two.b)
    two.b, link = two.join("b", holds=[(COPY, 2)])

    assert link.orders == [("welcome",)]
    two.copy()
    assert two.told() == [(2, OK, True)]


def test_after_a_kill_the_first_attempt_goes_on_and_the_copy_is_ended() -> None:
    starts = [
        AttemptStart(0, 1, "here", "lease-1", "a", 1, 1, 50.0),
        AttemptStart(0, 2, "here", "lease-1", "b", 1, 1, 60.0),
    ]
    text = b'{"task":0,"attempt":2,"of":1,"lease":"","worker":"b","elapsed":1,"left":2,"fresh":3}'
    journal = JournalState([], [], [RunEvent(60.0, COPIED, text.decode())], 70.0, starts)
    cut = interrupted_attempts(journal, 40.0)
    bench = Bench(
        [Task(id="t")],
        guard=CountingGuard(),
        restored=RestoredAttempts.of(starts, cut),
        outlives=60.0,
        absence=60.0,
    )
    a, to_a = bench.join("a", holds=[(0, 1)])
    _, to_b = bench.join("b", holds=[(COPY, 2)])
    bench.settle()

    assert to_a.orders == [("welcome",)]
    assert cancelled(to_b) == [[COPY]]
    bench.ended(a, 0)
    # What the kill has cut off says nothing of the task, although its number is higher.
    records = bench.store.pending.records
    assert [(r.outcome.attempt, r.final) for r in records] == [(2, False), (1, True)]
    state = JournalState(sorted(records, key=lambda r: r.outcome.attempt), [], [])
    assert [outcome.attempt for outcome in state.outcomes] == [1]


STEPS = st.lists(
    st.sampled_from(
        ["a ok", "a fail", "a lost", "b ok", "b fail", "b lost", "a back", "b back", "cancel"]
    ),
    max_size=6,
)


def _carry_out(steps: Sequence[str], *, outputs: bool, attempts: int) -> Two:
    """Carry out steps in any order, as far as they can happen, then end what is left."""
    two = Two(outputs=outputs, attempts=attempts)
    states = {"ok": OK, "fail": FAILED}
    for step in [*steps, "a stopped", "b stopped"]:
        name, _, what = step.partition(" ")
        if name == "cancel":
            reactor.cancel(two.core, 0)
            continue
        worker: WorkerSlot[RunTasks] = two.a if name == "a" else two.b
        number, attempt = (0, 1) if name == "a" else (COPY, 2)
        claim = worker.claims.get(number)
        if claim is None or claim.attempt != attempt:
            continue
        if what == "lost":
            reactor.worker_lost(two.core, worker)
        elif what == "back":
            reactor.tasks_returned(two.core, worker, [(number, attempt)])
        elif what in states:
            two.ended(worker, number, states[what], attempt)
        elif claim.recalled:
            two.ended(worker, number, CANCELLED, attempt)
        two.commit()
    return two


def _check(two: Two) -> None:
    """Check what must hold after any order of events."""
    records = [r.outcome for r in two.records]
    assert max(Counter((o.task, o.attempt) for o in records).values(), default=1) == 1
    assert sum(o.status is OK for o in records) <= 1
    assert sum(r.final for r in two.records) <= 1
    for record in two.records:
        if record.outcome.status is OK:
            assert record.final
            is_copy = record.outcome.attempt == 2
            has_outputs = bool(two.core.tasks[0] is None and two.with_outputs)  # type: ignore[attr-defined]
            assert (two.published == ["0-t.2"]) == (is_copy and has_outputs)
    claims = two.core.queue.scheduler.claims
    # Money is set aside for what runs, and for nothing else.
    assert two.counting.held == set(claims)
    if not claims:
        assert two.core.queue.is_at_end(0) or not two.core.workers
        assert two.figures.is_done == two.core.queue.is_at_end(0)


@given(STEPS, st.booleans(), st.integers(1, 3))
@settings(max_examples=examples(300), deadline=None)
def test_any_order_of_ends_leaves_one_result_and_no_hold(
    steps: list[str], outputs: bool, attempts: int
) -> None:
    two = _carry_out(steps, outputs=outputs, attempts=attempts)
    two.with_outputs = outputs  # type: ignore[attr-defined]

    _check(two)
    assert two.core.store.fault is None


def test_the_check_finds_a_race_that_forgets_its_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberately broken: both successes count."""

    def forgetful(race: TaskRace[Any], claim: Any, outcome: Outcome) -> RaceStep[Any]:
        if claim is race.copy:
            race.copy = None
        else:
            race.first = None
        other = race.first or race.copy
        return RaceStep(winner=(claim, outcome), stop=other, is_over=other is None)

    monkeypatch.setattr(task_copies.TaskRace, "end", forgetful)
    two = _carry_out(["a ok", "b ok"], outputs=False, attempts=3)
    two.with_outputs = False  # type: ignore[attr-defined]

    with pytest.raises(AssertionError):
        _check(two)


def test_processors_bought_for_copies_run_nothing_else() -> None:
    bench = Bench([Task(id="t"), Task(id="u")], guard=CountingGuard())
    bench.core.for_copies.add("copy-1")
    only, to_only = bench.join("b", lease="copy-1")
    _, to_any = bench.join("a")
    bench.settle()
    bench.commit()

    assert to_only.orders == [("welcome",)]
    assert [order[0] for order in to_any.orders] == ["welcome", "give"]
    figures = EngineFigures(bench.core)
    # One is ready and waits for the only worker that may run it.
    assert figures.widths_ready({"copy-1"}) == {1: 1}
    assert [worker.name for worker in figures.idle_workers()] == ["b"]
    assert run_orders.copy(bench.core, 0, only.name, WHY) is None
    bench.commit()
    assert to_only.orders[1:] == [("give", [(COPY, 2)])]
    assert figures.left("copy-1") == 1


def test_a_share_of_a_site_goes_to_what_was_bought_for_copies_first() -> None:
    bench = Bench([Task(id="t")], guard=CountingGuard())
    bench.core.for_copies.add("copy-1")
    bench.join("a", processors=3)
    bench.settle()
    only, _ = bench.join("b", lease="copy-1")
    reactor.limit(bench.core, "here", 2)
    bench.settle()

    assert only.free == 1
