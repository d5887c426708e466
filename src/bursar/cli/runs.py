"""
Commands for runs that exist: what became of them, attaching and stopping.

They are ``runs``, ``report``, ``bill``, ``tasks``, ``table``, ``retry``, ``pilots``,
``why``, ``why-not``, ``attach``, ``stop``, ``cancel`` and ``add-site``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import (
    RUNS,
    AsJson,
    RunName,
    RunsFolder,
    SitesPath,
    TaskName,
    print_json,
    print_note,
    print_outcome,
)
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.runs.explanations import AllocationReport


# Commands that say what became of runs.


def register(app: typer.Typer) -> None:
    """Add the commands that say what became of runs, and ``bursar retry``."""
    app.command("runs")(list_runs)
    app.command("report")(write_report)
    app.command("bill")(show_bill)
    app.command("tasks")(list_tasks)
    app.command("table")(show_table)
    app.command("retry")(retry_tasks)
    app.command("pilots")(show_pilots)
    app.command("why")(explain_task)
    app.command("why-not")(explain_site)


def list_runs(
    tag: Annotated[
        str | None, typer.Option(metavar="TAG", help="List only runs with this tag.")
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="List only runs in this state.")
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """List the runs, the oldest first."""
    from bursar.report.run_tables import print_runs
    from bursar.runs.run_record import summaries

    rows = [
        row
        for row in summaries(runs)
        if (tag is None or tag in row["tags"]) and (state is None or state == row["state"])
    ]
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

    The command prints a summary.
    """
    from bursar.report.run_tables import print_summary
    from bursar.runs.folder import RunFolder
    from bursar.runs.forecasting.forecast_truths import complete_truths
    from bursar.runs.recording.history_recorder import add_lost_batches
    from bursar.runs.recording.user_history import history_to_write
    from bursar.runs.run_record import read_run, summarise
    from bursar.runs.run_reports import report_to, write_reports

    record = read_run(RunFolder.open(runs, run))
    if output is None:
        add_lost_batches(record)
        complete_truths(history_to_write(record.info.history), record)
        write_reports(record)
    else:
        report_to(output, record)
    print_note(f"wrote {output or record.folder.report_file}")
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
    """Show what a run cost, by site and by task; the total is the ledger's to the unit."""
    from bursar.report.bill import print_bill
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import integrity_warning, read_run

    record = read_run(RunFolder.open(runs, run))
    doubt = integrity_warning(record)
    if doubt:
        print_note(doubt)
    bill = record.bill
    if as_json:
        print_json(bill.to_dict())
    else:
        print_bill(bill, every=every)


def list_tasks(
    run: RunName,
    failed: Annotated[
        bool, typer.Option("--failed", help="List only tasks that failed or cannot run.")
    ] = False,
    slow: Annotated[
        bool, typer.Option("--slow", help="List the 20 that took longest, the longest first.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="List only tasks of which this is true: 'seconds > 2 && n == 3'. Columns, "
            "parameters and seconds may be named, in the ClassAd language.",
        ),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print rows as results.csv has them.")
    ] = False,
) -> None:
    """List a run's tasks with state, time, parameters, and what went wrong."""
    from bursar.report.result_files import csv_writer
    from bursar.report.run_tables import print_tasks
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.task_rows import selected, task_rows
    from bursar.runs.run_record import read_run

    if as_json and as_csv:
        raise InputError("goes without --json", where="--csv")
    record = read_run(RunFolder.open(runs, run))
    every = task_rows(record)
    rows = selected(every, failed=failed, slow=slow, condition=where)
    if as_csv:
        write = csv_writer(sys.stdout, record.campaign.workflow.tasks)
        for row in rows:
            write(row)
    elif as_json:
        print_json({"run": record.folder.name, "tasks": rows})
    else:
        print_tasks(rows, len(every))


