"""
Giving tasks to a worker ahead of the tasks that they follow, where those are at the same worker.

A worker that keeps the order of tasks itself (another Bursar, which knows what comes after what)
starts a task as soon as its parents have succeeded, without asking here. Until then the task is
*chained*: claimed, and counted on no processor. Tasks with a parent elsewhere wait as ever.
"""

import math
from collections.abc import Iterable
from typing import Generic

from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.ready_tasks import ANYWHERE, BITS
from bursar.engine.task_scheduler import AdmitTask, Assignments, TaskScheduler
from bursar.engine.task_states import WAITING
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerSlot
from bursar.model.money import Refusal

MOST_CHAINED = 4096
"""Tasks that are chained at one worker, at most; the children of others start when they are ready.

One frame or request holds them, and encoding them must not hold the loop for long."""


class TaskChains(Generic[Of]):
    """
    Follows which waiting tasks have all their unfinished parents at one worker.

    Parameters
    ----------
    scheduler
        Makes the claims.
    """

    def __init__(self, scheduler: TaskScheduler[Of]) -> None:
        self._scheduler = scheduler
        # By worker and child: the parents that the worker has.
        self._parents: dict[str, dict[int, set[int]]] = {}

    @property
    def count(self) -> int:
        """Number of chained tasks."""
        workers = self._scheduler.workers
        return sum(len(workers[name].chained) for name in self._parents if name in workers)

    def extend(self, given: Assignments[Of], now: float, admit: AdmitTask) -> None:
        """
        Chain tasks to those that were just claimed, through all generations.

        Parameters
        ----------
        given
            Workers and their new claims, to which those of chained tasks are added, each behind
            its parents.
        """
        for worker, claims in given:
            if worker.takes_followers:
                # The list grows meanwhile: what follows a chained task may be chained, too.
                for claim in claims:
                    claims.extend(self._followers(worker, claim, now, admit))

    def _followers(
        self, worker: WorkerSlot[Of], claim: WorkerClaim[Of], now: float, admit: AdmitTask
    ) -> list[WorkerClaim[Of]]:
        instance, tasks = claim.instance, claim.instance.tasks
        known = self._parents.setdefault(worker.name, {})
        found: list[WorkerClaim[Of]] = []
        for child in tasks.dependencies.children(claim.task):
            parents = known.setdefault(child, set())
            parents.add(claim.task)
            if (
                len(parents) != tasks.dependencies.missing(child)
                or child in tasks.spares  # what it needs is decided here, not at the worker
                or (tasks.groups is not None and child in tasks.groups)  # likewise its turn
                or tasks.states[child] != WAITING
                or len(worker.chained) >= MOST_CHAINED
                or not _may_run(worker, tasks, child, now)
            ):
                continue
            seconds = admit(instance.number << BITS | child, worker.lease)
            if not isinstance(seconds, Refusal):  # else it is asked for again when it is ready
                after = tuple(sorted(parents))
                found.append(
                    self._scheduler.make_claim(instance, child, worker, now, seconds, after)
                )
        return found

    def begin(self, tasks: Iterable[int], now: float) -> None:
        """Count tasks on the processors of their workers: all their parents have succeeded."""
        for task in tasks:
            claim = self._scheduler.claims.get(task)
            if claim is not None:
                claim.worker.unchain(claim, now)

    def forget(self, claim: WorkerClaim[Of]) -> None:
        """Take back a claim that has ended: the worker does not have the task any more."""
        known = self._parents.get(claim.worker.name)
        if known:
            for child in claim.instance.tasks.dependencies.children(claim.task):
                parents = known.get(child)
                if parents is not None:
                    parents.discard(claim.task)
                    if not parents:
                        del known[child]

    def leave(self, worker: str) -> None:
        """Forget a worker."""
        self._parents.pop(worker, None)


def _may_run(worker: WorkerSlot[Of], tasks: InstanceTasks, task: int, now: float) -> bool:
    """Whether a worker may run a task, and has the time for it after all that it has."""
    ready = tasks.ready_tasks
    if (
        tasks.processors[task] > worker.processors
        or ready.bucket_of(task).place not in (ANYWHERE, worker.lease)
        or worker.lease in ready.sequences  # such a lease has a plan to keep
        # Resources are counted when a task is given, and a chained one starts later.
        or ready.bucket_of(task).resources
    ):
        return False
    time_left = worker.time_left(now)
    if time_left == math.inf:
        return True
    expect = tasks.durations.expect
    ahead = worker.work * tasks.durations.stretch + worker.unknown * expect(math.inf)
    return ahead / worker.processors + expect(tasks.estimates[task]) <= time_left
