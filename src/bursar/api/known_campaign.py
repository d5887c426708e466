"""
What earlier runs say of a campaign: run times to plan with.

Nothing is said without earlier tasks of the campaign's own kinds: a user's estimate that no run
has checked is taken at its word.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.history.forecast_records import FoundScores
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BursarError
from bursar.model.site import SiteFacts
from bursar.runs.recording.user_history import open_history, stated_history
from bursar.sqlite_file import warn_on_stderr

if TYPE_CHECKING:
    from bursar.forecasts.known_runtimes import KnownRuntimes, ObservationSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseenCampaign:
    """
    A campaign with the run times that earlier runs suggest.

    Parameters
    ----------
    campaign
        The campaign; tasks of known kinds have the median of their run time as estimate.
    known
        What is known of the run times; None: nothing, and the campaign is as it was.
    scores
        Scores of the ends and of the costs of earlier forecasts, by which forecasts are corrected,
        each with whether it is of the same campaign.
    """

    campaign: Campaign
    known: "KnownRuntimes | None" = None
    scores: FoundScores = ((), ())

    def words(self) -> str:
        """Return what the run times are known from, as a line for people; empty: nothing."""
        if self.known is None:
            return ""
        known = self.known
        runs = "1 earlier run" if known.executions == 1 else f"{known.executions} earlier runs"
        tasks = "1 task" if known.observed == 1 else f"{known.observed:,} tasks"
        other = "" if known.same_size else ", with other numbers of tasks"
        return f"run times are known from {tasks} of {runs}{other}"

    def of_part(self, part: Campaign) -> "ForeseenCampaign":
        """Return what is known of the campaign that has some of the tasks."""
        if self.known is None:
            return ForeseenCampaign(campaign=part)
        import numpy as np  # late: loaded where something is known

        place = {task.id: at for at, task in enumerate(self.campaign.workflow.tasks)}
        rows = np.array([place[task.id] for task in part.workflow.tasks], dtype=np.int64)
        return replace(self, campaign=part, known=self.known.of_part(rows))


def foresee(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    history: "str | Path | ObservationSource | ForeseenCampaign | None" = None,
) -> ForeseenCampaign:
    """
    Learn what a history says of a campaign, and give its tasks the run times to expect.

    Parameters
    ----------
    history
        The history or its file; ``"none"``: there is none; None: as the variable
        ``BURSAR_HISTORY`` says, else the user's. Or what was learned of the campaign already, of
        which ``campaign`` may be a part.

    Returns
    -------
    ForeseenCampaign
        Without run times, and with a line on stderr, where the history cannot be read.
    """
    if isinstance(history, ForeseenCampaign):
        return history.of_part(campaign)
    beside: Sequence[TaskObservation] = ()
    if campaign.earlier:
        from bursar.runs.recording.earlier_jobs import observe_earlier  # late: it loads arrays

        campaign, beside = observe_earlier(campaign)
    try:
        known, scores = _looked_up(campaign, sites, history, beside)
    except BursarError as error:
        _warn_once(f"run times are not known from earlier runs: {error}")
        known, scores = None, ((), ())
    if known is None or not known.executions:
        return ForeseenCampaign(campaign=campaign)
    # To two digits: nobody knows more, and plans of tasks of few lengths are made much sooner.
    expected = known.medians().tolist()
    tasks = tuple(
        task
        if math.isnan(seconds)
        else replace(task, runtime=float(f"{seconds:.2g}"), learned=True)
        for task, seconds in zip(campaign.workflow.tasks, expected, strict=True)
    )
    return ForeseenCampaign(
        campaign=replace(campaign, workflow=Workflow(tasks)), known=known, scores=scores
    )


def _looked_up(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    history: "str | Path | ObservationSource | None",
    beside: Sequence[TaskObservation],
) -> "tuple[KnownRuntimes | None, FoundScores]":
    source = history
    if source is None or isinstance(source, str | Path):
        source = open_history(stated_history(source))
        if source is not None and not source.path.exists():
            source = None
    kept = source if isinstance(source, History) else None
    if beside and (source is None or kept is not None):
        from bursar.runs.recording.earlier_jobs import ObservationsBeside

        source = ObservationsBeside(kept, beside)
    if source is None:
        return None, ((), ())
    from bursar.forecasts.known_runtimes import known_runtimes  # late: it loads the kernels

    known = known_runtimes(campaign, [site.name for site in sites], source)
    if kept is None:
        return known, ((), ())
    return known, kept.forecast_scores(campaign.name, known.basis, 0.0)


@cache
def _warn_once(text: str) -> None:
    warn_on_stderr(text)
