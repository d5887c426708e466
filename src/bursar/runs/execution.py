"""A run being carried out: the journal, the money, the dispatcher and the sites together."""

import asyncio
import contextlib
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from bursar.broker.dynamic_scheduler import DynamicScheduler, Ended, ResumeState
from bursar.broker.pilot_plan import plan_pilots
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import (
    AttemptRecord,
    JournalState,
    RunEvent,
    interrupted_attempts,
)
from bursar.dispatch.orphans import kill_leftovers
from bursar.dispatch.work_directories import attempt_folder, folder_name, remove_tree
from bursar.engine.core import DataAt, RunPaths
from bursar.engine.dispatcher import Dispatcher, DispatchOptions
from bursar.engine.task_queue import TaskCounts
from bursar.market.budget_thresholds import BudgetDrain, BudgetEffect, BudgetHalt
from bursar.market.guard import BudgetGuard, budget_amount
from bursar.market.lease import Lease
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal, Retry
from bursar.model.errors import BudgetStop, BursarError, SiteError
from bursar.model.money import Refusal, Transfer, from_micros
from bursar.model.plan import Plan
from bursar.model.task import Outcome, Status, Task
from bursar.runs.allocation_provisioner import AllocationProvisioner, LeaseTerms, leases_of
from bursar.runs.bookings import split_bookings
from bursar.runs.folder import RunFolder
from bursar.runs.incarnations import BEGIN, END, incarnations_of
from bursar.runs.settlement import LeaseSettlements
from bursar.sites.protocol import Site
from bursar.supervisor import TaskSupervisor, heard_by_waiter

if TYPE_CHECKING:
    from bursar.provisioning.pool import PilotPool
    from bursar.runs.pool_controller import PoolController

TICK = 0.2
"""Seconds between checks of the budget, at most."""

FORSAKEN = 2.0
"""Seconds without any worker after which a run ends; sites report lost processors sooner."""

BEAT = 5.0
"""Seconds between signs of life in the journal."""

_UNSENT = "unsent"
"""Name in place of a lease for tasks that have not been sent to any queue."""

StopCause = Literal["user", "budget", "goal", "fault"]
"""Who ended a run before its tasks were done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """
    State of a run when the remaining tasks are planned again.

    Parameters
    ----------
    ended
        Tasks at their end.
    cut
        Work that tasks had done when they were stopped, seconds at speed 1, the most of
        all their attempts: they need more.
    elapsed, spent
        Seconds, currency units.
    goal
        The present goal.
    stretch
        Seconds that tasks take for each that was estimated.
    """

    ended: frozenset[int]
    cut: Mapping[int, float]
    elapsed: float
    spent: float
    goal: Goal
    stretch: float = 1.0


Delay = Callable[[int, str, int, str], float]
"""Function of a task, a site, a child and the child's site: seconds until the data are there."""

Replan = Callable[[RunSnapshot], Awaitable[Plan]]
"""Function that plans the remaining tasks of a run."""


