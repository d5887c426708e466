"""Dispatching of a service: whose tasks start, what workers are told, and what they ask for."""

import math
from collections.abc import Callable, Iterable, Sequence

from bursar.dispatch.wire import Hello
from bursar.engine.attempt_ends import AttemptReactions, seconds_told
from bursar.engine.attendance import WorkerAttendance, take_in
from bursar.engine.filling import TaskFilling
from bursar.engine.loop_clock import FunctionClock
from bursar.engine.pool_demand import SHORT_GUESS, demand_of, widest_worker
from bursar.engine.shared_resources import NO_RESOURCES
from bursar.engine.task_chains import TaskChains
from bursar.engine.task_scheduler import LEAST, Assignments, TaskScheduler
from bursar.engine.task_states import CLAIMED, SKIPPED, SUCCEEDED
from bursar.engine.worker_link import WorkerLink
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.model.task import Outcome, Status
from bursar.remote.admin_messages import WorkerInfo
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.engine.bodies import make_wire_job
from bursar.service.engine.counters import TaskCounters
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.recording import ResultRecorder, TaskEnd, end_without_worker
from bursar.service.interfaces import Clock

GRACE = 5.0
"""Default number of seconds between SIGTERM and SIGKILL for a task that is to end."""

_SKIPPED = 2048
"""Tasks that are skipped between two records, at most."""

_EDGES = 1 << 16
"""Dependencies that are looked at between two turns of the loop, at most."""

_ALMOST = 0.99
"""Share of its own limit that a killed task must have run to count as timed out.

Less than 1, as clocks differ. A task that was killed earlier had reached the end of the time for
which its user might run tasks there, and runs again."""


