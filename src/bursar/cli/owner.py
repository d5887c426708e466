"""``bursar owner``: the business of a service's owner."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from bursar.cli.options import AsJson, ServiceName, all_keys, print_json, print_note
from bursar.cli.service_commands import ask_service
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.model.money import Pricing
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.remote.messages import AgreementInfo

T = TypeVar("T")

owner_app = typer.Typer(
    name="owner",
    no_args_is_help=True,
    help="Run a service's business: its prices, agreements and revenue. Needs the scope sell.",
)


def register(root: typer.Typer) -> None:
    """Add ``bursar owner`` to the command line."""
    root.add_typer(owner_app)


@owner_app.command("status")
def status(site: ServiceName = None, as_json: AsJson = False) -> None:
    """Show the price, what is sold now and ahead, the auctions and the revenue."""
    from bursar.report.owner_views import owner_status, print_status

    async def ask(client: "AsyncServiceClient") -> dict[str, Any]:
        facts, prices, sales, revenue, auctions = await asyncio.gather(
            client.site(), client.prices(), client.sales(), client.revenue(), client.auctions()
        )
        return owner_status(facts, prices, sales, revenue, auctions)

    found = _asked(site, ask)
    if as_json:
        print_json(found)
    else:
        print_status(found)


@owner_app.command("price")
def price(
    base: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRICE]",
            help='New base price: "0.02 EUR/core-hour", or a number per processor-second. '
            "Default: show the price and its rules.",
            show_default=False,
        ),
    ] = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """
    Show or set the base price. Its rules stay; agreements keep their prices.

    The new price holds over restarts, until the prices of the service's file are changed.
    """
    from bursar.formats.units import parse_price
    from bursar.report.owner_views import price_document, print_price

    units, currency = (None, None) if base is None else _parsed(parse_price, base, "PRICE")

    async def ask(client: "AsyncServiceClient") -> "tuple[Pricing, str]":
        from dataclasses import replace

        facts, prices = await asyncio.gather(client.site(), client.prices())
        if currency not in (None, facts.currency):
            raise InputError(f"the service counts in {facts.currency}", where="PRICE")
        if units is not None:
            prices = replace(prices, base=units)
            await client.reprice(prices)
        return prices, facts.currency

    prices, counted = _asked(site, ask)
    if as_json:
        print_json(price_document(prices, counted))
    else:
        print_price(prices, counted)


@owner_app.command("agreements")
def agreements(
    site: ServiceName = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the agreements with all customers that have not ended."""
    from bursar.report.owner_views import print_sales

    found = _asked(site, lambda client: client.sales())
    sold: dict[str, list[AgreementInfo]] = {}
    for customer, listed in found.items():
        kept = [a for a in listed.agreements if every or a.state in ("signed", "running")]
        if kept:
            sold[customer] = kept
    if as_json:
        print_json({"customers": {name: all_keys(kept) for name, kept in sold.items()}})
    else:
        print_sales(sold)


@owner_app.command("revenue")
def revenue(
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
    """Show what each customer has paid, the penalties, and the total."""
    from bursar.formats.units import parse_period
    from bursar.report.owner_views import print_revenue

    asked = None if period is None else parse_period(period)
    begin, end = (asked.begin, asked.end) if asked else (0.0, None)
    found = _asked(site, lambda client: client.revenue(begin, end))
    if as_json:
        print_json(all_keys(found))
    else:
        print_revenue(found)


def _asked(site: str | None, question: "Callable[[AsyncServiceClient], Awaitable[T]]") -> T:
    """Return what a service answers its owner; say which scope is lacking where it refuses."""
    from bursar.remote.http_transport import RemoteProblem

    try:
        return ask_service(site, question)
    except RemoteProblem as problem:
        if problem.status == 403:
            print_note("the token needs the scope sell: bursar tokens create USER --scope sell")
        raise


def _parsed(parse: Callable[[object], T], text: str, place: str) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise error.within(place) from None
