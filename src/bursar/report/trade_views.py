"""What a person sees of trade: negotiations, auctions, and an owner's business."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bursar.market.price_forecast import HourlyPrice
from bursar.market.purchasing import TradeResult
from bursar.market.trade_manager import OwnerAnswer
from bursar.model.money import Pricing, format_amount
from bursar.remote.market_messages import LotInfo, RevenueInfo
from bursar.remote.messages import AgreementInfo, AgreementList, SiteInfo
from bursar.remote.service_trading import BidOutcome
from bursar.report.tables import plain, span, table_of


def trade_document(result: TradeResult) -> dict[str, Any]:
    """Return a negotiation as a JSON document; amounts are in micro-units."""
    template, best = result.template, result.next_best
    return {
        "protocol": result.protocol,
        "processors": template.processors,
        "seconds": template.seconds,
        "owner": "" if result.agreement is None else result.agreement.owner,
        "agreement": "" if result.agreement is None else result.agreement.id,
        "amount": result.amount,
        "currency": template.currency,
        "next_best": None if best is None else best.owner,
        "unknown": list(result.unknown),
        "answers": [msgspec.structs.asdict(answer) for answer in result.answers],
    }


def print_trade(result: TradeResult, note: Callable[[str], None], *, as_data: bool) -> None:
    """
    Print a negotiation for people.

    Parameters
    ----------
    as_data
        Whether the table of answers goes to stdout, as what was asked for, or to stderr.
    note
        Called with each line that is talk and no data.
    """
    import sys

    from rich.console import Console

    template = result.template
    bargained = result.protocol == "bargain"
    rows = [_row(answer, bargained=bargained) for answer in result.answers]
    heads = ("owner", "answer", *(("quoted", "we offered") if bargained else ()), "price", "from")
    console = Console(file=sys.stdout if as_data else sys.stderr)
    if rows:
        right = slice(2, 5 if bargained else 3)
        console.print(table_of(*heads, "reason", rows=rows, right=right, whole=slice(1)))
    if result.agreement is not None:
        owner, amount = result.agreement.owner, result.agreement.terms.amount
        note(
            f"agreed with {plain(owner)}: {template.processors} processors for "
            f"{span(template.seconds)}, {format_amount(amount, template.currency)}"
        )
    best = result.next_best
    if best is not None and best.price is not None:
        price = format_amount(best.price, best.currency)
        note(f"{'next best' if result.agreement else 'best'}: {plain(best.owner)}, {price}")
    elif not result.agreement:
        note("nothing was offered within the limits")
    for owner in result.unknown:
        note(
            f"{plain(owner)} did not answer an acceptance: see "
            f"`bursar account agreements --site {plain(owner)}`"
        )


def _row(answer: OwnerAnswer, *, bargained: bool) -> list[str]:
    def money(amount: int | None) -> str:
        return "" if amount is None else format_amount(amount, answer.currency)

    middle = [money(answer.first), money(answer.ours)] if bargained else []
    start = (
        "" if answer.start is None else time.strftime("%m-%d %H:%M", time.localtime(answer.start))
    )
    price = money(answer.price)
    return [plain(answer.owner), answer.state, *middle, price, start, plain(answer.reason)]


# Auctions of a service.


def print_auctions(lots: Sequence[LotInfo]) -> None:
    """Print a row for each auction, the open ones first."""
    from rich.console import Console

    if not lots:
        print("no auctions")
        return
    order = ["open", "announced", "sold", "unsold"]
    rows = [
        (
            plain(lot.id),
            lot.rule,
            lot.state,
            str(lot.processors),
            span(lot.seconds),
            _moment(lot.opens),
            _moment(lot.start),
            "" if lot.price is None else format_amount(lot.price, lot.currency),
        )
        for lot in sorted(lots, key=lambda lot: (order.index(lot.state), lot.opens))
    ]
    heads = ("auction", "rule", "state", "processors", "for", "opens", "from", "price")
    Console().print(table_of(*heads, rows=rows, whole=slice(1)))


def bid_document(outcome: BidOutcome) -> dict[str, Any]:
    """Return the outcome of an auction as a JSON document; amounts are in micro-units."""
    agreement = outcome.agreement
    return {
        "auction": outcome.auction,
        "owner": outcome.owner,
        "agreement": "" if agreement is None else agreement.id,
        "amount": None if agreement is None else agreement.terms.amount,
        "processors": None if agreement is None else agreement.processors,
        "limit": outcome.value,
        "bids": outcome.bids,
        "reason": outcome.reason,
    }


def print_bid(outcome: BidOutcome, note: Callable[[str], None]) -> None:
    """Tell people what came of an auction; ``note`` is called with one line."""
    agreement = outcome.agreement
    if agreement is None:
        note(f"lost: {plain(outcome.reason) or 'others bid more, or the reserve was not met'}")
        return
    price = format_amount(agreement.terms.amount, agreement.currency)
    note(
        f"won at {plain(outcome.owner)}: {agreement.processors} processors for "
        f"{span(agreement.seconds)}, {price}"
    )


def _moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(at))


# What a service's owner sees of the business.

HOUR = 3_600.0


def owner_status(
    site: SiteInfo,
    prices: Pricing,
    sales: Mapping[str, AgreementList],
    revenue: RevenueInfo,
    auctions: Sequence[LotInfo],
) -> dict[str, Any]:
    """
    Return the state of a service's business as a JSON document.

    Prices are in currency units per processor-second, amounts in micro-units.
    """
    deals = [deal for sold in sales.values() for deal in sold.agreements]
    running = [deal for deal in deals if deal.state == "running"]
    ahead = [deal for deal in deals if deal.state == "signed"]
    return {
        "owner": site.name,
        "currency": site.currency,
        "processors": site.processors,
        "unit_price": site.unit_price,
        "base": prices.base,
        "rules": len(prices.rules),
        "protocols": list(site.protocols),
        "customers": len(sales),
        "running": len(running),
        "sold": sum(deal.processors for deal in running),
        "ready": sum(deal.ready for deal in running),
        "signed": len(ahead),
        "held": sum(deal.held for deal in deals),
        "revenue": revenue.total,
        "penalties": sum(deal.penalty for deal in deals),
        "auctions": sum(lot.state == "open" for lot in auctions),
    }


def print_status(status: Mapping[str, Any]) -> None:
    """Print the state of a service's business, as :func:`owner_status` has it."""
    from rich.console import Console

    currency = status["currency"]
    price = status["unit_price"]
    rules = "1 rule" if status["rules"] == 1 else f"{status['rules']} rules"
    rows = [
        ("owner", plain(status["owner"])),
        (
            "price",
            "unknown"
            if price is None
            else f"{price * HOUR:.6g} {currency}/core-hour "
            f"(base {status['base'] * HOUR:.6g}, {rules})",
        ),
        ("sells by", ", ".join(status["protocols"]) or "nothing"),
        (
            "running",
            f"{status['running']} agreements, {status['sold']} of {status['processors']} "
            f"processors sold, {status['ready']} ready",
        ),
        ("signed ahead", f"{status['signed']} agreements"),
        ("auctions", f"{status['auctions']} open"),
        ("customers", str(status["customers"])),
        ("set aside", format_amount(status["held"], currency)),
        ("revenue", format_amount(status["revenue"], currency)),
        ("penalties", format_amount(status["penalties"], currency)),
    ]
    Console().print(table_of("", "", rows=rows))


