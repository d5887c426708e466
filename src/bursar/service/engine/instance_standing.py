"""How an instance stands, as its forecast needs to know, and what is kept of a forecast."""

from collections.abc import Sequence
from typing import NamedTuple

from bursar.model.task import Status
from bursar.remote.forecast_messages import InstanceForecast


class EndedTask(NamedTuple):
    """
    A task that has ended.

    Parameters
    ----------
    label
        The client's own word for it.
    seconds
        Run time.
    busy
        Share of processor time in that; NaN where unknown.
    """

    label: str
    seconds: float
    status: Status
    busy: float


class InstanceStanding(NamedTuple):
    """
    Copies of what a forecast of an instance needs to know.

    Parameters
    ----------
    now
        Seconds since the epoch.
    states, processors, estimates
        Of all tasks, by number.
    labels, after, groups
        Of tasks that have not ended and have any; a group with how many of it may run at a time.
    running
        Tasks that run, and for how many seconds they have.
    room
        Processors on which the tasks are forecast to run.
    price
        Currency units per processor-second; None: nothing is charged for each.
    spent
        Micro-units so far.
    deadline, budget
        Seconds since the epoch, and micro-units; None: none was stated.
    """

    now: float
    states: bytes
    processors: Sequence[int]
    estimates: Sequence[float]
    labels: dict[int, str]
    after: dict[int, tuple[int, ...]]
    groups: dict[int, tuple[str, int]]
    running: Sequence[tuple[int, float]]
    ends: Sequence[EndedTask]
    room: int
    price: float | None
    spent: int
    deadline: float | None
    budget: int | None


class ForecastScores(NamedTuple):
    """Scores of earlier forecasts of the end and of the cost, the newest last."""

    end: Sequence[float] = ()
    cost: Sequence[float] = ()


class MadeForecast(NamedTuple):
    """
    A forecast, with what its score is computed from when the truth is known.

    Parameters
    ----------
    end, cost
        5 %, 50 % and 95 % quantiles of the draws: seconds from the forecast, currency units beyond
        those spent. None where no cost is forecast.
    """

    told: InstanceForecast
    end: tuple[float, float, float]
    cost: tuple[float, float, float] | None
