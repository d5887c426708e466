"""The forecast of a run while it goes on: made off the event loop, told, and kept."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bursar.dispatch.journal_records import AttemptRecord
from bursar.forecasts.fan import ForecastFan
from bursar.history.forecast_records import SHARES, FoundScores
from bursar.history.store import History
from bursar.history.writing import ExecutionFacts
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.runs.execution import RunExecution
from bursar.runs.forecasting.copy_offers import ChosenCopy, CopyOffer, judge_copies
from bursar.runs.forecasting.odds_line import GoalRemedy
from bursar.runs.forecasting.standing import RunStanding, StandingReader
from bursar.runs.supply import PlannedSupply, Supply
from bursar.sites.protocol import Site

if TYPE_CHECKING:
    from bursar.forecasts.campaign_forecast import CampaignForecast
    from bursar.forecasts.known_runtimes import KnownRuntimes
    from bursar.runs.forecasting.standing_forecast import StandingForecaster

FIRST, FIRST_OF_EACH = 1.0, 2e-3
"""
Seconds after which the first forecast is made, and seconds more for each task: a shorter run has
none, since a forecast would take a notable part of its processor time.
"""

PAUSE = 2.0
"""Seconds between two forecasts, at least."""

STILL = 20.0
"""Seconds after which a forecast is made anew although no task has ended."""

IN_TIME = 0.1
"""Pause between forecasts by which copies are judged, as a share of the time to the deadline."""

PARTS = 200
"""A forecast is made for each such part of a run's expected length, at most."""

LOAD = 0.01
"""Share of a processor that forecasts may take, but for the first one, which mostly loads code."""

MOST_TASKS = 200_000
"""Tasks of a run, at most, for which forecasts are made while it goes on."""

NOT_KEPT = "what is forecast of this run is not kept in the history: {}"
"""Line for people where a history cannot be written."""

_STEP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastUpdate:
    """
    A forecast of a run as it stood.

    Parameters
    ----------
    share
        Share of :data:`~bursar.history.forecast_records.SHARES` at which it is kept; None: it is
        not.
    """

    standing: RunStanding
    forecast: "CampaignForecast"
    fan: ForecastFan
    share: float | None = None


def next_asked(asked: float, standing: RunStanding) -> float:
    """Return the next pause before a forecast that somebody waits for: longer, but in time."""
    if not standing.stragglers:
        return math.inf
    deadline = standing.goal.deadline
    left = math.inf if deadline is None or deadline < standing.now else deadline - standing.now
    return min(2 * asked, STILL, max(PAUSE, IN_TIME * left))


