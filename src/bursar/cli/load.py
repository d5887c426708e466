"""From the words of a command line to a campaign and its sites."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.goal import Goal
from bursar.model.site import SiteFacts
from bursar.model.workflow import Workflow

T = TypeVar("T")


def load_campaign(
    path: Path,
    *,
    deadline: str | None,
    budget: str | None,
    trade_off: float | None,
    runtime: str | None,
    replay_scale: float | None,
    size_scale: float,
) -> Campaign:
    """
    The campaign in a file, with what the command line says on top.

    Raises
    ------
    InputError
        Naming the file and place, or the option, that is wrong.
    """
    from bursar.formats.campaign_file import read_campaign

    campaign = read_campaign(path)
    if replay_scale is not None:
        campaign = _replayed(campaign, path, replay_scale, size_scale)
    elif size_scale != 1.0:
        raise InputError("goes with --replay only", where="--size-scale")
    if runtime is not None:
        campaign = _with_runtime(campaign, runtime)
    goal = with_options(campaign.goal, deadline=deadline, budget=budget, trade_off=trade_off)
    return replace(campaign, goal=goal)


def load_sites(path: Path | None) -> tuple[SiteFacts, ...]:
    """The sites of a file, or this machine."""
    if path is None:
        from bursar.sites.local import this_machine

        return (this_machine(),)
    from bursar.formats.sites_toml import read_sites

    return read_sites(path)


def with_options(
    goal: Goal, *, deadline: str | None, budget: str | None, trade_off: float | None
) -> Goal:
    """The goal with each option that was given put in its place."""
    from bursar.formats.units import parse_duration

    if deadline is not None:
        goal = _replace(
            goal, "--deadline", deadline=_parsed(parse_duration, deadline, "--deadline")
        )
    if budget is not None:
        amount, currency = parse_budget(budget)
        goal = _replace(goal, "--budget", budget=amount, currency=currency)
    if trade_off is not None:
        goal = _replace(goal, "--trade-off", trade_off=trade_off)
    return goal


def parse_budget(text: str) -> tuple[float, str | None]:
    """Amount and currency that ``--budget`` names."""
    from bursar.formats.units import parse_amount

    return _parsed(parse_amount, text, "--budget")


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise error.within(option) from None


def _replace(goal: Goal, option: str, **changes: object) -> Goal:
    try:
        return replace(goal, **changes)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(str(error), where=option) from None


def _replayed(campaign: Campaign, path: Path, scale: float, size_scale: float) -> Campaign:
    from bursar.formats.replay import replay

    if not campaign.recorded:
        raise InputError(
            "is no recorded workflow; its tasks have programs of their own",
            where=str(path),
            hint="leave --replay out",
        )
    return replay(campaign, scale=scale, size_scale=size_scale)


def _with_runtime(campaign: Campaign, text: str) -> Campaign:
    from bursar.formats.units import parse_duration

    runtime = _parsed(parse_duration, text, "--runtime")
    tasks = tuple(
        replace(task, runtime=runtime) if task.runtime is None else task
        for task in campaign.workflow.tasks
    )
    return replace(campaign, workflow=Workflow(tasks))
