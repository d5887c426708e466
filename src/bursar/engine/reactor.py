"""
What the engine does when something has happened: plain functions over one state.

Workers come, report and go; transactions become durable; the owner cancels, drains, and gives
leases back. Each function changes :class:`bursar.engine.core.EngineCore` and sends orders through
:class:`bursar.engine.worker_link.WorkerLink`; none waits.
"""

import os
from collections.abc import Sequence
from functools import partial

from bursar.dispatch.journal_records import AttemptRecord, AttemptStart
from bursar.dispatch.journal_time import placed
from bursar.dispatch.wire import MAX_PIECE, Hello, Welcome, WireJob
from bursar.engine.core import SPILL, ConnectedWorker, EngineCore
from bursar.engine.filling import schedule_fill, send, set_waker
from bursar.engine.lease_loads import LeaseAttendance
from bursar.engine.transactions import EngineTransaction
from bursar.engine.worker_link import WorkerLink
from bursar.model.task import Outcome, Status, Task

# Workers.


def worker_joined(
    core: EngineCore, hello: Hello, link: WorkerLink, *, is_pilot: bool = False
) -> ConnectedWorker:
    """Take in a worker that was admitted, and give it tasks soon."""
    slot = core.queue.join(hello.worker, hello.lease, hello.processors)
    slot.ahead = core.settings.prefetch
    now = core.clock.now()
    worker = core.workers[hello.worker] = ConnectedWorker(
        name=hello.worker,
        site=hello.site,
        lease=hello.lease,
        processors=hello.processors,
        link=link,
        slot=slot,
        joined_at=now,
        idle_since=now,
        is_pilot=is_pilot,
    )
    folders = core.settings.folders
    link.welcome(
        Welcome(
            core.settings.run,
            os.path.abspath(folders.root),
            os.path.abspath(folders.files),
            os.path.abspath(folders.work),
            os.path.abspath(folders.logs),
            SPILL,
        )
    )
    core.attendance.setdefault(hello.lease, LeaseAttendance()).come(hello.processors)
    if hello.lease in core.vacated:  # it came too late
        dismiss_worker(core, worker)
    schedule_fill(core)
    return worker


def worker_left(core: EngineCore, worker: ConnectedWorker) -> None:
    """Have the tasks of a worker that is gone run again."""
    # Replaced by a newer connection of the same worker: it has no tasks.
    if core.workers.get(worker.name) is not worker:
        return
    del core.workers[worker.name]
    now = core.clock.now()
    core.attendance[worker.lease].go(worker.processors, now, took_leave=worker.took_leave)
    if worker.lease in core.vacated:
        _forget_absent(core, worker.lease)
    # Its tasks are not lost but were stopped, and nothing more is journalled.
    if core.closed:
        return
    # Each may have begun, also those that should still be waiting: what may run once only must not
    # begin again elsewhere.
    _take_outcomes(
        core,
        worker,
        [
            Outcome(
                task=claim.task,
                attempt=claim.attempt,
                status=Status.LOST,
                start=now,
                end=now,
                reason=f"worker {worker.name} went away",
            )
            for claim in worker.slot.claims.values()
        ],
    )
    # Last: the queue takes the outcomes above under this worker's name only.
    core.queue.leave(worker.name)
    core.changed.set()


def _take_outcomes(core: EngineCore, worker: ConnectedWorker, outcomes: Sequence[Outcome]) -> None:
    """Take in attempts that have ended, and journal them with what they cost."""
    now = core.clock.now()
    name, site, lease = worker.name, worker.site, worker.lease
    finish = core.queue.finish
    records = core.store.pending.records
    counted: list[Outcome] = []
    for reported in outcomes:
        outcome = placed(reported, worker.joined_at, now)
        # Held: no child starts before its parent's success is durable, or a kill could leave a
        # child's result without its parent's.
        verdict = finish(name, outcome, now, hold=True)
        if verdict is None:
            continue
        if verdict.final:
            # Steps and environments of tasks at their end would fill memory in long campaigns.
            core.tasks[outcome.task] = None
        counted.append(outcome)
        records.append(AttemptRecord(outcome, verdict.final, site, lease))
    if counted:
        # In one transaction with the outcomes: after a kill either both are there or neither is.
        core.store.pending.transfers.extend(core.guard.settle(counted, now))
        core.store.commit_soon()
        _rested(core, worker)
    schedule_fill(core)


def outcomes_reported(
    core: EngineCore, worker: ConnectedWorker, outcomes: Sequence[Outcome]
) -> None:
    """Take in a worker's own report of attempts, and learn how long its tasks take."""
    worker.slot.prefetch.learn(outcomes)
    _take_outcomes(core, worker, outcomes)


def tasks_returned(
    core: EngineCore, worker: ConnectedWorker, jobs: Sequence[tuple[int, int]]
) -> None:
    """Take back jobs, each a task and an attempt, that a worker returned unstarted."""
    worker.slot.prefetch.returned(len(jobs))
    for task, attempt in jobs:
        if core.queue.give_back(worker.name, task, attempt):
            # The hold goes back at once: another task may be waiting for just this money.
            core.guard.withdraw(task, core.clock.now())
            if core.settings.keeps_starts:
                core.store.pending.starts.append(AttemptStart.given_back(task, attempt))
                core.store.commit_soon()
    _rested(core, worker)
    core.changed.set()
    schedule_fill(core)


