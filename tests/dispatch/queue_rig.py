"""A run's queue with the reactions to what workers say, and a store that forgets."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from bursar.engine.attempt_ends import AttemptCounters, AttemptEnd, AttemptReactions
from bursar.engine.attendance import OnDurable
from bursar.engine.filling import TaskFilling
from bursar.engine.instance_tasks import RetryVerdict
from bursar.engine.loop_clock import EngineTimer
from bursar.engine.pool_demand import UnplaceableTasks, to_take_back
from bursar.engine.run_tasks import RunTasks
from bursar.engine.task_scheduler import AdmitTask, Assignments
from bursar.engine.task_states import DELAYED, SUCCEEDED
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.campaign import Retry
from bursar.model.task import Outcome


class NoTimer:
    """A timer that never fires."""

    def cancel(self) -> None: ...


class SetClock:
    """Tells the time that the test sets, and never calls back."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def soon(self, callback: Callable[[], None]) -> None: ...

    def at(self, moment: float, callback: Callable[[], None]) -> EngineTimer:
        return NoTimer()


class QueueRig(RunTasks):
    """
    A run's tasks, given out and ended by hand as the engine does it.

    ``recorded`` has what was recorded.
    """

    records_attempts = True

    def __init__(self, retry: Retry, again_at: str | None = None) -> None:
        super().__init__(retry, again_at)
        self.recorded: list[AttemptEnd[RunTasks]] = []
        self.clock = SetClock()
        filling: TaskFilling[RunTasks] = TaskFilling(
            scheduler=self.scheduler, chains=self.chains, owner=self, clock=self.clock
        )
        self.reactions = AttemptReactions(
            filling=filling, owner=self, store=self, counters=AttemptCounters()
        )

    @property
    def workers(self) -> dict[str, WorkerSlot[RunTasks]]:
        return self.scheduler.workers

    def join(self, worker: str, lease: str, processors: int) -> WorkerSlot[RunTasks]:
        slot: WorkerSlot[RunTasks] = WorkerSlot(worker, self.pool, lease, processors)
        self.scheduler.join(slot)
        return slot

    def leave(self, worker: str) -> None:
        self.chains.leave(worker)
        self.scheduler.leave(self.workers[worker])

    def ends(self, lease: str, moment: float | None, speed: float = 1.0) -> None:
        self.scheduler.set_end(lease, moment, speed)

    def assign(
        self, placed: Mapping[int, str], order: Mapping[int, int], in_order: Collection[str] = ()
    ) -> None:
        self.tasks.ready_tasks.assign(placed, order, in_order)

    def drain(self) -> None:
        self.draining = True

    def cancel_at_worker(self, task: int) -> str | None:
        """Name of the worker that must be told to stop a cancelled task."""
        worker = self.cancel(task)
        return None if worker is None else worker.name

    def unplaceable(self, now: float, workers: Iterable[str]) -> UnplaceableTasks:
        return self.misfits(now, [self.workers[name] for name in workers])

    def fill(self, now: float, admit: AdmitTask) -> Assignments[RunTasks]:
        if self.tasks.unchained:
            self.chains.begin(self.tasks.unchained, now)
            self.tasks.unchained.clear()
        if self.draining or not self.tasks.ready:
            return []
        self.scheduler.enlist(self)
        given = self.scheduler.fill(self.pool, now, per_task=admit)
        self.chains.extend(given, now, admit)
        return given

    def claim(
        self, worker: str, room: int, now: float, admit: AdmitTask
    ) -> list[WorkerClaim[RunTasks]]:
        if self.draining or not self.tasks.ready:
            return []
        self.scheduler.enlist(self)
        return self.scheduler.claim(self.workers[worker], room, now, per_task=admit)

    def to_ask_back(self, now: float) -> list[tuple[str, int]]:
        if self.draining:
            return []
        return [(worker.name, count) for worker, count in to_take_back(self._pool, now)]

    def finish(
        self, worker: str, outcome: Outcome, now: float, *, hold: bool = False
    ) -> RetryVerdict | None:
        """What becomes of a task after a report; None: the report was dropped."""
        claim = self.scheduler.claims.get(outcome.task)
        if claim is not None:
            claim.worker.joined_at = (
                -math.inf
            )  # the tests' times are no moments, only how long it took
        self.clock.time, known = now, len(self.recorded)
        told = replace(outcome, start=outcome.start - outcome.end, end=0.0)
        self.reactions.reported(self.workers.get(worker), [told])
        if len(self.recorded) == known:
            return None
        end = self.recorded[-1]
        if not hold:
            self.reactions.try_again([end])
            if end.state == SUCCEEDED:
                self.tasks.release(end.task)
        if self.tasks.states[end.task] == DELAYED:
            return RetryVerdict(retry_at=max(at for at, t in self.tasks._delayed if t == end.task))
        if not end.state and end.task in self.tasks._due:  # it waits, for the record at least
            return RetryVerdict(retry_at=self.tasks._due[end.task])
        return RetryVerdict(end.state or None)

    def give_back(self, worker: str, task: int, attempt: int) -> bool:
        """Whether a worker had a task that it returns unstarted."""
        before = len(self.scheduler.claims)
        self.reactions.returned(self.workers.get(worker), [(task, attempt)])
        return len(self.scheduler.claims) < before

    # As the owner of the tasks, and as their store. Tests fill by hand.

    def uses_up_a_try(self, claim: WorkerClaim[RunTasks], outcome: Outcome) -> bool:
        return True

    def never_began(self, claim: WorkerClaim[RunTasks]) -> None: ...

    def freed(self, instance: RunTasks) -> None: ...

    def may_run(self, pool: str, user: str, now: float) -> float:
        return math.inf

    def admit(self, now: float, task: int, lease: str) -> float:
        return math.inf

    def prepare(self, pool: str) -> bool:
        return False

    def give(self, pool: str, given: Assignments[RunTasks], now: float) -> None: ...

    def recall(self, worker: WorkerSlot[RunTasks], count: int) -> None: ...

    def failed(self, error: BaseException) -> None:
        raise error

    def record(
        self, ends: Sequence[AttemptEnd[RunTasks]], on_durable: OnDurable | None = None
    ) -> None:
        self.recorded.extend(ends)
