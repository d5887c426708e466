"""
The forecast of one instance of a service, from copies of its columns.

Loaded with the first forecast and used in a thread, since arrays and kernels take long to load.
"""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bursar.engine.task_states import CLAIMED, HELD
from bursar.forecasts.calibration import Distribution, EarlierScore
from bursar.forecasts.campaign_forecast import CampaignForecaster, TaskProgress
from bursar.forecasts.known_runtimes import KnownRuntimes
from bursar.forecasts.runtime_draws import CampaignTasks, UnknownRuntimes
from bursar.forecasts.runtime_model import RuntimeColumns, learn_runtimes
from bursar.history.observation import CENSORED
from bursar.model.campaign import Workflow
from bursar.model.money import from_micros, to_micros
from bursar.model.plan import Purchase
from bursar.model.slot import Slot
from bursar.model.task import Shell, Status, Task
from bursar.remote.forecast_messages import CostQuantiles, ForecastQuantiles, InstanceForecast
from bursar.service.engine.instance_standing import (
    EndedTask,
    ForecastScores,
    InstanceStanding,
    MadeForecast,
)

MOST_RUNTIMES = 150_000
"""Run times that are drawn for a forecast, at most: large instances get fewer draws."""

FEWEST_DRAWS, MOST_DRAWS = 40, 200

_DIGITS = re.compile(r"\d+")
_HERE = "here"
_LONG = 1e9  # seconds; no forecast is longer
_NOTHING = (Shell("true"),)


def kind_of(label: str) -> str:
    """Return the kind of a task: its label without numbers, by which tasks of a sweep differ."""
    return _DIGITS.sub("#", label)


def forecast_instance(standing: InstanceStanding, scores: ForecastScores) -> MadeForecast | None:
    """
    Return the forecast of an instance; None where nothing can be said.

    Parameters
    ----------
    scores
        Scores of earlier forecasts at this share, by which this one is corrected.
    """
    left = [i for i, state in enumerate(standing.states) if HELD <= state <= CLAIMED]
    if not left:
        return None
    place = {task: at for at, task in enumerate(left)}
    turns = _turns(standing.groups, dict(standing.running))
    workflow = Workflow(
        tuple(
            Task(
                id=str(task),
                steps=_NOTHING,
                processors=standing.processors[task],
                after=tuple(
                    str(p)
                    for p in (*standing.after.get(task, ()), *turns.get(task, ()))
                    if p in place
                ),
            )
            for task in left
        )
    )
    names = [kind_of(standing.labels.get(task, "")) for task in left]
    kinds = {
        name: at
        for at, name in enumerate(
            dict.fromkeys((*names, *(kind_of(e.label) for e in standing.ends)))
        )
    }
    estimates = np.array([standing.estimates[task] for task in left], dtype=np.float64)
    tasks = CampaignTasks(
        kind=np.array([kinds[name] for name in names], dtype=np.int64),
        features=np.zeros((len(left), 0)),
        estimate=np.where(np.isfinite(estimates), estimates, np.nan),
        elapsed=np.zeros(len(left)),
        tries=np.ones(len(left), dtype=np.int64),
    )
    known = KnownRuntimes(
        model=learn_runtimes(_columns([], kinds), len(kinds), 1),
        tasks=tasks,
        kinds=tuple(kinds),
        sites={_HERE: 0},
    )
    progress = TaskProgress(
        elapsed={place[task]: seconds for task, seconds in standing.running if task in place},
        observed=_columns(standing.ends, kinds),
    )
    try:
        forecaster = CampaignForecaster(
            workflow,
            known,
            progress,
            draws=min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_RUNTIMES // len(left))),
            end_scores=[EarlierScore(score) for score in scores.end],
            cost_scores=[EarlierScore(score) for score in scores.cost],
            share=1 - len(left) / len(standing.states),
        )
    except UnknownRuntimes:
        return None
    slot = Slot(
        site=_HERE,
        start=0.0,
        duration=_LONG,
        processors=standing.room,
        unit_price=standing.price or 0.0,
        divisible=True,
    )
    found = forecaster.of_plan((Purchase(slot=slot),), (), {_HERE: 1.0})
    if not math.isfinite(found.end.quantile(0.95)) or found.cost is None:
        return None
    priced = standing.price is not None
    return MadeForecast(
        told=_told(standing, found.end, found.cost if priced else None, found.basis),
        end=found.end.own_quantiles(),
        cost=found.cost.own_quantiles() if priced else None,
    )


def _turns(
    groups: Mapping[int, tuple[str, int]], running: Mapping[int, float]
) -> dict[int, tuple[int]]:
    """
    Return the task that each task of a group waits for: the one as many before as may run.

    In truth any that ends makes room, so that the forecast of such tasks is somewhat late: by a
    twentieth where run times lie between half and one and a half of the mean.
    """
    members: dict[str, list[int]] = {}
    for task in sorted(groups, key=lambda task: (task not in running, task)):
        members.setdefault(groups[task][0], []).append(task)
    return {
        task: (of[at - groups[task][1]],)
        for of in members.values()
        for at, task in enumerate(of)
        if at >= groups[task][1]
    }


def _told(
    standing: InstanceStanding, end: Distribution, cost: Distribution | None, basis: str
) -> InstanceForecast:
    """Return a forecast in the form of the API: a clock of the epoch, and micro-units."""
    now, spent = standing.now, from_micros(standing.spent)
    deadline, budget = standing.deadline, standing.budget
    return InstanceForecast(
        at=now,
        end=ForecastQuantiles(**{name: now + value for name, value in _quantiles(end)}),
        cost=None
        if cost is None
        else CostQuantiles(**{name: to_micros(spent + value) for name, value in _quantiles(cost)}),
        deadline_odds=None if deadline is None else end.probability(deadline - now),
        budget_odds=None
        if budget is None or cost is None
        else cost.probability(from_micros(budget) - spent),
        basis=basis,
    )


def _quantiles(distribution: Distribution) -> list[tuple[str, float]]:
    shares = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
    return [(name, distribution.quantile(share)) for name, share in shares.items()]


def _columns(ends: Sequence[EndedTask], kinds: Mapping[str, int]) -> RuntimeColumns:
    """Return ended tasks as arrays."""
    count = len(ends)
    cut = np.array([end.status in CENSORED for end in ends], dtype=np.bool_)
    good = np.array([end.status is Status.SUCCEEDED for end in ends], dtype=np.bool_)
    return RuntimeColumns(
        kind=np.array([kinds[kind_of(end.label)] for end in ends], dtype=np.int64),
        execution=np.zeros(count, np.int64),
        site=np.zeros(count, np.int64),
        work=np.array([end.seconds for end in ends], dtype=np.float64),
        whole=~cut,
        failed=~good & ~cut,
        busy=np.array([end.busy for end in ends], dtype=np.float64),
        estimate=np.full(count, np.nan),
        features=np.zeros((count, 0)),
    )
