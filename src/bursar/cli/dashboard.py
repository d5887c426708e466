"""``bursar dashboard``: the page of a user's runs, in the browser."""

import asyncio
import contextlib
import os
import ssl
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from bursar.cli.options import RUNS, RunsFolder, print_note
from bursar.model.errors import InputError

DEFAULT_PORT = 8470
"""Port that is taken where it is free, so that a bookmark of the page stays good."""


def register(app: typer.Typer) -> None:
    """Add ``bursar dashboard`` to the command line."""
    app.command("dashboard")(show_dashboard)


def show_dashboard(
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on. One that other machines reach needs --certificate, --key "
            f"and --token. Default: 127.0.0.1:{DEFAULT_PORT}, or any free port.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for TLS, PEM.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key of the certificate, PEM.")
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token to sign in with. Default: a new token, which the browser "
            "gets.",
        ),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser; print a code to sign in with.")
    ] = False,
    runs: RunsFolder = RUNS,
) -> None:
    """
    Show the runs of a folder in the browser, live. Ctrl-C ends the page; runs go on.

    The page shows progress, spending, forecasts, schedule, tasks and their output, and changes
    goals, stops and resumes runs, and begins new ones. Only this machine can reach the page unless
    --listen says otherwise.
    """
    from bursar.dashboard.access import PageAccess
    from bursar.dashboard.server import is_free, serve_dashboard
    from bursar.service.config import Address
    from bursar.service.config_toml import read_address

    if listen is None:
        address = Address("127.0.0.1", DEFAULT_PORT)
        if not is_free(address.host, address.port):
            address = Address(address.host, 0)
    else:
        try:
            address = read_address(listen)
        except InputError as error:
            raise error.within("--listen") from None
    tls = _tls(certificate, key)
    if not address.is_loopback:
        for option, value in (("--certificate", certificate), ("--key", key), ("--token", token)):
            if value is None:
                raise InputError(f"other machines can reach {address}: add {option} FILE")
    access = PageAccess(None if token is None else _read_token(token))
    if not runs.exists():
        print_note(f"{runs} does not exist yet: the page is empty until the first run")

    with contextlib.ExitStack() as opened:

        def ready(page: str) -> None:
            print_note(f"{page} shows the runs of {runs}; Ctrl-C ends the page, and runs go on")
            if token is not None and not address.is_loopback:
                return
            if no_browser or not _open(page, access.new_code(), opened):
                print_note(f"open it and sign in with this code: {access.new_code()}")

        names = _names_in(certificate)
        asyncio.run(serve_dashboard(runs, access, address.host, address.port, tls, names, ready))


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("--certificate and --key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"cannot be used: {error}", where=f"{certificate}, {key}") from None
    return context


def _names_in(certificate: Path | None) -> tuple[str, ...]:
    """Return the names of the machine in its certificate."""
    if certificate is None:
        return ()
    from bursar.sealing.certificates import host_names_of, read_certificates

    (own, *_) = read_certificates(certificate.read_bytes())
    return tuple(host_names_of(own))


def _read_token(path: Path) -> str:
    from bursar.remote.access import read_token

    return read_token(path)


def _open(page: str, code: str, opened: contextlib.ExitStack) -> bool:
    """Open the page in a browser; return whether there is one."""
    import webbrowser

    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.name == "nt"):
        return False
    from bursar.dashboard.access import write_opening

    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="bursar-dashboard-"))
    file = Path(folder) / "open.html"
    write_opening(file, page, code)
    return webbrowser.open(file.as_uri())
