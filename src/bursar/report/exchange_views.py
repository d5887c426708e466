"""What a person sees of an exchange: its clearings, and the caller's own orders and trades."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bursar.model.money import format_amount
from bursar.remote.exchange_trading import OrderOutcome
from bursar.remote.market_messages import ExchangeInfo, OrderInfo, TradeInfo
from bursar.report.tables import plain, span, table_of


def print_exchange(info: ExchangeInfo) -> None:
    """Print what is cleared next, and a row for each of the last clearings."""
    from rich.console import Console

    rule = f"double auction, k = {info.k:g}" if info.rule == "double" else "proportional shares"
    rows = [
        ("exchange", plain(info.name)),
        ("rule", rule),
        ("next clearing", f"{_moment(info.closes)}, then every {span(info.every)}"),
        ("processors from", f"{_moment(info.start)}, for {span(info.seconds)}"),
        ("you earned", format_amount(info.earned, info.currency)),
    ]
    Console().print(table_of("", "", rows=rows))
    if not info.clearings:
        return
    cleared = [
        (
            _minute(one.closes),
            _minute(one.start),
            span(one.seconds),
            str(one.processors),
            "" if one.price is None else format_amount(one.price, info.currency),
            format_amount(one.amount, info.currency),
        )
        for one in info.clearings
    ]
    heads = ("cleared", "from", "for", "processors", "price of one", "paid")
    Console().print(table_of(*heads, rows=cleared, right=slice(3, None)))


def print_orders(orders: Sequence[OrderInfo]) -> None:
    """Print a line for each order."""
    if not orders:
        print("no orders")
    for order in orders:
        held = f", {format_amount(order.held, order.currency)} set aside" if order.held else ""
        when = f"to be cleared {_minute(order.closes)}" if order.state == "open" else order.state
        print(f"{plain(order.id)}  {_wish(order)}, {when}{held}")


def _wish(order: OrderInfo) -> str:
    """Return what a user wants, and what of it was traded."""
    amount = format_amount(order.amount, order.currency)
    if order.processors and order.amount:
        wish = f"{order.side}, {order.processors} at {amount} each"
    else:  # of shares
        wish = f"{order.side}, {order.processors or amount}"
    return f"{wish}; traded {order.traded}" if order.state == "cleared" else wish


def print_trades(trades: Sequence[TradeInfo]) -> None:
    """Print a line for each trade, and a second one for its agreement or why it was undone."""
    if not trades:
        print("no trades")
    for trade in trades:
        verb = "sold" if trade.side == "ask" else "bought"
        said = f"{verb} {trade.processors} for {span(trade.seconds)}"
        price = format_amount(trade.amount, trade.currency)
        print(f"{_minute(trade.start)}  {said}, {price}, {_outcome(trade)}")
        if trade.agreement:
            print(f"{'':13}agreement {plain(trade.agreement)}")


def _outcome(trade: TradeInfo) -> str:
    """Return how far a trade has come, and with whom."""
    if trade.side == "ask":
        with_whom = f"to {plain(trade.customer)}"
    else:
        with_whom = f"by {plain(trade.seller)} at {plain(trade.service)}"
    if trade.state == "undone":
        return f"undone: {plain(trade.reason)} ({with_whom})"
    return f"{trade.state} {with_whom}"


def outcome_document(outcome: OrderOutcome) -> dict[str, Any]:
    """Return what came of an order as a JSON document; amounts are in micro-units."""
    return {
        "order": msgspec.structs.asdict(outcome.order),
        "trades": [msgspec.structs.asdict(trade) for trade in outcome.trades],
        "agreements": list(outcome.agreements),
    }


def print_outcome(outcome: OrderOutcome, note: Callable[[str], None]) -> None:
    """Tell people what came of an order; ``note`` is called with each line."""
    for trade in outcome.trades:
        price = format_amount(trade.amount, trade.currency)
        said = f"{trade.processors} processors for {span(trade.seconds)}, {price}"
        note(f"{said}: {_outcome(trade)}")
    if outcome.order.state == "withdrawn":
        note("withdrawn")
    elif outcome.order.state == "cleared" and not outcome.trades:
        note("nothing was traded: no order of the other side fits")


def _moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


def _minute(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at))
