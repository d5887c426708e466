"""
What the engine does when something has happened: plain functions over one state.

Workers come, report and go; transactions become durable; the owner cancels, drains, and gives
leases back. Each function changes :class:`bursar.engine.core.EngineCore` and sends orders through
:class:`bursar.engine.worker_link.WorkerLink`; none waits.
"""

import math
import os
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from bursar.dispatch.folders import attempt_folder, folder_name
from bursar.dispatch.journal_records import (
    HELD_SUCCESS,
    OUTRUN,
    AttemptRecord,
    AttemptStart,
    RunEvent,
)
from bursar.dispatch.wire import MAX_PIECE, Hello, Welcome, WireJob
from bursar.engine import attendance, run_orders
from bursar.engine.attempt_ends import AttemptCounters, AttemptEnd, AttemptReactions
from bursar.engine.attendance import LeaseAttendance, OnDurable, WorkerAttendance
from bursar.engine.core import SPILL, EngineCore, RestoredAttempts
from bursar.engine.filling import TaskFilling
from bursar.engine.run_tasks import RunTasks
from bursar.engine.task_copies import COPY, TaskRace, restored_race
from bursar.engine.task_scheduler import Assignments
from bursar.engine.task_states import CANCELLED, HELD
from bursar.engine.transactions import EngineTransaction
from bursar.engine.worker_link import WorkerLink
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.money import Refusal
from bursar.model.task import Outcome, Status, Task

STUBBORN = 10.0
"""
Seconds for a worker on another machine to report that its tasks were killed, before the worker
counts as gone: a scheduler may suspend a job, whose worker then stands still while it is connected.
"""

# Workers.


def worker_joined(
    core: EngineCore, hello: Hello, link: WorkerLink, *, is_pilot: bool = False
) -> WorkerSlot[RunTasks]:
    """
    Take in a worker that was admitted, for the first time or again, and give it tasks soon.

    A worker that comes back goes on with what it holds, as far as that is wanted.
    """
    folders = core.settings.folders
    link.welcome(
        Welcome(
            core.settings.run,
            os.path.abspath(folders.root),
            os.path.abspath(folders.files),
            os.path.abspath(folders.work),
            os.path.abspath(folders.logs),
            SPILL,
            core.outlives(hello.lease),
            counts_data=hello.site in core.settings.priced_data,
        )
    )
    worker = attendance.take_in(core.room, hello, link, is_pilot=is_pilot)
    worker.ahead = core.settings.prefetch
    core.attendance.setdefault(hello.lease, LeaseAttendance()).come(hello.processors)
    if hello.lease in core.for_copies:
        worker.open = False
    if hello.lease in core.vacated:  # it came too late
        worker.open = False
        dismiss_worker(core, worker)
    for record in core.restored.held:
        _resume_race(core, worker, record)
    if core.restored.missing:
        core.restored.missing.discard(hello.worker)
        # When every worker of the earlier life is back no other one can have a task.
        if not core.restored.missing:
            settle(core)
    fill_soon(core)
    return worker


def worker_disconnected(core: EngineCore, worker: WorkerSlot[RunTasks]) -> None:
    """
    Wait for a worker whose connection has ended, or count the worker as lost.

    A worker with tasks is waited for during the ``absence`` of
    :class:`bursar.engine.core.EngineSettings`.
    """
    is_over = core.closed or worker.lease in core.vacated
    for_good = is_over or not core.outlives(worker.lease)
    attendance.disconnect(core.room, worker, for_good=for_good)
    core.changed.set()


def worker_lost(core: EngineCore, worker: WorkerSlot[RunTasks]) -> None:
    """Have the tasks of a worker that is gone for good run again."""
    attendance.lose(core.room, worker)


def attach(core: EngineCore) -> EngineCore:
    """Connect an engine's state with the reactions that a run and a service share."""
    owner, queue = RunReactions(core), core.queue
    core.room = WorkerAttendance(
        scheduler=queue.scheduler, owner=owner, clock=core.clock, absence=core.settings.absence
    )
    core.filling = TaskFilling(
        scheduler=queue.scheduler, chains=queue.chains, owner=owner, clock=core.clock
    )
    core.reactions = AttemptReactions(
        filling=core.filling,
        owner=owner,
        store=owner,
        counters=AttemptCounters(),
        copies=owner,
    )
    attempts = queue.tasks.attempts
    for task, start in core.restored.starts.items():
        # A copy with a higher number may have ended before: the attempt is resumed all the same.
        attempts[task] = min(attempts.get(task, 0), start.attempt - 1)
    return core


