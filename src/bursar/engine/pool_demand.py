"""What the ready tasks of a pool ask for: processors, and tasks back from busy workers."""

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.ready_tasks import ANYWHERE, ReadyBucket
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerPool, WorkerSlot
from bursar.model.provisioning import ProcessorDemand

GUESS = 60.0
"""Seconds that a task of a run without an estimate is thought to take before any has ended.

Demand must be more than nothing before any task has ended, or no pool would ever begin."""

SHORT_GUESS = 1.0
"""The same for a task of a service. Sites that lend processors for less than a minute get requests,
too: there a task of unknown length is tried, and only one that is known to be longer is not."""


@dataclass(frozen=True, slots=True)
class UnplaceableTasks:
    """
    Ready tasks that no worker can take.

    Parameters
    ----------
    tasks
        Number of such tasks.
    processors
        Processors of the widest of them.
    longest
        Seconds that the longest of them should take at speed 1; 0 when nothing is known.
    """

    tasks: int = 0
    processors: int = 0
    longest: float = 0.0


def demand_of(pool: WorkerPool[Of], guess: float = GUESS) -> ProcessorDemand:
    """
    Return the demand of the ready tasks of a pool that are bound to no lease.

    Tasks of users who may not run any now count as later: workers would be started, and paid, for
    tasks that may not run.

    Parameters
    ----------
    guess
        Seconds that a task without an estimate is thought to take before any has ended.
    """
    tasks = processors = widest = later = 0
    work = longest = 0.0
    for instance in pool.members.values():
        mine = instance.tasks
        if instance.user in pool.refused:
            later += mine.ready
            continue
        stretch, mean = mine.durations.stretch, mine.durations.mean or guess
        for bucket in mine.ready_tasks.at(ANYWHERE):
            if not bucket.ready:
                continue
            tasks += bucket.ready
            processors += bucket.ready * bucket.processors
            widest = max(widest, bucket.processors)
            work += bucket.processors * (bucket.work * stretch + bucket.unknown * mean)
            longest = max(longest, bucket.longest * stretch, mean if bucket.unknown else 0.0)
    return ProcessorDemand(
        tasks=tasks,
        processors=processors,
        widest=widest,
        work=work,
        longest=longest,
        running=running_in(pool),
        later=later,
    )


def running_in(pool: WorkerPool[Of]) -> int:
    """Return the processors that tasks hold; those claimed ahead of time hold none yet."""
    return sum(min(worker.used, worker.processors) for worker in pool.workers.values())


def misfits(
    pool: WorkerPool[Of], now: float, workers: Iterable[WorkerSlot[Of]]
) -> UnplaceableTasks:
    """
    Count the ready tasks of a pool that none of the given workers could take if all were idle.

    Tasks about as long as the time of a worker all count as soon as one of them does not fit.
    """
    room: dict[int, float] = {}
    # For each width only the worker with most time left matters.
    for worker in workers:
        width = worker.processors
        room[width] = max(room.get(width, -math.inf), worker.time_left(now))
    found = [
        (bucket, _longest_of(instance.tasks, bucket))
        for instance in pool.members.values()
        for bucket in instance.tasks.ready_tasks.at(ANYWHERE)
        if bucket.ready
        and _longest_of(instance.tasks, bucket)
        > max((room[p] for p in room if p >= bucket.processors), default=-math.inf)
    ]
    return UnplaceableTasks(
        tasks=sum(bucket.ready for bucket, _ in found),
        processors=max((bucket.processors for bucket, _ in found), default=0),
        longest=max((longest for _, longest in found), default=0.0),
    )


def widest_worker(pool: WorkerPool[Of] | None) -> int:
    """Return the processors of a pool's widest worker; 0: the pool has none."""
    if pool is None:
        return 0
    return max((worker.processors for worker in pool.workers.values()), default=0)


def to_take_back(pool: WorkerPool[Of] | None, now: float) -> list[tuple[WorkerSlot[Of], int]]:
    """
    Choose workers of a pool that are to return tasks which could begin elsewhere at once.

    To be called after the pool was filled. Only tasks of one processor wait at workers, since only
    these are given ahead of time.

    Returns
    -------
    list of (WorkerSlot, int)
        Workers, and how many tasks each is to return, the last claimed first: half of those
        that wait, and as many as it takes to reach one that an idle worker could begin. As many
        workers as are needed to occupy those that are idle, the ones with most waiting tasks
        first.
    """
    if pool is None or len(pool.workers) < 2:
        return []
    pool.settle()
    if not pool.free or not len(pool.donors):
        return []
    kept = {reservation.worker.name for reservation in pool.reserved.values()}
    # One of each lease and time: the others are as good.
    found = (next((n for n in mates if n not in kept), None) for mates in pool.idle.values())
    idle = [pool.workers[name] for name in found if name is not None]
    wanted = pool.free - sum(mates.get(name, 0) for name in kept for mates in pool.idle.values())
    if not idle:
        return []
    chosen: list[tuple[WorkerSlot[Of], int]] = []
    while wanted > 0 and (worker := pool.next_donor()) is not None:
        if not worker.prefetch.may_ask:
            continue
        waiting = worker.used - worker.processors
        reach = _reach(pool, worker, waiting, idle, now)
        if reach:
            # Half, so that the donor keeps as much as others get: it goes on while the answer
            # travels.
            count = max(reach, (waiting + 1) // 2)
            chosen.append((worker, count))
            wanted -= count
    return chosen


def _reach(
    pool: WorkerPool[Of],
    donor: WorkerSlot[Of],
    waiting: int,
    idle: Collection[WorkerSlot[Of]],
    now: float,
) -> int:
    """
    Count a worker's waiting tasks, the last first, up to one that an idle worker may run.

    0 when there is none.
    """
    # Dictionaries keep the order of insertion: the last claimed are those that wait, and a
    # worker returns the last ones first.
    last = itertools.islice(reversed(donor.claims.values()), waiting)
    for reach, claim in enumerate(last, 1):
        # One of a refused user would go back to the queue and stay there, while the worker idles.
        if claim.instance.user not in pool.refused and any(
            _may_run(worker, claim, now) for worker in idle
        ):
            return reach
    return 0


def _may_run(worker: WorkerSlot[Of], claim: WorkerClaim[Of], now: float) -> bool:
    """Whether an idle worker may run a task that waits at another worker."""
    tasks = claim.instance.tasks
    place = tasks.ready_tasks.bucket_of(claim.task).place
    if place != ANYWHERE:
        return place == worker.lease
    return worker.lease not in tasks.ready_tasks.sequences and worker.has_time_for(
        tasks, claim.task, worker.time_left(now)
    )


def _longest_of(tasks: InstanceTasks, bucket: ReadyBucket) -> float:
    """Return seconds that the longest ready task of a bucket should take at speed 1."""
    expect = tasks.durations.expect
    return max(expect(bucket.longest), expect(math.inf) if bucket.unknown else 0.0)
