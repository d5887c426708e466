"""The result of a run, and of each of its tasks by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from bursar.api.result_table import RunTable, result_table
from bursar.model.task import Outcome, Status, Task, Value
from bursar.report.bill import Bill
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import RunRecord, log_files, read_run


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """
    Result of one task of a run.

    Parameters
    ----------
    id
        The task's id in the campaign.
    status
        How its last attempt ended; None: it has not ended, or could not run.
    parameters
        The point of the sweep that it stands for.
    seconds
        Time that the last attempt took; None when there was none.
    exit_code
        Of its last step; negative for a signal; None when no step ended.
    reason
        Why it failed, in one line; empty when it did not.
    stdout, stderr
        What it printed: text where that is UTF-8, else bytes.
    value
        Standard output read as a JSON number, text, list or object where it is one; else None.
    """

    id: str
    status: Status | None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    seconds: float | None = None
    exit_code: int | None = None
    reason: str = ""
    stdout: str | bytes = ""
    stderr: str | bytes = ""
    value: Any = None

    @property
    def succeeded(self) -> bool:
        """Whether the task ended well."""
        return self.status is Status.SUCCEEDED


def _task_result(folder: RunFolder, record: RunRecord, number: int, task: Task) -> TaskResult:
    end = record.final.get(number)
    if end is None:
        return TaskResult(id=task.id, status=None, parameters=task.parameters)
    outcome = end.outcome
    files = log_files(folder, number, task.id, end)
    stdout, stderr = (
        _text(kept if file is None else file.read_bytes())
        for file, kept in zip(files, (outcome.stdout, outcome.stderr), strict=True)
    )
    return TaskResult(
        id=task.id,
        status=outcome.status,
        parameters=task.parameters,
        seconds=outcome.end - outcome.start,
        exit_code=outcome.exit_code,
        reason=outcome.reason,
        stdout=stdout,
        stderr=stderr,
        value=_value(stdout),
    )


def _text(printed: bytes) -> str | bytes:
    try:
        return printed.decode()
    except UnicodeDecodeError:
        return printed


def _value(printed: str | bytes) -> Any:
    try:
        return msgspec.json.decode(printed)
    except msgspec.DecodeError:
        return None


class RunResult:
    """
    A run that has ended, for now or for good.

    Parameters
    ----------
    folder
        The run's folder.
    summary
        Its key figures, as ``bursar run --json`` prints them.
    exit_status
        As the command's: 0 when every task succeeded in time.
    """

    def __init__(self, folder: RunFolder, summary: dict[str, Any], exit_status: int) -> None:
        self._folder = folder
        self._summary = summary
        self.exit_status = exit_status

    @property
    def name(self) -> str:
        """The run's name."""
        return self._folder.name

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def files(self) -> Path:
        """Folder of the tasks' files, under the campaign's file names."""
        return self._folder.files

    @property
    def succeeded(self) -> bool:
        """Whether every task succeeded."""
        return bool(self._summary["succeeded"] == self._summary["tasks"])

    @cached_property
    def tasks(self) -> Mapping[str, TaskResult]:
        """Every task by its id, in the order of ``bursar tasks``; also those that did not run."""
        record = read_run(self._folder)
        return {
            task.id: _task_result(self._folder, record, number, task)
            for number, task in enumerate(record.campaign.workflow.tasks)
        }

    @property
    def failures(self) -> list[dict[str, Any]]:
        """Tasks that failed, grouped by cause as in the summary; keys are in the documentation."""
        return list(self._summary["failures"])

    def __getitem__(self, task: str) -> TaskResult:
        """
        Return the result of the task with an id.

        Raises
        ------
        KeyError
            When the run has no such task.
        """
        return self.tasks[task]

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the final outcome of each task that has one, by task."""
        yield from read_run(self._folder).outcomes

    def table(self, where: str | None = None) -> RunTable:
        """Parameters and results in one table, as :func:`bursar.api.result_table.result_table`."""
        return result_table(read_run(self._folder), where)

    def bill(self) -> Bill:
        """Cost of the run, by site and by task."""
        return read_run(self._folder).bill

    def to_dict(self) -> dict[str, Any]:
        """Return the key figures; the keys are in the documentation."""
        return dict(self._summary)

    def __repr__(self) -> str:
        done, tasks = self._summary["succeeded"], self._summary["tasks"]
        return f"<RunResult {self.name}: {done} of {tasks} succeeded, {self._summary['state']}>"
