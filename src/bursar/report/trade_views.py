"""What a person sees of a negotiation: offers, refusals, the agreement and the next best offer."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bursar.market.deal_report import OwnerAnswer
from bursar.market.purchasing import TradeResult
from bursar.model.money import format_amount
from bursar.remote.market_messages import LotInfo
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
