"""Commands for runs that one keeps: ``logs``, ``tag``, ``compare``, ``export`` and ``clean``."""

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bursar.cli.options import (
    RUNS,
    AsJson,
    RunName,
    RunsFolder,
    TaskName,
    parsed,
    print_json,
    print_note,
)
from bursar.model.errors import BursarError, InputError

if TYPE_CHECKING:
    from bursar.runs.folder import RunFolder


def register(app: typer.Typer) -> None:
    """Add the commands for runs that one keeps to the command line."""
    app.command("logs")(show_logs)
    app.command("tag")(tag_run)
    app.command("compare")(compare)
    app.command("export")(export_run)
    app.command("clean")(clean)


def show_logs(
    run: RunName,
    task: TaskName,
    runs: RunsFolder = RUNS,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Print only the task's stderr, on stdout.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Number of the attempt. Default: the last.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print what the task prints while it runs, until it ends."
        ),
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="With --follow: begin with so many bytes of each stream that are there already. "
            "Default: all.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a task printed: its stdout to stdout, its stderr to stderr."""
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.task_output import read_logs

    if follow:
        if as_json:
            raise InputError("expected one of --follow and --json")
        _follow_logs(RunFolder.open(runs, run), task, attempt, tail, stderr=stderr)
        return
    if tail is not None:
        raise InputError("only with --follow", where="--tail")
    logs = read_logs(RunFolder.open(runs, run), task, attempt)
    if as_json:
        print_json(logs.to_dict())
        return
    if not stderr:
        logs.copy_stdout(sys.stdout.buffer)
    logs.copy_stderr(sys.stdout.buffer if stderr else sys.stderr.buffer)


def _follow_logs(
    folder: "RunFolder", task: str, attempt: int | None, tail: int | None, *, stderr: bool
) -> None:
    from bursar.runs.folder import find_task
    from bursar.runs.kept.task_output import STREAMS, TaskFollower

    tasks = folder.read_campaign().workflow.tasks
    number = find_task([one.id for one in tasks], task, f"run {folder.name}")
    follower = TaskFollower(folder, number, attempt, tail, STREAMS[1:] if stderr else STREAMS)
    targets = sys.stdout.buffer, sys.stdout.buffer if stderr else sys.stderr.buffer

    async def follow() -> None:
        async for one in follower.follow():
            if one.stream is not None:
                targets[one.stream].write(one.content)
                targets[one.stream].flush()
            if one.note:
                print_note(f"task {tasks[number].id}: {one.note}")

    asyncio.run(follow())


