"""A run's queue with the reactions to what workers say, and a store that forgets."""

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bursar.engine.attempt_ends import AttemptCounters, AttemptEnd, AttemptReactions
from bursar.engine.attendance import OnDurable
from bursar.engine.instance_tasks import RetryVerdict
from bursar.engine.loop_clock import EngineTimer
from bursar.engine.task_queue import RunTasks, TaskQueue
from bursar.engine.task_states import DELAYED, SUCCEEDED
from bursar.engine.worker_slots import WorkerClaim, WorkerSlot
from bursar.model.campaign import Retry
from bursar.model.task import Outcome


class SetClock:
    """Tells the time that the test sets."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def soon(self, callback: Callable[[], None]) -> None:
        raise AssertionError("nothing is called back")

    def at(self, moment: float, callback: Callable[[], None]) -> EngineTimer:
        raise AssertionError("nothing is called back")


class QueueRig(TaskQueue):
    """
    A queue whose attempts end as a run's do.

    ``recorded`` has what was recorded.
    """

    records_attempts = True

    def __init__(self, retry: Retry, again_at: str | None = None) -> None:
        super().__init__(retry, again_at)
        self.recorded: list[AttemptEnd[RunTasks]] = []
        self.clock = SetClock()
        self.reactions = AttemptReactions(
            scheduler=self.scheduler,
            chains=self.chains,
            owner=self,
            store=self,
            clock=self.clock,
            counters=AttemptCounters(),
        )

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
        return RetryVerdict(end.state or None)

    def give_back(self, worker: str, task: int, attempt: int) -> bool:
        """Whether a worker had a task that it returns unstarted."""
        before = len(self.scheduler.claims)
        self.reactions.returned(self.workers.get(worker), [(task, attempt)])
        return len(self.scheduler.claims) < before

    # As the owner of the tasks, and as their store.

    def uses_up_a_try(self, claim: WorkerClaim[RunTasks], outcome: Outcome) -> bool:
        return True

    def never_began(self, claim: WorkerClaim[RunTasks]) -> None: ...

    def again(self, instance: RunTasks) -> None: ...

    def freed(self, instance: RunTasks) -> None: ...

    def has_room(self, worker: WorkerSlot[RunTasks]) -> None: ...

    def record(
        self, ends: Sequence[AttemptEnd[RunTasks]], on_durable: OnDurable | None = None
    ) -> None:
        self.recorded.extend(ends)
