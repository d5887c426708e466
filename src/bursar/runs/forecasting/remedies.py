"""What would bring the odds of a goal back over the confidence: processors, money or time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from bursar.forecasts.campaign_forecast import CampaignForecast
from bursar.model.campaign import Goal
from bursar.runs.forecasting.odds_line import GoalRemedy
from bursar.runs.forecasting.standing import RunStanding, with_more

STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of additional processors that are tried."""

OPENING = 10.0
"""Seconds until the workers of additional processors take tasks, generously."""

Forecasting = Callable[[RunStanding], CampaignForecast | None]


def find_remedy(
    standing: RunStanding,
    forecast: CampaignForecast,
    free: Mapping[str, int],
    forecast_of: Forecasting,
    *,
    can_rebuy: bool,
) -> GoalRemedy | None:
    """
    Return the least change that keeps the goal with its confidence; None where none was found.

    Parameters
    ----------
    forecast
        Forecast of the run as it stands.
    free
        Processors of each site that could still be bought.
    forecast_of
        Forecasts other standings, on the same draws.
    can_rebuy
        Whether the run plans again, and so buys more processors once the goal allows them.
    """
    goal = standing.goal
    if can_rebuy and goal.deadline is not None:
        found = _with_processors(standing, forecast, free, forecast_of)
        if found is not None:
            return found
    return _with_limits(forecast, goal)


def _with_processors(
    standing: RunStanding,
    forecast: CampaignForecast,
    free: Mapping[str, int],
    forecast_of: Forecasting,
) -> GoalRemedy | None:
    goal = standing.goal
    leases: dict[str, str] = {}  # the lease with most processors of each site
    for name, one in standing.leases.items():
        best = leases.get(one.slot.site)
        if best is None or standing.leases[best].slot.processors < one.slot.processors:
            leases[one.slot.site] = name
    for count in STEPS:
        for site, lease in leases.items():
            if count > free.get(site, 0):
                continue
            changed = forecast_of(with_more(standing, lease, count, OPENING))
            if changed is None:
                continue
            odds = changed.end.probability(goal.deadline or math.inf)
            if odds < goal.confidence:
                continue
            cost, budget = None, None
            if changed.cost is not None and forecast.cost is not None:
                cost = changed.cost.quantile(0.5) - forecast.cost.quantile(0.5)
                needed = changed.cost.quantile(goal.confidence)
                if goal.budget is not None and needed > goal.budget:
                    budget = needed
            odds = changed.odds(goal.deadline, budget or goal.budget)
            return GoalRemedy(
                kind="processors",
                odds=odds,
                processors=count,
                site=site,
                cost=cost,
                budget=budget,
            )
    return None


def _with_limits(forecast: CampaignForecast, goal: Goal) -> GoalRemedy | None:
    """Return the limits that the run as it stands keeps with the confidence."""
    changed = goal
    if goal.deadline is not None and forecast.end.probability(goal.deadline) < goal.confidence:
        changed = replace(changed, deadline=forecast.end.quantile(goal.confidence))
    cost = forecast.cost
    if (
        goal.budget is not None
        and cost is not None
        and cost.probability(goal.budget) < goal.confidence
    ):
        changed = replace(changed, budget=cost.quantile(goal.confidence))
    if changed == goal or not math.isfinite((changed.deadline or 0.0) + (changed.budget or 0.0)):
        return None
    return GoalRemedy(
        kind="deadline",
        # Limits are rounded up, so that the odds are no less than asked.
        odds=max(forecast.odds(changed.deadline, changed.budget), goal.confidence),
        deadline=None if changed.deadline == goal.deadline else changed.deadline,
        budget=None if changed.budget == goal.budget else changed.budget,
    )
