"""The controller that carries out a pool's decisions at the sites and reports the results."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from bursar.dispatch.journal_records import RunEvent
from bursar.model.allocation import Allocation, AllocationLoad, AllocationLoss, AllocationRequest
from bursar.model.campaign import Goal
from bursar.model.errors import BudgetStop, BursarError, InputError, SiteError
from bursar.model.money import from_micros
from bursar.provisioning.pool import PilotPool
from bursar.provisioning.pool_snapshot import AllocationRelease, PoolSite, PoolSnapshot
from bursar.provisioning.wait_prediction import WaitPredictor
from bursar.runs.supply import Supply
from bursar.sites.protocol import Site
from bursar.sites.queue_observer import write_history
from bursar.supervisor import TaskSupervisor

PAUSE = 0.1
"""Seconds between two decisions, at the least."""

REVIEW_INTERVAL = 1.0
"""Seconds after which the pool decides again even if nothing has changed."""

MOST_SHORT = 3
"""Refusals in a row for want of money, with nothing held or unsettled, after which the run stops:
no money comes back by waiting. One alone may come of processors that were just given back."""

ASKED = "asked"
"""Kind of the journal's events with the steps of allocations, from request to end."""


BOUNDS = "bounds"
"""Kind of the event that says, at the end, how many bounds on waits were given for each site so
far, in this run and before it, and how many held."""


_ROUNDING = 100
"""Micro-units of the budget that are not spent, since amounts for leases are rounded up."""


class AllocationStep(msgspec.Struct, frozen=True, kw_only=True):
    """
    One journalled step of an allocation, from request to end.

    Parameters
    ----------
    step
        ``"asked"``, ``"began"``, ``"given back"`` or how it was lost.
    processors, seconds
        Asked for, or had.
    bundle, race
        See :class:`bursar.provisioning.pool_snapshot.AllocationRequest`.
    """

    name: str
    site: str
    step: str
    processors: int
    seconds: float | None = None
    reason: str = ""
    bundle: str = ""
    race: str = ""


def last_number(events: Sequence[RunEvent]) -> int:
    """Return the highest number in the name of a requested pilot, begun or not; 0: none was."""
    names = (
        msgspec.json.decode(event.text, type=AllocationStep).name
        for event in events
        if event.kind == ASKED
    )
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