def tag_run(
    run: RunName,
    tags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TAG]...", help="Tags to give the run.", show_default=False),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="TAG", help="Tag to take away.")
    ] = None,
    note: Annotated[
        str | None,
        typer.Option("--note", metavar="TEXT", help='Note to keep with the run; "" for none.'),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """
    Give a run tags and a note, or show those that it has.

    A run with the tag keep is never deleted by bursar clean.
    """
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.labels import change_labels

    folder = RunFolder.open(runs, run)
    labels = change_labels(folder.path, add=tags or (), remove=remove or (), note=note)
    if as_json:
        print_json({"run": folder.name, "tags": labels.tags, "note": labels.note})
        return
    print(f"{folder.name}: {' '.join(labels.tags) or 'no tags'}")
    if labels.note:
        print(labels.note)


def compare(
    first: RunName,
    second: RunName,
    chart: Annotated[
        Path | None,
        typer.Option(
            "--chart",
            metavar="FILE",
            help="Draw the runtimes of tasks that both have to this file: .html, .svg or .png.",
        ),
    ] = None,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: time, cost, failures, parameters, and tasks that both have."""
    from bursar.report.run_tables import print_comparison
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.comparison import compare_runs
    from bursar.runs.run_record import read_run

    records = [read_run(RunFolder.open(runs, name)) for name in (first, second)]
    found = compare_runs(*records)
    if chart is not None:
        from bursar.report.charts import SAVED_AS, check_chart_libraries, save_chart

        if chart.suffix not in SAVED_AS:
            raise InputError(f"expected a name that ends in {', '.join(SAVED_AS)}", where="--chart")
        check_chart_libraries()
        from bursar.report.comparison_chart import comparison_chart

        save_chart(comparison_chart(found), chart)
        print_note(f"wrote {chart}")
    if as_json:
        print_json(found)
    else:
        print_comparison(found)


def clean(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Runs to delete. Default: all.", show_default=False
        ),
    ] = None,
    older: Annotated[
        str | None, typer.Option(metavar="TIME", help="Take only runs made longer ago: 30d, 12h.")
    ] = None,
    larger: Annotated[
        str | None, typer.Option(metavar="SIZE", help='Take only runs that are larger: "1 GB".')
    ] = None,
    keep: Annotated[
        int, typer.Option(metavar="N", min=0, help="Keep the latest N runs of each campaign.")
    ] = 0,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Take only runs in this state. Default: finished and failed."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete them. Without, they are only listed.")
    ] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """
    Delete old runs; without --yes, list what would be deleted.

    Runs that go on, that owe money, whose results a run that goes on reuses, and those with the
    tag keep are never deleted.
    """
    from bursar.formats.units import parse_duration, parse_size
    from bursar.report.run_tables import print_cleaning
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.cleaning import CleaningRule, check_rule, decide, delete_run
    from bursar.runs.run_record import summaries

    rule = CleaningRule(
        names=[RunFolder.open(runs, name).name for name in names or ()],
        older=None if older is None else parsed(parse_duration, older, "--older"),
        larger=None if larger is None else parsed(parse_size, larger, "--larger"),
        states=tuple(state) if state else CleaningRule().states,
        keep=keep,
    )
    check_rule(rule)
    rows = summaries(runs, sizes=True)
    sizes = {row["run"]: row["size"] for row in rows}
    found: list[dict[str, Any]] = [
        {"run": name, "size": sizes[name], "kept": reason or None, "deleted": False}
        for name, reason in decide(rows, rule, time.time())
    ]
    errors = []
    for row in found:
        if yes and row["kept"] is None:
            try:
                delete_run(RunFolder.open(runs, row["run"]))
                row["deleted"] = True
            except BursarError as error:
                errors.append(str(error))
    if as_json:
        print_json({"runs": found, "errors": errors})
    else:
        print_cleaning(found, deleted=yes)
    for text in errors:
        print_note(text)
    if errors:
        raise typer.Exit(1)


# ``bursar export``: records of a run that other tools read.

ExportFormat = Literal["wfformat", "ro-crate", "jobs-csv", "parquet", "otel"]
_ENDINGS = {"ro-crate": "crate.zip", "parquet": "parquet"}
"""Formats that are no text, which cannot go to stdout, with the ending of a name."""
_URL = re.compile(r"https?://[^\s<>\"]+")
_AUTHOR = re.compile(r"[^<>\n]*[^<>\s][^<>\n]*(<https?://[^\s<>\"]+>)?")


def export_run(
    run: RunName,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="Format of the record: wfformat (WfFormat 1.5), ro-crate (a Provenance Run Crate, "
            "a folder or .zip), jobs-csv (Batsim's jobs.csv, which evalys reads), parquet (a row "
            "for each attempt) or otel (a trace of OpenTelemetry, as OTLP JSON).",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File or folder to write. Default: stdout; ro-crate and parquet need a name.",
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="Send the trace to this collector (otel), as in http://localhost:4318. "
            "OTEL_EXPORTER_OTLP_HEADERS has headers, such as a token.",
            show_default=False,
        ),
    ] = None,
    author: Annotated[
        str | None,
        typer.Option(
            "--author",
            metavar="NAME",
            help="Person that the crate names: Ann Smith, or 'Ann Smith <https://orcid.org/...>'.",
            show_default=False,
        ),
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="URL",
            help="Licence that the crate states for its data.",
            show_default=False,
        ),
    ] = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files/--no-files",
            help="Copy what the tasks read and made into the crate, or describe it only.",
        ),
    ] = True,
    commands: Annotated[
        bool,
        typer.Option(
            "--commands/--no-commands", help="Tell the command lines of tasks, or leave them out."
        ),
    ] = True,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """
    Write a run's record in a format that other tools read.

    Values of variables, secrets, and what tasks printed are in none of them. The run may be
    unfinished.
    """
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept import exporting
    from bursar.runs.run_record import integrity_warning, read_run

    _check_export(form, output, endpoint, (author, licence), files=files)
    if output is None and endpoint is None and as_json:
        raise InputError("needs a name to write to", where="--json", hint="give one with -o FILE")
    record = read_run(RunFolder.open(runs, run))
    doubt = integrity_warning(record)
    if doubt:
        print_note(doubt)
    exported = exporting.exported_run(record, commands=commands)
    if endpoint is not None:
        sent = exporting.send_trace(exported, endpoint, os.environ)
        print_note(f"sent {sent} spans to {endpoint}")
    elif output is None:
        exporting.WRITERS[form](exported, sys.stdout)
        return
    elif form == "ro-crate":
        exporting.write_crate(
            exported, output, author=author or "", licence=licence or "", files=files
        )
    elif form == "parquet":
        exporting.write_parquet(exported, output)
    else:
        exporting.write_text(form, exported, output)
    if output is not None:
        print_note(f"wrote {output}")
    if as_json:
        print_json(
            {
                "run": exported.name,
                "as": form,
                "output": None if output is None else str(output),
                "endpoint": endpoint,
                "tasks": len(exported.workflow.tasks),
                "attempts": len(exported.attempts),
                "cost_micros": exported.bill.total,
            }
        )


def _check_export(
    form: ExportFormat,
    output: Path | None,
    endpoint: str | None,
    stated: tuple[str | None, str | None],
    *,
    files: bool,
) -> None:
    """
    Check that the options of an export go together.

    Parameters
    ----------
    stated
        Author and licence.

    Raises
    ------
    InputError
        Naming the option at fault.
    """
    author, licence = stated
    for given, option, owner in (
        (endpoint is not None, "--endpoint", "otel"),
        (author is not None, "--author", "ro-crate"),
        (licence is not None, "--license", "ro-crate"),
        (not files, "--no-files", "ro-crate"),
    ):
        if given and form != owner:
            raise InputError(f"goes only with --as {owner}", where=option)
    if endpoint is not None and output is not None:
        raise InputError("goes without --output", where="--endpoint")
    if author is not None and not _AUTHOR.fullmatch(author):
        raise InputError(f'expected NAME or NAME <URL>, got "{author}"', where="--author")
    if licence is not None and not _URL.fullmatch(licence):
        raise InputError(f'expected a URL, got "{licence}"', where="--license")
    if form in _ENDINGS and output is None:
        raise InputError(
            "needs a name to write to", where=f"--as {form}", hint=f"as in -o RUN.{_ENDINGS[form]}"
        )
