"""The quantiles of a forecast that people are shown while a run goes on."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a display in another process needs no arrays
    from bursar.forecasts.calibration import Distribution
    from bursar.forecasts.campaign_forecast import CampaignForecast
    from bursar.model.campaign import Goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """
    Three quantiles of a quantity.

    Parameters
    ----------
    p10, p50, p90
        Values that the quantity does not exceed with a probability of 10, 50 and 90 %.
    """

    p10: float
    p50: float
    p90: float

    @classmethod
    def of(cls, distribution: "Distribution") -> "Fan":
        """Return the quantiles of a distribution."""
        p10, p50, p90 = map(distribution.quantile, (0.1, 0.5, 0.9))
        return cls(p10=p10, p50=p50, p90=p90)

    def to_dict(self) -> dict[str, float | None]:
        """Return the quantiles as JSON; None for what never comes."""
        quantiles = {"p10": self.p10, "p50": self.p50, "p90": self.p90}
        return {name: q if math.isfinite(q) else None for name, q in quantiles.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastFan:
    """
    Forecast of a run as told at one moment.

    Parameters
    ----------
    at_s
        When the forecast was made, seconds since the run's begin.
    end_s
        End of the last task, seconds since the run's begin.
    cost
        Cost of the whole run, currency units; None where a price is unknown.
    odds
        Probability that deadline and budget are kept; None without either.
    confidence
        Probability that the goal asks for.
    basis
        What the run times are known from; see
        :class:`bursar.forecasts.campaign_forecast.CampaignForecast`.
    """

    at_s: float
    end_s: Fan
    cost: Fan | None = None
    odds: float | None = None
    confidence: float = 0.0
    basis: str = ""

    @classmethod
    def of(cls, forecast: "CampaignForecast", goal: "Goal", at: float) -> "ForecastFan":
        """Return what is told of a forecast that was made so many seconds after the begin."""
        limited = goal.deadline is not None or goal.budget is not None
        return cls(
            at_s=at,
            end_s=Fan.of(forecast.end),
            cost=None if forecast.cost is None else Fan.of(forecast.cost),
            odds=forecast.odds(goal.deadline, goal.budget) if limited else None,
            confidence=goal.confidence,
            basis=forecast.basis,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as JSON; the keys are in the documentation."""
        return {
            "at_s": self.at_s,
            "end_s": self.end_s.to_dict(),
            "cost": None if self.cost is None else self.cost.to_dict(),
            "odds": self.odds,
            "confidence": self.confidence,
            "basis": self.basis,
        }


def forecast_to_dict(forecast: "CampaignForecast", goal: "Goal") -> dict[str, Any]:
    """Return the forecast of a plan or policy as JSON: seconds, currency units, probability."""
    fan = ForecastFan.of(forecast, goal, 0.0).to_dict()
    told = {key: fan[key] for key in ("end_s", "cost", "odds")}
    waiting = forecast.waiting
    return told | {"waiting_s": None if waiting is None else Fan.of(waiting).to_dict()}