class PoolController(Supply):
    """
    Carries a pool's decisions out at the sites, round after round, until the run stops.

    Any worker runs any task. Workers that are gone are the pool's to replace.

    Parameters
    ----------
    expects_more
        Returns whether tasks may still be added, so that idle processors are kept for a while;
        None: none are.
    """

    replaces_workers = True

    def __init__(self, pool: PilotPool, expects_more: Callable[[], bool] | None = None) -> None:
        self._pool = pool
        self._expects_more = expects_more
        self._tasks = TaskSupervisor(self._on_failure)
        self._changed = asyncio.Event()
        self._has_begun = False
        self._short = 0  # refusals for want of money in a row with nothing held

    async def begin(self) -> None:
        """Begin to decide."""
        self._count = max(self.run.state.pilots, last_number(self.run.journal.events))
        self._tasks.start(self._run())
        self._has_begun = True

    def on_money_free(self) -> None:
        """Decide again soon, because the inputs of the decision have changed."""
        self._changed.set()

    def on_fault(self, error: BursarError, allocation: Allocation) -> bool:
        """Tell people; the pool has heard of the loss, and asks another site, or later."""
        if not isinstance(error, BudgetStop | SiteError):
            return False
        if allocation.copy_of is not None:  # the first attempt of its task goes on
            return True
        self.run.notify(str(error))
        others = [a for a in self.run.provision.allocations() if a.name != allocation.name]
        if not isinstance(error, BudgetStop) or others or self.run.guard.charges.unsettled:
            self._short = 0
        else:
            self._short += 1
            if self._short >= MOST_SHORT:
                self.run.stop("goal", str(error))
        return True

    async def end(self) -> None:
        """Stop deciding."""
        await self._tasks.close()
        if self._has_begun:
            self._has_begun = False
            scores = {name: self._pool.waits.score(name) for name in self._sites}
            figures = {name: [s.given, s.held] for name, s in scores.items() if s.given}
            if figures:
                self._note(BOUNDS, msgspec.json.encode(figures).decode())

    @property
    def _sites(self) -> Mapping[str, Site]:
        return self.run.bindings.sites

    def _note(self, kind: str, text: str) -> None:
        self.run.dispatcher.store.note(kind, text)

    # Called by the provisioner.

    def began(self, allocation: Allocation) -> None:
        """Note that a site has granted the processors of an allocation."""
        if allocation.copy_of is not None:
            return
        self._pool.began(allocation.name, self.run.dispatcher.now())
        self._write(allocation, "began")
        self._changed.set()

    def moved(self, allocation: Allocation) -> None:
        """Note that another site serves a request than the one that was asked."""
        if allocation.copy_of is not None:
            return
        self._pool.moved(allocation.name, allocation.site, self.run.dispatcher.now())
        self._write(allocation, "asked", "awarded by tender")

    def ended(self, allocation: Allocation, loss: AllocationLoss, reason: str) -> None:
        """Note that an allocation is over or was never granted."""
        if allocation.copy_of is not None:
            return
        self._pool.ended(allocation.name, self.run.dispatcher.now(), loss, reason)
        self._write(allocation, loss, reason)
        self._changed.set()

    # Deciding.

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, BursarError):
            error = BursarError(f"the pool failed: {type(error).__name__}: {error}")
        self.run.fail(error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Before the view is taken: what changes from here on is seen by the next one.
            self._changed.clear()
            # One view for all decisions of a round, so that they add up to the demand.
            view = self._view()
            decisions = self._pool.decide(view)
            self._request([d for d in decisions if isinstance(d, AllocationRequest)], view.now)
            for decision in decisions:
                if isinstance(decision, AllocationRelease):
                    self._give_back(decision)
            verdict = self._pool.verdict(view)
            if verdict:
                self.run.stop("goal", verdict)
                return
            # Changes come in bursts, such as the workers of one pilot one after the other: they are
            # decided on together.
            await asyncio.sleep(PAUSE)
            until = min(loop.time() + REVIEW_INTERVAL, loop.time() + self._pool.wake - view.now)
            async with TaskSupervisor() as tasks:
                await asyncio.wait(
                    {tasks.start(self._changed.wait()), tasks.start(self.run.dispatcher.change())},
                    timeout=max(0.0, until - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )

    def _request(self, asks: Sequence[AllocationRequest], now: float) -> None:
        """Request allocations; those of one bundle know of each other."""
        copies = Counter(ask.bundle for ask in asks)
        for ask in asks:
            self._count += 1
            facts = self._sites[ask.site].facts
            allocation = Allocation(
                name=f"lease-{self._count}",
                site=ask.site,
                processors=ask.processors,
                duration=ask.duration,
                unit_price=facts.unit_price,
                fixed_price=facts.fixed_price,
                least_processors=ask.least_processors,
                least_duration=ask.least_duration,
                bundle=ask.bundle,
                copies=copies[ask.bundle] if ask.bundle else 1,
                race=ask.race,
            )
            # Journalled before it is requested, so that after a kill no later allocation gets the
            # same name.
            self._pool.asked(allocation.name, ask, now)
            self._write(allocation, "asked")
            self.run.provision.request(allocation)

    def _give_back(self, decision: AllocationRelease) -> None:
        # The pool may say so again while the processors are on their way back.
        found = self.run.provision.find(decision.name)
        if found is not None and not found.leaving:
            self._write(found, "given back", decision.reason)
            self.run.provision.give_up(decision.name)

    def _view(self) -> PoolSnapshot:
        """
        Return what the pool decides on: demand, allocations, sites, and the goal's remainder.

        Without a deadline or a budget in the goal, the remaining seconds or money are None.
        """
        now = self.run.dispatcher.now()
        loads = self.run.dispatcher.figures.leases()
        elapsed = self.run.state.clock()
        goal, free = self.run.goal(), self.run.guard.ledger.free
        demand = self.run.dispatcher.figures.demand()
        if self._expects_more is not None and self._expects_more():
            demand = replace(demand, later=demand.later + 1)
        return PoolSnapshot(
            now=now,
            demand=demand,
            allocations=tuple(
                _observed(a, loads.get(a.name))
                for a in self.run.provision.allocations()
                if a.copy_of is None  # neither room for other tasks nor the pool's to release
            ),
            sites={name: self._seen(site, goal) for name, site in self._sites.items()},
            until_deadline=None if goal.deadline is None else goal.deadline - elapsed,
            # A little less than is free: amounts are rounded up when they are set aside.
            affordable=None if goal.budget is None else from_micros(max(0, free - _ROUNDING)),
            settling=bool(self.run.guard.charges.unsettled),
        )

    def _seen(self, site: Site, goal: Goal) -> PoolSite:
        """
        Return a site's own view, as a batch site where there is a budget.

        A lease without an end may need any amount set aside for running tasks, so that with a
        budget every lease gets an end, also on sites that need none.
        """
        view = site.view()
        return view if goal.budget is None else replace(view, batch=True)

    def _write(self, allocation: Allocation, step: str, reason: str = "") -> None:
        seconds = allocation.duration
        record = AllocationStep(
            name=allocation.name,
            site=allocation.site,
            step=step,
            processors=allocation.processors,
            seconds=None if math.isinf(seconds) else seconds,
            reason=reason,
            bundle=allocation.bundle,
            race=allocation.race,
        )
        self._note(ASKED, msgspec.json.encode(record).decode())


def _observed(allocation: Allocation, load: AllocationLoad | None) -> Allocation:
    """Return an allocation with the load of its workers; without any it is idle from the grant."""
    if load is None:
        load = AllocationLoad(idle_since=allocation.granted)
    elif allocation.granted is None:
        load = replace(load, idle_since=None)
    # Workers are counted here: processors whose workers never came are silent, too.
    return replace(allocation, workload=replace(load, joined=load.joined or 0))


# Queue wait history of earlier runs, kept for later ones.

HISTORY = "waits.json"
"""File in the folder of the runs."""


def read_waits(folder: Path) -> WaitPredictor:
    """
    Read the waits that earlier runs of a folder have seen.

    Where the file is missing or damaged, the history begins anew.
    """
    try:
        return WaitPredictor.of_kept(msgspec.json.decode((folder / HISTORY).read_bytes()))
    except (OSError, msgspec.MsgspecError, InputError, AttributeError, TypeError):
        return WaitPredictor()


def write_waits(folder: Path, waits: WaitPredictor) -> None:
    """Write the waits; see :func:`bursar.sites.queue_observer.write_history`."""
    write_history(folder / HISTORY, waits.kept())
