"""Workers, the tasks that each has, and pools of workers, as the scheduler sees them."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import msgspec

from bursar.dispatch.prefetch import Prefetch
from bursar.engine.fair_turns import FairQueue, RankedHeap
from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.loop_clock import EngineTimer
from bursar.engine.ready_tasks import ANYWHERE, ReadyBucket
from bursar.engine.shared_resources import (
    NO_RESOURCES,
    ResourceNeeds,
    SharedMemory,
    SharedResources,
)
from bursar.engine.worker_link import NO_LINK, WorkerLink
from bursar.model.money import Refusal


class QueuedInstance(Protocol):
    """
    An instance from the scheduler's view: the tasks of one owner that came together.

    Attributes
    ----------
    number
        Number by which claims name the instance.
    user, pool
        Name of the owner, and of the pool whose workers run the tasks.
    owed
        Processor-seconds used beyond those charged to the fair share; negative: fewer used.
    destroyed
        Whether nobody wants the tasks any more.
    """

    owed: float
    destroyed: bool

    @property
    def number(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def pool(self) -> str: ...

    @property
    def tasks(self) -> InstanceTasks: ...


Of = TypeVar("Of", bound=QueuedInstance)


class WorkerClaim(msgspec.Struct, Generic[Of], eq=False):
    """
    A task in the hands of a worker.

    Parameters
    ----------
    number, attempt
        Task and attempt as the worker names them. One number names instance and task, so that
        tasks of two instances never meet.
    estimate
        Seconds that the task should take at speed 1; infinite: unknown.
    cost
        Estimated processor-seconds that were charged to the owner's share.
    seconds
        Seconds that the attempt may run; infinite: no limit.
    given, ends
        When the task was claimed and when it should end; the end is infinite when unknown.
    recalled
        Whether the worker was told to stop the task.
    after
        Tasks that the worker had when the task was claimed, and after which it is to start it; see
        :mod:`bursar.engine.task_chains`.
    memory
        Bytes that the task needs, at most all that the worker has; 0: not stated.
    resources
        Counted resources of the site that the task holds.
    devices
        Numbers of the GPUs that the task holds, of those of the site, from 0.
    withheld
        Whether the worker has not been sent the task: it waits for a transaction.
    """

    instance: Of
    task: int
    number: int
    attempt: int
    worker: "WorkerSlot[Of]"
    processors: int
    estimate: float
    given: float
    ends: float
    cost: float
    seconds: float
    recalled: bool = False
    after: tuple[int, ...] = ()
    memory: int = 0
    withheld: bool = False
    resources: ResourceNeeds = ()
    devices: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class WorkerSlot(Generic[Of]):
    """
    One worker: its processors, the tasks that it has claimed, and the link to it.

    Parameters
    ----------
    name
        Unique among all workers.
    pool, lease
        Names of the pool whose tasks the worker runs, and of the lease that started the worker.
    processors
        Number of processors.
    shared_memory
        Memory that its tasks use, together with those of the workers beside it.
    shared_resources
        Resources that its tasks hold, together with those of all workers of the site.
    site
        Name of the worker's site.
    link
        Delivers orders to the worker; :data:`bursar.engine.worker_link.NO_LINK` while the worker
        is disconnected.
    prefetch
        Decides how many tasks may wait at the worker.
    ahead
        Whether any task may wait there.
    host
        Name of the worker's machine.
    is_pilot
        Whether the worker runs on another machine, by the credential of a pilot.
    shares_files
        Whether its working directories are those of the run, which copies need.
    leaving
        Whether the worker gets no more tasks, and leaves when it has none.
    took_leave
        Whether the worker said that it leaves of its own accord.
    withheld
        Number of orders that wait for a transaction.
    unrecorded
        Number of outcomes that the worker has reported and that are not durable yet.
    given_up
        Timer after which a disconnected worker is counted as lost; None: no timer runs.
    joined_at
        Time before which no attempt of the worker can have begun, seconds since the epoch.
    used
        Processors that running and waiting tasks of the worker hold; more than ``processors``
        when tasks wait.
    claims
        Claims by number, in the order in which they were given; without the chained ones.
    takes_followers
        Whether the worker takes tasks that follow others of its tasks, and keeps their order.
    chained
        Claims by number that wait for other tasks of the worker.
    work
        Processor-seconds that all claimed tasks should take by their estimates.
    unknown
        Processors of all claimed tasks without an estimate.
    idle_since
        When the last task ended; has no meaning while the worker has tasks.
    until, speed
        When the worker's processors are taken away, infinite for never, and how many seconds of
        estimated work one of them does in a second.
    number
        Number of the worker among all that have joined its scheduler.
    changed
        Workers of the pool, by name, that have changed since the pool last looked at them.
    """

    name: str
    pool: str
    lease: str
    processors: int
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    shared_resources: SharedResources = NO_RESOURCES
    site: str = ""
    link: WorkerLink = NO_LINK
    prefetch: Prefetch = field(init=False)
    ahead: bool = True
    host: str = ""
    is_pilot: bool = False
    shares_files: bool = True
    leaving: bool = False
    took_leave: bool = False
    withheld: int = 0
    unrecorded: int = 0
    given_up: EngineTimer | None = None
    joined_at: float = 0.0
    used: int = 0
    claims: "dict[int, WorkerClaim[Of]]" = field(default_factory=dict)
    takes_followers: bool = False
    chained: "dict[int, WorkerClaim[Of]]" = field(default_factory=dict)
    work: float = 0.0
    unknown: int = 0
    idle_since: float = 0.0
    until: float = math.inf
    speed: float = 1.0
    number: int = 0
    changed: "dict[str, WorkerSlot[Of]]" = field(default_factory=dict)
    _open: bool = True
    _limit: int | None = None

    def __post_init__(self) -> None:
        self.prefetch = Prefetch(self._note_change)

    def _note_change(self) -> None:
        self.changed[self.name] = self

    @property
    def open(self) -> bool:
        """Whether the worker gets new tasks; False while it is disconnected or leaving."""
        return self._open

    @open.setter
    def open(self, value: bool) -> None:
        if value != self._open:
            self._open = value
            self.changed[self.name] = self

    @property
    def limit(self) -> int | None:
        """Processors that tasks may use for now; None: all. Another run uses the others."""
        return self._limit

    @limit.setter
    def limit(self, value: int | None) -> None:
        if value != self._limit:
            self._limit = value
            self.changed[self.name] = self

    @property
    def connected(self) -> bool:
        """Whether orders reach the worker."""
        return self.link is not NO_LINK

    @property
    def free(self) -> int:
        """Processors that no task holds; negative: tasks wait at the worker, or hold too many."""
        return (self.processors if self._limit is None else self._limit) - self.used

    def room_ahead(self, most: int) -> int:
        """Return how many tasks the worker can take, with up to ``most`` that wait there."""
        # What waits at a worker that has lost processors might begin on just these.
        if not most or not self.ahead or self._limit is not None:
            return self.free
        return self.free + min(self.prefetch.depth(self.processors), most)

    @property
    def room(self) -> int:
        """Processors that one task may hold for now."""
        return self.processors if self._limit is None else self._limit

    @property
    def memory(self) -> float:
        """Bytes of the worker's machine or control group; infinite: not known."""
        return self.shared_memory.total

    @property
    def free_memory(self) -> float:
        """Bytes that no claimed task needs."""
        return self.shared_memory.total - self.shared_memory.used

    @property
    def running(self) -> int:
        """Number of tasks that have begun: a worker begins its tasks in order, as they fit."""
        if self.used <= self.processors:
            return len(self.claims)
        free = self.processors
        for begun, claim in enumerate(self.claims.values()):
            free -= claim.processors
            if free < 0:
                return begun
        return len(self.claims)

    @property
    def is_idle(self) -> bool:
        """Whether the worker has no tasks, chained ones included."""
        return not self.claims and not self.chained

    def held(self) -> "list[WorkerClaim[Of]]":
        """Return all claims, the chained ones last."""
        return [*self.claims.values(), *self.chained.values()]

    def time_left(self, now: float) -> float:
        """Return the seconds of work at speed 1 that a processor can do until the end."""
        return math.inf if self.until == math.inf else (self.until - now) * self.speed

    def hold(self, claims: Iterable[WorkerClaim[Of]]) -> None:
        """Add claims of tasks to those of the worker."""
        held, used, unknown, work = self.claims, self.used, self.unknown, self.work
        for claim in claims:
            if claim.after:
                self.chained[claim.number] = claim
            else:
                held[claim.number] = claim
                used += claim.processors
                if claim.memory:
                    self.shared_memory.hold(claim)
                if claim.resources:
                    self.shared_resources.hold(claim)
            # Sums by worker, so that what waits there is known without looking at each claim.
            if claim.estimate == math.inf:
                unknown += claim.processors
            else:
                work += claim.estimate * claim.processors
        self.used, self.unknown, self.work = used, unknown, work
        self.changed[self.name] = self

    def unchain(self, claim: WorkerClaim[Of], now: float) -> None:
        """Count a chained task on the processors, if it is one: it may have begun."""
        if self.chained.pop(claim.number, None) is not None:
            self.claims[claim.number] = claim
            self.used += claim.processors
            self.shared_memory.hold(claim)
            claim.ends += now - claim.given
            self.changed[self.name] = self

    def let_go(self, claim: WorkerClaim[Of]) -> None:
        """Remove a claim."""
        self.changed[self.name] = self
        if not self.chained or self.chained.pop(claim.number, None) is None:
            del self.claims[claim.number]
            self.used -= claim.processors
            if claim.memory:
                self.shared_memory.let_go(claim)
            if claim.resources:
                self.shared_resources.let_go(claim)
        if claim.estimate == math.inf:
            self.unknown -= claim.processors
        elif self.is_idle:
            self.work = 0.0  # nothing is left of what rounding made
        else:
            self.work -= claim.estimate * claim.processors

    def memory_for(self, tasks: InstanceTasks, task: int) -> int:
        """Return the bytes that a task takes here: what it needs, at most all that there is."""
        return int(min(tasks.ready_tasks.bucket_of(task).memory, self.memory))

    def has_room_for(self, tasks: InstanceTasks, task: int, room: int) -> bool:
        """Whether a task that needs so much may start here; ``room``: processors it may hold."""
        if tasks.processors[task] > room or self.memory_for(tasks, task) > self.free_memory:
            return False
        resources = tasks.ready_tasks.bucket_of(task).resources
        return not resources or self.shared_resources.has(resources)

    def has_time_for(self, tasks: InstanceTasks, task: int, time_left: float) -> bool:
        """
        Whether a task should end before the worker's time is over.

        Tasks that are bound to the worker's lease always pass. A task without an estimate counts
        as the mean of those that have ended; before any has, it passes.
        """
        if tasks.ready_tasks.bucket_of(task).place:
            return True
        expect = tasks.durations.expect
        seconds = expect(tasks.estimates[task])
        if self.used + tasks.processors[task] > self.processors:
            # It will wait there until what was claimed before makes room.
            ahead = self.work * tasks.durations.stretch + self.unknown * expect(math.inf)
            seconds += ahead / self.processors
        return seconds <= time_left

    def buckets_for(self, tasks: InstanceTasks, time_left: float) -> Sequence[ReadyBucket]:
        """Return the buckets with ready tasks that the worker could run when idle."""
        ready = tasks.ready_tasks
        if self.lease in ready.sequences:
            return ()  # such a lease has a plan to keep
        expect = tasks.durations.expect
        buckets = [
            bucket
            for bucket in ready.at(ANYWHERE)
            if bucket.ready
            and bucket.processors <= self.processors
            and (time_left == math.inf or expect(bucket.shortest) <= time_left)
        ]
        if self.lease:
            buckets += [
                bucket
                for bucket in ready.at(self.lease)
                if bucket.ready and bucket.processors <= self.processors
            ]
        return buckets

    def shadow(self, width: int, memory: float, now: float) -> tuple[float, int, float]:
        """
        Return when a task could start here, and the processors and bytes to spare then.

        Infinite and 0 if a task without a known end is in the way: then nothing overtakes the
        waiting task.

        Parameters
        ----------
        width, memory
            Processors and bytes of the task.
        """
        free, room = self.free, self.free_memory
        shadow = -math.inf
        # All claims that end at the same time make room together: processors to spare are counted
        # when the last of them has ended.
        ends = [(c.ends, c.processors, c.memory) for c in self.claims.values()]
        # Tasks of the workers beside this one hold memory, too.
        ends += [
            (c.ends, 0, c.memory)
            for c in self.shared_memory.claims.values()
            if c.worker is not self
        ]
        ends.sort()
        for end, freed, bytes_freed in ends:
            if free >= width and room >= memory and end > shadow:
                break
            # Some end is unknown, and without it there is no room: any task that overtakes could
            # delay the start.
            if end == math.inf:
                return math.inf, 0, 0
            free += freed
            room += bytes_freed
            shadow = end
        # A task that should have ended already is expected to end now.
        return max(shadow, now), free - width, room - memory


