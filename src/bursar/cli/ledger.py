"""``bursar ledger``: the book of many users, providers and runs."""

import math
import secrets
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bursar.cli.options import RUNS, AsJson, BilledIn, RunName, RunsFolder, print_json, print_note
from bursar.cli.usage import BOOK, BookFile, check_usage, make_key, sign_usage

if TYPE_CHECKING:
    from bursar.formats.units import Period
    from bursar.market.account_records import SpendingQuota
    from bursar.market.book import Book, BookState
    from bursar.model.money import Micros, Payer, Refusal, Transfer
    from bursar.runs.run_record import RunRecord

WAIT = 10.0
"""Seconds a command waits while another one writes."""

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the account.", show_default=False)
]
Amount = Annotated[
    str,
    typer.Argument(
        metavar="AMOUNT", help='Amount of money: 12.5 or "12.5 SU".', show_default=False
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Idempotency key: a second operation with the same key moves no money.",
    ),
]
_QuotaPer = Annotated[
    str,
    typer.Option(
        "--per",
        metavar="PERIOD",
        help="Period to which the quota applies: all, year, month or day.",
    ),
]
_T = TypeVar("_T")


def register(app: typer.Typer) -> None:
    """Add ``bursar ledger`` to the command line."""
    ledger = typer.Typer(
        no_args_is_help=True,
        help="Keep the accounts of users and providers over all runs.",
    )
    for name, command in (
        ("accounts", list_accounts),
        ("open", open_account),
        ("quota", set_quota),
        ("grant", grant),
        ("lapse", lapse),
        ("charge", charge_run),
        ("refund", refund),
        ("release", release),
        ("burndown", show_burn_down),
        ("statement", show_statement),
        ("invoice", show_invoice),
        ("rows", list_rows),
        ("verify", verify_book),
        ("key", make_key),
        ("sign", sign_usage),
        ("check", check_usage),
    ):
        ledger.command(name)(command)
    app.add_typer(ledger, name="ledger")


def list_accounts(book: BookFile = BOOK, as_json: AsJson = False) -> None:
    """List the accounts with their balances."""
    from bursar.report.statements import accounts_to_dict, print_accounts

    accounts = _read(book).accounts
    if as_json:
        print_json(accounts_to_dict(accounts, time.time()))
    else:
        print_accounts(accounts, time.time())


