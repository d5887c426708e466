"""Runs a few tasks of each kind of unknown runtime before the campaign is planned."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from bursar.api.known_campaign import NO_HISTORY
from bursar.api.measured_runtimes import (
    ProbeSummary,
    choose_probes,
    learn_runtimes,
    overhead_of,
)
from bursar.api.planning import plan
from bursar.api.queues import run_outside_loop
from bursar.api.quote import Quote
from bursar.broker.policy_choice import SupplyPolicy
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import write_plan
from bursar.runs.run_record import read_run

MakeFolder = Callable[[Campaign], RunFolder]
"""Makes the folder of a run with the first tasks of a campaign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCampaign:
    """
    A campaign with measured runtimes.

    Parameters
    ----------
    campaign
        The campaign; tasks whose results are kept come first.
    summary
        What was measured.
    folder
        The run's folder, which has the results that are kept; None: none are.
    """

    campaign: Campaign
    summary: ProbeSummary
    folder: RunFolder | None = None

    def extend_run(self, campaign: Campaign, quote: Quote) -> None:
        """Make the run of the measured tasks, if there is one, that of the whole campaign."""
        if self.folder is None:
            return
        write_plan(self.folder, quote.to_dict(), quote.plan_to_follow())
        self.folder.write_campaign(campaign)
        info = self.folder.read_info()
        info.state, info.finished = "interrupted", None
        info.tasks = len(campaign.workflow.tasks)
        self.folder.write_info(info)


def probe_campaign(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    each: int,
    *,
    processors: int | None = None,
    make_folder: MakeFolder | None = None,
    progress: bool = False,
) -> ProbedCampaign:
    """
    Run a few tasks of each kind of unknown runtime on the local site, and learn from them.

    All run at once as the processors allow, as they will in the run: two tasks at once are
    slower than one.

    Parameters
    ----------
    each
        Number of tasks of each kind, at most. Positive.
    processors
        Number of processors that run them; None: as many as the site has.
    make_folder
        Makes the run's folder, which keeps the results; None: all run in a throwaway folder.
    progress
        Whether the progress is shown on stderr.

    Raises
    ------
    InputError
        When there is no local site, or no task could be measured.
    BursarError
        When the tasks could not be run.
    """
    site = next((one for one in sites if one.kind == "local"), None)
    if site is None:
        raise InputError("expected a site of kind local to measure tasks on", where="probe")
    chosen = choose_probes(campaign.workflow, each)
    if progress:
        number = len(chosen.whole) + len(chosen.partial)
        what = "1 task" if number == 1 else f"{number} tasks"
        print(f"measuring runtimes: {what} at {site.name}", file=sys.stderr, flush=True)
    began, cost = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="bursar-probe-") as place:
        kept = None
        ends: dict[int, Outcome] = {}
        overhead = 0.0
        files: Path | None = None
        if chosen.whole:
            part = _only(campaign, chosen.whole)
            kept = _throwaway(place, part, site) if make_folder is None else make_folder(part)
            ends, spent = _measure(kept, part, site, chosen.whole, processors, progress)
            overhead = overhead_of(list(ends.values()), processors or site.processors)
            cost, files = spent, kept.files
        if chosen.partial:
            part = _only(campaign, chosen.partial)
            folder = _throwaway(place, part, site)
            if files is not None:
                shutil.copytree(files, folder.files, symlinks=True, dirs_exist_ok=True)
            found, spent = _measure(folder, part, site, chosen.partial, processors, progress)
            ends |= found
            cost += spent
        seconds = time.monotonic() - began
    if make_folder is None:
        kept = None
    workflow, kinds = learn_runtimes(campaign.workflow, ends, overhead, site.speed)
    if kept is not None:
        rest = sorted({*range(len(workflow.tasks))} - {*chosen.whole})
        workflow = Workflow(tuple(workflow.tasks[n] for n in (*chosen.whole, *rest)))
    good = [n for n in chosen.whole if ends[n].status is Status.SUCCEEDED] if kept else []
    summary = ProbeSummary(
        kinds=kinds,
        overhead=overhead,
        seconds=seconds,
        cost=cost if site.unit_price is not None else None,
        currency=site.currency,
        kept=len(good),
    )
    return ProbedCampaign(
        campaign=replace(campaign, workflow=workflow), summary=summary, folder=kept
    )


def probe_for_run(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    each: int,
    policy: SupplyPolicy,
    create: Callable[..., AbstractContextManager[RunFolder]],
    processors: int | None,
    progress: bool,
) -> ProbedCampaign:
    """
    Measure as :func:`probe_campaign` does, in the folder of the run if no other site is needed.

    Parameters
    ----------
    create
        Makes the folder of the run for a ``campaign``.
    """

    def make_folder(part: Campaign) -> RunFolder:
        with create(campaign=part) as folder:
            write_plan(folder, {}, Plan.on_the_way(sites[0].currency, "probe", None, None))
        return folder

    keeps = policy.kind == "planned" and all(site.kind == "local" for site in sites)
    return probe_campaign(
        campaign,
        sites,
        each,
        processors=processors,
        make_folder=make_folder if keeps else None,
        progress=progress,
    )


def _only(campaign: Campaign, numbers: Sequence[int]) -> Campaign:
    """Return the campaign with these tasks only, which wait for each other only."""
    tasks = [campaign.workflow.tasks[n] for n in numbers]
    ids = {task.id for task in tasks}
    tasks = [replace(task, after=tuple(p for p in task.after if p in ids)) for task in tasks]
    return replace(campaign, workflow=Workflow(tuple(tasks)))


def _throwaway(place: str, campaign: Campaign, site: SiteFacts) -> RunFolder:
    campaign = replace(campaign, goal=Goal())
    with RunFolder.create(Path(place), campaign, (site,), argv=[]) as folder:
        return folder


def _measure(
    folder: RunFolder,
    campaign: Campaign,
    site: SiteFacts,
    numbers: Sequence[int],
    processors: int | None,
    progress: bool,
) -> tuple[dict[int, Outcome], float]:
    """Run the tasks; return the outcomes by the numbers of the campaign, and what they cost."""
    from bursar.runs.campaign_run import execute_campaign

    most = min(processors or site.processors, site.processors)
    quote = plan(replace(campaign, goal=Goal()), (site,), processors=most, history=NO_HISTORY)
    chosen = quote.plan_to_follow()
    write_plan(folder, quote.to_dict(), chosen)
    summary = run_outside_loop(
        lambda: execute_campaign(folder, campaign, chosen, written_up=False, progress=progress)
    )
    if summary["exit_status"] == 130:
        raise KeyboardInterrupt
    ends = read_run(folder).outcomes
    return {numbers[one.task]: one for one in ends}, summary["cost"] or 0.0
