"""A run being carried out: the journal, the money, the dispatcher and the sites together."""

import asyncio
import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType

import msgspec

from bursar.broker.dynamic_scheduler import ResumeState
from bursar.dispatch.folders import attempt_folder, folder_name, remove_tree
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import (
    AttemptRecord,
    JournalState,
    RunEvent,
    interrupted_attempts,
)
from bursar.dispatch.linux_processes import kill_leftovers
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher, DispatchOptions
from bursar.engine.task_queue import TaskCounts
from bursar.market.guard import BudgetDrain, BudgetEffect, BudgetGuard, BudgetHalt, budget_amount
from bursar.market.lease import Lease
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.errors import BudgetStop, BursarError
from bursar.model.money import Refusal, Transfer, from_micros
from bursar.model.task import Outcome, Status, Task
from bursar.runs.allocation_provisioner import AllocationProvisioner, LeaseTerms, leases_of
from bursar.runs.environment import RunEnvironment, RunWork
from bursar.runs.folder import RunFolder
from bursar.runs.incarnations import BEGIN, END, incarnations_of, split_bookings
from bursar.runs.processor_sharing import ProcessorSharing
from bursar.runs.settlement import LeaseSettlements
from bursar.runs.supply import UNSENT, RunContext, StopCause, TaskBindings
from bursar.supervisor import TaskSupervisor, heard_by_waiter

FORSAKEN = 2.0
"""Seconds without any worker after which a run ends; sites report lost processors sooner."""

BEAT = 5.0
"""Seconds between signs of life in the journal."""


