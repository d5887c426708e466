"""Processors that could be bought for copies of tasks, judged by the forecast of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bursar.forecasts.stragglers import CopyChoice, RunOutlook, choose_purchase
from bursar.model.campaign import Goal
from bursar.runs.forecasting.standing import RunStanding, StandingCopy

if TYPE_CHECKING:  # arrays, which only the thread that forecasts needs
    from bursar.forecasts.campaign_forecast import CampaignForecast
    from bursar.runs.forecasting.remedies import Forecasting


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOffer:
    """
    A copy that could be made on processors bought for it.

    Parameters
    ----------
    choice
        The task, with the site in place of a worker.
    copy
        The copy as the forecast knows it.
    """

    choice: CopyChoice
    copy: StandingCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCopy:
    """
    A copy for which processors are to be bought.

    Parameters
    ----------
    seconds
        Seconds for which the processors may be needed, the start of workers included.
    before, after
        What is expected of the run without the copy and with it.
    """

    offer: CopyOffer
    seconds: float
    before: RunOutlook
    after: RunOutlook


def judge_copies(
    standing: RunStanding,
    forecast: "CampaignForecast",
    offers: Sequence[CopyOffer],
    forecast_of: "Forecasting",
) -> ChosenCopy | None:
    """
    Return the copy for which processors are bought; None: none is worth it.

    Parameters
    ----------
    forecast
        Forecast of the run as it stands.
    forecast_of
        Forecasts other standings, on the same draws.
    """
    goal = standing.goal
    before = _outlook(forecast, goal)
    able: list[tuple[CopyOffer, float, RunOutlook]] = []
    for offer in offers:
        changed = forecast_of(replace(standing, copies=[*standing.copies, offer.copy]))
        if changed is not None:
            able.append((offer, changed.copies_held[-1], _outlook(changed, goal)))
    chosen = choose_purchase(
        before,
        [after for _, _, after in able],
        now=standing.now,
        confidence=goal.confidence,
        has_deadline=goal.deadline is not None,
    )
    if chosen is None:
        return None
    offer, seconds, after = able[chosen]
    return ChosenCopy(offer=offer, seconds=seconds, before=before, after=after)


def _outlook(forecast: "CampaignForecast", goal: Goal) -> RunOutlook:
    return RunOutlook(
        odds=forecast.odds(goal.deadline, None),
        paid=forecast.odds(None, goal.budget),
        end=forecast.end.mean(),
        cost=math.inf if forecast.cost is None else forecast.cost.mean(),
    )
