"""Commands for runs that one keeps: ``logs``, ``tag``, ``compare`` and ``clean``."""

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
