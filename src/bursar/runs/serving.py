"""A run without a campaign: leased workers that take tasks as they come."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from bursar.model.campaign import Retry
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.goal import Goal
from bursar.model.outcome import Outcome
from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.runs.execution import TICK, Execution
from bursar.runs.folder import RunFolder
from bursar.sites.local import LocalSite
from bursar.sites.protocol import Site


class Service:
    """
    Leases processors and carries out what is submitted, until it is left.

    Use it as an asynchronous context, on the loop that its other methods are
    called from.

    Parameters
    ----------
    path
        Folder for the journal and what goes with it; made where there is none.
    sites
        Where to lease.
    processors
        How many of each site; None: all it has.
    budget
        Most that may be spent, currency units; None for no limit.
    on_outcome
        Told of each outcome once it is durable, and whether it is final.
    on_start
        Told of tasks that are handed to a worker.

    Raises
    ------
    InputError
        When more processors are asked of a site than it has.
    """

    def __init__(
        self,
        path: Path,
        sites: Sequence[SiteFacts],
        *,
        processors: int | None,
        budget: float | None,
        on_outcome: Callable[[Outcome, bool], None],
        on_start: Callable[[Sequence[int]], None],
    ) -> None:
        for site in sites:
            if processors is not None and not 1 <= processors <= site.processors:
                raise InputError(
                    f"processors must be between 1 and {site.processors}, "
                    f"which is what {site.name} has, got {processors}"
                )
        folder = RunFolder(path)
        for part in (folder.files, folder.work, folder.logs):
            part.mkdir(parents=True, exist_ok=True)
        local: dict[str, Site] = {facts.name: LocalSite(facts) for facts in sites}
        self._execution = Execution(
            folder,
            (),
            None,
            goal=Goal(budget=budget),
            retry=Retry(),
            root=folder.files,
            plan=_whole(sites, processors),
            sites=local,
            rigid=False,
            on_outcome=on_outcome,
            on_start=on_start,
        )
        self._ticking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Service":
        self.failed: asyncio.Future[BursarError] = asyncio.get_running_loop().create_future()
        await self._execution.__aenter__()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await self._execution.__aexit__(kind, error, trace)

    def submit(self, task: Task) -> int:
        """Adds a task; its number."""
        return self._execution.submit(task)

    def cancel(self, task: int) -> None:
        """A task is not wanted any more."""
        self._execution.dispatcher.cancel(task)

    async def _tick(self) -> None:
        execution = self._execution
        while not self.failed.done():
            await asyncio.sleep(TICK)
            execution.tick()
            if execution.cause == "budget" or execution.counts.refused:
                reason = execution.reason or execution.dispatcher.refusal
                self.failed.set_result(BudgetStop(reason))
            elif execution.cause is not None:
                self.failed.set_result(BursarError(execution.reason))
            elif execution.dispatcher.fault is not None:
                self.failed.set_result(execution.dispatcher.fault)


def _whole(sites: Sequence[SiteFacts], processors: int | None) -> Plan:
    """Every site's processors without end, and no task placed yet."""
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
