"""What brings processors to the tasks of a run: the protocol, and what a run lends to it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bursar.broker.dynamic_scheduler import ResumeState
from bursar.dispatch.journal_records import AttemptRecord, JournalState
from bursar.engine.dispatcher import Dispatcher
from bursar.market.guard import BudgetGuard
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.errors import BursarError, SiteError
from bursar.model.task import Status, Task
from bursar.runs.allocation_provisioner import AllocationObserver, AllocationProvisioner
from bursar.sites.protocol import Site
from bursar.supervisor import TaskSupervisor

UNSENT = "unsent"
"""Name in place of a lease for tasks that have not been sent to any queue."""

Delay = Callable[[int, str, int, str], float]
"""Function of a task, a site, a child and the child's site: seconds until the data are there."""

StopCause = Literal["user", "budget", "goal", "fault"]
"""Who ended a run before its tasks were done."""


class TaskBindings:
    """
    Leases to which the tasks of a run are bound, and the sites of the leases.

    Parameters
    ----------
    tasks
        Tasks of the run; the list may grow.
    sites
        Sites by name.
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
    bindings
        Tasks and sites, and which task is bound to which lease.
    dispatcher
        Dispatcher whose workers get the tasks.
    provision
        Holder of the run's allocations.
    guard
        Guard of the run's budget.
    journal
        What earlier incarnations have journalled.
    state
        State of the run at the begin of this incarnation, with its clock and what it has spent.
    background
        Owner of asyncio tasks.
    goal
        Returns the present goal.
    is_stopping
        Returns whether the run ends before its tasks are done.
    stop
        Stops the run at once, for a cause and a reason.
    fail
        Stops the run because of an error.
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
            succeeded = record.outcome.status is Status.SUCCEEDED
            self.run.provision.finished(lease if succeeded else None)

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
