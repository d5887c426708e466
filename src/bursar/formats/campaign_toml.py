"""
Campaigns written in TOML.

The tables of the file (:mod:`bursar.formats.tables`) become *task sets*: each
is one task, or one for every point of a sweep. Sets are expanded first, so
that a set may take what another makes; tasks of two sets belong together when
they agree on every parameter they share.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bursar.formats.axes import read_sweep
from bursar.formats.expansion import expand
from bursar.formats.tables import (
    CampaignFile,
    CampaignTable,
    GoalTable,
    RetryTable,
    TaskTable,
)
from bursar.formats.task_set import TaskSet
from bursar.formats.toml_reading import at_line, decode_table, joined, parse_toml, read_text
from bursar.formats.units import parse_amount, parse_duration, parse_share
from bursar.model.campaign import Campaign, Retry
from bursar.model.errors import InputError, spelling_hint
from bursar.model.goal import Goal
from bursar.model.workflow import Workflow


def read_campaign_toml(path: Path) -> Campaign:
    """
    The campaign in a TOML file.

    Parameters
    ----------
    path
        The file. Its folder is where files and patterns are looked for.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field.
    """
    path = Path(path)
    text = read_text(path)
    try:
        return _campaign(parse_toml(text), path)
    except InputError as error:
        raise at_line(error, text, path) from None


def _campaign(document: dict[str, Any], path: Path) -> Campaign:
    if not document:
        raise InputError("is empty, expected [campaign] and at least one task")
    file = decode_table(document, CampaignFile, "")
    root = Path(os.path.abspath(path)).parent
    head = decode_table(file.campaign or {}, CampaignTable, "campaign")
    name = path.stem if head.name is None else head.name
    if not name.strip() or not name.isprintable():
        raise InputError("expected a name of printable characters", where="campaign.name")
    if head.book is not None and head.account is None:
        raise InputError("goes with account", where="campaign.book")
    goal = _goal(decode_table(file.goal or {}, GoalTable, "goal"))
    retry = _retry(decode_table(file.retry or {}, RetryTable, "retry"))
    sweep = read_sweep(file.parameters, "parameters", root) if file.parameters else None
    sets = _task_sets(file, head, name)
    tasks = expand(sets, sweep, root)
    return Campaign(
        name=name,
        workflow=Workflow(tuple(tasks)),
        goal=goal,
        root=root,
        retry=retry,
        source=path,
        account=head.account,
        book=None if head.book is None else root / head.book,
    )


def _task_sets(file: CampaignFile, head: CampaignTable, name: str) -> list[TaskSet]:
    """The sets in the order of the file, each with the settings of [task] beneath its own."""
    common = file.task if isinstance(file.task, dict) else {}
    listed = file.task if isinstance(file.task, list) else []
    named = file.tasks or {}
    base = decode_table(common, TaskTable, "task")
    sets: list[TaskSet] = []
    if head.command is not None:
        if named or listed or base.command is not None:
            raise InputError(
                "expected either one command here or tasks, not both", where="campaign.command"
            )
        sets.append(_task_set(name, {"command": head.command}, common, "task", swept=True))
    elif base.command is not None and not named:
        sets.append(_task_set(name, {}, common, "task", swept=True))
    elif base.id is not None:
        raise InputError("is for one set of tasks, not for the settings of all", where="task.id")
    for set_name, raw in named.items():
        place = joined("tasks", set_name)
        sets.append(_task_set(set_name, raw, common, place))
    for i, raw in enumerate(listed):
        place = joined("task", i)
        table = decode_table(raw, TaskTable, place)
        set_name = f"task-{i + 1}" if table.id is None else table.id
        sets.append(_task_set(set_name, raw, {}, place))
    if not sets:
        raise InputError("has no task, expected a command in [campaign], [[task]] or [tasks.NAME]")
    _check_names(sets)
    return sets


def _task_set(
    name: str, raw: object, common: Mapping[str, Any], place: str, *, swept: bool = False
) -> TaskSet:
    own = decode_table(raw, TaskTable, place)
    if not name or "\0" in name:
        raise InputError("a task needs a name", where=place)
    merged = dict(common)
    places = {key: joined("task", key) for key in common}
    if isinstance(raw, dict):
        merged |= raw
        places = {key: path for key, path in places.items() if key not in raw}
        if "environment" in raw and isinstance(common.get("environment"), dict):
            merged["environment"] = common["environment"] | raw["environment"]
    table = decode_table(merged, TaskTable, place)
    if table.command is None:
        raise InputError("expected a command", where=joined(place, "command"))
    if own.over is not None and own.parameters is not None:
        raise InputError("expected over or parameters, not both", where=joined(place, "over"))
    if swept and own.command is not None:
        places["command"] = "campaign.command"
    return TaskSet(name=name, table=table, place=place, places=places, swept=swept)


def _check_names(sets: list[TaskSet]) -> None:
    seen: set[str] = set()
    for task_set in sets:
        if task_set.name in seen:
            raise InputError(f'duplicate task id "{task_set.name}"', where=task_set.place)
        seen.add(task_set.name)


def _goal(table: GoalTable) -> Goal:
    deadline = None
    if table.deadline is not None:
        deadline = _at("goal.deadline", parse_duration, table.deadline)
        if deadline == 0:
            raise InputError("must be positive, got 0", where="goal.deadline")
    budget, currency = None, None
    if table.budget is not None:
        budget, currency = _at("goal.budget", parse_amount, table.budget)
    if table.trade_off is not None and not math.isfinite(table.trade_off):
        raise InputError("expected a number between 0 and 1", where="goal.trade_off")
    on_budget = {}
    for text, action in (table.on_budget or {}).items():
        place = joined("goal.on_budget", text)
        share = _at(place, parse_share, text)
        if share == 0 or share in on_budget:
            reason = "must be above 0%" if share == 0 else "stands there twice"
            raise InputError(f'"{text}" {reason}', where=place)
        on_budget[share] = action
    return Goal(
        deadline=deadline,
        budget=budget,
        currency=currency,
        trade_off=None if table.trade_off is None else float(table.trade_off),
        on_budget=on_budget,
    )


def _retry(table: RetryTable) -> Retry:
    return Retry(
        attempts=table.attempts,
        backoff=_at("retry.backoff", parse_duration, table.backoff),
        ceiling=_at("retry.ceiling", parse_duration, table.ceiling),
    )


def _at(place: str, parse: Any, value: object) -> Any:
    try:
        return parse(value)
    except InputError as error:
        raise error.within(place) from None


def check_inputs(campaign: Campaign) -> None:
    """
    Raises
    ------
    InputError
        When a file that some task reads is neither made by a task nor in the
        campaign's folder. Names the task's field and the nearest file.
    """
    makers = {file.name for task in campaign.workflow.tasks for file in task.outputs}
    checked: set[str] = set()
    for task in campaign.workflow.tasks:
        for file in task.inputs:
            if file.name in makers or file.name in checked:
                continue
            checked.add(file.name)
            if not os.path.lexists(campaign.root / file.name):
                raise InputError(
                    f'no task makes "{file.name}", nor does it exist beside the campaign',
                    where=f"tasks.{task.id}.inputs",
                    hint=spelling_hint(
                        file.name, [*makers, *_names_beside(campaign.root, file.name)]
                    ),
                )


def _names_beside(root: Path, name: str) -> list[str]:
    folder = os.path.dirname(name)
    try:
        return [os.path.join(folder, other) for other in os.listdir(root / folder)]
    except OSError:
        return []
