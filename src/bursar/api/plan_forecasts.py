"""Forecasts of plans by what earlier runs say, and the margins that a confidence needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar.api.needs import PlanNeeds
from bursar.api.queues import RequestWaits
from bursar.broker.estimates import price_at_speed, worker_starts
from bursar.forecasts.calibration import EarlierScore
from bursar.forecasts.campaign_forecast import (
    DRAWS,
    DRAWS_TO_CHOOSE,
    SEED,
    CampaignForecast,
    CampaignForecaster,
)
from bursar.forecasts.fan import forecast_to_dict
from bursar.forecasts.known_runtimes import KnownRuntimes
from bursar.history.forecast_records import FoundScores
from bursar.model.campaign import Goal
from bursar.model.plan import Purchase
from bursar.model.slot import Slot
from bursar.planning.front import ParetoFront, PlanOption
from bursar.planning.trade_off_solver import plan_option
from bursar.provisioning.request_shaping import MARGIN, START, useful_processors
from bursar.report.forecast_columns import forecast_in_words
from bursar.report.tables import amount_above, span, span_above

MOST_RUNTIMES = 2_000_000
"""Run times that are drawn for a forecast, at most: large campaigns get fewer draws."""

FEWEST_DRAWS = 40

MANY_TASKS = 20_000
"""Tasks above which only one plan of a front is replayed."""

MOST_LEASES = 64
"""Leases, at most, as which the processors of a pool at one site are replayed."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQueues:
    """
    How a campaign's processors come that stand in batch queues.

    Parameters
    ----------
    waits
        How long requests would wait, by the name of each site whose processors queue.
    is_pool
        Whether a pool asks for processors at once, as many as it can use. Otherwise a plan asks for
        each purchase at once, and the scheduler starts it no sooner than planned.
    """

    waits: Mapping[str, RequestWaits]
    is_pool: bool
    _found: dict[tuple[str, int, float], FloatArray | None] = field(default_factory=dict)
    _known_from: dict[str, tuple[str, int]] = field(default_factory=dict)

    def sample(self, site: str, processors: int, seconds: float, draws: int) -> FloatArray | None:
        """
        Return waits of a request, one for each draw; None: nothing is known.

        All requests at a site share their draws: where one waits long, the others do, too.
        """
        # To two digits: forecasts of requests that differ less need not be told apart.
        seconds = float(f"{seconds:.1e}")
        key = site, processors, seconds
        if key not in self._found:
            forecast = self.waits[site](processors, seconds)
            self._found[key] = None
            if forecast is not None:
                self._known_from[site] = forecast.basis, forecast.seen
                number = sorted(self.waits).index(site)
                self._found[key] = forecast.sample(DRAWS, np.random.default_rng([SEED, number]))
        found = self._found[key]
        return None if found is None else found[:draws]

    @property
    def known_from(self) -> dict[str, dict[str, Any] | None]:
        """Sources of what is known of the waits at each site, as JSON; None where there is none."""
        told: dict[str, dict[str, Any] | None] = dict.fromkeys(self.waits)
        for site, (basis, seen) in self._known_from.items():
            told[site] = {"known_from": basis, "seen": seen}
        return told


NO_QUEUES = PlanQueues(waits={}, is_pool=False)
"""No processors come out of a batch queue."""


