"""
Makes statements, invoices and burn-downs from the rows of a book.

All are made of rows alone, so their totals are the book's to the micro-unit;
usage records add what was delivered for the money.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bursar.market.account_records import AgreementBalance
from bursar.market.accounts import Accounts
from bursar.market.agreement import UsageRecord
from bursar.market.grants import BurnDown, DatedGrants, forecast, measure_rate
from bursar.market.ledger import bare_name
from bursar.model.money import Micros, Transfer

_K = TypeVar("_K")

ALWAYS = (-math.inf, math.inf)
"""The period of all time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """
    Shows one row from the side of one account.

    Parameters
    ----------
    party
        The other one: a provider, a user, or the bank.
    amount
        Micro-units; negative where it was paid.
    balance
        Balance of the account afterwards, including holds.
    """

    row: Transfer
    party: str
    amount: Micros
    balance: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """
    Lists the movements of one account in a period.

    What a user's agreements hold is the user's until it is paid. So
    ``opening`` and the amounts of the lines sum to ``closing``.

    Parameters
    ----------
    account, kind
        Name of the account, and ``"user"`` or ``"provider"``.
    begin, end
        The period, seconds since the epoch; infinite where it has no end.
    opening, closing
        Balances before and after the period, micro-units.
    held
        Part of ``closing`` that was set aside.
    """

    account: str
    kind: str
    currency: str
    begin: float
    end: float
    opening: Micros
    closing: Micros
    held: Micros
    lines: tuple[StatementLine, ...]

    @property
    def by_party(self) -> dict[str, Micros]:
        """Sum of the lines with each other party."""
        return _sums((line.party, line.amount) for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceItem:
    """
    Shows one agreement on an invoice.

    Parameters
    ----------
    price
        At list price, micro-units.
    discount
        Taken off it.
    refunded
        Given back in the period.
    processor_seconds
        Delivered, as metered in the period; None when nothing was metered.
    jobs
        Number of metered jobs.
    """

    agreement: str
    price: Micros
    discount: Micros = 0
    refunded: Micros = 0
    processor_seconds: float | None = None
    jobs: int = 0
    memos: tuple[str, ...] = ()

    @property
    def total(self) -> Micros:
        """Price less discount and refunds, micro-units."""
        return self.price - self.discount - self.refunded


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """
    Lists what a provider charged a user in a period.

    The total is negative where more was refunded than paid in the period.

    Parameters
    ----------
    begin, end
        The period, seconds since the epoch.
    items
        Items by agreement, in the order first paid.
    """

    provider: str
    user: str
    currency: str
    begin: float
    end: float
    items: tuple[InvoiceItem, ...]

    @property
    def subtotal(self) -> Micros:
        """Sum at list prices, micro-units."""
        return sum(item.price for item in self.items)

    @property
    def discounts(self) -> Micros:
        """Sum taken off the list prices, micro-units."""
        return sum(item.discount for item in self.items)

    @property
    def refunds(self) -> Micros:
        """Sum given back, micro-units."""
        return sum(item.refunded for item in self.items)

    @property
    def total(self) -> Micros:
        """Sum that was paid and kept according to the rows."""
        return self.subtotal - self.discounts - self.refunds


@dataclass(frozen=True, slots=True)
class LedgerDifference:
    """
    Describes a payment or refund on which two books do not agree.

    Parameters
    ----------
    user, provider
        Payments by each book, micro-units, negative for a refund; None: no such payment.
    """

    key: str
    agreement: str
    user: Micros | None
    provider: Micros | None

    def __str__(self) -> str:
        def said(amount: Micros | None) -> str:
            return "nothing" if amount is None else str(amount)

        return (
            f"{self.agreement}, {self.key}: {said(self.user)} for the user, "
            f"{said(self.provider)} for the provider"
        )


def make_statement(
    accounts: Accounts, name: str, begin: float = ALWAYS[0], end: float = ALWAYS[1]
) -> Statement:
    """
    Make the statement of a user or provider, from ``begin`` until before ``end``.

    Raises
    ------
    InputError
        When there is no such account.
    """
    account = accounts.known(name)
    found: list[tuple[Transfer, str, Micros]] = []
    opening = held = 0
    for row in accounts.rows:
        if row.time >= end:
            continue
        owner = _owner(row, accounts.agreements)
        if owner == name:
            # Holds and releases stay in the user's hand: only what is paid leaves it.
            held += row.amount * ((row.kind == "hold") - (row.kind in ("release", "settle")))
        for party, amount in _effects(row, account.id, owner):
            if row.time < begin:
                opening += amount
            else:
                found.append((row, party, amount))
    # Only now: rows are in the order made, which need not be that of their times.
    closing, lines = opening, []
    for row, party, amount in found:
        closing += amount
        lines.append(StatementLine(row=row, party=party, amount=amount, balance=closing))
    return Statement(
        account=name,
        kind=account.kind,
        currency=accounts.currency,
        begin=begin,
        end=end,
        opening=opening,
        closing=closing,
        held=held,
        lines=tuple(lines),
    )


def make_invoice(
    accounts: Accounts,
    provider: str,
    user: str,
    begin: float = ALWAYS[0],
    end: float = ALWAYS[1],
    *,
    usage: Iterable[UsageRecord] = (),
    list_prices: Mapping[str, Micros] | None = None,
) -> Invoice:
    """
    Make an invoice of a provider's charges to a user, from ``begin`` until before ``end``.

    Parameters
    ----------
    usage
        Metered usage; records of other parties are ignored.
    list_prices
        Micro-units that what an agreement was paid for in the period would have come
        to without a discount; without it, and never less than, what was paid.

    Raises
    ------
    InputError
        When there is no such provider or user.
    """
    accounts.known(provider, "provider")
    accounts.known(user, "user")
    paid: dict[str, Micros] = defaultdict(int)
    refunded: dict[str, Micros] = defaultdict(int)
    memos: dict[str, list[str]] = defaultdict(list)
    for row in rows_between(accounts, user, provider):
        if begin <= row.time < end:
            (paid if row.kind == "settle" else refunded)[row.agreement] += row.amount
            if row.memo:
                memos[row.agreement].append(row.memo)
    delivered: dict[str, list[float]] = defaultdict(list)
    for record in usage:
        mine = record.provider == provider and record.customer == user
        if mine and begin <= record.end < end:
            delivered[record.agreement].append(record.owed)
    items = []
    for agreement in dict.fromkeys([*paid, *refunded]):
        price = paid[agreement]
        if price and list_prices is not None:
            price = max(price, list_prices.get(agreement, 0))
        seconds = delivered.get(agreement)
        items.append(
            InvoiceItem(
                agreement=agreement,
                price=price,
                discount=price - paid[agreement],
                refunded=refunded[agreement],
                processor_seconds=None if seconds is None else math.fsum(seconds),
                jobs=len(seconds or ()),
                memos=tuple(memos[agreement]),
            )
        )
    return Invoice(
        provider=provider,
        user=user,
        currency=accounts.currency,
        begin=begin,
        end=end,
        items=tuple(items),
    )


def rows_between(
    accounts: Accounts, user: str | None = None, provider: str | None = None
) -> list[Transfer]:
    """
    List payments and refunds, in the order made.

    Parameters
    ----------
    user, provider
        Party whose rows are wanted; None: all.
    """
    found = []
    for row in accounts.rows:
        if row.kind in ("settle", "refund"):
            agreement = accounts.agreements[row.agreement]
            if user in (None, agreement.user) and provider in (None, agreement.provider):
                found.append(row)
    return found


def reconcile(
    user_rows: Sequence[Transfer], provider_rows: Sequence[Transfer]
) -> list[LedgerDifference]:
    """
    List where a user's book and a provider's book differ, to the micro-unit.

    Payments and refunds are matched by key and agreement; the moment, the number
    and the other rows are each book's own. A key that a book has twice counts twice.

    Returns
    -------
    list of LedgerDifference
        Empty when both say the same.
    """
    mine, theirs = _payments(user_rows), _payments(provider_rows)
    return [
        LedgerDifference(key, agreement, mine.get((key, agreement)), theirs.get((key, agreement)))
        for key, agreement in dict.fromkeys([*mine, *theirs])
        if mine.get((key, agreement)) != theirs.get((key, agreement))
    ]


def make_burn_downs(accounts: Accounts, user: str, now: float) -> list[BurnDown]:
    """
    Say how each of a user's grants with a period is spent, and what will be left at its end.

    Returns
    -------
    list of BurnDown
        The grant that ends first, first.

    Raises
    ------
    InputError
        When there is no such user.
    """
    account = accounts.known(user, "user").id
    again = DatedGrants()
    points: dict[str, list[tuple[float, Micros]]] = {}
    payments: list[tuple[float, Micros]] = []
    signs = {"settle": 1, "refund": -1}
    for row in accounts.rows:
        found = accounts.agreements.get(row.agreement)
        if account not in (row.source, row.target, None if found is None else found.payer):
            continue
        if row.kind in signs:
            payments.append((row.time, signs[row.kind] * row.amount))
        if row.agreement and (again.grants or row.kind == "grant"):
            again.follow(row)
        for grant in again.grants:
            line = points.setdefault(grant.key, [])
            if not line or line[-1][1] != grant.unpaid:
                line.append((row.time, grant.unpaid))
    grants = again.grants
    since = min([at for at, _ in payments], default=now)
    begun = [grant.period.begin for grant in grants if grant.period.begin <= now]
    # Spending is known from the first grant's begin on, also where nothing was spent at first.
    since = min([since, *(at for at in begun if math.isfinite(at))])
    return forecast(
        grants, [points[g.key] for g in grants], measure_rate(payments, since, now), now
    )


def _payments(rows: Iterable[Transfer]) -> dict[tuple[str, str], Micros]:
    signs = {"settle": 1, "refund": -1}
    return _sums(
        ((row.key, row.agreement), signs[row.kind] * row.amount)
        for row in rows
        if row.kind in signs
    )


def _owner(row: Transfer, agreements: Mapping[str, AgreementBalance]) -> str | None:
    """Return the user of the agreement that a row belongs to; None: it belongs to none."""
    found = agreements.get(row.agreement)
    return None if found is None else found.user


def _effects(row: Transfer, account: str, owner: str | None) -> Iterator[tuple[str, Micros]]:
    """Yield a row's other party and amount for an account; nothing for holds and releases."""
    if row.kind in ("hold", "release"):
        return
    source = f"user:{owner}" if row.kind == "settle" else row.source
    if account == source:
        yield bare_name(row.target), -row.amount
    elif account == row.target:
        yield bare_name(source), row.amount


def _sums(pairs: Iterable[tuple[_K, Micros]]) -> dict[_K, Micros]:
    sums: dict[_K, Micros] = {}
    for what, amount in pairs:
        sums[what] = sums.get(what, 0) + amount
    return sums
