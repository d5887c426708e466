"""
Copies of tasks that take long: two attempts of one task at a time, one of which counts.

The first success wins. A copy has a number of its own on the wire, so that a worker tells the two
attempts apart even if it has both, and so that each has its own hold of money. In the journal both
are attempts of the task. Nothing here reads a clock, waits or sends; only runs have copies.
"""

import math
from dataclasses import dataclass
from typing import Generic, Protocol

from msgspec.structs import replace

from bursar.dispatch.journal_records import FAILED_COPY, OUTRUN, AttemptRecord
from bursar.engine.ready_tasks import BITS
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerSlot
from bursar.model.task import Outcome, Status

COPY = 1 << BITS
"""Added to a task's number, it is the number of the task's copy on the wire and in the guard."""

EndedAttempt = tuple[WorkerClaim[Of], Outcome]
"""An attempt with its outcome, which names the task by its number on the wire."""


class CopyOwner(Protocol[Of]):
    """Does for an engine's copies what its tasks without copies do not need."""

    def publish(self, claim: WorkerClaim[Of]) -> str:
        """Publish the outputs of a copy that has succeeded; return why not, empty: done."""

    def keep(self, claim: WorkerClaim[Of], outcome: Outcome) -> None:
        """Make a success durable that is held until the other attempt of its task has ended."""

    def stop(self, claim: WorkerClaim[Of]) -> None:
        """Have a worker stop the attempt that the other attempt of its task has outrun."""


@dataclass(frozen=True, slots=True)
class RaceStep(Generic[Of]):
    """
    Consequences of the end of one of two attempts.

    Parameters
    ----------
    ended
        Attempts that are journalled, and are not the task's result.
    winner
        The attempt whose success is the task's result; None: not known yet, or known before.
    last
        The copy, where both attempts have ended without success: the task is judged now.
    held
        The success of a copy that waits for the end of the other attempt.
    stop
        The attempt that is to be stopped, as the other one has succeeded.
    is_over
        Whether at most one attempt is left, which goes on as if it had never had a copy.
    """

    ended: tuple[EndedAttempt[Of], ...] = ()
    winner: EndedAttempt[Of] | None = None
    last: EndedAttempt[Of] | None = None
    held: EndedAttempt[Of] | None = None
    stop: WorkerClaim[Of] | None = None
    is_over: bool = False


@dataclass(slots=True, eq=False)
class TaskRace(Generic[Of]):
    """
    The two attempts of a task that has a copy.

    Parameters
    ----------
    first, copy
        The attempts; None: it has ended.
    has_files
        Whether the task has outputs, which the worker of a copy leaves in the working directory.
    held
        Success of the copy while the first attempt is being stopped. A worker publishes the outputs
        of a first attempt by itself, so only when that attempt has ended is it known whose outputs
        these are.
    is_won
        Whether the result of the task is decided.
    """

    first: WorkerClaim[Of] | None
    copy: WorkerClaim[Of] | None
    has_files: bool
    held: EndedAttempt[Of] | None = None
    is_won: bool = False

    @property
    def running(self) -> list[WorkerClaim[Of]]:
        """Attempts that workers have."""
        return [claim for claim in (self.first, self.copy) if claim is not None]

    def end(self, claim: WorkerClaim[Of], outcome: Outcome) -> RaceStep[Of]:
        """Take in the end of one of the attempts, and decide what follows."""
        is_copy = claim is self.copy
        if is_copy:
            self.copy = None
        else:
            self.first = None
        other, ended = self.first or self.copy, (claim, outcome)
        if self.is_won:
            return RaceStep(ended=(_outrun(ended),), is_over=True)
        if outcome.status is Status.SUCCEEDED:
            if is_copy and other is not None and self.has_files:
                self.held = ended
                return RaceStep(held=ended, stop=other)
            self.is_won = True
            lost = () if self.held is None else (_outrun(self.held),)
            return RaceStep(ended=lost, winner=ended, stop=other, is_over=other is None)
        if self.held is not None:
            held, self.held = self.held, None
            return RaceStep(ended=(ended,), winner=held, is_over=True)
        if other is None:  # only the copy ends last without success: see the next line
            return RaceStep(last=ended, is_over=True)
        return RaceStep(ended=(_without_a_try(ended) if is_copy else ended,), is_over=is_copy)


