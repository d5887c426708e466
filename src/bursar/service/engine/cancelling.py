"""Cancellation: waiting tasks end, running ones are killed."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.task_states import ABSENT, CANCELLED, CLAIMED, ENDING, HELD
from bursar.service.engine import records
from bursar.service.engine.dispatching import GRACE, ServiceReactions
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_compaction import InstanceCompaction
from bursar.service.engine.recording import ResultRecorder, TaskEnd, end_without_worker
from bursar.service.engine.records import UNWANTED, TasksCancelled
from bursar.service.interfaces import Clock, ServiceError
from bursar.store import RecordStore
from bursar.supervisor import TaskSupervisor

_CHUNK = 2048  # tasks that are cancelled between two turns of the loop

_encode = msgspec.msgpack.Encoder().encode


class TaskCanceller:
    """Cancels tasks of instances."""

    def __init__(
        self,
        *,
        journal: RecordStore,
        dispatching: ServiceReactions,
        scheduler: TaskScheduler[Instance],
        recorder: ResultRecorder,
        upkeep: InstanceCompaction,
        background: TaskSupervisor,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._dispatching = dispatching
        self._scheduler = scheduler
        self._recorder = recorder
        self._upkeep = upkeep
        self._background = background
        self._clock = clock

    async def cancel(
        self, instance: Instance, tasks: Sequence[int] | None, grace: float | None = None
    ) -> int:
        """
        Cancel tasks durably, and return how many this call cancels.

        Parameters
        ----------
        tasks
            Numbers of tasks; None: all of the instance.
        grace
            Seconds between SIGTERM and SIGKILL for running tasks; None:
            :data:`bursar.service.engine.dispatching.GRACE`.

        Raises
        ------
        ServiceError
            422, when there is no such task.
        """
        chosen = _chosen(instance, tasks)
        before: list[int] = []
        if grace is not None:  # who asks again may have less patience
            doomed = instance.tasks.doomed
            before = sorted(doomed if tasks is None else doomed.intersection(tasks))
        if chosen:
            # Recorded first: what follows takes a while, and a restart in between must finish it.
            record = TasksCancelled(instance.number, records.encode_stated_runs(chosen))
            instance.cancels.append(self._journal.append(UNWANTED, _encode(record), essential=True))
            # Keeps forget_cancels() from killing the record while the tasks are still being ended.
            instance.winding += 1
            await asyncio.shield(self._background.start(self._cancel(instance, chosen, grace)))
        else:
            # The same request as before: its record may still be on the way to the disk.
            await self._journal.durable()
        if before and grace is not None:
            self._dispatching.stop(instance, before, "cancelled", grace)
        return len(chosen)

    async def cancel_unstarted(self, instance: Instance, tasks: Sequence[int] | None) -> int:
        """
        Cancel those of some tasks that no worker has, and return how many that were.

        Nothing is noted before: a task whose cancellation is lost in a crash runs, as one does
        that a worker was given just before.

        Raises
        ------
        ServiceError
            422, when there is no such task.
        """
        chosen = _chosen(instance, tasks)
        count = 0
        for at in range(0, len(chosen), _CHUNK):
            if instance.destroyed:
                break
            states = instance.tasks.states
            waiting = [task for task in chosen[at : at + _CHUNK] if HELD < states[task] < CLAIMED]
            endings = self._end_waiting(instance, waiting)
            # By portions, as in wind_up.
            recorded = asyncio.Event()
            self._recorder.record(endings, recorded.set)
            count += len(endings)
            await recorded.wait()
        return count

    async def _cancel(self, instance: Instance, chosen: Sequence[int], grace: float | None) -> None:
        try:
            # First: else a crash would leave tasks killed that nobody had cancelled.
            if await self._recorder.durable():
                await self.wind_up(instance, chosen, grace)
        finally:
            instance.winding -= 1
            self._upkeep.forget_cancels(instance)
        await self._journal.durable()

    async def wind_up(
        self, instance: Instance, chosen: Sequence[int], grace: float | None = None
    ) -> None:
        """End cancelled tasks that wait and kill running ones, a portion at a time."""
        if instance.tasks.groups is not None:
            # The last first: else one of a later portion would begin in place of one that ended.
            chosen = chosen[::-1]
        for at in range(0, len(chosen), _CHUNK):
            if instance.destroyed:
                return
            chunk = chosen[at : at + _CHUNK]
            # Awaited by chunk: cancelling a million tasks must neither hold the loop nor put a
            # million results into memory at a time.
            recorded = asyncio.Event()
            self._recorder.record(self._end_waiting(instance, chunk), recorded.set)
            self._dispatching.stop(instance, chunk, "cancelled", GRACE if grace is None else grace)
            await recorded.wait()

    def _end_waiting(self, instance: Instance, chosen: Iterable[int]) -> list[TaskEnd]:
        """End cancelled tasks that no worker can have, and mark all others as doomed."""
        tasks, now = instance.tasks, self._clock()
        endings: list[TaskEnd] = []
        for task in chosen:
            state = tasks.states[task]
            # No worker has the task, so it ends here and now. It moves to ENDING at once: the next
            # fill must not give it out. One that is held is not durable yet, or was restored and
            # is no longer expected at any worker.
            if HELD < state < CLAIMED or (
                state == HELD and (self._dispatching.settled or task >= instance.tasks.restored)
            ):
                tasks.move(task, ENDING)
            # A worker has the task, or may come back with it: its outcome, loss or return ends it.
            elif state in (HELD, CLAIMED):
                instance.tasks.doomed.add(task)
                continue
            else:
                continue
            instance.tasks.doomed.discard(task)
            endings.append(end_without_worker(instance, task, CANCELLED, now, "cancelled"))
        # Once for all: the instance may have no ready task left.
        self._scheduler.rest(instance)
        return endings


def _chosen(instance: Instance, tasks: Sequence[int] | None) -> list[int]:
    """Return which of the given tasks, or of all, can still be cancelled, ascending."""
    states = instance.tasks.states
    if tasks is not None and any(task >= len(states) for task in tasks):
        raise ServiceError("bad-value", 422, "there is no such task", where="tasks")
    wanted = range(len(states)) if tasks is None else sorted(set(tasks))
    doomed = instance.tasks.doomed
    return [task for task in wanted if ABSENT < states[task] < ENDING and task not in doomed]
