"""Giving out work: which workers get tasks now, and which tasks come back from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol

from bursar.engine.loop_clock import EngineClock, EngineTimer
from bursar.engine.pool_demand import to_take_back
from bursar.engine.task_chains import TaskChains
from bursar.engine.task_scheduler import Assignments, TaskScheduler
from bursar.engine.worker_slots import Of, WorkerSlot
from bursar.model.money import Refusal

_ASK_AGAIN = 0.2  # seconds until admission is asked again that refused for now


class WorkAdmission(Protocol):
    """
    Says whose tasks may start; a run's guard of the budget, or a service's billing.

    Attributes
    ----------
    admit
        Returns for how many seconds a task may run on a lease from a moment on, or why that task
        may not start; None: only users are asked about.
    """

    @property
    def admit(self) -> Callable[[float, int, str], float | Refusal] | None: ...

    def may_run(self, pool: str, user: str, now: float) -> float | Refusal:
        """Return for how many seconds a task may run in a pool, or why no task of the user may."""


class WorkSender(WorkAdmission, Protocol[Of]):
    """Admits tasks, and sends what was decided to workers."""

    def prepare(self, pool: str) -> bool:
        """Make a pool ready to be filled; False: its workers get nothing."""

    def give(self, pool: str, given: Assignments[Of], now: float) -> None:
        """Send tasks that workers of a pool were given; there may be none."""

    def recall(self, worker: WorkerSlot[Of], count: int) -> None:
        """Ask a worker to return tasks that it has not begun, the last first."""

    def failed(self, error: BaseException) -> None:
        """Stop after an internal error."""


@dataclass(slots=True, eq=False, kw_only=True)
class TaskFilling(Generic[Of]):
    """
    Fills the workers of pools, once for each burst of events, and when the time has come.

    Parameters
    ----------
    chains
        Tasks that were given ahead of those that they follow.
    is_open
        Whether tasks are given out.
    """

    scheduler: TaskScheduler[Of]
    chains: TaskChains[Of]
    owner: WorkSender[Of]
    clock: EngineClock
    is_open: bool = True
    _dirty: dict[str, None] = field(default_factory=dict)
    _is_scheduled: bool = False
    _sleeping: dict[int, Of] = field(default_factory=dict)  # with tasks that start later
    _asks_again: float = math.inf
    _waker: EngineTimer | None = None

    def close(self) -> None:
        """Give out no more tasks."""
        self.is_open = False
        self._sleeping.clear()
        self._asks_again = math.inf
        self._set_waker()

    def drop(self, instance: Of) -> None:
        """Give out no more tasks of an instance that is destroyed."""
        self.scheduler.drop(instance)
        if self._sleeping.pop(instance.number, None) is not None:
            self._set_waker()

    def again(self, instance: Of) -> None:
        """Have the tasks of an instance given out that are ready, now or at a later time."""
        tasks = instance.tasks
        if tasks.ready and not instance.destroyed:
            self.scheduler.enlist(instance)
            self.hurry(instance.pool)
        if self.is_open and tasks.next_wake() is not None:
            self._sleeping[instance.number] = instance
            self._set_waker()

    def hurry(self, pool: str) -> None:
        """Fill the workers of a pool once the present burst of events is taken in."""
        self._dirty[pool] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            # One fill for a whole burst: what all frames of this turn of the loop brought is
            # known, and each worker gets one frame instead of one for each outcome.
            self.clock.soon(self._fill)

    def refused_for_now(self) -> None:
        """Ask again soon: admission refused a task, and does not say when money comes free."""
        self._asks_again = self.clock.now() + _ASK_AGAIN

    def _fill(self) -> None:
        self._is_scheduled = False
        dirty, self._dirty = self._dirty, {}
        if not self.is_open:
            return
        now, asked_again, self._asks_again = self.clock.now(), self._asks_again, math.inf
        try:
            for pool in dirty:
                if self.owner.prepare(pool):
                    self._fill_pool(pool, now)
        # In a callback of the loop nobody would hear of it; the engine must stop instead.
        except Exception as error:
            self.owner.failed(error)
        if self._asks_again != asked_again:
            self._set_waker()

    def _fill_pool(self, pool: str, now: float) -> None:
        owner = self.owner
        admit = None if owner.admit is None else partial(owner.admit, now)
        given = self.scheduler.fill(pool, now, lambda user: owner.may_run(pool, user, now), admit)
        if admit is not None:
            self.chains.extend(given, now, admit)
        owner.give(pool, given, now)
        # Where money is refused for now, what comes back would stand still. A task waits behind
        # another: with a single claim, as of a caller that waits for each result, none does.
        if self._asks_again == math.inf and len(self.scheduler.claims) > 1:
            for worker, count in to_take_back(self.scheduler.pools.get(pool), now):
                worker.prefetch.asked(count)
                owner.recall(worker, count)

    def wake(self) -> None:
        """Let tasks start whose time has come; called by a timer."""
        now = self.clock.now()
        try:
            for number, instance in list(self._sleeping.items()):
                del self._sleeping[number]
                instance.tasks.wake(now)
                self.again(instance)
            if self._asks_again <= now:
                self._asks_again = math.inf
                for pool in self.scheduler.pools:
                    self.hurry(pool)
            self._set_waker()
        except Exception as error:  # in a callback of the loop nobody else would hear of it
            self.owner.failed(error)

    def _set_waker(self) -> None:
        """Set the timer of what time brings about, in place of an earlier one."""
        if self._waker is not None:
            self._waker.cancel()
            self._waker = None
        due = [instance.tasks.next_wake() for instance in self._sleeping.values()]
        moment = min((at for at in due if at is not None), default=math.inf)
        moment = min(moment, self._asks_again)
        if moment != math.inf:
            self._waker = self.clock.at(moment, self.wake)
