"""``bursar account``: a user's money and agreements at a service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bursar.cli.options import AsJson, ServiceName

if TYPE_CHECKING:
    from bursar.remote.async_client import AsyncServiceClient

T = TypeVar("T")

app = typer.Typer(
    name="account",
    no_args_is_help=True,
    help="Show and change your money at a service: balance, agreements, charges.",
)

Agreement = Annotated[str, typer.Argument(metavar="AGREEMENT", show_default=False)]


def register(root: typer.Typer) -> None:
    """Adds this module's commands."""
    root.add_typer(app)


@app.command("show")
def show(site: ServiceName = None, as_json: AsJson = False) -> None:
    """Show your balance: available, held for agreements, spent."""
    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_views import print_account

    found = _ask(site, lambda client: client.account())
    if as_json:
        print_json(all_keys(found))
    else:
        print_account(found)


@app.command("buy")
def buy(
    processors: Annotated[
        int,
        typer.Option(
            "--processors", "-p", min=1, help="Number of processors, reserved for you alone."
        ),
    ],
    time: Annotated[
        str,
        typer.Option(
            "--for", metavar="TIME", help="Length of the reservation, from now: 90, 10m, 2h."
        ),
    ],
    most: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Highest total price that you accept."),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Buy processors at the current price. Prints the agreement's id."""
    from bursar.cli.output import all_keys, print_json, print_note
    from bursar.formats.units import parse_amount, parse_duration
    from bursar.model.money import format_amount, to_micros
    from bursar.remote.async_client import purchase
    from bursar.report.formatting import span

    seconds = _parsed(parse_duration, time, "--for")
    limit = None if most is None else to_micros(_parsed(parse_amount, most, "--most")[0])
    bought = _ask(site, lambda client: purchase(client, processors, seconds, limit))
    if as_json:
        print_json({"agreements": all_keys([bought])})
        return
    price = format_amount(bought.charged + bought.held, bought.currency)
    print_note(f"{processors} processors for {span(seconds)}: {price}")
    print(bought.id)


@app.command("agreements")
def agreements(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List your agreements."""
    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_views import print_agreements

    found = _ask(site, lambda client: client.agreements())
    if as_json:
        print_json({"agreements": all_keys(found)})
    else:
        print_agreements(found)


@app.command("cancel")
def cancel(agreement: Agreement, site: ServiceName = None, as_json: AsJson = False) -> None:
    """End an agreement early, on the terms that it states."""
    from bursar.cli.output import all_keys, print_json
    from bursar.report.service_views import print_agreements

    found = _ask(site, lambda client: client.cancel_agreement(agreement))
    if as_json:
        print_json({"agreements": all_keys([found])})
    else:
        print_agreements([found])


@app.command("invoice")
def invoice(
    period: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD",
            help="A year, month or day in UTC (2026, 2026-11, 2026-11-21), or a range A..B.",
        ),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Print what was charged, item by item, and the total."""
    from bursar.cli.output import all_keys, print_json
    from bursar.formats.units import parse_period
    from bursar.report.service_views import print_invoice

    asked = None if period is None else parse_period(period)
    begin, end = (asked.begin, asked.end) if asked else (0.0, None)
    found = _ask(site, lambda client: client.invoice(begin, end))
    if as_json:
        print_json(all_keys(found))
    else:
        print_invoice(found)


@app.command("deposit")
def deposit(
    user: Annotated[str, typer.Argument(metavar="USER", show_default=False)],
    amount: Annotated[
        str,
        typer.Argument(
            metavar="AMOUNT", help='Amount of money: 12.5 or "12.5 EUR".', show_default=False
        ),
    ],
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Idempotency key: a second deposit with the same key moves no money.",
        ),
    ] = "",
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Put money into a user's account. Needs the scope admin."""
    from bursar.cli.output import all_keys, print_json
    from bursar.formats.units import parse_amount
    from bursar.model.errors import InputError
    from bursar.model.money import to_micros
    from bursar.remote.messages import AccountInfo
    from bursar.report.service_views import print_account

    units, currency = _parsed(parse_amount, amount, "AMOUNT")
    micros = to_micros(units)
    if micros < 1:
        raise InputError("expected more than nothing", where="AMOUNT")

    async def put(client: "AsyncServiceClient") -> AccountInfo:
        asked = (await client.site()).currency
        if currency not in (None, asked):
            raise InputError(f"the service counts in {asked}", where="AMOUNT")
        return await client.deposit(user, micros, key)

    found = _ask(site, put)
    if as_json:
        print_json(all_keys(found))
    else:
        print_account(found)


def _parsed(parse: Callable[[object], T], text: str, place: str) -> T:
    from bursar.model.errors import InputError

    try:
        return parse(text)
    except InputError as error:
        raise error.within(place) from None


def _ask(site: str | None, question: "Callable[[AsyncServiceClient], Awaitable[T]]") -> T:
    from bursar.cli.connect import connect_service

    async def ask() -> T:
        async with connect_service(site) as service:
            return await question(service.client)

    return asyncio.run(ask())
