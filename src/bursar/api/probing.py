"""Runs a few tasks of each kind of unknown runtime before the campaign is planned."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bursar.api.measured_runtimes import (
    ProbeSummary,
    choose_probes,
    learn_runtimes,
    overhead_of,
    warm_outcomes,
)
from bursar.api.planning import plan, renumbered, workflow_of
from bursar.api.queues import run_outside_loop
from bursar.api.quote import Quote
from bursar.api.reusing import ReusingCampaign
from bursar.broker.policy_choice import SupplyPolicy
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import BudgetStop, InputError
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import write_plan
from bursar.runs.recording.user_history import NOWHERE
from bursar.runs.run_record import read_run

MakeFolder = Callable[[], AbstractContextManager[RunFolder]]
"""Makes the folder of the run of a campaign, as a context for filling the folder."""

WARMING = 15.0
"""Seconds that a task which runs alone may take to be run once more, for a warm measurement."""
_COLD = 1.25
"""Seconds for each of processor time from which a task counts as one that read from disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCampaign:
    """
    A campaign with measured runtimes.

    Parameters
    ----------
    campaign
        The campaign, with a runtime for each task that is left.
    summary
        What was measured.
    folder
        The run's folder, which has the results that are kept; None: none are.
    ended
        Tasks that have come to their end in that folder.
    begun
        Begin of the probe in that folder, seconds since the epoch.
    gone
        Seconds of the run's makespan that are known: the probe's, and the start of workers that
        are still to be started.
    spent
        Currency units that the run has cost so far.
    """

    campaign: Campaign
    summary: ProbeSummary
    folder: RunFolder | None = None
    ended: frozenset[int] = frozenset()
    begun: float = 0.0
    gone: float = 0.0
    spent: float = 0.0

    def goal_left(self, goal: Goal) -> Goal:
        """Return what is left of a goal for the tasks that are left."""
        if self.folder is None:
            return goal
        deadline, budget = goal.deadline, goal.budget
        if deadline is not None:
            # Deadlines count from the begin of the run, which was the begin of the probe. One that
            # has passed cannot be met: any plan takes longer than this.
            past = time.time() - self.begun + self.summary.startup
            deadline = max(deadline - past, _LEAST)
        if budget is not None:
            budget = max(budget - self.spent, 0.0)
        return replace(goal, deadline=deadline, budget=budget)

    def of_whole(self, quote: Quote) -> Quote:
        """Return the quote of the rest as that of the whole run, with what the probe has taken."""
        quote = replace(quote, probe=self.summary)
        if self.folder is None:
            return quote

        def later(seconds: float | None) -> float | None:
            return None if seconds is None else seconds + self.gone

        def dearer(cost: float | None) -> float | None:
            return None if cost is None else cost + self.spent

        offers = tuple(
            replace(offer, makespan=offer.makespan + self.gone, cost=dearer(offer.cost))
            for offer in quote.counter_offers
        )
        curve = quote.trade_off
        if curve is not None:
            curve = curve[0], replace(curve[1], counter_offers=offers)
        return replace(
            quote,
            makespan=later(quote.makespan),
            cost=dearer(quote.cost),
            counter_offers=offers,
            trade_off=curve,
        )

    def plan_of_run(self, plan: Plan) -> Plan:
        """Return the plan of the rest with makespan and cost of the whole run."""
        if self.folder is None:
            return plan
        return replace(
            plan,
            makespan=None if plan.makespan is None else plan.makespan + self.gone,
            cost=None if plan.cost is None else plan.cost + self.spent,
        )

    def extend_run(self, campaign: Campaign, quote: Quote, plan: Plan) -> None:
        """Write runtimes and plan into the run's folder, if there is one."""
        if self.folder is not None:
            write_plan(self.folder, quote.to_dict(), plan)
            self.folder.write_campaign(campaign)


_LEAST = 1e-3
"""Seconds that stand for a deadline which has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """
    Outcomes of tasks that ran in one folder.

    Parameters
    ----------
    outcomes
        Last outcome of each task, by number.
    begun, makespan
        Begin, seconds since the epoch, and seconds from there to the last end of a task.
    startup
        Seconds from the begin to the begin of the first task.
    cost
        Currency units.
    """

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    begun: float = 0.0
    makespan: float = 0.0
    startup: float = 0.0
    cost: float = 0.0

    def renumbered(self, numbers: Sequence[int]) -> "_Measurement":
        """Return the same with the tasks' numbers in the whole campaign."""
        return replace(self, outcomes={numbers[n]: one for n, one in self.outcomes.items()})


