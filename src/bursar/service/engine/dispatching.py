"""
Dispatching: which workers are connected, which tasks each has, and how these tasks end.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence

from bursar.dispatch.wire import Hello
from bursar.engine.attempt_ends import AttemptReactions, seconds_told
from bursar.engine.attendance import OnDurable, WorkerAttendance, take_in
from bursar.engine.loop_clock import EngineTimer, FunctionClock
from bursar.engine.pool_demand import SHORT_GUESS, demand_of, to_take_back, widest_worker
from bursar.engine.task_chains import TaskChains
from bursar.engine.task_scheduler import LEAST, TaskScheduler
from bursar.engine.task_states import CLAIMED, SUCCEEDED
from bursar.engine.worker_link import WorkerLink
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.model.task import Outcome, Status
from bursar.remote.admin_messages import WorkerInfo
from bursar.service.engine.bodies import make_wire_job
from bursar.service.engine.counters import TaskCounters
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.recording import ResultRecorder, TaskEnd
from bursar.service.engine.skipping import TaskSkipper
from bursar.service.interfaces import Clock, UsageBilling

GRACE = 5.0
"""Default number of seconds between SIGTERM and SIGKILL for a task that is to end."""

_ALMOST = 0.99
"""Share of its own limit that a killed task must have run to count as timed out.

