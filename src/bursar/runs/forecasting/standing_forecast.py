"""
Forecasts of a run from how it stands.

Loaded late and used in a thread: the arrays and kernels take longer to load than a short run lasts.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bursar.broker.estimates import price_at_speed, worker_starts
from bursar.forecasts.calibration import Distribution, EarlierScore
from bursar.forecasts.campaign_forecast import (
    SEED,
    CampaignForecast,
    CampaignForecaster,
    TaskCopy,
    TaskProgress,
)
from bursar.forecasts.dispatch_replay import ANYWHERE
from bursar.forecasts.known_runtimes import KnownRuntimes, ObservationSource, known_runtimes
from bursar.forecasts.runtime_draws import UnknownRuntimes
from bursar.forecasts.runtime_model import RuntimeColumns
from bursar.history.columns import ObservationColumns, read_columns
from bursar.history.forecast_records import GRID, FoundScores, KeptForecast
from bursar.history.observation import CENSORED
from bursar.model.campaign import Campaign
from bursar.model.plan import Purchase
from bursar.model.provisioning import AT_ONCE
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Status
from bursar.provisioning.request_shaping import useful_processors
from bursar.runs.forecasting.standing import QueuedRequest, RunStanding

MOST_RUNTIMES = 150_000
"""Run times that are drawn for a forecast of a run, at most: large campaigns get fewer draws."""

FEWEST_DRAWS, MOST_DRAWS = 40, 200

MOST_WAITS = 1000
"""Waits that are drawn for a request."""

FloatArray = NDArray[np.float64]


class NoObservations:
    """A history without observations, for runs that have none."""

    def kinds(self) -> list[str]:
        """Return no names."""
        return []

    def observations_of(
        self, kinds: Sequence[str], *, newest: int | None = None, parameters: bool = False
    ) -> ObservationColumns:
        """Return nothing."""
        return read_columns(None, kinds, newest, parameters)


class StandingForecaster:
    """
    Forecasts one run again and again, as it stands.

    Parameters
    ----------
    sites
        Sites of the run.
    source
        History of earlier tasks; None: there is none.
    execution
        Name of the run in the history, whose own tasks are left out there.

    Raises
    ------
    InputError, BursarError
        When the history cannot be read.
    """

    def __init__(
        self,
        campaign: Campaign,
        sites: Sequence[SiteFacts],
        source: ObservationSource | None,
        execution: str,
    ) -> None:
        self._workflow = campaign.workflow
        self._sites = {site.name: site for site in sites}
        self._speeds = {site.name: site.speed for site in sites}
        self.known: KnownRuntimes = known_runtimes(
            campaign, [site.name for site in sites], source or NoObservations(), without=execution
        )
        self._forecaster: CampaignForecaster | None = None
        self._waits: dict[str, FloatArray] = {}

    def forecast(self, standing: RunStanding, scores: FoundScores) -> CampaignForecast | None:
        """
        Return the forecast of a run, on new draws.

        Parameters
        ----------
        scores
            Scores of ends and of costs by which the forecast is corrected, each with whether it is
            of the same campaign.

        Returns
        -------
        CampaignForecast or None
            None where nothing is known of the run times, or where no processors are there or
            agreed on.
        """
        self._forecaster = None
        left = max(len(self._workflow.tasks) - len(standing.ended), 1)
        try:
            self._forecaster = CampaignForecaster(
                self._workflow,
                self.known,
                self.progress_of(standing),
                draws=min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_RUNTIMES // left)),
                end_scores=EarlierScore.of_found(scores[0]),
                cost_scores=EarlierScore.of_found(scores[1]),
            )
        except UnknownRuntimes:
            return None
        return self.again(standing)

    def again(self, standing: RunStanding) -> CampaignForecast | None:
        """Return the forecast of the same run on other processors, on the same draws."""
        if self._forecaster is None or not standing.leases:
            return None
        standing = self._grown(standing)
        number = {name: at for at, name in enumerate(standing.leases)}
        count = len(self._workflow.tasks)
        lease = np.full(count, ANYWHERE, dtype=np.int64)
        for task, name in standing.lease_of.items():
            lease[task] = number.get(name, ANYWHERE)
        for attempt in standing.running:
            lease[attempt.task] = number.get(attempt.lease, ANYWHERE)
        order = np.arange(count, dtype=np.float64)
        if standing.plan is not None and standing.plan.placements:
            order += count  # what a plan of the rest does not name comes last
            for at, placed in enumerate(standing.plan.placements):
                order[placed.task] = at
        forecaster = self._forecaster
        if standing.copies:
            forecaster = forecaster.with_copies(self._copies(standing), self._speeds)
        found = forecaster.of_leases(
            tuple(standing.leases.values()),
            lease,
            order,
            self._speeds,
            starts=[standing.opening.get(name, AT_ONCE) for name in standing.leases],
            comes={
                number[name]: self._coming(name, request, standing.now)
                for name, request in standing.queued.items()
            },
        )
        # A task that fits nowhere makes the end infinite: nothing is known then.
        return found if math.isfinite(found.end.quantile(0.95)) else None

    def _copies(self, standing: RunStanding) -> list[TaskCopy]:
        """Return the copies of a run in the terms of a forecast."""
        site_of = {attempt.task: attempt.site for attempt in standing.running}
        found = []
        for one in standing.copies:
            comes = np.full(MOST_DRAWS, one.comes)
            if one.queued is not None:
                comes = self._coming(f"copy of {one.task} at {one.site}", one.queued, standing.now)
            found.append(
                TaskCopy(one.task, site_of[one.task], one.site, comes, one.opening, one.bought)
            )
        return found

    def _grown(self, standing: RunStanding) -> RunStanding:
        """
        Return how a run will stand once it has asked for what its tasks can use.

        A pool, or a strategy, asks for processors as tasks become ready, the cheapest first. Those
        that it has not asked for yet come as late as the ones that queue at the site now.
        """
        if not any(standing.spare.values()):
            return standing
        runtimes = np.nan_to_num(self.known.medians())
        deadline = standing.goal.deadline
        left = None if deadline is None else deadline - standing.now
        slowest = min(self._speeds.values())
        missing = useful_processors(
            self._workflow, runtimes.tolist(), left, slowest, standing.ended
        ) - sum(one.slot.processors for one in standing.leases.values())
        leases, queued = dict(standing.leases), dict(standing.queued)
        opening = dict(standing.opening)
        for site in sorted(self._sites.values(), key=price_at_speed):
            processors = min(missing, standing.spare.get(site.name, 0))
            if processors <= 0:
                continue
            missing -= processors
            name = f"more at {site.name}"
            slot = Slot(
                site=site.name,
                start=standing.now,
                duration=math.inf,
                processors=processors,
                unit_price=site.unit_price,
                fixed_price=site.fixed_price,
                divisible=True,
                leased=True,
            )
            leases[name], opening[name] = Purchase(slot=slot), worker_starts(site)
            like = (one for one in standing.queued if leases[one].slot.site == site.name)
            if (first := next(like, None)) is not None:
                queued[name] = QueuedRequest(standing.now, standing.queued[first].expected_wait)
        return replace(standing, leases=leases, queued=queued, opening=opening)

    def _coming(self, name: str, request: QueuedRequest, now: float) -> FloatArray:
        """
        Return when a queued request is granted, seconds since the run's begin, one for each draw.

        It has waited for a while already: only longer waits are left. All requests share their
        draws, as those of a queue come late together. One of which nothing is known never comes.
        """
        if name not in self._waits:
            forecast = request.expected_wait()
            random = np.random.default_rng(SEED)
            known = None if forecast is None else forecast.sample(MOST_WAITS, random)
            self._waits[name] = np.zeros(0) if known is None else known
        waits, waited = self._waits[name], max(now - request.asked, 0.0)
        left = waits[waits > waited]
        if len(left):
            return request.asked + left[np.arange(MOST_DRAWS) % len(left)]
        if not len(waits):
            return np.full(MOST_DRAWS, np.inf)
        # Longer than ever thought: half of what it has waited comes on top, more or less.
        return now + waited * np.random.default_rng(SEED).random(MOST_DRAWS)

    def progress_of(self, standing: RunStanding) -> TaskProgress:
        """Return how far a run has come, in the numbers of :attr:`known`."""
        tasks, attempts = self.known.tasks, standing.attempts
        numbers = np.array([attempt.task for attempt in attempts], dtype=np.int64)
        cut = np.array([attempt.status in CENSORED for attempt in attempts], dtype=np.bool_)
        good = np.array([a.status is Status.SUCCEEDED for a in attempts], dtype=np.bool_)
        known = [self.known.sites.get(attempt.site, 0) for attempt in attempts]
        running = {attempt.task for attempt in standing.running}
        return TaskProgress(
            now=standing.now,
            ended=standing.ended,
            elapsed={
                attempt.task: attempt.seconds * self._speeds.get(attempt.site, 1.0)
                for attempt in standing.running
            },
            observed=RuntimeColumns(
                kind=tasks.kind[numbers],
                execution=np.zeros(len(numbers), np.int64),
                site=np.array(known, dtype=np.int64),
                work=np.array([a.seconds * self._speeds.get(a.site, 1.0) for a in attempts]),
                whole=~cut,
                failed=~good & ~cut,
                busy=np.array([attempt.busy for attempt in attempts], dtype=np.float64),
                estimate=tasks.estimate[numbers],
                features=tasks.features[numbers],
            ),
            spent=standing.spent,
            copied=dict.fromkeys(standing.stragglers & running, 0.0)
            | {one.task: one.seconds * self._speeds.get(one.site, 1.0) for one in standing.copies},
            fresh=standing.fresh,
        )

    def kept(
        self, forecast: CampaignForecast, standing: RunStanding, share: float
    ) -> KeptForecast | None:
        """Return a forecast as the history keeps it; None where a quantile is infinite."""
        goal, cost = standing.goal, forecast.cost
        limited = goal.deadline is not None or goal.budget is not None
        end = _quantiles(forecast.end)
        kinds = np.delete(self.known.tasks.kind, sorted(standing.ended))
        made = KeptForecast(
            share=share,
            ended=len(standing.ended),
            tasks=len(self._workflow.tasks),
            made=standing.moment,
            elapsed=standing.now,
            spent=standing.spent,
            basis=forecast.basis,
            executions=forecast.executions,
            observed=forecast.observed,
            sites=tuple(sorted({one.slot.site for one in standing.leases.values()})),
            kinds=tuple(sorted(self.known.kinds[kind] for kind in np.unique(kinds))),
            end=end,
            cost=() if cost is None else _quantiles(cost),
            end_draws=forecast.end.own_quantiles(),
            cost_draws=None if cost is None else cost.own_quantiles(),
            deadline=goal.deadline,
            budget=goal.budget,
            odds=forecast.odds(goal.deadline, goal.budget) if limited else None,
            confidence=goal.confidence,
        )
        return made if math.isfinite(sum(made.end) + sum(made.cost)) else None


def _quantiles(distribution: Distribution) -> tuple[float, ...]:
    return tuple(distribution.quantile(share) for share in GRID)
