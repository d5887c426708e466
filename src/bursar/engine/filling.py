"""Giving out work: which workers get tasks now, and which tasks come back from them."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bursar.dispatch.journal_records import AttemptStart
from bursar.dispatch.queue import TaskClaim
from bursar.dispatch.wire import WireJob
from bursar.dispatch.work_directories import folder_name
from bursar.engine.core import ConnectedWorker, EngineCore
from bursar.model.money import Refusal

_BATCH = 2048  # tasks at most claimed at a time
_ASK_AGAIN = 0.2  # seconds until the guard is asked again that refused for now


def send(
    core: EngineCore, worker: ConnectedWorker, order: Callable[[], None], *, withhold: bool = False
) -> None:
    """Send an order now or after the next transaction, never before an earlier order."""
    # Whatever follows a withheld order waits, too: a cancellation could else overtake the job that
    # it is meant for.
    if withhold or worker.withheld:
        worker.withheld += 1
        core.store.pending.withheld.append(partial(_deliver, worker, order))
        core.store.commit_soon()
    else:
        order()


def _deliver(worker: ConnectedWorker, order: Callable[[], None]) -> None:
    worker.withheld -= 1
    order()


def schedule_fill(core: EngineCore) -> None:
    """Have the workers filled once the present burst of events is taken in."""
    if not core.fill_scheduled:
        core.fill_scheduled = True
        # Once for all reports that the loop has read in this turn.
        core.clock.soon(partial(fill, core))


def fill(core: EngineCore) -> None:
    """Give ready tasks to workers, and take waiting tasks back for idle ones."""
    core.fill_scheduled = False
    if core.store.fault is not None:
        return
    now = core.clock.now()
    core.refused_for_now = False
    try:
        core.queue.wake(now)
        if core.queue.ready and not core.queue.draining:
            _fill_workers(core, now)
        _take_back(core, now)
    except Exception as error:
        # In a callback of the loop the error would only be logged, and the run would wait for
        # ever.
        core.store.fail(error)
    set_waker(core, now)
    core.changed.set()


def set_waker(core: EngineCore, now: float) -> None:
    """Set the timer of the next fill that time brings about, in place of an earlier one."""
    due = core.queue.next_wake()
    if core.refused_for_now:
        # The guard does not say when money comes free, so it is asked again.
        due = min(now + _ASK_AGAIN, math.inf if due is None else due)
    if core.waker is not None:
        core.waker.cancel()
        core.waker = None
    if due is not None:
        core.waker = core.clock.at(due, partial(schedule_fill, core))


def _fill_workers(core: EngineCore, now: float) -> None:
    queue = core.queue
    started: list[int] = []
    # The least loaded first: a few tasks are spread over all workers.
    for worker in sorted(core.workers.values(), key=_load):
        held = queue.workers[worker.name]
        if not core.is_open(worker):
            continue
        admit = partial(_admit, core, worker.lease, now)
        room = worker.processors - held.used + _ahead(core, worker)
        while room > 0 and queue.ready:
            claims = queue.claim(worker.name, min(room, _BATCH), now, admit)
            if not claims:
                break
            room = worker.processors - held.used + _ahead(core, worker)
            started.extend(claim.task for claim in claims)
            if core.settings.keeps_starts:
                _note_starts(core, worker, claims, now)
            _give(core, worker, claims)
    if started:
        core.settings.on_start(started)


def _load(worker: ConnectedWorker) -> float:
    return len(worker.claimed) / worker.processors


def _ahead(core: EngineCore, worker: ConnectedWorker) -> int:
    """Return how many tasks a worker may have waiting: a fair part of what is left, at most."""
    # Wide tasks are never claimed ahead: a worker starts jobs in order, so that one which waits for
    # several processors there would keep others idle.
    if core.rigid or not core.settings.prefetch:
        return 0
    # Half of a fair part stays in the queue, where any worker that becomes idle can have it.
    fair = core.queue.ready // (2 * len(core.workers))
    return min(worker.prefetch.depth(worker.processors), fair)


def _admit(core: EngineCore, lease: str, now: float, task: int) -> float | Refusal:
    answer = core.guard.admit(task, lease, now)
    if isinstance(answer, Refusal):
        core.refusal = answer.reason
        core.refused_for_now |= not answer.final
        return answer
    limit = core.task(task).wall_limit
    return answer if limit is None else min(limit, answer)


def _note_starts(
    core: EngineCore, worker: ConnectedWorker, claims: Sequence[TaskClaim], now: float
) -> None:
    """Journal the starts of tasks, without waiting for the disk."""
    site, lease, name, room = worker.site, worker.lease, worker.name, worker.processors
    core.store.pending.starts.extend(
        AttemptStart(c.task, c.attempt, site, lease, name, room, core.task(c.task).processors, now)
        for c in claims
    )
    core.store.commit_soon()


def _give(core: EngineCore, worker: ConnectedWorker, claims: Sequence[TaskClaim]) -> None:
    transfers = core.guard.transfers()
    if transfers:
        # Money is set aside durably before anything is spent of it.
        core.store.pending.transfers.extend(transfers)
    jobs: Iterable[WireJob] = (_job_of_claim(core, claim, worker.site) for claim in claims)
    if transfers or worker.withheld:
        # Made now, while the tasks are known: they may have ended before the order is delivered.
        jobs = list(jobs)
    # Else made one by one as they are encoded: thousands at a time would be looked through by the
    # garbage collector.
    send(core, worker, partial(worker.link.give, jobs), withhold=bool(transfers))


def _job_of_claim(core: EngineCore, claim: TaskClaim, site: str) -> WireJob:
    task, data = core.task(claim.task), core.settings.data
    return WireJob(
        claim.task,
        claim.attempt,
        task.processors,
        # 0 means no limit to a worker: an allowance that is all but used up must not become one.
        0.0 if math.isinf(claim.seconds) else max(claim.seconds, 1e-3),
        folder_name(claim.task, task.id),
        task.steps,
        tuple([file.name for file in task.inputs]) if task.inputs else (),
        tuple([file.name for file in task.outputs]) if task.outputs else (),
        dict(task.environment) if task.environment else {},
        dict(data(claim.task, site)) if data and task.data else {},
    )


def _take_back(core: EngineCore, now: float) -> None:
    """Recall tasks that wait at one worker while another worker could begin these tasks."""
    held = core.queue.workers
    takers = [
        name
        for name, worker in core.workers.items()
        if held[name].used < worker.processors and core.is_open(worker)
    ]
    # Where money is refused for now, what comes back would stand still.
    if not takers or len(core.workers) < 2 or core.refused_for_now:
        return
    donors = [name for name, worker in core.workers.items() if worker.prefetch.may_ask]
    for name, count in core.queue.to_ask_back(now, takers, donors):
        worker = core.workers[name]
        worker.prefetch.asked(count)
        send(core, worker, partial(worker.link.recall, count))
