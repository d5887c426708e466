"""``bursar quote``, ``tender``, ``bargain`` and ``bid``: agreements with services."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from bursar.cli.options import AsJson, ServiceName, all_keys, print_json, print_note
from bursar.cli.service_commands import run_async
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.market.deal_report import TradeLimits
    from bursar.market.purchasing import TradeResult
    from bursar.model.site import BuyingProtocol
    from bursar.remote.access import Access

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
    typer.Option("--start", metavar="TIME", help="Begin no earlier than in so long. Default: now."),
]
EndBy = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="End within so long. Default: whenever."),
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
    Call services for bids and buy from the lowest bidder. Prints the agreement's id.

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
        int, typer.Option("--rounds", min=2, max=200, help="Offers until the highest, the last.")
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
    Bargain with services, from the lowest quote on, and buy. Prints the agreement's id.

    Nothing is paid above --most, nor above the lowest quote of all services.
    """
    lot = _Lot(processors, time, start, deadline)
    limits = _limits(most, patience, first=first, rounds=rounds, beta=beta)
    _finish(_trade("bargain", lot, limits, _sellers(site, sites)), as_json=as_json)


def list_auctions(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List a service's auctions: those open, those over lately, and the next ones."""
    from bursar.cli.service_commands import ask_service
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
    Bid in a service's auction until it is over. Prints the agreement's id if the lot is won.

    Where bids are sealed AMOUNT is bid; otherwise no more than is asked.
    """
    from bursar.formats.units import parse_amount
    from bursar.model.money import to_micros
    from bursar.remote.access import find_service
    from bursar.remote.service_trading import BidOutcome, bid_at, trading_with
    from bursar.report.trade_views import bid_document, print_bid

    units, currency = _parsed(parse_amount, amount, "AMOUNT")
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
        self.seconds = _parsed(parse_duration, time, "--for")
        if self.seconds <= 0:
            raise InputError("expected more than no time", where="--for")
        self.start = 0.0 if start is None else _parsed(parse_duration, start, "--start")
        self.deadline = (
            None if deadline is None else _parsed(parse_duration, deadline, "--deadline")
        )
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
    from bursar.market.deal_report import TradeLimits
    from bursar.model.money import to_micros

    highest, currency = (None, None) if most is None else _parsed(parse_amount, most, "--most")
    opening, other = (None, None) if first is None else _parsed(parse_amount, first, "--first")
    if None not in (currency, other) and currency != other:
        raise InputError(f"is in {other}, and --most in {currency}", where="--first")
    seconds = _parsed(parse_duration, patience, "--patience")
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
    protocol: "BuyingProtocol",
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


def _parsed(parse: Callable[[object], T], text: str, place: str) -> T:
    try:
        return parse(text)
    except InputError as error:
        raise error.within(place) from None
