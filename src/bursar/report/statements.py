"""Statements, invoices and the book's rows: as tables for people, as JSON for programs."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.market.account_records import BANK, LedgerAccount
from bursar.market.accounts import Accounts
from bursar.market.grants import DAY, BurnDown, DatedGrant, GrantPeriod, SpendingRate
from bursar.market.statements import Invoice, InvoiceItem, Statement, StatementLine
from bursar.model.money import Micros, Transfer, format_amount, from_micros
from bursar.report.tables import table_of

if TYPE_CHECKING:
    import altair
    from rich.console import Console


def account_to_dict(accounts: Accounts, account: LedgerAccount, now: float) -> dict[str, Any]:
    """Return an account with all balances as JSON."""
    quota = account.quota
    return {
        "name": account.name,
        "kind": account.kind,
        "group": account.group,
        "balance_micros": accounts.balance(account.id),
        "held_micros": accounts.held_by(account.name),
        "quota_micros": None if quota is None else quota.amount,
        "quota_per": None if quota is None else quota.per,
        "used_micros": None if quota is None else accounts.used(account.name, now),
        "grants": [_grant_to_dict(grant) for grant in accounts.grants(account.name)],
    }


def _grant_to_dict(grant: DatedGrant) -> dict[str, Any]:
    return {
        "key": grant.key,
        "memo": grant.memo,
        "begin": _parse_time(grant.period.begin),
        "end": _parse_time(grant.period.end),
        "granted_micros": grant.granted,
        "unpaid_micros": grant.unpaid,
        "left_micros": grant.left,
        "lapsed_micros": grant.lapsed,
    }


def accounts_to_dict(accounts: Accounts, now: float) -> dict[str, Any]:
    """Return all accounts as JSON."""
    return {
        "currency": accounts.currency,
        "granted_micros": -accounts.balance(BANK),
        "rows": len(accounts),
        "accounts": [account_to_dict(accounts, a, now) for a in accounts.accounts.values()],
    }


def row_to_dict(row: Transfer) -> dict[str, Any]:
    """Return a row as JSON."""
    names = {"amount": "amount_micros"}
    return {names.get(name, name): v for name, v in msgspec.structs.asdict(row).items()}


def statement_to_dict(statement: Statement) -> dict[str, Any]:
    """Return a statement as JSON; an open end of the period is null."""
    return {
        "account": statement.account,
        "kind": statement.kind,
        "currency": statement.currency,
        "begin": _parse_time(statement.begin),
        "end": _parse_time(statement.end),
        "opening_micros": statement.opening,
        "closing_micros": statement.closing,
        "closing": from_micros(statement.closing),
        "held_micros": statement.held,
        "parties": [
            {"party": party, "amount_micros": amount}
            for party, amount in statement.by_party.items()
        ],
        "lines": [_line_to_dict(line) for line in statement.lines],
    }


def _line_to_dict(line: StatementLine) -> dict[str, Any]:
    row = line.row
    return {
        "number": row.number,
        "time": row.time,
        "kind": row.kind,
        "party": line.party,
        "agreement": row.agreement,
        "memo": row.memo,
        "amount_micros": line.amount,
        "balance_micros": line.balance,
    }


def invoice_to_dict(invoice: Invoice) -> dict[str, Any]:
    """Return an invoice as JSON; an open end of the period is null."""
    return {
        "provider": invoice.provider,
        "user": invoice.user,
        "currency": invoice.currency,
        "begin": _parse_time(invoice.begin),
        "end": _parse_time(invoice.end),
        "items": [_item_to_dict(item) for item in invoice.items],
        "subtotal_micros": invoice.subtotal,
        "discounts_micros": invoice.discounts,
        "refunds_micros": invoice.refunds,
        "total": from_micros(invoice.total),
        "total_micros": invoice.total,
    }


def _item_to_dict(item: InvoiceItem) -> dict[str, Any]:
    return {
        "agreement": item.agreement,
        "processor_seconds": item.processor_seconds,
        "jobs": item.jobs,
        "price_micros": item.price,
        "discount_micros": item.discount,
        "refunded_micros": item.refunded,
        "total_micros": item.total,
        "memos": list(item.memos),
    }


def burn_downs_to_dict(name: str, currency: str, burns: Sequence[BurnDown]) -> dict[str, Any]:
    """Return the burn-down of each grant of a user as JSON; what is not known is null."""
    return {
        "account": name,
        "currency": currency,
        "grants": [
            {
                **_grant_to_dict(burn.grant),
                "spent_micros": burn.spent,
                "held_micros": burn.held,
                "elapsed": burn.elapsed,
                "rate_micros_per_day": burn.rate.mean if burn.rate.days else None,
                "rate_days": burn.rate.days,
                "unspent_micros": None
                if burn.unspent is None
                else dict(zip(("p50", "p10", "p90"), burn.unspent, strict=True)),
                "spent_from": burn.begins,
                "used_up": burn.used_up,
                "points": [[at, left] for at, left in burn.points],
            }
            for burn in burns
        ],
    }


def print_burn_downs(
    name: str, currency: str, burns: Sequence[BurnDown], console: "Console | None" = None
) -> None:
    """Each grant of a user: what was spent, how fast, and what will be left at the end."""
    console = console or _console()
    for burn in burns:
        grant = burn.grant
        memo = f" ({grant.memo})" if grant.memo else ""
        title = f"{name}: {format_amount(grant.granted, currency)}{_within(grant.period)}{memo}"
        of_time = "" if burn.elapsed is None else f"; {burn.elapsed:.0%} of the time is over"
        said = {
            "spent": _share(burn.spent, grant.granted, currency) + of_time,
            "held": format_amount(burn.held, currency) if burn.held else "",
            "left": format_amount(grant.left, currency),
            "lapsed": format_amount(grant.lapsed, currency) if grant.lapsed else "",
            "rate": _rate(burn.rate, currency),
            "forecast": _forecast_of(burn, currency),
        }
        console.print(_plain(title))
        for label, text in said.items():
            if text:
                console.print(f"  {label:<8}  {_plain(text)}", soft_wrap=True)


def _rate(rate: SpendingRate, currency: str) -> str:
    if not rate.days:
        return ""
    amount = format_amount(round(rate.mean), currency)
    return f"{amount} a day over the last {max(1, round(rate.days))} days"


def _forecast_of(burn: BurnDown, currency: str) -> str:
    """Say what will be left of a grant at its end, or when the grant will be used up."""
    period = burn.grant.period
    if burn.now >= period.end:
        return "has ended"
    if not burn.rate.days:
        return "unknown: nothing was spent yet"
    if burn.used_up is not None:
        early = (
            f", {(period.end - burn.used_up) / DAY:.0f} days before the end"
            if math.isfinite(period.end)
            else ""
        )
        said = f"used up on {_day(burn.used_up)}{early}"
        if burn.unspent is not None and burn.unspent[2]:
            said += f"; 1 case in 10 leaves {format_amount(burn.unspent[2], currency)} or more"
        return said
    if burn.unspent is None:
        return "nothing is spent now"
    middle, least, most = (format_amount(micros, currency) for micros in burn.unspent)
    bounds = f" ({least} to {most} in 8 cases of 10)" if least != most else ""
    return f"{middle} unspent at the end, on {_day(period.end - 1)}{bounds}"


def _share(part: Micros, whole: Micros, currency: str) -> str:
    return f"{format_amount(part, currency)} ({part / whole:.0%})"


def _within(period: GrantPeriod) -> str:
    begin = f" from {_day(period.begin)}" if math.isfinite(period.begin) else ""
    return begin + (f" until {_day(period.end - 1)}" if math.isfinite(period.end) else "")


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def burn_down_chart(currency: str, burns: Sequence[BurnDown]) -> "altair.TopLevelMixin":
    """
    Draw what is left of each grant against time, an even pace, and the forecast.

    The band is where 8 cases of 10 end.
    """
    import altair as alt

    charts = []
    for burn in burns:
        grant, period = burn.grant, burn.grant.period
        left = [*burn.points, (burn.now, grant.unpaid)]
        rows = [{"t": 1e3 * at, "left": from_micros(micros), "what": "left"} for at, micros in left]
        begin = period.begin if math.isfinite(period.begin) else burn.points[0][0]
        band = []
        if math.isfinite(period.end):
            rows += [
                {"t": 1e3 * begin, "left": from_micros(grant.granted), "what": "even pace"},
                {"t": 1e3 * period.end, "left": 0.0, "what": "even pace"},
            ]
            if burn.unspent is not None:
                now = from_micros(grant.unpaid)
                start = burn.begins or period.end
                middle, least, most = (from_micros(micros) for micros in burn.unspent)
                band = [
                    {"t": 1e3 * start, "least": now, "most": now},
                    {"t": 1e3 * period.end, "least": least, "most": most},
                ]
                end = burn.used_up or period.end
                rows += [
                    {"t": 1e3 * burn.now, "left": now, "what": "forecast"},
                    {"t": 1e3 * start, "left": now, "what": "forecast"},
                    {"t": 1e3 * end, "left": middle, "what": "forecast"},
                ]
        x = alt.X("t:T", title=None, scale=alt.Scale(type="utc"))
        y = alt.Y("left:Q", title=f"left, {currency}", scale=alt.Scale(zero=True))
        names = ["left", "forecast", "even pace"]
        line = (
            alt.Chart(alt.InlineData(values=rows))
            .mark_line(interpolate="linear")
            .encode(
                x=x,
                y=y,
                color=alt.Color(
                    "what:N",
                    title=None,
                    scale=alt.Scale(domain=names, range=["#2563a8", "#b4540a", "#888888"]),
                ),
                strokeDash=alt.StrokeDash(
                    "what:N",
                    title=None,
                    scale=alt.Scale(domain=names, range=[[1, 0], [6, 4], [2, 3]]),
                ),
            )
        )
        area = (
            alt.Chart(alt.InlineData(values=band))
            .mark_area(opacity=0.2, color="#b4540a")
            .encode(x=x, y=alt.Y("least:Q"), y2="most:Q")
        )
        title = f"{format_amount(grant.granted, currency)}{_within(period)}"
        charts.append(
            alt.LayerChart(layer=[area, line]).properties(width=520, height=260, title=title)
        )
    return alt.vconcat(*charts)


def print_accounts(accounts: Accounts, now: float, console: "Console | None" = None) -> None:
    """All accounts with their balances."""
    console = console or _console()
    if not accounts.accounts:
        console.print("no accounts")
        return
    titles = ("account", "kind", "group", "free or earned", "held", "quota", "of it used")
    table = table_of(*titles, right=slice(3, None))
    for account in accounts.accounts.values():
        quota = account.quota
        limit = used = ""
        if quota is not None:
            per = "in all" if quota.per == "all" else f"per {quota.per}"
            limit = f"{format_amount(quota.amount, accounts.currency)} {per}"
            used = format_amount(accounts.used(account.name, now), accounts.currency)
        held = accounts.held_by(account.name)
        table.add_row(
            _plain(account.name),
            account.kind,
            _plain(account.group),
            format_amount(accounts.balance(account.id), accounts.currency),
            format_amount(held, accounts.currency) if held else "",
            limit,
            used,
        )
    console.print(table)
    for account in accounts.accounts.values():
        for grant in accounts.grants(account.name):
            if grant.left:
                left = format_amount(grant.left, accounts.currency)
                ended = " (has ended)" if grant.period.end <= now else ""
                line = f"{account.name}: {left} may be spent{_within(grant.period)}{ended}"
                console.print(_plain(line))


def print_rows(rows: Sequence[Transfer], currency: str, console: "Console | None" = None) -> None:
    """The rows of a book."""
    console = console or _console()
    if not rows:
        console.print("no rows")
        return
    cells = [
        (
            str(row.number),
            _clock(row.time),
            row.kind,
            _plain(row.source),
            _plain(row.target),
            format_amount(row.amount, currency),
            _plain(row.memo),
        )
        for row in rows
    ]
    titles = ("row", "time (UTC)", "kind", "from", "to", "amount", "memo")
    console.print(table_of(*titles, rows=cells, right=slice(5, 6)))


def print_statement(statement: Statement, console: "Console | None" = None) -> None:
    """A statement: what there was, what happened, what there is."""
    console = console or _console()
    currency = statement.currency

    def amount(micros: Micros) -> str:
        return format_amount(micros, currency)

    console.print(_plain(f"{statement.kind} {statement.account}{_period_of(statement)}"))
    titles = ("time (UTC)", "kind", "with", "agreement", "memo", "amount", "balance")
    table = table_of(*titles, right=slice(5, None))
    table.add_row("", "opening", "", "", "", "", amount(statement.opening))
    for line in statement.lines:
        table.add_row(
            _clock(line.row.time),
            line.row.kind,
            _plain(line.party),
            _plain(line.row.agreement),
            _plain(line.row.memo),
            amount(line.amount),
            amount(line.balance),
        )
    table.add_row("", "closing", "", "", "", "", amount(statement.closing), style="bold")
    console.print(table)
    if statement.held:
        console.print(f"of this held for agreements: {amount(statement.held)}")


def print_invoice(invoice: Invoice, console: "Console | None" = None) -> None:
    """An invoice: agreements, subtotal, discounts, refunds, total."""
    console = console or _console()
    currency = invoice.currency

    def amount(micros: Micros) -> str:
        return format_amount(micros, currency) if micros else ""

    console.print(_plain(f"{invoice.provider} to {invoice.user}{_period_of(invoice)}"))
    titles = ("agreement", "processor time", "price", "discount", "refunded", "total")
    table = table_of(*titles, right=slice(1, None))
    for item in invoice.items:
        seconds = item.processor_seconds
        table.add_row(
            _plain(item.agreement),
            "" if seconds is None else f"{seconds:,.1f} s",
            amount(item.price),
            amount(-item.discount),
            amount(-item.refunded),
            format_amount(item.total, currency),
        )
    console.print(table)
    console.print()
    console.print(f"subtotal: {format_amount(invoice.subtotal, currency)}")
    if invoice.discounts:
        console.print(f"discounts: {amount(-invoice.discounts)}")
    if invoice.refunds:
        console.print(f"refunds: {amount(-invoice.refunds)}")
    console.print(f"total: {format_amount(invoice.total, currency)}", style="bold")


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


def _plain(text: str) -> str:
    """Escape a name or memo, so that brackets are no markup."""
    from rich.markup import escape

    return escape(text)


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))


def _parse_time(moment: float) -> float | None:
    return moment if math.isfinite(moment) else None


def _period_of(paper: Statement | Invoice) -> str:
    if not math.isfinite(paper.begin) or not math.isfinite(paper.end):
        return ""
    return f", {_clock(paper.begin)} until {_clock(paper.end)} UTC"
