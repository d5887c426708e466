"""
Reads a campaign from a file of any known format; the TOML format is defined here.

The tables of the file (:mod:`bursar.formats.tables`) become *task sets*: each is one task, or one
for every point of a sweep. Sets are expanded first, so that a set may take what another makes;
tasks of two sets belong together when they agree on every parameter they share.
"""

import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bursar.formats.axes import TABLES, find_files, read_sweep
from bursar.formats.decoding import decode, file_schema
from bursar.formats.expansion import expand
from bursar.formats.file_text import check_readable, joined, read_bytes, read_toml
from bursar.formats.quantities import Schema
from bursar.formats.result_columns import result_columns
from bursar.formats.tables import EXCLUSIVE, CampaignFile, TaskTable
from bursar.formats.task_set import TaskSet
from bursar.memory import collector_paused
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import InputError, errors_within, spelling_hint

# Campaigns written in TOML.


def read_campaign_toml(path: Path) -> Campaign:
    """
    Read the campaign in a TOML file.

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

    def read(document: dict[str, Any]) -> Campaign:
        if not _is_hyperqueue_job(document):
            return _campaign(document, path)
        from bursar.formats.job_files.hyperqueue_job import read_hyperqueue_job

        return read_hyperqueue_job(document, path)

    return read_toml(path, read)


_OF_HYPERQUEUE = frozenset(("name", "max_fails", "stream", "stream_log", "task", "array"))
"""Keys at the top of a job of HyperQueue."""


def _is_hyperqueue_job(document: dict[str, Any]) -> bool:
    """Whether a file is a job of HyperQueue, whose tasks have numbers and lists of words."""
    tasks = document.get("task")
    if "array" in document:
        return "campaign" not in document
    if not isinstance(tasks, list) or not set(document) <= _OF_HYPERQUEUE:
        return False
    return not any(
        isinstance(task, dict)
        and (isinstance(task.get("command"), str) or isinstance(task.get("id"), str))
        for task in tasks
    )


def campaign_schema() -> Schema:
    """Return the JSON Schema of campaign files."""
    return file_schema("Bursar campaign", CampaignFile, *TABLES.values())


def _campaign(document: dict[str, Any], path: Path) -> Campaign:
    if not document:
        raise InputError("is empty, expected [campaign] and at least one task")
    file = decode(document, CampaignFile)
    root = Path(os.path.abspath(path)).parent
    head = file.campaign
    name = path.stem if head.name is None else head.name
    if not name.strip() or not name.isprintable():
        raise InputError("expected a name of printable characters", where="campaign.name")
    sweep = read_sweep(file.parameters, "parameters", root) if file.parameters else None
    sets = _task_sets(file, name)
    if file.secrets is not None:
        values = str((root / Path(file.secrets.file).expanduser()).absolute())
        sets = [replace(task_set, secrets_file=values) for task_set in sets]
    with collector_paused():
        workflow = Workflow(tuple(expand(sets, sweep, root)))
    for name, total in head.resources.items():
        for task in workflow.tasks:
            if (count := task.resources.get(name, 0)) > total:
                raise InputError(
                    f'task "{task.id}" holds {count} of "{name}", and the campaign has {total}',
                    where=joined("campaign.resources", name),
                )
    return Campaign(
        name=name,
        workflow=workflow,
        goal=file.goal.goal(),
        root=root,
        retry=file.retry.retry(),
        source=path,
        account=head.account,
        book=None if head.book is None else root / head.book,
        code=_code_files(head.code or (), root),
        project=head.project,
        resources=head.resources,
        results=result_columns(file.results, workflow.tasks) if file.results else (),
        templates={task_set.name: _template(task_set) for task_set in sets},
    )


def _template(task_set: TaskSet) -> str:
    """Return the command of a set of tasks as it stands in the file, in one line of a shell."""
    command = task_set.table.command
    return command if isinstance(command, str) else shlex.join(command or ())


def _code_files(patterns: Sequence[str], root: Path) -> tuple[str, ...]:
    """Return the names of the code files, without what Python caches beside them."""
    found: set[str] = set()
    for number, pattern in enumerate(patterns):
        place = joined("campaign.code", number)
        found.update(name for name in find_files(pattern, place, root) if "__pycache__" not in name)
    return tuple(sorted(found))


def _task_sets(file: CampaignFile, name: str) -> list[TaskSet]:
    """Return the sets in the order of the file; settings of [task] are the defaults."""
    common = file.task if isinstance(file.task, TaskTable) else TaskTable()
    listed = file.task if isinstance(file.task, list) else []
    named = file.tasks
    command = file.campaign.command
    sets: list[TaskSet] = []
    if command is not None:
        if named or listed or common.command is not None:
            raise InputError(
                "expected either one command here or tasks, not both", where="campaign.command"
            )
        sets.append(_task_set(name, TaskTable(command=command), common, "task", swept=True))
    elif common.command is not None and not named:
        sets.append(_task_set(name, TaskTable(), common, "task", swept=True))
    elif common.id is not None:
        raise InputError("is for one set of tasks, not for the settings of all", where="task.id")
    for set_name, table in named.items():
        sets.append(_task_set(set_name, table, common, joined("tasks", set_name)))
    for i, table in enumerate(listed):
        set_name = f"task-{i + 1}" if table.id is None else table.id
        sets.append(_task_set(set_name, table, TaskTable(), joined("task", i)))
    if not sets:
        raise InputError("has no task, expected a command in [campaign], [[task]] or [tasks.NAME]")
    _check_names(sets)
    return sets


def _task_set(
    name: str, own: TaskTable, common: TaskTable, place: str, *, swept: bool = False
) -> TaskSet:
    if not name or "\0" in name:
        raise InputError("a task needs a name", where=place)
    given, beneath = _given(own), _given(common)
    if "over" in given:  # the task's own choice of points, in place of the sweep of all
        beneath.pop("parameters", None)
    places = {key: joined("task", key) for key in beneath if key not in given}
    for one, other in (("stdin", "stdin_text"), ("stdin_text", "stdin")):
        if one in given:  # the task's own in place of the other kind of all
            beneath.pop(other, None)
    if any(key in given for key in EXCLUSIVE):
        beneath = {key: value for key, value in beneath.items() if key not in EXCLUSIVE}
    environment = beneath.get("environment", {}) | given.get("environment", {})
    if environment:
        given["environment"] = environment
    table = TaskTable(**(beneath | given))
    if table.command is None:
        raise InputError("expected a command", where=joined(place, "command"))
    if swept and own.command is not None:
        places["command"] = "campaign.command"
    return TaskSet(name=name, table=table, place=place, places=places, swept=swept)


def _given(table: TaskTable) -> dict[str, Any]:
    """Return the settings that a table states."""
    return {k: v for k, v in msgspec.structs.asdict(table).items() if v is not None}


def _check_names(sets: list[TaskSet]) -> None:
    seen: set[str] = set()
    for task_set in sets:
        if task_set.name in seen:
            raise InputError(f'duplicate task id "{task_set.name}"', where=task_set.place)
        seen.add(task_set.name)


def check_inputs(campaign: Campaign) -> None:
    """
    Check that some task, or the campaign's folder, provides each file that a task reads.

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