def fill_soon(core: EngineCore) -> None:
    """Have the workers filled once the present burst of events is taken in."""
    core.filling.hurry(core.queue.pool)


class RunReactions:
    """
    Decides what becomes of a run's tasks.

    It is a :class:`bursar.engine.attendance.TaskOwner`, a
    :class:`bursar.engine.attempt_ends.AttemptOwner`, a
    :class:`bursar.engine.task_copies.CopyOwner`, a :class:`bursar.engine.filling.WorkSender` and,
    over the run's transactions and its guard, a
    :class:`bursar.engine.attempt_ends.EngineStore`.
    """

    records_attempts = True

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def find(self, number: int) -> RunTasks | None:
        queue = self._core.queue
        return queue if number == queue.number else None

    def admit_held(
        self, instance: RunTasks, task: int, attempt: int, worker: WorkerSlot[RunTasks]
    ) -> float | None:
        """Let a worker go on with an attempt of an earlier life that is known and paid for."""
        core = self._core
        start = core.restored.starts.get(task)
        if start is None or start.attempt != attempt:
            start = self._unnoted_start(task, attempt, worker)
        if start is None:
            return None
        now = core.clock.now()
        if isinstance(core.guard.admit(task, worker.lease, now), Refusal):
            return None
        core.store.pending.transfers.extend(core.guard.transfers())
        # Noted anew: the next life is told of attempts that this one has handed out.
        core.store.pending.starts.append(start._replace(lease=worker.lease, time=now))
        core.store.commit_soon()
        _number_on(core, task)
        worker.joined_at = min(worker.joined_at, start.time)
        return start.time

    def _unnoted_start(
        self, task: int, attempt: int, worker: WorkerSlot[RunTasks]
    ) -> AttemptStart | None:
        """Return the start of an attempt that was handed out just before the engine was killed."""
        core, since = self._core, self._core.restored.since
        if since is None or worker.name not in core.restored.missing:
            return None
        where = (worker.site, worker.lease, worker.name, worker.processors)
        return AttemptStart(task, attempt, *where, core.task(task).processors, since)

    def lose(
        self,
        worker: WorkerSlot[RunTasks],
        claims: Sequence[WorkerClaim[RunTasks]],
        *,
        counts: bool,
    ) -> None:
        core = self._core
        # Nothing more is journalled once the engine has ended: the tasks are not lost but stopped.
        if core.closed:
            for claim in claims:
                core.queue.scheduler.release(claim)
        elif counts:
            core.reactions.lost(worker, claims, f"worker {worker.name} went away")
        else:
            # The last first, so that the first comes first again.
            jobs = [(claim.number, claim.attempt) for claim in reversed(claims)]
            core.reactions.take_back(worker, jobs)

    def went(self, worker: WorkerSlot[RunTasks]) -> None:
        core = self._core
        seen, now = core.attendance[worker.lease], core.clock.now()
        seen.go(worker.processors, now, took_leave=worker.took_leave)

    def gone(self, worker: WorkerSlot[RunTasks]) -> None:
        core = self._core
        core.queue.chains.leave(worker.name)
        if worker.lease in core.vacated:
            _forget_absent(core, worker.lease)
        core.changed.set()

    def failed(self, error: BaseException) -> None:
        self._core.store.fail(error)

    def uses_up_a_try(self, claim: WorkerClaim[RunTasks], outcome: Outcome) -> bool:
        return True

    def never_began(self, claim: WorkerClaim[RunTasks]) -> None:
        """Give up the money and the journalled start of an attempt that has not begun."""
        core = self._core
        # The hold goes back at once: another task may be waiting for just this money.
        core.guard.withdraw(claim.task, core.clock.now())
        if core.settings.keeps_starts:
            core.store.pending.starts.append(AttemptStart.given_back(claim.task, claim.attempt))
            core.store.commit_soon()

    def freed(self, instance: RunTasks) -> None:
        """Do nothing: a run's instance is never destroyed."""

    def publish(self, claim: WorkerClaim[RunTasks]) -> str:
        """Publish the outputs of a copy that has succeeded; return why not, empty: done."""
        settings, task = self._core.settings, self._core.task(claim.task)
        assert settings.publish is not None
        name = attempt_folder(folder_name(claim.task, task.id), claim.attempt)
        outputs = [file.name for file in task.outputs]
        return settings.publish(settings.folders.work / name, outputs)

    def keep(self, claim: WorkerClaim[RunTasks], outcome: Outcome) -> None:
        """Journal a success that is held: once it is acknowledged, no worker has it any more."""
        core, worker = self._core, claim.worker
        outcome = replace(outcome, task=claim.task)  # without the mark of a copy
        record = AttemptRecord(outcome, True, worker.site, worker.lease)
        text = msgspec.json.encode(record).decode()
        core.store.pending.events.append(RunEvent(core.clock.now(), HELD_SUCCESS, text))
        core.store.commit_soon()

    def stop(self, claim: WorkerClaim[RunTasks]) -> None:
        """Have a worker stop the attempt that the other attempt of its task has outrun."""
        core = self._core
        # Withheld: the success that has outrun it must be durable, or a kill would cost both.
        cancel_at(core, claim.worker, [claim.number], 0.0, OUTRUN, withhold=True)
        # A machine that stands still is a usual cause of long attempts: it does not follow orders.
        core.clock.at(core.clock.now() + STUBBORN, partial(_give_up_stubborn, core, claim))

    def may_run(self, pool: str, user: str, now: float) -> float:
        return math.inf

    def admit(self, now: float, task: int, lease: str) -> float | Refusal:
        return run_orders.admit(self._core, now, task, lease)

    def prepare(self, pool: str) -> bool:
        return run_orders.prepare(self._core)

    def give(self, pool: str, given: Assignments[RunTasks], now: float) -> None:
        run_orders.give(self._core, given, now)

    def recall(self, worker: WorkerSlot[RunTasks], count: int) -> None:
        run_orders.recall(self._core, worker, count)

    def record(
        self, ends: Sequence[AttemptEnd[RunTasks]], on_durable: OnDurable | None = None
    ) -> None:
        """Journal attempts with what they cost; no child starts before that is durable."""
        core = self._core
        pending = core.store.pending
        if ends:
            for end in ends:
                if end.final:
                    # Steps and environments of tasks at their end would fill memory in long
                    # campaigns.
                    core.tasks[end.task] = None
            pending.records.extend(ends)
            # In one transaction with the outcomes: after a kill either both are there or neither
            # is.
            outcomes = [
                # The guard knows a copy by a number of its own.
                replace(end.outcome, task=end.task | COPY) if end.is_copy else end.outcome
                for end in ends
            ]
            pending.transfers.extend(core.guard.settle(outcomes, core.clock.now()))
            if not all(end.final for end in ends):
                pending.withheld.append(partial(core.reactions.try_again, ends))
        if on_durable is not None:
            pending.withheld.append(on_durable)
        core.store.commit_soon()


