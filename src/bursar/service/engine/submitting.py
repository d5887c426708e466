"""Submission of tasks: checked, journalled, and given out once they are durable."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from bursar.remote import messages as api
from bursar.service.engine.bodies import make_body
from bursar.service.engine.content import hash_tasks
from bursar.service.engine.counters import TaskCounters
from bursar.service.engine.dispatching import TaskDispatcher
from bursar.service.engine.instance import Instance, InstanceSubmission
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.locations import RecordLocations
from bursar.service.engine.recording import AGAIN
from bursar.service.engine.records import ADDED
from bursar.service.engine.tasks import HELD, columns_of
from bursar.service.engine.waiters import InstanceWaiters
from bursar.service.interfaces import Clock, ServiceError, ServiceJournal
from bursar.supervisor import TaskSupervisor

_CHUNK = 2048  # tasks that are taken between two turns of the loop

_encode = msgspec.msgpack.Encoder().encode


class SubmissionRecorder:
    """
    Checks tasks and adds them to instances.

    Parameters
    ----------
    directories
        Folders in which a task may be told to run, besides its instance's own.
    processors
        Of the site; None: there is no telling.
    """

    def __init__(
        self,
        *,
        index: InstanceIndex,
        journal: ServiceJournal,
        locations: RecordLocations,
        dispatching: TaskDispatcher,
        waiters: InstanceWaiters,
        background: TaskSupervisor,
        counters: TaskCounters,
        clock: Clock,
        directories: Sequence[str],
        processors: int | None,
    ) -> None:
        self._index = index
        self._journal = journal
        self._locations = locations
        self._dispatching = dispatching
        self._waiters = waiters
        self._background = background
        self._counters = counters
        self._clock = clock
        self._directories = directories
        self._processors = processors

    async def make_bodies(self, specs: Sequence[api.TaskSpec], agreed: int | None) -> list[bytes]:
        """
        Make the bodies of tasks, in portions, so that the event loop is not blocked.

        Parameters
        ----------
        agreed
            Processors of the instance's agreement; None: it has none.

        Raises
        ------
        ServiceError
            422, when one makes no sense or is not allowed.
        """
        bodies: list[bytes] = []
        for at in range(0, len(specs), _CHUNK):
            if at:
                await asyncio.sleep(0)
            for i, spec in enumerate(specs[at : at + _CHUNK], at):
                self._check_width(spec.processors, agreed, f"tasks[{i}].processors")
                bodies.append(make_body(spec, self._directories, f"tasks[{i}]"))
        return bodies

    def _check_width(self, width: int, agreed: int | None, where: str) -> None:
        """Refuse a task with more processors than it can ever get."""
        for most, whose in ((self._processors, "site"), (agreed, "agreement")):
            if most is not None and width > most:
                detail = f"holds {width} processors, and the {whose} has {most}"
                raise ServiceError("bad-value", 422, detail, where=where)

    async def digest(self, specs: Sequence[api.TaskSpec]) -> bytes:
        """Return the SHA-256 digest of tasks, in portions that do not block the event loop."""
        hashed = sha256()
        for at in range(0, len(specs), _CHUNK):
            if at:
                await asyncio.sleep(0)
            hash_tasks(specs[at : at + _CHUNK], hashed)
        return hashed.digest()

    async def submit(
        self,
        instance: Instance,
        specs: Sequence[api.TaskSpec],
        bodies: list[bytes],
        key: str,
        digest: bytes,
    ) -> InstanceSubmission:
        """
        Add tasks to an instance; they are durable on return.

        Parameters
        ----------
        key, digest
            Idempotency key and the digest of what it stands for; both empty: there is no key.

        Raises
        ------
        ServiceError
            403, 413 or 429, when the user has too much; 507, when the disk is full.
        """
        self._index.check_tasks(instance, len(specs), sum(map(len, bodies)))
        submission, new = self._add(instance, specs, bodies, key, digest)
        # Whoever asked may go away meanwhile; what was journalled is given out all the same.
        await asyncio.shield(self._background.start(self._start(instance, new)))
        return submission

    def _add(
        self,
        instance: Instance,
        specs: Sequence[api.TaskSpec],
        bodies: list[bytes],
        key: str,
        digest: bytes,
    ) -> tuple[InstanceSubmission, Sequence[int]]:
        first, now = instance.promised, self._clock()
        added = columns_of(instance.number, first, key, now, specs, bodies, digest)
        location = self._locations.append(ADDED, _encode(added), essential=False)
        instance.promised += len(specs)
        count = len(specs)
        submission = InstanceSubmission(first, count, key, now, location, count, count, digest)
        instance.submissions.append(submission)
        if key:
            instance.keys[key] = submission
        new = instance.tasks.place(added)
        usage = self._index.usage(instance.user)
        usage.unfinished += count
        usage.task_bytes += sum(map(len, bodies))
        self._counters.submitted += count
        self._waiters.wake(instance)
        return submission, new

    async def _start(self, instance: Instance, new: Sequence[int]) -> None:
        """Give out tasks once they are durable."""
        try:
            await self._journal.durable()
        except ServiceError as error:
            if error.status == 507:
                self._background.start(self._start_later(instance, new))
            raise
        self._queue(instance, new)

    async def _start_later(self, instance: Instance, new: Sequence[int]) -> None:
        while True:
            await asyncio.sleep(AGAIN)
            try:
                await self._journal.durable()
            except ServiceError as error:
                if error.status != 507:
                    return
            else:
                self._queue(instance, new)
                return

    def _queue(self, instance: Instance, new: Sequence[int]) -> None:
        if instance.destroyed:
            return
        tasks = instance.tasks
        states = tasks.states
        tasks.queue_all(t for t in new if states[t] == HELD)  # none that was cancelled meanwhile
        self._dispatching.enlist(instance)
        self._waiters.wake(instance)
