"""``bursar tokens``: who may come in by a token, for a service's administrators."""

import asyncio
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bursar.cli.options import AsJson, ServiceName

if TYPE_CHECKING:
    from bursar.remote.admin_messages import TokenInfo


class TokenScope(StrEnum):
    """A scope that a token allows."""

    SUBMIT = "submit"
    READ = "read"
    SELL = "sell"
    ADMIN = "admin"


_SCOPES = [TokenScope.SUBMIT, TokenScope.READ]


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    tokens = typer.Typer(
        no_args_is_help=True,
        help="Make and revoke tokens of a service's users. Needs a token of the scope admin; "
        "bursar serve writes the first one into its folder.",
    )
    for name, command in (("create", create), ("list", list_tokens), ("revoke", revoke)):
        tokens.command(name)(command)
    app.add_typer(tokens, name="tokens")


def create(
    user: Annotated[str, typer.Argument(metavar="USER", show_default=False)],
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
    label: Annotated[str, typer.Option(metavar="TEXT", help="Label that `list` shows.")] = "",
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
    from bursar.cli.connect import connect_service
    from bursar.cli.output import print_json, print_note
    from bursar.model.errors import InputError
    from bursar.remote.admin_messages import NewToken
    from bursar.service.identity.secret_files import write_file

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

    async def ask() -> "TokenInfo":
        async with connect_service(site) as service:
            made = await service.client.create_token(new)
            try:
                if out is not None:
                    write_file(out, f"{made.token}\n".encode())
            except BaseException:
                await service.client.revoke_token(made.id)  # nobody knows it
                raise
            return made

    made = asyncio.run(ask())
    if as_json:
        print_json(
            {**_token_fields(made), **({"file": str(out)} if out else {"token": made.token})}
        )
        return
    if out is None:
        print(made.token)
    where = f" in {out}" if out else "; it is not shown again"
    print_note(f"token {made.id} of {made.user}, good until {_date(made.expires)}{where}")


def list_tokens(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List valid tokens, without their secrets."""
    from bursar.cli.connect import connect_service
    from bursar.cli.output import print_json

    async def ask() -> "list[TokenInfo]":
        async with connect_service(site) as service:
            return await service.client.tokens()

    found = asyncio.run(ask())
    if as_json:
        print_json({"tokens": [_token_fields(token) for token in found]})
    else:
        _print_tokens(found)


def revoke(
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
    from bursar.cli.connect import connect_service
    from bursar.cli.output import print_json, print_note
    from bursar.model.errors import InputError

    if "_" in token:
        # What was given is not repeated: it would be the secret.
        raise InputError("expected the id of a token, got a token", hint="bursar tokens list")

    async def ask() -> None:
        async with connect_service(site) as service:
            await service.client.revoke_token(token)

    asyncio.run(ask())
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
    from rich.table import Table

    table = Table("id", "user", "scopes", "until", "label", box=None)
    for token in tokens:
        scopes = " ".join(token.scopes)
        table.add_row(token.id, token.user, scopes, _date(token.expires), token.label)
    Console().print(table if tokens else "no tokens")


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