# Reads a campaign from a file of any known format.


def statement_digest(path: Path) -> str:
    """
    Return a digest of what a campaign file says; equal ones say the same.

    Comments and the order of keys in a TOML file do not count.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    if path.suffix.lower() == ".toml":
        said = read_toml(path, lambda document: msgspec.json.encode(document, order="sorted"))
    else:
        said = read_bytes(path)
    return hashlib.sha256(said).hexdigest()


COMPRESSED = (".gz", ".xz")
"""Suffixes of compressed files, allowed after the suffix of a recorded workflow's format."""


def read_campaign(path: Path) -> Campaign:
    """
    Read the campaign in a file, by the ending of the file's name.

    ``.toml`` is Bursar's own form or a job of HyperQueue, ``.pln`` a Nimrod plan, ``.jdl`` jobs as
    the European DataGrid described them, ``.json`` WfFormat, ``.xml`` and ``.dax`` Pegasus DAX; the
    last three also compressed (``.gz``, ``.xz``). ``.txt`` has one command a line. Scripts for
    ``sbatch`` are known by their name (``.sh``, ``.sbatch``, ``.slurm``) or their ``#SBATCH``
    lines, traces of Nextflow by their first line, templates of OpenJD (``.json``, ``.yaml``) by
    their version,
    workflows of Snakemake by theirs (``Snakefile``, ``.smk``).

    Raises
    ------
    InputError
        When it cannot be read, is empty, has another ending, or is wrong
        within; also when an input that no task makes is not there.
    """
    path = Path(path)
    reader = _reader(path)
    check_readable(path)
    campaign = reader(path)
    if not campaign.recorded:
        with errors_within(str(path)):
            check_inputs(campaign)
    return campaign


def _reader(path: Path) -> Callable[[Path], Campaign]:
    if path.is_dir():
        raise InputError("is a folder, expected a campaign file", where=str(path))
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-1] if suffixes else ""
    if kind in COMPRESSED and len(suffixes) > 1 and suffixes[-2] in (".json", ".xml", ".dax"):
        kind = suffixes[-2]
    if kind == ".toml":
        return read_campaign_toml
    if kind == ".pln":
        from bursar.formats.nimrod import read_plan_file

        return read_plan_file
    if kind == ".jdl":
        from bursar.formats.jdl import read_jdl

        return read_jdl
    if kind in (".json", ".yaml", ".yml"):
        from bursar.formats.job_files.openjd_template import (
            is_openjd_template,
            read_openjd_template,
        )

        if is_openjd_template(path):
            return read_openjd_template
    if kind == ".json":
        from bursar.formats.wfformat import read_wfformat

        return read_wfformat
    if kind in (".xml", ".dax"):
        from bursar.formats.dax import read_dax

        return read_dax
    from bursar.formats.job_files.snakefile import is_snakefile, read_snakefile

    if is_snakefile(path):
        return read_snakefile
    from bursar.formats.job_files.slurm_script import is_slurm_script, read_slurm_script

    if is_slurm_script(path):
        return read_slurm_script
    from bursar.formats.job_files.nextflow_trace import is_nextflow_trace, read_nextflow_trace

    if is_nextflow_trace(path):
        return read_nextflow_trace
    if kind == ".txt":
        from bursar.formats.command_lists.command_campaign import read_command_list

        return read_command_list
    raise InputError(
        "is no campaign file: expected a name that ends in .toml, .pln, .jdl, .txt, .json, .xml "
        "or .dax, a script for sbatch, a Snakefile, or a trace of Nextflow",
        where=str(path),
    )
