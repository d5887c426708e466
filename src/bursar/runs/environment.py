"""What a run carries out, and where: work, sites, supply and time, real or simulated."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bursar.broker.trading import CampaignTrader
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.core import DataAt
from bursar.engine.shared_resources import SharedResources, resources_by_site
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal, Retry
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.runs.folder import RunFolder
from bursar.runs.supply import Delay, Supply
from bursar.runs.surviving_workers import WorkerContactFile, outlives
from bursar.sites.local import LocalSite
from bursar.sites.owners import OwnersBook
from bursar.sites.protocol import OpenableSite, Site
from bursar.sites.site_elsewhere import site_elsewhere
from bursar.worker.detached_workers import DetachedStarter, WorkerSpec

TICK = 0.2
"""Seconds between checks of the budget, at most."""

REFRESH = 0.25
"""Seconds between updates of the progress display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork:
    """
    What a run carries out, whether or not a campaign says so.

    Parameters
    ----------
    tasks, parents
        Tasks to run, and their parents' numbers; more tasks may be submitted later.
    goal, retry, root
        Goal, retry rules and folder of the campaign.
    resources
        How many of each the tasks hold at a time, at most, at all sites together.
    may_be_wide
        Whether tasks that are submitted later may hold several processors.
    """

    tasks: Sequence[Task]
    parents: Sequence[Sequence[int]] | None
    goal: Goal
    retry: Retry
    root: Path
    resources: Mapping[str, int] = field(default_factory=dict)
    may_be_wide: bool = False

    @classmethod
    def of(cls, campaign: Campaign) -> "RunWork":
        """Return the work of a campaign."""
        workflow = campaign.workflow
        return cls(
            tasks=workflow.tasks,
            parents=workflow.parents,
            goal=campaign.goal,
            retry=campaign.retry,
            root=campaign.root,
            resources=campaign.resources,
        )


@dataclass(frozen=True, slots=True)
class StopOrder:
    """
    An order to end a run before its tasks are done.

    Parameters
    ----------
    reason
        Why, in one line.
    at_once
        Whether running tasks are ended, too.
    """

    reason: str
    at_once: bool


class RecordListener(Protocol):
    """
    Hears of each attempt of a run once it is durable, and may end the run.

    Attributes
    ----------
    may_stop
        Whether it may end the run, so that no worker is to have tasks ahead of time.
    """

    @property
    def may_stop(self) -> bool: ...

    def heard(self, folder: RunFolder, record: AttemptRecord) -> StopOrder | None:
        """Take in an attempt of the run in a folder; return an order to end the run, or None."""


LifespanFactory = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """
    The environment of a run: real sites, or a simulation.

    Parameters
    ----------
    supply
        What brings processors of these sites to the tasks; serves one incarnation.
    trading
        Agrees with owners that negotiate on each allocation; None: no owner does, or the supply
        agrees with them itself.
    loop
        Factory of the event loop; None: asyncio's default.
    lifespan
        Context that is entered before the run begins and left when it has ended.
    delay
        Seconds until a task's data have arrived where one that follows runs; None: they are
        there at once.
    data
        See :class:`bursar.engine.core.EngineSettings`.
    prefetch
        Whether workers get tasks ahead of time.
    hears_first
        See :class:`bursar.engine.core.EngineSettings`.
    tick
        Seconds between looks at money and workers, at most.
    durable
        Whether what is journalled survives a power cut.
    refresh
        Seconds between two updates of the progress display.
    amendable
        Whether the goal may be amended from outside during the run.
    contact
        File by which workers are found that go on when this process is killed; None: all end with
        this process.
    secrets
        See :class:`bursar.engine.core.EngineSettings`.
    history
        History that ended tasks and forecasts are added to; None: none is kept.
    is_forecast
        Whether the run's end and cost are forecast again and again while it goes on.
    has_files
        Whether tasks make the files that they state; not in simulated time.
    added
        Takes further sites while the run goes on; None: there can be none.
    """

    sites: Mapping[str, Site]
    supply: Supply
    trading: CampaignTrader | None = None
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    lifespan: LifespanFactory = nullcontext
    delay: Delay | None = None
    data: DataAt | None = None
    prefetch: bool = True
    hears_first: bool = False
    tick: float = TICK
    durable: bool = True
    refresh: float = REFRESH
    amendable: bool = True
    contact: WorkerContactFile | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    history: History | None = None
    is_forecast: bool = False
    has_files: bool = True
    added: "AddedSites | None" = None

    def shared_resources(self, of_all: Mapping[str, int]) -> dict[str, SharedResources]:
        """Return what tasks hold of each site, and of ``of_all`` at all sites together."""
        return resources_by_site(
            {name: {**of_all, **site.facts.resources} for name, site in self.sites.items()}, of_all
        )


def make_site(
    facts: SiteFacts, folder: RunFolder, owners: OwnersBook | None, by_task: bool
) -> Site:
    """Return the object that runs tasks at a site; the last two matter to local sites only."""
    elsewhere = site_elsewhere(facts, run=folder.identity, folder=folder.path, pilots=folder.pilots)
    if elsewhere is not None:
        return elsewhere
    if facts.kind != "local":
        raise InputError(
            f'site "{facts.name}" is {facts.kind}, which cannot run tasks', where=folder.name
        )
    starter = None
    # Jobs that are bought one by one have an agreed end, and none of them could be taken over.
    if by_task and outlives():
        # Their complaints not to our standard error: whoever reads that waits for its end.
        terms = WorkerSpec(inherits=True, errors=str(folder.worker_log.absolute()))
        starter = DetachedStarter(terms)
    return LocalSite(facts, places=owners, by_task=by_task, starter=starter)


class AddedSites:
    """
    Sites that are added while a run goes on, open until the run has ended.

    Parameters
    ----------
    sites
        Sites of the run by name, to which more are added.
    make
        Makes the object that runs tasks at a site.
    """

    def __init__(self, sites: dict[str, Site], make: Callable[[SiteFacts], Site]) -> None:
        self.sites = sites
        self._make = make
        self._open = AsyncExitStack()

    def around(self, lifespan: LifespanFactory) -> LifespanFactory:
        """Return a lifespan after which the added sites are closed."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[None]:
            async with self._open, lifespan():
                yield

        return opened

    async def add(self, facts: SiteFacts) -> None:
        """
        Open a site and add it to those of the run.

        Raises
        ------
        BursarError
            When it cannot be used.
        """
        site = self._make(facts)
        if isinstance(site, OpenableSite):
            await self._open.enter_async_context(site.opened())
        self.sites[facts.name] = site
