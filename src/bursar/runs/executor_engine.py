"""A run without a campaign: leased workers that take tasks as they come."""

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import msgspec

from bursar.dispatch.folders import write_atomically
from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.run_tasks import TaskCounts
from bursar.market.ledger import Ledger
from bursar.model.campaign import Goal, Retry
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.money import from_micros
from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.report.bill import make_bill
from bursar.runs.environment import TICK, RunEnvironment, RunWork
from bursar.runs.execution import RunExecution
from bursar.runs.folder import RunFolder
from bursar.runs.forecasting.standing import RunStanding, StandingReader
from bursar.runs.incarnations import leases_of
from bursar.runs.recording.history_recorder import calls_recorder
from bursar.runs.recording.user_history import NOT_ADDED
from bursar.runs.supply import PlannedSupply, Supply
from bursar.sites.local import LocalSite
from bursar.sites.owners import OwnersBook
from bursar.sites.owners_database import is_named, owners_file, user_name
from bursar.sites.protocol import OpenableSite, Site
from bursar.sites.site_elsewhere import site_elsewhere
from bursar.sqlite_file import warn_on_stderr
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import MOST_SHARE, most_workers, split_processors


class ExecutorEngine:
    """
    Leases processors and runs submitted tasks.

    The engine is an asynchronous context: leaving gives the processors back. All methods are
    called from one loop.

    Parameters
    ----------
    path
        Folder for the journal and the run's files; a missing folder is made.
    processors
        Processors of each site; None: all of them.
    budget, deadline
        Most that may be spent, currency units, and seconds from the begin within which calls are
        to end, which the caller sees to; None for no limit.
    keep_bill
        Whether to leave ``bill.json`` in the folder.
    on_outcome
        Called with each outcome once it is durable.
    on_start
        Called with tasks that are handed to a worker.
    history
        File of the history that calls are added to, or ``none``; empty: the user's.

    Raises
    ------
    InputError
        When more processors are asked of a site than it has, when the sites
        cannot be used together, or when the folder has a journal already.
    """

    def __init__(
        self,
        path: Path,
        sites: Sequence[SiteFacts],
        *,
        processors: int | None,
        budget: float | None,
        deadline: float | None,
        keep_bill: bool,
        on_outcome: Callable[[AttemptRecord], None],
        on_start: Callable[[Sequence[int]], None],
        history: str = "",
    ) -> None:
        for site in sites:
            if processors is not None and not 1 <= processors <= site.processors:
                raise InputError(
                    f"processors must be between 1 and {site.processors}, "
                    f"which is what {site.name} has, got {processors}"
                )
        for site in sites:
            if site.kind in ("advertised", "simulated"):
                raise InputError(
                    f'site "{site.name}" is of kind "{site.kind}", which cannot run calls'
                )
        if processors is not None and any(is_acquired(site) for site in sites):
            sites = [replace(site, processors=processors) for site in sites]
        currencies = sorted({site.currency for site in sites})
        if len(currencies) > 1:
            raise InputError(f"the sites ask {' and '.join(currencies)}; expected one currency")
        folder = RunFolder(path.absolute())
        # Calls cannot be resumed: their futures ended with the process that made them.
        if folder.journal_file.exists():
            raise InputError(
                "has the journal of earlier calls", where=str(path), hint="choose another folder"
            )
        try:
            for part in (folder.files, folder.work, folder.logs):
                part.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BursarError(f"{path}: cannot make the folder: {error.strerror}") from None
        self._folder = folder
        self._processors = processors
        self._billed: list[Task] | None = [] if keep_bill else None
        owners = _open_owners(folder)
        self._sites = known = {facts.name: _site(facts, folder, owners) for facts in sites}
        self._to_open = [site for site in known.values() if isinstance(site, OpenableSite)]
        self._opened = AsyncExitStack()
        self._owners = owners
        # One worker carries out as many calls a second as this process hands out, so there need not
        # be more for narrow calls; beyond MOST_SHARE it runs out of file descriptors.
        self._are_whole = all(
            (processors or site.processors) <= MOST_SHARE for site in sites if site.kind == "local"
        )
        work = RunWork(
            tasks=(),
            parents=None,
            goal=Goal(budget=budget, deadline=deadline),
            retry=Retry(),
            root=folder.files,
            may_be_wide=self._are_whole,
        )
        self._is_open = True
        supply: Supply
        if any(is_acquired(site) for site in sites):
            supply = _pool(folder, lambda: self._is_open)
        else:
            supply = PlannedSupply(_whole(sites, processors))
        self._execution = RunExecution(
            folder,
            work,
            RunEnvironment(sites=known, supply=supply),
            currency=sites[0].currency,
            on_outcome=self._took_in,
            on_start=on_start,
        )
        self._on_outcome = on_outcome
        self._supply = supply
        self._widths: list[int] = []
        self._reader = StandingReader(self._widths, known)
        self._observed = calls_recorder(
            history, folder.name if keep_bill else "calls", sites, self._execution.tasks
        )
        self._tasks = TaskSupervisor(self._on_failure)

    async def __aenter__(self) -> "ExecutorEngine":
        self.failed: asyncio.Future[BursarError] = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as opening:
            if self._owners is not None:
                opening.callback(self._owners.close)
                opening.callback(self._owners.forget_leases)
            for site in self._to_open:
                await opening.enter_async_context(site.opened())
            await self._execution.__aenter__()
            # Only when all have opened; else those that have are closed again.
            self._opened = opening.pop_all()
        self._tasks.start(self._tick())
        self._tasks.start(self._observed.batches.watch(), on_failure=self._on_history_failure)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # First, so that nobody looks at workers that are being dismissed and takes them for lost.
        await self._tasks.close()
        async with self._opened:
            await self._execution.__aexit__(kind, error, trace)
        await self._observed.batches.flush()
        if self._billed is not None:
            await asyncio.to_thread(self._write_bill, self._billed)

    def standing(self) -> tuple[RunStanding, TaskCounts, Sequence[Task]]:
        """Return how the calls stand, how many there are in each state, and all of them."""
        standing = self._reader.read(self._execution, self._supply)
        return standing, self._execution.counts, tuple(self._execution.tasks)

    def widest(self) -> dict[str, int]:
        """Return the most processors that a call may hold, by site."""
        found = {}
        for name, site in self._sites.items():
            most = site.view().per_node or self._processors or site.facts.processors
            if not self._are_whole and site.facts.kind == "local":
                most = min(split_processors(most, rigid=False, most=most_workers(most)))
            found[name] = min(most, self._processors or most)
        return found

    def close_to_calls(self) -> None:
        """Keep no processors for calls that might still come."""
        self._is_open = False

    def submit(self, tasks: Sequence[Task]) -> range:
        """Add tasks; return their numbers."""
        if self._billed is not None:
            # Pickled calls would fill memory, and the bill wants names only.
            self._billed.extend(task.without_steps() for task in tasks)
        self._widths.extend(task.processors for task in tasks)
        return self._execution.submit(tasks)

    def cancel(self, task: int) -> None:
        """Cancel a task, running or not."""
        self._execution.dispatcher.cancel(task)

    def spending(self) -> tuple[float, float]:
        """Return what the leases have cost so far, and what is held for them, currency units."""
        execution = self._execution
        ledger, spent = execution.guard.ledger, execution.spent
        # What leases have accrued is still held in the ledger.
        return spent, max(0.0, from_micros(ledger.spent + ledger.held) - spent)

    def _write_bill(self, tasks: Sequence[Task]) -> None:
        journal = read_journal(self._folder.journal_file)
        bill = make_bill(
            self._folder.name,
            Ledger(journal.transfers),
            tuple(leases_of(journal.events).values()),
            tasks,
            journal.records,
        )
        text = msgspec.json.format(msgspec.json.encode(bill.to_dict()), indent=2)
        write_atomically(self._folder.bill_file, text)

    def _took_in(self, record: AttemptRecord) -> None:
        self._observed.take_in(record)
        self._reader.take_in(record)
        self._on_outcome(record)

    def _on_history_failure(self, error: BaseException) -> None:
        """Go on without a history after a fault of ours there."""
        self._observed.batches.close()
        warn_on_stderr(NOT_ADDED.format(f"{type(error).__name__}: {error}"))

    async def _tick(self) -> None:
        # One future for all calls: whoever waits learns of a spent budget or lost workers by it.
        self.failed.set_result(await self._watch())

    def _on_failure(self, error: BaseException) -> None:
        """Pass a fault of ours on to all that wait for results."""
        failure = BursarError(f"the workers went out of sight: {error}")
        failure.__cause__ = error
        self.failed.set_result(failure)

    async def _watch(self) -> BursarError:
        """Check budget and workers until something is wrong; return the error."""
        execution = self._execution
        while True:
            await asyncio.sleep(TICK)
            execution.tick()
            if execution.cause == "budget" or execution.counts.refused:
                return BudgetStop(execution.reason or execution.dispatcher.figures.refusal)
            if execution.cause is not None:
                return BursarError(execution.reason)
            if execution.dispatcher.store.fault is not None:
                return execution.dispatcher.store.fault


