"""
Scheduling: which task goes to which worker.

Tasks run on the workers of one pool. Whose turn it is within a pool is decided by
:mod:`bursar.engine.fair_turns`, first among its users, then among the instances of one. The tasks
of an instance start in their order. A service has many users, instances and pools; a run has one of
each, whose workers have leases: a task may be bound to one, and a lease may have an end.

Workers pull: a worker that joins has *credit* for as many tasks as it has processors, and for a
moment's worth of short ones beside them, and gets it back with every outcome. That is the paper's
"notify and pull" with the two messages it saves: instead of being told that there is
work and asking for it, the worker has asked before. While a ready task needs several processors
nothing is given ahead: a worker starts its tasks in order, so that one which waits for several
processors there would keep others idle; see :mod:`bursar.engine.backfilling`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Generic
from weakref import WeakValueDictionary

from bursar.engine.backfilling import TOO_LONG, BackfillPass, StartAnswer
from bursar.engine.fair_turns import FairQueue
from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.ready_tasks import BITS, ReadyBucket, ReadyWalk
from bursar.engine.shared_resources import UNKNOWN_DEVICES, SharedMemory, SharedResources
from bursar.engine.task_states import CLAIMED, READY, REFUSED
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerPool, WorkerSlot, room_of
from bursar.model.money import Refusal

FIRST_COST = 1.0
"""Seconds charged to a fair share for a task without an estimate, until one has ended."""

LEAST = 1e-3
"""Least number of seconds charged to a fair share for a task: starting a task is work, too."""

BATCH = 2048
"""Tasks that a worker gets at a time, at most."""

AdmitUser = Callable[[str], float | Refusal]
"""Takes a user; returns the seconds for which a task may run now, or why none may."""

AdmitTask = Callable[[int, str], float | Refusal]
"""Takes the number of a task on the wire and a worker's lease; returns the seconds that the task
may run, or why it may not start."""

Assignments = list[tuple[WorkerSlot[Of], list[WorkerClaim[Of]]]]


def admit_all(user: str) -> float:
    """Let the tasks of every user run without a limit."""
    return math.inf


class TaskScheduler(Generic[Of]):
    """
    Assigns the ready tasks of instances to the workers of their pools.

    Parameters
    ----------
    serial
        Number before that of the first attempt, where attempts of all tasks are numbered together;
        None: each task's attempts are numbered from 1. Each start of a service begins at a random
        one, so that attempts of an earlier life are not mistaken for new ones.
    limit
        Seconds after which a task without a limit of its own is killed; None: never.

    Attributes
    ----------
    claims, memories, resources, turns
        All claims, by the task's number on the wire; the memory of each machine in use, by name;
        counted resources, by site; what makes the queue of a pool's users, whose turns are equal
        by default.
    """

    def __init__(self, serial: int | None = None, limit: float | None = None) -> None:
        self._serial = serial
        self._limit = math.inf if limit is None else limit
        self.pools: dict[str, WorkerPool[Of]] = {}
        self.workers: dict[str, WorkerSlot[Of]] = {}
        self.claims: dict[int, WorkerClaim[Of]] = {}
        self.memories: WeakValueDictionary[str, SharedMemory] = WeakValueDictionary()
        self.resources: dict[str, SharedResources] = {}
        self.turns: Callable[[], FairQueue[str]] = FairQueue
        self._owing, self._joined = dict[int, Of](), 0  # what is owed; workers, so far
        self._ends: dict[str, tuple[float, float]] = {}  # of leases: until when, and how fast

    # Workers.

    def join(self, worker: WorkerSlot[Of]) -> None:
        """
        Add a worker without tasks.

        Raises
        ------
        ValueError
            When a worker of that name is there.
        """
        if worker.name in self.workers:
            raise ValueError(f"worker {worker.name} is there already")
        self.workers[worker.name] = worker
        worker.until, worker.speed = self._ends.get(worker.lease, (math.inf, 1.0))
        worker.number = self._joined = self._joined + 1
        self._pool(worker.pool).add(worker)

    def leave(self, worker: WorkerSlot[Of]) -> None:
        """
        Remove a worker.

        Raises
        ------
        ValueError
            When the worker still has tasks.
        """
        if not worker.is_idle:
            raise ValueError(f"worker {worker.name} still has tasks")
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
            self.pools[worker.pool].remove(worker)
            self._forget_if_empty(worker.pool)

    def set_end(self, lease: str, moment: float | None, speed: float = 1.0) -> None:
        """
        Set the time at which a lease's processors are taken away.

        From then on its workers get no task, of those that others may run too, that should
        not have ended by then: by its estimate and how much longer than that tasks took so
        far; without an estimate, by how long tasks took in the mean. Before any has ended
        only those with an estimate are held back.

        Parameters
        ----------
        moment
            Seconds on the clock of :meth:`fill`; None: never.
        speed
            Work per second, relative to what estimates hold for.
        """
        self._ends[lease] = until, speed = math.inf if moment is None else moment, speed
        for worker in self.workers.values():
            if worker.lease == lease:
                worker.until, worker.speed = until, speed

    def adopt(
        self, worker: WorkerSlot[Of], instance: Of, task: int, attempt: int, at: float
    ) -> None:
        """
        Register a task that a worker has from before a restart or reconnection.

        Parameters
        ----------
        at
            Lower bound of the time at which the worker got it.
        """
        tasks = instance.tasks
        tasks.move(task, CLAIMED)
        self.rest(instance)
        # The end is unknown; what an earlier life charged in turns is forgotten, so the cost
        # charged so far is 0.
        number = instance.number << BITS | task
        claim = self.claims[number] = WorkerClaim(
            instance,
            task,
            number,
            attempt,
            worker,
            tasks.processors[task],
            tasks.estimates[task],
            at,
            math.inf,
            0.0,
            math.inf,
            memory=worker.memory_for(tasks, task),
            resources=tasks.ready_tasks.bucket_of(task).resources,
            devices=UNKNOWN_DEVICES,
        )
        worker.hold((claim,))

    def release(self, claim: WorkerClaim[Of], seconds: float | None = None) -> None:
        """
        Remove a claim from the worker that holds the task.

        Parameters
        ----------
        seconds
            True runtime, to which the fair-share charge of the claim is corrected; None: the
            charge stays.
        """
        del self.claims[claim.number]
        claim.worker.let_go(claim)
        if seconds is None:
            return
        instance = claim.instance
        # Collected and not applied at once: each correction pushes an entry onto two heaps, and
        # many tasks of an instance may end between two fills.
        instance.owed += claim.processors * seconds - claim.cost
        self._owing[instance.number] = instance

    def limit_of(self, tasks: InstanceTasks, task: int) -> float:
        """Return the seconds after which a task is killed, in any pool; infinite: never."""
        limit = tasks.limit(task)
        return self._limit if limit == math.inf else limit

    # Instances.

    def enlist(self, instance: Of) -> None:
        """Queue an instance that has ready tasks."""
        pool = self._pool(instance.pool)
        number, user = instance.number, instance.user
        pool.members[number] = instance
        turns = pool.instances.get(user)
        if turns is None:
            turns = pool.instances[user] = FairQueue()
        turns.wait(number)
        # A refused user has no turn until the next fill has asked again.
        if user not in pool.refused:
            pool.users.wait(user)

    def drop(self, instance: Of) -> None:
        """Remove a destroyed instance; running tasks are released when the workers report."""
        pool = self.pools.get(instance.pool)
        if pool is None:
            return
        self._unlist(pool, instance)
        if instance.user in pool.instances:
            pool.instances[instance.user].drop(instance.number)
        self._owing.pop(instance.number, None)
        self._forget_if_empty(instance.pool)

    def rest(self, instance: Of) -> None:
        """Take an instance out of the queue if no task of the instance is ready any more."""
        pool = self.pools.get(instance.pool)
        if pool is not None and not instance.tasks.counts[READY]:
            self._unlist(pool, instance)

    # Giving out.

    def fill(
        self, name: str, now: float, admit: AdmitUser = admit_all, per_task: AdmitTask | None = None
    ) -> Assignments[Of]:
        """
        Assign the ready tasks of a pool to the pool's workers, as far as there is room.

        Parameters
        ----------
        admit
            Asked once for each user who has ready tasks.
        per_task
            Asked before each task is claimed; None: what the user may run may run.
        """
        pool = self.pools.get(name)
        if pool is None or not pool.members:
            return []
        # True costs first: turns are to be decided on what users have really had.
        self._correct()
        allowed = self._ask(pool, admit)
        if not allowed:
            return []
        grant: _Grant[Of] = _Grant(now, allowed, per_task)
        if pool.in_order:
            pool.settle()
            self._fill_in_order(pool, room_of(pool.idle_workers()), grant)
        if pool.wide:
            workers = [worker for worker in pool.workers.values() if worker.open]
            self._backfill(pool, room_of(workers), grant)
        else:
            pool.reserved.clear()
            self._fill_least_loaded(pool, grant)
        return [(pool.workers[worker], claims) for worker, claims in grant.given.items()]

    def claim(
        self,
        worker: WorkerSlot[Of],
        room: int,
        now: float,
        admit: AdmitUser = admit_all,
        per_task: AdmitTask | None = None,
    ) -> list[WorkerClaim[Of]]:
        """
        Claim the best ready tasks that one worker can take.

        Parameters
        ----------
        room
            Processors that may be claimed on top of those in use. More than are free means
            prefetching, for which no ready task may need several processors.
        """
        pool = self.pools[worker.pool]
        self._correct()
        grant: _Grant[Of] = _Grant(now, self._ask(pool, admit), per_task)
        self._fill_in_order(pool, {worker.name: room}, grant)
        if pool.wide:
            self._backfill(pool, {worker.name: room}, grant)
        else:
            self._fill_serial(pool, worker, room, grant)
        return grant.given.get(worker.name, [])

    def wants_tasks(self, name: str) -> bool:
        """Whether some tasks of a pool could start if there were processors."""
        return name in self.pools and len(self.pools[name].users) > 0

    def _fill_least_loaded(self, pool: WorkerPool[Of], grant: "_Grant[Of]") -> None:
        """Give tasks of one processor each to all workers with room, the least loaded first."""
        # Each worker takes at most half of its equal part of the queue ahead of time, so that the
        # workers filled first do not empty a short queue and leave the others idle. With fewer
        # than two ready tasks for each worker nothing is given ahead.
        pool.let_wait(pool.ready // (2 * max(1, len(pool.workers))))
        pool.settle()
        while pool.members and (worker := pool.next_taker()) is not None:
            self._fill_serial(pool, worker, min(worker.room_ahead(pool.ahead), BATCH), grant)

    def _ask(self, pool: WorkerPool[Of], admit: AdmitUser) -> dict[str, float]:
        """Return the seconds for which users who have ready tasks may run one now."""
        allowed: dict[str, float] = {}
        # Asked anew at each fill: money, agreements and prices change with time alone.
        pool.refused.clear()
        for user, turns in pool.instances.items():
            if not turns:
                continue
            answer = admit(user)
            if isinstance(answer, Refusal):
                pool.refused[user] = answer
                pool.users.rest(user)
            else:
                allowed[user] = answer
                pool.users.wait(user)
        return allowed

    def _fill_in_order(
        self, pool: WorkerPool[Of], room: Mapping[str, int], grant: "_Grant[Of]"
    ) -> None:
        """Give workers whose leases have a plan to keep what comes next there, up to a stop."""
        for instance in [i for i in pool.members.values() if i.tasks.ready_tasks.sequences]:
            ready = instance.tasks.ready_tasks
            for name, most in room.items():
                worker = pool.workers[name]
                if worker.lease in ready.sequences and instance.user in grant.allowed:
                    self._take_in_order(instance, worker, most, grant)
            self.rest(instance)

    def _take_in_order(
        self, instance: Of, worker: WorkerSlot[Of], room: int, grant: "_Grant[Of]"
    ) -> None:
        tasks = instance.tasks
        sequence = tasks.ready_tasks.sequences[worker.lease]
        while sequence:
            task = sequence[0]
            state = tasks.states[task]
            if state == READY:
                if not worker.has_room_for(tasks, task, room):
                    return
                answer = self._start(instance, task, worker, grant)
                if answer is StartAnswer.NOT_NOW:
                    return
                if answer is StartAnswer.STARTED:
                    room -= tasks.processors[task]
                    # Remembered for a retry: the task then goes back to the front.
                    tasks.ready_tasks.take_turn(worker.lease)
                    continue
            # Waiting or delayed: what comes after it waits with it, as the plan has them in this
            # order.
            elif state < CLAIMED:
                return
            sequence.popleft()

    def _backfill(self, pool: WorkerPool[Of], room: Mapping[str, int], grant: "_Grant[Of]") -> None:
        now = grant.now

        def start(instance: Of, task: int, worker: WorkerSlot[Of]) -> StartAnswer:
            answer = self._start(instance, task, worker, grant)
            if answer is not StartAnswer.NOT_NOW:
                self.rest(instance)
            return answer

        BackfillPass(
            pool, room, grant.allowed, now, lambda i, t: now + self._length(i.tasks, t)
        ).run(start)

    def _start(
        self, instance: Of, task: int, worker: WorkerSlot[Of], grant: "_Grant[Of]"
    ) -> StartAnswer:
        """Claim a task for a worker and charge its user, if the task may start."""
        seconds = grant.allowed[instance.user]
        if grant.per_task is not None:
            answer = grant.per_task(instance.number << BITS | task, worker.lease)
            if isinstance(answer, Refusal):
                if not answer.final:
                    return StartAnswer.NOT_NOW
                instance.tasks.move(task, REFUSED)
                return StartAnswer.REFUSED
            seconds = min(seconds, answer)
        claim = self.make_claim(instance, task, worker, grant.now, seconds)
        grant.given.setdefault(worker.name, []).append(claim)
        self._charge(instance, claim.cost)
        return StartAnswer.STARTED

    def _fill_serial(
        self, pool: WorkerPool[Of], worker: WorkerSlot[Of], room: int, grant: "_Grant[Of]"
    ) -> None:
        """Give a worker tasks of one processor each."""
        passed: set[int] = set()  # instances that have nothing more for this worker now
        while room > 0:
            instance = pool.first_in_turn(passed)
            if instance is None:
                return
            # Tags are charged once for a run of tasks, not for each. With rivals a run is a
            # quarter of an equal part of the room, so that turns alternate within one worker, too.
            rivals = max(len(pool.users), len(pool.instances[instance.user]))
            count = room if rivals == 1 else max(1, room // (4 * rivals))
            claims = self._take(instance, worker, count, grant)
            if len(claims) < count:
                passed.add(instance.number)
            if claims:
                room -= len(claims)
                grant.given.setdefault(worker.name, []).extend(claims)
                self._charge(instance, sum([claim.cost for claim in claims]))
            self.rest(instance)

    def _take(
        self, instance: Of, worker: WorkerSlot[Of], count: int, grant: "_Grant[Of]"
    ) -> list[WorkerClaim[Of]]:
        """Claim the next tasks of an instance for a worker, up to a number of at least 1."""
        claims: list[WorkerClaim[Of]] = []
        picked: list[int] = []
        limits: list[float] = []
        tasks, now, per_task = instance.tasks, grant.now, grant.per_task
        states = tasks.states
        allowed = grant.allowed[instance.user]
        time_left = worker.time_left(now)
        walk = ReadyWalk(tasks.ready_tasks, states, worker.buckets_for(tasks, time_left))
        too_long: dict[ReadyBucket, int] = {}
        try:
            for task in walk:
                if time_left != math.inf and not worker.has_time_for(tasks, task, time_left):
                    walk.keep()  # for others; those behind it may fit
                    bucket = walk.bucket
                    too_long[bucket] = too_long.get(bucket, 0) + 1
                    if too_long[bucket] >= TOO_LONG:
                        walk.drop()
                    continue
                seconds = allowed
                if per_task is not None:
                    # Before the call, which may raise: the task must not get lost between heap
                    # and claim.
                    walk.keep()
                    answer = per_task(instance.number << BITS | task, worker.lease)
                    if isinstance(answer, Refusal):
                        if not answer.final:
                            # Whatever is cheaper would use up what this one waits for.
                            break
                        walk.unkeep()
                        tasks.move(task, REFUSED)
                        continue
                    walk.unkeep()
                    if answer < seconds:
                        seconds = answer
                # At once: the walk may come upon another key of the task.
                states[task] = CLAIMED
                picked.append(task)
                limits.append(seconds)
                if len(picked) + len(claims) == count:
                    break
                # Whether the next one has the time depends on the work that is claimed.
                if time_left != math.inf:
                    claims += self._make_claims(instance, picked, worker, now, limits)
                    picked.clear()
                    limits.clear()
        finally:
            walk.close()
            claims += self._make_claims(instance, picked, worker, now, limits)
            tasks.counts[READY] -= len(claims)
            tasks.counts[CLAIMED] += len(claims)
            tasks.ready_tasks.count_out([claim.task for claim in claims])
        return claims

    def make_claim(
        self,
        instance: Of,
        task: int,
        worker: WorkerSlot[Of],
        now: float,
        seconds: float,
        after: tuple[int, ...] = (),
    ) -> WorkerClaim[Of]:
        """Claim a task for a worker, after tasks that the worker has; ``seconds``: it may run."""
        instance.tasks.move(task, CLAIMED)
        return self._make_claims(instance, (task,), worker, now, (seconds,), after)[0]

    def _make_claims(
        self,
        instance: Of,
        picked: Sequence[int],
        worker: WorkerSlot[Of],
        now: float,
        limits: Sequence[float],
        after: tuple[int, ...] = (),
    ) -> list[WorkerClaim[Of]]:
        """Claim tasks in the state CLAIMED, each for as many seconds as ``limits`` says."""
        tasks, serial = instance.tasks, self._serial
        estimates, widths, attempts = tasks.estimates, tasks.processors, tasks.attempts
        base = instance.number << BITS
        usual = tasks.durations.mean or FIRST_COST
        ready = tasks.ready_tasks
        all_claims = self.claims
        claims: list[WorkerClaim[Of]] = []
        for task, seconds in zip(picked, limits, strict=True):
            estimate = estimates[task]
            limit = self._limit if tasks.limits is None else self.limit_of(tasks, task)
            if estimate != math.inf:
                ends, cost = now + estimate, estimate
            else:
                # Without an estimate only the limit is a promise of when the task ends; without a
                # limit no end is known, and nothing overtakes a wide task that waits for it.
                ends, cost = now + limit, usual
            # A number names one attempt. It is never used again, so that a late outcome of an
            # attempt that was given up cannot be taken for that of the next attempt.
            if serial is None:
                attempt = attempts.get(task, 0) + 1
            else:
                attempt = serial = serial + 1
            number = base | task
            width = widths[task]
            claim = all_claims[number] = WorkerClaim(
                instance,
                task,
                number,
                attempt,
                worker,
                width,
                estimate,
                now,
                ends,
                width * (cost if cost > LEAST else LEAST),
                # The user may run here for these seconds only, as the agreement ends or the money
                # does: the worker kills the task then.
                seconds if seconds < limit else limit,
                False,
                after,
                worker.memory_for(tasks, task) if ready.states_memory else 0,
            )
            if ready.states_resources:
                claim.resources = ready.bucket_of(task).resources
            claims.append(claim)
        self._serial = serial
        worker.hold(claims)
        return claims

    def _length(self, tasks: InstanceTasks, task: int) -> float:
        """Return the seconds in which a task should end: the estimate, or else the limit."""
        estimate = tasks.estimates[task]
        return self.limit_of(tasks, task) if estimate == math.inf else estimate

    def _charge(self, instance: Of, cost: float) -> None:
        pool = self.pools[instance.pool]
        pool.instances[instance.user].charge(instance.number, cost)
        pool.users.charge(instance.user, cost)

    # Inside.

    def _pool(self, name: str) -> WorkerPool[Of]:
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = WorkerPool(users=self.turns())
        return pool

    def _forget_if_empty(self, name: str) -> None:
        pool = self.pools.get(name)
        if pool is not None and not pool.workers and not pool.members:
            del self.pools[name]

    def _unlist(self, pool: WorkerPool[Of], instance: Of) -> None:
        if pool.members.pop(instance.number, None) is None:
            return
        turns = pool.instances[instance.user]
        turns.rest(instance.number)
        if not turns:
            pool.users.rest(instance.user)
            pool.refused.pop(instance.user, None)

    def _correct(self) -> None:
        for instance in self._owing.values():
            pool = self.pools.get(instance.pool)
            if pool is not None and instance.user in pool.instances:
                pool.instances[instance.user].correct(instance.number, instance.owed)
                pool.users.correct(instance.user, instance.owed)
            instance.owed = 0.0
        self._owing.clear()


class _Grant(Generic[Of]):
    """What may run in one round of giving out, and what has been given."""

    __slots__ = ("allowed", "given", "now", "per_task")

    def __init__(
        self, now: float, allowed: Mapping[str, float], per_task: AdmitTask | None
    ) -> None:
        self.now = now
        self.allowed = allowed
        self.per_task = per_task
        self.given: dict[str, list[WorkerClaim[Of]]] = {}
