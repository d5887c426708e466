"""The orders of a run to its workers: what may start, and what is sent once that is durable."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from bursar.dispatch.folders import folder_name
from bursar.dispatch.journal_records import COPIED, AttemptStart, CopyStart, RunEvent
from bursar.dispatch.linux_processes import TASK
from bursar.dispatch.wire import OutputPiece, WireJob
from bursar.engine.core import EngineCore
from bursar.engine.run_tasks import RunTasks
from bursar.engine.task_copies import COPY, TaskRace, claim_copy, may_have_copy
from bursar.engine.task_scheduler import Assignments
from bursar.engine.task_states import SUCCEEDED
from bursar.engine.worker_link import WorkerLink, read_output
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.money import Refusal
from bursar.model.task import INPUTS_FILE, Copy, Secret, Task, Write, gathering_variables


def send(
    core: EngineCore,
    worker: WorkerSlot[RunTasks],
    order: Callable[[], None],
    *,
    withhold: bool = False,
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


def _deliver(worker: WorkerSlot[RunTasks], order: Callable[[], None]) -> None:
    worker.withheld -= 1
    order()


def recall(core: EngineCore, worker: WorkerSlot[RunTasks], count: int) -> None:
    """Ask a worker to return tasks that it has not begun, the last first."""
    send(core, worker, partial(worker.link.recall, count))


def prepare(core: EngineCore) -> bool:
    """Divide what a run may use among the workers that take tasks; False: none gets any."""
    core.changed.set()
    restored = core.restored
    waits = restored.since is not None and restored.missing
    if core.store.fault is not None or waits:
        return False
    if core.settings.hears_first and any(w.unrecorded for w in core.workers.values()):
        return False  # asked again when they are
    queue = core.queue
    if queue.tasks.unchained:
        queue.chains.begin(queue.tasks.unchained, core.clock.now())
        queue.tasks.unchained.clear()
    for site, limit in core.limits.items():
        _apply_limit(core, site, limit)
    if queue.tasks.ready:
        queue.scheduler.enlist(queue)
    return not queue.draining


def give(core: EngineCore, given: Assignments[RunTasks], now: float) -> None:
    """Send tasks to the workers that were given them, once the money for the tasks is set aside."""
    transfers = core.guard.transfers()
    # Money is set aside durably before anything is spent of it.
    core.store.pending.transfers.extend(transfers)
    started: list[int] = []
    for worker, claims in given:
        started.extend(claim.task for claim in claims)
        if core.settings.keeps_starts:
            _note_starts(core, worker, claims, now)
        _give(core, worker, claims, withhold=bool(transfers))
    if started:
        core.settings.on_start(started)


def admit(core: EngineCore, now: float, task: int, lease: str) -> float | Refusal:
    """Return for how many seconds a task may run on a lease, or why it may not start."""
    answer = core.guard.admit(task, lease, now)
    if isinstance(answer, Refusal):
        core.refusal = answer.reason
        if not answer.final:
            core.filling.refused_for_now()
        return answer
    limit = core.task(task).wall_limit
    return answer if limit is None else min(limit, answer)


def _note_starts(
    core: EngineCore,
    worker: WorkerSlot[RunTasks],
    claims: Sequence[WorkerClaim[RunTasks]],
    now: float,
) -> None:
    """Journal the starts of tasks, without waiting for the disk."""
    site, lease, name, room = worker.site, worker.lease, worker.name, worker.processors
    core.store.pending.starts.extend(
        AttemptStart(c.task, c.attempt, site, lease, name, room, core.task(c.task).processors, now)
        for c in claims
    )
    core.store.commit_soon()


def _give(
    core: EngineCore,
    worker: WorkerSlot[RunTasks],
    claims: Sequence[WorkerClaim[RunTasks]],
    *,
    withhold: bool,
) -> None:
    # Made one by one as they are encoded: thousands at a time would be looked through by the
    # garbage collector.
    jobs: Iterable[WireJob] = (_job_of_claim(core, claim, worker.site) for claim in claims)
    if not withhold and not worker.withheld:
        send(core, worker, partial(worker.link.give, jobs))
        return
    for claim in claims:
        claim.withheld = True
    # A list, made while the tasks are known: they may have ended before the order is delivered.
    order = partial(_give_withheld, worker, worker.link, list(jobs), claims)
    send(core, worker, order, withhold=True)


def _give_withheld(
    worker: WorkerSlot[RunTasks],
    link: WorkerLink,
    jobs: Sequence[WireJob],
    claims: Sequence[WorkerClaim[RunTasks]],
) -> None:
    """Send jobs over the connection for which they were made, if that is still the worker's."""
    if worker.link is link:
        for claim in claims:
            claim.withheld = False
        link.give(jobs)


TOLD_COPY = "BURSAR_COPY"
"""Variable, 1, of an attempt that begins while another one of the same task runs."""