def open_account(
    name: Name,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Kind of account: user or provider.")
    ] = "user",
    group: Annotated[
        str,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Group of the account; users may transfer money within their group.",
        ),
    ] = "",
    quota: Annotated[
        str | None,
        typer.Option(
            "--quota", metavar="AMOUNT", help="Largest cost of the user's runs in each period."
        ),
    ] = None,
    per: _QuotaPer = "all",
    currency: Annotated[
        str | None,
        typer.Option(
            "--currency", metavar="NAME", help="Currency, if the book is new. Default: SU."
        ),
    ] = None,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """Open an account. Creates the book if there is none."""
    from bursar.market.account_records import LedgerAccount
    from bursar.market.book import Book
    from bursar.model.errors import InputError

    if kind not in ("user", "provider"):
        raise InputError(f'--kind: expected user or provider, got "{kind}"')
    if currency is None and not book.exists():
        currency = "SU"
    # Before the book is made: bad input makes none.
    bounds = None if quota is None else _quota(quota, per, currency)
    try:
        account = LedgerAccount(
            name=name,
            kind="user" if kind == "user" else "provider",
            group=group,
            quota=bounds,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    with Book(book, currency=_currency(currency), wait=WAIT) as opened:
        if quota is not None:
            _quota(quota, per, opened.currency)
        _done(opened.open_account(account))
        _show_account(opened, name, as_json)


def set_quota(
    name: Name,
    amount: Annotated[
        str,
        typer.Argument(
            metavar="AMOUNT",
            help='Amount of money: 12.5, "12.5 SU", or "none" for no limit.',
            show_default=False,
        ),
    ],
    per: _QuotaPer = "all",
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """Change a user's quota."""
    from bursar.market.book import Book

    with Book(book, wait=WAIT) as opened:
        opened.known(name, "user")
        quota = None if amount == "none" else _quota(amount, per, opened.currency)
        _done(opened.set_quota(name, quota))
        _show_account(opened, name, as_json)


def grant(
    name: Name,
    amount: Amount,
    memo: Annotated[
        str,
        typer.Option("--memo", metavar="TEXT", help="Text that is written into the ledger's row."),
    ] = "",
    period: Annotated[
        str | None,
        typer.Option(
            "--period",
            metavar="PERIOD",
            help="Time in which the amount may be spent, in UTC: 2026, 2026-11, 2026-11-21 or "
            "A..B. What is left at the end lapses. Default: for ever.",
        ),
    ] = None,
    key: Key = None,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """Add to a user's allocation, for ever or for a time."""
    from bursar.market.book import Book
    from bursar.market.grants import GrantPeriod
    from bursar.model.errors import InputError

    now = time.time()
    within = None if period is None else GrantPeriod(*_period(period))
    if within is not None and within.end <= now:
        raise InputError(f'--period: expected a time that is not over, got "{period}"')
    with Book(book, wait=WAIT) as opened:
        opened.known(name, "user")
        micros = _micros(amount, opened.currency)
        with opened.together():
            opened.lapse(now)
            row = _done(opened.grant(now, key or _fresh(), name, micros, memo=memo, period=within))
        _show_rows([row], opened.currency, as_json)


def lapse(book: BookFile = BOOK, as_json: AsJson = False) -> None:
    """Give back to the bank what is left of grants that have ended."""
    from bursar.market.book import Book

    with Book(book, wait=WAIT) as opened:
        with opened.together():
            rows = opened.lapse(time.time())
        _show_rows(rows, opened.currency, as_json)


def show_burn_down(
    name: Name,
    chart: Annotated[
        Path | None,
        typer.Option(
            "--chart",
            metavar="FILE",
            help="Draw also a chart into this file (.html, .png or .svg).",
        ),
    ] = None,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """Show how fast a user's grants are spent, and what will be left when they end."""
    from bursar.market.statements import make_burn_downs
    from bursar.model.errors import InputError
    from bursar.report.statements import burn_down_chart, burn_downs_to_dict, print_burn_downs

    accounts = _read(book).accounts
    burns = make_burn_downs(accounts, name, time.time())
    if not burns:
        raise InputError(
            f"{name} has no grant with a period",
            hint="bursar ledger grant NAME AMOUNT --period 2026-10..2027-03",
        )
    if chart is not None:
        from bursar.report.charts import SAVED_AS, save_chart

        if chart.suffix not in SAVED_AS:
            raise InputError(f"--chart: expected {', '.join(SAVED_AS)}, got {chart.name}")
        save_chart(burn_down_chart(accounts.currency, burns), chart)
        print_note(f"chart: {chart}")
    if as_json:
        print_json(burn_downs_to_dict(name, accounts.currency, burns))
    else:
        print_burn_downs(name, accounts.currency, burns)


def charge_run(
    run: RunName,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="User who pays.")],
    runs: RunsFolder = RUNS,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """
    Record what a run paid to each site, once: all of it or nothing.

    A run with --account does so itself; where it could not, this command does what is left.
    Accounts of providers are opened when they are first paid. The record is refused (exit status
    4) beyond the user's allocation or quota.
    """
    from bursar.market.book import read_book
    from bursar.model.money import Payer
    from bursar.runs.folder import RunFolder
    from bursar.runs.payments import lock_account, settle_run
    from bursar.runs.run_record import read_run

    folder = RunFolder.open(runs, run)
    payer = Payer(account=user, book=str(book.absolute()))
    with lock_account(folder):
        record = read_run(folder)
        _check_ended(record)
        _check_payer(record, payer)
        before = read_book(book).accounts
        before.known(user, "user")
        rows = settle_run(folder, payer)
        after = read_book(book).accounts
    if rows and len(after) == len(before):
        print_note(f"{folder.name} is booked already")
    _show_rows(rows, after.currency, as_json)


def release(
    agreement: Annotated[
        str,
        typer.Argument(
            metavar="AGREEMENT",
            help="Agreement, as the ledger's rows name it: RUN/budget.",
            show_default=False,
        ),
    ],
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Text that is written into the ledger's row."
        ),
    ],
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """
    Return to a user all that an agreement holds, for example of a run whose folder is lost.

    A run that goes on takes what it pays later out of the user's allocation, if that allows it.
    """
    from bursar.market.book import Book
    from bursar.model.errors import InputError, spelling_hint

    if not reason.strip():
        raise InputError("--reason: expected some text")
    with Book(book, wait=WAIT) as opened:
        found = opened.agreements.get(agreement)
        if found is None:
            hint = spelling_hint(agreement, opened.agreements)
            raise InputError(f'no agreement "{agreement}"', hint=hint)
        if not found.held:
            raise InputError(f"{agreement} holds nothing")
        row = _done(opened.release(time.time(), _fresh(), agreement, found.held, memo=reason))
        _show_rows([row], opened.currency, as_json)


def refund(
    agreement: Annotated[
        str,
        typer.Argument(
            metavar="AGREEMENT",
            help="Agreement, as the ledger's rows name it: RUN/LEASE.",
            show_default=False,
        ),
    ],
    amount: Amount,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Text that is written into the ledger's row."
        ),
    ],
    key: Key = None,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """Refund a user what a provider was paid but did not deliver."""
    from bursar.market.book import Book
    from bursar.model.errors import InputError, spelling_hint

    if not reason.strip():
        raise InputError("--reason: expected some text")
    with Book(book, wait=WAIT) as opened:
        if agreement not in opened.agreements:
            hint = spelling_hint(agreement, opened.agreements)
            raise InputError(f'no agreement "{agreement}"', hint=hint)
        micros = _micros(amount, opened.currency)
        row = _done(opened.refund(time.time(), key or _fresh(), agreement, micros, memo=reason))
        _show_rows([row], opened.currency, as_json)


def show_statement(
    name: Name, period: BilledIn = None, book: BookFile = BOOK, as_json: AsJson = False
) -> None:
    """Show an account's statement."""
    from bursar.market.statements import make_statement
    from bursar.report.statements import print_statement, statement_to_dict

    within = _period(period)
    statement = make_statement(_read(book).accounts, name, *within)
    if as_json:
        print_json(statement_to_dict(statement))
    else:
        print_statement(statement)


def show_invoice(
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="Name of the provider.", show_default=False)
    ],
    user: Annotated[
        str, typer.Argument(metavar="USER", help="Name of the user.", show_default=False)
    ],
    period: BilledIn = None,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """Show what a provider charged a user."""
    from bursar.market.statements import make_invoice
    from bursar.report.statements import invoice_to_dict, print_invoice

    within = _period(period)
    state = _read(book)
    invoice = make_invoice(state.accounts, provider, user, *within, usage=state.usage)
    if as_json:
        print_json(invoice_to_dict(invoice))
    else:
        print_invoice(invoice)


