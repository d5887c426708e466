"""``bursar results``: what became of tasks at a service."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bursar.cli.options import AsJson, InstanceId, ServiceName
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.remote.async_client import AsyncSession
    from bursar.remote.messages import Result

Form = Literal["table", "json", "ndjson"]


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("results")(show_results)


def show_results(
    instance: InstanceId,
    site: ServiceName = None,
    after: Annotated[
        int, typer.Option(metavar="N", min=0, help="Print only results after this cursor.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for results that are still to come.")
    ] = False,
    as_json: AsJson = False,
    as_lines: Annotated[
        bool, typer.Option("--ndjson", help="Print each result as JSON on a line of its own.")
    ] = False,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write what each task printed to DIR/TASK.stdout and .stderr."
        ),
    ] = None,
) -> None:
    """Print results in the order in which tasks ended. Exit status 1 if a task failed."""
    from bursar.cli.connect import run_until_done
    from bursar.cli.output import print_note

    if as_json and as_lines:
        raise InputError("goes without --json", where="--ndjson")
    form: Form = "json" if as_json else "ndjson" if as_lines else "table"
    failed = run_until_done(
        _show(site, instance, after, follow=follow, form=form, folder=output_dir),
        lambda: print_note("interrupted; the tasks go on"),
    )
    if failed:
        raise typer.Exit(1)


async def _show(
    site: str | None,
    handle: str,
    after: int,
    *,
    follow: bool,
    form: Form,
    folder: Path | None,
) -> int:
    from bursar.cli.connect import connect_service

    async with connect_service(site) as service:
        session = await service.attach(handle)
        return await print_results(session, after, follow=follow, form=form, folder=folder)


async def print_results(
    session: "AsyncSession",
    after: int,
    *,
    follow: bool,
    form: Form,
    folder: Path | None = None,
) -> int:
    """
    Prints results after a cursor as soon as each arrives.

    Parameters
    ----------
    follow
        Whether to wait for further results.
    folder
        Where what the tasks printed is written to; None: nowhere.

    Returns
    -------
    int
        Number of results that are no success.
    """
    import msgspec

    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_views import ResultTable

    table = ResultTable()
    kept: list[Result] = []
    failed, cursor = 0, after
    lines = msgspec.json.Encoder()
    async for batch in session.batches(after, until="done" if follow else "now"):
        cursor = batch[-1].cursor
        failed += sum(result.state != "succeeded" for result in batch)
        if folder is not None:
            await _write_streams(session, batch, folder)
        if form == "table":
            table.print(batch)
        elif form == "ndjson":
            sys.stdout.buffer.write(lines.encode_lines(batch))
            sys.stdout.buffer.flush()
        else:
            kept.extend(batch)
    if form == "json":
        print_json({"instance": session.handle, "results": all_keys(kept), "next": cursor})
    elif form == "table":
        table.end(cursor)
    return failed


async def _write_streams(
    session: "AsyncSession", results: "Iterable[Result]", folder: Path
) -> None:
    from bursar.remote.messages import STREAMS, printed

    for result in results:
        for stream in STREAMS:
            target = folder / f"{result.task}.{stream}"
            data = printed(result, stream)
            if data is None:
                await session.save_output(result.task, stream, target)
                continue
            try:
                folder.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            except OSError as error:
                raise InputError(
                    f"cannot be written: {error.strerror}", where=str(target)
                ) from None
