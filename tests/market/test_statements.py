"""Statements and invoices add up to the rows; two books are held against each other."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.formats.units import Period, parse_period
from bursar.market.account_records import LedgerAccount
from bursar.market.accounts import Accounts
from bursar.market.agreement import UsageRecord
from bursar.market.statements import (
    LedgerDifference,
    make_invoice,
    make_statement,
    reconcile,
    rows_between,
)
from bursar.model.errors import InputError
from bursar.model.money import Transfer
from bursar.report.statements import invoice_to_dict, statement_to_dict

USERS, PROVIDERS = ("ann", "ben"), ("uni", "cloud")
DAY = 86400.0

moves = st.tuples(
    st.sampled_from(["grant", "transfer", "hold", "settle", "release", "refund"]),
    st.sampled_from(USERS),
    st.sampled_from(PROVIDERS),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 400),
    st.integers(0, 60),
)


def opened() -> Accounts:
    return Accounts(
        "SU",
        [
            *(LedgerAccount(name=name, group="lab") for name in USERS),
            *(LedgerAccount(name=name, kind="provider") for name in PROVIDERS),
        ],
    )


def played(history: list[tuple[str, str, str, str, int, int]]) -> Accounts:
    """Accounts after it, what is refused left out."""
    accounts = opened()
    for name in USERS:
        accounts.grant(0.0, f"first {name}", name, 500)
    for number, (kind, user, provider, agreement, amount, day) in enumerate(history):
        now, key = day * DAY, str(number)
        if kind == "grant":
            accounts.grant(now, key, user, amount)
        elif kind == "transfer":
            accounts.transfer(now, key, user, "ann" if user == "ben" else "ben", amount)
        elif kind == "hold":
            accounts.hold(now, key, user, agreement, amount)
        elif kind == "settle":
            accounts.settle(now, key, agreement, provider, amount)
        elif kind == "release":
            accounts.release(now, key, agreement, amount)
        else:
            accounts.refund(now, key, agreement, amount)
    return accounts


@settings(max_examples=examples(80))
@given(st.lists(moves, max_size=40), st.integers(0, 60))
def test_statements_add_up_to_the_balances(history: list, day: int) -> None:
    """Opening and lines make closing; one period's closing is the next one's opening."""
    accounts, middle = played(history), day * DAY
    for name, account in accounts.accounts.items():
        whole = make_statement(accounts, name)
        first = make_statement(accounts, name, end=middle)
        second = make_statement(accounts, name, begin=middle)
        assert whole.closing == accounts.balance(account.id) + accounts.held_by(name)
        assert whole.held == accounts.held_by(name)
        assert first.closing == second.opening
        assert second.closing == whole.closing
        for statement in (whole, first, second):
            lines = sum(line.amount for line in statement.lines)
            assert statement.opening + lines == statement.closing
            assert sum(statement.by_party.values()) == lines
            if statement.lines:
                assert statement.lines[-1].balance == statement.closing
        assert len(first.lines) + len(second.lines) == len(whole.lines)


@settings(max_examples=examples(80))
@given(st.lists(moves, max_size=40), st.integers(0, 60))
def test_invoices_add_up_to_what_providers_have(history: list, day: int) -> None:
    """Over users and over periods, to the micro-unit."""
    accounts, middle = played(history), day * DAY
    for provider in PROVIDERS:
        whole = [make_invoice(accounts, provider, user) for user in USERS]
        parts = [
            make_invoice(accounts, provider, user, **period)
            for user in USERS
            for period in ({"end": middle}, {"begin": middle})
        ]
        earned = accounts.balance(f"provider:{provider}")
        assert sum(invoice.total for invoice in whole) == earned
        assert sum(invoice.total for invoice in parts) == earned
        for invoice in whole + parts:
            assert invoice.total == sum(item.total for item in invoice.items)
            assert invoice.total == invoice.subtotal - invoice.refunds


@settings(max_examples=examples(80))
@given(st.lists(moves, max_size=40), st.data())
def test_two_books_reconcile_to_the_unit(history: list, data: st.DataObject) -> None:
    """Copies agree in any order; one row changed by one unit, or left out, is told."""
    accounts = played(history)
    mine = rows_between(accounts, user="ann", provider="uni")
    theirs = data.draw(st.permutations(mine))
    assert reconcile(mine, theirs) == []
    assert reconcile(accounts.rows, rows_between(accounts)) == []
    if not mine:
        return
    place = data.draw(st.integers(0, len(mine) - 1))
    row = theirs[place]
    sign = 1 if row.kind == "settle" else -1
    dearer = msgspec.structs.replace(row, amount=row.amount + 1)
    theirs[place] = dearer
    assert reconcile(mine, theirs) == [
        LedgerDifference(row.key, row.agreement, sign * row.amount, sign * (row.amount + 1))
    ]
    del theirs[place]
    assert reconcile(mine, theirs) == [
        LedgerDifference(row.key, row.agreement, sign * row.amount, None)
    ]
    assert reconcile(theirs, mine) == [
        LedgerDifference(row.key, row.agreement, None, sign * row.amount)
    ]
    assert [d.user for d in reconcile([*mine, row], mine)] == [2 * sign * row.amount]


def november() -> Accounts:
    """Ann pays uni for two agreements in November, and gets some back in December."""
    accounts = opened()
    begin = parse_period("2026-11").begin
    accounts.grant(begin - DAY, "g", "ann", 1000)
    for number, agreement in enumerate(["a", "b"]):
        now = begin + number * DAY
        accounts.hold(now, f"h{agreement}", "ann", agreement, 400)
        accounts.settle(now, f"s{agreement}", agreement, "uni", 300)
    accounts.refund(begin + 5 * DAY, "r1", "a", 50, memo="late")
    accounts.refund(begin + 40 * DAY, "r2", "b", 20)
    return accounts


def test_an_invoice_lists_price_discount_refund_and_what_was_delivered() -> None:
    """a: list price 360 less 60 discount less 50 refunded; b: 300. 550 in all."""
    period = parse_period("2026-11")
    usage = [
        UsageRecord(
            agreement="a",
            provider="uni",
            customer="ann",
            job=str(job),
            start=period.begin + job,
            end=period.begin + job + 10,
            processors=4,
        )
        for job in range(3)
    ]
    usage += [  # of the periods before and after
        msgspec.structs.replace(usage[0], job=f"other {end}", start=end - 10, end=end)
        for end in (period.begin - 1, period.end)
    ]
    invoice = make_invoice(
        november(), "uni", "ann", period.begin, period.end, usage=usage, list_prices={"a": 360}
    )
    first, second = invoice.items
    assert (first.price, first.discount, first.refunded, first.total) == (360, 60, 50, 250)
    assert (first.processor_seconds, first.jobs, first.memos) == (120.0, 3, ("late",))
    assert (second.total, second.processor_seconds) == (300, None)
    assert (invoice.subtotal, invoice.discounts, invoice.refunds) == (660, 60, 50)
    assert invoice.total == 550
    assert invoice_to_dict(invoice)["total_micros"] == 550


def test_a_refund_in_a_later_period_is_an_invoice_below_zero() -> None:
    period = parse_period("2026-12")
    assert make_invoice(november(), "uni", "ann", period.begin, period.end).total == -20


def test_a_statement_says_what_happened_with_whom() -> None:
    """October's grant is November's opening; what is held is still ann's."""
    period = parse_period("2026-11")
    statement = make_statement(november(), "ann", period.begin, period.end)
    assert (statement.opening, statement.closing, statement.held) == (1000, 450, 200)
    assert [(line.party, line.amount) for line in statement.lines] == [
        ("uni", -300),
        ("uni", -300),
        ("uni", 50),
    ]
    assert statement_to_dict(make_statement(november(), "ann"))["begin"] is None