class PlanForecasts:
    """
    Forecasts of the plans of a front, and the margins that a goal's confidence needs.

    The class is a :class:`bursar.planning.plan_choice.ExecutionMargins`: to what
    :class:`~bursar.api.needs.PlanNeeds` adds for starts and holds comes what plans take longer than
    expected, as far as the confidence asks.

    Parameters
    ----------
    front
        Plans of the campaign.
    goal
        Goal with its confidence.
    known
        What is known of the run times.
    scores
        See :class:`bursar.api.known_campaign.ForeseenCampaign`.
    queues
        Sites whose processors come out of a batch queue.
    """

    def __init__(
        self,
        front: ParetoFront,
        goal: Goal,
        known: KnownRuntimes,
        scores: FoundScores = ((), ()),
        queues: PlanQueues = NO_QUEUES,
    ) -> None:
        self._queues = queues
        self._front = front
        self._goal = goal
        self._needs = PlanNeeds(front, goal)
        self._speeds = {site.name: site.speed for site in front.sites}
        self._starts = {site.name: worker_starts(site) for site in front.sites}
        count = len(front.workflow.tasks)
        self._draws = min(DRAWS, max(FEWEST_DRAWS, MOST_RUNTIMES // count))
        self._forecaster = CampaignForecaster(
            front.workflow,
            known,
            draws=self._draws,
            end_scores=EarlierScore.of_found(scores[0]),
            cost_scores=EarlierScore.of_found(scores[1]),
        )
        self._whole = {option.recipe.caps: option for option in front.options}
        """Plan of all tasks for each purchase, by which plans of a part are judged."""
        self._replayed: PlanOption | None = None
        self._found: dict[int, CampaignForecast] = {}

    def of(self, option: PlanOption) -> CampaignForecast:
        """
        Return the forecast of a plan of the front, whose makespan is known.

        Of a campaign of many tasks one plan is replayed, and others are taken to vary as that one
        does: there, what all tasks have in common decides.
        """
        key = id(option)
        if self._replayed is not None and key not in self._found:
            self._found[key] = _scaled(self._found[id(self._replayed)], self._replayed, option)
        if key not in self._found:
            if len(self._front.workflow.tasks) > MANY_TASKS:
                self._replayed = option
            plan = plan_option(self._front, option)
            draws = min(self._draws, DRAWS_TO_CHOOSE)
            self._found[key] = self._forecaster.of_plan(
                plan.purchases,
                plan.placements,
                self._speeds,
                draws=draws,
                starts=self._starts,
                comes=self._comes(plan.purchases, plan.makespan or 0.0, draws),
                anywhere=self._queues.is_pool,
            )
        return self._found[key]

    @property
    def is_for_pool(self) -> bool:
        """Whether a pool would carry the campaign out, on processors that queue."""
        return self._queues.is_pool

    def of_pool(self) -> CampaignForecast:
        """
        Return the forecast of a pool, which takes what processors the tasks can use.

        The pool asks the cheapest sites first, with a deadline for no more than its rule says at
        the begin, and gives back what is idle. Waits are those of its first requests.
        """
        return self._pool

    @cached_property
    def _pool(self) -> CampaignForecast:
        purchases: list[Purchase] = []
        comes: dict[int, FloatArray] = {}
        workflow = self._front.workflow
        runtimes = [task.runtime or 0.0 for task in workflow.tasks]
        longest = max(runtimes, default=0.0)
        missing = useful_processors(
            workflow, runtimes, self._goal.deadline, min(self._speeds.values())
        )
        for site in sorted(self._front.sites, key=price_at_speed):
            count = min(missing, site.processors)
            missing -= count
            size = -(-count // MOST_LEASES) if count else 1
            for first in range(0, count, size):
                width = min(size, count - first)
                slot = Slot(
                    site=site.name,
                    start=0.0,
                    duration=math.inf,
                    processors=width,
                    unit_price=site.unit_price,
                    fixed_price=site.fixed_price,
                    divisible=True,
                    leased=True,
                )
                if site.name in self._queues.waits:
                    # The last of so many processors comes when all of them are there.
                    asked = min(1 << (first + width - 1).bit_length(), count)
                    waits = self._waits(site.name, asked, MARGIN * longest + START, self._draws)
                    if waits is not None:
                        comes[len(purchases)] = waits
                purchases.append(Purchase(slot=slot))
        return self._forecaster.of_plan(
            purchases, (), self._speeds, starts=self._starts, comes=comes, anywhere=True
        )

    def _comes(
        self, purchases: Sequence[Purchase], makespan: float, draws: int
    ) -> dict[int, FloatArray]:
        """Return when processors come that queue, by the number of the purchase."""
        found = {}
        for number, purchase in enumerate(purchases):
            slot = purchase.slot
            if slot.site not in self._queues.waits:
                continue
            seconds = min(slot.duration, max(makespan - slot.start, 1.0) * MARGIN)
            waits = self._waits(slot.site, slot.processors, seconds, draws)
            if waits is not None:
                is_pool = self._queues.is_pool
                found[number] = waits if is_pool else np.maximum(waits, slot.start)
        return found

    def _waits(self, site: str, processors: int, seconds: float, draws: int) -> FloatArray | None:
        shortest = self._shortest[site]
        return self._queues.sample(site, processors, max(seconds, shortest), draws)

    @cached_property
    def _shortest(self) -> dict[str, float]:
        return {site.name: site.acquiring.shortest for site in self._front.sites}

    def waits_known_from(self) -> dict[str, dict[str, Any] | None]:
        """Return what waits in queues are known from, by site, as JSON; empty: nothing queues."""
        return self._queues.known_from

    def waits_in_words(self, chosen: PlanOption | None) -> list[str]:
        """Return lines on what the chosen plan, or the pool in its place, owes to queues."""
        if not self._queues.waits:
            return []
        lines = []
        forecast = None if chosen is None else self.of_known(chosen)
        if self._queues.is_pool:
            forecast = self.of_pool()
            lines.append(
                f"run by a pool, {forecast_in_words(forecast, self._goal, self._front.currency)}"
            )
        for site, told in self._queues.known_from.items():
            if told is None:
                lines.append(f"how long requests wait at {site} is not known, and not in the end")
        known = [(site, told) for site, told in self._queues.known_from.items() if told is not None]
        if forecast is None or forecast.waiting is None or not known:
            return lines
        middle, most = (forecast.waiting.quantile(share) for share in (0.5, 0.9))
        where = ", ".join(
            f"{site} ({'its queue now' if told['known_from'] == 'queue' else 'history'}, "
            f"{told['seen']} earlier waits)"
            for site, told in known
        )
        lines.append(
            f"waiting in queues: {span(middle)} of the end, {span(most)} at 90 %; "
            f"known from {where}"
        )
        return lines

    def of_known(self, option: PlanOption) -> CampaignForecast | None:
        """Return the forecast of a plan; None where its makespan is not known."""
        return None if option.makespan is None else self.of(option)

    def affords(self, option: PlanOption, budget: float) -> bool:
        """Whether the guard lets a plan finish with a budget, if all goes as expected."""
        return self._needs.affords(option, budget)

    def seconds(self, option: PlanOption) -> float:
        """Return the time that suffices with the goal's confidence."""
        late = self.of(option).end.quantile(self._goal.confidence)
        return max(self._needs.seconds(option), span_above(late))

    def with_margins(self, option: PlanOption) -> tuple[float, float | None]:
        """Return the time and money that suffice with the goal's confidence."""
        count = len(self._front.workflow.tasks)
        if count > MANY_TASKS:
            # Upper limits: a guard's course of so many tasks takes seconds for each plan.
            _, cost = self._needs.with_margins_of_part(option, count)
        else:
            _, cost = self._needs.with_margins(option)
        seconds, forecast = self.seconds(option), self.of(option)
        if cost is not None and forecast.cost is not None:
            cost = max(cost, amount_above(forecast.cost.quantile(self._goal.confidence)))
        return seconds, cost

    def with_margins_of_part(self, option: PlanOption, tasks: int) -> tuple[float, float | None]:
        """Return the same for part of the tasks, which vary as the whole does."""
        seconds, cost = self._needs.with_margins_of_part(option, tasks)
        whole = self._whole.get(option.recipe.caps)
        if whole is None or not whole.makespan:
            return seconds, cost
        forecast = self.of(whole)
        longer = max(forecast.end.quantile(self._goal.confidence) / whole.makespan, 1.0)
        if cost is not None and forecast.cost is not None and whole.cost:
            dearer = forecast.cost.quantile(self._goal.confidence) / whole.cost
            cost = amount_above(cost * max(dearer, 1.0))
        return span_above(seconds * longer), cost

    def odds(self, option: PlanOption) -> float | None:
        """Return the probability that a plan keeps the goal; None where its end is unknown."""
        if option.makespan is None:
            return None
        return self.of(option).odds(self._goal.deadline, self._goal.budget)

    def to_dict(self, option: PlanOption) -> dict[str, Any] | None:
        """Return the forecast of a plan as JSON: seconds, currency units, probability."""
        if option.makespan is None:
            return None
        return forecast_to_dict(self.of(option), self._goal)


def _scaled(
    forecast: CampaignForecast, replayed: PlanOption, option: PlanOption
) -> CampaignForecast:
    """Return the forecast of a plan from that of another one, by planned makespans and costs."""
    longer = (option.makespan or 0.0) / (replayed.makespan or 1.0)
    cost = forecast.cost
    if cost is not None and option.cost is not None and replayed.cost:
        cost = replace(cost, draws=cost.draws * (option.cost / replayed.cost))
    end = replace(forecast.end, draws=forecast.end.draws * longer)
    return replace(forecast, end=end, cost=None if option.cost is None else cost)
