"""What a run carries out, and where: work, sites, supply and time, real or simulated."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bursar.broker.trading import CampaignTrader
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.core import DataAt
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal, Retry
from bursar.model.task import Task
from bursar.runs.folder import RunFolder
from bursar.runs.supply import Delay, Supply
from bursar.runs.surviving_workers import WorkerContactFile
from bursar.sites.protocol import Site

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
    may_be_wide
        Whether tasks that are submitted later may hold several processors.
    """

    tasks: Sequence[Task]
    parents: Sequence[Sequence[int]] | None
    goal: Goal
    retry: Retry
    root: Path
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
