"""Ways to bring processors to the tasks of a run: by a plan, or by a scheduler of single tasks."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from bursar.broker.dynamic_scheduler import DynamicScheduler, Ended, ResumeState
from bursar.broker.pilot_plan import plan_pilots
from bursar.dispatch.journal_records import AttemptRecord, JournalState
from bursar.engine.dispatcher import Dispatcher
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease, is_alike, lease_of
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.errors import BudgetStop, BursarError, SiteError
from bursar.model.plan import Plan
from bursar.model.slot import Slot
from bursar.model.task import Status, Task
from bursar.provisioning.allocation_life import AllocationObserver
from bursar.runs.allocation_provisioner import AllocationProvisioner
from bursar.sites.protocol import SellingSite, Site
from bursar.supervisor import TaskSupervisor

UNSENT = "unsent"
"""Name in place of a lease for tasks that have not been sent to any queue."""

MOST_FAULTS = 5
"""Failures in a row to get a planned machine from a site, after which the run ends."""

Delay = Callable[[int, str, int, str], float]
"""Function of a task, a site, a child and the child's site: seconds until the data are there."""

StopCause = Literal["user", "budget", "goal", "fault", "probe"]
"""Who ended a run before its tasks were done."""


class TaskBindings:
    """
    Leases to which the tasks of a run are bound, and the sites of the leases.

    Parameters
    ----------
    tasks
        Tasks of the run; the list may grow.
    """

    def __init__(self, tasks: Sequence[Task], sites: Mapping[str, Site]) -> None:
        self.tasks = tasks
        self.sites = sites
        self.lease_of: dict[int, str] = {}
        self.site_of: dict[str, str] = {}

    def delay_between(self, delay: Delay, task: int, child: int) -> float:
        """Return the seconds until a task's data have arrived where a child is bound to run."""
        ran, runs = (self.site_of.get(self.lease_of.get(t, "")) for t in (task, child))
        return delay(task, ran, child, runs) if ran and runs else 0.0

    def speed_of(self, lease: str) -> float:
        """Return the speed of a lease's site; 1 for an unknown one."""
        site = self.site_of.get(lease)
        return 1.0 if site is None else self.sites[site].facts.speed

    def widest(self, site: str) -> int | None:
        """Return the processors of a site's largest worker; None: unknown, or no fixed site."""
        return self.sites[site].view().per_node if site else None

    def too_wide(self, task: int, site: str, most: int | None) -> SiteError | None:
        """Return why a task would wait for ever at a site; None: it fits, or that is unknown."""
        processors = self.tasks[task].processors
        if most is None or processors <= most:
            return None
        return SiteError(
            f'{site}: task "{self.tasks[task].id}" needs {processors} processors, '
            f"the largest worker there has {most}"
        )

    def check_widths(self, placed: dict[int, str], sites: set[str], ended: set[int]) -> None:
        """
        Check that each task has room at the site of its lease, or at some site.

        Raises
        ------
        SiteError
            When a task would wait for ever.
        """
        # Once for each site and not for each task.
        widest = {site: self.widest(site) for site in sorted(sites) if site}
        for task in range(len(self.tasks)):
            if task in ended or self.tasks[task].processors == 1:
                continue
            where = [self.site_of[placed[task]]] if placed.get(task) else list(widest)
            faults = [self.too_wide(task, site, widest.get(site)) for site in where]
            if faults and faults[0] is not None and all(faults):
                raise faults[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """
    Parts of a run that its supply works with.

    Parameters
    ----------
    state
        State of the run at the begin of this incarnation, with its clock and what it has spent.
    goal
        Returns the present goal.
    is_stopping
        Returns whether the run ends before its tasks are done.
    stop
        Stops the run at once, for a cause and a reason.
    notify
        Journals a message and passes it on to people.
    """

    bindings: TaskBindings
    dispatcher: Dispatcher
    provision: AllocationProvisioner
    guard: BudgetGuard
    journal: JournalState
    state: ResumeState
    background: TaskSupervisor
    goal: Callable[[], Goal]
    is_stopping: Callable[[], bool]
    stop: Callable[[StopCause, str], None]
    fail: Callable[[BaseException], None]
    notify: Callable[[str], None]

    def bind(
        self, placed: dict[int, str], order: dict[int, int], in_order: Sequence[str] = ()
    ) -> None:
        """Bind tasks to leases, in an order; see :meth:`bursar.engine.dispatcher.Dispatcher`."""
        self.bindings.lease_of.update(placed)
        self.dispatcher.assign(placed, order, in_order)


class Supply(AllocationObserver):
    """
    Brings processors to the tasks of a run, by one policy, for one incarnation of the run.

    The run calls :meth:`attach`, then :meth:`begin` unless all tasks have ended before, then the
    reactions in any order, and :meth:`end` in every case. Subclasses override what their policy
    reacts to.
    """

    sends_tasks = False
    """Whether a task waits until this supply has bound it to a lease."""

    replaces_workers = False
    """Whether this supply sees for itself that workers are gone; else the run ends without any."""

    def inherit(
        self, leases: Sequence[Lease], tasks: Sequence[Task], ended: Collection[int]
    ) -> Collection[str]:
        """
        Choose leases of a killed incarnation whose workers still run, and go on with those.

        Called before anything else, where there are such leases.

        Parameters
        ----------
        leases
            Open leases that last until they are given back.
        ended
            Tasks that have ended.

        Returns
        -------
        Collection of str
            Names of the leases; the others are ended. So are those whose workers have ended, or
        for which there is no money: these are not open in the guard later.
        """
        return ()

    def attach(self, run: RunContext) -> None:
        """Take the parts of the run; nothing is asked of any site yet."""
        self.run = run

    async def begin(self) -> None:
        """
        Ask for the first processors.

        Raises
        ------
        BudgetStop
            When there is no money for processors without which the run cannot begin.
        SiteError
            When a site does not keep its offer.
        """

    @property
    def wake(self) -> float:
        """Time of the next :meth:`poll`, seconds on the run's clock; infinite for never."""
        return math.inf

    def poll(self) -> None:
        """Decide again, since time has passed."""

    def amend(self, goal: Goal) -> None:
        """Take in a changed goal."""

    def on_money_free(self) -> None:
        """Take note that money which was held for processors is free again."""

    def on_outcome(self, record: AttemptRecord, lease: str | None) -> None:
        """
        Take in the outcome of an attempt.

        Parameters
        ----------
        lease
            Lease to which the task is bound; None: none.
        """
        if record.final:
            status = record.outcome.status
            self.run.provision.finished(lease if status is Status.SUCCEEDED else None)
        if lease not in (None, record.lease):  # of a copy on processors of others
            self.run.provision.finished(record.lease)

    def on_fault(self, error: BursarError, allocation: Allocation) -> bool:
        """Make up for an allocation that has failed; return False where that ends the run."""
        return False

    def on_left_over(self, allocation: Allocation) -> None:
        """Find other processors for the tasks of an allocation that ended before they did."""
        self.run.stop("fault", f"the time of {allocation.name} is over before its tasks")

    def route(self, allocation: Allocation) -> Allocation:
        """Choose the site of an allocation that was requested without one."""
        return allocation

    async def end(self) -> None:
        """Decide nothing any more."""


# Processors by a scheduler that sends tasks to sites one by one while a run goes on.


class ScheduledSupply(Supply):
    """Carries out what a strategy, the broker or best effort decides task by task."""

    sends_tasks = True

    def __init__(self, scheduler: DynamicScheduler) -> None:
        self._scheduler = scheduler
        self._ended: list[Ended] = []
        self._is_leaving = False

    async def begin(self) -> None:
        """Request processors for the tasks that can start at once."""
        self._send(self._scheduler.begin(self.run.state))

    @property
    def wake(self) -> float:
        """Time at which the scheduler decides again; see :class:`bursar.runs.supply.Supply`."""
        return self._scheduler.wake

    def poll(self) -> None:
        """Request what the scheduler wants now that time has passed."""
        self._send(self._scheduler.poll())

    def amend(self, goal: Goal) -> None:
        """Request what the scheduler wants under a new goal."""
        self._send(self._scheduler.amend(goal))

    def route(self, allocation: Allocation) -> Allocation:
        """Choose the site on sending, since each allocation sent changes the queues."""
        return self._scheduler.routed(allocation)

    def on_outcome(self, record: AttemptRecord, lease: str | None) -> None:
        """Collect the outcomes of a transaction for the scheduler."""
        if not self._ended:
            # Once for all outcomes of a transaction: the scheduler decides better when it sees
            # them together, and asks each site once.
            asyncio.get_running_loop().call_soon(self._follow_up)
        self._ended.append((record.outcome, record.final))

    def on_fault(self, error: BursarError, allocation: Allocation) -> bool:
        """Do without processors that cannot be paid, or send tasks of lost ones elsewhere."""
        if self.run.is_stopping():
            return False
        if isinstance(error, BudgetStop):
            with self._faults_end_run():
                self._scheduler.short(allocation)
                self._send(())
            return True
        return isinstance(error, SiteError) and self._is_replaced(allocation, str(error))

    def on_left_over(self, allocation: Allocation) -> None:
        """Send the tasks of an allocation that has ended elsewhere."""
        self._is_replaced(allocation, f"{allocation.site}: {allocation.name} has ended")

    async def end(self) -> None:
        """Let the scheduler decide nothing any more."""
        self._is_leaving = True

    def _follow_up(self) -> None:
        """Hand attempts that ended at the same time to the scheduler, all together."""
        ended, self._ended = self._ended, []
        if self._is_leaving:
            return
        ran_on = [self.run.bindings.lease_of.get(outcome.task) for outcome, _ in ended]
        if not self.run.is_stopping():
            with self._faults_end_run():
                self._send(self._scheduler.ended(ended))
        with self._faults_end_run():
            for lease in ran_on:
                if lease is not None and not self._scheduler.holds(lease):
                    # After the scheduler's answer, which may have given this pilot its next jobs.
                    self.run.provision.finished(lease)

    def _is_replaced(self, allocation: Allocation, reason: str) -> bool:
        """Send the tasks of a lost allocation elsewhere; return whether that was possible."""
        instead = None
        with self._faults_end_run():
            instead = self._scheduler.lost(allocation, reason)
            if instead is not None:
                self.run.notify(reason)
                self._send(instead)
        return instead is not None

    @contextmanager
    def _faults_end_run(self) -> Iterator[None]:
        """End the run on an error in a callback, where the error would otherwise be lost."""
        try:
            yield
        except BursarError as error:
            self.run.fail(error)
        except Exception as error:
            self.run.fail(error)
            raise

    def _fault(self, error: SiteError, pilot: Allocation) -> None:
        if not self.on_fault(error, pilot):
            self.run.fail(error)

    def _send(self, pilots: Sequence[Allocation]) -> None:
        """Send tasks to the queues of sites, or to processors that are there already."""
        run, bindings, scheduler = self.run, self.run.bindings, self._scheduler
        for kind, text in scheduler.take_events():
            if kind == "message":
                run.notify(text)
            else:
                run.dispatcher.store.note(kind, text)
        for pilot in pilots:
            # Between the decision and now a pilot may have begun to leave: its tasks need another
            # one.
            found = run.provision.find(pilot.name)
            there = found is not None
            if found is not None and (found.leaving or found.is_over):
                self._fault(SiteError(f"{pilot.site}: {pilot.name} has ended"), pilot)
                continue
            wide = [task for task in pilot.tasks if bindings.tasks[task].processors > 1]
            most = bindings.widest(pilot.site) if wide else None
            faults = [fault for t in wide if (fault := bindings.too_wide(t, pilot.site, most))]
            if faults:
                self._fault(faults[0], pilot)
                continue
            refused = run.provision.prolong(pilot) if there else None
            if refused is not None:
                scheduler.short(pilot)
                continue
            if pilot.site:  # otherwise it is found when the pilot is sent
                bindings.site_of[pilot.name] = pilot.site
            run.bind(dict.fromkeys(pilot.tasks, pilot.name), {task: task for task in pilot.tasks})
            if pilot.booked and not there:
                try:
                    run.provision.book(pilot, run.state.epoch)
                except BudgetStop:
                    scheduler.short(pilot)
            elif not there:
                run.provision.request(pilot)
        for name in run.provision.booked:
            if not scheduler.holds(name):
                run.provision.give_up(name)
        if scheduler.verdict and not run.is_stopping():
            run.stop("goal", scheduler.verdict)


# Processors by a plan: what the plan buys is agreed on at once, and planned again if need be.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """
    State of a run when the remaining tasks are planned again.

    Parameters
    ----------
    cut
        Work that tasks had done when they were stopped, seconds at speed 1, the most of
        all their attempts: they need more.
    elapsed, spent
        Seconds, currency units.
    stretch
        Seconds that tasks take for each that was estimated.
    offers
        Present offers of sites that sell processors in units of their own, by name.
    """

    ended: frozenset[int]
    cut: Mapping[int, float]
    elapsed: float
    spent: float
    goal: Goal
    stretch: float = 1.0
    offers: Mapping[str, Sequence[Slot]] = field(default_factory=dict)


Replan = Callable[[RunSnapshot], Awaitable[Plan]]
"""Function that plans the remaining tasks of a run."""


class PlannedSupply(Supply):
    """
    Agrees with the sites on the processors of a plan, which come and go as the plan says.

    Parameters
    ----------
    replan
        Makes another plan when processors went back before their tasks were done; None: the
        run then stops.
    """

    def __init__(self, plan: Plan, replan: Replan | None = None) -> None:
        self.plan = plan
        self.replan = replan
        self._replanning: asyncio.Task[None] | None = None
        self._stretch = 1.0
        self._faults: dict[str, int] = {}  # in a row, by site
        self._pilots = 0
        self._cut: dict[int, float] = {}
        self._inherited: dict[int, str] = {}  # leases by number of the pilot, for the first plan

    @property
    def can_rebuy(self) -> bool:
        """Whether what is left can be planned anew, and processors bought anew, at any time."""
        return self.replan is not None and {p.slot.leased for p in self.plan.purchases} == {True}

    @property
    def is_planning(self) -> bool:
        """Whether the remaining tasks are being planned again."""
        return self._replanning is not None

    def inherit(
        self, leases: Sequence[Lease], tasks: Sequence[Task], ended: Collection[int]
    ) -> Collection[str]:
        """Go on with leases that are as the plan buys them."""
        left = sorted(leases, key=lambda lease: lease.start)
        for number, pilot in enumerate(plan_pilots(self.plan, tasks)):
            if not pilot.works or math.isfinite(pilot.duration) or (pilot.start or 0.0) > 0:
                continue
            if pilot.tasks and all(task in ended for task in pilot.tasks):
                continue  # has gone back already
            wanted = lease_of(pilot, 0.0, currency=self.plan.currency)
            found = next((i for i, one in enumerate(left) if is_alike(one, wanted)), None)
            if found is not None:
                self._inherited[number] = left.pop(found).id
        return set(self._inherited.values())

    async def begin(self) -> None:
        """Agree on all purchases of the plan; see :class:`bursar.runs.supply.Supply`."""
        self._pilots = self.run.state.pilots
        await self._sign(self.plan)

    def on_outcome(self, record: AttemptRecord, lease: str | None) -> None:
        """Note what a task that was cut off had done, and give idle processors back."""
        outcome = record.outcome
        if not record.final and outcome.status is Status.CANCELLED:
            done = (outcome.end - outcome.start) * self.run.bindings.speed_of(lease or "")
            # The most of all attempts, not their sum: each began anew.
            self._cut[outcome.task] = max(done, self._cut.get(outcome.task, 0.0))
        super().on_outcome(record, lease)

    def began(self, allocation: Allocation) -> None:
        """Take note that a site keeps what it sells."""
        self._faults.pop(allocation.site, None)

    def on_fault(self, error: BursarError, allocation: Allocation) -> bool:
        """Plan the remaining tasks again where a site has no machine of those that it sells."""
        if allocation.copy_of is not None:  # the first attempt of its task goes on
            return isinstance(error, BudgetStop | SiteError)
        site: object = self.run.bindings.sites.get(allocation.site)
        if not (isinstance(error, SiteError) and isinstance(site, SellingSite)):
            return False
        count = self._faults[allocation.site] = self._faults.get(allocation.site, 0) + 1
        # Machines that never come cost money, too: an image that is broken ends the run.
        if self.replan is None or self.run.is_stopping() or count > MOST_FAULTS:
            return False
        if not error.transient and not any(s.offers() for s in self.run.bindings.sites.values()):
            return False  # nothing is left to plan with: the refusal is what people must hear
        self.run.notify(f"{error}")
        if self._replanning is None:
            self._start_replanning(self.replan)
        return True

    def on_left_over(self, allocation: Allocation) -> None:
        """Plan the remaining tasks again, or end the run where that cannot be done."""
        if self._replanning is not None:
            return
        if self.replan is None:
            super().on_left_over(allocation)
        else:
            self._start_replanning(self.replan)

    async def end(self) -> None:
        """Plan nothing any more."""
        if self._replanning is not None:
            self._replanning.cancel()

    async def sketch(self, stretch: float) -> Plan | None:
        """Make a plan of the remaining tasks for information; None where there can be none."""
        return None if self.replan is None else await self.replan(self._snapshot(stretch))

    def plan_again(self, reason: str, stretch: float) -> None:
        """
        Let running tasks end, and have the remaining ones planned anew.

        Parameters
        ----------
        stretch
            See :class:`RunSnapshot`.
        """
        if self.replan is None or self._replanning is not None or self.run.is_stopping():
            return
        self.run.notify(reason)
        self._stretch = stretch
        # Bound to a lease that nobody has, so that nothing new begins while the plan is made.
        ended = self.run.dispatcher.figures.ended
        left = [i for i in range(len(self.run.bindings.tasks)) if i not in ended]
        self.run.bind(dict.fromkeys(left, UNSENT), {task: task for task in left})
        self._start_replanning(self.replan)

    def _start_replanning(self, replan: Replan) -> None:
        self._replanning = self.run.background.start(
            self._plan_again(replan), on_failure=self._on_replan_failure
        )

    async def _plan_again(self, replan: Replan) -> None:
        """Wait for running tasks, give the processors back, and sign a plan for the other tasks."""
        # Busy pilots stay until their tasks have ended: what is paid for by now is not thrown away.
        while not await self.run.provision.give_back():
            await self.run.dispatcher.change()
        if len(self.run.dispatcher.figures.ended) == len(self.run.bindings.tasks):
            return  # what ran was all there was, and the run ends by itself
        self.run.notify("what is left is planned again")
        self.plan = await replan(self._snapshot(self._stretch))
        # Before signing: a pilot that ends too early from now on can ask for yet another plan.
        self._replanning = None
        await self._sign(self.plan)

    def _on_replan_failure(self, error: BaseException) -> None:
        if not isinstance(error, BursarError):
            error = BursarError(f"planning again failed: {type(error).__name__}: {error}")
        self.run.fail(error)

    def _snapshot(self, stretch: float) -> RunSnapshot:
        return RunSnapshot(
            ended=self.run.dispatcher.figures.ended,
            cut=self._cut,
            elapsed=self.run.state.clock(),
            spent=self.run.state.spent(),
            goal=self.run.goal(),
            stretch=stretch,
            offers={
                name: site.offers()
                for name, site in self.run.bindings.sites.items()
                if isinstance(site, SellingSite)
            },
        )

    async def _sign(self, plan: Plan) -> None:
        """Agree with the sites on the purchases of a plan, and bind the tasks to the purchases."""
        run = self.run
        pilots = plan_pilots(plan, run.bindings.tasks, self._pilots)
        self._pilots += len(pilots)
        inherited, self._inherited = self._inherited, {}
        for number, name in inherited.items():
            if name in run.guard.leases:  # else its workers were gone, or there is no money
                pilots[number] = replace(pilots[number], name=name)
        order = {placement.task: i for i, placement in enumerate(plan.placements)}
        if len(pilots) == 1 and math.isinf(pilots[0].duration):
            pilots = [replace(pilots[0], tasks=())]  # the only ones there are
            placed = dict.fromkeys(order, "")
        else:
            placed = {task: pilot.name for pilot in pilots for task in pilot.tasks}
        # Where some have an end, what is late at one site misses its time at another.
        ends = any(math.isfinite(pilot.duration) for pilot in pilots)
        timed = [pilot.name for pilot in pilots] if ends else []
        run.bindings.site_of.update((pilot.name, pilot.site) for pilot in pilots)
        run.bind(placed, order, timed)
        # Before any processor is paid for: such a task would wait until the money is gone.
        ended = set(run.dispatcher.figures.ended)
        run.bindings.check_widths(placed, {pilot.site for pilot in pilots}, ended)
        left = run.dispatcher.figures.left
        # Without pilots all of whose tasks were done in an earlier incarnation.
        await run.provision.sign([p for p in pilots if p.whole or not p.tasks or left(p.name)])
