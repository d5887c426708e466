"""Processors by a scheduler that sends tasks to sites one by one while a run goes on."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bursar.broker.dynamic_scheduler import DynamicScheduler, Ended
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.errors import BudgetStop, BursarError, SiteError
from bursar.runs.supply import Supply


class ScheduledSupply(Supply):
    """
    Carries out what a strategy, the broker or best effort decides task by task.

    Parameters
    ----------
    scheduler
        Requests processors as tasks end.
    """

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
