"""``bursar submit`` hands tasks to a service, and ``bursar results`` says what became of them."""

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bursar.cli.options import (
    AsJson,
    InstanceId,
    ServiceName,
    all_keys,
    parsed,
    print_json,
    print_note,
)
from bursar.cli.service_commands import connect_service, run_until_done
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.remote.async_client import AsyncSession
    from bursar.remote.messages import NewInstance, Result, TaskSpec


# ``bursar results``: what became of tasks at a service.

Form = Literal["table", "json", "ndjson"]


def register_results(app: typer.Typer) -> None:
    """Add ``bursar results`` to the command line."""
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
    """Print results in the order in which tasks ended. The exit status is 1 if a task failed."""

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
    from bursar.remote.messages import STREAMS
    from bursar.remote.output_messages import printed

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


# ``bursar submit``: hands tasks to a service.


def register(app: typer.Typer) -> None:
    """Add ``bursar submit`` to the command line."""
    app.command("submit", context_settings={"allow_interspersed_args": False})(submit)


def submit(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND ARGS...",
            help="Program and arguments of a single task.",
            show_default=False,
        ),
    ] = None,
    site: ServiceName = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="File of many tasks: one JSON document a line (- for stdin), or a campaign.",
        ),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Instance to add the tasks to. Default: a new instance."),
    ] = None,
    label: Annotated[str, typer.Option(help="Label of a new instance.")] = "",
    agreement: Annotated[
        str, typer.Option(metavar="ID", help="Agreement on whose processors a new instance runs.")
    ] = "",
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help='Time from now (2h), or moment ("2026-11-28 18:00"), by which a new instance '
            "should have ended: its odds are forecast.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="What a new instance should come to at most: its odds are forecast.",
        ),
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="File that is sent along, into the task's folder."
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "-o", metavar="NAME", help="File that COMMAND makes and that is kept."
        ),
    ] = None,
    processors: Annotated[
        int, typer.Option("--processors", "-p", min=1, help="Processors that COMMAND holds.")
    ] = 1,
    retries: Annotated[
        int,
        typer.Option(min=0, max=100, help="How often COMMAND is tried again after a failure."),
    ] = 0,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Wall limit of COMMAND, after which it is killed: 90, 10m, 2h."
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            "-w",
            help="Wait and print results as they come; the exit status is 1 if a task failed.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    Send tasks to a service, and print the instance's id. The tasks are on the service's disk when
    this command returns.
    """

    from bursar.formats.units import parse_amount, parse_deadline
    from bursar.model.money import to_micros
    from bursar.remote.messages import NewInstance

    if (file is None) == (not command):
        raise InputError("give a COMMAND, or --file FILE")
    if file is not None and (outputs or limit or retries or processors != 1):
        raise InputError("--output, --processors, --retries and --limit go with a COMMAND only")
    if instance is not None and (label or agreement or deadline or budget):
        raise InputError(
            "--label, --agreement, --deadline and --budget go with a new instance only"
        )
    amount, currency = (None, None) if budget is None else parsed(parse_amount, budget, "--budget")
    now = time.time()
    new = NewInstance(
        label=label,
        agreement=agreement,
        deadline=None
        if deadline is None
        else now + parsed(lambda text: parse_deadline(text, now), deadline, "--deadline"),
        budget=None if amount is None else to_micros(amount),
    )
    sent = _uploads(inputs or [])
    if file is not None:
        work = _read_tasks(file)
        if instance is not None and work.is_workflow:
            # The tasks name each other by their numbers, which count from an instance's first.
            raise InputError("tasks that come after others need a new instance", where="--instance")
        work = _TaskSubmission(tasks=work.tasks, uploads=work.uploads | sent)
    else:
        task = _task_of(command or [], list(sent), outputs or [], processors, limit, retries)
        work = _TaskSubmission(tasks=[task], uploads=sent)
    created: list[str] = [instance] if instance else []
    failed = run_until_done(
        _hand_over(site, work, created, new, currency, wait=wait, as_json=as_json),
        lambda: print_note(
            f"interrupted; what was submitted goes on: bursar results {created[0]}"
            if created
            else "interrupted"
        ),
    )
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskSubmission:
    """
    A submission: tasks, and files by the files' names in the instance.

    Parameters
    ----------
    is_workflow
        Whether tasks of a campaign come after others.
    """

    tasks: "list[TaskSpec]"
    is_workflow: bool = False
    uploads: dict[str, Path] = field(default_factory=dict)


async def _hand_over(
    site: str | None,
    work: _TaskSubmission,
    created: list[str],
    new: "NewInstance",
    currency: str | None,
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit the tasks, wait if asked to, and return the number of tasks seen to fail."""
    from bursar.remote.http_transport import RemoteProblem

    async with connect_service(site) as service:
        is_new = not created
        if is_new:
            counts = currency if currency is None else (await service.client.site()).currency
            if currency != counts:
                raise InputError(
                    f"the service counts in {counts}, got {currency}", where="--budget"
                )
            made = await service.client.create_instance(
                label=new.label,
                agreement=new.agreement,
                deadline=new.deadline,
                budget=new.budget,
            )
            created.append(made.id)
        handle = created[0]
        session = await service.attach(handle)
        before = 0 if is_new else (await session.info()).results
        try:
            for name, path in work.uploads.items():
                await session.upload(name, path, executable=_is_program(path))
            numbers = await session.submit(work.tasks)
        except (InputError, RemoteProblem):
            if is_new:  # nobody knows its id
                await session.destroy()
            raise
        if as_json and not wait:
            first = numbers[0] if numbers else None
            print_json({"instance": handle, "first": first, "tasks": len(numbers)})
        elif not wait:
            print_note(f"{len(numbers)} task{'s' if len(numbers) != 1 else ''} submitted")
            print(handle)
        if not wait:
            return 0
        print_note(f"instance {handle}")
        return await print_results(
            session, before, follow=True, form="json" if as_json else "table"
        )


