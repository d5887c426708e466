"""From a proposal to a run, and from a run that was stopped to its end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bursar.api.planning import plan as make_plan
from bursar.api.planning import resolve_campaign
from bursar.api.proposal import Proposal
from bursar.api.result import RunResult
from bursar.api.sites import Sites, resolve_sites
from bursar.model.campaign import Campaign
from bursar.model.errors import Infeasible, InputError
from bursar.model.plan import Plan
from bursar.runs.folder import RunFolder
from bursar.runs.planned import read_plan, write_plan

RUNS = Path("runs")
"""Folder that holds the runs, unless another is named."""


class GoalOutOfReach(Infeasible):
    """
    No plan meets the goal, and nothing was started.

    Attributes
    ----------
    proposal
        With the counter-offers.
    """

    def __init__(self, proposal: Proposal) -> None:
        super().__init__(proposal.reason)
        self.proposal = proposal


def run(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    processors: int | None = None,
    anyway: bool = False,
    name: str | None = None,
    runs: str | Path = RUNS,
    progress: bool = False,
    argv: Sequence[str] = (),
) -> RunResult:
    """
    Plans a campaign, leases the processors, runs it and writes it up.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one.
    sites
        A sites file or the sites; None: this machine.
    processors
        Lease exactly so many; None: as the goal picks.
    anyway
        Start even if no plan meets the goal; the budget still holds.
    name
        Of the run; None: made of the campaign's name and the time.
    runs
        Folder that holds the runs.
    progress
        Whether to show it on stderr.
    argv
        The command line, for the record.

    Raises
    ------
    InputError
        When a file is wrong, or the name is taken.
    GoalOutOfReach
        When no plan meets the goal; a :class:`bursar.Infeasible`.
    BursarError
        When the run could not go on; it can be resumed.
    """
    campaign = resolve_campaign(campaign)
    facts = resolve_sites(sites)
    if campaign.recorded:
        raise InputError(
            "is a recorded workflow: its tasks have no programs",
            where=str(campaign.source or campaign.name),
            hint="--replay SCALE runs stand-ins that take the recorded times",
        )
    proposal = make_plan(campaign, facts, processors=processors)
    chosen = proposal.chosen
    if chosen is None:
        if not anyway:
            raise GoalOutOfReach(proposal)
        chosen = _best_effort(proposal)
    created = RunFolder.create(Path(runs), campaign, facts, argv=list(argv), name=name)
    with created as folder:
        write_plan(folder, proposal.to_dict(), chosen)
        _make_initial_files(folder, campaign)
    return _carry_out(folder, campaign, chosen, progress=progress)


def resume(
    name: str,
    *,
    runs: str | Path = RUNS,
    budget: tuple[float, str | None] | None = None,
    retry_failed: bool = False,
    progress: bool = False,
) -> RunResult:
    """
    Goes on with a run that was stopped or killed, or that its budget stopped.

    Parameters
    ----------
    name
        Of the run, or its folder.
    runs
        Folder that holds the runs.
    budget
        Amount and currency that take the place of the run's budget; None: as it was.
    retry_failed
        Whether what failed for good is tried again.
    progress
        Whether to show it on stderr.

    Raises
    ------
    InputError
        When there is no such run, or another process carries it out.
    BursarError
        When it could not go on.
    """
    folder = RunFolder.open(Path(runs), name)
    campaign = folder.read_campaign()
    _, plan = read_plan(folder)
    if budget is not None:
        amount, currency = budget
        if currency not in (None, plan.currency):
            raise InputError(f"the run counts in {plan.currency}, got {currency}", where="budget")
        campaign = replace(campaign, goal=replace(campaign.goal, budget=amount))
    return _carry_out(
        folder,
        campaign,
        plan,
        changed=budget is not None,
        retry_failed=retry_failed,
        progress=progress,
    )


def _carry_out(folder: RunFolder, campaign: Campaign, plan: Plan, **how: bool) -> RunResult:
    from bursar.runs.running import carry_out

    summary = carry_out(folder, campaign, plan, **how)
    return RunResult(folder, summary, summary["exit_status"])


def _best_effort(proposal: Proposal) -> Plan:
    from bursar.planning.choice import best_effort

    return proposal.front.plan(best_effort(proposal.front, proposal.campaign.goal))


def _make_initial_files(folder: RunFolder, campaign: Campaign) -> None:
    """What a replay reads and nobody makes: files of the recorded sizes, without content."""
    if campaign.recording is None:
        return
    from bursar.formats.replay import make_initial_files

    make_initial_files(campaign, folder.files)
