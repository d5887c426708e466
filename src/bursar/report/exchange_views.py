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
            _moment(one.closes),
            _moment(one.start),
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
    """Print a row for each order."""
    from rich.console import Console

    if not orders:
        print("no orders")
        return
    rows = [
        (
            plain(order.id),
            order.side,
            order.state,
            _moment(order.closes),
            str(order.processors or ""),
            format_amount(order.amount, order.currency) if order.amount else "",
            str(order.traded),
            format_amount(order.held, order.currency) if order.held else "",
        )
        for order in orders
    ]
    heads = ("order", "side", "state", "cleared", "processors", "limit", "traded", "set aside")
    Console().print(table_of(*heads, rows=rows, right=slice(4, None), whole=slice(1)))


def print_trades(trades: Sequence[TradeInfo]) -> None:
    """Print a row for each trade, and a line for each that was undone."""
    from rich.console import Console

    if not trades:
        print("no trades")
        return
    rows = [
        (
            "sold" if trade.side == "ask" else "bought",
            trade.state,
            _moment(trade.start),
            str(trade.processors),
            format_amount(trade.amount, trade.currency),
            plain(trade.customer if trade.side == "ask" else trade.seller),
            plain(trade.service),
            plain(trade.agreement),
        )
        for trade in trades
    ]
    heads = ("", "state", "from", "processors", "price", "with", "service", "agreement")
    Console().print(table_of(*heads, rows=rows, right=slice(3, 5), whole=slice(7, 8)))
    for trade in trades:
        if trade.reason:
            print(f"{plain(trade.id)}: {plain(trade.seller)}: {plain(trade.reason)}")


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
        if trade.state == "undone":
            note(f"undone: {said}, of {plain(trade.seller)}: {plain(trade.reason)}")
        elif trade.side == "ask":
            note(f"{trade.state} to {plain(trade.customer)}: {said}")
        else:
            note(f"{trade.state} by {plain(trade.seller)} at {plain(trade.service)}: {said}")
    if outcome.order.state == "withdrawn":
        note("withdrawn")
    elif outcome.order.state == "cleared" and not outcome.trades:
        note("nothing was traded: no order of the other side fits")


def _moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))
