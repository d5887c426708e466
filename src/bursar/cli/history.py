"""
Commands of the history.

``bursar history`` lists, explains, exports, imports and forgets what ended tasks took;
``bursar forecasts`` shows how forecasts of runs came out.
"""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from bursar.cli.options import AsJson, HistoryFile, parsed, print_json, print_note
from bursar.model.errors import BursarError, InputError, spelling_hint

if TYPE_CHECKING:
    from bursar.history.selection import Selection
    from bursar.history.store import History

Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Take only tasks of this kind.")
]
Execution = Annotated[
    str | None,
    typer.Option(
        "--execution",
        metavar="NAME",
        help="Take only tasks of this execution: the name of a run, or the name that "
        "bursar history show lists.",
    ),
]
Before = Annotated[
    str | None,
    typer.Option(
        "--before",
        metavar="TIME",
        help="Take only tasks that began before this date (2026-11-01), or longer ago than "
        "this (90d).",
    ),
]


def register(app: typer.Typer) -> None:
    """Add ``bursar history`` to the command line."""
    history = typer.Typer(
        no_args_is_help=True,
        help="Look at what ended tasks took, import it from other tools, export and forget it.",
    )
    for name, command in (
        ("list", list_kinds),
        ("show", show_kind),
        ("export", export),
        ("import", import_files),
        ("forget", forget),
    ):
        history.command(name)(command)
    app.add_typer(history, name="history")
    app.command("forecasts")(show_forecasts)


def show_forecasts(
    campaign: Annotated[
        str | None,
        typer.Option("--campaign", metavar="NAME", help="Count runs of this campaign alone."),
    ] = None,
    site: Annotated[
        str | None, typer.Option("--site", metavar="NAME", help="Count runs at this site alone.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Draw the calibration to this file: .html, .svg or .png.",
        ),
    ] = None,
    history: HistoryFile = None,
    as_json: AsJson = False,
) -> None:
    """
    Show how forecasts of runs came out.

    The tables say how often they held, and how far they missed: what was forecast when 0, 10, 25,
    50 and 75 % of a run's tasks had ended is compared with the end and the cost that it came to.
    """
    from bursar.report.forecast_views import (
        calibration_chart,
        forecasts_to_dict,
        print_forecasts,
    )

    opened = _opened(history)
    every = opened.forecasts()
    for option, wanted, names in (
        ("--campaign", campaign, {one.campaign for one in every}),
        ("--site", site, {name for one in every for name in one.forecast.sites}),
    ):
        if wanted is not None and wanted not in names:
            hint = spelling_hint(wanted, sorted(names))
            raise InputError(f'no forecast is of "{wanted}"', where=option, hint=hint)
    chosen = [
        one
        for one in every
        if campaign in (None, one.campaign) and (site is None or site in one.forecast.sites)
    ]
    if save is not None:
        from bursar.report.charts import SAVED_AS, check_chart_libraries, save_chart

        if save.suffix not in SAVED_AS:
            raise InputError(f"expected a name that ends in {', '.join(SAVED_AS)}", where="--save")
        check_chart_libraries()
        save_chart(calibration_chart(chosen), save)
        print_note(f"wrote {save}")
    if as_json:
        print_json({"history": str(opened.path), **forecasts_to_dict(chosen)})
    else:
        print_forecasts(chosen, str(opened.path))


def list_kinds(history: HistoryFile = None, as_json: AsJson = False) -> None:
    """List the kinds of tasks with their run times, failures and sites."""
    from bursar.history.summary import summarise_kinds
    from bursar.report.history_views import print_kinds

    opened = _opened(history)
    rows = summarise_kinds(opened.observations_of(opened.kinds()))
    if as_json:
        print_json({"history": str(opened.path), "kinds": rows})
    else:
        print_kinds(rows, str(opened.path))


