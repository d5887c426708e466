"""The files that a run leaves for people: results, bill, report."""

from pathlib import Path

import msgspec

from bursar.dispatch.atomic_file import write_atomically
from bursar.report.run_report import ReportContent, write_report, write_results
from bursar.runs.logs import log_files
from bursar.runs.run_record import RunRecord, bill_of, summarise


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
        log_files=lambda r: log_files(folder, r.outcome.task, tasks[r.outcome.task].id, r),
    )
    bill = msgspec.json.encode(bill_of(record).to_dict())
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
    proposal, plan = record.planned
    write_report(
        path,
        ReportContent(
            summary=summarise(record),
            proposal=proposal,
            plan=plan,
            tasks=record.campaign.workflow.tasks,
            records=record.journal.records,
            transfers=record.journal.transfers,
            leases=record.leases,
            incarnations=record.incarnations,
            events=record.journal.events,
            bill=bill_of(record),
        ),
    )
