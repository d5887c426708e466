"""Tasks that are not wanted any more: those that wait end, those that run are killed."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from bursar.model.outcome import Outcome, Status
from bursar.service.engine import records
from bursar.service.engine.background import Background
from bursar.service.engine.dispatching import GRACE, Dispatching
from bursar.service.engine.instance import Instance
from bursar.service.engine.locations import Locations
from bursar.service.engine.recording import Ending, Recorder
from bursar.service.engine.records import UNWANTED, Unwanted
from bursar.service.engine.scheduling import Scheduler
from bursar.service.engine.tasks import ABSENT, CANCELLED, CLAIMED, ENDING, HELD, READY
from bursar.service.engine.upkeep import Upkeep
from bursar.service.parties import Clock, Journal, ServiceError

_CHUNK = 2048  # tasks that are cancelled between two turns of the loop

_encode = msgspec.msgpack.Encoder().encode


class Cancelling:
    """Cancels tasks."""

    def __init__(
        self,
        *,
        journal: Journal,
        locations: Locations,
        dispatching: Dispatching,
        scheduler: Scheduler,
        recorder: Recorder,
        upkeep: Upkeep,
        background: Background,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._locations = locations
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
        Tasks, or all, are not wanted any more; how many that stops. Durable on return.

        Parameters
        ----------
        grace
            Seconds that those which run have to end; None: as it is usual.

        Raises
        ------
        ServiceError
            422, when there is no such task.
        """
        chosen = _chosen(instance, tasks)
        before: list[int] = []
        if grace is not None:  # who asks again may have less patience
            doomed = instance.doomed
            before = sorted(doomed if tasks is None else doomed.intersection(tasks))
        if chosen:
            record = Unwanted(instance.number, records.runs_of(chosen))
            instance.cancels.append(
                self._locations.append(UNWANTED, _encode(record), essential=True)
            )
            instance.winding += 1
            await asyncio.shield(self._background.spawn(self._cancel(instance, chosen, grace)))
        else:
            await self._journal.durable()
        if before and grace is not None:
            self._dispatching.stop(instance, before, "cancelled", grace)
        return len(chosen)

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
        """Cancelled tasks that wait end, those that run are killed; some at a time."""
        for at in range(0, len(chosen), _CHUNK):
            if instance.destroyed:
                return
            chunk = chosen[at : at + _CHUNK]
            recorded = asyncio.Event()
            self._recorder.record(self._end_waiting(instance, chunk), recorded.set)
            self._dispatching.stop(instance, chunk, "cancelled", GRACE if grace is None else grace)
            await recorded.wait()

    def _end_waiting(self, instance: Instance, chosen: Iterable[int]) -> list[Ending]:
        """Of tasks that were cancelled, the ends of those that no worker can have."""
        tasks, now = instance.tasks, self._clock()
        endings: list[Ending] = []
        for task in chosen:
            state = tasks.states[task]
            if state == READY:
                tasks.unqueue(task, ENDING)
            elif state == HELD and (self._dispatching.settled or task >= instance.restored):
                tasks.move(task, ENDING)
            elif state in (HELD, CLAIMED):
                instance.doomed.add(task)
                continue
            else:
                continue
            instance.doomed.discard(task)
            endings.append(_cancelled(instance, task, now))
        self._scheduler.rest(instance)
        return endings


def _chosen(instance: Instance, tasks: Sequence[int] | None) -> list[int]:
    """Of tasks, or of all, those that can still be cancelled, ascending."""
    states = instance.tasks.states
    if tasks is not None and any(task >= len(states) for task in tasks):
        raise ServiceError("bad-value", 422, "there is no such task", where="tasks")
    wanted = range(len(states)) if tasks is None else sorted(set(tasks))
    doomed = instance.doomed
    return [task for task in wanted if ABSENT < states[task] < ENDING and task not in doomed]


def _cancelled(instance: Instance, task: int, now: float) -> Ending:
    outcome = Outcome(
        task=instance.base | task,
        attempt=0,
        status=Status.CANCELLED,
        start=now,
        end=now,
        reason="cancelled",
    )
    return Ending(instance, task, CANCELLED, instance.tasks.losses[task], 0.0, "", outcome)