def test_papers_of_unknown_accounts_are_refused() -> None:
    accounts = november()
    with pytest.raises(InputError, match='no account "an"'):
        make_statement(accounts, "an")
    with pytest.raises(InputError, match='"ann" is a user, expected a provider'):
        make_invoice(accounts, "ann", "ann")
    with pytest.raises(InputError, match='"uni" is a provider, expected a user'):
        make_invoice(accounts, "uni", "uni")


def test_a_difference_reads_as_a_sentence() -> None:
    row = november().row_of("sa")
    assert isinstance(row, Transfer)
    assert [str(d) for d in reconcile([row], [])] == [
        "a, sa: 300 for the user, nothing for the provider"
    ]


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("1970", (0, 365)),
        ("1970-02", (31, 59)),
        ("1972-02", (761, 790)),
        ("1970-01-02", (1, 2)),
        ("1970-01-02..1970-01-04", (1, 4)),
        (" 1970-01 .. 1970-02 ", (0, 59)),
        ("1970..1971-01-01", (0, 366)),
    ],
)
def test_a_period_is_days_in_utc(text: str, days: tuple[int, int]) -> None:
    period = parse_period(text)
    assert (period.begin, period.end) == (days[0] * DAY, days[1] * DAY)
    assert period.begin in period
    assert period.end not in period


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "2026-",
        "2026-13",
        "2026-00",
        "2026-02-29",
        "2026-11-00",
        "26-11",
        "2026-1",
        "2026-11-21T10:00",
        "2026..",
        "..2026",
        "2026..2025",
        "1969",
        "9999",
        "٢٠٢٦",
        "2026..2027..2028",
        "x" * 500,
        "a\nb",
    ],
)
def test_what_is_no_period_is_one_line(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_period(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_period_has_a_length() -> None:
    with pytest.raises(ValueError, match="length"):
        Period(begin=1.0, end=1.0)