class RunExecution:
    """
    Carries out tasks on leased processors, from the first worker to the last transfer.

    An execution is an asynchronous context: entering opens the journal, starts the
    dispatcher and lets the supply ask for processors; leaving gives back what is left and
    settles what is owed, whatever happened in between.

    Parameters
    ----------
    folder
        The run's folder. Work that an earlier incarnation journalled counts as done.
    work
        Tasks, goal and rules of the run.
    environment
        Sites, what brings their processors, and time.
    currency
        Currency of every amount.
    retry_failed
        Whether tasks that failed for good in an earlier incarnation are tried again.
    on_outcome
        Called with each outcome once it is durable.
    on_start
        Called with tasks that were handed to a worker.
    on_event
        Called with one line for people about each notable event.

    Attributes
    ----------
    past
        Outcomes of earlier incarnations that stand.
    cause, reason
        What stopped the run before its tasks were done, and why; None while nothing has.
    unsettled
        Leases whose cost the sites had not reported when the run ended. Their money stays set
        aside, and the next incarnation asks again.

    Raises
    ------
    InputError
        When another process carries the run out.
    BudgetStop
        When the budget does not even pay the begin of the leases.
    SiteError
        When a site fails.
    """

    def __init__(
        self,
        folder: RunFolder,
        work: RunWork,
        environment: RunEnvironment,
        *,
        currency: str,
        retry_failed: bool = False,
        on_outcome: Callable[[AttemptRecord], None] | None = None,
        on_start: Callable[[Sequence[int]], None] | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder
        self._work = work
        self._environment = environment
        self._supply = environment.supply
        self._currency = currency
        self._tasks = list(work.tasks)
        self._bindings = TaskBindings(self._tasks, environment.sites)
        self._goal = work.goal
        self._retry_failed = retry_failed
        self._on_outcome = on_outcome
        self._on_start = on_start
        self._on_event = on_event
        self._has_ended = False  # sites that are closed after it may still have something to say
        self._last_beat = 0.0
        self._forsaken_since = math.inf
        self._failed: set[str] = set()
        self._succeeded = bytearray(len(self._tasks))
        self.past: list[Outcome] = []
        self._first = 0.0
        self._bookings: dict[str, str] = {}
        self._woken = asyncio.Event()
        self._background = TaskSupervisor(self.fail)
        self._stopping: asyncio.Task[None] | None = None
        self.cause: StopCause | None = None
        self.reason = ""
        self.unsettled: tuple[str, ...] = ()

    async def __aenter__(self) -> "RunExecution":
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        # In threads: what waits for a lock of another process must not hold up the loop.
        self._journal = await asyncio.to_thread(
            RunJournal,
            self._folder.journal_file,
            durable=self._environment.durable,
            notify=self._notify_from_thread,
        )
        try:
            journal = await asyncio.to_thread(self._journal.load)
            incarnations = incarnations_of(journal.events)
            if incarnations and math.isinf(incarnations[-1][1]):
                # Together, and before anything else happens: after a second kill, tasks that had
                # only waited in this incarnation must not pass for attempts of it.
                cut = interrupted_attempts(journal, since=incarnations[-1][0])
                end = RunEvent(journal.last_seen, END, "")
                await asyncio.to_thread(self._journal.commit, cut, events=[end])
                journal = await asyncio.to_thread(self._journal.load)
            for outcome in journal.attempts:
                self._see_folder(outcome)
            # With retry_failed a failure does not stand: the task runs again, and its outcome is
            # not reported before.
            self.past = [
                outcome
                for outcome in journal.outcomes
                if outcome.status is Status.SUCCEEDED or not self._retry_failed
            ]
            await self._begin(journal)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    # While it runs.

    async def finish(self) -> None:
        """
        Wait until every task is at an end, or the run was stopped.

        Raises
        ------
        BursarError
            When the journal cannot be written.
        """
        waiting = self._background.start(self.dispatcher.wait(), on_failure=heard_by_waiter)
        woken = self._background.start(self._woken.wait())
        try:
            while not waiting.done():
                if woken.done():
                    self._woken.clear()
                    woken = self._background.start(self._woken.wait())
                now = self.dispatcher.now()
                # The guard knows when a threshold of the budget is reached by what accrues: to look
                # later would spend beyond it.
                pause = min(
                    self._environment.tick, self.guard.next_tick(now) - now, self._until_wake
                )
                await asyncio.wait(
                    {waiting, woken},
                    timeout=None if math.isinf(pause) else max(pause, 0.0),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                self.tick()
            await waiting
            if self._stopping is not None:
                await self._stopping
        finally:
            waiting.cancel()
            woken.cancel()
        if self.cause is None and self.counts.refused:
            self.cause, self.reason = "budget", self.dispatcher.figures.refusal

    def tick(self) -> None:
        """Check the budget and the workers; to be called a few times a second."""
        now = self.dispatcher.now()
        for effect in self.guard.tick(now):
            self._apply(effect)
        self._sharing.update()
        transfers = self.guard.transfers()
        if transfers:
            self.dispatcher.store.post(transfers)
        if now - self._last_beat >= BEAT:
            self._last_beat = now
            self.dispatcher.store.beat()
        if not self._supply.replaces_workers:
            self._check_workers(now)
        if self.cause is None and self._supply.wake <= self.elapsed:
            self._supply.poll()

    def _check_workers(self, now: float) -> None:
        """
        Stop the run when there has been no worker for some time, and none will come.

        A site's workers are gone some turns of the loop before the run hears of it and asks for
        others, so that a single look proves nothing.
        """
        if self.cause is not None or not self.provision.is_dead:
            self._forsaken_since = math.inf
            return
        # From the first of the looks in a row that found no worker.
        self._forsaken_since = min(now, self._forsaken_since)
        if now - self._forsaken_since >= FORSAKEN:
            self.stop("fault", "no worker is left", grace=0.0)

    def stop(self, cause: StopCause, reason: str, *, grace: float = 5.0) -> None:
        """Start nothing more and stop running tasks; a second call may shorten the grace."""
        # The first cause stays: whatever goes wrong while a run stops is not why it stopped.
        if self.cause is None:
            self.cause, self.reason = cause, reason
            self.notify(reason)
        if self._background.is_closed:  # all that runs has been stopped
            return
        stopping = self._background.start(
            self.dispatcher.stop(reason, grace=grace), on_failure=self._on_stop_failure
        )
        if self._stopping is None:
            self._stopping = stopping

    def fail(self, error: BaseException) -> None:
        """Stop the run because background work has failed."""
        if not isinstance(error, BursarError):
            error = BursarError(f"{type(error).__name__}: {error}")
        self._fault(error)

    def _on_stop_failure(self, error: BaseException) -> None:
        """Make the failure to stop the cause of the end; stopping once more would fail, too."""
        if self.cause != "fault":
            self.cause, self.reason = "fault", f"stopping failed: {error}"
            self.notify(self.reason)

    @property
    def goal(self) -> Goal:
        """The present goal."""
        return self._goal

    def amend(self, goal: Goal, keep: Callable[[], None]) -> Refusal | None:
        """
        Change the goal while the run goes on.

        Parameters
        ----------
        keep
            Called to make the new goal durable, before the goal has any effect.

        Returns
        -------
        Refusal or None
            When more than the new budget is spent or promised already.
        """
        refusal = self.guard.amend(budget_amount(goal.budget), self.dispatcher.now())
        if refusal is not None:
            return refusal
        # After the guard has agreed, and before money moves: after a kill the run resumes with
        # limits that its ledger fits.
        keep()
        self._goal = goal
        self.dispatcher.store.post(self.guard.transfers())
        if self.cause is None:
            self._supply.amend(goal)
        self._woken.set()
        return None

    @property
    def spent(self) -> float:
        """Currency units, what open leases have accrued included."""
        return from_micros(self.guard.spent(self.dispatcher.now()))

    @property
    def rate(self) -> float:
        """Currency units per second that open leases cost."""
        return self.guard.rate(self.dispatcher.now())

    def note(self, kind: str, text: str) -> None:
        """Write an event to the journal."""
        self.dispatcher.store.note(kind, text)

    def submit(self, task: Task) -> int:
        """Add a task without parents; return the number of the task."""
        self._tasks.append(replace(task, steps=()))  # for its limits; a call may be large
        self._succeeded.append(False)
        return self.dispatcher.submit(task)

    def _notify_from_thread(self, message: str) -> None:
        """Pass on a message of the journal, from the writer's thread or while the loop waits."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.notify, message)
        elif self._on_event is not None:  # to journal it would wait for the same lock
            self._on_event(message)

    def notify(self, message: str) -> None:
        """Journal a message while the dispatcher runs, and pass the message to the caller."""
        if hasattr(self, "dispatcher") and not self._has_ended:
            self.dispatcher.store.note("message", message)
        if self._on_event is not None:
            self._on_event(message)

    @property
    def elapsed(self) -> float:
        """Seconds since the first lease of any incarnation of the run."""
        return max(0.0, self.dispatcher.now() - self._first)

    @property
    def counts(self) -> TaskCounts:
        """Number of tasks in each state."""
        return self.dispatcher.figures.counts

    @property
    def _until_wake(self) -> float:
        """Seconds until the supply wants to be asked; infinite for never."""
        return max(0.0, self._supply.wake - self.elapsed)

    # Begin and end.

    async def _begin(self, past: JournalState) -> None:
        goal = self._goal
        if past.events:
            # Before leases of a killed incarnation are settled: what still runs would use
            # processors that nobody pays.
            await asyncio.to_thread(kill_leftovers, self._journal.identity)
        self.guard = BudgetGuard(
            budget_amount(goal.budget),
            limit_of=lambda task: self._tasks[task].wall_limit,
            on_budget=dict(goal.on_budget),
            currency=self._currency,
            rows=past.transfers,
        )
        folder, delay = self._folder, self._environment.delay
        self.dispatcher = Dispatcher(
            self._tasks,
            self._work.parents,
            journal=self._journal,
            guard=self.guard,
            retry=self._work.retry,
            folders=RunPaths(
                root=self._work.root, files=folder.files, work=folder.work, logs=folder.logs
            ),
            run=self._journal.identity,
            past=past.attempts,
            on_outcome=self._took_in,
            on_start=self._on_start,
            options=DispatchOptions(
                # Nothing starts before the supply has sent it somewhere.
                placed=[UNSENT] * len(self._tasks) if self._supply.sends_tasks else None,
                again_at=UNSENT if self._supply.sends_tasks else None,
                delay=None if delay is None else partial(self._bindings.delay_between, delay),
                data=self._environment.data,
                prefetch=self._environment.prefetch,
                keeps_starts=self._environment.durable,
                retry_failed=self._retry_failed,
                last_seen=past.last_seen,
            ),
        )
        self.dispatcher.store.on_full = partial(self._drain, "fault")
        await self.dispatcher.start()
        now = self.dispatcher.now()
        # The guard's clock begins with the dispatcher's, which goes on after the last moment in the
        # journal.
        self.guard.begin(now)
        incarnations = incarnations_of(past.events)
        self._first = incarnations[0][0] if incarnations else now
        self.dispatcher.store.note(BEGIN, "")
        leases = leases_of(past.events)
        self._bookings, missed = split_bookings(past.events, leases, past.last_seen, now)
        self.settlements = LeaseSettlements(
            self._environment.sites,
            self.guard,
            now=self.dispatcher.now,
            note=self._note,
            notify=self.notify,
            on_settled=self._money_is_free,
        )
        left = [lease for lease in leases.values() if lease.id not in self._bookings]
        await self._settle_what_was_left(left, past.last_seen, missed)
        self.dispatcher.store.post(self.guard.transfers())
        named = {*leases, *self._bookings, *missed}
        # Numbers go on, as leases are known by their names in journal, ledger and book for all
        # incarnations.
        pilots = max((int(name.rpartition("-")[2]) for name in named), default=0)
        self.provision = AllocationProvisioner(
            sites=self._environment.sites,
            guard=self.guard,
            dispatcher=self.dispatcher,
            terms=LeaseTerms(
                run=self._journal.identity,
                currency=self._currency,
                rigid=any(task.processors > 1 for task in self._tasks),
            ),
            note=self._note,
            notify=self.notify,
            on_fault=self._fault,
            on_left_over=self._left_over,
            route=self._supply.route,
            watch=self._supply,
            settlements=self.settlements,
        )
        self._sharing = ProcessorSharing(
            self._environment.sites, self.dispatcher, self.provision, self.guard
        )
        # Before any worker is there: it would begin tasks on processors of other runs.
        self._sharing.update()
        self._supply.attach(self._context(past, pilots))
        if not self._tasks or not self.dispatcher.figures.is_done:
            # Else a resumed run has nothing to do, and leases nothing.
            await self._supply.begin()
        self._give_back_bookings(leases)

    def _context(self, past: JournalState, pilots: int) -> RunContext:
        """Return the parts of this run that the supply works with."""
        state = ResumeState(
            ended=self.dispatcher.figures.ended,
            succeeded=frozenset(o.task for o in self.past if o.status is Status.SUCCEEDED),
            attempts=[(record.outcome, record.site) for record in past.records],
            pilots=pilots,
            clock=lambda: self.elapsed,
            epoch=self._first,
            bookings=tuple(self._bookings.values()),
            spent=lambda: self.spent,
            alert=self._woken.set,
        )
        return RunContext(
            bindings=self._bindings,
            dispatcher=self.dispatcher,
            provision=self.provision,
            guard=self.guard,
            journal=past,
            state=state,
            background=self._background,
            goal=lambda: self._goal,
            is_stopping=lambda: self.cause is not None,
            stop=partial(self.stop, grace=0.0),
            fail=self.fail,
            notify=self.notify,
        )

    def _give_back_bookings(self, leases: Mapping[str, Lease]) -> None:
        """Give back an earlier incarnation's bookings that are not used and not begun."""
        for name in self._bookings:
            if name in leases and self.provision.find(name) is None:
                # Closed just before the paid time began, so that nothing is owed.
                before = math.nextafter(leases[name].start, -math.inf)
                ended = self.guard.charges.close_lost(leases[name], before)
                self._note("lease", msgspec.json.encode(ended).decode(), self.guard.transfers())

    async def _settle_what_was_left(
        self, leases: Iterable[Lease], last_seen: float, missed: Mapping[str, float]
    ) -> None:
        """
        Pay leases that a killed incarnation had open, by the provider's count if there is one.

        Parameters
        ----------
        missed
            End of the paid time of bookings that were missed, by lease.
        """
        for lease in leases:
            if lease.end is not None:
                continue
            if lease.id not in missed and self.settlements.keeps_count(lease.site):
                self.settlements.restore(lease, last_seen)
            else:
                self.settlements.close_lost(lease, missed.get(lease.id, last_seen))
        await self.settlements.wait()  # what they do not come to is free for what is left

    def _money_is_free(self) -> None:
        self._woken.set()
        self._supply.on_money_free()

    def _note(self, kind: str, text: str, transfers: Sequence[Transfer]) -> None:
        self._woken.set()
        self.dispatcher.store.note(kind, text, transfers)

    async def _end(self) -> None:
        """Give everything back; each step is tried, also after errors in earlier ones."""
        async with AsyncExitStack() as steps:  # the last one first
            # In the end the order is: no new requests, workers dismissed, background work ended,
            # processors given back and paid, journal closed. Workers go before their processors do.
            steps.callback(self._close)
            if hasattr(self, "provision"):
                steps.push_async_callback(self._give_back)
            steps.push_async_callback(self._background.close)
            if hasattr(self, "dispatcher"):
                steps.push_async_callback(self.dispatcher.close)
            steps.push_async_callback(self._supply.end)

    def _close(self) -> None:
        self._has_ended = True
        self._journal.close()

    async def _give_back(self) -> None:
        await self.provision.end()
        await self.settlements.wait()
        self.unsettled = await self.settlements.close()
        # Last: an incarnation without this event is taken to have been killed.
        self._note(END, "", self.guard.transfers())
        await asyncio.to_thread(self._clear_work)

    def _clear_work(self) -> None:
        """
        Remove what attempts that were cut off have left of tasks that have succeeded since.

        The working directory of an attempt that failed stays for inspection, and so does every
        one of a task without success.
        """
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder.work) as entries:
            for entry in entries:
                task = entry.name.partition("-")[0]
                if task.isdecimal():
                    number = int(task)
                    if number >= len(self._succeeded) or not self._succeeded[number]:
                        continue  # not made by this run, or its task has had no success
                # By name and not by age: an earlier incarnation may have made it.
                if entry.name not in self._failed:
                    remove_tree(entry.path)

    # What happens in between.

    def _see_folder(self, outcome: Outcome) -> None:
        """Note what :meth:`_clear_work` has to know of an attempt."""
        if outcome.status is Status.SUCCEEDED:
            self._succeeded[outcome.task] = True
        elif outcome.status in (Status.FAILED, Status.TIMED_OUT):
            name = folder_name(outcome.task, self._tasks[outcome.task].id)
            self._failed.add(attempt_folder(name, outcome.attempt))

    def _took_in(self, record: AttemptRecord) -> None:
        self._see_folder(record.outcome)
        self._supply.on_outcome(record, self._bindings.lease_of.get(record.outcome.task))
        if self._on_outcome is not None:
            self._on_outcome(record)

    def _fault(self, error: BursarError, allocation: Allocation | None = None) -> None:
        if allocation is not None and self._supply.on_fault(error, allocation):
            return
        self.stop("budget" if isinstance(error, BudgetStop) else "fault", str(error), grace=0.0)

    def _drain(self, cause: StopCause, reason: str) -> None:
        """Start nothing more, and let running tasks go on."""
        self.cause, self.reason = self.cause or cause, reason
        self.notify(reason)
        self.dispatcher.drain()

    def _left_over(self, allocation: Allocation) -> None:
        if self.cause is None:
            self._supply.on_left_over(allocation)

    def _apply(self, effect: BudgetEffect) -> None:
        match effect:
            case BudgetHalt(reason):
                if self.cause != "budget":
                    self.stop("budget", reason, grace=0.0)
            case BudgetDrain(reason):
                self._drain("budget", reason)
            case _:
                self.notify(effect.reason)
