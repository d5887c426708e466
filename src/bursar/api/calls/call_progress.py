"""How the calls of an executor stand, with a forecast of their end and cost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bursar.engine.run_tasks import TaskCounts
from bursar.forecasts.fan import ForecastFan
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BursarError
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.report.progress import ProgressSnapshot
from bursar.runs.forecasting.standing import RunStanding
from bursar.runs.recording.user_history import open_history

if TYPE_CHECKING:
    from bursar.forecasts.known_runtimes import ObservationSource

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
        How many of these the engine has not taken in yet.
    campaign
        Campaign that the calls belong to, with calls to come; None: each call stands alone.
    """

    standing: RunStanding
    counts: TaskCounts
    held: float
    tasks: Sequence[Task]
    waiting: int
    campaign: Campaign | None = None

    def within(self, campaign: Campaign, places: Sequence[int]) -> "CallsStanding":
        """
        Return how a campaign stands whose tasks become calls one by one.

        Parameters
        ----------
        places
            Number of the task in the campaign of each call so far. A task that is tried again is
            there once for each call, and ends with the last.
        """
        last = {place: call for call, place in enumerate(places)}
        old = self.standing
        known = len(places)
        standing = replace(
            old,
            ended=frozenset(place for place, call in last.items() if call in old.ended),
            running=[
                one._replace(task=places[one.task]) for one in old.running if one.task < known
            ],
            attempts=[
                one._replace(task=places[one.task]) for one in old.attempts if one.task < known
            ],
            lease_of={places[at]: name for at, name in old.lease_of.items() if at < known},
        )
        tasks = campaign.workflow.tasks
        waiting = max(0, len(tasks) - self.counts.total)
        return CallsStanding(standing, self.counts, self.held, tasks, waiting, campaign)


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
    return ProgressSnapshot(
        campaign=_name(calls),
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


def _name(calls: CallsStanding) -> str:
    if calls.campaign is not None:
        return calls.campaign.name
    names = dict.fromkeys(task.name for task in calls.tasks)
    return next(iter(names)) if len(names) == 1 else "calls"


def _forecast(calls: CallsStanding, sites: Sequence[SiteFacts], history: str) -> ForecastFan | None:
    standing = calls.standing
    if len(standing.ended) >= len(calls.tasks) or len(calls.tasks) > MOST_CALLS:
        return None
    from bursar.runs.forecasting.standing_forecast import StandingForecaster

    campaign = calls.campaign or Campaign(name="calls", workflow=Workflow(tuple(calls.tasks)))
    source: ObservationSource | None
    try:
        kept = source = open_history(history)
        if campaign.earlier:
            from bursar.runs.recording.earlier_jobs import ObservationsBeside, observe_earlier

            campaign, beside = observe_earlier(campaign)
            source = ObservationsBeside(kept, beside)
        forecaster = StandingForecaster(campaign, sites, source, "")
    except BursarError:  # then this execution's own calls have to say it
        forecaster = StandingForecaster(campaign, sites, None, "")
    found = forecaster.forecast(standing, ([], []))
    return None if found is None else ForecastFan.of(found, standing.goal, standing.now)
