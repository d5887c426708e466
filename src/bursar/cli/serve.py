"""``bursar serve``: makes this machine, or a cluster, a site that others use and buy from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bursar.cli.options import AsJson

if TYPE_CHECKING:
    from bursar.service.runner import StartedService


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("serve")(serve)


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            envvar="BURSAR_SERVICE",
            help="Service file. Default: serve this machine to its own users.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on, in place of the file's; port 0 takes any free port.",
        ),
    ] = None,
    drain_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="On shutdown, wait this long for running tasks; after that they go on "
            "with their workers.",
        ),
    ] = "0s",
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, print what is wrong with it, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    Serve this machine, or a cluster, to users over HTTP. Ctrl-C ends it; tasks that run go on
    with their workers, and the service finds them when it is started again.
    """
    import asyncio
    import os

    from bursar.cli.output import print_json, print_note
    from bursar.formats.units import parse_duration
    from bursar.model.errors import InputError
    from bursar.service.config_toml import PREFIX, default_service, read_service
    from bursar.service.logs import start_logging
    from bursar.service.runner import run_service

    try:
        seconds = parse_duration(drain_timeout)
    except InputError as error:
        raise error.within("--drain-timeout") from None
    environment = dict(os.environ)
    if listen is not None:
        environment[f"{PREFIX}SERVICE__LISTEN"] = listen
    try:
        read = default_service(environment) if config is None else read_service(config, environment)
    except InputError as error:
        if listen is not None and error.where == f"{PREFIX}SERVICE__LISTEN":
            raise InputError(error.message, where="--listen", hint=error.hint) from None
        raise
    if check:
        if as_json:
            print_json({"name": read.name, "folder": str(read.folder), "listen": str(read.listen)})
        else:
            print_note(f"{read.name}: nothing is wrong with it")
        return
    start_logging(read.log.level)

    def announce(started: "StartedService") -> None:
        fields = {
            "url": started.url,
            "folder": str(read.folder),
            "security": read.security,
            "processors": read.site.processors,
            "admin_token_file": str(started.admin_token) if started.admin_token else None,
            "repaired": list(started.repaired),
        }
        if as_json:
            print_json(fields)
            return
        print_note(f"{read.name} serves {read.site.processors} processors at {started.url}")
        for line in started.repaired:
            print_note(f"repaired: {line}")
        if started.admin_token is not None:
            print_note(f"an administrator's token is in {started.admin_token}")

    asyncio.run(run_service(read, file=config, drain_seconds=seconds, on_start=announce))