def leave_requested(core: EngineCore, worker: ConnectedWorker, *, must: bool) -> None:
    """Dismiss a worker that asks for it if it has no tasks; one that must go gets no more."""
    worker.leaving |= must
    _let_go(core, worker)
    # One that must go is being killed; its pilot may stay, as on a node that dies.
    worker.took_leave = worker.leaving and not must
    core.changed.set()


def job_too_large(core: EngineCore, worker: ConnectedWorker, job: WireJob, size: int) -> None:
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
    _take_outcomes(core, worker, [outcome])


def _rested(core: EngineCore, worker: ConnectedWorker) -> None:
    """Note that a worker has given up tasks, and since when that worker is idle."""
    if not worker.slot.claims:
        worker.idle_since = core.clock.now()
        if worker.leaving:
            _let_go(core, worker)


def _let_go(core: EngineCore, worker: ConnectedWorker) -> None:
    """Dismiss a worker that asked to leave, if the worker has no tasks."""
    if not worker.slot.claims:
        worker.leaving = True
        dismiss_worker(core, worker)


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
    if core.queue.tasks.ready:
        schedule_fill(core)
    elif core.settings.delay is not None:
        set_waker(core, core.clock.now())
    for record in transaction.records:
        core.settings.on_outcome(record)


def _release(core: EngineCore, outcome: Outcome) -> None:
    """Let the children of a succeeded task start, each after the delay of its data."""
    task, delay = outcome.task, core.settings.delay
    if delay is None:
        core.queue.tasks.release(task)
    else:
        core.queue.tasks.release(task, outcome.end, lambda child: delay(task, child))


# The owner.


def submit(core: EngineCore, task: Task) -> int:
    """Add a task without parents; return the number of the task."""
    (number,) = core.queue.extend([task])
    core.tasks.append(task)
    schedule_fill(core)
    return number


def cancel(core: EngineCore, task: int) -> bool:
    """
    Cancel a task, and kill the attempt that runs.

    Returns
    -------
    bool
        True when no worker has the task, which will not start any more; False when a worker
        was told to stop the attempt.
    """
    name = core.queue.cancel(task)
    if name is None:
        core.changed.set()
        return True
    cancel_at(core, core.workers[name], [task], 0.0, "cancelled")
    return False


def cancel_at(
    core: EngineCore, worker: ConnectedWorker, tasks: Sequence[int], grace: float, reason: str
) -> None:
    """Have a worker stop tasks (none: all of its own), with seconds to end by themselves."""
    send(core, worker, partial(worker.link.cancel, tasks, grace, reason))


def drain(core: EngineCore) -> None:
    """Start nothing more, and let running tasks go on."""
    core.queue.drain()
    for worker in core.workers.values():
        # Jobs that wait at workers have not started either.
        send(core, worker, partial(worker.link.recall, len(worker.slot.claims)))
    core.changed.set()


def stop(core: EngineCore, reason: str, grace: float) -> None:
    """Start nothing more and stop the running tasks."""
    drain(core)
    for worker in core.workers.values():
        cancel_at(core, worker, [], grace, reason)


def vacate(core: EngineCore, lease: str, reason: str) -> None:
    """End a lease: stop the tasks on its processors, which may run again elsewhere."""
    # First, so that tasks which are cancelled here are not given to the same lease again.
    core.vacated.add(lease)
    for worker in core.workers_of(lease):
        if worker.slot.claims:
            cancel_at(core, worker, [], 0.0, reason)


def dismiss(core: EngineCore, lease: str) -> None:
    """Dismiss the workers of a lease, and give the lease no more tasks."""
    # Also for workers that join after this: they are told to leave at once.
    core.vacated.add(lease)
    _forget_absent(core, lease)
    for worker in core.workers_of(lease):
        dismiss_worker(core, worker)


def dismiss_worker(core: EngineCore, worker: ConnectedWorker) -> None:
    """Order a worker to leave, after all that was sent to it before."""
    send(core, worker, worker.link.leave)


def turn_out(core: EngineCore, lease: str) -> list[ConnectedWorker]:
    """
    Cancel the tasks of a lease whose credential was revoked, and dismiss its pilots' workers.

    Returns
    -------
    list of ConnectedWorker
        Workers whose links are to be ended in a while.
    """
    core.vacated.add(lease)
    workers = [worker for worker in core.workers_of(lease) if worker.is_pilot]
    for worker in workers:
        if worker.slot.claims:
            cancel_at(core, worker, [], 0.0, "its processors go back")
        dismiss_worker(core, worker)
    return workers


def cut_off(core: EngineCore, lease: str | None = None) -> None:
    """Abort the links of pilots' workers that still have tasks, of one lease or of all."""
    for worker in list(core.workers.values()):
        if worker.is_pilot and worker.slot.claims and lease in (None, worker.lease):
            worker.link.abort()


def _forget_absent(core: EngineCore, lease: str) -> None:
    """Stop counting the workers of a lease that takes no more tasks and has no worker left."""
    seen = core.attendance.get(lease)
    if seen is not None and not seen.ready:
        del core.attendance[lease]
