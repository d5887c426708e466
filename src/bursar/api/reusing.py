"""Campaigns without the results that an earlier run has, and runs whose campaign has changed."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bursar.api.planning import renumbered, workflow_of
from bursar.api.quote import Quote
from bursar.broker.policy_choice import SupplyPolicy
from bursar.formats.campaign_file import read_campaign, statement_digest
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError, InputError
from bursar.model.money import from_micros
from bursar.model.plan import Plan
from bursar.runs.folder import RunFolder, runs_of

if TYPE_CHECKING:  # a plan where nothing ran before begins sooner without what reads runs
    from bursar.runs.reuse import CampaignReuse
    from bursar.runs.reuse_store import RecordedRun

# A campaign without the results that are there.


@dataclass(frozen=True, kw_only=True)
class ReusingCampaign:
    """
    A campaign, and what is left of it once results of an earlier run are taken.

    Parameters
    ----------
    whole
        The campaign as its file states it, with all tasks.
    reuse
        What it takes; None: nothing, and it was not asked what its results depend on.
    ended
        Tasks that a probe has run in the folder of the new run.
    """

    whole: Campaign
    reuse: "CampaignReuse | None"
    ended: frozenset[int] = frozenset()

    @property
    def left(self) -> list[int]:
        """Numbers of the tasks that run, ascending."""
        everything = range(len(self.whole.workflow.tasks))
        left = everything if self.reuse is None else self.reuse.left
        return [number for number in left if number not in self.ended]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to run."""
        return (self.reuse is not None or bool(self.ended)) and not self.left

    @property
    def origin(self) -> tuple[str, int]:
        """Name of the earlier run and number of reused results; empty and 0: none are."""
        return ("", 0) if self.reuse is None else self.reuse.origin

    def rest(self) -> Campaign:
        """Return the campaign of the tasks that run; not to be asked where nothing is left."""
        if not self.origin[1] and not self.ended:
            return self.whole
        workflow = workflow_of(self.whole.workflow.tasks, self.left)
        return replace(self.whole, workflow=workflow, recording=None)

    def plan_of_whole(self, plan: Plan) -> Plan:
        """Return a plan of the rest with the tasks' numbers in the whole campaign."""
        if not self.origin[1] and not self.ended:
            return plan
        return renumbered(plan, self.left)

    def nothing_left(self, policy: SupplyPolicy, currency: str) -> Quote:
        """Return the quote of a campaign of which nothing is left to run."""
        return Quote(
            campaign=self.whole,
            policy=policy,
            currency=currency,
            reason="every result is there from an earlier run",
            makespan=0.0,
            cost=0.0,
        )

    def notes(self, explain: bool) -> list[str]:
        """Return lines for people: what is reused and what runs, and, if asked, why."""
        if self.reuse is None:
            return ["no earlier run is reused: all tasks run"] if explain else []
        summary = self.reuse.summary()
        return ([summary] if summary else []) + (self.reuse.explanation() if explain else [])

    def take_over(self, folder: RunFolder) -> None:
        """
        Put the reused results into a run's folder, with the record of what results depend on.

        Raises
        ------
        BursarError
            When a result cannot be taken.
        """
        from bursar.runs.reuse import take_over

        if self.reuse is not None:
            take_over(folder, self.reuse, _digest_of(self.whole.source))


def reusing(
    campaign: Campaign,
    runs: Path,
    *,
    fresh: bool = False,
    reuse_from: str | None = None,
    records: bool = True,
) -> ReusingCampaign:
    """
    Decide what a campaign takes from an earlier run; see :func:`bursar.runs.reuse.reuse_of`.

    Parameters
    ----------
    records
        Whether a run is to begin, which records what its results depend on; where none is and
        nothing ran before, no file is read.

    Raises
    ------
    InputError
        When the run to be reused is not there, is being carried out, or recorded nothing.
    """
    if campaign.recorded or campaign.recording is not None:
        if reuse_from is not None:
            raise InputError("stand-ins of a replay have no results", where="--reuse-from")
        return ReusingCampaign(whole=campaign, reuse=None)
    if (
        not records
        and reuse_from is None
        and (fresh or next(runs_of(runs, campaign), None) is None)
    ):
        return ReusingCampaign(whole=campaign, reuse=None)
    from bursar.runs.reuse import reuse_of

    reuse = reuse_of(campaign, runs, fresh=fresh, reuse_from=reuse_from)
    return ReusingCampaign(whole=campaign, reuse=reuse)


def _digest_of(source: Path | None) -> str:
    """Return the digest of what a campaign file says; empty: there is no file to be read."""
    try:
        return "" if source is None else statement_digest(source)
    except BursarError:
        return ""