def show_kind(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of tasks.")],
    history: HistoryFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain what is known of a kind of tasks, by site and by execution."""
    from bursar.history.summary import describe_kind
    from bursar.report.history_views import print_kind

    opened = _opened(history)
    columns = opened.observations_of([kind])
    if not len(columns):
        raise _unknown_kind(opened, kind)
    found = describe_kind(columns)
    if as_json:
        print_json(found)
    else:
        print_kind(found)


def export(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to this file; one that ends in .csv is a table. Default: JSON lines to "
            "stdout.",
        ),
    ] = None,
    kind: Kind = None,
    execution: Execution = None,
    before: Before = None,
    history: HistoryFile = None,
    as_json: AsJson = False,
) -> None:
    """
    Export observations as JSON lines or CSV, which bursar history import reads.

    With --json, tell the file and the number of observations, which needs --output.
    """
    from bursar.formats.file_text import replacing
    from bursar.history.importing.exported import to_csv, to_json_lines

    opened = _opened(history)
    selection = _selection(opened, kind, execution, before)
    if output is None:
        if as_json:
            raise InputError("goes with --output: stdout gets the observations", where="--json")
        for line in to_json_lines(opened.rows(selection)):
            sys.stdout.write(line + "\n")
        return
    count = 0
    is_table = ".csv" in output.suffixes
    with replacing(output) as file:
        rows = opened.rows(selection)
        for line in to_csv(rows) if is_table else to_json_lines(rows):
            file.write(line + "\n")
            count += 1
    if as_json:
        print_json({"output": str(output), "observations": count})
    else:
        print_note(f"wrote {count} observations to {output}")


def import_files(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[FORMAT] FILE...",
            help="Logs, or folders of runs and Snakemake projects. FORMAT is bursar, hyperqueue, "
            "nextflow, parallel, run, slurm, snakemake, snakemake-metadata, swf or wfformat; "
            "without, each file is recognised.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="Kind of all tasks. Default: as the log says."),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option("--site", metavar="SITE", help="Site of all tasks. Default: as the log says."),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", metavar="SPEED", help="Speed of that site beside speed 1. Default: 1."
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help="Leave out rows and files that cannot be read. Without, they are refused, and "
            "nothing is imported.",
        ),
    ] = False,
    history: HistoryFile = None,
    as_json: AsJson = False,
) -> None:
    """
    Import what other tools have recorded of tasks that ended.

    A log can be imported again when it has grown: what is known already is replaced.
    """
    from bursar.history.importing.formats import LogFormat
    from bursar.runs.recording.imports import ImportTerms, add_log, read_all

    formats = get_args(LogFormat)
    form: Any = None
    if words[0] in formats and len(words) > 1:
        form, *words = words
    if speed is not None and not 0 < speed < 1e9:
        raise InputError(f"must be positive, got {speed:g}", where="--speed")
    if kind is not None and not kind.strip():
        raise InputError("expected a name", where="--kind")
    for word in words:
        if not Path(word).exists():
            hint = spelling_hint(word, formats) if word == words[0] and len(words) > 1 else None
            raise InputError("does not exist", where=word, hint=hint)
    opened = _opened(history)
    terms = ImportTerms(format=form, kind=kind, site=site, speed=speed)
    logs = read_all([Path(word) for word in words], terms, skip_bad=skip_bad)
    rows: list[dict[str, Any]] = []
    for path, found, log in logs:
        new = add_log(opened, log)
        rows.append(
            {
                "file": str(path),
                "format": found,
                "observations": len(log.observations),
                "new": new,
                "passed_over": dict(log.passed_over),
                "bad": [str(problem) for problem in log.problems],
            }
        )
    if as_json:
        print_json({"history": str(opened.path), "files": rows})
        return
    for row in rows:
        print(
            f"{row['file']}: {row['observations']} observations ({row['format']}), {row['new']} new"
        )
        for reason, count in row["passed_over"].items():
            print(f"  passed over: {count} {reason}")
        if row["bad"]:
            print(f"  skipped: {len(row['bad'])} bad, the first is {row['bad'][0]}")


def forget(
    kind: Kind = None,
    execution: Execution = None,
    before: Before = None,
    everything: Annotated[bool, typer.Option("--all", help="All observations.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Forget them. Without, they are only counted.")
    ] = False,
    history: HistoryFile = None,
    as_json: AsJson = False,
) -> None:
    """Forget observations; without --yes, count what would be forgotten."""
    from bursar.report.history_views import print_forgotten

    opened = _opened(history)
    if everything != (kind is None and execution is None and before is None):
        raise InputError("give --kind, --execution or --before, or else --all")
    selection = _selection(opened, kind, execution, before)
    counts = opened.forget(selection) if yes else opened.count(selection)
    if as_json:
        print_json({"history": str(opened.path), "kinds": counts, "forgotten": yes})
    else:
        print_forgotten(counts, deleted=yes)


def _opened(chosen: str | None) -> "History":
    from bursar.runs.recording.user_history import open_history

    opened = open_history(chosen or "")
    if opened is None:
        raise BursarError("no history is kept: --history or BURSAR_HISTORY says none")
    return opened


def _selection(
    history: "History", kind: str | None, execution: str | None, before: str | None
) -> "Selection":
    from bursar.formats.units import parse_duration, parse_moment
    from bursar.history.selection import Selection

    moment = None
    if before is not None:
        now = time.time()
        try:
            moment = now - parse_duration(before)
        except InputError:
            moment = parsed(lambda text: parse_moment(text, now), before, "--before")
    if kind is not None and kind not in history.kinds():
        raise _unknown_kind(history, kind)
    return Selection(kind=kind, execution=execution, before=moment)


def _unknown_kind(history: "History", kind: str) -> InputError:
    known = history.kinds()
    hint = spelling_hint(kind, known) or "bursar history list shows the kinds"
    return InputError(f'no task of the kind "{kind}" has ended', where=str(history.path), hint=hint)
