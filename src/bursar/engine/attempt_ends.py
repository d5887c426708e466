"""
What follows from the end of an attempt: the reactions that a run and a service share.

A worker reports outcomes, returns tasks unbegun, or is lost. Each attempt is taken from its worker,
what becomes of its task is decided, and all ends of one report are handed to the store together.
What follows a task starts when the end of the task is durable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol

from msgspec.structs import replace

from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.attendance import OnDurable, let_go
from bursar.engine.filling import TaskFilling
from bursar.engine.held_tasks import blamed_claims
from bursar.engine.instance_tasks import InstanceTasks
from bursar.engine.task_copies import (
    COPY,
    CopyOwner,
    EndedAttempt,
    RaceStep,
    TaskRace,
    failed_publishing,
    judged_copy,
)
from bursar.engine.task_scheduler import LEAST
from bursar.engine.task_states import ABSENT, CANCELLED, CLAIMED, FAILED, SUCCEEDED
from bursar.engine.worker_slots import Of, WorkerClaim, WorkerSlot
from bursar.model.task import Outcome, Status

MOST_COUNTED = 128
"""Numbers that are kept of one task's attempts, at most."""

_LONG = 1e12  # seconds; no time is later, and nothing takes longer


class AttemptEnd(AttemptRecord, Generic[Of], frozen=True, eq=False, gc=False):
    """
    The end of an attempt, from the report of the worker until it is durable.

    A run journals the part that is an :class:`AttemptRecord`; a service makes the line of a result
    page from the rest.

    Parameters
    ----------
    instance, task
        Instance of the task, and the number of the task there.
    state
        Final state of the task; ABSENT: the task runs again; CLAIMED: another attempt goes on.
    attempts
        Number of attempts that counted, this one included.
    host
        Machine on which the task ran; empty: the task never ran.
    processors
        Processors that the attempt held; 0: none.
    is_copy
        Whether the attempt was a copy of another one; see :mod:`bursar.engine.task_copies`.
    """

    instance: Of
    task: int
    state: int
    attempts: int
    host: str
    processors: int
    is_copy: bool = False


class EngineStore(Protocol[Of]):
    """Makes what the engine has decided durable."""

    def record(self, ends: Sequence[AttemptEnd[Of]], on_durable: OnDurable | None = None) -> None:
        """
        Write ends of attempts and what the attempts cost, in one transaction; never wait.

        ``on_durable`` is called once these and all earlier ones are durable.
        """


class AttemptOwner(Protocol[Of]):
    """
    Says what a run and a service do differently with attempts.

    Attributes
    ----------
    records_attempts
        Whether all is recorded that began, and nothing else, as a run does. Else what has ended a
        task is recorded as well if it never began.
    """

    records_attempts: bool

    def uses_up_a_try(self, claim: WorkerClaim[Of], outcome: Outcome) -> bool:
        """Whether an attempt that failed by its worker's own times counts as a failure."""

    def never_began(self, claim: WorkerClaim[Of]) -> None:
        """Give up what was set aside for an attempt that has not begun."""

    def freed(self, instance: Of) -> None:
        """Note that a worker has given up a task of a destroyed instance."""


