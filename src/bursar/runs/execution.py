"""A run being carried out: the journal, the money, the dispatcher and the sites together."""

import asyncio
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType

import msgspec

from bursar.broker.dynamic_scheduler import ResumeState
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord, JournalState, RunEvent, held_successes
from bursar.dispatch.linux_processes import kill_leftovers
from bursar.engine.core import RestoredAttempts, RunPaths
from bursar.engine.dispatcher import Dispatcher, DispatchOptions
from bursar.engine.ready_tasks import MASK
from bursar.engine.run_tasks import RetriedFailures, TaskCounts, is_retried
from bursar.market.guard import BudgetDrain, BudgetEffect, BudgetGuard, BudgetHalt, budget_amount
from bursar.market.lease import Lease
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.errors import BudgetStop, BursarError
from bursar.model.money import Refusal, Transfer, from_micros
from bursar.model.task import Outcome, Status, Task
from bursar.runs.allocation_provisioner import AllocationProvisioner
from bursar.runs.environment import RunEnvironment, RunWork
from bursar.runs.folder import AttemptFolders, RunFolder, publish_outputs
from bursar.runs.incarnations import (
    BEGIN,
    END,
    TAKEN_OVER,
    incarnations_of,
    leases_of,
    split_bookings,
)
from bursar.runs.processor_sharing import ProcessorSharing
from bursar.runs.settlement import LeaseSettlements, LeaseTerms
from bursar.runs.supply import UNSENT, RunContext, StopCause, TaskBindings
from bursar.runs.surviving_workers import SurvivingWorkers, WorkerContact, cut_off
from bursar.sites.cloud.data_charges import known_data, priced_data, with_data
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
    retry_failed
        Tasks that failed for good in an earlier incarnation and are tried again.
    on_outcome
        Called with each outcome once it is durable.
    on_start
        Called with tasks that were handed to a worker.
    on_event
        Called with one line for people about each notable event.

    Attributes
    ----------
    past, journalled
        Outcomes of earlier incarnations that stand, and the records of all their attempts.
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
        retry_failed: RetriedFailures = False,
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
        self.goal = work.goal
        self._retry_failed = retry_failed
        self._on_outcome = on_outcome
        self._on_start = on_start
        self._on_event = on_event
        self._has_ended = False  # sites that are closed after it may still have something to say
        self._last_beat = 0.0
        self._forsaken_since = math.inf
        self._work_folders = AttemptFolders(folder.work, self._tasks)
        self._survivors: SurvivingWorkers | None = None
        self.past: list[Outcome] = []
        self.journalled: Sequence[AttemptRecord] = ()
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
            self.guard = BudgetGuard(
                budget_amount(self.goal.budget),
                # Copies have numbers above those of all tasks.
                limit_of=lambda task: self._tasks[task & MASK].wall_limit,
                data_of=lambda task: known_data(
                    self._tasks[task & MASK], (self._folder.files, self._work.root)
                ),
                on_budget=dict(self.goal.on_budget),
                currency=self._currency,
                rows=journal.transfers,
            )
            journal = await self._end_what_was_killed(journal)
            self.journalled = journal.records
            for outcome in journal.attempts:
                self._work_folders.learn(outcome)
            # With retry_failed a failure does not stand: the task runs again, and its outcome is
            # not reported before.
            self.past = [
                outcome
                for outcome in journal.outcomes
                if outcome.status is Status.SUCCEEDED
                or not is_retried(self._retry_failed, outcome.task)
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
                until_wake = self._supply.wake - self.elapsed
                pause = min(self._environment.tick, self.guard.next_tick(now) - now, until_wake)
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
        self.dispatcher.drain()  # at once: until the task below begins, workers would get more
        stopping = self._background.start(
            self.dispatcher.stop(reason, grace=grace), on_failure=self._on_stop_failure
        )
        self._stopping = self._stopping or stopping

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
        self.goal = goal
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

    @property
    def tasks(self) -> Sequence[Task]:
        """All tasks so far, by their numbers; those that were added late lack their steps."""
        return self._tasks

    def submit(self, tasks: Sequence[Task]) -> range:
        """Add tasks without parents; return their numbers."""
        self._tasks.extend(task.without_steps() for task in tasks)  # a call may be large
        return self.dispatcher.submit(tasks)

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

    # Begin and end.

    async def _end_what_was_killed(self, past: JournalState) -> JournalState:
        """
        End what a killed incarnation has left, but workers that this one takes over.

        Returns
        -------
        JournalState
            The journal as it is afterwards.
        """
        if not past.events:
            return past
        run = self._journal.identity
        survivors = None
        if self._environment.contact is not None:
            ended = {outcome.task for outcome in past.outcomes}
            choose = partial(self._supply.inherit, tasks=self._tasks, ended=ended)
            survivors = await asyncio.to_thread(self._environment.contact.find, run, past, choose)
        if survivors is not None:
            now = survivors.epoch + self._loop.time()
            self.guard.begin(now)
            survivors = survivors.taken_over(run, self.guard, self._environment.sites, now)
        self._survivors, spared = survivors, survivors.processes if survivors is not None else ()
        # Before leases of a killed incarnation are settled: what still runs would use processors
        # that nobody pays.
        await asyncio.to_thread(kill_leftovers, run, spared=spared)
        incarnations = incarnations_of(past.events)
        if not incarnations or math.isfinite(incarnations[-1][1]):
            return past
        # Together, and before anything else happens: after a second kill, tasks that had only
        # waited in this incarnation must not pass for attempts of it.
        cut, withdrawn = cut_off(past, spared)
        end = [RunEvent(past.last_seen, END, "")] if survivors is None else []
        await asyncio.to_thread(self._journal.commit, cut, events=end, starts=withdrawn)
        return await asyncio.to_thread(self._journal.load)

    async def _begin(self, past: JournalState) -> None:
        survivors, contact, folder = self._survivors, self._environment.contact, self._folder
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
            options=self._dispatch_options(past),
        )
        self.dispatcher.store.on_full = partial(self.drain, "fault")
        await self.dispatcher.start()
        if contact is not None and survivors is None:
            port, token = self.dispatcher.address[1], self.dispatcher.token
            contact.write(WorkerContact(port, token, self.dispatcher.epoch))
        now = self.dispatcher.now()
        # The guard's clock begins with the dispatcher's, which goes on after the last moment in the
        # journal.
        self.guard.begin(now)
        incarnations = incarnations_of(past.events)
        self._first = incarnations[0][0] if incarnations else now
        self.dispatcher.store.note(BEGIN, "" if survivors is None else TAKEN_OVER)
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
        inherited = () if survivors is None else survivors.leases
        going_on = {*self._bookings, *inherited}
        left = [lease for lease in leases.values() if lease.id not in going_on]
        left = with_data(left, [*past.records, *held_successes(past)])
        await self.settlements.settle_killed(left, past.last_seen, missed)
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
                rigid=self._work.may_be_wide or any(t.processors > 1 for t in self._tasks),
                inherited=inherited,
            ),
            note=self._note,
            notify=self.notify,
            on_fault=self._fault,
            on_left_over=self._left_over,
            route=self._supply.route,
            watch=self._supply,
            settlements=self.settlements,
            trading=self._environment.trading,
        )
        self._sharing = ProcessorSharing(
            self._environment.sites, self.dispatcher, self.provision, self.guard
        )
        # Before any worker is there: it would begin tasks on processors of other runs.
        self._sharing.update()
        self._supply.attach(self._context(past, pilots))
        self.dispatcher.settle_copies()
        if not self._tasks or not self.dispatcher.figures.is_done:
            # Else a resumed run has nothing to do, and leases nothing.
            await self._supply.begin()
        self._give_back_bookings(leases)
        self.provision.give_back_unused()

    def _dispatch_options(self, past: JournalState) -> DispatchOptions:
        """Return how the tasks are handed out, and which of them workers may have by now."""
        environment, sends_tasks = self._environment, self._supply.sends_tasks
        contact, delay = environment.contact, environment.delay
        options = DispatchOptions(  # nothing starts before the supply has sent it somewhere
            placed=[UNSENT] * len(self._tasks) if sends_tasks else None,
            again_at=UNSENT if sends_tasks else None,
            delay=None if delay is None else partial(self._bindings.delay_between, delay),
            data=environment.data,
            secrets=environment.secrets,
            resources=environment.shared_resources(self._work.resources),
            prefetch=environment.prefetch,
            hears_first=environment.hears_first,
            keeps_starts=environment.durable,
            outlives=0.0 if contact is None else contact.outlives,
            retry_failed=self._retry_failed,
            last_seen=past.last_seen,
            restored=RestoredAttempts.of(past=past),
            priced_data=priced_data(environment.sites),
            publish=partial(publish_outputs, self._folder) if environment.has_files else None,
        )
        return options if self._survivors is None else self._survivors.expected(options, past)

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
            goal=lambda: self.goal,
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
        if self._survivors is not None:  # also workers that did not come back
            await asyncio.to_thread(kill_leftovers, self._journal.identity)
        self.provision.give_back_unused()
        await self.settlements.wait()
        self.unsettled = await self.settlements.close()
        # Last: an incarnation without this event is taken to have been killed.
        self._note(END, "", self.guard.transfers())
        if self._environment.contact is not None:
            self._environment.contact.remove()
        await asyncio.to_thread(self._work_folders.clear)

    # What happens in between.

    def _took_in(self, record: AttemptRecord) -> None:
        self._work_folders.learn(record.outcome)
        self._supply.on_outcome(record, self._bindings.lease_of.get(record.outcome.task))
        if self._on_outcome is not None:
            self._on_outcome(record)

    def _fault(self, error: BursarError, allocation: Allocation | None = None) -> None:
        if allocation is not None and self._supply.on_fault(error, allocation):
            return
        self.stop("budget" if isinstance(error, BudgetStop) else "fault", str(error), grace=0.0)

    def drain(self, cause: StopCause, reason: str) -> None:
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
                self.drain("budget", reason)
            case _:
                self.notify(effect.reason)