def probe_campaign(
    ahead: ReusingCampaign,
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
    slower than one. The first of a kind on each processor are left out where enough others are
    there: they read programs and libraries from disk, which the others find in memory.

    Parameters
    ----------
    ahead
        The campaign, and what it reuses: only tasks that are left are measured.
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
    campaign, left = ahead.whole, ahead.left
    chosen = choose_probes(campaign.workflow, each, left)
    most = min(processors or site.processors, site.processors)
    if progress:
        number = len(chosen.whole) + len(chosen.partial)
        what = "1 task" if number == 1 else f"{number} tasks"
        print(f"measuring runtimes: {what} at {site.name}", file=sys.stderr, flush=True)
    keeps = make_folder is not None and bool(chosen.whole)
    began = time.monotonic()
    measured, alone = _Measurement(), _Measurement()
    with tempfile.TemporaryDirectory(prefix="bursar-probe-") as place:
        whole = campaign if keeps else replace(campaign, goal=Goal())
        with (
            make_folder()
            if make_folder is not None and keeps
            else _throwaway(Path(place), whole, site, ahead)
        ) as folder:
            # A run without a plan could not be read, if it were killed here.
            write_plan(folder, {}, Plan.on_the_way(site.currency, "probe"))
        if chosen.whole:
            measured = _measure(folder, whole, site, chosen.whole, most, progress)
        if chosen.partial:
            alone = _measure_alone(
                Path(place), campaign, chosen.partial, site, most, folder, progress
            )
            alone = alone.renumbered(chosen.partial)
        seconds = time.monotonic() - began
    ends = measured.outcomes
    overhead = overhead_of(list(ends.values()), most)
    warm = warm_outcomes(campaign.workflow, ends, most) | alone.outcomes
    workflow, kinds = learn_runtimes(campaign.workflow, warm, overhead, site.speed, left)
    succeeded = {n for n in ends if ends[n].status is Status.SUCCEEDED}
    summary = ProbeSummary(
        kinds=kinds,
        overhead=overhead,
        startup=measured.startup,
        seconds=seconds,
        cost=None if site.unit_price is None else measured.cost + alone.cost,
        currency=site.currency,
        kept=len(succeeded) if keeps else 0,
        again=len(alone.outcomes) + (0 if keeps else len(succeeded)),
        cold=len(ends.keys() - warm.keys()),
    )
    probed = ProbedCampaign(campaign=replace(campaign, workflow=workflow), summary=summary)
    if not keeps:
        return probed
    return replace(
        probed,
        folder=folder,
        ended=frozenset(ends),
        begun=measured.begun,
        gone=measured.makespan + measured.startup,
        spent=measured.cost,
    )


def probe_for_run(
    ahead: ReusingCampaign,
    sites: Sequence[SiteFacts],
    each: int,
    policy: SupplyPolicy,
    make_folder: MakeFolder,
    processors: int | None,
    progress: bool,
) -> ProbedCampaign:
    """
    Measure as :func:`probe_campaign` does, in the folder of the run if no other site is needed.
    """
    keeps = policy.kind == "planned" and all(site.kind == "local" for site in sites)
    return probe_campaign(
        ahead,
        sites,
        each,
        processors=processors,
        make_folder=make_folder if keeps else None,
        progress=progress,
    )


def _alone(campaign: Campaign, numbers: Sequence[int]) -> Campaign:
    """Return the campaign of these tasks only, which wait for none."""
    tasks = tuple(replace(campaign.workflow.tasks[n], after=()) for n in numbers)
    return replace(campaign, workflow=Workflow(tasks), goal=Goal())


@contextmanager
def _throwaway(
    place: Path,
    campaign: Campaign,
    site: SiteFacts,
    ahead: ReusingCampaign | None = None,
    *,
    part_of: int = 0,
) -> Iterator[RunFolder]:
    """Make the folder of a run that is deleted again, with the results that are reused."""
    with RunFolder.create(place, campaign, (site,), argv=[], part_of=part_of) as folder:
        if ahead is not None and ahead.origin[1]:
            ahead.take_over(folder)
        yield folder


def _measure_alone(
    place: Path,
    whole: Campaign,
    chosen: Sequence[int],
    site: SiteFacts,
    processors: int,
    files: RunFolder,
    progress: bool,
) -> _Measurement:
    """
    Run tasks on a copy of a run's files, twice where they are quick and the first waited.

    What waits reads programs from disk, as a rule, which the second finds in memory.
    """
    cost, again = 0.0, True
    campaign = _alone(whole, chosen)
    numbers = range(len(chosen))
    while True:
        part_of = len(whole.workflow.tasks)
        with _throwaway(place, campaign, site, part_of=part_of) as folder:
            shutil.copytree(files.files, folder.files, symlinks=True, dirs_exist_ok=True)
        found = _measure(folder, campaign, site, numbers, processors, progress)
        cost += found.cost
        if not (again and _has_waited(found) and found.makespan <= WARMING):
            return replace(found, cost=cost)
        again = False


def _has_waited(found: _Measurement) -> bool:
    """Whether all tasks succeeded, and took longer than their processor time."""
    ends = found.outcomes.values()
    busy = sum(one.user_seconds + one.system_seconds for one in ends)
    return (
        all(one.status is Status.SUCCEEDED for one in ends)
        and sum(one.end - one.start for one in ends) > _COLD * busy
    )


def _measure(
    folder: RunFolder,
    campaign: Campaign,
    site: SiteFacts,
    numbers: Sequence[int],
    processors: int,
    progress: bool,
) -> _Measurement:
    """Run some tasks of a campaign in the folder of its run."""
    from bursar.runs.campaign_run import execute_campaign

    some = workflow_of(campaign.workflow.tasks, numbers)
    part = replace(campaign, workflow=some, goal=Goal())
    quote = plan(part, (site,), processors=processors, history=NOWHERE)
    chosen = renumbered(quote.plan_to_follow(), numbers)
    write_plan(folder, quote.to_dict(), chosen)
    summary = run_outside_loop(
        lambda: execute_campaign(
            folder, campaign, chosen, only=numbers, written_up=False, progress=progress
        )
    )
    record = read_run(folder)
    wanted = set(numbers)
    ends = {n: end.outcome for n, end in record.final.items() if n in wanted}
    if summary["state"] == "interrupted":
        raise KeyboardInterrupt
    if summary["state"] == "budget-stopped" and not summary["succeeded"]:
        raise BudgetStop("the budget is less than the tasks cost that are to be measured")
    begun = record.incarnations[0][0]
    first = min((one.outcome.start for one in record.attempts), default=begun)
    return _Measurement(
        outcomes=ends,
        begun=begun,
        makespan=record.makespan or 0.0,
        startup=max(0.0, first - begun),
        cost=summary["cost"] or 0.0,
    )
