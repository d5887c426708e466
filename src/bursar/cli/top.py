"""``bursar top``: a service at a glance."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import AsJson, ServiceName

if TYPE_CHECKING:
    from bursar.remote.admin_messages import Overview
    from bursar.remote.async_client import AsyncServiceClient


def register(app: typer.Typer) -> None:
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
