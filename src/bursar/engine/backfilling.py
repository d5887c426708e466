"""
Filling workers where some ready tasks need several processors, or state memory or resources.

Tasks are tried in turn: users by their fair turns, instances of a user likewise, and tasks of an
instance in their order. The first task that no worker has room for gets a worker *reserved*, the
one where it can start soonest. What comes behind it may overtake it, on any other worker, and on
the reserved one where that does not delay it: what should end before, or runs on processors and
memory that are to spare then, as in EASY backfilling [1]_. The promised memory is kept on all
workers that share it. One task has such a promise at a time,
of those that are bound to the same lease, and of those that are bound to none.

Counted resources of a site, such as licences, go to tasks in their order: as long as one waits for
some of a name, none behind it gets any of that name there, so that many small needs never keep a
large one waiting.

A task that states more memory than any worker has starts on the one with most, when no other task
needs memory there: what sites state was checked before, and waiting for ever would help nobody. A
worker whose connection is broken counts, too, as long as it may come back.

References
----------
.. [1] Lifka (1995). The ANL/IBM SP scheduling system. JSSPP, LNCS 949: 295-303.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic

from bursar.engine.ready_tasks import ANYWHERE, ReadyBucket, ReadyWalk
from bursar.engine.shared_resources import ResourceNeeds, SharedMemory, SharedResources
from bursar.engine.task_states import READY
from bursar.engine.worker_slots import Of, WorkerPool, WorkerReservation, WorkerSlot

BACKFILL_DEPTH = 128
"""Ready tasks of an instance that are examined, at most, behind one that does not fit."""

TOO_LONG = 16
"""Tasks of one bucket found too long for all workers before the rest of it is passed over.

