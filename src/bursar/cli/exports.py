"""``bursar export`` and ``bursar instance export``: records that other tools read."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bursar.cli.options import (
    RUNS,
    AsJson,
    InstanceId,
    RunName,
    RunsFolder,
    ServiceName,
    print_json,
    print_note,
)
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.report.exports.exported_run import ExportedRun

ExportFormat = Literal["wfformat", "ro-crate", "jobs-csv", "parquet", "otel"]
_ENDINGS = {"ro-crate": "crate.zip", "parquet": "parquet"}
"""Formats that are no text, which cannot go to stdout, with the ending of a name."""
_URL = re.compile(r"https?://[^\s<>\"]+")
_AUTHOR = re.compile(r"[^<>\n]*[^<>\s][^<>\n]*(<https?://[^\s<>\"]+>)?")

Form = Annotated[
    ExportFormat,
    typer.Option(
        "--as",
        metavar="FORMAT",
        help="Format of the record: wfformat (WfFormat 1.5), ro-crate (a Provenance Run Crate, "
        "a folder or .zip), jobs-csv (Batsim's jobs.csv, which evalys reads), parquet (a row "
        "for each attempt) or otel (a trace of OpenTelemetry, as OTLP JSON).",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="File or folder to write. Default: stdout; ro-crate and parquet need a name.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Send the trace to this collector (otel), as in http://localhost:4318. "
        "OTEL_EXPORTER_OTLP_HEADERS has headers, such as a token.",
        show_default=False,
    ),
]
Author = Annotated[
    str | None,
    typer.Option(
        "--author",
        metavar="NAME",
        help="Person that the crate names: Ann Smith, or 'Ann Smith <https://orcid.org/...>'.",
        show_default=False,
    ),
]
Licence = Annotated[
    str | None,
    typer.Option(
        "--license",
        metavar="URL",
        help="Licence that the crate states for its data.",
        show_default=False,
    ),
]
Commands = Annotated[
    bool,
    typer.Option(
        "--commands/--no-commands", help="Tell the command lines of tasks, or leave them out."
    ),
]


def register(app: typer.Typer) -> None:
    """Add ``bursar export`` to the command line."""
    app.command("export")(export_run)


def register_instances(app: typer.Typer) -> None:
    """Add ``export`` to the commands of ``bursar instance``."""
    app.command("export")(export_instance)


def export_run(
    run: RunName,
    form: Form,
    output: Output = None,
    endpoint: Endpoint = None,
    author: Author = None,
    licence: Licence = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files/--no-files",
            help="Copy what the tasks read and made into the crate, or describe it only.",
        ),
    ] = True,
    commands: Commands = True,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """
    Write a run's record in a format that other tools read.

    Values of variables, secrets, and what tasks printed are in none of them. The run may be
    unfinished.
    """
    from bursar.runs.folder import RunFolder
    from bursar.runs.kept.exporting import exported_run
    from bursar.runs.run_record import integrity_warning, read_run

    _check_export(form, output, endpoint, (author, licence), files=files, as_json=as_json)
    record = read_run(RunFolder.open(runs, run))
    doubt = integrity_warning(record)
    if doubt:
        print_note(doubt)
    _write(
        exported_run(record, commands=commands),
        form,
        output,
        endpoint,
        (author or "", licence or ""),
        files=files,
        as_json=as_json,
    )


def export_instance(
    instance: InstanceId,
    form: Form,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="The campaign that was submitted: it tells the order of the tasks, their "
            "processors and files, which a service does not keep. Default: none waits for "
            "another, and each holds one processor.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    endpoint: Endpoint = None,
    author: Author = None,
    licence: Licence = None,
    commands: Commands = True,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """
    Write an instance's record in a format that other tools read.

    It has the last attempt of each task that has ended, and not what tasks printed. The instance
    may be unfinished.
    """
    from bursar.cli.service_commands import ask_service
    from bursar.formats.campaign_file import read_campaign
    from bursar.report.exports.exported_instance import exported_instance

    if TYPE_CHECKING:
        from bursar.remote.async_client import AsyncServiceClient
        from bursar.remote.messages import InstanceInfo, Result, SiteInfo, TaskInfo

    _check_export(form, output, endpoint, (author, licence), files=True, as_json=as_json)
    campaign = None if file is None else read_campaign(file)

    async def ask(
        client: "AsyncServiceClient",
    ) -> "tuple[InstanceInfo, list[TaskInfo], list[Result], SiteInfo]":
        results = [one async for batch in client.batches(instance, 0, until="now") for one in batch]
        tasks = [one async for one in client.tasks(instance)]
        return await client.instance(instance), tasks, results, await client.site()

    info, tasks, results, facts = ask_service(site, ask)
    if info.kept_from:
        print_note(f"{info.kept_from} results were forgotten at a client's word, and are left out")
    if any(one.sealed for one in results):
        print_note("sealed tasks are told without their ends, which the service cannot read")
    _write(
        exported_instance(info, tasks, results, facts, campaign, commands=commands),
        form,
        output,
        endpoint,
        (author or "", licence or ""),
        files=False,
        as_json=as_json,
    )


def _write(
    exported: "ExportedRun",
    form: ExportFormat,
    output: Path | None,
    endpoint: str | None,
    stated: tuple[str, str],
    *,
    files: bool,
    as_json: bool,
) -> None:
    """
    Write an export, or send it.

    Parameters
    ----------
    stated
        Author and licence; empty: none is.
    """
    from bursar.runs.kept import exporting

    author, licence = stated
    if endpoint is not None:
        sent = exporting.send_trace(exported, endpoint, os.environ)
        print_note(f"sent {sent} spans to {endpoint}")
    elif output is None:
        exporting.WRITERS[form](exported, sys.stdout)
        return
    elif form == "ro-crate":
        exporting.write_crate(exported, output, author=author, licence=licence, files=files)
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
    as_json: bool,
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
    if output is None and endpoint is None and as_json:
        raise InputError("needs a name to write to", where="--json", hint="give one with -o FILE")