def list_rows(
    account: Annotated[
        str | None,
        typer.Option(
            "--account",
            metavar="NAME",
            help="Show only rows of this account and of its agreements.",
        ),
    ] = None,
    period: BilledIn = None,
    book: BookFile = BOOK,
    as_json: AsJson = False,
) -> None:
    """List the ledger's rows, the oldest first."""

    begin, end = _period(period)
    accounts = _read(book).accounts
    rows = [row for row in accounts.rows if begin <= row.time < end]
    if account is not None:
        found = accounts.known(account).id
        theirs = {
            agreement
            for agreement, what in accounts.agreements.items()
            if found == f"user:{what.user}"
        }
        rows = [r for r in rows if found in (r.source, r.target) or r.agreement in theirs]
    _show_rows(rows, accounts.currency, as_json)


def verify_book(book: BookFile = BOOK, as_json: AsJson = False) -> None:
    """Check that balances sum to zero and follow from the rows, and that no row was changed."""
    from bursar.model.errors import BursarError

    state = _read(book)  # holds every row against the chain and against those before it
    faults = state.accounts.faults()
    if as_json:
        print_json({"rows": len(state.accounts), "head": state.head, "faults": faults})
    elif not faults:
        print(f"{len(state.accounts)} rows are in order, up to {state.head}")
    if faults:
        raise BursarError(f"{book}: {'; '.join(faults)}")


