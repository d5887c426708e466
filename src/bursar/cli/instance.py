"""``bursar watch``, ``instance`` and ``top``: a service at a glance, its instances and files."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import AsJson, InstanceId, ServiceName

if TYPE_CHECKING:
    from bursar.remote.admin_messages import Overview
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.remote.messages import FileInfo, InstanceInfo


# ``bursar top``: a service at a glance.


def register_top(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("top")(show_top)


def show_top(
    site: ServiceName = None,
    once: Annotated[bool, typer.Option("--once", help="Show the service once and exit.")] = False,
    every: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", min=0.2, help="Seconds between two updates."),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show a service live: instances, workers, throughput and spending."""
    from bursar.cli.connect import run_until_done

    run_until_done(_show(site, once=once, every=every, as_json=as_json), lambda: None)


async def _show(site: str | None, *, once: bool, every: float, as_json: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from bursar.cli.connect import connect_service
    from bursar.cli.output import all_keys, print_json

    console = Console()
    async with connect_service(site) as service:
        view = _ServiceView(service.client)
        if as_json:
            print_json(all_keys(await view.as_dict()))
        elif once or not console.is_terminal:
            console.print(await view.panel())
        else:
            first = await view.panel(console.size.height)
            with Live(first, console=console, screen=True, auto_refresh=False) as live:
                while True:
                    await asyncio.sleep(every)
                    live.update(await view.panel(console.size.height), refresh=True)


class _ServiceView:
    """Shows a service to its administrator as a whole, and to other users what is their own."""

    def __init__(self, client: "AsyncServiceClient") -> None:
        self._client = client
        self._before: Overview | None = None

    async def as_dict(self) -> Any:
        """For scripts."""
        seen = await self._overview()
        if seen is not None:
            return seen
        return {
            "instances": await self._client.instances(),
            "account": await self._client.account(),
        }

    async def panel(self, height: int | None = None) -> Any:
        """
        Ask the service and return a table for people; its rates cover the time since the last call.

        Parameters
        ----------
        height
            Lines of the screen, to which the table is cut; None: the whole table.
        """
        from bursar.report.service_views import overview_panel, own_panel, rates_between

        name = self._client.access.name
        seen = await self._overview()
        if seen is None:
            instances, account = await self._client.instances(), await self._client.account()
            return own_panel(name, instances, account, height)
        rates = rates_between(self._before, seen) if self._before is not None else None
        self._before = seen
        return overview_panel(name, seen, rates, height)

    async def _overview(self) -> "Overview | None":
        """None: one is no administrator."""
        from bursar.remote.problems import RemoteProblem

        try:
            return await self._client.overview()
        except RemoteProblem as problem:
            if problem.status != 403:
                raise
            return None


# ``bursar watch`` and ``bursar instance``: instances at a service, their files and their ends.

app = typer.Typer(
    name="instance", no_args_is_help=True, help="Instances at a service: list, cancel, fetch."
)


def register(root: typer.Typer) -> None:
    """Adds this module's commands."""
    root.command("watch")(watch)
    root.add_typer(app)


@app.command("list")
def list_instances(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List your instances."""
    from bursar.cli.connect import connect_service
    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_views import print_instances

    async def ask() -> "list[InstanceInfo]":
        async with connect_service(site) as service:
            return await service.client.instances()

    found = asyncio.run(ask())
    if as_json:
        print_json({"instances": all_keys(found)})
    else:
        print_instances(found)


@app.command("cancel")
def cancel(
    instance: InstanceId,
    tasks: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[TASK...]", help="Task numbers. Default: all tasks.", show_default=False
        ),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Cancel tasks: waiting ones do not start, running ones are killed."""
    from bursar.cli.connect import connect_service
    from bursar.cli.output import print_json, print_note

    async def ask() -> int:
        async with connect_service(site) as service:
            return await service.client.cancel(instance, tasks or None)

    count = asyncio.run(ask())
    if as_json:
        print_json({"cancelled": count})
    else:
        print_note(f"{count} cancelled")


@app.command("destroy")
def destroy(instance: InstanceId, site: ServiceName = None) -> None:
    """Destroy an instance: kill its tasks, delete its results and files."""
    from bursar.cli.connect import connect_service

    async def ask() -> None:
        async with connect_service(site) as service:
            await service.client.destroy(instance)

    asyncio.run(ask())


@app.command("files")
def list_files(instance: InstanceId, site: ServiceName = None, as_json: AsJson = False) -> None:
    """List an instance's files: inputs that were sent and outputs that its tasks made."""
    from bursar.cli.connect import connect_service
    from bursar.cli.output import print_json

    async def ask() -> "list[FileInfo]":
        async with connect_service(site) as service:
            return await service.client.files(instance)

    found = asyncio.run(ask())
    if as_json:
        print_json({"files": found})
        return
    for file in found:
        typer.echo(f"{file.size:>14,}  {file.name}")


@app.command("fetch")
def fetch(
    instance: InstanceId,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]", help="Names of files. Default: all files.", show_default=False
        ),
    ] = None,
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Folder to write them to.")
    ] = Path(),
    site: ServiceName = None,
) -> None:
    """Fetch an instance's files."""
    from bursar.cli.connect import connect_service
    from bursar.cli.output import print_note
    from bursar.remote.transfers import local_path

    async def ask() -> None:
        async with connect_service(site) as service:
            client = service.client
            wanted = names or [file.name for file in await client.files(instance)]
            for name in wanted:
                target = local_path(into, name)
                size = await client.download(instance, name, target)
                print_note(f"{target}: {size:,} bytes")

    asyncio.run(ask())


def watch(instance: InstanceId, site: ServiceName = None, as_json: AsJson = False) -> None:
    """Watch an instance until all its tasks have ended. Ctrl-C leaves them running."""
    from bursar.cli.connect import run_until_done
    from bursar.cli.output import print_note

    failed = run_until_done(
        _watch(site, instance, as_json=as_json), lambda: print_note("interrupted; the tasks go on")
    )
    if failed:
        raise typer.Exit(1)


async def _watch(site: str | None, handle: str, *, as_json: bool) -> int:
    """Return the number of tasks that did not succeed."""
    from contextlib import aclosing

    from bursar.cli.connect import connect_service
    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_views import InstanceProgress, ended

    async with connect_service(site) as service:
        info = await service.client.instance(handle)
        with InstanceProgress() as progress:
            progress.update(info)
            async with aclosing(service.client.events(handle, info.results)) as changes:
                while ended(info) < info.counts.total:
                    info = await anext(changes)
                    progress.update(info)
            progress.end(info)
    if as_json:
        print_json(all_keys(info))
    return info.counts.total - info.counts.succeeded