def copy(core: EngineCore, task: int, name: str, why: CopyStart) -> Refusal | None:
    """
    Start a copy of a task that runs, at another worker or beside it, if all of that may be.

    Parameters
    ----------
    name
        Name of the worker.

    Returns
    -------
    Refusal or None
        Why not; None: it has started.
    """
    first, worker = core.queue.scheduler.claims.get(task), core.workers.get(name)
    races, tasks, now = core.reactions.races, core.queue.tasks, core.clock.now()
    if first is None or task in races or not may_have_copy(first):
        return Refusal("the task does not run by itself any more", final=True)
    if any(isinstance(step, Copy) and step.target_at_root for step in core.task(task).steps):
        return Refusal("a step of the task writes into the run's files", final=True)
    if core.restored.numbers:
        return Refusal("workers of an earlier life are still awaited", final=False)
    stopping = core.queue.draining or core.store.fault is not None
    if (
        worker is None
        or stopping
        or not core.takes_copies(worker)
        or not worker.has_room_for(tasks, task, worker.free)
    ):
        return Refusal("the processors are not free any more", final=False)
    # The worst case of the copy is set aside beside that of the first attempt.
    seconds = core.guard.admit(task | COPY, worker.lease, now)
    if isinstance(seconds, Refusal):
        return seconds
    limit = core.task(task).wall_limit
    seconds = seconds if limit is None else min(limit, seconds)
    claim = claim_copy(core.queue.scheduler, first, worker, now, seconds)
    has_files = core.settings.publish is not None and bool(core.task(task).outputs)
    races[task] = TaskRace(first, claim, has_files)
    told = msgspec.structs.replace(
        why, task=task, attempt=claim.attempt, of=first.attempt, lease=worker.lease, worker=name
    )
    core.store.pending.events.append(RunEvent(now, COPIED, msgspec.json.encode(told).decode()))
    transfers = core.guard.transfers()
    core.store.pending.transfers.extend(transfers)
    _note_starts(core, worker, [claim], now)
    # Withheld always: after a kill the journal says which attempts were copies.
    _give(core, worker, [claim], withhold=True)
    return None


@dataclass(frozen=True, slots=True)
class ShownOutput:
    """
    Output of a running attempt.

    Parameters
    ----------
    attempt, site
        Number and site of the attempt.
    piece
        None: its worker is gone, stands still, or shows nothing before the attempt has ended.
    """

    attempt: int
    site: str
    piece: OutputPiece | None


async def show_output(
    core: EngineCore, task: int, attempt: int | None, stream: int, offset: int, most: int
) -> ShownOutput | None:
    """
    Return part of what a running attempt of a task has printed.

    Parameters
    ----------
    attempt
        Number of the attempt; None: the first of those that run, and not its copy.
    stream, offset, most
        See :class:`bursar.dispatch.wire.OutputQuery`.

    Returns
    -------
    ShownOutput or None
        None: no such attempt runs.
    """
    claims = core.queue.scheduler.claims
    for number in (task, task | COPY):
        claim = claims.get(number)
        if claim is None or attempt not in (None, claim.attempt) or claim.withheld:
            continue
        link, site = claim.worker.link, claim.worker.site
        piece = await read_output(link, number, claim.attempt, stream, offset, most)
        # It waits at the worker, or has ended there just now.
        if piece is None or piece.start:
            return ShownOutput(claim.attempt, site, piece)
    return None


def _gathering(core: EngineCore, number: int, task: Task) -> Task:
    """Return a task that gathers without its absent inputs, which it is told of."""
    states = core.queue.tasks.states
    made = core.queue.gathering[number].items()
    absent = {name for parent, names in made if states[parent] != SUCCEEDED for name in names}
    there = [file for file in task.inputs if file.name not in absent]
    told = gathering_variables([file.name for file in task.inputs if file.name in absent])
    listed = "".join(f"{file.name}\n" for file in there)
    return replace(
        task,
        steps=(Write(INPUTS_FILE, listed), *task.steps),
        inputs=tuple(there),
        environment={**task.environment, **told},
    )


def _job_of_claim(core: EngineCore, claim: WorkerClaim[RunTasks], site: str) -> WireJob:
    task, data = core.task(claim.task), core.settings.data
    if claim.task in core.queue.gathering:
        task = _gathering(core, claim.task, task)
    is_copy = claim.number != claim.task
    if is_copy:
        told = {TASK: str(claim.task), TOLD_COPY: "1"}
        task = replace(task, environment={**task.environment, **told})
    return WireJob(
        claim.number,
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
        after=claim.after,
        memory=claim.memory,
        devices=claim.devices,
        secrets=_secrets_of(task, core.settings.secrets) if core.settings.secrets else {},
        unpublished=is_copy and bool(task.outputs) and core.settings.publish is not None,
    )


def _secrets_of(task: Task, values: Mapping[str, str]) -> dict[str, str]:
    names = [name for step in task.steps if isinstance(step, Secret) for name in step.names]
    return {name: values[name] for name in names if name in values}


def _apply_limit(core: EngineCore, site: str, processors: int) -> None:
    """Divide the processors that a run may use of a site among its workers there."""
    workers = [worker for worker in core.workers.values() if worker.site == site]
    # What was bought for copies is paid, and serves nothing else: before others' idle processors.
    workers.sort(key=lambda worker: worker.lease not in core.for_copies)
    left, held = processors, []
    # Running tasks first, wherever they are: what they hold cannot be used elsewhere.
    for worker in workers:
        held.append(min(left, worker.used, worker.processors))
        left -= held[-1]
    for worker, part in zip(workers, held, strict=True):
        # A worker that gets no tasks now would keep what others can use.
        gets_tasks = worker.open or worker.lease in core.for_copies
        more = min(left, worker.processors - part) if gets_tasks else 0
        left -= more
        worker.limit = None if part + more == worker.processors else part + more
        waiting = worker.used - worker.processors
        if worker.limit is not None and waiting > 0 and worker.prefetch.may_ask:
            # Else the worker would begin these as soon as its running tasks have ended.
            worker.prefetch.asked(waiting)
            recall(core, worker, waiting)
