"""Whether a campaign's jobs are matched to sites one by one, and by which rules."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bursar.broker.matchmaking.suitable import may_satisfy
from bursar.broker.strategies import Named
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.matching import Brokering
from bursar.model.site import SiteFacts
from bursar.model.task import Task


def choose_brokering(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    asked: Brokering | None,
    *,
    catalogue: str | Path | None = None,
    strategy: Named | None = None,
    processors: int | None = None,
) -> Brokering | None:
    """
    Return the settings by which the broker brings jobs to sites; None: no broker is used.

    The broker is used where the caller asks for it, and where tasks ask for what only it can
    give: a rank, a named site, a choice, logical files. Where tasks only have requirements, all
    the same ones, and there is a goal, plans and strategies use the sites that meet these.

    Raises
    ------
    InputError
        When a strategy, or a number of processors, is given as well; when logical files are
        read and there is no catalogue, or no site has a storage for them, or a task has
        another file by the name of one.
    """
    tasks = campaign.workflow.tasks
    if asked is None:
        needed = asked_of_broker(campaign)
        choosy = any(task.matching.requirements for task in tasks)
        # Requirements alone that all tasks share leave a set of sites, on which plans and
        # strategies serve the goal better than job-by-job matching.
        if not needed and (not choosy or (_is_limited(campaign) and _is_one_kind(tasks))):
            return None
        asked = Brokering()
    else:
        needed = "--choice and its like"
    if strategy is not None:
        why = needed or "requirements"
        raise InputError(f"{why}: the broker sends these jobs, not a strategy", where="strategy")
    if processors is not None:
        raise InputError("the broker leases processors as it goes", where="processors")
    reader = next((task for task in tasks if task.data or task.registers), None)
    if reader is not None:
        if catalogue is None:
            raise InputError(
                f'task "{reader.id}" has logical files, and there is no replica catalogue',
                where="catalogue",
                hint="name one with --catalogue FILE; bursar replicas add makes it",
            )
        if not any(site.storage for site in sites):
            raise InputError(
                f'task "{reader.id}" has logical files, and no site has a storage',
                where="sites",
                hint="give sites a storage in the sites file",
            )
        for task in tasks:
            _check_names(task)
    return replace(asked, catalogue=None if catalogue is None else str(Path(catalogue).resolve()))


def suitable(campaign: Campaign, sites: tuple[SiteFacts, ...]) -> tuple[SiteFacts, ...]:
    """
    Return the sites that a plan may use: those that meet the requirements of all tasks.

    Requirements that cannot be checked before the begin do not exclude a site.

    Raises
    ------
    InputError
        When no site meets them.
    """
    tasks = campaign.workflow.tasks
    if not tasks[0].matching.requirements or not _is_one_kind(tasks):
        return sites
    found = tuple(site for site in sites if may_satisfy(site, tasks[0].matching))
    if not found:
        raise InputError(
            f"no site meets {tasks[0].matching.requirements}",
            where="requirements",
            hint="bursar match says what each lacks",
        )
    return found


def asked_of_broker(campaign: Campaign) -> str:
    """Name what tasks ask for that only the broker gives; empty for nothing."""
    return next((what for task in campaign.workflow.tasks if (what := _asks(task))), "")


def _asks(task: Task) -> str:
    """Name what a task asks for that only the broker gives; empty for nothing."""
    matching = task.matching
    if task.data or task.registers:
        return "logical files"
    for name in ("rank", "site", "alpha", "beta", "choice"):
        if getattr(matching, name) is not None:
            return f"a {name}"
    return ""


def _check_names(task: Task) -> None:
    """Refuse a logical file whose name is also that of an input or output."""
    others = {file.name for file in (*task.inputs, *task.outputs)}
    for name in task.data:
        if name in others:
            raise InputError(
                f'"{name}" is a logical file, and an input or output of the task as well',
                where=f"tasks.{task.id}.data",
            )


def _is_one_kind(tasks: Sequence[Task]) -> bool:
    first = tasks[0].matching
    return all(task.matching == first for task in tasks)


def _is_limited(campaign: Campaign) -> bool:
    goal = campaign.goal
    return any(limit is not None for limit in (goal.deadline, goal.budget, goal.trade_off))
