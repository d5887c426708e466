"""What tasks print: of a running one its worker is asked; long streams of ended ones are files."""

import asyncio
import time

from bursar.dispatch.wire import OutputPiece
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.worker_link import read_output
from bursar.engine.worker_slots import WorkerClaim
from bursar.remote.messages import STREAMS
from bursar.remote.output_messages import RunningOutput, StreamPart, stream_part
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.tasks import NAMES
from bursar.service.interfaces import ServiceError
from bursar.worker.workspace import log_name

MOST_SHOWN = 1 << 16
"""Bytes of a stream in one answer."""

_PACE = 0.3  # seconds between two questions to a worker within one request


class TaskOutputs:
    """
    Finds what the tasks of instances have printed.

    Parameters
    ----------
    scheduler
        Knows which worker has a task.
    """

    def __init__(self, index: InstanceIndex, scheduler: TaskScheduler[Instance]) -> None:
        self._index = index
        self._scheduler = scheduler

    def file(self, user: str, handle: str, task: int, stream: str) -> str:
        """
        Return the name, in ``logs``, of the file with an ended task's output.

        Raises
        ------
        ServiceError
            404, when there is none: the stream came with the result, or the task has not ended.
        """
        serial = self._index.mine(user, handle).results.logs.get(task)
        if serial is None:
            raise ServiceError("not-found", 404, "there is no file with what the task printed")
        return log_name(str(task), serial, stream)

    async def running(
        self, user: str, handle: str, task: int, serial: int, offsets: tuple[int, int], wait: float
    ) -> RunningOutput:
        """
        Return what a running attempt has printed beyond what a client has.

        Parameters
        ----------
        serial, offsets
            Attempt of which the client has so many bytes by stream; of another one it gets all.
            Offsets below 0: so many bytes before the end.
        wait
            Seconds to wait for more where there is none.

        Raises
        ------
        ServiceError
            404, when the instance has no such task.
        """
        until = time.monotonic() + wait
        while True:
            instance = self._index.mine(user, handle)  # it may have been destroyed meanwhile
            found = await self._look(instance, task, serial, offsets)
            has_more = found.serial != serial or found.stdout.content or found.stderr.content
            if has_more or found.result is not None or time.monotonic() >= until:
                return found
            await asyncio.sleep(_PACE)

    async def _look(
        self, instance: Instance, task: int, serial: int, offsets: tuple[int, int]
    ) -> RunningOutput:
        if not 0 <= task < len(instance.tasks.states):
            raise ServiceError("not-found", 404, f"the instance has no task {task}")
        state = NAMES[instance.tasks.states[task]]
        result = _cursor_of(instance, task)
        claim = self._scheduler.claims.get(instance.base | task)
        if claim is None or result is not None:
            return RunningOutput(task, state, result=result)
        if serial != claim.attempt:
            offsets = (min(offsets[0], 0), min(offsets[1], 0))
        pieces = [await _ask(claim, stream, offset) for stream, offset in enumerate(offsets)]
        shown = [piece for piece in pieces if piece is not None and piece.start]
        if len(shown) < len(STREAMS):
            # Where it waits at the worker the client learns of the attempt when it has begun.
            hidden = None in pieces
            return RunningOutput(task, state, serial=claim.attempt if hidden else 0)
        if any(piece.is_sealed for piece in shown):
            return RunningOutput(task, state, serial=claim.attempt, sealed=True)
        out, err = (_part(piece) for piece in shown)
        return RunningOutput(
            task,
            state,
            serial=claim.attempt,
            shown=True,
            stdout=out,
            stderr=err,
            start=shown[0].start,
        )


async def _ask(claim: WorkerClaim[Instance], stream: int, offset: int) -> OutputPiece | None:
    link = claim.worker.link
    return await read_output(link, claim.number, claim.attempt, stream, offset, MOST_SHOWN)


def _part(piece: OutputPiece) -> StreamPart:
    # Of a worker that may say what it likes.
    return stream_part(max(0, piece.offset), max(0, piece.size), piece.content[:MOST_SHOWN])


def _cursor_of(instance: Instance, task: int) -> int | None:
    """Return the cursor of a task's result, if that was recorded and not forgotten."""
    for batch in reversed(instance.results.batches):
        if task in batch.tasks:
            return batch.first + batch.tasks.index(task)
    return None