@dataclass(slots=True)
class AttemptCounters:
    """
    Counts of attempts, for metrics.

    Parameters
    ----------
    lost
        Attempts whose worker was lost.
    retried
        Lost or failed attempts after which the task waits again, with one try used up.
    dropped
        Outcomes of attempts that the worker was not given, or does not have any more.
    """

    lost: int = 0
    retried: int = 0
    dropped: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class AttemptReactions(Generic[Of]):
    """
    Takes in what becomes of the attempts that workers have.

    Parameters
    ----------
    filling
        Gives out the tasks that run again, and fills workers that may have room for tasks.
    copies
        Publishes and stops what copies need; None: no task has a copy.
    races
        Tasks with a copy, by number.
    """

    filling: TaskFilling[Of]
    owner: AttemptOwner[Of]
    store: EngineStore[Of]
    counters: AttemptCounters
    copies: CopyOwner[Of] | None = None
    races: dict[int, TaskRace[Of]] = field(default_factory=dict)

    def reported(
        self,
        worker: WorkerSlot[Of] | None,
        outcomes: Sequence[Outcome],
        on_durable: OnDurable | None = None,
    ) -> None:
        """
        Take in a worker's own report of attempts, and learn how long its tasks take.

        Parameters
        ----------
        worker
            None: one that is gone, or was never there.
        on_durable
            Called once all outcomes are durable, those recorded earlier included.
        """
        claims, now = self.filling.scheduler.claims, self.filling.clock.now()
        ends: list[AttemptEnd[Of]] = []
        mine: list[Outcome] = []
        for outcome in outcomes:
            claim = claims.get(outcome.task)
            # Late: the attempt was given up, or its outcome was recorded, and its acknowledgement
            # lost. Dropped but acknowledged below, else the worker would repeat it for ever.
            if claim is None or claim.worker is not worker or claim.attempt != outcome.attempt:
                self.counters.dropped += 1
            else:
                mine.append(self._end(claim, outcome, now, ends, is_repeatable=True))
        # Even with no ends: the acknowledgement waits until what was recorded before is durable,
        # which may be the outcome that is repeated here.
        if ends or on_durable is not None:
            self.store.record(ends, on_durable)
        if worker is not None and mine:
            worker.prefetch.learn(mine)
            self._rested(worker, now)

    def failed(self, worker: WorkerSlot[Of], outcome: Outcome) -> None:
        """Take in the end of an attempt of which the worker never heard."""
        claim = self.filling.scheduler.claims.get(outcome.task)
        if claim is not None and claim.worker is worker and claim.attempt == outcome.attempt:
            now, ends = self.filling.clock.now(), []  # type: float, list[AttemptEnd[Of]]
            self._end(claim, outcome, now, ends)
            self.store.record(ends)
            self._rested(worker, now)

    def returned(self, worker: WorkerSlot[Of] | None, jobs: Sequence[tuple[int, int]]) -> None:
        """Take back jobs, each a task and an attempt, that a worker returned unstarted, if any."""
        if worker is not None:
            worker.prefetch.returned(len(jobs))
            self.take_back(worker, jobs)

    def take_back(self, worker: WorkerSlot[Of], jobs: Iterable[tuple[int, int]]) -> None:
        """Have jobs run elsewhere that have not begun at a worker, the last first."""
        ends: list[AttemptEnd[Of]] = []
        now = self.filling.clock.now()
        # The last come first, and each goes to the front of the queue: so their order is restored.
        for number, attempt in jobs:
            claim = self.filling.scheduler.claims.get(number)
            # A worker may name jobs that it gave back before, or attempts that were never its own.
            if claim is not None and claim.worker is worker and claim.attempt == attempt:
                self._give_up(claim, now, ends, has_left=False)
        if ends:
            self.store.record(ends)
        self._rested(worker, now)

    def lost(
        self,
        worker: WorkerSlot[Of],
        claims: Sequence[WorkerClaim[Of]],
        reason: str,
        *,
        counts: bool = True,
    ) -> None:
        """
        End attempts that were lost with their worker, or on the way to it.

        Parameters
        ----------
        counts
            Whether those that can have been running use up a try each.
        """
        now = self.filling.clock.now()
        blamed = blamed_claims(worker, claims) if counts else ()
        ends: list[AttemptEnd[Of]] = []
        for claim in reversed(claims):  # so that the first comes first again
            self.counters.lost += 1
            if claim in blamed:
                self._end(claim, outcome_without_worker(claim, now, reason), now, ends)
            else:
                self._give_up(claim, now, ends, has_left=True)
        if ends:
            self.store.record(ends)

    def try_again(self, ends: Iterable[AttemptEnd[Of]]) -> None:
        """Let tasks run again, now or after a delay, whose last attempts are durable."""
        now = self.filling.clock.now()
        for end in ends:
            if end.state == ABSENT:
                end.instance.tasks.recorded(end.task, now)
                self.filling.again(end.instance)

    def _end(
        self,
        claim: WorkerClaim[Of],
        reported: Outcome,
        now: float,
        ends: list[AttemptEnd[Of]],
        *,
        is_repeatable: bool = False,
    ) -> Outcome:
        """
        End an attempt and decide what becomes of its task; return the outcome as it is believed.

        Parameters
        ----------
        is_repeatable
            Whether a worker has reported the outcome, and may report it again.
        """
        instance, task, worker = claim.instance, claim.task, claim.worker
        tasks, status = instance.tasks, reported.status
        # The journal's time of a run may be ahead of the time of day, by which its workers go.
        is_run = self.owner.records_attempts
        since = worker.joined_at if is_run else claim.given
        outcome = believable(reported, since, now, has_just_ended=is_run)
        seconds = outcome.end - outcome.start
        is_lost = status is Status.LOST
        self.filling.scheduler.release(claim, LEAST if is_lost or seconds < LEAST else seconds)
        if worker.takes_followers:
            self.filling.chains.forget(claim)
        if self.races and (race := self.races.get(claim.task)) is not None:
            counts = status is not Status.CANCELLED and self.owner.uses_up_a_try(claim, reported)
            self._end_in_race(race, claim, outcome, now, ends, counts=counts)
            return outcome
        # Nearly all instances have none of either.
        failed = attempts_failed(tasks, task) if tasks.losses or tasks.failures else 0
        state: int | None
        is_free = is_lost  # nobody pays for what a loss has spoilt
        if status is Status.SUCCEEDED and not instance.destroyed:
            state = SUCCEEDED
            # Only from successes: a failure may come at once and says nothing of how long a task
            # takes.
            tasks.durations.learn(claim.estimate, seconds, worker.speed)
            # Not judged: a call for each of a million results is 3 % of what a result takes. It
            # counts even of a task that was to be cancelled: its work is done and paid for.
            if tasks.doomed:
                tasks.doomed.discard(task)
            tasks.move(task, tasks.state_of_success)
        elif instance.destroyed:  # what it used is charged all the same
            state = CANCELLED
            self._free(instance, task)
        else:
            counts = is_lost or (
                status is not Status.CANCELLED and self.owner.uses_up_a_try(claim, reported)
            )
            # Held: no task is tried again before its last attempt is durable, or the next life
            # would adopt that one and drop the outcome of the other.
            state = tasks.judge(task, status, now, counts=counts, hold=True).state
            if self.owner.records_attempts:
                # Its copy may have had the number after.
                tasks.attempts[task] = max(claim.attempt, tasks.attempts.get(task, 0))
            elif state is None and is_repeatable:
                # Also if no try was used up: the worker may bring the attempt back to the next
                # life, which must not take it for one that goes on.
                known = tasks.counted.get(task, ())
                tasks.counted[task] = (*known, claim.attempt)[-MOST_COUNTED:]
            if state is None:
                self.counters.retried += counts
                is_free |= not counts  # taken from the task without a fault of the task
            else:
                tasks.end(task, state)
                if is_lost and not self.owner.records_attempts:
                    outcome = _told_of_loss(outcome, state, tasks.losses.get(task, 0))
        ends.append(
            AttemptEnd(
                outcome,
                state is not None,
                worker.site,
                worker.lease,
                instance,
                task,
                state or ABSENT,
                failed + 1,
                worker.host,
                0 if is_free else claim.processors,
            )
        )
        return outcome

    def _end_in_race(
        self,
        race: TaskRace[Of],
        claim: WorkerClaim[Of],
        outcome: Outcome,
        now: float,
        ends: list[AttemptEnd[Of]],
        *,
        counts: bool,
    ) -> None:
        """
        End one of two attempts of a task.

        Parameters
        ----------
        counts
            Whether a failure uses up a try; that of a copy never does.
        """
        tasks, task = claim.instance.tasks, claim.task
        tasks.attempts[task] = max(claim.attempt, tasks.attempts.get(task, 0))
        is_success = outcome.status is Status.SUCCEEDED
        if counts and not is_success and claim is race.first and not race.is_won:
            # Not judged: the task has not failed while its copy runs.
            tasks.failures[task] = tasks.failures.get(task, 0) + 1
        self._follow(race, claim.instance, task, race.end(claim, outcome), now, ends)

    def decide_held(self, race: TaskRace[Of], instance: Of, task: int) -> None:
        """Let the held success of a copy count whose other attempt was cut off by a kill."""
        assert race.held is not None
        held, race.held, race.is_won = race.held, None, True
        ends: list[AttemptEnd[Of]] = []
        now = self.filling.clock.now()
        self._follow(race, instance, task, RaceStep(winner=held), now, ends)
        self.store.record(ends)

    def _follow(
        self,
        race: TaskRace[Of],
        instance: Of,
        task: int,
        step: RaceStep[Of],
        now: float,
        ends: list[AttemptEnd[Of]],
    ) -> None:
        """Carry out what follows from the end of one of two attempts."""
        assert self.copies is not None
        tasks = instance.tasks
        if step.winner is not None and race.has_files and step.winner[0].number & COPY:
            problem = self.copies.publish(step.winner[0])
            step = failed_publishing(step, problem) if problem else step
        ends += [_end_of(ended, CLAIMED) for ended in step.ended]
        if step.winner is not None:
            winner, won = step.winner
            tasks.durations.learn(winner.estimate, won.end - won.start, winner.worker.speed)
            tasks.doomed.discard(task)
            tasks.move(task, tasks.state_of_success)
            ends.append(_end_of(step.winner, SUCCEEDED))
        elif step.last is not None:
            verdict = tasks.judge(task, Status.CANCELLED, now, counts=False, hold=True)
            state = verdict.state
            if state is not None:
                tasks.end(task, state)
            last = judged_copy(step.last, is_final=state == FAILED)
            ends.append(_end_of(last, state or ABSENT))
        if step.is_over:
            self.races.pop(task, None)
        if step.held is not None:
            self.copies.keep(*step.held)
        if step.stop is not None:
            self.copies.stop(step.stop)

    def _give_up(
        self, claim: WorkerClaim[Of], now: float, ends: list[AttemptEnd[Of]], *, has_left: bool
    ) -> None:
        """
        Have a task run elsewhere whose attempt has not begun, as far as is known.

        Parameters
        ----------
        has_left
            Whether the attempt's number is used up, in case that the worker runs it yet.
        """
        instance, task = claim.instance, claim.task
        tasks = instance.tasks
        if self.races and task in self.races:
            stopped = outcome_without_worker(claim, now, "it had not begun", Status.CANCELLED)
            self._end(claim, stopped, now, ends)
            return
        self.filling.scheduler.release(claim, 0.0)
        if claim.worker.takes_followers:
            self.filling.chains.forget(claim)
        if instance.destroyed:
            self._free(instance, task)
            return
        failed = attempts_failed(tasks, task)
        if has_left:
            state = tasks.judge(task, Status.LOST, now, counts=False).state
            if self.owner.records_attempts:
                tasks.attempts[task] = max(claim.attempt, tasks.attempts.get(task, 0))
        else:
            state = CANCELLED if task in tasks.doomed else None
            tasks.doomed.discard(task)
            if state is None:
                tasks.requeue(task)
        self.owner.never_began(claim)
        if state is None:
            self.filling.again(instance)
            return
        tasks.end(task, state)
        if not self.owner.records_attempts:
            outcome = outcome_without_worker(claim, now, "cancelled", Status.CANCELLED)
            worker = claim.worker
            ends.append(
                AttemptEnd(
                    outcome,
                    True,
                    worker.site,
                    worker.lease,
                    instance,
                    task,
                    state,
                    failed + 1,
                    worker.host,
                    0,
                )
            )

    def _free(self, instance: Of, task: int) -> None:
        instance.tasks.move(task, CANCELLED)
        self.owner.freed(instance)

    def _rested(self, worker: WorkerSlot[Of], now: float) -> None:
        """Note that a worker has given up tasks, and since when that worker is idle."""
        if worker.is_idle:
            worker.idle_since = now
            let_go(worker)
        self.filling.hurry(worker.pool)


