"""``bursar why`` and ``bursar why-not``: what was decided in a run, and on what grounds."""

from typing import Annotated

import typer

from bursar.cli.options import RUNS, AsJson, RunName, RunsFolder


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("why")(explain_task)
    app.command("why-not")(explain_site)


def explain_task(
    run: RunName,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="Id of the task.", show_default=False)
    ],
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """Explain why a task ran where it did."""
    from bursar.cli.output import print_json
    from bursar.report.decision_tables import print_placements
    from bursar.runs.decision_reasons import why
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
    from bursar.cli.output import print_json
    from bursar.report.decision_tables import print_site_reasons
    from bursar.runs.decision_reasons import ran_at, why_not
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run

    record = read_run(RunFolder.open(runs, run))
    held, ran = why_not(record, site), ran_at(record, site)
    if as_json:
        reasons = [one.to_dict() for one in held]
        print_json({"run": run, "site": site, "tasks": ran, "reasons": reasons})
    else:
        print_site_reasons(site, ran, [one.to_dict() for one in held])
