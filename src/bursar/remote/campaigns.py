"""Converts a campaign of independent tasks into a submission."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.matching import Matching
from bursar.model.task import Copy, Exec, Shell, Step, Task
from bursar.remote.messages import Hints, TaskSpec
from bursar.remote.programs import encode_steps

_HINT = "bursar run --sites FILE can"


def specs_of(campaign: Campaign) -> Iterator[TaskSpec]:
    """
    Yield the campaign's tasks for submission, labelled with their ids.

    Raises
    ------
    InputError
        When a task waits for another, asks for something that one service does not know of, or
        has no program.
    """
    if campaign.recorded:
        raise InputError("is a recorded workflow: its tasks have no program", hint=_HINT)
    for task, parents in zip(campaign.workflow.tasks, campaign.workflow.parents, strict=True):
        if parents:
            first = campaign.workflow.tasks[parents[0]].id
            raise InputError(
                f'task "{task.id}" comes after "{first}": a service takes independent tasks only',
                hint=_HINT,
            )
        if task.data or task.registers or task.matching != Matching():
            raise InputError(
                f'task "{task.id}" asks for matching or for a replica catalogue', hint=_HINT
            )
        yield _spec_of(task, campaign.retry.attempts)


def uploads_of(campaign: Campaign) -> dict[str, Path]:
    """Return the files that the tasks read, by the name in the tasks."""
    found: dict[str, Path] = {}
    for file in campaign.workflow.initial_files:
        found[file.name] = campaign.root / file.name
    for task in campaign.workflow.tasks:
        for step in task.steps:
            if isinstance(step, Copy) and step.source_at_root:
                found.update(_below(campaign.root, step.source))
    return found


def _spec_of(task: Task, attempts: int) -> TaskSpec:
    command, shell, steps = _program(task.steps)
    return TaskSpec(
        command=command,
        shell=shell,
        steps=steps,
        environment=dict(task.environment),
        inputs=tuple(file.name for file in task.inputs),
        outputs=tuple(file.name for file in task.outputs),
        processors=task.processors,
        limit=task.wall_limit,
        tries=attempts if task.retries is None else task.retries + 1,
        label=task.id,
        hints=Hints(runtime=task.runtime),
    )


def _program(steps: tuple[Step, ...]) -> tuple[tuple[str, ...], str, str]:
    match steps:
        case (Exec(argv=argv),):
            return argv, "", ""
        case (Shell(line=line),):
            return (), line, ""
        case _:
            return (), "", encode_steps(steps)


def _below(root: Path, source: str) -> Iterator[tuple[str, Path]]:
    """Yield a file, or all files below a folder: the path relative to ``root``, and the path."""
    path = root / source
    if not path.is_dir():
        yield str(PurePosixPath(source)), path
        return
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            file = Path(folder) / name
            yield str(PurePosixPath(file.relative_to(root))), file
