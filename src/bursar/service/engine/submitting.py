"""Submission of tasks: checked, journalled, and given out once they are durable."""

import asyncio
import math
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from bursar.engine.task_states import ABSENT, HELD
from bursar.model.site import SiteFacts
from bursar.model.surroundings import ContainerPolicy
from bursar.remote import messages as api
from bursar.remote.messages import MOST_EDGES
from bursar.service.engine.bodies import make_body
from bursar.service.engine.content import hash_tasks
from bursar.service.engine.counters import TaskCounters
from bursar.service.engine.dispatching import ServiceReactions
from bursar.service.engine.instance import Instance, InstanceSubmission
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.recording import AGAIN
from bursar.service.engine.records import ADDED
from bursar.service.engine.tasks import columns_of, size_of
from bursar.service.interfaces import Clock, ServiceError
from bursar.store import RecordStore
from bursar.supervisor import TaskSupervisor

_CHUNK = 2048  # tasks that are taken between two turns of the loop

_encode = msgspec.msgpack.Encoder().encode


class SubmissionRecorder:
    """
    Checks submitted tasks and adds the tasks to an instance.

    Parameters
    ----------
    directories
        Folders below which a task's working directory may lie, besides the instance's own.
    containers
        Containers that tasks may ask for.
    site
        What tasks may hold; None: not known.
    """

    def __init__(
        self,
        *,
        index: InstanceIndex,
        journal: RecordStore,
        dispatching: ServiceReactions,
        background: TaskSupervisor,
        counters: TaskCounters,
        clock: Clock,
        directories: Sequence[str],
        containers: ContainerPolicy,
        site: SiteFacts | None,
    ) -> None:
        self._index = index
        self._journal = journal
        self._dispatching = dispatching
        self._background = background
        self._counters = counters
        self._clock = clock
        self._directories = directories
        self._containers = containers
        self._processors = None if site is None else site.processors
        self._memory = None if site is None else site.memory
        self._resources = {} if site is None else site.resources

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
        widest = min(n for n in (self._processors, agreed, math.inf) if n is not None)
        edges = 0
        before: api.TaskSpec | None = None
        for at in range(0, len(specs), _CHUNK):
            # Other users' requests, and workers, get their turn between two portions.
            if at:
                await asyncio.sleep(0)
            for i, spec in enumerate(specs[at : at + _CHUNK], at):
                # Tasks that are alike mostly come together: to compare two of them takes a tenth
                # of the time of a body.
                if spec != before:
                    body = self._make_body(spec, widest, agreed, f"tasks[{i}]")
                    before = spec
                bodies.append(body)
                if spec.after:
                    edges += len(spec.after)
                    # They are entered in one go, as no other submission may come between.
                    if edges > MOST_EDGES:
                        detail = f"a submission has at most {MOST_EDGES:,} dependencies of tasks"
                        raise ServiceError("bad-value", 422, detail, where=f"tasks[{i}].after")
        return bodies

    def _make_body(
        self, spec: api.TaskSpec, widest: float, agreed: int | None, where: str
    ) -> bytes:
        """Check a task against what the site and the agreement have, and return its body."""
        if spec.processors > widest:
            self._refuse_width(spec.processors, agreed, f"{where}.processors")
        if spec.memory is not None and spec.memory > (self._memory or math.inf):
            detail = f"needs {spec.memory} bytes of memory, and the site has {self._memory}"
            raise ServiceError("bad-value", 422, detail, where=f"{where}.memory")
        for name, count in spec.resources.items():
            if count > (had := self._resources.get(name, 0)):
                detail = f'holds {count} of "{name}", and the site has {had or "none"}'
                raise ServiceError("bad-value", 422, detail, where=f"{where}.resources")
        if spec.group and spec.at_once is None:
            detail = "is for at_once, which says how many of its tasks run at a time"
            raise ServiceError("bad-value", 422, detail, where=f"{where}.group")
        return make_body(spec, self._directories, where, self._containers)

    def _refuse_width(self, width: int, agreed: int | None, where: str) -> None:
        """Refuse a task with more processors than the site or the agreement has."""
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
            hash_tasks(specs[at : at + _CHUNK], hashed.update)
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
        Add tasks to an instance durably, and have the tasks started.

        Parameters
        ----------
        key, digest
            Idempotency key and the digest of what it stands for; both empty: there is no key.

        Raises
        ------
        ServiceError
            403, 413 or 429, when the user has too much; 507, when the disk is full.
        """
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
        _check_parents(instance, first, specs)
        added = columns_of(instance.number, first, key, now, specs, bodies, digest)
        # No await from the check of the quota to the counting below: two submissions that each fit
        # must not pass together.
        size = size_of(added)
        self._index.check_tasks(instance, len(specs), size)
        # The only step that can fail, with 507, comes before anything is changed in memory.
        position = self._journal.append(ADDED, _encode(added), essential=False)
        instance.promised += len(specs)
        count = len(specs)
        submission = InstanceSubmission(first, count, key, now, position, count, count, digest)
        instance.submissions.append(submission)
        # Known before it is durable: the same request, repeated meanwhile, waits for this one and
        # does not add the tasks again.
        if key:
            instance.keys[key] = submission
        new = instance.tasks.place(added)
        usage = self._index.usage(instance.user)
        usage.unfinished += count
        usage.task_bytes += size
        self._counters.submitted += count
        instance.wake()
        return submission, new

    async def _start(self, instance: Instance, new: Sequence[int]) -> None:
        """Give out new tasks once their record is durable."""
        try:
            await self._journal.durable()
        except ServiceError as error:
            # The record stays in the journal's memory and is written when there is room; then its
            # tasks have to start, whether the client has asked again or not. The client is told
            # 507 now: its key makes the repetition safe.
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
        # While the record was being written; the home is on its way out.
        if instance.destroyed:
            return
        states = instance.tasks.states
        # None that was cancelled meanwhile.
        self._dispatching.start(instance, [task for task in new if states[task] == HELD])
        instance.wake()


def _check_parents(instance: Instance, first: int, specs: Sequence[api.TaskSpec]) -> None:
    """Refuse a task that comes after one that is not there, or not before it."""
    states = instance.tasks.states
    for i, spec in enumerate(specs):
        if not spec.after:
            continue
        for j, parent in enumerate(spec.after):
            # Only earlier ones: so no circle can be submitted.
            if parent >= first + i:
                detail = f"task {first + i} can only come after tasks with smaller numbers"
            elif parent < first and states[parent] == ABSENT:
                detail = f"there is no task {parent}"
            else:
                continue
            raise ServiceError("bad-value", 422, detail, where=f"tasks[{i}].after[{j}]")
