"""
Nextflow's ``trace.txt`` as a recorded campaign: what the pipeline would take and cost elsewhere.

A trace says when each task was submitted, started and ended, and not which task fed which. Nextflow
submits a task as soon as its inputs are there, so that what a task waited for is inferred: the
tasks that ended shortly before, of the same tag where they have one.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bursar.formats.file_text import plain_name, read_text
from bursar.formats.recorded_tasks import RecordedTask, recorded_campaign
from bursar.history.importing.formats import guess_format
from bursar.history.importing.nextflow import read_nextflow
from bursar.history.observation import TaskObservation
from bursar.model.campaign import Campaign, Recording
from bursar.model.errors import InputError
from bursar.model.task import Status, Task

SLACK = 0.05
"""Seconds by which moments of a trace may be rounded."""

WINDOW = 15.0
"""
Seconds between the end of a task and the submission of one that it fed, at most: Nextflow asks a
batch system every 5 seconds, moves files, and submits in turns.
"""

LEAST_SHARE = 0.2
"""Share of a process's tasks that another process must have set going to count as what feeds it."""


def is_nextflow_trace(path: Path) -> bool:
    """Whether a file is a trace of Nextflow, by its first line."""
    try:
        with path.open("rb") as file:
            head = file.read(8192)
    except OSError:
        return False
    return b"\t" in head and guess_format(path.name, head.decode(errors="replace")) == "nextflow"


def read_nextflow_trace(path: Path) -> Campaign:
    """
    Read a trace.

    Tasks that failed and were tried again count once, as they went well. Tasks that came from the
    cache, or had not ended, are left out.

    Raises
    ------
    InputError
        At the line, when a row cannot be read, or no task succeeded.
    """
    log = read_nextflow(read_text(path), str(path))
    if log.problems:
        raise log.problems[0]
    done: dict[str, TaskObservation] = {}
    lost = Counter(log.passed_over)
    for one in log.observations:
        if one.status is Status.SUCCEEDED:
            done[one.task] = one
        else:
            lost["failed, or stopped"] += 1
    if not done:
        raise InputError("holds no task that succeeded", where=str(path))
    moments = [TimedTask.of(one) for one in done.values()]
    known = all(one.submit > 0 for one in moments)
    parents = infer_parents(moments) if known else {}
    records = []
    for one in done.values():
        try:
            task = Task(
                id=one.task,
                name=one.kind,
                runtime=one.seconds,
                processors=one.processors,
                memory=one.max_rss or None,
                parameters=dict(one.parameters),
            )
        except ValueError as error:
            raise InputError(str(error), where=f"{path}: task {one.task}") from None
        records.append(RecordedTask(task, (), (), parents.get(one.task, ())))
    campaign = recorded_campaign(
        path, plain_name(path), records, {}, _recording(moments, known=known)
    )
    remarks = [
        f"{path}: which task waits for which is inferred from the times of the trace"
        if known
        else f"{path}: has no times of submission and start: all tasks are taken to be independent",
        *(f"{path}: {count} rows left out: {why}" for why, count in sorted(lost.items())),
    ]
    return replace(campaign, remarks=tuple(remarks))


def _recording(tasks: Sequence["TimedTask"], *, known: bool) -> Recording:
    if not known:
        return Recording()
    begun = min(task.submit for task in tasks)
    return Recording(makespan=max(task.end for task in tasks) - begun, begun=begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedTask:
    """
    A task of a trace, and when it was submitted and ended.

    Parameters
    ----------
    kind
        Name of the process.
    tag
        Tag of the task; empty: none.
    submit, end
        Seconds since the epoch.
    """

    id: str
    kind: str
    tag: str
    submit: float
    end: float

    @classmethod
    def of(cls, one: TaskObservation) -> "TimedTask":
        """Return what an observed task tells."""
        return cls(
            id=one.task,
            kind=one.kind,
            tag=str(one.parameters.get("tag", "")),
            submit=one.start - (one.waited or 0.0),
            end=one.start + one.seconds,
        )


def infer_parents(tasks: Sequence[TimedTask]) -> Mapping[str, tuple[str, ...]]:
    """
    Return which tasks each task waited for, by id; a parent has ended before its child's submit.

    What sets a task going is the task of another process that ended last before the submission,
    within :data:`WINDOW` seconds, of the same tag rather than of another. The processes that set
    enough tasks of a process going feed it: each of its tasks waits for their tasks of the same
    tag; where there is none, a process of a single task waits for all of theirs, and another task
    for the one that set it going.
    """
    order = sorted(tasks, key=lambda task: (task.end, task.id))
    ends = [task.end for task in order]
    by_kind: dict[str, list[TimedTask]] = defaultdict(list)
    by_tag: dict[tuple[str, str], list[TimedTask]] = defaultdict(list)
    for task in order:
        by_kind[task.kind].append(task)
        by_tag[task.kind, task.tag].append(task)
    triggers = {task.id: _trigger(task, order, ends) for task in tasks}
    parents: dict[str, tuple[str, ...]] = {}
    for members in by_kind.values():
        votes = Counter(found.kind for task in members if (found := triggers[task.id]) is not None)
        feeding = [one for one, count in votes.items() if count >= LEAST_SHARE * len(members)]
        for task in members:
            before_it: dict[str, None] = {}
            for other in feeding:
                alike = by_tag.get((other, task.tag), []) if task.tag else []
                before = [one for one in alike if _can_feed(one, task)]
                if not before and len(members) == 1:
                    before = [one for one in by_kind[other] if _can_feed(one, task)]
                before_it |= dict.fromkeys(one.id for one in before)
            trigger = triggers[task.id]
            if not before_it and trigger is not None:
                before_it[trigger.id] = None
            parents[task.id] = tuple(before_it)
    return parents


def _can_feed(one: TimedTask, task: TimedTask) -> bool:
    # Never both ways: a task ends after its own submission.
    return one.id != task.id and one.end <= task.submit + SLACK and one.submit < task.submit


def _trigger(
    task: TimedTask, order: Sequence[TimedTask], ends: Sequence[float]
) -> TimedTask | None:
    """Return the task that set a task going; None: it was there from the beginning."""
    last = bisect_right(ends, task.submit + SLACK)
    near: TimedTask | None = None
    for one in reversed(order[:last]):
        if one.end < task.submit - WINDOW:
            break
        if one.kind == task.kind or not _can_feed(one, task):
            continue
        if task.tag and one.tag == task.tag:
            return one
        near = near or one
    return near
