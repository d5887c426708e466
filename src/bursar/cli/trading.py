"""``bursar quote``, ``tender``, ``bargain``, ``bid`` and ``owner``: trade with services."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from bursar.cli.options import (
    AsJson,
    BilledIn,
    ServiceName,
    all_keys,
    billed_between,
    parsed,
    print_json,
    print_note,
)
from bursar.cli.service_commands import ask_service, run_async
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.market.price_forecast import HourlyPrice
    from bursar.market.purchasing import TradeResult
    from bursar.market.trade_manager import TradeLimits
    from bursar.model.money import Pricing
    from bursar.model.site import NegotiatedMarket
    from bursar.remote.access import Access
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.remote.messages import AgreementInfo

T = TypeVar("T")

NOTHING_AGREED = 3
"""Exit status when nothing is offered within the limits."""

Sellers = Annotated[
    list[str] | None,
    typer.Option(
        "--site",
        metavar="URL|NAME",
        help="Service to ask, by URL or by name; give several times. Default: the other Bursars "
        "of --sites, else BURSAR_SITE, else every service of ~/.config/bursar/services.toml.",
        show_default=False,
    ),
]
SellersFile = Annotated[
    Path | None,
    typer.Option("--sites", metavar="FILE", help="Sites file whose other Bursars are asked."),
]
Wanted = Annotated[
    int, typer.Option("--processors", "-p", min=1, metavar="N", help="Number of processors.")
]
Length = Annotated[
    str, typer.Option("--for", "--duration", metavar="TIME", help="For how long: 90, 10m, 2h.")
]
Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="TIME",
        help="Time from now before which the processors are not needed. Default: now.",
    ),
]
EndBy = Annotated[
    str | None,
    typer.Option(
        "--deadline",
        metavar="TIME",
        help="Time from now within which the processors are needed. Default: any.",
    ),
]
Most = Annotated[
    str | None,
    typer.Option("--most", "--reserve", metavar="AMOUNT", help="Highest total price that you pay."),
]
Patience = Annotated[
    str, typer.Option("--patience", metavar="TIME", help="Time after which trading ends.")
]


def register(root: typer.Typer) -> None:
    """Add the commands that trade to the command line."""
    root.command("quote")(quote)
    root.command("tender")(tender)
    root.command("bargain")(bargain)
    root.command("auctions")(list_auctions)
    root.command("bid")(bid)


def quote(
    processors: Wanted,
    time: Length,
    site: Sellers = None,
    sites: SellersFile = None,
    start: Start = None,
    deadline: EndBy = None,
    most: Most = None,
    patience: Patience = "30s",
    buy: Annotated[
        bool, typer.Option("--buy", help="Buy at the lowest price, if it is within --most.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask services what processors cost; with --buy, buy at the lowest price."""
    lot = _Lot(processors, time, start, deadline)
    limits = _limits(most, patience)
    result = _trade("posted", lot, limits, _sellers(site, sites), buy=buy)
    _finish(result, as_json=as_json, wanted=buy)


def tender(
    processors: Wanted,
    time: Length,
    site: Sellers = None,
    sites: SellersFile = None,
    start: Start = None,
    deadline: EndBy = None,
    most: Most = None,
    patience: Patience = "30s",
    as_json: AsJson = False,
) -> None:
    """
    Call services for bids, buy from the lowest bidder, and print the agreement's id.

    A bidder that cannot keep its bid is passed over for the next.
    """
    lot = _Lot(processors, time, start, deadline)
    result = _trade("tender", lot, _limits(most, patience), _sellers(site, sites))
    _finish(result, as_json=as_json)