# Inside.


def _check_ended(record: "RunRecord") -> None:
    from bursar.model.errors import InputError

    name, state = record.folder.name, record.info.state
    if state in ("new", "running"):
        raise InputError(f'run "{name}" has not ended: it is {state}')
    if record.ledger.held:
        raise InputError(
            f'run "{name}" was cut off with money set aside',
            hint=f"end it first: bursar run --resume {name}",
        )


def _check_payer(record: "RunRecord", payer: "Payer") -> None:
    """A run that an account pays for is charged to no other, and in no other book."""
    from bursar.model.errors import InputError

    theirs = record.info.payer
    if theirs is None:
        return
    name = record.folder.name
    if theirs.account != payer.account:
        raise InputError(f'run "{name}" was charged to {theirs.account}')
    if Path(theirs.book).resolve() != Path(payer.book).resolve():
        raise InputError(f'run "{name}" is in the book {theirs.book}', where="--book")


def _done(answer: "_T | Refusal") -> "_T":
    """Return an answer, or end the command by a refusal: bad input, or too little money."""
    from bursar.model.errors import BudgetStop, InputError
    from bursar.model.money import Refusal

    if isinstance(answer, Refusal):
        raise InputError(answer.reason) if answer.final else BudgetStop(answer.reason)
    return answer


def _micros(text: str, currency: str | None) -> "Micros":
    """An amount to the micro-unit: what is paid is what was written."""
    from bursar.formats.units import parse_amount
    from bursar.model.errors import InputError
    from bursar.model.money import MICROS

    _, named = parse_amount(text)
    if named is not None and currency is not None and named != currency:
        raise InputError(f'the book is in {currency}, got "{text}"')
    # Not by way of a float, which has no room for all the digits of a large amount.
    exact = Fraction(Decimal(text.strip().removesuffix(named or "").strip())) * MICROS
    if exact.denominator != 1:
        raise InputError(f'an amount has at most six decimals, got "{text}"')
    return int(exact)


def _quota(text: str, per: str, currency: str | None) -> "SpendingQuota":
    from bursar.market.account_records import SpendingQuota
    from bursar.model.errors import InputError

    try:
        return SpendingQuota(amount=_micros(text, currency), per=per)  # type: ignore[arg-type]
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None


def _currency(name: str | None) -> str | None:
    """Return ``--currency`` if it is a valid name, otherwise raise InputError; None stays None."""
    from bursar.model.errors import InputError
    from bursar.model.money import check_currency

    try:
        return None if name is None else check_currency(name)
    except ValueError as error:
        raise InputError(str(error), where="--currency") from None


def _period(text: str | None) -> tuple[float, float]:
    from bursar.formats.units import parse_period

    if text is None:
        return -math.inf, math.inf
    period: Period = parse_period(text)
    return period.begin, period.end


def _read(book: Path) -> "BookState":
    """Read a book, or the accounts of the service in a folder."""
    from bursar.market.book import read_book

    if not book.is_dir():
        return read_book(book)
    from bursar.service.billing.service_ledger import read_service_accounts

    return read_service_accounts(book)


def _fresh() -> str:
    return f"once {secrets.token_hex(8)}"


def _show_rows(rows: "list[Transfer] | tuple[Transfer, ...]", currency: str, as_json: bool) -> None:
    from bursar.report.statements import print_rows, row_to_dict

    if as_json:
        print_json({"currency": currency, "rows": [row_to_dict(row) for row in rows]})
    else:
        print_rows(rows, currency)


def _show_account(book: "Book", name: str, as_json: bool) -> None:
    from bursar.report.statements import account_to_dict

    if as_json:
        print_json(account_to_dict(book, book.known(name), time.time()))
    else:
        print_note(f"{book.known(name).kind} {name} is open")