def outcomes_reported(
    core: EngineCore, worker: WorkerSlot[RunTasks], outcomes: Sequence[Outcome]
) -> None:
    """
    Take in a worker's own report of attempts.

    A worker that keeps outcomes until they are durable is told when they are, in the order in
    which they came; also of those that do not count, which the worker would else repeat for ever.
    """
    told = attendance.recording(worker, len(outcomes)) if core.outlives(worker.lease) else None
    core.reactions.reported(worker, outcomes, told)


def tasks_returned(
    core: EngineCore, worker: WorkerSlot[RunTasks], jobs: Sequence[tuple[int, int]]
) -> None:
    """Take back jobs, each a task and an attempt, that a worker returned unstarted."""
    core.reactions.returned(worker, jobs)


def leave_requested(core: EngineCore, worker: WorkerSlot[RunTasks], *, must: bool) -> None:
    """Dismiss a worker that asks for it if it has no tasks; one that must go gets no more."""
    attendance.ask_to_leave(worker, must=must)
    # One that must go is being killed; its pilot may stay, as on a node that dies.
    worker.took_leave = worker.leaving and not must
    core.changed.set()


def job_too_large(core: EngineCore, worker: WorkerSlot[RunTasks], job: WireJob, size: int) -> None:
    """Fail a task whose job cannot be sent: such a frame would end the worker's connection."""
    now = core.clock.now()
    outcome = Outcome(
        task=job.task,
        attempt=job.attempt,
        status=Status.FAILED,
        start=now,
        end=now,
        reason=f"its steps take {size} bytes, more than the {MAX_PIECE} that can be sent",
    )
    core.reactions.failed(worker, outcome)


# The journal.


