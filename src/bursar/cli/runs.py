"""``bursar runs``, ``report``, ``bill`` and ``logs``: what became of runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.options import RUNS, AsJson, RunName, RunsFolder


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("runs")(list_runs)
    app.command("report")(write_report)
    app.command("bill")(show_bill)
    app.command("logs")(show_logs)


def list_runs(runs: RunsFolder = RUNS, as_json: AsJson = False) -> None:
    """List the runs, the oldest first."""
    from bursar.cli.output import print_json
    from bursar.report.tables import print_runs
    from bursar.runs.run_record import summaries

    rows = summaries(runs)
    if as_json:
        print_json({"runs": rows})
    else:
        print_runs(rows)


def write_report(
    run: RunName,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write only the page, to this file.",
        ),
    ] = None,
) -> None:
    """
    Write a run's results, bill and report.html; the run may be unfinished.

    Prints a summary.
    """
    from bursar.cli.output import print_json, say
    from bursar.report.tables import print_summary
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run, summarise
    from bursar.runs.run_reports import report_to, write_reports

    record = read_run(RunFolder.open(runs, run))
    if output is None:
        write_reports(record)
    else:
        report_to(output, record)
    say(f"wrote {output or record.folder.report_file}")
    summary = summarise(record)
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)


def show_bill(
    run: RunName,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    every: Annotated[
        bool, typer.Option("--all", help="List every task, not only the dearest ones.")
    ] = False,
) -> None:
    """Show what a run cost, by site and by task; its total is the ledger's to the unit."""
    from bursar.cli.output import print_json, say
    from bursar.report.bill import print_bill
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import bill_of, integrity_warning, read_run

    record = read_run(RunFolder.open(runs, run))
    doubt = integrity_warning(record)
    if doubt:
        say(doubt)
    bill = bill_of(record)
    if as_json:
        print_json(bill.to_dict())
    else:
        print_bill(bill, every=every)


def show_logs(
    run: RunName,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Id of the task.", show_default=False)
    ],
    runs: RunsFolder = RUNS,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Print only the task's stderr, on stdout.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Number of the attempt. Default: the last.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a task printed: its stdout to stdout, its stderr to stderr."""
    from bursar.cli.output import print_json
    from bursar.runs.folder import RunFolder
    from bursar.runs.logs import read_logs

    logs = read_logs(RunFolder.open(runs, run), task, attempt)
    if as_json:
        print_json(logs.to_dict())
        return
    if not stderr:
        logs.copy_stdout(sys.stdout.buffer)
    logs.copy_stderr(sys.stdout.buffer if stderr else sys.stderr.buffer)