Tasks of a bucket are about as long: when several were too long the others hardly fit, and looking
at all of them would make each claim as slow as the bucket is long."""


class StartAnswer(Enum):
    """What became of a task that was to start on a worker."""

    STARTED = "started"
    REFUSED = "refused"
    """The task is refused for good."""
    NOT_NOW = "not now"
    """Nothing may start on that worker for now."""


Start = Callable[[Of, int, WorkerSlot[Of]], StartAnswer]
"""Claims a task for a worker, if it may start there."""


class BackfillPass(Generic[Of]):
    """
    One pass over the ready tasks of a pool, in which each is looked at once.

    A start takes processors and gives none, so that what did not fit a moment ago fits no better
    for the rest of the pass.

    Parameters
    ----------
    pool
        Pool with ready tasks.
    room
        Workers that are to get tasks, with the processors that may be claimed on each.
    allowed
        Users whose tasks may start.
    now
        Present time.
    end_of
        Returns when a task that starts now should have ended; infinite: unknown.
    """

    def __init__(
        self,
        pool: WorkerPool[Of],
        room: Mapping[str, int],
        allowed: Mapping[str, float],
        now: float,
        end_of: Callable[[Of, int], float],
    ) -> None:
        self._pool = pool
        self._now = now
        self._end_of = end_of
        self._workers = [pool.workers[name] for name in room]
        self._room = {name: most for name, most in room.items() if most > 0}
        self._widest = max((worker.processors for worker in self._workers), default=0)
        # A worker that is waited for may come back; one that leaves does not.
        able = (w.memory for w in pool.workers.values() if w.open or not w.connected)
        self._most_memory = max(able, default=math.inf)
        self._turns = _PassTurns(pool, allowed)
        self._walks: dict[int, tuple[ReadyWalk, Iterator[int]]] = {}
        self._last = -1
        self._too_long: dict[ReadyBucket, int] = {}
        # By worker that is kept for a task, and of all such workers by the memory that they use.
        self._shadows: dict[str, _Shadow] = {}
        self._memory_shadows: dict[SharedMemory, list[_Shadow]] = {}
        # Names of resources that tasks looked at before wait for, by who has them.
        self._awaited: dict[SharedResources, set[str]] = {}
        self._before, pool.reserved = pool.reserved, {}

    def run(self, start: Start[Of]) -> None:
        """Start what can be started."""
        try:
            for reservation in self._before.values():
                self._go_on_with(reservation, start)
            while self._room and (instance := self._turns.first()) is not None:
                if not self._try_next(instance, start):
                    self._turns.drop(instance)
        finally:
            # Also after an error: no task may vanish from the queue.
            for walk, _ in self._walks.values():
                walk.close()
            # A task that was not reached still has its promise.
            for place, reservation in self._before.items():
                if place not in self._pool.reserved and self._is_valid(reservation):
                    self._pool.reserved[place] = reservation

    def _go_on_with(self, reservation: WorkerReservation[Of], start: Start[Of]) -> None:
        """Let an instance have its turn until the task that has waited longest was looked at."""
        instance = reservation.instance
        if not (self._is_valid(reservation) and self._turns.has(instance)):
            return
        # Its other tasks that come before that one in order are looked at on the way.
        while self._room and self._try_next(instance, start):
            if self._last == reservation.task:
                return

    def _is_valid(self, reservation: WorkerReservation[Of]) -> bool:
        """Whether the task still waits and the worker is still there."""
        instance, worker = reservation.instance, reservation.worker
        return (
            self._pool.members.get(instance.number) is instance
            and instance.user not in self._pool.refused
            and instance.tasks.states[reservation.task] == READY
            and self._pool.workers.get(worker.name) is worker
            and worker.open
        )

    def _try_next(self, instance: Of, start: Start[Of]) -> bool:
        """Look at the next task of an instance; False when none is left for this pass."""
        tasks = instance.tasks
        known = self._walks.get(instance.number)
        if known is None:
            walk = self._walk(instance)
            known = self._walks[instance.number] = walk, iter(walk)
        walk, in_order = known
        # The limit keeps a pass short where thousands of tasks wait behind one that does not fit.
        if walk.kept >= BACKFILL_DEPTH:
            return False
        task = self._last = next(in_order, -1)
        if task < 0:
            return False
        # Before anything that may raise: the task must not get lost between heap and claim.
        walk.keep()
        bucket, width = walk.bucket, tasks.processors[task]
        end = self._end_of(instance, task)
        while (worker := self._best_fit(instance, task, bucket.place, end)) is not None:
            answer = start(instance, task, worker)
            if answer is StartAnswer.NOT_NOW:
                # For now there is no money: whatever is cheaper may not start there either, or it
                # would use up what this one waits for.
                del self._room[worker.name]
                continue
            walk.unkeep()
            if answer is StartAnswer.STARTED:
                self._occupy(worker, width, self._need(bucket), end)
                self._turns.charged(instance)
            return True
        if bucket.resources and self._awaits(instance, task, bucket):
            walk.drop()
            return True
        if bucket.place in self._pool.reserved:
            if not any(
                width <= room and self._need(bucket) <= self._pool.workers[name].free_memory
                for name, room in self._room.items()
            ):
                walk.drop()  # no task of this bucket can start now, and none gets a promise
            return True
        able = [worker for worker in self._workers if self._could_run(worker, instance, task)]
        if able:
            self._reserve(instance, task, bucket.place, able)
        else:
            # For other workers, or for later; what comes behind it may fit.
            walk.kept -= 1
            self._too_long[bucket] = self._too_long.get(bucket, 0) + 1
            if self._too_long[bucket] >= TOO_LONG:
                walk.drop()
        return True

    def _walk(self, instance: Of) -> ReadyWalk:
        ready = instance.tasks.ready_tasks
        return ReadyWalk(
            ready,
            instance.tasks.states,
            [
                bucket
                for bucket in ready.buckets
                if bucket.ready
                and bucket.processors <= self._widest
                and bucket.place not in ready.sequences
            ],
        )

    def _best_fit(self, instance: Of, task: int, place: str, end: float) -> WorkerSlot[Of] | None:
        """Return the worker with the least free processors on which a task may start now."""
        width = instance.tasks.processors[task]
        bucket = instance.tasks.ready_tasks.bucket_of(task)
        memory, resources = self._need(bucket), bucket.resources
        best: WorkerSlot[Of] | None = None
        for name, room in self._room.items():
            if room < width:
                continue
            worker = self._pool.workers[name]
            if memory > worker.free_memory or (best is not None and worker.free >= best.free):
                continue
            if resources and not self._has(worker, resources):
                continue
            shadow = self._shadows.get(name)
            if shadow is not None and end > shadow.begin and width > shadow.processors:
                continue
            # A worker beside the kept one must not take the memory that is promised.
            if memory and any(
                end > shadow.begin and memory > shadow.memory
                for shadow in self._memory_shadows.get(worker.shared_memory, ())
            ):
                continue
            if self._could_run(worker, instance, task):
                best = worker
        return best

    def _could_run(self, worker: WorkerSlot[Of], instance: Of, task: int) -> bool:
        """Whether an idle worker could run a task, and would in time."""
        tasks = instance.tasks
        bucket = tasks.ready_tasks.bucket_of(task)
        place = bucket.place
        return (
            worker.room >= tasks.processors[task]
            and worker.memory >= self._need(bucket)
            and (not bucket.resources or worker.shared_resources.could_have(bucket.resources))
            and place in (ANYWHERE, worker.lease)
            and worker.lease not in tasks.ready_tasks.sequences
            and (
                worker.until == math.inf
                or worker.has_time_for(tasks, task, worker.time_left(self._now))
            )
        )

    def _has(self, worker: WorkerSlot[Of], needs: ResourceNeeds) -> bool:
        """Whether resources are free at a worker's site, and no task before waits for them."""
        awaited = self._awaited.get(worker.shared_resources, ())
        return worker.shared_resources.has(needs) and not any(name in awaited for name, _ in needs)

    def _awaits(self, instance: Of, task: int, bucket: ReadyBucket) -> bool:
        """
        Keep resources for a task that could not start, and say whether they are what is missing.

        They are kept for this pass; the next one comes to the task again before those behind it.
        """
        able = [worker for worker in self._workers if self._could_run(worker, instance, task)]
        has = any(self._has(worker, bucket.resources) for worker in able)
        for worker in able:
            awaited = self._awaited.setdefault(worker.shared_resources, set())
            awaited.update(name for name, _ in bucket.resources)
        return bool(able) and not has

    def _need(self, bucket: ReadyBucket) -> float:
        """Return the bytes that a worker must have free for a task."""
        return min(bucket.memory, self._most_memory)

    def _occupy(self, worker: WorkerSlot[Of], width: int, memory: float, end: float) -> None:
        """Count a start on a worker."""
        self._room[worker.name] -= width
        if self._room[worker.name] <= 0:
            del self._room[worker.name]
        # A task that goes on beyond the promised start takes from what is to spare then.
        shadow = self._shadows.get(worker.name)
        if shadow is not None and end > shadow.begin:
            shadow.processors -= width
        for shadow in self._memory_shadows.get(worker.shared_memory, ()):
            if end > shadow.begin:
                shadow.memory -= memory

    def _reserve(self, instance: Of, task: int, place: str, able: Sequence[WorkerSlot[Of]]) -> None:
        """Keep the worker where a task can start soonest, of those not kept for another."""
        width = instance.tasks.processors[task]
        memory = self._need(instance.tasks.ready_tasks.bucket_of(task))
        taken = {reservation.worker.name for reservation in self._pool.reserved.values()}
        shadows = [
            (*worker.shadow(width, memory, self._now), i)
            for i, worker in enumerate(able)
            # One that has room, but no money for now, is waited for by nothing.
            if worker.name not in taken and (worker.free < width or worker.free_memory < memory)
        ]
        if not shadows:
            return
        begin, spare, bytes_spare, i = min(shadows, key=lambda f: (f[0], -f[1], -f[2], f[3]))
        worker = able[i]
        self._pool.reserved[place] = WorkerReservation(instance, task, worker)
        # Where the start is unknown nothing is sure to end before it.
        shadow = _Shadow(-math.inf if begin == math.inf else begin, spare, bytes_spare)
        self._shadows[worker.name] = shadow
        self._memory_shadows.setdefault(worker.shared_memory, []).append(shadow)