def committed(core: EngineCore, transaction: EngineTransaction) -> None:
    """Send, release and report what waited until a transaction was durable."""
    # All of this only now: whoever hears of an outcome, or begins what was paid for, has its cause
    # in the journal.
    for order in transaction.withheld:
        order()
    for record in transaction.records:
        if record.outcome.status is Status.SUCCEEDED:
            _release(core, record.outcome)
    core.filling.again(core.queue)
    if core.queue.tasks.unchained:
        fill_soon(core)
    for record in transaction.records:
        core.settings.on_outcome(record)
    if core.settings.hears_first:
        fill_soon(core)


def _release(core: EngineCore, outcome: Outcome) -> None:
    """Let the children of a succeeded task start, each after the delay of its data."""
    task, delay = outcome.task, core.settings.delay
    if delay is None:
        core.queue.tasks.release(task)
    else:
        core.queue.tasks.release(task, outcome.end, lambda child: delay(task, child))


# The owner.


def settle(core: EngineCore) -> None:
    """Let restored tasks be given out again that no worker has brought back."""
    restored, tasks = core.restored, core.queue.tasks
    left = [task for task in sorted(restored.tasks) if tasks.states[task] == HELD]
    held = {record.outcome.task: record for record in restored.held}
    if core.closed:
        core.restored = RestoredAttempts()
        return
    for record in restored.cut:
        outcome = record.outcome
        # A copy has ended even if a worker has brought the first attempt back.
        if tasks.states[outcome.task] == HELD or record.is_outrun:
            known = tasks.attempts.get(outcome.task, 0)
            tasks.attempts[outcome.task] = max(outcome.attempt, known)
            core.store.pending.records.append(record)
    for task in left:
        # Else a later life would take the start for an attempt that had begun.
        attempt = restored.starts[task].attempt if task in restored.starts else 0
        if core.settings.keeps_starts and attempt > tasks.attempts.get(task, 0):
            core.store.pending.starts.append(AttemptStart.given_back(task, attempt))
        if task in held:
            race = _restored_race(core, held[task], None)
            # If its outputs cannot be published the task is tried again.
            core.reactions.decide_held(race, core.queue, task)
        elif task in tasks.doomed:  # no worker has it: it ends without being run
            tasks.doomed.discard(task)
            tasks.end(task, CANCELLED)
        else:
            tasks.make_ready(task)
    for task in restored.numbers:
        _number_on(core, task)
    core.restored = RestoredAttempts()
    core.store.commit_soon()
    core.changed.set()
    fill_soon(core)


def _number_on(core: EngineCore, task: int) -> None:
    """Have later attempts of a task get numbers that no attempt of an earlier life has had."""
    known = core.queue.tasks.attempts
    known[task] = max(core.restored.numbers.get(task, 0), known.get(task, 0))


def _resume_race(core: EngineCore, worker: WorkerSlot[RunTasks], record: AttemptRecord) -> None:
    """Have a worker stop what it has brought back, if a success is held that has outrun it."""
    first = worker.claims.get(record.outcome.task)
    if first is not None and first.task not in core.reactions.races:
        core.reactions.races[first.task] = _restored_race(core, record, first)
        RunReactions(core).stop(first)


def _restored_race(
    core: EngineCore, record: AttemptRecord, first: WorkerClaim[RunTasks] | None
) -> TaskRace[RunTasks]:
    task = record.outcome.task
    known = core.queue.tasks.attempts
    known[task] = max(record.outcome.attempt, known.get(task, 0))
    has_files = core.settings.publish is not None and bool(core.task(task).outputs)
    return restored_race(core.queue, record, first, has_files=has_files)


def submit(core: EngineCore, tasks: Sequence[Task]) -> range:
    """Add tasks without parents; return their numbers."""
    numbers = core.queue.extend(tasks)
    core.tasks.extend(tasks)
    fill_soon(core)
    return numbers


def cancel(core: EngineCore, task: int) -> bool:
    """
    Cancel a task, and kill the attempt that runs.

    Returns
    -------
    bool
        True when no worker has the task, which will not start any more; False when a worker
        was told to stop the attempt.
    """
    race = core.reactions.races.get(task)
    if race is not None:
        if not race.is_won:
            core.queue.tasks.doomed.add(task)
            for claim in race.running:
                cancel_at(core, claim.worker, [claim.number], 0.0, "cancelled")
        return race.is_won
    worker = core.queue.cancel(task)
    if worker is None:
        core.changed.set()
        # A worker that has the task since before a restart is told when it comes back.
        return task not in core.queue.tasks.doomed
    cancel_at(core, worker, [task], 0.0, "cancelled")
    return False


