"""The tasks of a run: one owner, one instance and one pool, whose workers have leases."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.pool_demand import UnplaceableTasks, demand_of, misfits
from bursar.engine.task_chains import TaskChains
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.task_states import (
    CANCELLED,
    CLAIMED,
    DELAYED,
    FAILED,
    HELD,
    READY,
    REFUSED,
    SKIPPED,
    SUCCEEDED,
    TIMED_OUT,
    WAITING,
)
from bursar.engine.worker_slots import WorkerPool, WorkerSlot
from bursar.model.campaign import Retry, spare_parents
from bursar.model.provisioning import ProcessorDemand
from bursar.model.task import Outcome, Status, Task


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Number of tasks in each state; ``waiting`` counts all that have not started."""

    total: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    skipped: int
    cancelled: int
    refused: int


_NEVER = (-math.inf, -math.inf)

RetriedFailures = bool | frozenset[int]
"""Tasks that failed for good and are tried again: all, none, or those with these numbers."""


def is_retried(choice: RetriedFailures, task: int) -> bool:
    """Return whether a task that failed for good is to be tried again."""
    return choice if isinstance(choice, bool) else task in choice


class RunTasks:
    """
    The tasks of a run, which are one instance of one owner, and the workers that have them.

    It is a :class:`bursar.engine.worker_slots.QueuedInstance`.

    Parameters
    ----------
    retry
        Rules for tries after failures.
    again_at
        Place to which tasks go that will run again, whatever place they were bound to;
        None: they stay bound to it.

    Attributes
    ----------
    tasks
        States, dependencies, retries and delays of the tasks.
    chains
        Tasks that were given ahead of those that they follow.
    scheduler
        Workers, and the claims of each.
    draining
        Whether no more tasks are given out.
    gathering
        Parents of each task that runs although some did not succeed, with what each makes.
    """

    number = 0
    user = pool = ""
    destroyed = False

    def __init__(self, retry: Retry, again_at: str | None = None) -> None:
        self.tasks = InstanceTasks(retry, again_at=again_at, by_length=True)
        self.scheduler: TaskScheduler[RunTasks] = TaskScheduler()
        self.chains = TaskChains(self.scheduler)
        self.owed = 0.0
        self.draining = False
        self.gathering: dict[int, dict[int, tuple[str, ...]]] = {}

    def extend(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        order: Sequence[int] | None = None,
        placed: Sequence[str] | None = None,
    ) -> range:
        """
        Add tasks to the queue.

        Parameters
        ----------
        parents
            Parents of each task, as numbers in the queue; those that have succeeded must have been
            released.
        order
            Priority of each, smaller first; None: as listed.
        placed
            Name of the lease whose processors run each; None: any.

        Returns
        -------
        range
            Numbers of the new tasks.
        """
        columns, first = self.tasks, len(self.tasks)
        numbers = range(first, first + len(tasks))
        columns.grow(first + len(tasks))
        columns.enter(
            numbers,
            [task.processors for task in tasks],
            [math.inf if task.runtime is None else task.runtime for task in tasks],
            placed,
            {n: task.memory for n, task in zip(numbers, tasks, strict=True) if task.memory},
            {
                n: tuple(sorted(task.resources.items()))
                for n, task in zip(numbers, tasks, strict=True)
                if task.resources
            },
        )
        for number, task in zip(numbers, tasks, strict=True):
            if task.retries is not None:
                columns.set_tries(number, task.retries + 1)
        if order is not None:
            columns.ready_tasks.set_order(zip(numbers, order, strict=True))
        for number, row in zip(numbers, parents or (), strict=parents is not None):
            spare = spare_parents(len(row), tasks[number - first].needs)
            columns.follow(number, row, spare)
            if spare:
                # Kept by name: tasks are forgotten at their end, to save memory.
                self.gathering[number] = {
                    parent: tuple(file.name for file in tasks[parent - first].outputs)
                    for parent in row
                }
        for number in columns.start(numbers):
            columns.end(number, SKIPPED)
        return numbers

    def restore(
        self,
        attempts: Iterable[Outcome],
        *,
        retry_failed: RetriedFailures = False,
        held: Collection[int] = (),
        unjudged: Collection[int] = (),
    ) -> None:
        """
        Take in the attempts that earlier incarnations journalled, before anything is claimed.

        Parameters
        ----------
        attempts
            All of them, in any order.
        retry_failed
            Tasks that failed for good and are tried again.
        held
            Tasks that workers may still have, which are kept until each is claimed, or let start.
        unjudged
            Tasks that have not failed although no try is left: each is tried once more.
        """
        succeeded: set[int] = set()
        spans: dict[int, tuple[float, float]] = {}  # of successes, where any task gathers
        numbers, failures = self.tasks.attempts, self.tasks.failures
        for outcome in attempts:
            task = outcome.task
            # Numbers of attempts go on where they ended: an attempt is the journal's primary key.
            numbers[task] = max(numbers.get(task, 0), outcome.attempt)
            if outcome.status is Status.SUCCEEDED:
                succeeded.add(task)
                if self.gathering:
                    spans[task] = max(spans.get(task, _NEVER), (outcome.start, outcome.end))
            # A cancelled attempt was cut off by us: it counts for no failure, as in finish().
            elif outcome.status is not Status.CANCELLED and not is_retried(retry_failed, task):
                failures[task] = failures.get(task, 0) + 1
        later = self._gatherers_and_followers()
        self.tasks.restore(succeeded - later, held, partial(self._confirm, later, spans), unjudged)

    def _gatherers_and_followers(self) -> set[int]:
        """Return the tasks that gather, and all that come after one."""
        found, stack = set(self.gathering), list(self.gathering)
        while stack:
            for child in self.tasks.dependencies.children(stack.pop()):
                if child not in found:
                    found.add(child)
                    stack.append(child)
        return found

    def _confirm(self, later: set[int], spans: Mapping[int, tuple[float, float]]) -> None:
        """
        End the tasks that succeeded after or with an incomplete gathering, as far as that holds.

        The success of such a task does not count when one of its parents is tried again, or began
        its success later: what the task made lacks an input that is there now.
        """
        tasks, children = self.tasks, self.tasks.dependencies.children
        stale = {
            child
            for parent, (start, _) in spans.items()
            for child in children(parent)
            if child in later and start > spans.get(child, _NEVER)[1]
        }
        stack = list(later)
        while stack:
            task = stack.pop()
            if task in spans and task not in stale and tasks.states[task] == READY:
                tasks.move(task, SUCCEEDED)
                tasks.release(task)
                stack.extend(child for child in children(task) if child in later)

    def is_at_end(self, task: int) -> bool:
        """Whether a task will not run any more."""
        return self.tasks.states[task] >= SUCCEEDED

    def cancel(self, task: int) -> "WorkerSlot[RunTasks] | None":
        """
        Cancel a task.

        Returns
        -------
        WorkerSlot or None
            The worker that has the task and must be told to stop it; None when the
            task has ended now, or had before.
        """
        claim = self.scheduler.claims.get(task)
        if claim is not None:
            # Its worker decides: it may succeed before the cancellation arrives, and a success
            # counts.
            self.tasks.doomed.add(task)
            return claim.worker
        state = self.tasks.states[task]
        if state == HELD:  # a worker may have it since before a restart
            self.tasks.doomed.add(task)
        elif state < CLAIMED:
            self.tasks.end(task, CANCELLED)
        return None

    @property
    def counts(self) -> TaskCounts:
        """Number of tasks in each state."""
        n = self.tasks.counts
        return TaskCounts(
            total=len(self.tasks),
            waiting=n[HELD] + n[WAITING] + n[READY] + n[DELAYED] + self.chains.count,
            running=n[CLAIMED] - self.chains.count,
            succeeded=n[SUCCEEDED],
            failed=n[FAILED] + n[TIMED_OUT],
            skipped=n[SKIPPED],
            cancelled=n[CANCELLED],
            refused=n[REFUSED],
        )

    def demand(self) -> ProcessorDemand:
        """Return the demand of ready tasks that are bound to no lease, and of tasks to come."""
        found = demand_of(self._pool)
        # A drained queue wants no more processors, however many tasks are left.
        if self.draining:
            return ProcessorDemand(running=found.running)
        n = self.tasks.counts
        return replace(found, later=n[HELD] + n[WAITING] + n[DELAYED] + self.chains.count)

    def misfits(self, now: float, workers: "Iterable[WorkerSlot[RunTasks]]") -> UnplaceableTasks:
        """Count the ready tasks that none of the given workers could take if all were idle."""
        if self.draining:
            return UnplaceableTasks()
        return misfits(self._pool, now, workers)

    @property
    def idle(self) -> bool:
        """
        Whether nothing runs and nothing more will start unless tasks are added.

        Outcomes that are not durable may let something start yet.
        """
        n = self.tasks.counts
        if n[CLAIMED] or n[HELD]:
            return False
        return self.draining or not (n[READY] or n[DELAYED])

    @property
    def _pool(self) -> "WorkerPool[RunTasks]":
        if self.tasks.ready:
            self.scheduler.enlist(self)
        else:
            self.scheduler.rest(self)
        return self.scheduler.pools.get(self.pool) or WorkerPool()
