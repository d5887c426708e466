"""
Campaigns from recorded tasks, and their replay as stand-ins that take the recorded time.

Recordings are looser than our name space. Names may be absolute paths of a
machine long gone, and several tasks may write a file of one name: real
executions kept them apart in folders that the recording leaves out. Here each
file becomes one version per maker, and the declared order says who reads which.

A stand-in sleeps for the scaled runtime while, in the background of that
time, its inputs are read and its outputs written, in their scaled sizes: real
processes, real files, and no more processor time than that needs.
"""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bursar.model.campaign import Campaign, Recording, Workflow
from bursar.model.errors import InputError, spelling_hint
from bursar.model.task import File, Shell, Task

# Makes a campaign from recorded tasks, independently of the file format.


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """
    A recorded task.

    Parameters
    ----------
    task
        The task, without files.
    reads, writes
        Names of the task's files, as recorded.
    parents
        Ids of the declared parents.
    """

    task: Task
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    parents: tuple[str, ...]


def recorded_campaign(
    path: Path,
    name: str,
    records: Sequence[RecordedTask],
    sizes: Mapping[str, int | None],
    recording: Recording,
) -> Campaign:
    """
    Make the campaign of a recording.

    Parameters
    ----------
    records
        Recorded tasks in the order of the file.
    sizes
        Bytes of each file by its recorded name.

    Raises
    ------
    InputError
        When an id is doubled, a parent unknown, a file name unusable, or the
        dependencies form a cycle.
    """
    _check_ids(records)
    names = _clean_names(records)
    versions = _FileVersions(records)
    tasks = []
    for record in records:
        inputs = [
            File(_version_name(names[read], maker), sizes.get(read))
            for read in dict.fromkeys(record.reads)
            for maker in versions.read_by(record, read)
        ]
        outputs = [
            File(_version_name(names[written], versions.label(record, written)), size)
            for written in dict.fromkeys(record.writes)
            for size in (sizes.get(written),)
        ]
        parents = tuple(dict.fromkeys(record.parents))
        tasks.append(
            replace(record.task, inputs=tuple(inputs), outputs=tuple(outputs), after=parents)
        )
    return Campaign(
        name=name,
        workflow=Workflow(tuple(tasks)),
        root=path.resolve().parent,
        recorded=True,
        recording=recording,
        source=path,
    )


def _check_ids(records: Sequence[RecordedTask]) -> None:
    known: set[str] = set()
    for record in records:
        if record.task.id in known:
            raise InputError(f'duplicate task id "{record.task.id}"')
        known.add(record.task.id)
    for record in records:
        for parent in record.parents:
            if parent not in known:
                raise InputError(
                    f'unknown parent "{parent}"',
                    where=f"task {record.task.id}",
                    hint=spelling_hint(parent, known),
                )


def _clean_names(records: Iterable[RecordedTask]) -> dict[str, str]:
    """Map each recorded file name to the name in the campaign."""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for record in records:
        for recorded in (*record.reads, *record.writes):
            if recorded in names:
                continue
            parts = [part for part in recorded.split("/") if part not in ("", ".")]
            clean = "/".join(parts)
            if not clean or ".." in parts or any(ord(c) < 32 for c in clean):
                raise InputError(
                    f'file name "{recorded}" cannot be used: expected a path without ".."',
                    where=f"task {record.task.id}",
                )
            if clean in taken:
                raise InputError(
                    f'file names "{taken[clean]}" and "{recorded}" mean the same file',
                    where=f"task {record.task.id}",
                )
            names[recorded] = clean
            taken[clean] = recorded
    return names


class _FileVersions:
    """The version of each file that each task reads, told by the task that made the version."""

    def __init__(self, records: Sequence[RecordedTask]) -> None:
        self._parents = {r.task.id: r.parents for r in records}
        self._makers: dict[str, list[str]] = {}
        for record in records:
            for written in dict.fromkeys(record.writes):
                self._makers.setdefault(written, []).append(record.task.id)
        # A file that its only maker also reads exists before: two versions.
        self._several = {name for name, makers in self._makers.items() if len(makers) > 1} | {
            read for r in records for read in r.reads if self._makers.get(read) == [r.task.id]
        }

    def label(self, record: RecordedTask, written: str) -> str:
        """Return what tells this maker's version from others; empty when there is only one."""
        return record.task.id if written in self._several else ""

    def read_by(self, record: RecordedTask, read: str) -> Sequence[str]:
        """Return labels of the versions that a task reads; ``""`` is the initial file."""
        if read not in self._several:
            return ("",)
        # Of several versions the declared parents say which is read, else any ancestor; a task
        # never reads what it writes itself.
        makers = [m for m in self._makers[read] if m != record.task.id]
        declared = [m for m in makers if m in set(record.parents)]
        if declared:
            return declared
        above = self._ancestors(record.task.id)
        return [m for m in makers if m in above] or ("",)

    def _ancestors(self, task: str) -> set[str]:
        found: set[str] = set()
        left = [task]
        while left:
            for parent in self._parents[left.pop()]:
                if parent not in found:
                    found.add(parent)
                    left.append(parent)
        return found


def _version_name(clean: str, label: str) -> str:
    """``fit.txt`` as made by ``ID00016``: ``fit.txt@ID00016``."""
    return f"{clean}@{label.replace('/', '_')}" if label else clean


# Replay: recorded tasks as stand-ins that take the recorded time.

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

    Empty for any campaign but a replayed one: elsewhere such files are the user's own.
    """
    if campaign.recorded or campaign.recording is None:
        return {}
    return {file.name: file.size or 0 for file in campaign.workflow.initial_files}


def make_initial_files(campaign: Campaign, folder: Path) -> int:
    """
    Make the files of :func:`initial_file_sizes` as sparse files.

    Call this function with the run's ``files/`` before the first task starts. Files that are
    already there with their size are left alone, so a resumed run may call it again.

    Parameters
    ----------
    campaign
        Any; nothing is done unless it is a replay.
    folder
        Existing folder in which the files are made.

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
