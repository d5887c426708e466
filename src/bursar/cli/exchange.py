"""``bursar exchange``: bid and ask for processors at an exchange that several services share."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bursar.cli.options import AsJson, ServiceName, all_keys, print_json, print_note
from bursar.cli.service_commands import ask_service, connect_service, run_until_done
from bursar.model.errors import InputError

if TYPE_CHECKING:
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.remote.exchange_trading import OrderOutcome
    from bursar.remote.market_messages import ExchangeInfo, NewOrder, OrderInfo

NOTHING_TRADED = 3
"""Exit status when an order was cleared, and nothing came of it."""

exchange_app = typer.Typer(
    name="exchange",
    no_args_is_help=True,
    help="Buy and sell processors where several owners meet.",
)

Price = Annotated[
    str | None,
    typer.Argument(
        metavar="[PRICE]",
        help='Limit: "0.5 EUR/core-hour", or a number per processor-second.',
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="TEXT",
        help="Key of the order: the same command with the same key goes on with the order. "
        "Default: a random one.",
    ),
]


def register(root: typer.Typer) -> None:
    """Add ``bursar exchange`` to the command line."""
    root.add_typer(exchange_app)


@exchange_app.command("status")
def status(site: ServiceName = None, as_json: AsJson = False) -> None:
    """Show what is traded next, when it is cleared, and the last clearings."""
    from bursar.report.exchange_views import print_exchange

    found = ask_service(site, lambda client: client.exchange())
    if as_json:
        print_json(all_keys(found))
    else:
        print_exchange(found)


@exchange_app.command("bid")
def bid(
    price: Annotated[
        str,
        typer.Argument(
            metavar="PRICE",
            help='Highest price: "0.5 EUR/core-hour", or a number per processor-second. In an '
            'auction of shares: the amount that you pay, "20 EUR".',
            show_default=False,
        ),
    ],
    processors: Annotated[
        int | None,
        typer.Option(
            "--processors",
            "-p",
            min=1,
            metavar="N",
            help="Largest number of processors; no number in an auction of shares.",
        ),
    ] = None,
    customer: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="USER",
            help="Your user name at the sellers' services. Default: your name here.",
        ),
    ] = "",
    key: Key = None,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait until it is cleared and delivered."),
    ] = True,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """
    Bid for processors of the next clearing. The command prints the ids of the
    agreements that come of the bid.

    The money is set aside at once. If the command is interrupted, the bid stands.
    """
    from bursar.remote.exchange_trading import OrderOutcome, outcome_of

    async def work(client: "AsyncServiceClient") -> OrderOutcome:
        info, found = await _known(client, key)
        order = found or _order(
            info, "bid", key or client.new_key(), price, processors or 0, customer=customer
        )
        placed = await client.place_order(order)
        _tell(placed)
        if wait:
            return await outcome_of(client, placed.key)
        return OrderOutcome(order=placed)

    _finish(_carried_out(site, work), as_json=as_json, wait=wait)


@exchange_app.command("ask")
def ask(
    processors: Annotated[
        int,
        typer.Option(
            "--processors", "-p", min=1, metavar="N", help="Largest number of processors."
        ),
    ],
    service: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL|NAME",
            help="Your own service, whose processors you sell. Your token needs the scope sell "
            "there.",
            show_default=False,
        ),
    ],
    price: Price = None,
    told: Annotated[
        str,
        typer.Option(
            "--told",
            metavar="URL",
            help="Address of the service that buyers are told. Default: the URL of --from.",
        ),
    ] = "",
    key: Key = None,
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """
    Ask for processors of your service in the next clearing, and deliver what is sold.

    The processors are set aside at your service at once. The command has to go on until what is
    sold is delivered; after an interrupt, the same command with its --key goes on.
    """
    from bursar.remote.access import find_service
    from bursar.remote.async_client import AsyncServiceClient
    from bursar.remote.exchange_trading import OrderOutcome, sell_at

    own = find_service(service).access

    async def work(client: AsyncServiceClient) -> OrderOutcome:
        info, found = await _known(client, key)
        async with AsyncServiceClient(own, notice=print_note) as seller:
            facts = await seller.site()
            if facts.currency != info.currency:
                raise InputError(
                    f"the exchange counts in {info.currency}, {own.name} in {facts.currency}",
                    where="--from",
                )
            order = found or _order(
                info, "ask", key or client.new_key(), price, processors, service=told or own.url
            )
            return await sell_at(client, seller, order, placed=_tell, again=found is not None)

    _finish(_carried_out(site, work), as_json=as_json)


@exchange_app.command("orders")
def orders(
    site: ServiceName = None,
    every: Annotated[
        bool, typer.Option("--all", help="List also orders that are not open.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List your own open orders; nobody sees those of others."""
    from bursar.report.exchange_views import print_orders

    found = ask_service(site, lambda client: client.exchange_orders())
    kept = [order for order in found if every or order.state == "open"]
    if as_json:
        print_json({"orders": all_keys(kept)})
    else:
        print_orders(kept)