Less than 1, as clocks differ. A task that was killed earlier had reached the end of the time for
which its user might run tasks there, and runs again."""


class TaskDispatcher:
    """
    Gives tasks to workers and handles their outcomes.

    Parameters
    ----------
    on_fault
        Called with an internal error.

    Attributes
    ----------
    settled
        Whether all tasks that workers still have from before a restart have been reported.
    on_freed
        Called when no worker has a task of a destroyed instance any more.
    on_waiting
        Called when tasks of a pool begin to wait for workers.
    on_gone
        Called when a worker is gone for good.
    room
        The workers, and how long each is waited for.
    """

    def __init__(
        self,
        *,
        scheduler: TaskScheduler[Instance],
        index: InstanceIndex,
        recorder: ResultRecorder,
        billing: UsageBilling,
        clock: Clock,
        counters: TaskCounters,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._index = index
        self._recorder = recorder
        self._skipper = TaskSkipper(recorder, clock)
        self._billing = billing
        self._clock = clock
        self._counters = counters
        self._on_fault = on_fault
        owner, engine_clock = _InstanceOwner(self), FunctionClock(clock)
        self.room = WorkerAttendance(scheduler=scheduler, owner=owner, clock=engine_clock)
        self._reactions = AttemptReactions(
            scheduler=scheduler,
            chains=TaskChains(scheduler),
            owner=owner,
            store=recorder,
            clock=engine_clock,
            counters=counters,
        )
        self._waker: EngineTimer | None = None
        self._dirty: dict[str, None] = {}
        self._fill_scheduled = False
        self._is_open = True
        self.settled = False
        self.on_freed: Callable[[Instance], None] = lambda instance: None
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_gone: Callable[[], None] = lambda: None
        self._waiting: set[str] = set()  # pools of which that was told
        self._sleeping: dict[int, Instance] = {}  # with tasks whose next try is to come

    def close(self) -> None:
        """Stop giving out tasks."""
        self._is_open = False
        self._sleeping.clear()
        self._set_waker()

    @property
    def running(self) -> int:
        """Number of tasks that workers have."""
        return len(self._scheduler.claims)

    @property
    def registered(self) -> dict[str, WorkerSlot[Instance]]:
        """Registered workers by name."""
        return self._scheduler.workers

    # Workers come and go.

    def join(self, hello: Hello, link: WorkerLink, *, pool: str) -> WorkerSlot[Instance]:
        """Take in a worker that connected, for the first time or again; see :func:`take_in`."""
        worker = take_in(self.room, hello, link, pool=pool)
        self.schedule_fill(pool)
        return worker

    # What workers say.

    def outcomes(self, name: str, outcomes: Sequence[Outcome], on_durable: OnDurable) -> None:
        """Handle outcomes that a worker reports; see :meth:`AttemptReactions.reported`."""
        self._reactions.reported(self.registered.get(name), outcomes, on_durable)

    def returned(self, name: str, jobs: Sequence[tuple[int, int]]) -> None:
        """Handle jobs that a worker returned unstarted; see :meth:`AttemptReactions.returned`."""
        self._reactions.returned(self.registered.get(name), jobs)

    def try_again(self, ends: Iterable[TaskEnd]) -> None:
        """Let tasks run again, now or after a delay, once their attempts so far are durable."""
        self._reactions.try_again(ends)

    def start(self, instance: Instance, tasks: Sequence[int]) -> None:
        """Let durable tasks start as soon as they may."""
        instance.tasks.start_all(tasks)
        self._skipper.skip(instance)
        self.enlist(instance)

    def follow(self, instance: Instance, endings: Iterable[TaskEnd]) -> None:
        """Let the tasks that follow start, or end, once ends of tasks are durable."""
        tasks = instance.tasks
        for ending in endings:
            if ending.state == SUCCEEDED:
                tasks.release(ending.task)
            else:
                tasks.bar_children(ending.task)
        self._skipper.skip(instance)
        self.enlist(instance)

    # What workers are told.

    def drop(self, instance: Instance) -> None:
        """Give out no more tasks of an instance that is destroyed."""
        self._scheduler.drop(instance)
        if self._sleeping.pop(instance.number, None) is not None:
            self._set_waker()

    def enlist(self, instance: Instance) -> None:
        """Queue an instance with ready tasks, and fill the workers of the pool soon."""
        if instance.tasks.ready and not instance.destroyed:
            self._scheduler.enlist(instance)
            self.schedule_fill(instance.pool)

    def again(self, instance: Instance) -> None:
        """Have tasks of an instance tried again, now or when their time has come."""
        self.enlist(instance)
        if self._is_open and instance.tasks.next_wake() is not None:
            self._sleeping[instance.number] = instance
            self._set_waker()

    def schedule_fill(self, pool: str) -> None:
        """Fill the workers of a pool once the current burst of events has been handled."""
        self._dirty[pool] = None
        if not self._fill_scheduled:
            self._fill_scheduled = True
            # One fill for a whole burst: what all frames of this turn of the loop brought is
            # known, and each worker gets one frame instead of one for each outcome.
            asyncio.get_running_loop().call_soon(self._fill)

    def _fill(self) -> None:
        self._fill_scheduled = False
        dirty, self._dirty = self._dirty, {}
        # tick() has every pool filled again; a closed dispatcher gives out no more tasks.
        if not self._is_open:
            return
        now = self._clock()
        try:
            for pool in dirty:
                self._fill_pool(pool, now)
        # In a callback of the loop nobody would hear of it; the engine must stop instead.
        except Exception as error:
            self._on_fault(error)

    def _fill_pool(self, pool: str, now: float) -> None:
        may_run = self._billing.may_run
        given = self._scheduler.fill(pool, now, lambda user: may_run(pool, user, now))
        for worker, claims in given:
            self._counters.started += len(claims)
            worker.link.give_encoded(_jobs_of(claims))
        for worker, count in to_take_back(self._scheduler.pools.get(pool), now):
            worker.prefetch.asked(count)
            worker.link.recall(count)
        # Told once when tasks begin to wait, not at each fill, since every telling makes the
        # provisioner decide.
        if not self._scheduler.wants_tasks(pool):
            self._waiting.discard(pool)
        elif pool not in self._waiting:
            self._waiting.add(pool)
            self.on_waiting()

    def stop(
        self, instance: Instance, chosen: Iterable[int], reason: str, grace: float = GRACE
    ) -> None:
        """Tell workers to end tasks of an instance within ``grace`` seconds."""
        claims = self._scheduler.claims
        base = instance.base
        by_worker: dict[WorkerSlot[Instance], list[int]] = {}
        for task in chosen:
            claim = claims.get(base | task)
            if claim is not None:
                # Marked even if the worker is away: its next connection is told then, by join().
                claim.recalled = True
                by_worker.setdefault(claim.worker, []).append(claim.number)
        # One frame for each worker, however many tasks are stopped.
        for worker, numbers in by_worker.items():
            worker.link.cancel(numbers, grace, reason)

    def stop_all(self, instance: Instance, reason: str) -> None:
        """Tell workers to end all tasks of an instance."""
        claims = self._scheduler.claims.values()
        self.stop(instance, [claim.task for claim in claims if claim.instance is instance], reason)

    def _recall_unpaid(self) -> None:
        """Stop tasks of users who may no longer run tasks in the pool; stopped tasks wait again."""
        now = self._clock()
        answers: dict[tuple[str, str], float | Refusal] = {}
        unpaid: dict[int, list[int]] = {}
        for claim in self._scheduler.claims.values():
            if claim.recalled or claim.instance.destroyed:
                continue
            key = claim.instance.pool, claim.instance.user
            if key not in answers:
                # Asked once for each user and pool: claims are many, and the price may be
                # computed.
                answers[key] = self._billing.may_run(*key, now)
            if isinstance(answers[key], Refusal):
                unpaid.setdefault(claim.instance.number, []).append(claim.task)
        for number, tasks in unpaid.items():
            self.stop(self._index.by_number[number], tasks, "nobody pays for its processors")

    def tick(self) -> None:
        """Check again who may run, as time has passed, and fill all pools."""
        self._recall_unpaid()
        for pool in self._scheduler.pools:
            self.schedule_fill(pool)

    def wake(self) -> None:
        """Let tasks start whose next try is due; called by a timer."""
        now = self._clock()
        try:
            for number, instance in list(self._sleeping.items()):
                if instance.tasks.wake(now):
                    self.enlist(instance)
                if instance.tasks.next_wake() is None:
                    del self._sleeping[number]
            self._set_waker()
        except Exception as error:  # in a callback of the loop nobody else would hear of it
            self._on_fault(error)

    def _set_waker(self) -> None:
        """Set the timer of the next try, in place of an earlier one."""
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        due = [instance.tasks.next_wake() for instance in self._sleeping.values()]
        moment = min((moment for moment in due if moment is not None), default=None)
        if moment is not None:
            self._waker = self.room.clock.at(moment, self.wake)

    def workers(self) -> list[WorkerInfo]:
        """Return all workers, also disconnected ones that may come back."""
        return [
            WorkerInfo(
                name=worker.name,
                host=worker.host,
                pool=worker.pool,
                processors=worker.processors,
                busy=max(0, min(worker.used, worker.processors)),
                connected=worker.connected,
            )
            for worker in self.registered.values()
        ]

    def demand(self) -> dict[str, ProcessorDemand]:
        """Return the demand of tasks for processors, by pool."""
        return {name: demand_of(pool, SHORT_GUESS) for name, pool in self._scheduler.pools.items()}

    def why_waiting(self, instance: Instance) -> str:
        """Return for people why an instance's tasks cannot start; empty: nothing prevents it."""
        buckets = instance.tasks.ready_tasks.buckets
        least = min((bucket.processors for bucket in buckets if bucket.ready), default=0)
        if not least:
            return ""
        widest = widest_worker(self._scheduler.pools.get(instance.pool))
        if not widest:
            return "no worker is there for its tasks yet"
        if least <= widest:
            return ""
        return f"its tasks need {least} processors of one worker, and the widest has {widest}"


