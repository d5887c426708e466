"""The files that a run leaves for people: results, bill and report."""

from pathlib import Path

import msgspec

from bursar.dispatch.folders import write_atomically
from bursar.report.result_files import MOST_TASKS, table_columns, write_results
from bursar.report.run_report import ReportContent, write_report
from bursar.runs.forecasting.journalled import fans_of
from bursar.runs.run_record import RunRecord, log_files, summarise


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
