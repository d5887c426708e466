"""What every export of a run is made of: its tasks, attempts, times and money, without secrets."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from bursar.dispatch.journal_records import AttemptRecord
from bursar.market.lease import Lease
from bursar.model.campaign import Goal, Workflow
from bursar.model.money import Micros
from bursar.model.site import SiteFacts
from bursar.model.task import Exec, Shell, Status, Task
from bursar.report.bill import Bill


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedAttempt:
    """
    One attempt to run a task.

    Parameters
    ----------
    number
        Index of the task in the workflow.
    ready
        When the attempt could have begun, seconds since the epoch: its task's parents had ended,
        and so had the attempt before. Never after its begin.
    cost
        Micro-units that the attempt bears.
    """

    record: AttemptRecord
    number: int
    task: Task
    ready: float
    cost: Micros

    @property
    def seconds(self) -> float:
        """Seconds from begin to end."""
        return self.end - self.record.outcome.start

    @property
    def end(self) -> float:
        """End, seconds since the epoch; never before the begin, whatever the site's clock said."""
        return max(self.record.outcome.start, self.record.outcome.end)

    @property
    def processor_time(self) -> float:
        """Seconds of processor time that its processes took."""
        return self.record.outcome.user_seconds + self.record.outcome.system_seconds


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """
    Everything of a run that leaves it in an export.

    Parameters
    ----------
    identity
        Text that tells the run from all others; the same in every export.
    created
        Seconds since the epoch.
    attempts
        Attempts that have ended, by task and attempt; no reused results.
    final
        The record that decides each task, reused results included, by the task's index.
    skipped
        Indices of tasks that could not run, as one before them had failed.
    reused
        Run and task that a result was taken from, by the task's index.
    begun, ended
        First begin and last end, seconds since the epoch; None when nothing ran.
    makespan
        Seconds, without the time between incarnations; None when nothing ran.
    leases
        By their ids.
    sizes
        Bytes of files by name, as they are on disk; files that are not there are absent.
    places
        Where on disk these files are.
    commands
        Whether the commands of tasks are told.
    """

    name: str
    identity: str
    campaign: str
    state: str
    created: float
    goal: Goal
    workflow: Workflow
    attempts: Sequence[ExportedAttempt]
    final: Mapping[int, AttemptRecord]
    skipped: frozenset[int]
    reused: Mapping[int, str]
    begun: float | None
    ended: float | None
    makespan: float | None
    sites: Sequence[SiteFacts]
    leases: Mapping[str, Lease]
    bill: Bill
    sizes: Mapping[str, int]
    places: Mapping[str, Path]
    commands: bool = True

    @cached_property
    def by_task(self) -> Mapping[int, Sequence[ExportedAttempt]]:
        """The attempts of each task that has any, by the task's index."""
        found: dict[int, list[ExportedAttempt]] = {}
        for one in self.attempts:
            found.setdefault(one.number, []).append(one)
        return found

    def last(self, number: int) -> AttemptRecord | None:
        """Return the record that tells most of a task: the final one, else its last attempt's."""
        if number in self.final:
            return self.final[number]
        tried = self.by_task.get(number, ())
        judged = [one.record for one in tried if not one.record.is_outrun]
        return judged[-1] if judged else None

    def status(self, number: int) -> str:
        """Return how a task ended, as ``results.csv`` says it."""
        record = self.last(number)
        if record is None:
            return "skipped" if number in self.skipped else "not-run"
        return str(record.outcome.status)

    def size_of(self, name: str) -> int | None:
        """Return the bytes of a file: as it is on disk, else as the campaign states; or None."""
        return self.sizes.get(name, self._stated.get(name))

    @cached_property
    def _stated(self) -> dict[str, int]:
        files = (file for task in self.workflow.tasks for file in (*task.inputs, *task.outputs))
        return {file.name: file.size for file in files if file.size is not None}

    def command_of(self, task: Task) -> tuple[str, ...]:
        """
        Return the command line of a task; empty where it has none, or none is told.

        Several commands are one shell line. Values of variables, texts that are written, and
        pickled calls are never part of it.
        """
        steps = [step for step in task.steps if isinstance(step, Exec | Shell)]
        if not self.commands or not steps:
            return ()
        if len(steps) == 1 and isinstance(steps[0], Exec):
            return tuple(steps[0].argv)
        lines = [step.line if isinstance(step, Shell) else shlex.join(step.argv) for step in steps]
        return ("/bin/sh", "-c", " && ".join(lines))


def succeeded(record: AttemptRecord) -> bool:
    """Tell whether an attempt ended well."""
    return record.outcome.status is Status.SUCCEEDED


def moment(seconds: float, precision: str = "microseconds") -> str:
    """Write a moment, seconds since the epoch, in ISO 8601 and UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision)


def safe_names(names: Iterable[str], unsafe: "re.Pattern[str]") -> dict[str, str]:
    """
    Map names to names that a format allows, each to one of its own.

    Parameters
    ----------
    unsafe
        Matches what the format does not allow; each match becomes a ``_``.
    """
    originals = list(dict.fromkeys(names))
    # Names that are fine keep themselves, whatever others become.
    taken = {name for name in originals if not unsafe.search(name)}
    found = {}
    for name in originals:
        made = safe = unsafe.sub("_", name)
        number = 1
        while safe != name and made in taken:
            number += 1
            made = f"{safe}_{number}"
        taken.add(made)
        found[name] = made
    return found


def present(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a document that have a value."""
    return {key: value for key, value in entries.items() if value not in (None, "", [], {}, ())}
