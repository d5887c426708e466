"""What a service's owner sees of the business: prices, agreements with customers, revenue."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bursar.model.money import Pricing, format_amount
from bursar.remote.market_messages import LotInfo, RevenueInfo
from bursar.remote.messages import AgreementInfo, AgreementList, SiteInfo
from bursar.report.tables import plain, span, table_of

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


def price_document(prices: Pricing, currency: str) -> dict[str, Any]:
    """Return a pricing policy as a JSON document; the base is per processor-second."""
    rules = [msgspec.to_builtins(rule) for rule in prices.rules]
    return {"base": prices.base, "currency": currency, "rules": rules}


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