def _task_of(
    command: list[str],
    inputs: list[str],
    outputs: list[str],
    processors: int,
    limit: str | None,
    retries: int,
) -> "TaskSpec":
    from bursar.formats.units import parse_duration
    from bursar.remote.messages import TaskSpec

    try:
        seconds = None if limit is None else parse_duration(limit)
    except InputError as error:
        raise error.within("--limit") from None
    return TaskSpec(
        command=tuple(command),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        processors=processors,
        limit=seconds,
        retries=retries,
    )


def _uploads(paths: list[Path]) -> dict[str, Path]:
    from bursar.formats.file_text import check_readable

    found: dict[str, Path] = {}
    for path in paths:
        check_readable(path)
        if path.name in found:
            raise InputError(f'two files are called "{path.name}"', where="--input")
        found[path.name] = path
    return found


def _is_program(path: Path) -> bool:
    return os.access(path, os.X_OK)


def _read_tasks(path: Path) -> _TaskSubmission:
    """
    Read tasks from a file: JSON lines or, by any other suffix than theirs, a campaign file.

    A path of ``-`` is stdin and a name without a suffix a file of JSON lines. Only a campaign file
    names files to upload.
    """
    if path.suffix not in ("", ".ndjson", ".jsonl", ".json") and str(path) != "-":
        from bursar.formats.campaign_file import read_campaign
        from bursar.remote.submission import specs_of, uploads_of

        campaign = read_campaign(path)
        for remark in campaign.remarks:
            print_note(remark)
        try:
            tasks = list(specs_of(campaign))
            return _TaskSubmission(
                tasks=tasks,
                is_workflow=any(task.after for task in tasks),
                uploads=uploads_of(campaign),
            )
        except InputError as error:
            raise error.within(str(path)) from None
    return _TaskSubmission(tasks=_read_lines(path))


def _read_lines(path: Path) -> "list[TaskSpec]":
    import msgspec

    from bursar.remote.messages import TaskSpec

    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    decoder = msgspec.json.Decoder(TaskSpec)
    tasks: list[TaskSpec] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            tasks.append(decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = str(error)
            raise InputError(reason[:1].lower() + reason[1:], where=f"{path}:{number}") from None
    if not tasks:
        raise InputError("holds no tasks", where=str(path))
    return tasks
