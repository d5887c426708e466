"""A user's money and agreements at a service, as tables."""

import time
from collections.abc import Sequence
from typing import Any

from bursar.model.money import format_amount
from bursar.remote.messages import AccountInfo, AgreementInfo, InvoiceInfo
from bursar.report.formatting import plain


def print_account(account: AccountInfo) -> None:
    """Print what a user's account at a service has left, holds and has spent, on one line."""
    left, held, spent = (
        format_amount(amount, account.currency)
        for amount in (account.balance, account.held, account.spent)
    )
    print(f"{plain(account.user)}: {left} left, {held} held, {spent} spent")


def print_agreements(agreements: Sequence[AgreementInfo]) -> None:
    """A row for each."""
    if not agreements:
        print("no agreements")
        return
    table = _table("agreement", "state", "ready", "from", "charged")
    for deal in agreements:
        table.add_row(
            _text(deal.id),
            deal.state,
            f"{deal.ready}/{deal.processors}",
            _date_text(deal.start),
            format_amount(deal.charged, deal.currency),
        )
    _print(table)


def print_invoice(invoice: InvoiceInfo) -> None:
    """A row for each line, and their sum."""
    if invoice.lines:
        table = _table("what", "from", "processor-s", "amount")
        for line in invoice.lines:
            table.add_row(
                _text(line.what),
                _date_text(line.since),
                f"{line.processor_seconds:,.1f}",
                format_amount(line.amount, invoice.currency),
            )
        _print(table)
    total = format_amount(invoice.total, invoice.currency)
    print(f"{plain(invoice.user)} to {plain(invoice.owner)}: {total}")


def _table(first: str, *others: str) -> Any:
    from rich.table import Table

    table = Table(first, *others, box=None)
    table.columns[0].no_wrap = True  # its id is to be copied
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


def _date_text(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at))


def _text(text: str) -> Any:
    """Without markup: what it holds was written by others."""
    from rich.text import Text

    return Text(plain(text))
