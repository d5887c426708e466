"""``bursar watch``: an instance at a service as it goes on."""

import typer

from bursar.cli.options import AsJson, InstanceId, ServiceName


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("watch")(watch)


def watch(instance: InstanceId, site: ServiceName = None, as_json: AsJson = False) -> None:
    """Watch an instance until all its tasks have ended. Ctrl-C leaves them running."""
    from bursar.cli.connect import run_until_done
    from bursar.cli.output import say

    failed = run_until_done(
        _watch(site, instance, as_json=as_json), lambda: say("interrupted; the tasks go on")
    )
    if failed:
        raise typer.Exit(1)


async def _watch(site: str | None, handle: str, *, as_json: bool) -> int:
    """How many tasks were no success."""
    from contextlib import aclosing

    from bursar.cli.connect import connect_service
    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_progress import InstanceProgress, ended

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