def bargain(
    processors: Wanted,
    time: Length,
    site: Sellers = None,
    sites: SellersFile = None,
    start: Start = None,
    deadline: EndBy = None,
    most: Most = None,
    first: Annotated[
        str | None,
        typer.Option(
            "--first", metavar="AMOUNT", help="First offer. Default: half of what would be paid."
        ),
    ] = None,
    patience: Patience = "30s",
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", min=2, max=200, help="Number of offers; the last offer is the highest."
        ),
    ] = 10,
    beta: Annotated[
        float,
        typer.Option(
            "--beta", min=0.01, max=100, help="Concede evenly (1), late (below) or early (above)."
        ),
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """
    Bargain with services, from the lowest quote on, buy, and print the agreement's id.

    Nothing is paid above --most, nor above the lowest quote of all services.
    """
    lot = _Lot(processors, time, start, deadline)
    limits = _limits(most, patience, first=first, rounds=rounds, beta=beta)
    _finish(_trade("bargain", lot, limits, _sellers(site, sites)), as_json=as_json)


def list_auctions(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List a service's auctions: those open, those over lately, and the next ones."""
    from bursar.report.trade_views import print_auctions

    found = ask_service(site, lambda client: client.auctions())
    if as_json:
        print_json({"auctions": all_keys(found)})
    else:
        print_auctions(found)


def bid(
    auction: Annotated[
        str,
        typer.Argument(
            metavar="AUCTION", help="Id of the auction, see bursar auctions.", show_default=False
        ),
    ],
    amount: Annotated[
        str,
        typer.Argument(
            metavar="AMOUNT", help="Highest amount for the whole lot.", show_default=False
        ),
    ],
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """
    Bid in a service's auction until the end; print the agreement's id if the lot is won.

    The bid is AMOUNT where bids are sealed, and otherwise no more than is asked.
    """
    from bursar.formats.units import parse_amount
    from bursar.model.money import to_micros
    from bursar.remote.access import find_service
    from bursar.remote.service_trading import BidOutcome, bid_at, trading_with
    from bursar.report.trade_views import bid_document, print_bid

    units, currency = parsed(parse_amount, amount, "AMOUNT")
    access = find_service(site).access

    async def work() -> BidOutcome:
        async with trading_with([access], patience=60.0, notice=print_note) as trader:
            (service,) = trader.services
            if currency not in (None, service.currency):
                raise InputError(f"the service counts in {service.currency}", where="AMOUNT")
            lots = {lot.id: lot for lot in await service.client.auctions()}
            if auction not in lots:
                raise InputError(
                    f'there is no auction "{auction}"', hint="bursar auctions lists them"
                )
            return await bid_at(service, lots[auction], to_micros(units))

    outcome = run_async(work())
    if as_json:
        print_json(bid_document(outcome))
    else:
        print_bid(outcome, print_note)
        if outcome.agreement is not None:
            print(outcome.agreement.id)
    if outcome.agreement is None:
        raise typer.Exit(NOTHING_AGREED)


class _Lot:
    """
    Processors and times as typed; times count from now.

    Raises
    ------
    InputError
        When a time cannot be read, or leaves no room.
    """

    def __init__(self, processors: int, time: str, start: str | None, deadline: str | None) -> None:
        from bursar.formats.units import parse_duration

        self.processors = processors
        self.seconds = parsed(parse_duration, time, "--for")
        if self.seconds <= 0:
            raise InputError("expected more than no time", where="--for")
        self.start = 0.0 if start is None else parsed(parse_duration, start, "--start")
        self.deadline = None if deadline is None else parsed(parse_duration, deadline, "--deadline")
        if self.deadline is not None and self.deadline < self.start + self.seconds:
            raise InputError("leaves too little time for --start and --for", where="--deadline")


def _limits(
    most: str | None,
    patience: str,
    *,
    first: str | None = None,
    rounds: int = 10,
    beta: float = 1.0,
) -> "tuple[TradeLimits, str | None]":
    """Return the limits, and the currency in which they were stated; None: no currency."""
    from bursar.formats.units import parse_amount, parse_duration
    from bursar.market.trade_manager import TradeLimits
    from bursar.model.money import to_micros

    highest, currency = (None, None) if most is None else parsed(parse_amount, most, "--most")
    opening, other = (None, None) if first is None else parsed(parse_amount, first, "--first")
    if None not in (currency, other) and currency != other:
        raise InputError(f"is in {other}, and --most in {currency}", where="--first")
    seconds = parsed(parse_duration, patience, "--patience")
    try:
        limits = TradeLimits(
            most=None if highest is None else to_micros(highest),
            first=None if opening is None else to_micros(opening),
            patience=seconds,
            rounds=rounds,
            beta=beta,
        )
    except ValueError as error:
        raise InputError(str(error), where="--first" if seconds > 0 else "--patience") from None
    return limits, currency or other


def _trade(
    protocol: "NegotiatedMarket",
    lot: _Lot,
    stated: "tuple[TradeLimits, str | None]",
    accesses: "Sequence[Access]",
    *,
    buy: bool = True,
) -> "TradeResult":
    """Negotiate, and return what came of it."""
    from time import time

    from bursar.market.agreement import DealTemplate
    from bursar.remote.service_trading import trading_with

    limits, currency = stated

    async def negotiate() -> "TradeResult":
        async with trading_with(accesses, patience=limits.patience, notice=print_note) as trader:
            # Without a start the owner begins at once: the two clocks need not agree then.
            timed = lot.start > 0 or lot.deadline is not None
            now = time() if timed else 0.0
            template = DealTemplate(
                processors=lot.processors,
                seconds=lot.seconds,
                earliest=now + lot.start,
                latest=None if lot.deadline is None else now + lot.deadline,
                currency=currency or trader.currency,
            )
            return await trader.negotiate(protocol, template, limits, buy=buy)

    return run_async(negotiate())


def _finish(result: "TradeResult", *, as_json: bool, wanted: bool = True) -> None:
    """Print what was offered, refused and agreed; exit with 3 when there is no agreement."""
    from bursar.report.trade_views import print_trade, trade_document

    if as_json:
        print_json(all_keys(trade_document(result)))
    else:
        print_trade(result, print_note, as_data=not wanted)
        if result.agreement:
            print(result.agreement.id)
    offered = any(answer.state == "offered" for answer in result.answers)
    if not (result.agreement if wanted else offered):
        raise typer.Exit(NOTHING_AGREED)


def _sellers(names: list[str] | None, file: Path | None) -> "list[Access]":
    """
    Return the services to ask.

    Raises
    ------
    InputError
        When a service is unknown, or there is none.
    """
    import os

    from bursar.remote.access import find_service, known_services

    if not names and file is not None:
        from bursar.formats.sites_toml import read_sites
        from bursar.sites.remote.site_client import access_of

        found = [
            access_of(site.name, site.remote)
            for site in read_sites(file)
            if site.remote is not None
        ]
        if not found:
            raise InputError('has no site of kind "remote"', where=str(file))
        return found
    chosen = names or ([os.environ["BURSAR_SITE"]] if os.environ.get("BURSAR_SITE") else None)
    if chosen is not None:
        return [find_service(name).access for name in chosen]
    known = known_services()
    if not known:
        _no_service()
    return [find_service(name).access for name in known]


def _no_service() -> NoReturn:
    raise InputError(
        "name a service: its URL, or one of a services file",
        where="--site",
        hint="or --sites FILE, for the other Bursars of a sites file",
    )


# ``bursar owner``: the business of a service's owner.

owner_app = typer.Typer(
    name="owner",
    no_args_is_help=True,
    help="Run a service's business: prices, agreements and revenue. The token needs the scope "
    "sell.",
)


def register_owner(root: typer.Typer) -> None:
    """Add ``bursar owner`` to the command line."""
    root.add_typer(owner_app)


@owner_app.command("status")
def status(site: ServiceName = None, as_json: AsJson = False) -> None:
    """Show the price, what is sold now and ahead, the auctions and the revenue."""
    import asyncio

    from bursar.report.trade_views import owner_status, print_status

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
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Show the price after a time (6h) or at a date (2026-11-28T18:00). "
            "Default: each hour of the next day.",
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option("--user", metavar="NAME", help="Show what this customer is asked."),
    ] = "",
    processors: Annotated[
        int, typer.Option("--processors", "-p", min=1, metavar="N", help="Number of processors.")
    ] = 1,
    length: Annotated[
        str, typer.Option("--for", metavar="TIME", help="For how long: 90, 10m, 2h.")
    ] = "1h",
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """
    Show or set the base price. Its rules stay; agreements keep their prices.

    The new price holds over restarts, until the prices of the service's file are changed. What is
    asked in the hours to come follows from the rules and from what is sold by now.
    """
    import asyncio
    from time import time

    from bursar.formats.units import parse_moment, parse_price
    from bursar.report.trade_views import price_document, print_hourly_prices, print_price

    units, currency = (None, None) if base is None else parsed(parse_price, base, "PRICE")
    now = time()
    since = None if at is None else parsed(lambda text: parse_moment(str(text), now), at, "--at")
    if since is not None and since < now:
        raise InputError("has passed", where="--at")
    lot = _Lot(processors, length, None, None)

    async def ask(client: "AsyncServiceClient") -> "tuple[Pricing, str, list[HourlyPrice]]":
        from dataclasses import replace

        facts, prices = await asyncio.gather(client.site(), client.prices())
        if currency not in (None, facts.currency):
            raise InputError(f"the service counts in {facts.currency}", where="PRICE")
        if units is not None:
            prices = replace(prices, base=units)
            await client.reprice(prices)
        ahead = await client.prices_ahead(
            user,
            processors=lot.processors,
            seconds=lot.seconds,
            since=since,
            count=24 if since is None else 1,
        )
        return prices, facts.currency, ahead

    prices, counted, ahead = _asked(site, ask)
    if as_json:
        print_json(price_document(prices, counted, ahead))
    else:
        print_price(prices, counted)
        print_hourly_prices(ahead, counted)


@owner_app.command("agreements")
def agreements(
    site: ServiceName = None,
    every: Annotated[
        bool, typer.Option("--all", help="List also agreements that have ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the agreements with all customers that have not ended."""
    from bursar.report.trade_views import print_sales

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
    period: BilledIn = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Show what each customer has paid, the penalties, and the total."""
    from bursar.report.trade_views import print_revenue

    begin, end = billed_between(period)
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