def failed_publishing(step: RaceStep[Of], problem: str) -> RaceStep[Of]:
    """Return what follows when the outputs of the winner, a copy, cannot be published."""
    assert step.winner is not None
    claim, outcome = step.winner
    failed = replace(outcome, status=Status.FAILED, reason=problem)
    return RaceStep(ended=step.ended, last=(claim, failed), is_over=True)


def _outrun(ended: EndedAttempt[Of]) -> EndedAttempt[Of]:
    """Return an attempt that ended after the other one of its task had succeeded."""
    claim, outcome = ended
    # Also one that succeeded: a task has one success in the journal.
    return claim, replace(outcome, status=Status.CANCELLED, reason=OUTRUN, value=b"")


def _without_a_try(ended: EndedAttempt[Of]) -> EndedAttempt[Of]:
    """Return the failure of a copy as it is journalled: cancelled, which uses up no try."""
    claim, outcome = ended
    # Also of one that was stopped: its number is higher than that of the attempt that decides.
    reason = f"{FAILED_COPY}{outcome.reason or outcome.status}"
    return claim, replace(outcome, status=Status.CANCELLED, reason=reason)


def judged_copy(ended: EndedAttempt[Of], *, is_final: bool) -> EndedAttempt[Of]:
    """Return a copy that ended after the first attempt had failed, as it is journalled."""
    claim, outcome = ended
    if not is_final:
        return _without_a_try(ended)
    if outcome.status is Status.CANCELLED:
        reason = f"no try is left, and the copy was stopped: {outcome.reason}"
        return claim, replace(outcome, status=Status.FAILED, reason=reason)
    return ended


def may_have_copy(claim: WorkerClaim[Of]) -> bool:
    """Whether a task that a worker runs may have a copy, as far as the engine is concerned."""
    tasks = claim.instance.tasks
    return not (
        claim.number & COPY
        or claim.recalled
        or claim.withheld
        or claim.after
        # What follows a task at such a worker has been given to the worker already.
        or claim.worker.takes_followers
        or claim.task in tasks.doomed
    )


def claim_copy(
    scheduler: TaskScheduler[Of],
    first: WorkerClaim[Of],
    worker: WorkerSlot[Of],
    now: float,
    seconds: float,
) -> WorkerClaim[Of]:
    """Claim a task once more, for a worker with room; ``seconds``: the copy may run."""
    tasks, task = first.instance.tasks, first.task
    # Numbers of attempts go on: an attempt is a primary key of the journal.
    attempt = max(first.attempt, tasks.attempts.get(task, 0)) + 1
    tasks.attempts[task] = attempt
    limit = scheduler.limit_of(tasks, task)
    number = first.number | COPY
    claim = scheduler.claims[number] = WorkerClaim(
        first.instance,
        task,
        number,
        attempt,
        worker,
        first.processors,
        first.estimate,
        now,
        now + min(first.estimate, limit),
        0.0,
        min(seconds, limit),
        memory=worker.memory_for(tasks, task),
        resources=tasks.ready_tasks.bucket_of(task).resources,
    )
    worker.hold((claim,))
    return claim


def restored_race(
    instance: Of, record: AttemptRecord, first: WorkerClaim[Of] | None, *, has_files: bool
) -> TaskRace[Of]:
    """Return the race of a task whose copy has succeeded in an earlier life of the engine."""
    outcome = record.outcome
    number, processors = outcome.task | COPY, instance.tasks.processors[outcome.task]
    # Its worker may be gone; only the place counts.
    place = WorkerSlot[Of]("", "", record.lease, processors, site=record.site)
    copy = WorkerClaim(
        instance,
        outcome.task,
        number,
        outcome.attempt,
        place,
        processors,
        math.inf,
        outcome.start,
        outcome.end,
        0.0,
        math.inf,
    )
    return TaskRace(first, None, has_files, held=(copy, replace(outcome, task=number)))
