"""Commands of who offers a service: ``bursar serve``, ``tokens`` and ``certs``."""

import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bursar.cli.options import AsJson, ServiceName, print_json, print_note
from bursar.cli.service_commands import ask_service

if TYPE_CHECKING:
    from bursar.remote.admin_messages import TokenInfo
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.service.identity.authority import (
        AuthorityFolder,
        CertificateRecord,
        IssuedCertificate,
    )
    from bursar.service.runner import StartedService


# ``bursar serve``: makes this machine, or a cluster, a site that others use and buy from.


def register_serve(app: typer.Typer) -> None:
    """Add ``bursar serve`` to the command line."""
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
    exchange: Annotated[
        bool,
        typer.Option(
            "--exchange",
            help="Hold an exchange, too: users sell processors of services to each other. "
            "The table market.exchange of the service file says how.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, print what is wrong with it, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """
    Serve this machine, or a cluster, to users over HTTP. Ctrl-C ends the service; tasks that run
    go on with their workers, and the service finds them when started again.
    """
    import asyncio
    import os

    from bursar.formats.units import parse_duration
    from bursar.model.errors import InputError
    from bursar.report.tables import span
    from bursar.service.config_toml import PREFIX, default_service, read_service, with_exchange
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
    if exchange:
        read = with_exchange(read)
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
            "exchange": read.selling.exchange is not None,
            "admin_token_file": str(started.admin_token) if started.admin_token else None,
            "repaired": list(started.repaired),
        }
        if as_json:
            print_json(fields)
            return
        print_note(f"{read.name} serves {read.site.processors} processors at {started.url}")
        if (held := read.selling.exchange) is not None:
            print_note(f"exchange: {held.rule}, cleared every {span(held.every)}")
        for line in started.repaired:
            print_note(f"repaired: {line}")
        if started.admin_token is not None:
            print_note(f"an administrator's token is in {started.admin_token}")

    asyncio.run(run_service(read, file=config, drain_seconds=seconds, on_start=announce))


# ``bursar tokens``: who may come in by a token, for a service's administrators.


class TokenScope(StrEnum):
    """A scope that a token allows."""

    SUBMIT = "submit"
    READ = "read"
    SELL = "sell"
    ADMIN = "admin"


_SCOPES = [TokenScope.SUBMIT, TokenScope.READ]


def register_tokens(app: typer.Typer) -> None:
    """Add ``bursar tokens`` to the command line."""
    tokens = typer.Typer(
        no_args_is_help=True,
        help="Make and revoke tokens of a service's users. This needs a token of the scope admin; "
        "bursar serve writes the first one into its folder.",
    )
    for name, command in (("create", create), ("list", list_tokens), ("revoke", revoke_token)):
        tokens.command(name)(command)
    app.add_typer(tokens, name="tokens")


def create(
    user: Annotated[
        str, typer.Argument(metavar="USER", help="Name of the user.", show_default=False)
    ],
    scope: Annotated[
        list[TokenScope],
        typer.Option(
            "--scope",
            help="Scope that the token allows; repeat for several. No scope implies another.",
        ),
    ] = _SCOPES,
    days: Annotated[
        float | None,
        typer.Option(metavar="N", help="Validity in days, at most 366. Default: 30."),
    ] = None,
    label: Annotated[
        str, typer.Option(metavar="TEXT", help="Label of the token, which `list` shows.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the token, readable by its owner only. Default: the token is "
            "printed once.",
        ),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Make a token."""
    from bursar.model.errors import InputError
    from bursar.remote.admin_messages import NewToken
    from bursar.service.identity.issuing import write_file

    if days is not None and not 0 < days <= 366:
        raise InputError(f"expected more than 0 and at most 366 days, got {days:g}", where="--days")
    if out is not None and out.exists():
        raise InputError("exists already", where=str(out))
    new = NewToken(
        user=user,
        scopes=[each.value for each in dict.fromkeys(scope)],
        seconds=None if days is None else days * 86_400,
        label=label,
    )

    async def make_token(client: "AsyncServiceClient") -> "TokenInfo":
        made = await client.create_token(new)
        try:
            if out is not None:
                write_file(out, f"{made.token}\n".encode())
        except BaseException:
            await client.revoke_token(made.id)  # nobody knows it
            raise
        return made

    made = ask_service(site, make_token)
    if as_json:
        print_json(
            {**_token_fields(made), **({"file": str(out)} if out else {"token": made.token})}
        )
        return
    if out is None:
        print(made.token)
    where = f" in {out}" if out else "; it is not shown again"
    print_note(f"token {made.id} of {made.user}, good until {_minute(made.expires)}{where}")


def list_tokens(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List valid tokens, without their secrets."""

    found = ask_service(site, lambda client: client.tokens())
    if as_json:
        print_json({"tokens": [_token_fields(token) for token in found]})
    else:
        _print_tokens(found)


def revoke_token(
    token: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Id of the token, as `list` shows it.", show_default=False
        ),
    ],
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token: the service refuses it from now on."""
    from bursar.model.errors import InputError

    if "_" in token:
        # What was given is not repeated: it would be the secret.
        raise InputError("expected the id of a token, got a token", hint="bursar tokens list")

    ask_service(site, lambda client: client.revoke_token(token))
    if as_json:
        print_json({"revoked": token})
    else:
        print_note(f"token {token} is revoked")


def _token_fields(token: "TokenInfo") -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "scopes": token.scopes,
        "expires": token.expires,
        "label": token.label,
    }


def _print_tokens(tokens: "list[TokenInfo]") -> None:
    from rich.console import Console

    from bursar.report.tables import table_of

    rows = [
        (token.id, token.user, " ".join(token.scopes), _minute(token.expires), token.label)
        for token in tokens
    ]
    table = table_of("id", "user", "scopes", "until", "label", rows=rows)
    Console().print(table if tokens else "no tokens")


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


# ``bursar certs``: a private authority, and certificates for servers, users and workers.

Folder = Annotated[
    Path,
    typer.Option(
        "--folder",
        metavar="DIR",
        envvar="BURSAR_CERTS",
        help="Folder of the certificate authority; keep it off the machines that the "
        "authority certifies.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder for the files. Default: --folder."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
Days = Annotated[float, typer.Option("--days", metavar="N", help="Validity in days.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name in the certificate.", show_default=False)
]
WhoseKind = Annotated[
    Literal["server", "user", "worker"],
    typer.Argument(metavar="KIND", help="Kind of certificate.", show_default=False),
]

FOLDER = Path("certs")
_AUTHORITY_DAYS = 3650.0  # as bursar.service.identity.issuing has them, which is slow to load
_CERTIFICATE_DAYS = 365.0


def register_certs(app: typer.Typer) -> None:
    """Add ``bursar certs`` to the command line."""
    certs = typer.Typer(
        no_args_is_help=True,
        help="Make and revoke certificates of a private authority, for services and their users.",
    )
    certs.command("init")(make_authority)
    certs.command("server")(make_server)
    certs.command(
        "user", help="Make a user's key and certificate: for mutual TLS, and to seal tasks."
    )(_making("user"))
    certs.command(
        "worker",
        help="Make the key and certificate of a site's workers, to which tasks are sealed.",
    )(_making("worker"))
    for name, command in (
        ("renew", renew),
        ("revoke", revoke_certificate),
        ("rotate", rotate),
        ("retire", retire),
        ("list", list_certificates),
        ("show", show_file),
    ):
        certs.command(name)(command)
    app.add_typer(certs, name="certs")


def make_authority(
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of the certificate authority.")
    ] = ("Bursar authority"),
    days: Days = _AUTHORITY_DAYS,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Make a certificate authority in a folder of its own."""
    from bursar.service.identity.authority import AuthorityFolder

    made = AuthorityFolder.create(folder, name, days=days)
    if as_json:
        print_json({"folder": str(folder), "trusted": str(made.trusted)})
        return
    print_note(f"{folder} has the authority's key: whoever reads it can make anybody's certificate")
    print_note(f"give to services, users and workers: {made.trusted}")


def make_server(
    name: Name,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Host name or address that clients use for the service; repeat for "
            "several. Default: NAME.",
            show_default=False,
        ),
    ] = None,
    days: Days = _CERTIFICATE_DAYS,
    out: Out = None,
    force: Force = False,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Make a service's key and certificate."""
    hosts = host or [name]
    made = _opened(folder).issue("server", name, hosts=hosts, days=days, out=out, force=force)
    _print_written(made, as_json)


def _making(kind: Literal["user", "worker"]) -> Callable[..., None]:
    """
    Return the command that makes the key and certificate of a user, or of a site's workers.

    Both are identified by a name alone, unlike a service, which also has addresses.
    """

    def make(
        name: Name,
        days: Days = _CERTIFICATE_DAYS,
        out: Out = None,
        force: Force = False,
        folder: Folder = FOLDER,
        as_json: AsJson = False,
    ) -> None:
        _print_written(_opened(folder).issue(kind, name, days=days, out=out, force=force), as_json)

    return make


def renew(
    kind: WhoseKind,
    name: Name,
    days: Days = _CERTIFICATE_DAYS,
    out: Out = None,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Renew a key and certificate in place; the old certificate stays valid until it expires."""
    _print_written(_opened(folder).renew(kind, name, days=days, out=out), as_json)


def revoke_certificate(
    kind: Annotated[
        Literal["server", "user", "worker"] | None,
        typer.Argument(metavar="[KIND", help="Kind of certificate.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME]", help="Name in the certificate.", show_default=False),
    ] = None,
    serial: Annotated[
        str | None,
        typer.Option(
            "--serial",
            metavar="HEX",
            help="Serial number of one certificate, as `list` shows it. Default: all of NAME.",
        ),
    ] = None,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Revoke all valid certificates of a name, or one by its serial number."""
    from bursar.model.errors import InputError

    if (serial is None) == (kind is None) or (kind is None) != (name is None):
        raise InputError("expected KIND and NAME, or --serial")
    wanted = None if serial is None else serial.lower().replace(":", "").rjust(40, "0")

    def is_wanted(record: "CertificateRecord") -> bool:
        if wanted is not None:
            return record.serial == wanted
        return (record.party.kind, record.party.name) == (kind, name)

    authority = _opened(folder)
    taken = authority.revoke(is_wanted)
    if not taken:
        whose = f"a {kind} {name}" if serial is None else f"serial number {serial}"
        raise InputError(f"there is no good certificate of {whose}", where=str(folder))
    if as_json:
        print_json({"revoked": [_certificate_fields(record) for record in taken]})
        return
    for record in taken:
        print_note(f"revoked {record.serial} of {record.party.kind} {record.party.name}")
    print_note(f"it counts where this file is brought to: {authority.trusted}")


def rotate(days: Days = _AUTHORITY_DAYS, folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Make the next authority; older ones stay trusted until `bursar certs retire`."""

    authority = _opened(folder)
    name = authority.rotate(days=days)
    if as_json:
        print_json({"authority": name, "trusted": str(authority.trusted)})
        return
    print_note(f"{name} issues from now on")
    print_note(
        f"bring {authority.trusted} everywhere, then renew the certificates, then retire the old"
    )


def retire(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Trust only the newest authority."""

    authority = _opened(folder)
    gone = authority.retire()
    if as_json:
        print_json({"retired": gone, "trusted": str(authority.trusted)})
    else:
        print_note(f"{gone} retired; bring {authority.trusted} everywhere")


def list_certificates(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """List issued certificates, the earliest to expire first."""

    authority = _opened(folder)
    records = authority.records()
    if as_json:
        print_json({"certificates": [_certificate_fields(record) for record in records]})
    else:
        _print_records(records)


def show_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File of certificates (PEM).", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Show the certificates in a file."""
    from bursar.service.identity.authority import describe_file

    shown = describe_file(file)
    if as_json:
        print_json({"certificates": shown})
        return
    for certificate in shown:
        hosts = f", {' '.join(certificate['hosts'])}" if certificate["hosts"] else ""
        print(f"{certificate['kind']} {certificate['name']}{hosts}")
        print(f"  {_date(certificate['begin'])} to {_date(certificate['end'])}")
        print(f"  serial {certificate['serial']}")
        print(f"  SHA-256 {certificate['sha256']}")


def _opened(folder: Path) -> "AuthorityFolder":
    from bursar.service.identity.authority import AuthorityFolder

    return AuthorityFolder(folder)


def _certificate_fields(record: "CertificateRecord") -> dict[str, Any]:
    return {
        "kind": record.party.kind,
        "name": record.party.name,
        "serial": record.serial,
        "hosts": record.hosts,
        "begin": record.begin,
        "end": record.end,
        "state": record.state,
    }


def _print_written(made: "IssuedCertificate", as_json: bool) -> None:

    files = {"identity": str(made.identity), "certificate": str(made.certificate)}
    if as_json:
        print_json({**_certificate_fields(made.record), **files})
        return
    print_note(
        f"{made.identity}: key and certificate, good until {_date(made.record.end)}; a secret"
    )
    print_note(f"{made.certificate}: the certificate alone")


def _print_records(records: "list[CertificateRecord]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("kind", "name", "state", "until", "serial", "hosts", box=None)
    table.columns[4].no_wrap, table.columns[4].min_width = True, 40
    for record in records:
        table.add_row(
            record.party.kind,
            record.party.name,
            record.state,
            _date(record.end),
            record.serial,
            " ".join(record.hosts),
        )
    Console().print(table if records else "no certificates")


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
