"""
Replay: recorded tasks as stand-ins that take the recorded time.

A stand-in sleeps for the scaled runtime while, in the background of that
time, its inputs are read and its outputs written, in their scaled sizes: real
processes, real files, and no more processor time than that needs.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.step import Shell
from bursar.model.task import File, Task
from bursar.model.workflow import Workflow

LONGEST_LINE = 100_000
"""Characters in one shell line; Linux takes 131,072 bytes in one argument."""

LONGEST_PART = 240
"""Bytes in one part of a file name; most file systems take 255."""


def replay(campaign: Campaign, *, scale: float, size_scale: float = 1.0) -> Campaign:
    """
    Return a campaign that runs a stand-in program for every recorded task.

    Parameters
    ----------
    campaign
        A recorded one.
    scale
        Seconds that a stand-in takes for one recorded second. Positive.
    size_scale
        Bytes it moves for one recorded byte. Not negative; 0 makes empty files.

    Returns
    -------
    Campaign
        With programs; its estimates and file sizes are the scaled ones. Files
        that no task makes must be laid out before it runs: see
        :func:`make_initial_files`.

    Raises
    ------
    InputError
        When a scale is out of range, the campaign was not recorded, a task
        has no recorded runtime, or a file name cannot exist on disk.
    """
    if not (0 < scale < math.inf):
        raise InputError(f"the scale must be positive, got {scale:g}", where="replay")
    if not (0 <= size_scale < math.inf):
        raise InputError(f"the size scale must not be negative, got {size_scale:g}", where="replay")
    if not campaign.recorded:
        raise InputError("is no recorded workflow; its tasks have programs of their own")
    _check_names(campaign.workflow)
    tasks = tuple(_stand_in(task, scale, size_scale) for task in campaign.workflow.tasks)
    return replace(campaign, workflow=Workflow(tasks), recorded=False)


def initial_file_sizes(campaign: Campaign) -> dict[str, int]:
    """
    Return the bytes of each initial file of a replay: read by tasks, made by none.

    Empty for any campaign but a replayed one: elsewhere such files are the
    user's own.
    """
    if campaign.recorded or campaign.recording is None:
        return {}
    return {file.name: file.size or 0 for file in campaign.workflow.initial_files}


def make_initial_files(campaign: Campaign, folder: Path) -> int:
    """
    Make the files of :func:`initial_file_sizes` as sparse files.

    Call this function with the run's ``files/`` before the first task starts. Files that
    are already there with their size are left alone, so a resumed run may
    call it again.

    Parameters
    ----------
    campaign
        Any; nothing is done unless it is a replay.
    folder
        Existing folder in which the files are made.

    Returns
    -------
    int
        Number of files.

    Raises
    ------
    OSError
        When a file cannot be made.
    """
    sizes = initial_file_sizes(campaign)
    for name, size in sizes.items():
        path = folder / name
        if path.is_file() and path.stat().st_size == size:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.truncate(size)
    return len(sizes)


def _stand_in(task: Task, scale: float, size_scale: float) -> Task:
    if task.runtime is None:
        raise InputError(
            "has no recorded runtime, so it cannot be replayed", where=f"task {task.id}"
        )
    runtime = task.runtime * scale
    if not runtime < math.inf:
        raise InputError(f"runs for ever at scale {scale:g}", where=f"task {task.id}")
    inputs = tuple(_scaled(file, size_scale, task) for file in task.inputs)
    outputs = tuple(_scaled(file, size_scale, task) for file in task.outputs)
    return replace(
        task,
        steps=_steps(runtime, inputs, outputs),
        inputs=inputs,
        outputs=outputs,
        # A stand-in needs next to none, so it fits where the recorded program would not.
        memory=None,
        runtime=runtime,
    )


def _scaled(file: File, size_scale: float, task: Task) -> File:
    size = (file.size or 0) * size_scale
    if not size < 2**63:
        raise InputError(f'"{file.name}" is too large at this scale', where=f"task {task.id}")
    return File(file.name, round(size))


def _steps(runtime: float, inputs: Sequence[File], outputs: Sequence[File]) -> tuple[Shell, ...]:
    """
    Split the work into few processes: one for each file written, one to read all.

    Moving the files counts as part of the runtime, hence in parallel with the
    sleep. Only when the line would grow too long does it begin earlier.
    """
    *early, last = _lines(_moves(inputs, outputs))
    wait = f"sleep {runtime:.6f}"
    # The status of the moves is kept across the wait: a full disk must fail the stand-in.
    last = f"{wait} & {last}; s=$?; wait; exit $s" if last else f"exec {wait}"
    return tuple(Shell(line) for line in (*early, last))


def _lines(commands: Sequence[str]) -> list[str]:
    """Join commands by ``&&`` into lines that a shell accepts; at least one line."""
    lines = [""]
    for command in commands:
        joined = f"{lines[-1]} && {command}" if lines[-1] else command
        if len(joined.encode()) > LONGEST_LINE:
            lines.append(command)
        else:
            lines[-1] = joined
    return lines


def _moves(inputs: Sequence[File], outputs: Sequence[File]) -> list[str]:
    moves = _reads([_quoted(file) for file in inputs if file.size])
    folders = sorted({file.name.rpartition("/")[0] for file in outputs} - {""})
    moves += [f"mkdir -p {shlex.quote('./' + folder)}" for folder in folders]
    for file in outputs:
        if file.size:
            moves.append(f"head -c {file.size} /dev/zero > {_quoted(file)}")
        else:
            moves.append(f": > {_quoted(file)}")
    return moves


def _reads(names: Sequence[str]) -> list[str]:
    """Return commands that read all files, as few as the length of a line allows."""
    groups: list[list[str]] = []
    length = LONGEST_LINE
    for name in names:
        length += len(name.encode()) + 1
        if length > LONGEST_LINE // 2:
            groups.append([])
            length = len(name.encode()) + 1
        groups[-1].append(name)
    return [f"cat {' '.join(group)} > /dev/null" for group in groups]


def _quoted(file: File) -> str:
    """Quote a name for the shell, never as an option: ``./`` stands before the name."""
    return shlex.quote("./" + file.name)


def _check_names(workflow: Workflow) -> None:
    """Refuse files that cannot exist side by side on disk."""
    where = {
        file.name: task.id for task in workflow.tasks for file in (*task.inputs, *task.outputs)
    }
    for name, task in where.items():
        parts = name.split("/")
        if any(len(part.encode()) > LONGEST_PART for part in parts) or len(name) > 3000:
            raise InputError(f'file name "{name}" is too long to replay', where=f"task {task}")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if folder in where:
                raise InputError(
                    f'"{folder}" is a file, so "{name}" cannot be in a folder of that name',
                    where=f"task {task}",
                )