def show_table(
    run: RunName,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="List only tasks of which this is true: 'loss < 0.1 && n == 3'. Parameters, "
            "results "
            "and columns of bursar tasks may be named, in the ClassAd language.",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the table results of this campaign file, not those that the run began with.",
        ),
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Parquet file; needs pyarrow.")
    ] = None,
    arrow: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write an Arrow (Feather) file; needs pyarrow."),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV; so it is where stdout is no terminal.")
    ] = False,
) -> None:
    """
    Print parameters and results of a run's tasks in one table.

    The table results of the campaign file says where each result stands: in what a task printed, or
    in a file that it made.
    """
    from bursar.api.result_table import result_table
    from bursar.formats.result_columns import read_result_columns
    from bursar.report.run_tables import print_result_table
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run

    if as_json and as_csv:
        raise InputError("goes without --json", where="--csv")
    record = read_run(RunFolder.open(runs, run))
    tasks = record.campaign.workflow.tasks
    table = result_table(
        record, where, None if results is None else read_result_columns(results, tasks)
    )
    if not record.campaign.results and results is None:
        print_note("the campaign states no [results]; --results FILE takes them of a file")
    for one in table.missing:
        print_note(str(one))
    if parquet is not None:
        table.write_parquet(parquet)
        print_note(f"wrote {parquet}")
    if arrow is not None:
        table.write_arrow(arrow)
        print_note(f"wrote {arrow}")
    if as_json:
        print_json({"run": record.folder.name, **table.to_dict()})
    elif as_csv or (not sys.stdout.isatty() and parquet is None and arrow is None):
        table.write_csv(sys.stdout)
    elif parquet is None and arrow is None:
        print_result_table(table.columns, table.rows)


def retry_tasks(
    run: RunName,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]...",
            help="Ids of failed tasks, or their begin or number. Default: all that failed.",
            show_default=False,
        ),
    ] = None,
    runs: RunsFolder = RUNS,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start the run and return; it goes on alone.")
    ] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """
    Run failed tasks of a run again, and what could not run because of them.

    The run goes on where it ended, with its goal, its sites and its bill.
    """
    from bursar.api.running import resume
    from bursar.runs.folder import RunFolder

    folder = RunFolder.open(runs, run)
    print_outcome(
        lambda: resume(folder.path, retry_failed=tasks or True, progress=not quiet, detach=detach),
        as_json=as_json,
    )


def show_pilots(run: RunName, runs: RunsFolder = RUNS, as_json: AsJson = False) -> None:
    """Show a run's requests to its sites: waits, and processor time held, used and idle."""
    from bursar.report.tables import print_pilots
    from bursar.runs.explanations import allocation_reports, bounds
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run

    record = read_run(RunFolder.open(runs, run))
    found, scores = allocation_reports(record), bounds(record)
    requests = [one.to_dict() for one in found]
    sites = [one | _scored(scores.get(one["site"])) for one in _by_site(found)]
    if as_json:
        print_json({"run": run, "requests": requests, "sites": sites})
    else:
        print_pilots(requests, sites)


def _scored(score: tuple[int, int] | None) -> dict[str, int | None]:
    given, held = score or (None, None)
    return {"bounds_given": given, "bounds_held": held}


def _by_site(found: "Sequence[AllocationReport]") -> list[dict[str, Any]]:
    """
    Sum a run's allocations by site, in processor-seconds.

    The sums of the scheduler's accounting, and of its difference to ours, cover only the requests
    of which the scheduler has a record; they are None when it has none at a site.
    """
    sums = []
    for site in dict.fromkeys(one.site for one in found):
        here = [one for one in found if one.site == site]
        known = [one for one in here if one.recorded is not None]
        sums.append(
            {
                "site": site,
                "requests": len(here),
                "acquired_cpu_s": sum(one.account.acquired for one in here),
                "used_cpu_s": sum(one.account.used for one in here),
                "idle_cpu_s": sum(one.account.idle for one in here),
                "recorded_cpu_s": sum(one.recorded or 0.0 for one in known) if known else None,
                "difference_cpu_s": sum(one.difference or 0.0 for one in known) if known else None,
                "agrees": all(one.agrees for one in known) if known else None,
            }
        )
    return sums


