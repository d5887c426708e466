"""The forecast of an instance, as a part of :class:`bursar.remote.messages.InstanceInfo`."""

import msgspec


class ForecastQuantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Moments that are not exceeded with a probability of 10, 50 and 90 %."""

    p10: float
    p50: float
    p90: float


class CostQuantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts, micro-units, that are not exceeded with a probability of 10, 50 and 90 %."""

    p10: int
    p50: int
    p90: int


class InstanceForecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Forecast of an instance, made anew as its tasks end.

    Parameters
    ----------
    at
        When it was made.
    end
        When the last of the tasks that are there ends, seconds since the epoch.
    cost
        What the tasks come to on shared processors, those that have ended included, micro-units;
        None: they cost nothing for themselves, such as under an agreement.
    deadline_odds, budget_odds
        Probability that the instance's deadline and budget are kept; None: it has none, or nothing
        is known of the cost.
    basis
        What the run times are known from, beside the tasks that have ended: ``"estimates"`` (hints)
        or ``"nothing"``.
    """

    at: float
    end: ForecastQuantiles
    cost: CostQuantiles | None = None
    deadline_odds: float | None = None
    budget_odds: float | None = None
    basis: str = "nothing"
