"""``bursar certs``: a private authority, and certificates for servers, users and workers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bursar.cli.options import AsJson

if TYPE_CHECKING:
    from bursar.service.identity.authority import (
        AuthorityFolder,
        CertificateRecord,
        IssuedCertificate,
    )

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
    typer.Option("--out", metavar="DIR", help="Folder for the files. Without it: --folder."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
Days = Annotated[float, typer.Option("--days", metavar="N", help="Validity in days.")]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
WhoseKind = Annotated[
    Literal["server", "user", "worker"], typer.Argument(metavar="KIND", show_default=False)
]

FOLDER = Path("certs")
_AUTHORITY_DAYS = 3650.0  # as bursar.service.identity.issuing has them, which is slow to load
_DAYS = 365.0


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
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
        ("revoke", revoke),
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
    from bursar.cli.output import print_json, print_note
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
    days: Days = _DAYS,
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
        days: Days = _DAYS,
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
    days: Days = _DAYS,
    out: Out = None,
    folder: Folder = FOLDER,
    as_json: AsJson = False,
) -> None:
    """Renew a key and certificate in place; the old certificate stays valid until it expires."""
    _print_written(_opened(folder).renew(kind, name, days=days, out=out), as_json)


def revoke(
    kind: Annotated[
        Literal["server", "user", "worker"] | None,
        typer.Argument(metavar="[KIND", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME]", show_default=False)] = None,
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
    from bursar.cli.output import print_json, print_note
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
    from bursar.cli.output import print_json, print_note

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
    from bursar.cli.output import print_json, print_note

    authority = _opened(folder)
    gone = authority.retire()
    if as_json:
        print_json({"retired": gone, "trusted": str(authority.trusted)})
    else:
        print_note(f"{gone} retired; bring {authority.trusted} everywhere")


def list_certificates(folder: Folder = FOLDER, as_json: AsJson = False) -> None:
    """List issued certificates, the earliest to expire first."""
    from bursar.cli.output import print_json

    authority = _opened(folder)
    records = authority.records()
    if as_json:
        print_json({"certificates": [_certificate_fields(record) for record in records]})
    else:
        _print_records(records)


def show_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show the certificates in a file."""
    from bursar.cli.output import print_json
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
    from bursar.cli.output import print_json, print_note

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
