"""The forecast of one run: where it goes while the run goes on."""

import os
import shlex
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bursar.broker.feasibility import PaceEstimate
from bursar.dispatch.journal_records import AttemptRecord
from bursar.forecasts.fan import ForecastFan
from bursar.model.campaign import Campaign, Goal
from bursar.model.plan import Plan
from bursar.model.task import Outcome
from bursar.runs.environment import RunEnvironment
from bursar.runs.execution import RunExecution
from bursar.runs.folder import RunFolder, RunManifest
from bursar.runs.forecasting.journalled import FORECAST, JournalPace
from bursar.runs.forecasting.live_forecast import ForecastUpdate, LiveForecast
from bursar.runs.forecasting.odds_line import OddsWatch, odds_line
from bursar.runs.notices import RunNotices
from bursar.runs.recording.history_recorder import execution_facts, execution_name
from bursar.runs.supply import PlannedSupply

if TYPE_CHECKING:
    from bursar.forecasts.known_runtimes import KnownRuntimes

DEFAULT_FOLDER = "runs"
"""Folder in which ``bursar amend`` looks for a run."""


class RunForecast:
    """
    What is expected of a run while it goes on: its pace, and its forecast where one is made.

    Parameters
    ----------
    tell
        Called with a line for people.
    """

    def __init__(
        self,
        folder: RunFolder,
        info: RunManifest,
        campaign: Campaign,
        plan: Plan,
        environment: RunEnvironment,
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._info = info
        self._campaign = campaign
        self._history = environment.history
        self._currency = plan.currency
        self._supply = environment.supply
        self.pace = PaceEstimate(campaign.workflow, plan)
        """The end by the mean of what has ended, for where there is no forecast."""
        self.live: LiveForecast | None = None
        """The forecast; None where none is made."""
        if environment.is_forecast:
            name = execution_name(folder, info)
            facts = execution_facts(name, info)
            self.live = LiveForecast(
                campaign, info.sites, environment.history, facts, tell, environment.sites
            )
        self.listener: Callable[[ForecastUpdate], Awaitable[None]] | None = None
        """Called with each new forecast; no other is made before it returns."""
        self._is_estimated = all(task.runtime is not None for task in campaign.workflow.tasks)
        self._journalled = JournalPace()
        self._odds = OddsWatch()
        self._goal: Goal | None = None

    @property
    def fan(self) -> ForecastFan | None:
        """The latest forecast as told; None while there is none."""
        return None if self.live is None else self.live.fan

    def known(self) -> "KnownRuntimes | None":
        """
        Return what earlier runs say of the run times, learned once; None without a history.

        Raises
        ------
        InputError, BursarError
            When the history cannot be read, and no forecast is made.
        """
        if self._history is None:
            return None
        if self.live is not None:
            return self.live.known()
        from bursar.forecasts.known_runtimes import known_runtimes  # late: it loads the kernels

        return known_runtimes(self._campaign, (), self._history)

    def take_in(self, record: AttemptRecord) -> None:
        """Note an attempt that has ended."""
        self.pace.learn(record.outcome, record.final)
        if self.live is not None:
            self.live.take_in(record)

    def take_in_past(self, past: Sequence[Outcome]) -> None:
        """Note the last outcomes of tasks that an earlier process has carried out."""
        for outcome in past:
            self.pace.learn(outcome, True)

    def finish(self, elapsed: float, held: int) -> float | None:
        """
        Return when the last task is expected to end, seconds from the begin; None when unknown.

        Parameters
        ----------
        elapsed
            Seconds since the begin.
        held
            Processors that are held now.
        """
        if self.fan is not None:
            return max(self.fan.end_s.p50, elapsed)
        return self.pace.finish(elapsed, held)

    async def watch(self, execution: RunExecution, notices: RunNotices) -> None:
        """Make forecasts, journal them now and then, and tell when the odds have fallen."""

        async def told(update: ForecastUpdate) -> None:
            await self._take_in_update(update, execution, notices)
            if self.listener is not None:
                await self.listener(update)

        if self.live is not None:
            await self.live.watch(execution, self._supply, told)

    async def _take_in_update(
        self, update: ForecastUpdate, execution: RunExecution, notices: RunNotices
    ) -> None:
        goal, fan = update.standing.goal, update.fan
        if goal != self._goal:
            self._goal = goal
            self._odds.goal_changed()
        has_fallen = self._odds.has_fallen(fan)
        if self._journalled.is_next(fan) or has_fallen or update.share is not None:
            execution.note(FORECAST, msgspec.json.encode(fan.to_dict()).decode())
            self._info.forecast = fan
            self._folder.write_info(self._info)
        if not has_fallen or self.live is None:
            return
        supply = self._supply
        # A plan of unknown run times is never better, whatever it buys.
        can_rebuy = isinstance(supply, PlannedSupply) and supply.can_rebuy and self._is_estimated
        remedy = await self.live.remedy(update, can_rebuy=can_rebuy)
        line = odds_line(
            self._named(),
            fan,
            goal,
            remedy,
            begin=update.standing.moment - update.standing.now,
            currency=self._currency,
        )
        execution.notify(line)
        notices.trouble("odds", line)

    def _named(self) -> str:
        """Return the run as a command names it from here."""
        base = Path(os.environ.get("BURSAR_RUNS", DEFAULT_FOLDER))
        path = self._folder.path.absolute()
        return self._folder.name if path.parent == base.absolute() else shlex.quote(str(path))