def _end_of(ended: EndedAttempt[Of], state: int) -> AttemptEnd[Of]:
    """Return the end of one of two attempts, with the state of its task."""
    claim, outcome = ended
    worker, instance, task = claim.worker, claim.instance, claim.task
    return AttemptEnd(
        replace(outcome, task=task),  # without the mark of a copy
        state not in (ABSENT, CLAIMED),
        worker.site,
        worker.lease,
        instance,
        task,
        state,
        attempts_failed(instance.tasks, task) + 1,
        worker.host,
        claim.processors,
        bool(claim.number & COPY),
    )


def _told_of_loss(outcome: Outcome, state: int, losses: int) -> Outcome:
    """Return the outcome of a task that ends with a lost attempt, as its owner is told."""
    if state == CANCELLED:
        return replace(outcome, status=Status.CANCELLED, reason="cancelled")
    reason = outcome.reason or "lost"
    if losses > 1:
        reason = f"{reason}, as in {losses} attempts"
    return replace(outcome, reason=reason)


def attempts_failed(tasks: InstanceTasks, task: int) -> int:
    """Return how many attempts of a task have failed or were lost so far."""
    return tasks.losses.get(task, 0) + tasks.failures.get(task, 0)


def believable(
    outcome: Outcome, given: float, now: float, *, has_just_ended: bool = False
) -> Outcome:
    """
    Return an outcome whose numbers make sense, and whose times lie between two moments of ours.

    The host's clock may be wrong, and a worker may report any times: no worker's word makes a task
    dearer than the time for which the worker had the task. How long the attempt took is kept, as
    far as there was time for that, since a clock that is wrong by minutes still measures seconds
    well.

    Parameters
    ----------
    given, now
        Time before which the attempt cannot have begun, and the present, seconds since the epoch.
    has_just_ended
        Whether an attempt whose times cannot have been has just ended; else it is moved no further
        than it must be, since an outcome may come late.
    """
    # Nearly all; false for NaN and infinities, too, which would spoil every sum that they enter.
    if (
        given <= outcome.start <= outcome.end <= now
        and 0.0 <= outcome.user_seconds < _LONG
        and 0.0 <= outcome.system_seconds < _LONG
        and outcome.stdout_size >= 0
        and outcome.stderr_size >= 0
    ):
        return outcome
    seconds = min(seconds_told(outcome), max(0.0, now - given))
    began = outcome.start if 0.0 <= outcome.start < _LONG else given
    latest = now - seconds
    is_within = given <= outcome.start <= outcome.end <= now
    if outcome.end > now or (has_just_ended and not is_within):
        start = latest
    else:
        start = min(max(began, given), latest)
    return replace(
        outcome,
        start=start,
        end=now if start == latest else start + seconds,
        user_seconds=_within(outcome.user_seconds),
        system_seconds=_within(outcome.system_seconds),
        stdout_size=max(0, outcome.stdout_size),
        stderr_size=max(0, outcome.stderr_size),
    )


def seconds_told(outcome: Outcome) -> float:
    """Return how long an attempt took by its worker's clock; 0 where that makes no sense."""
    return _within(outcome.end - outcome.start)


def _within(seconds: float) -> float:
    return seconds if 0.0 <= seconds < _LONG else 0.0


def outcome_without_worker(
    claim: WorkerClaim[Of], now: float, reason: str, status: Status = Status.LOST
) -> Outcome:
    """Return the outcome of an attempt for which no worker reported one."""
    return Outcome(
        task=claim.number,
        attempt=claim.attempt,
        status=status,
        start=now,
        end=now,
        reason=reason,
    )