@dataclass(slots=True)
class WorkerReservation(Generic[Of]):
    """The worker that is kept for a task until enough of its processors are free."""

    instance: Of
    task: int
    worker: WorkerSlot[Of]


@dataclass(slots=True)
class WorkerPool(Generic[Of]):
    """
    A pool of workers, and the instances whose ready tasks may run on these workers.

    Parameters
    ----------
    workers
        Workers by name.
    members
        Instances with ready tasks, by number.
    users, instances
        Turns of the users, and of the instances of each user.
    reserved
        The worker kept for a task that waits, by the place to which such tasks are bound; each
        worker is kept for one task at most.
    refused
        Why nothing of a user runs now, by user.
    changed
        Workers that have changed since :meth:`settle`, by name.
    ahead
        Tasks that may wait at each worker, at most.
    takers
        Names of the workers with room for a task, the least loaded first.
    donors
        Names of the workers where tasks wait that may be taken back, those with most first.
    idle, free
        Open workers with free processors, by lease and name, and how many of these are free.
    """

    workers: dict[str, WorkerSlot[Of]] = field(default_factory=dict)
    members: dict[int, Of] = field(default_factory=dict)
    users: FairQueue[str] = field(default_factory=FairQueue)
    instances: dict[str, FairQueue[int]] = field(default_factory=dict)
    reserved: dict[str, WorkerReservation[Of]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    changed: dict[str, WorkerSlot[Of]] = field(default_factory=dict)
    ahead: int = 0
    takers: RankedHeap[str] = field(default_factory=RankedHeap)
    donors: RankedHeap[str] = field(default_factory=RankedHeap)
    idle: dict[str, dict[str, int]] = field(default_factory=dict)
    free: int = 0

    def add(self, worker: WorkerSlot[Of]) -> None:
        """Add a worker."""
        self.workers[worker.name] = worker
        worker.changed = self.changed
        self.changed[worker.name] = worker

    def remove(self, worker: WorkerSlot[Of]) -> None:
        """Remove a worker."""
        del self.workers[worker.name]
        worker.changed = {}
        self.changed.pop(worker.name, None)
        self._place(worker, 0, 0, 0)

    def let_wait(self, ahead: int) -> None:
        """Set how many tasks may wait at each worker, at most."""
        # A worker that is full gets its part of a longer queue with its next outcome; of a much
        # longer one at once. So all workers are looked at once for as many new tasks.
        if ahead > 2 * self.ahead:
            self.changed.update(self.workers)
            self.ahead = ahead
        elif ahead < self.ahead:
            self.ahead = ahead

    def settle(self) -> None:
        """
        Bring :attr:`takers`, :attr:`donors` and :attr:`idle` up to date.

        What a fill costs must not grow with the number of workers: only those that have changed
        are looked at.
        """
        for worker in self.changed.values():
            if worker.open:
                waiting = worker.used - worker.processors
                self._place(worker, worker.free, worker.room_ahead(self.ahead), waiting)
            else:
                self._place(worker, 0, 0, 0)
        self.changed.clear()

    def next_taker(self) -> WorkerSlot[Of] | None:
        """Take the least loaded worker out of :attr:`takers`; None: there is none."""
        return self._next_of(self.takers)

    def next_donor(self) -> WorkerSlot[Of] | None:
        """Take the worker where most tasks wait out of :attr:`donors`; None: there is none."""
        return self._next_of(self.donors)

    def _next_of(self, names: RankedHeap[str]) -> WorkerSlot[Of] | None:
        first = names.first()
        if first is None:
            return None
        _, name = first
        names.discard(name)
        # Looked at again by the next settle(), whatever the worker is given or asked for.
        worker = self.changed[name] = self.workers[name]
        return worker

    def idle_workers(self) -> list[WorkerSlot[Of]]:
        """Return the workers in :attr:`idle`."""
        return [self.workers[name] for mates in self.idle.values() for name in mates]

    def _place(self, worker: WorkerSlot[Of], free: int, room: int, waiting: int) -> None:
        """Put a worker where it belongs by free processors, room, and tasks that wait there."""
        name = worker.name
        if room > 0:
            self.takers.put(name, (worker.used / worker.processors, worker.number))
        else:
            self.takers.discard(name)
        if waiting > 0 and worker.prefetch.may_ask:
            self.donors.put(name, (-waiting, -worker.number))
        else:
            self.donors.discard(name)
        mates = self.idle.get(worker.lease)
        before = 0 if mates is None else mates.get(name, 0)
        if free <= 0:
            free = 0
            if mates is not None and before:
                del mates[name]
                if not mates:
                    del self.idle[worker.lease]
        elif mates is None:
            self.idle[worker.lease] = {name: free}
        else:
            mates[name] = free
        self.free += free - before

    @property
    def ready(self) -> int:
        """Number of tasks that may start."""
        return sum(instance.tasks.ready for instance in self.members.values())

    @property
    def wide(self) -> bool:
        """Whether a ready task needs several processors."""
        return any(instance.tasks.ready_tasks.wide for instance in self.members.values())

    @property
    def in_order(self) -> bool:
        """Whether a lease has a plan to keep, in which its tasks start in order."""
        return any(instance.tasks.ready_tasks.sequences for instance in self.members.values())

    def first_in_turn(self, passed: Collection[int]) -> Of | None:
        """Return the instance whose turn it is, of those whose numbers were not passed over."""
        if not passed:  # nearly always
            user = self.users.first()
            number = None if user is None else self.instances[user].first()
            return None if number is None else self.members[number]
        for user in self.users.in_order():
            for number in self.instances[user].in_order():
                if number not in passed:
                    return self.members[number]
        return None


def room_of(workers: list[WorkerSlot[Of]]) -> dict[str, int]:
    """Return free processors by name, the least loaded first: a few tasks are spread over all."""
    workers.sort(key=lambda worker: (worker.used / worker.processors, worker.number))
    return {worker.name: worker.free for worker in workers}
