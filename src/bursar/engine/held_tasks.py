"""What a worker says that it has when it connects, against what the engine has given it."""

from collections.abc import Callable, Sequence

from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.ready_tasks import BITS, MASK
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.task_states import HELD, READY
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerSlot

HeldTasks = Sequence[tuple[int, int]]
"""Number and attempt of each task that a worker has: running, waiting, or ended and not yet
acknowledged; see :class:`bursar.dispatch.wire.Hello`."""

AdmitHeld = Callable[[Of, int, int, WorkerSlot[Of]], float | None]
"""Takes an instance, a task, an attempt and the worker that has it since before a restart; returns
a time before which the worker cannot have got the attempt, seconds since the epoch; None: the
worker is to end the attempt."""


def missing_claims(worker: WorkerSlot[Of], holds: HeldTasks) -> list[WorkerClaim[Of]]:
    """
    Return the claims of a worker that came back without them.

    They were lost on the way to the worker, with the frame that carried the task, or with the
    process if the worker holds nothing at all.
    """
    held = set(holds)
    return [c for c in worker.held() if (c.number, c.attempt) not in held]


def blamed_claims(
    worker: WorkerSlot[Of], claims: Sequence[WorkerClaim[Of]]
) -> set[WorkerClaim[Of]]:
    """
    Return which of the claims that were lost with a worker use up a try of their tasks.

    They are the first that fill the worker's processors: those behind them, and chained ones,
    waited, and withheld ones were never sent, so that none of them can have brought the worker
    down. A task that may run only once uses up its only try wherever it stood at the worker, and
    never begins again: the report that made room for it may have been lost with the worker.

    Parameters
    ----------
    claims
        Claims in the order in which they were given, and begun.
    """
    blamed: set[WorkerClaim[Of]] = set()
    ahead = 0
    for claim in claims:
        if claim.withheld:
            continue
        has_begun = ahead < worker.processors and claim.number not in worker.chained
        if has_begun or not claim.instance.tasks.may_repeat(claim.task):
            blamed.add(claim)
        ahead += claim.processors
    return blamed


def resume_held(
    scheduler: TaskScheduler[Of],
    worker: WorkerSlot[Of],
    holds: HeldTasks,
    find: Callable[[int], Of | None],
    admit: AdmitHeld[Of],
) -> list[int]:
    """
    Let a worker that came go on with the tasks that it has, as far as they are wanted.

    Tasks that it has from before a restart, and that nobody else has, are claimed for it.

    Parameters
    ----------
    holds
        In the order in which the worker got them.
    find
        Finds an instance by its number; returns None when there is none.

    Returns
    -------
    list of int
        Numbers of the tasks that the worker is to end.
    """
    unwanted: list[int] = []
    last = dict(holds)
    for number, attempt in holds:
        # Whoever gave out the later attempt had given up this one. It has ended, or was ordered to,
        # and its outcome is dropped; an order to end would end the later one, too.
        if attempt != last[number]:
            continue
        instance, task = find(number >> BITS), number & MASK
        # An attempt that was counted has ended: there is nothing to adopt and nothing to stop. Its
        # outcome comes again and is dropped.
        if instance is not None and attempt in instance.tasks.counted.get(task, ()):
            continue
        if instance is None and _has_copy(scheduler, worker, number, attempt):
            continue
        if instance is None or not _goes_on(scheduler, worker, instance, task, attempt, admit):
            unwanted.append(number)
    return unwanted


def _has_copy(
    scheduler: TaskScheduler[Of], worker: WorkerSlot[Of], number: int, attempt: int
) -> bool:
    """Whether a worker is to go on with a copy, whose number is that of no task."""
    claim = scheduler.claims.get(number)
    return claim is not None and (claim.worker, claim.attempt, claim.recalled) == (
        worker,
        attempt,
        False,
    )


def _goes_on(
    scheduler: TaskScheduler[Of],
    worker: WorkerSlot[Of],
    instance: Of,
    task: int,
    attempt: int,
    admit: AdmitHeld[Of],
) -> bool:
    """Whether a worker is to go on with an attempt; claim the task for the worker if nobody has."""
    tasks = instance.tasks
    claim = scheduler.claims.get(instance.number << BITS | task)
    if claim is None:
        # The task has ended or will be known to have, or the worker is of another pool.
        if instance.pool != worker.pool or not _may_resume(tasks, task, attempt):
            return False
        since = admit(instance, task, attempt, worker)
        if since is None:
            return False
        scheduler.adopt(worker, instance, task, attempt, since)
    # Another worker has the task by now, or this one a newer attempt. A recalled task is refused
    # too: the order to stop may have been lost with the connection.
    elif claim.worker is not worker or claim.attempt != attempt or claim.recalled:
        return False
    return task not in tasks.doomed


def _may_resume(tasks: InstanceTasks, task: int, attempt: int) -> bool:
    """Whether a worker may have an attempt of a task that nobody has claimed since a restart."""
    if task >= len(tasks) or attempt <= tasks.attempts.get(task, 0):
        return False
    # A task of this life in state HELD is not durable yet and was given to nobody, so whoever
    # says that it has the task cannot have it.
    state = tasks.states[task]
    return state == READY or (state == HELD and task < tasks.restored)