def price_document(prices: Pricing, currency: str, ahead: Sequence[HourlyPrice]) -> dict[str, Any]:
    """
    Return a pricing policy, and what is asked in the hours to come, as a JSON document.

    Prices are in currency units per processor-second, amounts in micro-units.
    """
    rules = [msgspec.to_builtins(rule) for rule in prices.rules]
    hours = [msgspec.structs.asdict(price) for price in ahead]
    return {"base": prices.base, "currency": currency, "rules": rules, "ahead": hours}


def print_hourly_prices(ahead: Sequence[HourlyPrice], currency: str) -> None:
    """Print a row for each begin: unit price and total price, or why nothing is sold."""
    from rich.console import Console

    def unit(price: float | None) -> str:
        return "" if price is None else f"{price * HOUR:.6g}"

    # Prices of bookings are a column only where they are others.
    is_booked = any(price.booked not in (None, price.unit_price) for price in ahead)
    rows = [
        (
            time.strftime("%m-%d %H:%M", time.localtime(price.start)),
            unit(price.unit_price),
            *((unit(price.booked),) if is_booked else ()),
            "" if price.amount is None else format_amount(price.amount, currency),
            plain(price.reason) or ("the reserve" if price.at_reserve else ""),
        )
        for price in ahead
    ]
    heads = ("from", f"{currency}/core-hour", *(("booked now",) if is_booked else ()), "price", "")
    right = slice(1, 4 if is_booked else 3)
    Console().print(table_of(*heads, rows=rows, right=right, whole=slice(1)))


def print_price(prices: Pricing, currency: str) -> None:
    """Print the base price, then a line for each rule."""
    print(f"{prices.base * HOUR:.6g} {currency}/core-hour")
    for rule in prices.rules:
        fields = msgspec.to_builtins(rule)
        kind = fields.pop("kind")
        print(f"  {kind}: {', '.join(f'{key} {value}' for key, value in fields.items())}")


def print_sales(sold: Mapping[str, Sequence[AgreementInfo]]) -> None:
    """Print a row for each agreement, by customer."""
    from rich.console import Console

    if not sold:
        print("no agreements")
        return
    rows = [
        (
            plain(customer),
            plain(deal.id),
            deal.state,
            f"{deal.ready}/{deal.processors}",
            time.strftime("%m-%d %H:%M", time.localtime(deal.start)),
            span(deal.seconds),
            format_amount(deal.charged + deal.held, deal.currency),
            format_amount(deal.penalty, deal.currency) if deal.penalty else "",
        )
        for customer, deals in sold.items()
        for deal in deals
    ]
    heads = ("customer", "agreement", "state", "ready", "from", "for", "amount", "penalty")
    Console().print(table_of(*heads, rows=rows, right=slice(6, None), whole=slice(2)))


def print_revenue(revenue: RevenueInfo) -> None:
    """Print a row for each customer, and the sum."""
    from rich.console import Console

    if revenue.customers:
        rows = [
            (
                plain(one.user),
                str(one.agreements),
                f"{one.processor_seconds:,.1f}",
                format_amount(one.amount, revenue.currency),
                format_amount(one.penalty, revenue.currency) if one.penalty else "",
            )
            for one in revenue.customers
        ]
        heads = ("customer", "charged", "processor-s", "amount", "penalty")
        Console().print(table_of(*heads, rows=rows, right=slice(1, None)))
    print(f"{plain(revenue.owner)}: {format_amount(revenue.total, revenue.currency)}")