def explain_task(
    run: RunName,
    task: TaskName,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """Explain why a task ran where it did."""
    from bursar.report.tables import print_placements
    from bursar.runs.explanations import why
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run

    placed = why(read_run(RunFolder.open(runs, run)), task)
    if as_json:
        print_json({"run": run, "task": task, "placed": [one.to_dict() for one in placed]})
    else:
        print_placements(task, [one.to_dict() for one in placed])


def explain_site(
    run: RunName,
    site: Annotated[
        str, typer.Argument(metavar="SITE", help="Name of the site.", show_default=False)
    ],
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """Explain why a site got no more tasks than it did."""
    from bursar.report.tables import print_site_reasons
    from bursar.runs.explanations import ran_at, why_not
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run

    record = read_run(RunFolder.open(runs, run))
    held, ran = why_not(record, site), ran_at(record, site)
    if as_json:
        reasons = [one.to_dict() for one in held]
        print_json({"run": run, "site": site, "tasks": ran, "reasons": reasons})
    else:
        print_site_reasons(site, ran, [one.to_dict() for one in held])


# ``bursar attach`` and ``bursar stop``: runs that another process carries out.


def register_attach(app: typer.Typer) -> None:
    """Add ``bursar attach``, ``stop``, ``cancel`` and ``add-site``."""
    app.command("attach")(attach_run)
    app.command("stop")(stop)
    app.command("cancel")(cancel)
    app.command("add-site")(add_site)


def attach_run(
    run: RunName,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress; wait for the end.")
    ] = False,
) -> None:
    """
    Show a run that goes on elsewhere, until it ends; Ctrl-C leaves the run going.

    The command ends with the run: it prints the run's summary, and its exit status is the run's.
    """
    from bursar.report.progress import RunProgress
    from bursar.report.run_tables import print_summary
    from bursar.runs.detached_runs import RunViewUpdate, follow_run
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run, summarise

    folder = RunFolder.open(runs, run)
    try:
        with RunProgress(enabled=not quiet) as shown:

            def show(update: RunViewUpdate) -> None:
                if update.message:
                    shown.notify(update.message)
                if update.snapshot is not None:
                    shown.update(update.snapshot)

            follow_run(folder, show)
    except KeyboardInterrupt:
        print_note(f"the run goes on; come back with: bursar attach {folder.name}")
        raise
    summary = summarise(read_run(folder))
    if as_json:
        print_json(summary)
    else:
        print_summary(summary)
    raise typer.Exit(summary["exit_status"])


def stop(run: RunName, runs: RunsFolder = RUNS, as_json: AsJson = False) -> None:
    """
    Stop a run that another process carries out, as Ctrl-C does there.

    Running tasks are asked to end, and killed after five seconds; a second time kills them at
    once. The run can be resumed. Where the run's process
    was killed, the tasks that still run on this machine are killed.
    """
    from bursar.runs.detached_runs import stop_run
    from bursar.runs.folder import RunFolder

    folder = RunFolder.open(runs, run)
    process = stop_run(folder)
    if as_json:
        print_json({"run": folder.name, "process": process})
    elif process is None:
        print_note(
            "no process carried it out; the workers that went on without one are ended; "
            f"go on with: bursar run --resume {folder.name}"
        )
    else:
        print_note(
            f"asked process {process} to stop; go on with: bursar run --resume {folder.name}"
        )


def add_site(
    run: RunName,
    sites: SitesPath = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SITE]...", help="Sites of the file. Default: all.", show_default=False
        ),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """
    Let a run that goes on use further sites, and have what is left planned again.

    A site that the run has already, with the same facts, changes nothing.
    """
    from bursar.cli.campaign_loading import load_sites
    from bursar.runs.amendments import request_site
    from bursar.runs.folder import RunFolder

    folder = RunFolder.open(runs, run)
    found = {site.name: site for site in load_sites(sites)}
    for name in names or ():
        if name not in found:
            raise InputError(f'no site "{name}", expected {", ".join(found)}', where=str(sites))
    answers = [request_site(folder, found[name]) for name in names or found]
    refused = [one for one in answers if one.refused]
    if as_json:
        added = [one.site for one in answers if not one.refused]
        told = {one.site: one.refused for one in refused}
        print_json({"run": folder.name, "added": added, "refused": told})
    for one in answers:
        if not as_json or one.refused:
            print_note(f"{one.site}: {one.refused or 'the run uses it'}")
    if refused:
        raise typer.Exit(2)


def cancel(run: RunName, runs: RunsFolder = RUNS, as_json: AsJson = False) -> None:
    """
    Cancel a run for good: it is stopped and cannot be resumed. What has ended is kept.

    Tasks that run are asked to end; processors and money that is set aside go back. Cancelling a
    run again changes nothing.
    """
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.cancelling import cancel_run

    folder = RunFolder.open(runs, run)
    state = cancel_run(folder)
    if as_json:
        print_json({"run": folder.name, "state": state})
    elif state == "cancelled":
        print_note(f"run {folder.name} is cancelled for good")
    else:
        print_note(f"run {folder.name} ended before it could be cancelled: {state}")
