"""Columns of a table of plans that tell what is forecast of each."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from bursar.model.campaign import Goal, odds_in_words
from bursar.planning.front import PlanOption
from bursar.report.tables import amount, money, span

if TYPE_CHECKING:
    from bursar.forecasts.calibration import Distribution
    from bursar.forecasts.campaign_forecast import CampaignForecast

EXPLAINED_FORECASTS = (
    "end and cost: half of such runs stay below the first figure, nine of ten below the second; "
    "odds: probability that the goal is kept"
)
"""Line below the table."""


def forecast_titles(currency: str) -> tuple[str, ...]:
    """Return the titles of the columns."""
    return "end 50 %", "by 90 %", f"cost, {currency}", "by 90 %", "odds"


def forecast_cells(
    option: PlanOption, forecast: "CampaignForecast | None", goal: Goal
) -> list[str]:
    """Return end at 50 and 90 %, cost at 50 and 90 %, and the odds of the goal, as printed."""
    if forecast is None:
        return ["", "", money(option.cost), "", ""]
    cost = forecast.cost
    limited = goal.deadline is not None or goal.budget is not None
    return [
        span(forecast.end.quantile(0.5)),
        span(forecast.end.quantile(0.9)),
        money(option.cost if cost is None else cost.quantile(0.5)),
        "" if cost is None else money(cost.quantile(0.9)),
        odds_in_words(forecast.odds(goal.deadline, goal.budget)) if limited else "",
    ]


def forecast_in_words(
    forecast: "CampaignForecast", goal: Goal, currency: str, *, spare: float = 0.0
) -> str:
    """Return end and cost at 50 and 90 %, and the odds of the goal, as a line for people."""

    def quantiles(of: "Distribution", written: Callable[[float], str]) -> str:
        values = [of.quantile(share) for share in (0.5, 0.9)]
        middle, most = (written(v) if math.isfinite(v) else "not within the limits" for v in values)
        return f"{middle}, {most} at 90 %"

    text = f"expected: end {quantiles(forecast.end, span)}"
    if forecast.cost is not None:
        text += f"; cost {quantiles(forecast.cost, lambda value: amount(value, currency))}"
    if goal.deadline is not None or goal.budget is not None:
        odds = forecast.odds(goal.deadline, goal.budget)
        asked = odds_in_words(goal.confidence)
        text += f"; odds {odds_in_words(odds)} ({asked} asked for)"
    if spare:
        text += f", with {spare:.0%} of the time kept in reserve"
    return text