def _give_up_stubborn(core: EngineCore, claim: WorkerClaim[RunTasks]) -> None:
    """End the link to a pilot's worker that has not stopped an attempt for a long time."""
    is_there = core.queue.scheduler.claims.get(claim.number) is claim
    if is_there and claim.worker.is_pilot:
        claim.worker.link.abort()


def cancel_at(
    core: EngineCore,
    worker: WorkerSlot[RunTasks],
    tasks: Sequence[int],
    grace: float,
    reason: str,
    *,
    withhold: bool = False,
) -> None:
    """
    Have a worker stop tasks (none: all of its own), with seconds to end by themselves.

    Parameters
    ----------
    withhold
        Whether the order waits until what is noted so far is durable.
    """
    # Marked even if the worker is away: it is told when it comes back.
    for number in tasks or [claim.number for claim in worker.held()]:
        core.queue.scheduler.claims[number].recalled = True
    order = partial(worker.link.cancel, tasks, grace, reason)
    run_orders.send(core, worker, order, withhold=withhold)


def drain(core: EngineCore) -> None:
    """Start nothing more, and let running tasks go on."""
    core.queue.draining = True
    for worker in core.workers.values():
        # Jobs that wait at workers have not started either.
        run_orders.recall(core, worker, len(worker.held()))
    core.changed.set()


def stop(core: EngineCore, reason: str, grace: float) -> None:
    """Start nothing more and stop the running tasks."""
    drain(core)
    # Workers of an earlier life that come back later are told to end what they have.
    settle(core)
    for worker in core.workers.values():
        cancel_at(core, worker, [], grace, reason)


def vacate(core: EngineCore, lease: str, reason: str) -> None:
    """End a lease: stop the tasks on its processors, which may run again elsewhere."""
    # First, so that tasks which are cancelled here are not given to the same lease again.
    _close_lease(core, lease)
    for worker in core.workers_of(lease):
        if not worker.is_idle:
            cancel_at(core, worker, [], 0.0, reason)


def limit(core: EngineCore, site: str, processors: int) -> None:
    """Start tasks only on so many processors of a site from now on; running tasks go on."""
    if core.limits.get(site) != processors:
        core.limits[site] = processors
        fill_soon(core)


def dismiss(core: EngineCore, lease: str) -> None:
    """Dismiss the workers of a lease, and give the lease no more tasks."""
    # Also for workers that join after this: they are told to leave at once.
    _close_lease(core, lease)
    _forget_absent(core, lease)
    for worker in core.workers_of(lease):
        if worker.connected:
            dismiss_worker(core, worker)
        else:  # nobody lets it in again
            worker_lost(core, worker)


def dismiss_worker(core: EngineCore, worker: WorkerSlot[RunTasks]) -> None:
    """Order a worker to leave, after all that was sent to it before."""
    run_orders.send(core, worker, worker.link.leave)


def turn_out(core: EngineCore, lease: str) -> list[WorkerSlot[RunTasks]]:
    """
    Cancel the tasks of a lease whose credential was revoked, and dismiss its pilots' workers.

    Returns
    -------
    list of WorkerSlot[RunTasks]
        Workers whose links are to be ended in a while.
    """
    _close_lease(core, lease)
    pilots = [worker for worker in core.workers_of(lease) if worker.is_pilot]
    for worker in pilots:
        if not worker.connected:  # nobody lets it in again
            worker_lost(core, worker)
    workers = [worker for worker in pilots if worker.connected]
    for worker in workers:
        if worker.claims:
            cancel_at(core, worker, [], 0.0, "its processors go back")
        dismiss_worker(core, worker)
    return workers


def cut_off(core: EngineCore, lease: str | None = None) -> None:
    """Abort the links of pilots' workers that still have tasks, of one lease or of all."""
    for worker in list(core.workers.values()):
        if worker.is_idle or lease not in (None, worker.lease):
            continue
        if not worker.connected:  # waited for in vain
            worker_lost(core, worker)
        elif worker.is_pilot:
            worker.link.abort()


def _close_lease(core: EngineCore, lease: str) -> None:
    """Give the workers of a lease no more tasks, those to come included."""
    core.vacated.add(lease)
    for worker in core.workers_of(lease):
        worker.open = False


def _forget_absent(core: EngineCore, lease: str) -> None:
    """Stop counting the workers of a lease that takes no more tasks and has no worker left."""
    seen = core.attendance.get(lease)
    if seen is not None and not seen.ready:
        del core.attendance[lease]
