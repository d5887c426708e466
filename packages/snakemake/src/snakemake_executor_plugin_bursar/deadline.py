"""The deadline of a workflow: whether it can be kept, and the odds of that as jobs end."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

import bursar
from bursar.api.quote import Quote
from bursar.api.site_resolution import resolve_sites
from bursar.formats.job_files.snakefile import campaign_of_described
from bursar.formats.job_files.snakemake_dag import described
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError
from bursar.model.site import SiteFacts
from bursar.report.forecast_columns import forecast_in_words
from bursar.report.tables import span
from bursar.runs.recording.user_history import open_history, stated_history

FIRST_LINE = 10.0
"""Seconds until the odds are told for the first time; each further wait is twice as long."""

LONGEST_WAIT = 600.0


class WorkflowDeadline:
    """
    A deadline that the jobs of a workflow, as they are to run now, are to keep.

    Parameters
    ----------
    workflow
        Snakemake's workflow, with its graph of jobs.
    deadline
        Seconds from now on.
    budget
        Most that may be spent, currency units; None: no limit.
    jobs
        Most jobs that Snakemake has under way at a time; None: no limit.

    Raises
    ------
    WorkflowError
        When sites, deadline or budget cannot be read.
    """

    def __init__(
        self,
        workflow: Any,
        sites: str | None,
        deadline: float,
        budget: float | None,
        jobs: int | None,
    ) -> None:
        told = described(workflow)
        graph = list(workflow.dag.jobs)
        try:
            self._campaign, ids = campaign_of_described(told, Path(workflow.main_snakefile))
            self._campaign = _without_known_rules(self._campaign)
            found = resolve_sites(None if sites is None else Path(sites))
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None
        number = {task.id: at for at, task in enumerate(self._campaign.workflow.tasks)}
        self._number = {
            _key(job): number[name] for job, name in zip(graph, ids, strict=True) if name in number
        }
        self._sites = _within(found, self._campaign, jobs)
        self._deadline, self._budget = deadline, budget
        self._places: list[int] | None = []
        self._next = time.monotonic() + FIRST_LINE
        self._wait = FIRST_LINE

    def told_before(self) -> list[str]:
        """
        Return what is to be expected, in lines, before anything is bought.

        Raises
        ------
        WorkflowError
            When the deadline, or the budget with it, is out of reach.
        """
        try:
            quote = bursar.plan(
                self._campaign, self._sites, deadline=self._deadline, budget=self._budget
            )
            quote.check_goal()
        except bursar.GoalOutOfReach as error:
            raise WorkflowError(f"bursar: --bursar-deadline: {error}") from None
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None
        return [f"bursar: {line}" for line in (_expected(quote), *quote.campaign.remarks)]

    def submitted(self, job: JobExecutorInterface) -> None:
        """Note a job, or a group of jobs, that has become the next call."""
        # The graph has grown by a checkpoint, or several jobs are one call: odds would be wrong.
        place = None if job.is_group() else self._number.get(_key(job))
        if place is None:
            self._places = None
        elif self._places is not None:
            self._places.append(place)

    def told_now(self, executor: bursar.Executor) -> str | None:
        """Return how the workflow stands, with the odds; None: it is not the time for a line."""
        now = time.monotonic()
        if self._places is None or now < self._next:
            return None
        self._wait = min(LONGEST_WAIT, 2 * self._wait)
        self._next = now + self._wait
        return f"bursar: {executor.progress(self._campaign, tuple(self._places))}"


def _key(job: Any) -> tuple[str, tuple[str, ...]]:
    return job.rule.name, tuple(map(str, job.output))


def _without_known_rules(campaign: Campaign) -> Campaign:
    """
    Return the campaign without Snakemake's records of rules that the history knows.

    Snakemake's records of jobs on other machines than its own include the wait for a worker.
    """
    if not campaign.earlier:
        return campaign
    history = open_history(stated_history(None))
    known = set(history.kinds()) if history is not None and history.path.exists() else set()
    return replace(
        campaign, earlier=tuple(one for one in campaign.earlier if one.kind not in known)
    )


def _within(
    sites: Sequence[SiteFacts], campaign: Campaign, jobs: int | None
) -> tuple[SiteFacts, ...]:
    """Return the sites with no more processors than so many jobs at a time can hold."""
    if jobs is None:
        return tuple(sites)
    most = jobs * max(task.processors for task in campaign.workflow.tasks)
    return tuple(replace(site, processors=min(site.processors, most)) for site in sites)


def _expected(quote: Quote) -> str:
    """Return what the fastest plan comes to, since an executor takes what the jobs can use."""
    goal = quote.campaign.goal
    deadline = f"deadline {span(goal.deadline or 0.0)}"
    options = [one for one in quote.front.options if one.makespan is not None]
    if not options:
        return f"{deadline}: {quote.reason or 'run times are not known'}"
    fastest = min(options, key=lambda one: one.makespan or 0.0)
    forecasts = quote.forecasts
    if forecasts is None:
        return f"{deadline}: expected end {span(fastest.makespan or 0.0)} by the run times stated"
    forecast = forecasts.of_pool() if forecasts.is_for_pool else forecasts.of(fastest)
    return f"{deadline}, {forecast_in_words(forecast, goal, quote.currency)}"