class LiveForecast:
    """
    Forecasts a run while it goes on.

    Parameters
    ----------
    sites
        Sites of the run.
    history
        History to learn from, and to keep forecasts in; None: neither.
    facts
        The run, as the history names it.
    tell
        Called with a line for people when forecasts cannot be kept.
    open_sites
        The same sites as the run uses them, by name.
    """

    def __init__(
        self,
        campaign: Campaign,
        sites: Sequence[SiteFacts],
        history: History | None,
        facts: ExecutionFacts,
        tell: Callable[[str], None],
        open_sites: Mapping[str, Site],
    ) -> None:
        self._campaign = campaign
        self._sites = sites
        self._history = history
        self._facts = facts
        self._tell = tell
        self._reader = StandingReader(
            [task.processors for task in campaign.workflow.tasks], open_sites
        )
        self._forecaster: StandingForecaster | None = None
        self._using = threading.Lock()
        self._kept: set[float] = set()
        self._scores: dict[tuple[str, float], FoundScores] = {}
        self._cost = 0.0
        self._complaint = ""
        self._last = -math.inf
        self._seen = -1
        self._asked = math.inf  # pause before the forecast that somebody waits for
        self.latest: ForecastUpdate | None = None
        """The latest forecast; None while nothing is known."""

    @property
    def fan(self) -> ForecastFan | None:
        """The latest forecast as told; None while nothing is known."""
        return None if self.latest is None else self.latest.fan

    def known(self) -> "KnownRuntimes":
        """Return what is known of the run times from earlier runs; may take a second."""
        with self._using:
            return self._learned().known

    def take_in(self, record: AttemptRecord) -> None:
        """Note an attempt that has ended."""
        self._reader.take_in(record)

    def consider(self, stragglers: frozenset[int], fresh: float) -> None:
        """
        Have a forecast made soon by which copies of some tasks are judged; none: of no task.

        Parameters
        ----------
        fresh
            Probability that a copy is not as slow as the first attempt of its task.
        """
        reader = self._reader
        if not stragglers:
            self._asked = math.inf
        elif not stragglers <= reader.stragglers or math.isinf(self._asked):
            self._asked = PAUSE
        reader.stragglers, reader.fresh = stragglers, fresh

    async def watch(
        self,
        execution: RunExecution,
        supply: Supply,
        on_update: Callable[[ForecastUpdate], Awaitable[None]],
    ) -> None:
        """
        Make forecasts until cancelled.

        Parameters
        ----------
        on_update
            Called with each new forecast; no other is made before it returns.
        """
        if len(self._campaign.workflow.tasks) > MOST_TASKS:
            return
        for record in supply.run.journal.records:
            self._reader.take_in(record)
        clock = asyncio.get_running_loop().time
        begun = clock()
        # As the run stands before any task has ended, whenever the forecast of that is made.
        standing = self._reader.read(execution, supply)
        await asyncio.sleep(FIRST + FIRST_OF_EACH * len(self._campaign.workflow.tasks))
        while True:
            if self._is_due(clock(), begun, supply):
                cost = time.thread_time()
                if self.latest is not None or not standing.leases or self._seen >= 0:
                    standing = self._reader.read(execution, supply)
                self._last, self._seen = clock(), self._reader.ended
                self._asked = next_asked(self._asked, standing)
                self._cost += time.thread_time() - cost
                update = await asyncio.to_thread(self._update, standing)
                if self._complaint:  # told here, as people are told from the loop only
                    self._tell(self._complaint)
                    self._complaint = ""
                if update is not None:
                    self.latest = update
                    await on_update(update)
            await asyncio.sleep(_STEP)

    async def remedy(self, update: ForecastUpdate, *, can_rebuy: bool) -> GoalRemedy | None:
        """Return what would keep the goal with its confidence, on the draws of a forecast."""
        return await asyncio.to_thread(self._remedy, update, can_rebuy)

    async def copy_to_buy(
        self, update: ForecastUpdate, offers: Sequence[CopyOffer]
    ) -> ChosenCopy | None:
        """Return the copy for which processors are bought, on the draws of a forecast."""
        return await asyncio.to_thread(self._copy_to_buy, update, offers)

    async def odds_of(self, update: ForecastUpdate, plan: Plan) -> float | None:
        """
        Return the odds of a plan of the tasks left, on the draws of a forecast; None: unknown.

        Parameters
        ----------
        plan
            Plan whose clock begins when the run stood as it did; tasks that run end first.
        """
        return await asyncio.to_thread(self._odds_of, update, plan)

    def _is_due(self, now: float, begun: float, supply: Supply) -> bool:
        if isinstance(supply, PlannedSupply) and supply.is_planning:
            return False  # nothing is bought that could be forecast
        waited = now - self._last
        if waited >= self._asked:
            return True  # the money that a copy may save is worth more than this
        if self._cost > LOAD * (now - begun):
            return False
        if self._next_share() is not None and waited >= _STEP:
            return True
        whole, is_passed = 0.0, False
        if self.latest is not None:
            end = self.latest.fan.end_s
            whole = end.p50
            # That the run has not ended by then is news, too: its last tasks take longer.
            is_passed = self.latest.standing.now + waited > end.p90
        pause = max(PAUSE, whole / PARTS)
        has_news = is_passed or self._reader.ended != self._seen
        return waited >= (pause if has_news else max(pause, STILL))

    def _next_share(self) -> float | None:
        """Return the share whose forecast is to be kept now; None: it is there already."""
        ended = self._reader.ended / max(1, len(self._campaign.workflow.tasks))
        if ended >= 1:
            return None
        reached = max(share for share in SHARES if share <= ended)
        return None if reached in self._kept else reached

    # In a thread.

    def _update(self, standing: RunStanding) -> ForecastUpdate | None:
        # A cancelled call goes on in its thread.
        with self._using:
            began = time.thread_time()
            update = self._forecast(standing)
            if update is None or self.latest is not None:
                self._cost += time.thread_time() - began
            return update

    def _forecast(self, standing: RunStanding) -> ForecastUpdate | None:
        forecaster = self._learned()
        tasks = len(self._campaign.workflow.tasks)
        if len(standing.ended) >= tasks:
            return None
        share = max(one for one in SHARES if one <= len(standing.ended) / tasks)
        forecast = forecaster.forecast(standing, self._scores_at(forecaster.known.basis, share))
        if forecast is None:
            return None
        fan = ForecastFan.of(forecast, standing.goal, standing.now)
        if share in self._kept:
            return ForecastUpdate(standing=standing, forecast=forecast, fan=fan)
        self._kept.add(share)
        kept = forecaster.kept(forecast, standing, share)
        if kept is not None and self._history is not None:
            try:
                self._history.add_forecast(self._facts, kept)
            except BursarError as error:
                self._history = None
                self._complaint = NOT_KEPT.format(error)
        return ForecastUpdate(standing=standing, forecast=forecast, fan=fan, share=share)

    def _learned(self) -> "StandingForecaster":
        """Return what makes forecasts, which learns from the history once."""
        if self._forecaster is None:
            from bursar.runs.forecasting.standing_forecast import StandingForecaster

            try:
                self._forecaster = self._made(StandingForecaster, self._history)
            except BursarError:  # was told where run times were looked up, or will be
                self._forecaster = self._made(StandingForecaster, None)
        return self._forecaster

    def _made(
        self, make: "type[StandingForecaster]", history: History | None
    ) -> "StandingForecaster":
        return make(self._campaign, self._sites, history, self._facts.name)

    def _scores_at(self, basis: str, share: float) -> FoundScores:
        if self._history is None:
            return [], []
        if (basis, share) not in self._scores:
            try:
                self._scores[basis, share] = self._history.forecast_scores(
                    self._facts.campaign, basis, share
                )
            except BursarError:
                self._scores[basis, share] = [], []
        return self._scores[basis, share]

    def _remedy(self, update: ForecastUpdate, can_rebuy: bool) -> GoalRemedy | None:
        from bursar.runs.forecasting.remedies import find_remedy

        began = time.thread_time()
        with self._using:
            assert self._forecaster is not None
            held = update.standing.held
            free = {site.name: site.processors - held.get(site.name, 0) for site in self._sites}
            found = find_remedy(
                update.standing,
                update.forecast,
                free,
                self._forecaster.again,
                can_rebuy=can_rebuy,
            )
            self._cost += time.thread_time() - began
            return found

    def _copy_to_buy(
        self, update: ForecastUpdate, offers: Sequence[CopyOffer]
    ) -> ChosenCopy | None:
        with self._using:
            assert self._forecaster is not None
            return judge_copies(update.standing, update.forecast, offers, self._forecaster.again)

    def _odds_of(self, update: ForecastUpdate, plan: Plan) -> float | None:
        with self._using:
            assert self._forecaster is not None
            standing = update.standing
            leases = {
                f"{number}": replace(
                    one, slot=replace(one.slot, start=one.slot.start + standing.now)
                )
                for number, one in enumerate(plan.purchases)
            }
            # Running tasks end where they are; their processors then go back.
            changed = replace(
                standing, leases=leases, queued={}, opening={}, lease_of={}, plan=plan
            )
            forecast = self._forecaster.again(changed)
        if forecast is None:
            return None
        return forecast.odds(standing.goal.deadline, standing.goal.budget)
