"""
Scheduling: which task goes to which worker.

Tasks run on the workers of one pool. Whose turn it is within a pool is decided by
:mod:`bursar.service.engine.fairness`, first among its users, then among the instances of one. The
tasks of an instance start in their order. One that needs more processors than any worker has free
gets a worker reserved where it can start soonest; what comes behind it may start before it
where that does not delay it, as in EASY backfilling [1]_.

Workers pull: a worker that joins has *credit* for as many tasks as it has processors, and for a
moment's worth of short ones beside them, and gets it back with every outcome. That is the paper's
"notify and pull" with the two messages it saves: instead of being told that there is
work and asking for it, the worker has asked before.

References
----------
.. [1] Lifka (1995). The ANL/IBM SP scheduling system. JSSPP, LNCS 949: 295-303.
"""

import math
from collections.abc import Callable, Collection, Iterable

from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.service.engine.fairness import FairQueue
from bursar.service.engine.instance import Instance
from bursar.service.engine.tasks import CLAIMED, READY, TaskColumns
from bursar.service.engine.worker_pools import (
    RegisteredWorker,
    TaskAssignment,
    WorkerPool,
    WorkerReservation,
)

DEPTH = 128
"""Tasks of an instance and width that are looked at behind one that does not fit."""

GUESS = 1.0
"""Runtime assumed for a task without a hint until a task of the instance has ended, seconds."""

LEAST = 1e-3
"""Least number of seconds charged to a fair share for a task: starting a task is work, too."""

BATCH = 2048
"""Tasks that a worker gets at a time, at most."""

AdmitUser = Callable[[str], float | Refusal]
"""Takes a user; returns the seconds for which a task may run now, or why none may."""


Assignments = list[tuple[RegisteredWorker, list[TaskAssignment]]]


