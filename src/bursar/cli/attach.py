"""``bursar attach`` and ``bursar stop``: runs that another process carries out."""

from typing import Annotated

import typer

from bursar.cli.options import RUNS, AsJson, RunName, RunsFolder


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("attach")(attach_run)
    app.command("stop")(stop)


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

    Prints the run's summary in the end, and has the exit status that the run has.
    """
    from bursar.cli.output import print_json, print_note
    from bursar.report.progress import RunProgress
    from bursar.report.tables import print_summary
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
    once. The run can be resumed.
    """
    from bursar.cli.output import print_json, print_note
    from bursar.runs.detached_runs import stop_run
    from bursar.runs.folder import RunFolder

    folder = RunFolder.open(runs, run)
    process = stop_run(folder)
    if as_json:
        print_json({"run": folder.name, "process": process})
    else:
        print_note(
            f"asked process {process} to stop; go on with: bursar run --resume {folder.name}"
        )