class RunExecution:
    """
    Carries out tasks on leased processors, from the first worker to the last transfer.

    An execution is an asynchronous context: entering opens the journal, starts the
    dispatcher and agrees with the sites on the processors of the plan, which come and go
    as the plan says; leaving gives back what is left and settles what is owed, whatever
    happened in between.

    Parameters
    ----------
    folder
        The run's folder. Work that an earlier incarnation journalled counts as done.
    tasks, parents
        Tasks to run, and their parents' numbers; more tasks may be submitted later.
    goal, retry, root
        Goal, retry rules and folder of the campaign.
    plan
        Plan with purchases, and the place and order of tasks.
    sites
        Sites by name, all of the plan's purchases among them.
    just_in_time
        Takes the place of the plan's purchases: each task is sent to the queue of a site
        when those before it have ended.
    delay
        Of a task, where it ran, one that follows and where that will run: seconds until its
        data have arrived there; None: they are there at once.
    data
        See :class:`bursar.engine.core.EngineSettings`.
    pool
        Takes the place of the plan's purchases: acquires and releases processors as there is
        work for them, and any of them runs any task.
    replan
        Makes another plan when processors went back before their tasks were done; None:
        the run then stops.
    rigid
        Whether some task may hold several processors.
    prefetch
        Whether workers get tasks ahead of time.
    tick
        Seconds between looks at money and workers, at most.
    durable
        Whether what is journalled survives a power cut.
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
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None,
        *,
        goal: Goal,
        retry: Retry,
        root: Path,
        plan: Plan,
        sites: Mapping[str, Site],
        just_in_time: DynamicScheduler | None = None,
        delay: Delay | None = None,
        data: DataAt | None = None,
        pool: "PilotPool | None" = None,
        replan: Replan | None = None,
        rigid: bool | None = None,
        prefetch: bool = True,
        tick: float = TICK,
        durable: bool = True,
        retry_failed: bool = False,
        on_outcome: Callable[[AttemptRecord], None] | None = None,
        on_start: Callable[[Sequence[int]], None] | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder
        self._tasks = list(tasks)
        self._parents = parents
        self._goal = goal
        self._retry = retry
        self._root = root
        self._plan = plan
        self._sites = sites
        self._rigid = any(t.processors > 1 for t in tasks) if rigid is None else rigid
        self._retry_failed = retry_failed
        self._on_outcome = on_outcome
        self._on_start = on_start
        self._on_event = on_event
        self._just_in_time = just_in_time
        self._delay = delay
        self._data = data
        self._pool = pool
        self.pooling: PoolController | None = None
        self._replan = replan
        self._replanning: asyncio.Task[None] | None = None
        self._prefetch = prefetch
        self._tick = tick
        self._durable = durable
        self._leaving = False
        self._has_ended = False  # sites that are closed after it may still have something to say
        self._pilots = 0
        self._of_task: dict[int, str] = {}
        self._site_of: dict[str, str] = {}
        self._cut: dict[int, float] = {}
        self._last_beat = 0.0
        self._forsaken_since = math.inf
        self._stretch = 1.0
        self._ended: list[Ended] = []
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
            durable=self._durable,
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
                pause = min(self._tick, self.guard.next_tick(now) - now, self._until_wake)
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
        transfers = self.guard.transfers()
        if transfers:
            self.dispatcher.store.post(transfers)
        if now - self._last_beat >= BEAT:
            self._last_beat = now
            self.dispatcher.store.beat()
        if self.pooling is None:
            self._check_workers(now)
        supply = self._just_in_time
        if supply is not None and self.cause is None and supply.wake <= self.elapsed:
            self._supply(supply, supply.poll())

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
        supply = self._just_in_time
        if supply is not None and self.cause is None:
            self._supply(supply, supply.amend(goal))
        self._woken.set()
        return None

    @property
    def plan(self) -> Plan:
        """The plan that is carried out now."""
        return self._plan

    @property
    def is_planning(self) -> bool:
        """Whether the remaining tasks are being planned again."""
        return self._replanning is not None

    @property
    def spent(self) -> float:
        """Currency units, what open leases have accrued included."""
        return from_micros(self.guard.spent(self.dispatcher.now()))

    @property
    def rate(self) -> float:
        """Currency units per second that open leases cost."""
        return self.guard.rate(self.dispatcher.now())

    async def sketch(self, stretch: float) -> Plan | None:
        """Make a plan of the remaining tasks for information; None where there can be none."""
        if self._replan is None:
            return None
        return await self._replan(self._snapshot(stretch))

    def plan_again(self, reason: str, stretch: float) -> None:
        """
        Let running tasks end, and have the remaining ones planned anew.

        Parameters
        ----------
        reason
            Line for people.
        stretch
            See :class:`RunSnapshot`.
        """
        if self._replan is None or self._replanning is not None or self.cause is not None:
            return
        self.notify(reason)
        self._stretch = stretch
        # Bound to a lease that nobody has, so that nothing new begins while the plan is made.
        left = [i for i in range(len(self._tasks)) if i not in self.dispatcher.figures.ended]
        self._bind(dict.fromkeys(left, _UNSENT), {task: task for task in left})
        self._replanning = self._background.start(
            self._plan_again(self._replan), on_failure=self._on_replan_failure
        )

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
        supply = self._just_in_time
        return math.inf if supply is None else max(0.0, supply.wake - self.elapsed)

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
            currency=self._plan.currency,
            rows=past.transfers,
        )
        folder = self._folder
        self.dispatcher = Dispatcher(
            self._tasks,
            self._parents,
            journal=self._journal,
            guard=self.guard,
            retry=self._retry,
            folders=RunPaths(
                root=self._root, files=folder.files, work=folder.work, logs=folder.logs
            ),
            run=self._journal.identity,
            past=past.attempts,
            on_outcome=self._took_in,
            on_start=self._on_start,
            options=DispatchOptions(
                # Nothing starts before the scheduler has sent it somewhere.
                placed=None if self._just_in_time is None else [_UNSENT] * len(self._tasks),
                again_at=None if self._just_in_time is None else _UNSENT,
                delay=None if self._delay is None else self._delay_between,
                data=self._data,
                prefetch=self._prefetch,
                keeps_starts=self._durable,
                retry_failed=self._retry_failed,
                last_seen=past.last_seen,
            ),
        )
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
            self._sites,
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
        self._pilots = max((int(name.rpartition("-")[2]) for name in named), default=0)
        if self._pool is not None:
            self.pooling = self._pooling_of(self._pool, past.events)
        self.provision = AllocationProvisioner(
            sites=self._sites,
            guard=self.guard,
            dispatcher=self.dispatcher,
            terms=LeaseTerms(
                run=self._journal.identity, currency=self._plan.currency, rigid=self._rigid
            ),
            note=self._note,
            notify=self.notify,
            on_fault=self._fault,
            on_left_over=self._left_over,
            route=None if self._just_in_time is None else self._just_in_time.routed,
            watch=self.pooling,
            settlements=self.settlements,
        )
        if self._tasks and self.dispatcher.figures.is_done:
            # A resumed run without anything to do leases nothing.
            self._give_back_bookings(leases)
            return
        if self.pooling is not None:
            self.pooling.begin(self.provision)
            return
        if self._just_in_time is None:
            await self._sign(self._plan)
        else:
            self._supply(self._just_in_time, self._just_in_time.begin(self._resume_state(past)))
            self._give_back_bookings(leases)

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
                ended = self.guard.charges.close_lost(lease, missed.get(lease.id, last_seen))
                text = msgspec.json.encode(ended).decode()
                self.dispatcher.store.note("lease", text, self.guard.transfers())
        await self.settlements.wait()  # what they do not come to is free for what is left

    def _money_is_free(self) -> None:
        self._woken.set()
        if self.pooling is not None:
            self.pooling.review_soon()

    def _pooling_of(self, pool: "PilotPool", past: Sequence[RunEvent]) -> "PoolController":
        from bursar.runs.pool_controller import PoolController, last_number

        return PoolController(
            pool,
            self._sites,
            dispatcher=self.dispatcher,
            guard=self.guard,
            goal=lambda: self._goal,
            elapsed=lambda: self.elapsed,
            pilots=max(self._pilots, last_number(past)),
            note=self.dispatcher.store.note,
            stop=lambda verdict: self.stop("goal", verdict, grace=0.0),
            on_error=self._fault,
        )

    async def _sign(self, plan: Plan) -> None:
        """Agree with the sites on the purchases of a plan, and bind the tasks to the purchases."""
        pilots = plan_pilots(plan, self._tasks, self._pilots)
        self._pilots += len(pilots)
        order = {placement.task: i for i, placement in enumerate(plan.placements)}
        if len(pilots) == 1 and math.isinf(pilots[0].duration):
            pilots = [replace(pilots[0], tasks=())]  # the only ones there are
            placed = dict.fromkeys(order, "")
        else:
            placed = {task: pilot.name for pilot in pilots for task in pilot.tasks}
        # Where some have an end, what is late at one site misses its time at another.
        ends = any(math.isfinite(pilot.duration) for pilot in pilots)
        timed = [pilot.name for pilot in pilots] if ends else []
        self._site_of.update((pilot.name, pilot.site) for pilot in pilots)
        self._bind(placed, order, timed)
        # Before any processor is paid for: such a task would wait until the money is gone.
        self._check_widths(placed, {pilot.site for pilot in pilots})
        left = self.dispatcher.figures.left
        # Without pilots all of whose tasks were done in an earlier incarnation.
        await self.provision.sign([p for p in pilots if p.whole or not p.tasks or left(p.name)])

    def _check_widths(self, placed: dict[int, str], sites: set[str]) -> None:
        """
        Check that each task has room at the chosen site, or at some site.

        Raises
        ------
        SiteError
            When a task would wait for ever.
        """
        ended = set(self.dispatcher.figures.ended)
        # Once for each site and not for each task.
        widest = {site: self._widest(site) for site in sorted(sites) if site}
        for task in range(len(self._tasks)):
            if task in ended or self._tasks[task].processors == 1:
                continue
            where = [self._site_of[placed[task]]] if placed.get(task) else list(widest)
            faults = [self._too_wide(task, site, widest.get(site)) for site in where]
            if faults and faults[0] is not None and all(faults):
                raise faults[0]

    def _widest(self, site: str) -> int | None:
        """Return the processors of a site's largest worker; None: unknown, or no fixed site."""
        return self._sites[site].view().per_node if site else None

    def _too_wide(self, task: int, site: str, most: int | None) -> SiteError | None:
        """Return why a task would wait for ever at a site; None: it fits, or that is unknown."""
        processors = self._tasks[task].processors
        if most is None or processors <= most:
            return None
        return SiteError(
            f'{site}: task "{self._tasks[task].id}" needs {processors} processors, '
            f"the largest worker there has {most}"
        )

    def _resume_state(self, journal: JournalState) -> ResumeState:
        return ResumeState(
            ended=self.dispatcher.figures.ended,
            succeeded=frozenset(o.task for o in self.past if o.status is Status.SUCCEEDED),
            attempts=[(record.outcome, record.site) for record in journal.records],
            pilots=self._pilots,
            clock=lambda: self.elapsed,
            epoch=self._first,
            bookings=tuple(self._bookings.values()),
            spent=lambda: self.spent,
            alert=self._woken.set,
        )

    def _supply(self, supply: DynamicScheduler, pilots: Sequence[Allocation]) -> None:
        """Send tasks to the queues of sites, or to processors that are there already."""
        for kind, text in supply.take_events():
            if kind == "message":
                self.notify(text)
            else:
                self.dispatcher.store.note(kind, text)
        for pilot in pilots:
            # Between the decision and now a pilot may have begun to leave: its tasks need another
            # one.
            found = self.provision.find(pilot.name)
            there = found is not None
            if found is not None and found.leaving:
                self._fault(SiteError(f"{pilot.site}: {pilot.name} has ended"), pilot)
                continue
            wide = [task for task in pilot.tasks if self._tasks[task].processors > 1]
            most = self._widest(pilot.site) if wide else None
            faults = [fault for t in wide if (fault := self._too_wide(t, pilot.site, most))]
            if faults:
                self._fault(faults[0], pilot)
                continue
            refused = self.provision.prolong(pilot) if there else None
            if refused is not None:
                supply.short(pilot)
                continue
            if pilot.site:  # otherwise it is found when the pilot is sent
                self._site_of[pilot.name] = pilot.site
            self._bind(dict.fromkeys(pilot.tasks, pilot.name), {task: task for task in pilot.tasks})
            if pilot.booked and not there:
                try:
                    self.provision.book(pilot, self._first)
                except BudgetStop:
                    supply.short(pilot)
            elif not there:
                self.provision.request(pilot)
        for name in self.provision.booked:
            if not supply.holds(name):
                self.provision.give_up(name)
        if supply.verdict and self.cause is None:
            self.stop("goal", supply.verdict, grace=0.0)

    def _bind(
        self, placed: dict[int, str], order: dict[int, int], in_order: Sequence[str] = ()
    ) -> None:
        self._of_task.update(placed)
        self.dispatcher.assign(placed, order, in_order)

    def _note(self, kind: str, text: str, transfers: Sequence[Transfer]) -> None:
        self._woken.set()
        self.dispatcher.store.note(kind, text, transfers)

    async def _end(self) -> None:
        """Give everything back; each step is tried, also after errors in earlier ones."""
        self._leaving = True
        if self._replanning is not None:
            self._replanning.cancel()
        async with AsyncExitStack() as steps:  # the last one first
            # In the end the order is: no new requests, workers dismissed, background work ended,
            # processors given back and paid, journal closed. Workers go before their processors do.
            steps.callback(self._close)
            if hasattr(self, "provision"):
                steps.push_async_callback(self._give_back)
            steps.push_async_callback(self._background.close)
            if hasattr(self, "dispatcher"):
                steps.push_async_callback(self.dispatcher.close)
            if self.pooling is not None:
                steps.push_async_callback(self.pooling.end)

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
        outcome, final = record.outcome, record.final
        self._see_folder(outcome)
        ran_on = self._of_task.get(outcome.task)
        if not final and outcome.status is Status.CANCELLED:
            done = (outcome.end - outcome.start) * self._speed_at(ran_on or "")
            # The most of all attempts, not their sum: each began anew.
            self._cut[outcome.task] = max(done, self._cut.get(outcome.task, 0.0))
        if self._just_in_time is not None:
            if not self._ended:
                # Once for all outcomes of a transaction: the scheduler decides better when it sees
                # them together, and asks each site once.
                asyncio.get_running_loop().call_soon(self._follow_up, self._just_in_time)
            self._ended.append((outcome, final))
        elif final:
            succeeded = outcome.status is Status.SUCCEEDED
            self.provision.finished(ran_on if succeeded else None)
        if self._on_outcome is not None:
            self._on_outcome(record)

    def _follow_up(self, supply: DynamicScheduler) -> None:
        """Hand attempts that ended at the same time to the scheduler, all together."""
        ended, self._ended = self._ended, []
        if self._leaving:
            return
        ran_on = [self._of_task.get(outcome.task) for outcome, _ in ended]
        if self.cause is None:
            with self._faults_end_run():
                self._supply(supply, supply.ended(ended))
        with self._faults_end_run():
            for lease in ran_on:
                if lease is not None and not supply.holds(lease):
                    # After the scheduler's answer, which may have given this pilot its next jobs.
                    self.provision.finished(lease)

    def _delay_between(self, task: int, child: int) -> float:
        ran, runs = (self._site_of.get(self._of_task.get(t, "")) for t in (task, child))
        return self._delay(task, ran, child, runs) if self._delay and ran and runs else 0.0

    def _speed_at(self, pilot: str) -> float:
        site = self._site_of.get(pilot)
        return 1.0 if site is None else self._sites[site].facts.speed

    def _fault(self, error: BursarError, pilot: Allocation | None = None) -> None:
        supply = self._just_in_time
        if (
            self.pooling is not None
            and pilot is not None
            and isinstance(error, BudgetStop | SiteError)
        ):
            self.notify(str(error))  # the pool was told, and asks another site, or later
            return
        if supply is not None and pilot is not None and self.cause is None:
            if isinstance(error, BudgetStop):
                with self._faults_end_run():
                    supply.short(pilot)
                    self._supply(supply, ())
                return
            if isinstance(error, SiteError) and self._is_replaced(supply, pilot, str(error)):
                return
        self.stop("budget" if isinstance(error, BudgetStop) else "fault", str(error), grace=0.0)

    def _is_replaced(self, supply: DynamicScheduler, pilot: Allocation, reason: str) -> bool:
        """Send the tasks of a lost pilot elsewhere; return whether that was possible."""
        instead = None
        with self._faults_end_run():
            instead = supply.lost(pilot, reason)
            if instead is not None:
                self.notify(reason)
                self._supply(supply, instead)
        return instead is not None

    @contextmanager
    def _faults_end_run(self) -> Iterator[None]:
        """End the run on an error in a callback, where the error would otherwise be lost."""
        try:
            yield
        except BursarError as error:
            self._fault(error)
        except Exception as error:
            self._fault(BursarError(f"{type(error).__name__}: {error}"))
            raise

    def _left_over(self, pilot: Allocation) -> None:
        if self.cause is not None or self._replanning is not None:
            return
        if self._just_in_time is not None:
            self._is_replaced(self._just_in_time, pilot, f"{pilot.site}: {pilot.name} has ended")
            return
        if self._replan is None:
            self.stop("fault", f"the time of {pilot.name} is over before its tasks", grace=0.0)
        else:
            self._replanning = self._background.start(
                self._plan_again(self._replan), on_failure=self._on_replan_failure
            )

    async def _plan_again(self, replan: Replan) -> None:
        """Wait for running tasks, give the processors back, and sign a plan for the other tasks."""
        # Busy pilots stay until their tasks have ended: what is paid for by now is not thrown away.
        while not await self.provision.give_back():
            await self.dispatcher.change()
        self.notify("what is left is planned again")
        plan = await replan(self._snapshot())
        # Before signing, so that a pilot which ends too early from now on can ask for yet another
        # plan.
        self._replanning = None
        self._plan = plan
        await self._sign(plan)

    def _on_replan_failure(self, error: BaseException) -> None:
        if not isinstance(error, BursarError):
            error = BursarError(f"planning again failed: {type(error).__name__}: {error}")
        self._fault(error)

    def _snapshot(self, stretch: float | None = None) -> RunSnapshot:
        return RunSnapshot(
            ended=self.dispatcher.figures.ended,
            cut=self._cut,
            elapsed=self.elapsed,
            spent=self.spent,
            goal=self._goal,
            stretch=self._stretch if stretch is None else stretch,
        )

    def _apply(self, effect: BudgetEffect) -> None:
        match effect:
            case BudgetHalt(reason):
                if self.cause != "budget":
                    self.stop("budget", reason, grace=0.0)
            case BudgetDrain(reason):
                self.cause, self.reason = self.cause or "budget", reason
                self.notify(reason)
                self.dispatcher.drain()
            case _:
                self.notify(effect.reason)
