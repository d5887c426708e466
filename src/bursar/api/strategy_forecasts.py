"""
Forecasts of a strategy by what earlier runs say, and the spare time that a confidence needs.

A strategy decides job by job, so that no list of purchases says what it will do. The strategy
itself is carried out, in simulation, with each draw of run times: the same scheduler, adviser and
budget guard that bring the jobs to their sites, which learn from the drawn run times what they
would learn in the run.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bursar.api.job_batches import MOST_JOBS, JobBatches, in_batches
from bursar.api.known_campaign import ForeseenCampaign
from bursar.broker.strategy_simulation import (
    EXPECTED,
    StrategyDraw,
    StrategySimulationResult,
)
from bursar.forecasts.campaign_forecast import (
    NO_PROGRESS,
    SEED,
    CampaignForecast,
    CampaignForecaster,
    TaskProgress,
)
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import BursarError
from bursar.model.site import SiteFacts
from bursar.report.tables import amount_above, span_above

MOST_RUNTIMES = 8_000_000
"""Run times that are drawn, at most."""

JOBS = 10_000
"""Jobs that are simulated for a forecast; large campaigns get fewer draws."""

FEWEST_DRAWS, MOST_DRAWS = 20, 100
"""
Draws on which odds are told. As many others choose the spare time: what is chosen on some draws has
better odds on these than on others.
"""

SPARES = (0.0, 0.1, 0.2, 0.35, 0.5)
"""Shares of the time left that a strategy may keep; the least that is sure enough is chosen."""

LARGER = (1.1, 1.25, 1.5, 2.0, 3.0)
"""Factors of a limit that are tried where the confidence cannot be reached."""

StrategyRun = Callable[
    [Campaign, Goal, float, StrategyDraw, JobBatches | None], StrategySimulationResult | None
]
"""
Simulates a strategy for a campaign under a goal, with a share of spare time and one draw. Where the
campaign is of batches, these are told, too.
"""


class TooManyJobs(BursarError):
    """A campaign is too large for odds of a strategy."""


class StrategyForecasts:
    """
    Forecasts a strategy under one goal or another, all on the same draws of run times.

    Parameters
    ----------
    foreseen
        What is known of the jobs left.
    simulate
        Carries the strategy out.
    progress
        How far the run has come.

    Raises
    ------
    UnknownRuntimes
        When nothing is known of how long the jobs run.
    TooManyJobs
        When the campaign has too many jobs, even in batches.
    """

    def __init__(
        self,
        foreseen: ForeseenCampaign,
        sites: Sequence[SiteFacts],
        simulate: StrategyRun,
        progress: TaskProgress = NO_PROGRESS,
    ) -> None:
        assert foreseen.known is not None
        self._campaign = campaign = foreseen.campaign
        jobs = max(1, len(campaign.workflow.tasks) - len(progress.ended))
        self._batches = in_batches(
            campaign,
            sites,
            foreseen.known.tasks.kind,
            ended=progress.ended,
            running=progress.elapsed,
        )
        units = jobs
        if self._batches is not None:
            units = len(self._batches.campaign.workflow.tasks) - len(progress.ended)
        if (self._batches is None and jobs > MOST_JOBS) or 2 * FEWEST_DRAWS * jobs > MOST_RUNTIMES:
            raise TooManyJobs
        self._draws = min(
            MOST_DRAWS, max(FEWEST_DRAWS, min(JOBS // units, MOST_RUNTIMES // jobs // 2))
        )
        self._carry_out = simulate
        self._speeds = {site.name: site.speed for site in sites}
        self._forecaster = CampaignForecaster(
            campaign.workflow, foreseen.known, progress, draws=2 * self._draws
        )
        # Workers start late everywhere or nowhere, as in forecasts of plans.
        self._late = np.random.default_rng(SEED).random(2 * self._draws)
        self._expected: tuple[Goal, float, StrategySimulationResult | None] | None = None

    def expected(self, goal: Goal, spare: float) -> StrategySimulationResult | None:
        """Return what is expected under a goal with the estimated run times, job by job."""
        if self._expected is None or self._expected[:2] != (goal, spare):
            result = self._carry_out(self._campaign, goal, spare, EXPECTED, None)
            self._expected = goal, spare, result
        return self._expected[2]

    def of(self, goal: Goal, spare: float) -> CampaignForecast:
        """Return the forecast under a goal with a share of spare time."""
        return self._on(goal, spare, self._draws, self._batching_error(goal, spare))

    def _batching_error(self, goal: Goal, spare: float) -> tuple[float, float]:
        """Return factors of end and cost by which batches differ from jobs, as estimated."""
        if self._batches is None:
            return 1.0, 1.0
        by_job, by_batch = self.expected(goal, spare), self._simulate(goal, spare, EXPECTED)
        if by_job is None or by_batch is None or not (by_job.is_whole and by_batch.is_whole):
            return 1.0, 1.0
        return (
            by_job.finish / by_batch.finish if by_batch.finish else 1.0,
            by_job.cost / by_batch.cost if by_batch.cost else 1.0,
        )

    def _simulate(
        self, goal: Goal, spare: float, draw: StrategyDraw
    ) -> StrategySimulationResult | None:
        campaign = self._campaign if self._batches is None else self._batches.campaign
        return self._carry_out(campaign, goal, spare, draw, self._batches)

    def _drawn(self, draws: range) -> Iterator[StrategyDraw]:
        """Yield what strategies meet in these draws."""
        batch_of = None if self._batches is None else self._batches.batch_of
        times = self._forecaster.run_times(self._speeds, draws, batch_of)
        for number, takes in zip(draws, times, strict=True):
            yield StrategyDraw(takes=takes, late=float(self._late[number]), number=number)

    def _on(
        self, goal: Goal, spare: float, first: int, factors: tuple[float, float] = (1.0, 1.0)
    ) -> CampaignForecast:
        """Return the forecast on as many draws as all forecasts have, from one of them on."""

        def outcome(draw: StrategyDraw) -> tuple[float, float]:
            result = self._simulate(goal, spare, draw)
            if result is None or not result.is_whole:
                return math.inf, math.inf  # a goal that leaves jobs undone is not kept
            return result.finish * factors[0], result.cost * factors[1]

        draws = range(first, first + self._draws)
        return self._forecaster.of_outcomes(outcome(draw) for draw in self._drawn(draws))

    def choose(self, goal: Goal) -> tuple[float, CampaignForecast]:
        """Return the least spare time with which the goal is sure enough, else the surest."""
        if goal.deadline is None:
            return 0.0, self.of(goal, 0.0)
        found: list[tuple[float, float]] = []
        for spare in SPARES:
            # A few draws rule out what is far from sure, and a forecast of all decides.
            if not self._may_be_sure(goal, spare):
                continue
            odds = self._on(goal, spare, 0).odds(goal.deadline, goal.budget)
            found.append((odds, -spare))
            if odds >= goal.confidence:
                return spare, self.of(goal, spare)
        spare = -max(found)[1] if found else 0.0
        return spare, self.of(goal, spare)

    def is_sure(self, goal: Goal) -> bool:
        """Whether a goal can be kept with its confidence; on fewer draws than a forecast."""
        spares = (0.0,) if goal.deadline is None else SPARES[::2]
        return any(self._keeps(goal, spare, 1 - goal.confidence) for spare in spares)

    def _may_be_sure(self, goal: Goal, spare: float) -> bool:
        return self._keeps(goal, spare, 2 * (1 - goal.confidence) + 0.1)

    def _keeps(self, goal: Goal, spare: float, failing: float) -> bool:
        """Whether a few draws keep a goal, but for a share of them; ends as soon as it is clear."""
        missed = 0
        for draw in self._drawn(range(FEWEST_DRAWS)):
            result = self._simulate(goal, spare, draw)
            missed += result is None or not result.meets(goal)
            if missed > failing * FEWEST_DRAWS + 1e-9:
                return False
        return True

    def larger(self, goal: Goal) -> Goal | None:
        """Return the goal with a later deadline, else a larger budget, that is sure enough."""
        tried: list[Goal] = []
        if goal.deadline is not None:
            tried += [replace(goal, deadline=span_above(goal.deadline * by)) for by in LARGER]
        if goal.budget is not None:
            tried += [replace(goal, budget=amount_above(goal.budget * by)) for by in LARGER]
        # A few draws find it, and others must bear it out.
        return next(
            (wanted for wanted in tried if self.is_sure(wanted) and self._is_told_sure(wanted)),
            None,
        )

    def _is_told_sure(self, goal: Goal) -> bool:
        _, forecast = self.choose(goal)
        return forecast.odds(goal.deadline, goal.budget) >= goal.confidence