@exchange_app.command("trades")
def trades(site: ServiceName = None, as_json: AsJson = False) -> None:
    """List what you bought and sold, with the agreements that came of it."""
    from bursar.report.exchange_views import print_trades

    found = ask_service(site, lambda client: client.exchange_trades())
    if as_json:
        print_json({"trades": all_keys(found)})
    else:
        print_trades(found)


@exchange_app.command("withdraw")
def withdraw(
    order: Annotated[
        str,
        typer.Argument(
            metavar="ORDER", help="Id of the order, see bursar exchange orders.", show_default=False
        ),
    ],
    site: ServiceName = None,
    as_json: AsJson = False,
) -> None:
    """Withdraw an order before it is cleared; its money is released."""
    found = ask_service(site, lambda client: client.withdraw_order(order))
    if as_json:
        print_json(all_keys(found))
    else:
        print_note(f"withdrawn: {found.id}")


async def _known(
    client: "AsyncServiceClient", key: str | None
) -> "tuple[ExchangeInfo, NewOrder | None]":
    """Return the exchange, and the order that was placed with a key; None: none was."""
    from bursar.remote.market_messages import NewOrder

    info = await client.exchange()
    for order in await client.exchange_orders(key) if key else ():
        wanted = {name: getattr(order, name) for name in NewOrder.__struct_fields__}
        return info, NewOrder(**wanted)
    return info, None


def _order(
    info: "ExchangeInfo",
    side: Literal["bid", "ask"],
    key: str,
    price: str | None,
    processors: int,
    *,
    customer: str = "",
    service: str = "",
) -> "NewOrder":
    """
    Return an order for the next clearing, from what was typed.

    Raises
    ------
    InputError
        When the price cannot be read, or does not fit the rule of the exchange.
    """
    from bursar.formats.units import parse_amount, parse_price
    from bursar.market.agreement import LARGEST
    from bursar.model.money import to_micros
    from bursar.remote.exchange_trading import limit_of
    from bursar.remote.market_messages import NewOrder

    shared, buys = info.rule == "share", side == "bid"
    if shared and not buys and price is not None:
        raise InputError("shares are sold at any price", where="PRICE")
    if not shared and price is None:
        raise InputError("expected the lowest price", where="PRICE")
    if buys and shared and processors:
        raise InputError("a share has as many as the bid is worth", where="--processors")
    if buys and not shared and not processors:
        raise InputError("expected how many", where="--processors")
    amount, currency = 0, None
    try:
        if price is not None and shared:
            units, currency = parse_amount(price)
            amount = to_micros(units)
        elif price is not None:
            unit_price, currency = parse_price(price)
            amount = limit_of(unit_price, info, buys=buys)
    except InputError as error:
        raise error.within("PRICE") from None
    if currency not in (None, info.currency):
        raise InputError(f"the exchange counts in {info.currency}", where="PRICE")
    if amount * max(1, processors) > LARGEST:
        raise InputError("the whole order is too large", where="PRICE")
    return NewOrder(
        key=key,
        side=side,
        closes=info.closes,
        start=info.start,
        seconds=info.seconds,
        processors=processors,
        amount=amount,
        customer=customer,
        service=service,
    )


def _tell(order: "OrderInfo") -> None:
    import time

    when = time.strftime("%m-%d %H:%M:%S", time.localtime(order.closes))
    print_note(f"order {order.id}, key {order.key}, is cleared {when}")


def _carried_out(
    site: str | None, work: "Callable[[AsyncServiceClient], Awaitable[OrderOutcome]]"
) -> "OrderOutcome":
    """Return what came of an order; after an interrupt, the order stands."""

    async def connected() -> "OrderOutcome":
        async with connect_service(site) as service:
            return await work(service.client)

    return run_until_done(
        connected(), lambda: print_note("interrupted: an order that was placed stands")
    )


def _finish(outcome: "OrderOutcome", *, as_json: bool, wait: bool = True) -> None:
    """Print an order's outcome: remarks on stderr, on stdout the agreements' ids."""
    from bursar.report.exchange_views import outcome_document, print_outcome

    if as_json:
        print_json(outcome_document(outcome))
    else:
        print_outcome(outcome, print_note)
        for agreement in outcome.agreements:
            print(agreement)
    if wait and not outcome.agreements:
        raise typer.Exit(NOTHING_TRADED)