class _InstanceOwner:
    """
    Decides what becomes of the tasks of instances.

    See :class:`bursar.engine.attendance.TaskOwner` and
    :class:`bursar.engine.attempt_ends.AttemptOwner`.
    """

    records_attempts = False

    def __init__(self, dispatching: TaskDispatcher) -> None:
        self._dispatching = dispatching

    def find(self, number: int) -> Instance | None:
        return self._dispatching._index.by_number.get(number)

    def admit_held(
        self, instance: Instance, task: int, attempt: int, worker: WorkerSlot[Instance]
    ) -> float:
        # When a task from before a restart was given is not journalled. The creation of its
        # instance is a safe lower bound for the times that the worker will claim.
        return instance.created

    def lose(
        self,
        worker: WorkerSlot[Instance],
        claims: Sequence[WorkerClaim[Instance]],
        *,
        counts: bool,
    ) -> None:
        reason = f"its worker on {worker.host or 'an unknown machine'} was lost"
        self._dispatching._reactions.lost(worker, claims, reason, counts=counts)

    def went(self, worker: WorkerSlot[Instance]) -> None:
        pass

    def gone(self, worker: WorkerSlot[Instance]) -> None:
        self._dispatching.schedule_fill(worker.pool)
        self._dispatching.on_gone()

    def failed(self, error: BaseException) -> None:
        self._dispatching._on_fault(error)

    def uses_up_a_try(self, claim: WorkerClaim[Instance], outcome: Outcome) -> bool:
        """Whether a task was not killed since the time was over for which it might run here."""
        # By the worker's own times, since those that we believe may be too short for a limit that
        # was really reached.
        limit = self._dispatching._scheduler.limit_of(claim.instance.tasks, claim.task)
        is_over = outcome.status is Status.TIMED_OUT and seconds_told(outcome) < _ALMOST * limit
        return not is_over

    def never_began(self, claim: WorkerClaim[Instance]) -> None:
        """Do nothing: users pay for what has run."""

    def again(self, instance: Instance) -> None:
        self._dispatching.again(instance)

    def freed(self, instance: Instance) -> None:
        if not instance.tasks.counts[CLAIMED]:
            self._dispatching.on_freed(instance)

    def has_room(self, worker: WorkerSlot[Instance]) -> None:
        self._dispatching.schedule_fill(worker.pool)


def _jobs_of(claims: Sequence[WorkerClaim[Instance]]) -> list[bytes]:
    return [
        make_wire_job(
            (instance := claim.instance).tasks.bodies[claim.task],
            claim.number,
            claim.attempt,
            claim.processors,
            # 0 means no limit to a worker: time that is all but used up must not become that.
            0.0 if claim.seconds == math.inf else max(claim.seconds, LEAST),
            str(claim.task),
            instance.home,
        )
        for claim in claims
    ]