class PoolScheduler:
    """
    Assigns the ready tasks of instances to the workers of their pools.

    Parameters
    ----------
    serial
        Number before that of the first attempt. Each start of the service begins at a random one,
        so that attempts of an earlier life are not mistaken for new ones.
    limit
        Seconds after which a task without a limit of its own is killed; None: never.
    """

    def __init__(self, serial: int, limit: float | None = None) -> None:
        self._serial = serial
        self._limit = math.inf if limit is None else limit
        self.pools: dict[str, WorkerPool] = {}
        self.workers: dict[str, RegisteredWorker] = {}
        self.claims: dict[int, TaskAssignment] = {}
        self._owing: dict[int, Instance] = {}

    # Workers.

    def join(self, worker: RegisteredWorker) -> None:
        """Add a worker without tasks."""
        self.workers[worker.name] = worker
        self._pool(worker.pool).workers[worker.name] = worker

    def leave(self, worker: RegisteredWorker) -> None:
        """Remove a worker, which has no tasks any more."""
        assert not worker.claims
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
            del self.pools[worker.pool].workers[worker.name]
            self._forget_if_empty(worker.pool)

    def adopt(
        self, worker: RegisteredWorker, instance: Instance, task: int, serial: int, ready: bool
    ) -> TaskAssignment:
        """Register a task that a worker has from before a restart or reconnection."""
        tasks = instance.tasks
        if ready:
            tasks.unqueue(task, CLAIMED)
            self._rest_if_idle(instance)
        else:
            tasks.move(task, CLAIMED)
        width = tasks.processors[task]
        # When the task was given is not journalled. The creation of its instance is a safe lower
        # bound for the times that the worker will claim; the end is unknown; what an earlier life
        # charged in turns is forgotten, so the cost charged so far is 0.
        claim = TaskAssignment(
            instance, task, serial, worker, width, instance.created, math.inf, 0.0, 0.0
        )
        self._hold(claim)
        return claim

    def release(self, claim: TaskAssignment) -> None:
        """Remove an assignment from the worker that holds the task."""
        number = claim.number
        del self.claims[number]
        del claim.worker.claims[number]
        claim.worker.used -= claim.processors

    def settle(self, claim: TaskAssignment, seconds: float) -> None:
        """Correct the fair-share charge of an assignment to the true runtime in seconds."""
        instance = claim.instance
        # Collected and not applied at once: each correction pushes an entry onto two heaps, and
        # many tasks of an instance may end between two fills.
        instance.owed += claim.processors * seconds - claim.cost
        self._owing[instance.number] = instance

    def limit_of(self, tasks: TaskColumns, task: int) -> float:
        """Return the seconds after which a task is killed, in any pool; infinite: never."""
        limit = tasks.limits[task]
        return limit if limit == limit else self._limit

    # Instances.

    def enlist(self, instance: Instance) -> None:
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
        # Pools without wide tasks take the short path of _fill_serial, which needs no reservation
        # and gives tasks ahead of time.
        if any(width > 1 for width in instance.tasks.lanes):
            pool.wide.add(number)

    def drop(self, instance: Instance) -> None:
        """Remove a destroyed instance; running tasks are released when the workers report."""
        pool = self.pools.get(instance.pool)
        if pool is None:
            return
        self._unlist(pool, instance)
        if instance.user in pool.instances:
            pool.instances[instance.user].drop(instance.number)
        self._owing.pop(instance.number, None)
        self._forget_if_empty(instance.pool)

    def rest(self, instance: Instance) -> None:
        """Take an instance out of the queue if no task of the instance is ready any more."""
        self._rest_if_idle(instance)

    # Giving out.

    def fill(self, name: str, now: float, admit: AdmitUser) -> Assignments:
        """
        Assign the ready tasks of a pool to the pool's workers, as far as there is room.

        Parameters
        ----------
        admit
            Asked once for each user who has ready tasks.
        """
        pool = self.pools.get(name)
        if pool is None or not pool.members:
            return []
        # True costs first: turns are to be decided on what users have really had.
        self._correct()
        allowed = self._ask(pool, admit)
        if not pool.workers or not allowed:
            return []
        # The wide tasks of an instance may all have started since; then only serial ones are left.
        pool.wide = {n for n in pool.wide if _is_wide(pool.members[n].tasks)}
        given: dict[str, list[TaskAssignment]] = {}
        if pool.wide:
            self._fill_rigid(pool, now, allowed, given)
        else:
            pool.reserved = None
            self._fill_serial(pool, now, allowed, given)
        return [(pool.workers[worker], claims) for worker, claims in given.items()]

    def _ask(self, pool: WorkerPool, admit: AdmitUser) -> dict[str, float]:
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

    def _fill_serial(
        self,
        pool: WorkerPool,
        now: float,
        allowed: dict[str, float],
        given: dict[str, list[TaskAssignment]],
    ) -> None:
        # Each worker takes at most half of its equal part of the queue ahead of time, so that the
        # workers filled first do not empty a short queue and leave the others idle. With fewer
        # than two ready tasks for each worker nothing is given ahead.
        ready = pool.ready
        fair = ready // (2 * len(pool.workers))
        rooms: list[tuple[float, int, RegisteredWorker]] = []
        for i, worker in enumerate(pool.workers.values()):
            if not worker.open:
                continue
            room = worker.processors - worker.used
            if fair:
                room += min(worker.prefetch.depth(worker.processors), fair)
            if room > 0:
                rooms.append((worker.used / worker.processors, i, worker))
        # The least occupied worker is served first; the index breaks ties, as workers have no
        # order.
        rooms.sort()
        for _, _, worker in rooms:
            room = worker.processors - worker.used
            if fair:
                room += min(worker.prefetch.depth(worker.processors), fair)
            claims = self._take(pool, worker, min(room, BATCH), now, allowed)
            if not claims:
                return
            given[worker.name] = claims

    def _take(
        self,
        pool: WorkerPool,
        worker: RegisteredWorker,
        room: int,
        now: float,
        allowed: dict[str, float],
    ) -> list[TaskAssignment]:
        """Return the next tasks for a worker, all of one processor."""
        claims: list[TaskAssignment] = []
        while room > 0:
            user = pool.users.first()
            if user is None:
                break
            turns = pool.instances[user]
            number = turns.first()
            assert number is not None
            instance = pool.members[number]
            # Tags are charged once for a run of tasks, not for each. With rivals a run is a
            # quarter of an equal part of the room, so that turns alternate within one worker, too.
            rivals = max(len(pool.users), len(turns))
            count = room if rivals == 1 else max(1, room // (4 * rivals))
            count = min(count, instance.tasks.ready)
            cost = 0.0
            for _ in range(count):
                claim = self._claim(instance, instance.tasks.head(1), 1, worker, now, allowed[user])
                cost += claim.cost
                claims.append(claim)
            room -= count
            turns.charge(number, cost)
            pool.users.charge(user, cost)
            self._rest_if_idle(instance)
        return claims

    def _claim(
        self,
        instance: Instance,
        task: int,
        width: int,
        worker: RegisteredWorker,
        now: float,
        seconds: float,
    ) -> TaskAssignment:
        tasks = instance.tasks
        runtime = tasks.runtimes[task]
        limit = self.limit_of(tasks, task)
        # NaN, the only value that differs from itself, stands for a hint that was not given.
        if runtime == runtime:
            expected, ends = runtime, now + runtime
        else:
            mean = instance.mean
            expected = GUESS if mean is None else mean
            # Without a hint only the limit is a promise of when the task ends; without a limit no
            # end is known, and nothing overtakes a wide task that waits for it.
            ends = now + limit
        # The user may run here for these seconds only, as the agreement ends or the money does.
        # The worker kills the task then; 0 would mean no limit, hence LEAST.
        if seconds < limit:
            limit = max(seconds, LEAST)
        # On the wire 0 means that there is no limit.
        if limit == math.inf:
            limit = 0.0
        # A serial names one attempt. It is never used again, so that a late outcome of an attempt
        # that was given up cannot be taken for that of the next attempt.
        self._serial += 1
        claim = TaskAssignment(
            instance,
            task,
            self._serial,
            worker,
            width,
            now,
            ends,
            width * (expected if expected > LEAST else LEAST),
            limit,
        )
        tasks.unqueue(task, CLAIMED)
        self._hold(claim)
        return claim

    def _hold(self, claim: TaskAssignment) -> None:
        worker, number = claim.worker, claim.number
        self.claims[number] = claim
        worker.claims[number] = claim
        worker.used += claim.processors

    # Where some tasks hold several processors.

    def _fill_rigid(
        self,
        pool: WorkerPool,
        now: float,
        allowed: dict[str, float],
        given: dict[str, list[TaskAssignment]],
    ) -> None:
        workers = [worker for worker in pool.workers.values() if worker.open]
        if not workers:
            return
        # Since the last fill the task may have been cancelled, its user refused, its worker lost.
        self._check_reservation(pool, allowed)
        while any(worker.free > 0 for worker in workers):
            found = self._find(pool, workers, now)
            if found is None:
                return
            instance, task, worker = found
            width = instance.tasks.processors[task]
            user = instance.user
            claim = self._claim(instance, task, width, worker, now, allowed[user])
            given.setdefault(worker.name, []).append(claim)
            if pool.reserved is not None and (
                pool.reserved.instance is instance and pool.reserved.task == task
            ):
                pool.reserved = None
            pool.instances[user].charge(instance.number, claim.cost)
            pool.users.charge(user, claim.cost)
            self._rest_if_idle(instance)

    def _check_reservation(self, pool: WorkerPool, allowed: Collection[str]) -> None:
        reserved = pool.reserved
        if reserved is not None and not (
            pool.members.get(reserved.instance.number) is reserved.instance
            and reserved.instance.user in allowed
            and reserved.instance.tasks.states[reserved.task] == READY
            and pool.workers.get(reserved.worker.name) is reserved.worker
            and reserved.worker.open
        ):
            pool.reserved = None

    def _find(
        self, pool: WorkerPool, workers: list[RegisteredWorker], now: float
    ) -> tuple[Instance, int, RegisteredWorker] | None:
        """Return the first task in turn that can start now, and the worker for the task."""
        widest = max(worker.processors for worker in workers)
        if pool.reserved is not None:  # it has waited longest for its turn
            instance, task = pool.reserved.instance, pool.reserved.task
            # On any worker: another may have become free sooner than the reserved one.
            place = _best_fit(workers, instance.tasks.processors[task], None)
            if place is not None:
                return instance, task, place
        for user in pool.users.in_order():
            for number in pool.instances[user].in_order():
                instance = pool.members[number]
                tasks = instance.tasks
                # The heads of all widths, by task number: tasks of an instance start in their
                # order.
                for task, width in sorted((tasks.head(w), w) for w in tasks.lanes):
                    # No worker here can ever run the task. It must not get a reservation, which
                    # would keep the others waiting for nothing; the demand asks the provisioner
                    # for a wider worker.
                    if width > widest:
                        continue
                    found = self._place(pool, workers, instance, task, width, now)
                    if found is not None:
                        return instance, *found
        return None

    def _place(
        self,
        pool: WorkerPool,
        workers: list[RegisteredWorker],
        instance: Instance,
        task: int,
        width: int,
        now: float,
    ) -> tuple[int, RegisteredWorker] | None:
        reserved = pool.reserved
        worker = _best_fit(workers, width, None if reserved is None else reserved.worker)
        if worker is not None:
            return task, worker
        # The first task in turn that does not fit gets the only reservation of the pool (EASY;
        # conservative backfilling reserves for every task that waits).
        if reserved is None:
            able = [worker for worker in workers if worker.processors >= width]
            soonest = min(able, key=lambda worker: (_shadow(worker, width, now)[0], -worker.free))
            pool.reserved = WorkerReservation(instance, task, soonest)
            return None
        # From here on only the reserved worker is left to be tried: _best_fit has excluded it.
        if reserved.worker.free < width:
            return None
        ahead = reserved.instance.tasks.processors[reserved.task]
        shadow, spare = _shadow(reserved.worker, ahead, now)
        # Processors that are left beside the reserved task when it starts: any runtime will do.
        if width <= spare:
            return task, reserved.worker
        # Nobody knows when the reserved task starts, so no task is sure to end before.
        if shadow == math.inf:
            return None
        # A comparison with NaN is false: tasks without a hint never pass here.
        for other in instance.tasks.firsts(width, DEPTH):
            if now + instance.tasks.runtimes[other] <= shadow:
                return other, reserved.worker
        return None

    # What is asked.

    def demand(self) -> dict[str, ProcessorDemand]:
        """Return the demand for processors by pool; tasks that may not run now count as later."""
        found: dict[str, ProcessorDemand] = {}
        for name, pool in self.pools.items():
            tasks = processors = widest = later = 0
            work = longest = 0.0
            for instance in pool.members.values():
                # Not demanded for: workers would be started, and paid, for tasks that may not run.
                if instance.user in pool.refused:
                    later += instance.tasks.ready
                    continue
                guess = GUESS if instance.mean is None else instance.mean
                for width, lane in instance.tasks.lanes.items():
                    tasks += lane.ready
                    processors += width * lane.ready
                    widest = max(widest, width)
                    work += width * (lane.work + lane.unknown * guess)
                    longest = max(longest, lane.longest, guess if lane.unknown else 0.0)
            running = sum(min(worker.used, worker.processors) for worker in pool.workers.values())
            found[name] = ProcessorDemand(
                tasks=tasks,
                processors=processors,
                widest=widest,
                work=work,
                longest=longest,
                running=running,
                later=later,
            )
        return found

    def widest(self, name: str) -> int:
        """Return the processors of a pool's widest worker; 0: the pool has none."""
        pool = self.pools.get(name)
        return (
            max((worker.processors for worker in pool.workers.values()), default=0) if pool else 0
        )

    def is_waiting(self, name: str) -> bool:
        """Whether some tasks of a pool could start if there were processors."""
        pool = self.pools.get(name)
        return pool is not None and len(pool.users) > 0

    def to_take_back(self, name: str) -> list[tuple[RegisteredWorker, int]]:
        """
        Choose workers of a pool that are to return tasks which could begin elsewhere at once.

        To be called after :meth:`fill`. Only tasks of one processor wait at workers, since only
        these are given ahead of time.

        Returns
        -------
        list of (RegisteredWorker, int)
            Workers, and how many tasks each is to return: half of those that wait. As many
            workers as are needed to occupy those that are idle, the ones with most waiting
            tasks first.
        """
        pool = self.pools.get(name)
        if pool is None or len(pool.workers) < 2:
            return []
        kept = None if pool.reserved is None else pool.reserved.worker  # for a wide task
        idle = [worker for worker in pool.workers.values() if worker.open and worker is not kept]
        wanted = sum(max(0, worker.free) for worker in idle)
        if not wanted:
            return []
        donors = [
            (-worker.free, i, worker)
            for i, worker in enumerate(pool.workers.values())
            if worker.free < 0
            and worker.open  # else it is out of reach, or returns all it can in order to leave
            and worker.prefetch.may_ask
            and not self._would_wait(pool, worker)
        ]
        chosen: list[tuple[RegisteredWorker, int]] = []
        for waiting, _, worker in sorted(donors, reverse=True):
            if wanted <= 0:
                break
            # Half, so that the donor keeps as much as others get: it goes on while the answer
            # travels.
            count = (waiting + 1) // 2
            worker.prefetch.asked(count)
            chosen.append((worker, count))
            wanted -= count
        return chosen

    def _would_wait(self, pool: WorkerPool, worker: RegisteredWorker) -> bool:
        """Return whether a worker's last task, if returned, may not run: its user is refused."""
        # Workers return their last tasks first. One of a refused user would go back to the queue
        # and stay there, while the worker idles.
        last = next(reversed(worker.claims.values()))
        return last.instance.user in pool.refused

    # Inside.

    def _pool(self, name: str) -> WorkerPool:
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = WorkerPool()
        return pool

    def _forget_if_empty(self, name: str) -> None:
        pool = self.pools.get(name)
        if pool is not None and not pool.workers and not pool.members:
            del self.pools[name]

    def _rest_if_idle(self, instance: Instance) -> None:
        pool = self.pools.get(instance.pool)
        if pool is not None and not instance.tasks.ready:
            self._unlist(pool, instance)

    def _unlist(self, pool: WorkerPool, instance: Instance) -> None:
        if pool.members.pop(instance.number, None) is None:
            return
        pool.wide.discard(instance.number)
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


def _is_wide(tasks: TaskColumns) -> bool:
    return any(width > 1 for width in tasks.lanes)


def _best_fit(
    workers: Iterable[RegisteredWorker], width: int, but: RegisteredWorker | None
) -> RegisteredWorker | None:
    """Return the worker with the least free processors that are enough."""
    best: RegisteredWorker | None = None
    for worker in workers:
        if worker is not but and worker.free >= width and (best is None or worker.free < best.free):
            best = worker
    return best


def _shadow(worker: RegisteredWorker, width: int, now: float) -> tuple[float, int]:
    """
    Return when a task could start on a worker, and the processors spare then.

    Infinite and 0 if a task without a known end is in the way: then nothing overtakes the
    waiting task.
    """
    free = worker.free
    shadow = now
    # All assignments that end at the same time are counted together: the spare processors at that
    # moment include what each of them frees.
    for end, freed in sorted((c.ends, c.processors) for c in worker.claims.values()):
        if free >= width and end > shadow:
            break
        if end == math.inf:
            return math.inf, 0
        free += freed
        # A task that should have ended already is expected to end now.
        shadow = max(end, now)
    return shadow, free - width
