"""How the calls of an executor stand, with a forecast of their end and cost."""

from collections.abc import Sequence
from typing import NamedTuple

from bursar.engine.run_tasks import TaskCounts
from bursar.forecasts.fan import ForecastFan
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BursarError
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.report.progress import ProgressSnapshot
from bursar.runs.forecasting.standing import RunStanding
from bursar.runs.recording.user_history import open_history

MOST_CALLS = 100_000
"""Calls of which a forecast is made, at most: more take seconds."""


class CallsStanding(NamedTuple):
    """
    State of an executor's calls at one moment.

    Parameters
    ----------
    standing
        What a forecast needs to know.
    counts
        Number of calls in each state.
    held
        Currency units that are set aside.
    tasks
        All calls so far, by their numbers.
    waiting
        How many of the last of these the engine has not taken in yet.
    """

    standing: RunStanding
    counts: TaskCounts
    held: float
    tasks: Sequence[Task]
    waiting: int


def snapshot_of_calls(
    calls: CallsStanding, sites: Sequence[SiteFacts], history: str
) -> ProgressSnapshot:
    """
    Return how calls stand, with the forecast that can be made of them.

    Parameters
    ----------
    history
        History of earlier calls, as stated; see :class:`bursar.Executor`.
    """
    standing, counts = calls.standing, calls.counts
    goal = standing.goal
    names = dict.fromkeys(task.name for task in calls.tasks)
    return ProgressSnapshot(
        campaign=next(iter(names)) if len(names) == 1 else "calls",
        elapsed=standing.now,
        total=counts.total + calls.waiting,
        succeeded=counts.succeeded,
        running=counts.running,
        waiting=counts.waiting + calls.waiting,
        failed=counts.failed,
        skipped=counts.skipped,
        spent=standing.spent,
        held=calls.held,
        budget=goal.budget,
        currency=sites[0].currency,
        predicted_finish=None,
        current_finish=None,
        deadline=goal.deadline,
        follows_plan=False,
        forecast=_forecast(calls, sites, history),
    )


def _forecast(calls: CallsStanding, sites: Sequence[SiteFacts], history: str) -> ForecastFan | None:
    standing = calls.standing
    if len(standing.ended) >= len(calls.tasks) or len(calls.tasks) > MOST_CALLS:
        return None
    from bursar.runs.forecasting.standing_forecast import StandingForecaster

    campaign = Campaign(name="calls", workflow=Workflow(tuple(calls.tasks)))
    try:
        source = open_history(history)
        forecaster = StandingForecaster(campaign, sites, source, "")
    except BursarError:  # then this execution's own calls have to say it
        forecaster = StandingForecaster(campaign, sites, None, "")
    found = forecaster.forecast(standing, ([], []))
    return None if found is None else ForecastFan.of(found, standing.goal, standing.now)
