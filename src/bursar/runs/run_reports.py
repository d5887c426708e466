"""The files that a run leaves for people: results, bill, report, and the output of tasks."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from bursar.dispatch.folders import write_atomically
from bursar.dispatch.journal import read_attempts
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BursarError, InputError
from bursar.report.result_files import MOST_TASKS, table_columns, write_results
from bursar.report.run_report import ReportContent, write_report
from bursar.runs.folder import RunFolder, find_task
from bursar.runs.forecasting.journalled import fans_of
from bursar.runs.run_record import RunRecord, log_files, summarise

# The output of a task: from the journal, or from a file where it was long.


@dataclass(frozen=True, slots=True)
class AttemptLogs:
    """
    Output of one attempt.

    Parameters
    ----------
    task
        Id of the task.
    stdout_file, stderr_file
        Files of streams that were too long for the journal; else None.
    """

    task: str
    record: AttemptRecord
    stdout_file: Path | None
    stderr_file: Path | None

    def copy_stdout(self, target: BinaryIO) -> None:
        """Write the standard output of the attempt to a file."""
        _copy(self.stdout_file, self.record.outcome.stdout, target)

    def copy_stderr(self, target: BinaryIO) -> None:
        """Write the standard error of the attempt to a file."""
        _copy(self.stderr_file, self.record.outcome.stderr, target)

    def to_dict(self) -> dict[str, Any]:
        """Return the logs as a JSON object; bytes that are no UTF-8 are replaced."""
        outcome = self.record.outcome
        return {
            "task": self.task,
            "attempt": outcome.attempt,
            "status": str(outcome.status),
            "exit_code": outcome.exit_code,
            "reason": outcome.reason,
            "stdout": _text(outcome.stdout, self.stdout_file),
            "stdout_file": None if self.stdout_file is None else str(self.stdout_file),
            "stderr": _text(outcome.stderr, self.stderr_file),
            "stderr_file": None if self.stderr_file is None else str(self.stderr_file),
        }


def read_logs(folder: RunFolder, task: str, attempt: int | None) -> AttemptLogs:
    """
    Read the output of a task's attempt.

    Parameters
    ----------
    task
        Task, as :func:`bursar.runs.folder.find_task` takes it.
    attempt
        Number of the attempt; None: the last.

    Raises
    ------
    InputError
        When there is no such task or attempt, or it has not ended.
    """
    tasks = folder.read_campaign().workflow.tasks
    number = find_task([t.id for t in tasks], task, f"run {folder.name}")
    task = tasks[number].id
    records = read_attempts(folder.journal_file, number)
    if not records:
        raise InputError(f'task "{task}" has not ended yet: nothing is kept of it')
    record = next((r for r in reversed(records) if not r.is_outrun), records[-1])
    if attempt is not None:
        known = {r.outcome.attempt: r for r in records}
        if attempt not in known:
            listed = ", ".join(map(str, known))
            raise InputError(f'task "{task}" has attempts {listed}, got {attempt}')
        record = known[attempt]
    return AttemptLogs(task, record, *log_files(folder, number, task, record))


def _copy(file: Path | None, content: bytes, target: BinaryIO) -> None:
    if file is None:
        target.write(content)
        return
    try:
        with file.open("rb") as source:
            shutil.copyfileobj(source, target)
    except OSError as error:
        raise BursarError(f"{file}: cannot be read: {error.strerror}") from None


def _text(content: bytes, file: Path | None) -> str | None:
    return content.decode(errors="replace") if file is None else None


# The files that a run leaves for people: results, bill, report.


def write_reports(record: RunRecord) -> None:
    """
    Write results, bill and report into the run's folder, replacing former ones.

    Raises
    ------
    BursarError
        When a file cannot be written.
    """
    folder = record.folder
    tasks = record.campaign.workflow.tasks
    write_results(
        folder.results_jsonl,
        folder.results_csv,
        tasks,
        record.journal.records,
        skipped=record.skipped,
        reused=record.reused,
        log_files=lambda r: log_files(folder, r.outcome.task, tasks[r.outcome.task].id, r),
    )
    bill = msgspec.json.encode(record.bill.to_dict())
    write_atomically(folder.bill_file, msgspec.json.format(bill, indent=2))
    report_to(folder.report_file, record)


def report_to(path: Path, record: RunRecord) -> None:
    """
    Write the report of a run, whole or not at all.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    table = table_columns(
        record.campaign.workflow.tasks,
        record.journal.records,
        skipped=record.skipped,
        reused=record.reused,
        begin=record.incarnations[0][0] if record.incarnations else 0.0,
        most=MOST_TASKS,
    )
    write_report(path, content_of_run(record), table)


def content_of_run(record: RunRecord) -> ReportContent:
    """Return what the page shows of a run so far."""
    proposal, plan = record.planned
    return ReportContent(
        summary=summarise(record),
        proposal=proposal,
        plan=plan,
        tasks=record.campaign.workflow.tasks,
        records=record.attempts,
        transfers=record.journal.transfers,
        leases=record.leases,
        incarnations=record.incarnations,
        events=record.journal.events,
        bill=record.bill,
        forecasts=fans_of(record.journal.events),
    )
