"""Converts programs and campaigns into submissions, cut into pieces."""

import base64
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

import msgspec

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.matching import Matching
from bursar.model.task import Copy, Exec, Gather, Shell, Step, Task
from bursar.remote.messages import (
    MOST_EDGES,
    MOST_PARENTS,
    MOST_RETRY_DELAY,
    MOST_TASKS,
    MOST_TRIES,
    Hints,
    TaskSpec,
)

# Converts between a task's program in the API and steps.

_STEPS = msgspec.msgpack.Decoder(tuple[Step, ...])
_encode = msgspec.msgpack.Encoder().encode


def encode_steps(steps: Sequence[Step]) -> str:
    """Encode steps for the field ``steps`` of a :class:`TaskSpec`."""
    return base64.b64encode(_encode(steps)).decode()


def steps_of(task: TaskSpec) -> Sequence[Step]:
    """
    Return the steps of a task that is not sealed.

    Raises
    ------
    InputError
        When it does not say one thing, or what is no steps.
    """
    if task.command and not (task.shell or task.steps or task.sealed):
        return (Exec(task.command),)
    if task.sealed or bool(task.command) + bool(task.shell) + bool(task.steps) != 1:
        raise InputError('exactly one of "command", "shell", "steps" and "sealed" is needed')
    if task.shell:
        return (Shell(task.shell),)
    try:
        steps = _STEPS.decode(base64.b64decode(task.steps, validate=True))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"these are no steps: {error}", where="steps") from None
    if any(isinstance(step, Exec) and not step.argv for step in steps):
        raise InputError("there is no program to run", where="steps")
    return steps


# Converts a campaign into a submission.

_HINT = "bursar run --sites FILE can"


def specs_of(campaign: Campaign) -> Iterator[TaskSpec]:
    """
    Yield the campaign's tasks for submission to a new instance, labelled with their ids.

    Tasks come after those that they wait for, and else in the campaign's order: their position is
    their number in the instance.

    Raises
    ------
    InputError
        When a task asks for something that one service does not know of, for more attempts, a
        longer backoff or more parents than a service takes, or has no program.
    """
    if campaign.recorded:
        raise InputError("is a recorded workflow: its tasks have no program", hint=_HINT)
    position: dict[int, int] = {}
    for index in _in_order(campaign.workflow.parents):
        task = campaign.workflow.tasks[index]
        if task.data or task.registers or task.matching != Matching():
            raise InputError(
                f'task "{task.id}" asks for matching or for a replica catalogue', hint=_HINT
            )
        if task.needs is not None:
            made = {
                file.name
                for parent in campaign.workflow.parents[index]
                for file in campaign.workflow.tasks[parent].outputs
            }
            task = _gathering(task, made)
        after = sorted(position[parent] for parent in campaign.workflow.parents[index])
        position[index] = len(position)
        yield _spec_of(task, campaign, tuple(after))


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


def _in_order(parents: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield the indices of tasks, each after its parents, and else in order."""
    done = [False] * len(parents)
    for start in range(len(parents)):
        # A stack of our own: a chain of tasks may be longer than Python recurses.
        stack = [start]
        while stack:
            index = stack[-1]
            missing = [] if done[index] else [p for p in parents[index] if not done[p]]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            if not done[index]:
                done[index] = True
                yield index


def _gathering(task: Task, made: Collection[str]) -> Task:
    """Return a task with a step that brings those inputs which tasks have made, if they have."""
    files = tuple(file.name for file in task.inputs if file.name in made)
    others = tuple(file for file in task.inputs if file.name not in made)
    return replace(task, inputs=others, steps=(Gather(files), *task.steps))


def _spec_of(task: Task, campaign: Campaign, after: tuple[int, ...]) -> TaskSpec:
    retry, resources = campaign.retry, dict(task.resources)
    # A service counts what belongs to its site, and tasks of a group.
    groups = {name: total for name, total in campaign.resources.items() if resources.pop(name, 0)}
    if campaign.at_once is not None:
        groups[""] = campaign.at_once
    if len(groups) > 1 or any(task.resources.get(name, 1) > 1 for name in groups):
        raise InputError(
            f'task "{task.id}" holds several resources of the campaign, at a service one at most',
            hint=_HINT,
        )
    command, shell, steps = _program(task.steps)
    attempts = retry.attempts if task.retries is None else task.retries + 1
    delay = min(retry.backoff, retry.ceiling) if attempts > 1 else 0.0
    # Before anything is sent: a service would refuse these after all files were uploaded.
    for found, most, what in (
        (attempts, MOST_TRIES, f"has {attempts} attempts"),
        (delay, MOST_RETRY_DELAY, f"has a backoff of {delay:.10g} s"),
        (len(after), MOST_PARENTS, f"comes after {len(after)} others"),
    ):
        if found > most:
            raise InputError(
                f'task "{task.id}" {what}, at most {most:.10g} at a service', hint=_HINT
            )
    return TaskSpec(
        command=command,
        shell=shell,
        steps=steps,
        environment=dict(task.environment),
        inputs=tuple(file.name for file in task.inputs),
        outputs=tuple(file.name for file in task.outputs),
        processors=task.processors,
        limit=task.wall_limit,
        memory=task.memory or None,
        resources=resources,
        group=next(iter(groups), ""),
        at_once=next(iter(groups.values()), None),
        tries=attempts,
        retries=attempts - 1,
        retry_delay=delay,
        after=after,
        needs=task.needs,
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


# Splits a submission into NDJSON pieces of limited size.

LARGEST = 4 * 1024 * 1024
"""Bytes after which a piece is divided; one of a single task may be larger."""

_ENCODER = msgspec.json.Encoder()


def split_submission(tasks: Iterable[TaskSpec]) -> Iterator[bytes]:
    """
    Yield tasks as NDJSON, at most :data:`MOST_TASKS` and :data:`MOST_EDGES` in a piece.

    The same tasks make the same pieces, so that a key of each makes them count once.
    """
    rest = iter(tasks)
    while some := list(islice(rest, MOST_TASKS)):
        yield from _halved(some)


def _halved(tasks: Sequence[TaskSpec]) -> Iterator[bytes]:
    lines = _ENCODER.encode_lines(tasks)
    edges = sum(len(task.after) for task in tasks)
    if (len(lines) <= LARGEST and edges <= MOST_EDGES) or len(tasks) == 1:
        yield lines
        return
    middle = len(tasks) // 2
    yield from _halved(tasks[:middle])
    yield from _halved(tasks[middle:])
