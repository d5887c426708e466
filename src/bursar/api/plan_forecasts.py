"""Forecasts of plans by what earlier runs say, and the margins that a confidence needs."""

from collections.abc import Mapping
from typing import Any

from bursar.api.needs import PlanNeeds, start_up
from bursar.forecasts.calibration import Distribution
from bursar.forecasts.campaign_forecast import (
    DRAWS,
    DRAWS_TO_CHOOSE,
    CampaignForecast,
    CampaignForecaster,
)
from bursar.forecasts.known_runtimes import KnownRuntimes
from bursar.model.campaign import Goal
from bursar.planning.front import ParetoFront, PlanOption
from bursar.planning.trade_off_solver import plan_option
from bursar.report.tables import amount_above, span_above

MOST_RUNTIMES = 2_000_000
"""Run times that are drawn for a forecast, at most: large campaigns get fewer draws."""

FEWEST_DRAWS = 40

SHOWN = (0.1, 0.5, 0.9)
"""Shares of the quantiles that are told."""


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
    """

    def __init__(self, front: ParetoFront, goal: Goal, known: KnownRuntimes) -> None:
        self._front = front
        self._goal = goal
        self._needs = PlanNeeds(front, goal)
        self._speeds = {site.name: site.speed for site in front.sites}
        self._starts = {site.name: start_up(site) for site in front.sites}
        count = len(front.workflow.tasks)
        self._draws = min(DRAWS, max(FEWEST_DRAWS, MOST_RUNTIMES // count))
        self._forecaster = CampaignForecaster(front.workflow, known, draws=self._draws)
        self._whole = {option.recipe.caps: option for option in front.options}
        """Plan of all tasks for each purchase, by which plans of a part are judged."""
        self._found: dict[int, CampaignForecast] = {}

    def of(self, option: PlanOption) -> CampaignForecast:
        """Return the forecast of a plan of the front, whose makespan is known."""
        key = id(option)
        if key not in self._found:
            plan = plan_option(self._front, option)
            self._found[key] = self._forecaster.of_plan(
                plan.purchases,
                plan.placements,
                self._speeds,
                draws=min(self._draws, DRAWS_TO_CHOOSE),
                start_up=self._starts,
            )
        return self._found[key]

    def of_known(self, option: PlanOption) -> CampaignForecast | None:
        """Return the forecast of a plan; None where its makespan is not known."""
        return None if option.makespan is None else self.of(option)

    def affords(self, option: PlanOption, budget: float) -> bool:
        """Whether the guard lets a plan finish with a budget, if all goes as expected."""
        return self._needs.affords(option, budget)

    def with_margins(self, option: PlanOption) -> tuple[float, float | None]:
        """Return the time and money that suffice with the goal's confidence."""
        seconds, cost = self._needs.with_margins(option)
        if option.makespan is None:
            return seconds, cost
        forecast = self.of(option)
        late = forecast.end.quantile(self._goal.confidence)
        seconds = max(seconds, span_above(late))
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


def forecast_to_dict(forecast: CampaignForecast, goal: Goal) -> dict[str, Any]:
    """Return a forecast as JSON: quantiles in seconds and currency units, and the odds."""
    limited = goal.deadline is not None or goal.budget is not None
    return {
        "end_s": _quantiles(forecast.end),
        "cost": None if forecast.cost is None else _quantiles(forecast.cost),
        "odds": forecast.odds(goal.deadline, goal.budget) if limited else None,
    }


def _quantiles(distribution: Distribution) -> Mapping[str, float]:
    return {f"p{100 * share:.0f}": distribution.quantile(share) for share in SHOWN}