class ServiceReactions:
    """
    Decides for a service what a run and a service do differently with workers and attempts.

    Implements :class:`bursar.engine.attendance.TaskOwner`,
    :class:`bursar.engine.attempt_ends.AttemptOwner` and
    :class:`bursar.engine.filling.WorkSender`.

    Parameters
    ----------
    on_fault
        Called with an internal error.

    Attributes
    ----------
    room, filling, reactions
        The workers, and how long each is waited for; what they get; what becomes of it.
    settled
        Whether all tasks that workers still have from before a restart have been reported.
    on_waiting
        Called when tasks of a pool begin to wait for workers.
    on_gone
        Called when a worker is gone for good.
    """

    records_attempts = False
    admit = None

    def __init__(
        self,
        *,
        scheduler: TaskScheduler[Instance],
        index: InstanceIndex,
        recorder: ResultRecorder,
        billing: PoolAdmission,
        clock: Clock,
        counters: TaskCounters,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._index = index
        self._recorder = recorder
        self._skipping: set[int] = set()  # numbers of instances
        self._clock = clock
        self._counters = counters
        self.failed = on_fault
        self.may_run = billing.may_run
        engine_clock = FunctionClock(clock)
        self.room = WorkerAttendance(scheduler=scheduler, owner=self, clock=engine_clock)
        self.filling = TaskFilling(
            scheduler=scheduler, chains=TaskChains(scheduler), owner=self, clock=engine_clock
        )
        self.reactions = AttemptReactions(
            filling=self.filling, owner=self, store=recorder, counters=counters
        )
        self.settled = False
        self.on_waiting: Callable[[], None] = lambda: None
        self.on_gone: Callable[[], None] = lambda: None
        self._waiting: set[str] = set()  # pools of which that was told

    @property
    def registered(self) -> dict[str, WorkerSlot[Instance]]:
        """Registered workers by name."""
        return self._scheduler.workers

    def join(self, hello: Hello, link: WorkerLink, *, pool: str) -> WorkerSlot[Instance]:
        """Take in a worker that connected, for the first time or again; see :func:`take_in`."""
        worker = take_in(self.room, hello, link, pool=pool)
        self.filling.hurry(pool)
        return worker

    # Tasks that may start.

    def start(self, instance: Instance, tasks: Sequence[int]) -> None:
        """Let durable tasks start as soon as they may."""
        instance.tasks.start_all(tasks)
        self._skip(instance)
        self.filling.again(instance)

    def _skip(self, instance: Instance) -> None:
        """
        Record, in portions, that tasks that cannot start any more do not run.

        A user decides how many tasks follow a failure: all at once would hold the loop, and take
        more memory and a larger record than there may be. After a crash between two portions the
        tasks that are left are barred when they are restored.
        """
        if instance.number in self._skipping or instance.destroyed:
            return
        tasks, is_more = instance.tasks.end_some(_SKIPPED, _EDGES)
        if not tasks and not is_more:
            return
        self._skipping.add(instance.number)
        instance.tasks.doomed.difference_update(tasks)
        now = self._clock()
        reason = "not run: a task that it comes after did not succeed"

        def go_on() -> None:
            self._skipping.discard(instance.number)
            self._skip(instance)
            self.filling.again(instance)  # tasks that could spare what has ended

        self._recorder.record(
            [end_without_worker(instance, task, SKIPPED, now, reason) for task in tasks], go_on
        )

    def follow(self, instance: Instance, endings: Iterable[TaskEnd]) -> None:
        """Let the tasks that follow start, or end, once ends of tasks are durable."""
        tasks = instance.tasks
        for ending in endings:
            if ending.state == SUCCEEDED:
                tasks.release(ending.task)
            else:
                tasks.bar_children(ending.task)
        self._skip(instance)
        self.filling.again(instance)

    # What workers are told.

    def stop(
        self, instance: Instance, chosen: Iterable[int] | None, reason: str, grace: float = GRACE
    ) -> None:
        """Tell workers to end tasks of an instance, all if None, within ``grace`` seconds."""
        claims = self._scheduler.claims
        if chosen is None:
            chosen = [claim.task for claim in claims.values() if claim.instance is instance]
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
                answers[key] = self.may_run(*key, now)
            if isinstance(answers[key], Refusal):
                unpaid.setdefault(claim.instance.number, []).append(claim.task)
        for number, tasks in unpaid.items():
            self.stop(self._index.by_number[number], tasks, "nobody pays for its processors")

    def tick(self) -> None:
        """Check again who may run, as time has passed, and fill all pools."""
        self._recall_unpaid()
        for pool in self._scheduler.pools:
            self.filling.hurry(pool)

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
        if least > widest:
            return f"its tasks need {least} processors of one worker, and the widest has {widest}"
        had = next(iter(self._scheduler.resources.values()), NO_RESOURCES)
        if any(bucket.ready and had.could_have(bucket.resources) for bucket in buckets):
            return ""
        return "its tasks need resources that the site has no longer"

    # Decisions for the reactions that a run and a service share.

    def find(self, number: int) -> Instance | None:
        """Return the instance with a number; None: there is none."""
        return self._index.by_number.get(number)

    def admit_held(
        self, instance: Instance, task: int, attempt: int, worker: WorkerSlot[Instance]
    ) -> float:
        """Let a worker go on with a task from before a restart."""
        # When the task was given is not journalled. The creation of its instance is a safe lower
        # bound for the times that the worker will claim.
        return instance.created

    def lose(
        self,
        worker: WorkerSlot[Instance],
        claims: Sequence[WorkerClaim[Instance]],
        *,
        counts: bool,
    ) -> None:
        """End claims that were lost with a worker, or on the way to it."""
        reason = f"its worker on {worker.host or 'an unknown machine'} was lost"
        self.reactions.lost(worker, claims, reason, counts=counts)

    def went(self, worker: WorkerSlot[Instance]) -> None:
        """Do nothing: a worker that is away keeps its place in a lease."""

    def gone(self, worker: WorkerSlot[Instance]) -> None:
        """Have its pool filled again, and tell whoever provides workers."""
        self.filling.hurry(worker.pool)
        self.on_gone()

    def uses_up_a_try(self, claim: WorkerClaim[Instance], outcome: Outcome) -> bool:
        """Whether a task was not killed since the time was over for which it might run here."""
        # By the worker's own times, since those that we believe may be too short for a limit that
        # was really reached.
        limit = self._scheduler.limit_of(claim.instance.tasks, claim.task)
        is_over = outcome.status is Status.TIMED_OUT and seconds_told(outcome) < _ALMOST * limit
        return not is_over

    def never_began(self, claim: WorkerClaim[Instance]) -> None:
        """Do nothing: users pay for what has run."""

    def freed(self, instance: Instance) -> None:
        """Tell that no worker has a task of a destroyed instance any more, if so."""
        if not instance.tasks.counts[CLAIMED]:
            instance.wake()

    def prepare(self, pool: str) -> bool:
        """Do nothing: all pools can always be filled."""
        return True

    def give(self, pool: str, given: Assignments[Instance], now: float) -> None:
        """Send tasks to workers; tell when tasks of the pool begin to wait."""
        for worker, claims in given:
            self._counters.started += len(claims)
            worker.link.give_encoded(_jobs_of(claims))
        # Told once when tasks begin to wait, not at each fill, since every telling makes the
        # provisioner decide.
        if not self._scheduler.wants_tasks(pool):
            self._waiting.discard(pool)
        elif pool not in self._waiting:
            self._waiting.add(pool)
            self.on_waiting()

    def recall(self, worker: WorkerSlot[Instance], count: int) -> None:
        """Ask a worker to return tasks that it has not begun, the last first."""
        worker.link.recall(count)


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
            claim.devices,
        )
        for claim in claims
    ]
