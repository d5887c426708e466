"""
Makes a campaign from recorded tasks, independently of the file format.

Recordings are looser than our name space. Names may be absolute paths of a
machine long gone, and several tasks may write a file of one name: real
executions kept them apart in folders that the recording leaves out. Here each
file becomes one version per maker, and the declared order says who reads which.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError, spelling_hint
from bursar.model.recording import Recording
from bursar.model.task import File, Task
from bursar.model.workflow import Workflow


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
    path
        The file that was read.
    name
        Name of the campaign.
    records
        Recorded tasks in the order of the file.
    sizes
        Bytes of each file by its recorded name.
    recording
        Data recorded of the execution.

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
