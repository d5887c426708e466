"""
Workers come, go and come back: the reactions that a run and a service share.

A worker says what it has when it connects. It goes on with what is wanted, and is told to end the
rest. While its connection is broken it is waited for, and gets nothing new; after some time it is
lost, and its tasks run elsewhere. It keeps each outcome until the outcome is durable, and leaves
when it has no task and nothing to keep.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol

from bursar.dispatch.wire import Hello
from bursar.engine.held_tasks import missing_claims, resume_held
from bursar.engine.loop_clock import EngineClock
from bursar.engine.shared_resources import NO_RESOURCES, SharedMemory
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.worker_link import NO_LINK, WorkerLink
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerSlot
from bursar.model.allocation import AllocationLoad

OnDurable = Callable[[], None]
"""Called when what was recorded is durable."""


class TaskOwner(Protocol[Of]):
    """Decides what becomes of the tasks that workers have; a run's engine, or a service's."""

    def find(self, number: int) -> Of | None:
        """Return the instance with a number; None: there is none."""

    def admit_held(
        self, instance: Of, task: int, attempt: int, worker: WorkerSlot[Of]
    ) -> float | None:
        """
        Take an attempt that a worker has had since before a restart.

        Returns
        -------
        float or None
            Time before which the worker cannot have got the attempt, seconds since the epoch;
            None: the worker is to end the attempt.
        """

    def lose(
        self, worker: WorkerSlot[Of], claims: Sequence[WorkerClaim[Of]], *, counts: bool
    ) -> None:
        """
        End claims that were lost with a worker, or on the way to it.

        Parameters
        ----------
        counts
            Whether the loss may use up tries: not of what never reached a worker that goes on.
        """

    def went(self, worker: WorkerSlot[Of]) -> None:
        """Note that a worker is disconnected."""

    def gone(self, worker: WorkerSlot[Of]) -> None:
        """Note that a worker is gone for good."""

    def failed(self, error: BaseException) -> None:
        """Stop after an internal error."""


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerAttendance(Generic[Of]):
    """
    The workers of an engine, and for how long each is waited for.

    Parameters
    ----------
    absence
        Seconds without a connection after which a worker's tasks run elsewhere; 0: at once.
    """

    scheduler: TaskScheduler[Of]
    owner: TaskOwner[Of]
    clock: EngineClock
    absence: float = 0.0


def take_in(
    room: WorkerAttendance[Of],
    hello: Hello,
    link: WorkerLink,
    *,
    pool: str = "",
    is_pilot: bool = False,
) -> WorkerSlot[Of]:
    """
    Take in a worker that was admitted and welcomed, for the first time or again.

    It goes on with what it holds, as far as that is wanted, and is told to end the rest.
    """
    now = room.clock.now()
    worker = room.scheduler.workers.get(hello.worker)
    # The name with another pool, lease or size is another worker: what the old one had is lost.
    if worker is not None and (worker.pool, worker.lease, worker.processors) != (
        pool,
        hello.lease,
        hello.processors,
    ):
        before = worker.link
        lose(room, worker)
        before.abort()
        worker = None
    if worker is None:
        worker = WorkerSlot[Of](hello.worker, pool, hello.lease, hello.processors)
        if hello.memory is not None:
            owner_of_memory = hello.memory_owner or hello.worker
            worker.shared_memory = room.scheduler.memories.setdefault(
                owner_of_memory, SharedMemory()
            )
            worker.shared_memory.total = hello.memory
        worker.joined_at = now
        room.scheduler.join(worker)
    else:
        if worker.connected:  # by a connection whose end nobody has noticed
            before = worker.link
            _pause(room, worker)
            before.abort()
        _await_no_longer(worker)
        # One that holds something is the same process and never got what it does not hold: no try
        # is used up. One that holds nothing may be a process that was started anew.
        missing = missing_claims(worker, hello.holds)
        room.owner.lose(worker, missing, counts=not hello.holds)
    worker.site, worker.host, worker.link, worker.is_pilot = hello.site, hello.host, link, is_pilot
    worker.shared_resources = room.scheduler.resources.get(hello.site, NO_RESOURCES)
    worker.open, worker.leaving, worker.took_leave, worker.idle_since = True, False, False, now
    worker.prefetch.reconnected()
    owner = room.owner
    unwanted = resume_held(room.scheduler, worker, hello.holds, owner.find, owner.admit_held)
    if unwanted:
        link.cancel(unwanted, 0.0, "it is not wanted any more")
    return worker


def disconnect(
    room: WorkerAttendance[Of], worker: WorkerSlot[Of], *, for_good: bool = False
) -> None:
    """
    Wait for a worker whose connection has ended, or count the worker as lost.

    Parameters
    ----------
    for_good
        Whether nobody lets the worker in again.
    """
    # Lost before.
    if room.scheduler.workers.get(worker.name) is not worker or not worker.connected:
        return
    # Without tasks there is nothing to come back to.
    if for_good or not room.absence or worker.is_idle:
        lose(room, worker)
        return
    _pause(room, worker)
    # Not at once: a connection that broke is made again within seconds, and giving the tasks to
    # others would run them twice.
    moment = room.clock.now() + room.absence
    worker.given_up = room.clock.at(moment, partial(_give_up, room, worker))


def lose(room: WorkerAttendance[Of], worker: WorkerSlot[Of]) -> None:
    """Remove a worker that is gone for good, and have its tasks run again."""
    if room.scheduler.workers.get(worker.name) is not worker:
        return
    _await_no_longer(worker)
    if worker.connected:
        _pause(room, worker)
    # Before the scheduler's leave, which expects a worker without tasks.
    room.owner.lose(worker, worker.held(), counts=True)
    room.scheduler.leave(worker)
    room.owner.gone(worker)


def give_none_up(room: WorkerAttendance[Of]) -> None:
    """Wait for disconnected workers without an end: the engine stops."""
    for worker in room.scheduler.workers.values():
        _await_no_longer(worker)


def recording(worker: WorkerSlot[Of], count: int) -> OnDurable:
    """
    Count a worker's outcomes as not yet durable; return the callback for when they are.

    The callback acknowledges them over the connection on which they came. A worker forgets as many
    outcomes as are acknowledged, from the first on: so callbacks must be called in the order in
    which the outcomes came, and also for outcomes that do not count, which the worker would else
    repeat for ever.
    """
    worker.unrecorded += count
    return partial(_recorded, worker, worker.link, count)


def _recorded(worker: WorkerSlot[Of], link: WorkerLink, count: int) -> None:
    worker.unrecorded -= count
    if count:
        link.acknowledge(count)
    let_go(worker)


def is_done(worker: WorkerSlot[Of]) -> bool:
    """Whether a worker has no tasks, and no outcome that is not durable."""
    return worker.is_idle and not worker.unrecorded


def ask_to_leave(worker: WorkerSlot[Of], *, must: bool) -> None:
    """
    Let a worker leave that asks for it, if it has no tasks or must go; give it no more tasks then.

    A worker that is refused gets a task that was on its way, and asks again after that one. One
    whose outcomes are not durable yet leaves when they are, since it would not ask again.
    """
    if must or worker.is_idle:
        worker.open, worker.leaving = False, True
        let_go(worker)


def let_go(worker: WorkerSlot[Of]) -> None:
    """Order a worker to end that is to leave, once it has nothing to do."""
    if worker.leaving and is_done(worker):
        worker.open = False
        worker.link.leave()


def _pause(room: WorkerAttendance[Of], worker: WorkerSlot[Of]) -> None:
    """Note that a worker is disconnected, and give it no more tasks."""
    worker.link, worker.open = NO_LINK, False
    room.owner.went(worker)


def _give_up(room: WorkerAttendance[Of], worker: WorkerSlot[Of]) -> None:
    """Count a worker as lost that was disconnected for too long."""
    try:
        lose(room, worker)
    except Exception as error:  # in a callback of the loop nobody else would hear of it
        room.owner.failed(error)


def _await_no_longer(worker: WorkerSlot[Of]) -> None:
    if worker.given_up is not None:
        worker.given_up.cancel()
        worker.given_up = None


# Processors of leases whose workers are connected, and how many of these are busy.


@dataclass(slots=True)
class LeaseAttendance:
    """Processors of a lease whose workers are connected, and the most that ever were."""

    ready: int = 0
    joined: int = 0
    silent_since: float | None = None
    left_at: float = 0.0

    def come(self, processors: int) -> None:
        """Count a worker that has connected."""
        self.ready += processors
        self.joined = max(self.joined, self.ready)
        if self.ready == self.joined:
            self.silent_since = None

    def go(self, processors: int, now: float, *, took_leave: bool) -> None:
        """Count a worker that is gone; one that took leave is not expected to return."""
        self.ready -= processors
        self.left_at = now
        if not took_leave:
            self.silent_since = now

    @property
    def absent(self) -> AllocationLoad:
        """Load of the lease while none of its workers is connected."""
        return AllocationLoad(
            ready=0,
            busy=0,
            idle_since=self.left_at,
            joined=self.joined,
            silent_since=self.silent_since,
        )


def add_loads(workers: Iterable[tuple[str, int, int, float | None]]) -> dict[str, AllocationLoad]:
    """
    Add up connected workers by lease.

    Parameters
    ----------
    workers
        Lease, processors and used processors of each worker, and the time since which the worker
        is idle, seconds since the epoch; None: it has tasks. Tasks that wait at a worker may use
        more processors than there are; they hold none.
    """
    found: dict[str, AllocationLoad] = {}
    for lease, processors, used, idle_since in workers:
        busy = min(used, processors)
        before = found.get(lease)
        if before is None:
            found[lease] = AllocationLoad(ready=processors, busy=busy, idle_since=idle_since)
            continue
        if idle_since is not None and before.idle_since is not None:
            # A lease is idle from when its last worker became so, and not while one has tasks.
            idle_since = max(idle_since, before.idle_since)
        else:
            idle_since = None
        found[lease] = replace(
            before,
            ready=before.ready + processors,
            busy=before.busy + busy,
            idle_since=idle_since,
        )
    return found