@dataclass(slots=True)
class _Shadow:
    """When a task that a worker is kept for starts there, and what is to spare then."""

    begin: float
    processors: int
    memory: float


class _PassTurns(Generic[Of]):
    """Whose turn it is within one pass, of the instances that have tasks to be looked at."""

    def __init__(self, pool: WorkerPool[Of], allowed: Mapping[str, float]) -> None:
        self._pool = pool
        self._allowed = allowed
        self._dropped: set[int] = set()
        # Heaps of tags, in which an entry is stale once its key was charged; sorted already.
        self._users = [
            (pool.users.tag(user), i, user)
            for i, user in enumerate(pool.users.in_order())
            if user in allowed
        ]
        self._instances: dict[str, list[tuple[float, int, int]]] = {}

    def has(self, instance: Of) -> bool:
        """Whether an instance may still have turns."""
        return instance.user in self._allowed and instance.number not in self._dropped

    def first(self) -> Of | None:
        """Return the instance whose turn it is; None: none is left."""
        pool = self._pool
        while self._users:
            tag, _, user = self._users[0]
            if user in pool.users and pool.users.tag(user) == tag:
                number = self._first_of(user)
                if number is not None:
                    return pool.members[number]
            heapq.heappop(self._users)
        return None

    def drop(self, instance: Of) -> None:
        """Give an instance no more turns."""
        self._dropped.add(instance.number)

    def charged(self, instance: Of) -> None:
        """Put an instance and its user where their tags are now, after a start."""
        pool, user, number = self._pool, instance.user, instance.number
        turns = pool.instances[user]
        if number in turns and user in self._instances:
            heapq.heappush(self._instances[user], (turns.tag(number), number, number))
        if user in pool.users:
            heapq.heappush(self._users, (pool.users.tag(user), len(self._users), user))

    def _first_of(self, user: str) -> int | None:
        turns = self._pool.instances[user]
        waiting = self._instances.get(user)
        if waiting is None:
            waiting = self._instances[user] = [
                (turns.tag(number), i, number) for i, number in enumerate(turns.in_order())
            ]
        while waiting:
            tag, _, number = waiting[0]
            if number not in self._dropped and number in turns and turns.tag(number) == tag:
                return number
            heapq.heappop(waiting)
        return None