def finish_reused(folder: RunFolder) -> dict[str, Any]:
    """Write up a run whose results were all taken: no site is asked and nothing is paid."""
    from bursar.runs.run_record import read_run, summarise
    from bursar.runs.run_reports import write_reports

    info = folder.read_info()
    info.state, info.finished = "finished", time.time()
    folder.write_info(info)
    record = read_run(folder)
    write_reports(record)
    return summarise(record)


# Runs whose campaign has changed since they began.

Changed = Literal["as-it-was", "as-it-is"]
"""Which campaign a resumed run means: the one that it began with, or the present one."""


@dataclass(frozen=True, kw_only=True)
class CampaignChanges:
    """
    Changes since a run began.

    Parameters
    ----------
    campaign
        Changes of the campaign file and of the tasks that it makes, a line each.
    files
        Changes of inputs and code files, a line each.
    """

    campaign: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.campaign or self.files)

    def __str__(self) -> str:
        """Return all changes in one line."""
        lines = [*self.campaign, *self.files]
        more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
        return "; ".join(lines[:3]) + more


def changes_since(folder: RunFolder, campaign: Campaign) -> CampaignChanges:
    """
    Return what has changed since a run began, of the campaign file, its inputs and its code.

    A campaign file that is not there any more says nothing, and so counts as unchanged.

    Parameters
    ----------
    campaign
        The run's campaign as it was.
    """
    from bursar.runs.reuse_store import read_recorded

    try:
        recorded = read_recorded(folder, campaign)
    except BursarError as error:
        return CampaignChanges(campaign=(f"something may have changed ({error})",))
    if recorded is None:
        return CampaignChanges()
    return CampaignChanges(
        campaign=tuple(_campaign_changes(campaign, recorded)),
        files=tuple(_file_changes(campaign, recorded)),
    )


def _campaign_changes(campaign: Campaign, recorded: "RecordedRun") -> Iterator[str]:
    source = campaign.source
    if source is None or not recorded.source_digest or not source.exists():
        return
    try:
        now = read_campaign(source)
    except InputError as error:
        yield f"{source.name} cannot be read any more: {error}"
        return
    from bursar.runs.reuse import define_campaign
    from bursar.runs.task_fingerprints import count_differences

    definitions = define_campaign(now, recorded)
    said = count_differences(recorded.definitions, definitions)
    if said:
        yield f"{source.name} changed: {said}"
    elif statement_digest(source) != recorded.source_digest:
        yield f"{source.name} changed: its goal or settings, no task's result"


def _file_changes(campaign: Campaign, recorded: "RecordedRun") -> Iterator[str]:
    from bursar.runs.reuse import define_campaign

    before = recorded.definitions
    now = define_campaign(campaign, recorded)
    groups: tuple[tuple[str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("code", before.code, now.code),
        ("input", before.inputs, now.inputs),
    )
    for kind, was, is_now in groups:
        for name, state in was.items():
            if state.digest != is_now[name].digest:
                yield f"{kind} {name} {'changed' if is_now[name].digest else 'is gone'}"


def check_unchanged(
    folder: RunFolder, changes: CampaignChanges, changed: Changed | None
) -> list[str]:
    """
    Refuse to go on with a changed campaign unless it is said which one is meant.

    Returns
    -------
    list of str
        Lines for people about what of the campaign as it was cannot be had again.

    Raises
    ------
    InputError
        When something has changed and ``changed`` is None.
    """
    if changes and changed is None:
        raise InputError(
            f"since run {folder.name} began, {changes}",
            where="--resume",
            hint="--as-it-was goes on with the campaign that the run began with; "
            "--as-it-is makes a run of the present one, which reuses what has not changed",
        )
    if not changes.files:
        return []
    return [
        f"cannot be as it was, since the run keeps no copies: {', '.join(changes.files)}; "
        "tasks that are left read the present files, and their results are not reused later"
    ]


def present_campaign(folder: RunFolder, was: Campaign) -> Campaign:
    """
    Return the present campaign of a run, with the goal that is to hold.

    The goal is the file's where the file has changed, else the run's own; of a budget, what the
    run has spent is taken off.

    Raises
    ------
    InputError
        When the campaign file is not there or cannot be read.
    """
    from bursar.runs.reuse_store import read_recorded
    from bursar.runs.run_record import read_run

    recorded = read_recorded(folder, was)
    if was.source is None:
        now = was
    elif not was.source.exists():
        raise InputError(
            "is not there any more", where=str(was.source), hint="--as-it-was needs no file"
        )
    else:
        now = read_campaign(was.source)
        if recorded is not None and statement_digest(was.source) == recorded.source_digest:
            now = replace(now, goal=was.goal)
    if now.goal.budget is None:
        return now
    spent = from_micros(read_run(folder).ledger.spent)
    return replace(now, goal=replace(now.goal, budget=max(0.0, now.goal.budget - spent)))