def _open_owners(folder: RunFolder) -> OwnersBook | None:
    """Open the owners' book; None where nothing is shared."""
    path = owners_file()
    if path is None:
        return None
    owners = OwnersBook(path, run=folder.name, identity=secrets.token_hex(8), customer=user_name())
    # As for runs: where the user's own folder cannot be written, each goes on as if alone.
    return owners if is_named() or owners.is_usable else None


def is_acquired(site: SiteFacts) -> bool:
    """Whether processors of a site come and go while calls are made, by the rules of a pool."""
    return (site.batch or site.ssh or site.cloud) is not None


def _pool(folder: RunFolder, expects_more: Callable[[], bool]) -> Supply:
    # Late: most executors lease processors of this machine, once.
    from bursar.provisioning.pool import PilotPool
    from bursar.runs.pool_controller import PoolController, read_waits

    return PoolController(PilotPool(read_waits(folder.path.parent)), expects_more)


def _site(facts: SiteFacts, folder: RunFolder, owners: OwnersBook | None) -> Site:
    elsewhere = site_elsewhere(
        facts, run=secrets.token_hex(16), folder=folder.path, pilots=folder.pilots
    )
    # An executor waits for no run to end: the caller may hold both.
    return elsewhere or LocalSite(facts, places=owners if facts.is_divided else None)


def _whole(sites: Sequence[SiteFacts], processors: int | None) -> Plan:
    """Return a plan that leases processors of all sites without end, and places no task."""
    return Plan(
        purchases=tuple(
            Purchase(
                slot=Slot(
                    site=facts.name,
                    start=0.0,
                    duration=math.inf,
                    processors=processors or facts.processors,
                    unit_price=facts.unit_price,
                    fixed_price=facts.fixed_price,
                    leased=True,
                )
            )
            for facts in sites
        ),
        placements=(),
        makespan=None,
        cost=None,
        currency=sites[0].currency,
        utilisation=None,
        algorithm="none",
    )
