"""The one ledger is balanced whatever is asked of it, how often, and wherever it is cut off."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.market.account_records import (
    BOOK_CHART,
    LARGEST,
    OWNER,
    RUN_CHART,
    WALLET,
    ChartOfAccounts,
    held_for,
    paid_to,
)
from bursar.market.ledger import Ledger, first_link, next_link
from bursar.model.errors import InputError
from bursar.model.money import Refusal, Transfer

MANY_PAYERS = replace(BOOK_CHART, strict=False)
"""A book's accounts, used without being opened: what users may do is tested with `Accounts`."""

PAYERS = {RUN_CHART.outside: ("",), BOOK_CHART.outside: ("ann", "ben")}

amounts = st.integers(min_value=-1, max_value=600)
agreements = st.sampled_from(["a", "b", "c"])
payees = st.sampled_from(["uni", "cloud"])
keys = st.sampled_from(["", *(f"key-{n}" for n in range(8))])


@dataclass(frozen=True)
class Move:
    """A movement as the model keeps it: nothing is summed up."""

    kind: str
    source: str
    target: str
    amount: int
    agreement: str
    key: str


class PlainLedger:
    """The rules of a ledger, each said over the whole history."""

    def __init__(self, chart: ChartOfAccounts) -> None:
        self.chart = chart
        self.moves: list[Move] = []

    def balance(self, account: str) -> int:
        return sum(
            move.amount * ((move.target == account) - (move.source == account))
            for move in self.moves
        )

    def total(self, kind: str, agreement: str | None = None) -> int:
        return sum(
            move.amount
            for move in self.moves
            if move.kind == kind and agreement in (None, move.agreement)
        )

    def payer(self, agreement: str) -> str | None:
        holds = [m for m in self.moves if m.kind == "hold" and m.agreement == agreement]
        return holds[0].source if holds else None

    def payee(self, agreement: str) -> str | None:
        paid = [m for m in self.moves if m.kind == "settle" and m.agreement == agreement]
        return paid[0].target if paid else None

    def expected(self, move: Move) -> Move | None:
        """Return the movement that is the answer to a request; None for a refusal."""
        if move.key:
            for made in self.moves:
                if made.key == move.key:
                    return made if made == move else None
        outside = self.chart.outside
        covered = move.source == outside or self.balance(move.source) >= move.amount
        if not (0 < move.amount <= LARGEST and covered):
            return None
        payer, payee = self.payer(move.agreement), self.payee(move.agreement)
        allowed = {
            self.chart.grant: True,
            "hold": payer in (None, move.source),
            "release": payer == move.target,
            "settle": payer is not None and payee in (None, move.target),
            "refund": move.amount
            <= self.total("settle", move.agreement) - self.total("refund", move.agreement),
        }
        return move if allowed[move.kind] else None


class LedgerMachine(RuleBasedStateMachine):
    """Requests in any order, repeated or not, and crashes that lose what was not yet durable."""

    @initialize(chart=st.sampled_from([RUN_CHART, MANY_PAYERS]))
    def begin(self, chart: ChartOfAccounts) -> None:
        self.chart = chart
        self.ledger = Ledger(chart=chart)
        self.plain = PlainLedger(chart)
        self.durable = 0
        self.now = 0.0
        self.asked: list[tuple[Move, Callable[[Ledger], Transfer | Refusal]]] = []

    def ask(self, move: Move, operation: Callable[[Ledger], Transfer | Refusal]) -> None:
        before, rows = self.ledger.balances, self.ledger.rows
        expected = self.plain.expected(move)
        is_new = expected is not None and not (move.key and expected in self.plain.moves)
        answer = operation(self.ledger)

        if expected is None:
            assert isinstance(answer, Refusal), answer
            assert answer.reason
        else:
            assert isinstance(answer, Transfer), answer
            made = (answer.kind, answer.source, answer.target, answer.amount, answer.agreement)
            assert (*made, answer.key) == (
                expected.kind, expected.source, expected.target, expected.amount,
                expected.agreement, expected.key,
            )  # fmt: skip
        if is_new:
            self.plain.moves.append(move)
            if move.key:
                self.asked.append((move, operation))
        else:
            assert (self.ledger.balances, self.ledger.rows) == (before, rows)

    def payer(self, pick: int) -> tuple[str, str]:
        names = PAYERS[self.chart.outside]
        name = names[pick % len(names)]
        return name, self.chart.payer + name

    @rule(pick=st.integers(0, 1), amount=amounts, key=keys)
    def grant(self, pick: int, amount: int, key: str) -> None:
        name, account = self.payer(pick)
        now = self.now
        self.ask(
            Move(self.chart.grant, self.chart.outside, account, amount, "", key),
            lambda ledger: ledger.grant(now, key, name, amount),
        )

    @precondition(lambda self: self.chart is RUN_CHART)
    @rule(amount=amounts, key=keys)
    def withdraw(self, amount: int, key: str) -> None:
        self.ask(
            Move("fund", WALLET, OWNER, amount, "", key),
            lambda ledger: ledger.withdraw(0.0, key, "", amount),
        )

    @rule(pick=st.integers(0, 1), agreement=agreements, amount=amounts, key=keys)
    def hold(self, pick: int, agreement: str, amount: int, key: str) -> None:
        name, account = self.payer(pick)
        self.ask(
            Move("hold", account, held_for(agreement), amount, agreement, key),
            lambda ledger: ledger.hold(0.0, key, name, agreement, amount),
        )

    @rule(agreement=agreements, amount=amounts, key=keys)
    def release(self, agreement: str, amount: int, key: str) -> None:
        payer = self.plain.payer(agreement) or "nobody"
        self.ask(
            Move("release", held_for(agreement), payer, amount, agreement, key),
            lambda ledger: ledger.release(0.0, key, agreement, amount),
        )

    @rule(agreement=agreements, payee=payees, amount=amounts, key=keys)
    def settle(self, agreement: str, payee: str, amount: int, key: str) -> None:
        target = self.chart.payee + payee
        self.ask(
            Move("settle", held_for(agreement), target, amount, agreement, key),
            lambda ledger: ledger.settle(0.0, key, agreement, payee, amount),
        )

    @precondition(lambda self: self.chart is MANY_PAYERS)
    @rule(agreement=agreements, amount=amounts, key=keys)
    def refund(self, agreement: str, amount: int, key: str) -> None:
        payee = self.plain.payee(agreement) or "nobody"
        payer = self.plain.payer(agreement) or "nobody"
        self.ask(
            Move("refund", payee, payer, amount, agreement, key),
            lambda ledger: ledger.refund(0.0, key, agreement, amount),
        )

    @rule()
    def write(self) -> None:
        self.durable = len(self.ledger)

    @rule()
    def crash(self) -> None:
        """What was written is there again; who lost an answer asks again, and pays once."""
        self.ledger = Ledger(self.ledger.rows[: self.durable], chart=self.chart)
        del self.plain.moves[self.durable :]
        for move, operation in self.asked:
            self.ask_again(move, operation)

    def ask_again(self, move: Move, operation: Callable[[Ledger], Transfer | Refusal]) -> None:
        expected, count = self.plain.expected(move), len(self.ledger)
        is_there = self.ledger.row_of(move.key) is not None
        answer = operation(self.ledger)
        assert isinstance(answer, Transfer) == (expected is not None)
        assert len(self.ledger) - count == (expected is not None and not is_there)
        if len(self.ledger) > count:
            self.plain.moves.append(move)

    @invariant()
    def the_model_says_the_same(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger, plain = self.ledger, self.plain
        assert ledger.faults() == []
        balances = ledger.balances
        assert sum(balances.values()) == 0
        assert all(b >= 0 for account, b in balances.items() if account != self.chart.outside)
        assert all(b == plain.balance(account) for account, b in balances.items())
        assert ledger.funded == -plain.balance(self.chart.outside)
        assert ledger.spent == plain.total("settle") - plain.total("refund")
        assert ledger.held == sum(plain.balance(held_for(name)) for name in ("a", "b", "c"))
        assert ledger.free == ledger.funded - ledger.held - ledger.spent >= 0
        for name, one in ledger.agreements.items():
            assert one.held == plain.balance(held_for(name))
            assert 0 <= one.refunded <= one.paid == plain.total("settle", name)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            check_every_prefix(self.ledger, self.chart)


def check_every_prefix(ledger: Ledger, chart: ChartOfAccounts) -> None:
    """Check that the first rows, however many, are a ledger that goes on as the whole one did."""
    rows = ledger.rows
    for count in range(len(rows) + 1):
        part = Ledger(rows[:count], chart=chart)
        assert part.rows == rows[:count]
        assert part.faults() == []
        assert part.free >= 0
        for row in rows[count:]:
            assert repeat(part, row, chart) == row
        assert part.faults() == []
        assert part.balances == ledger.balances
        assert sums_of(part) == sums_of(ledger)
        assert (part.held, part.spent, part.funded) == (ledger.held, ledger.spent, ledger.funded)


def sums_of(ledger: Ledger) -> dict[str, tuple[str, str, int, int, int]]:
    """Return what a ledger says of each agreement."""
    return {
        name: (one.payer, one.payee, one.held, one.paid, one.refunded)
        for name, one in ledger.agreements.items()
    }


def repeat(ledger: Ledger, row: Transfer, chart: ChartOfAccounts) -> Transfer | Refusal:
    """Ask a ledger for the movement that a row of another one notes."""
    time, key, amount, agreement = row.time, row.key, row.amount, row.agreement
    if row.kind == "hold":
        payer = row.source.removeprefix(chart.payer)
        return ledger.hold(time, key, payer, agreement, amount, memo=row.memo)
    if row.kind == "release":
        return ledger.release(time, key, agreement, amount, memo=row.memo)
    if row.kind == "settle":
        payee = row.target.removeprefix(chart.payee)
        return ledger.settle(time, key, agreement, payee, amount, memo=row.memo)
    if row.kind == "refund":
        return ledger.refund(time, key, agreement, amount, memo=row.memo)
    assert row.kind == chart.grant
    if row.source == chart.outside:
        return ledger.grant(time, key, row.target.removeprefix(chart.payer), amount, memo=row.memo)
    return ledger.withdraw(time, key, row.source.removeprefix(chart.payer), amount, memo=row.memo)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(60), stateful_step_count=40)


class TestLongLedger(LedgerMachine.TestCase):
    pytestmark = pytest.mark.long
    settings = settings(max_examples=examples(2_000), stateful_step_count=60)


def used() -> Ledger:
    """100 granted, 60 held, 45 paid, 15 back."""
    ledger = Ledger()
    ledger.grant(0.0, "", "", 100)
    ledger.hold(0.0, "", "", "lease-1", 60)
    ledger.settle(5.0, "", "lease-1", "local", 45)
    ledger.release(5.0, "", "lease-1", 15)
    return ledger


def test_a_hold_pays_a_site_and_gives_the_rest_back() -> None:
    ledger = used()

    assert ledger.balances == {
        OWNER: -100,
        WALLET: 55,
        held_for("lease-1"): 0,
        paid_to("local"): 45,
    }
    assert ledger.settled() == {"lease-1": 45}


def test_a_hold_beyond_the_budget_is_an_answer() -> None:
    """Refusal, not an exception, and the money stays where it was."""
    ledger = Ledger()
    ledger.grant(0.0, "", "", 100)

    answer = ledger.hold(1.0, "", "", "lease-1", 101)
    assert answer == Refusal("budget is 0.000001 SU short", final=False)
    assert ledger.balances == {OWNER: -100, WALLET: 100}


@pytest.mark.parametrize("amount", [0, -1, 1.5, True, "10", None, LARGEST + 1])
def test_what_is_no_amount_is_refused(amount: object) -> None:
    ledger = used()
    for ask in (
        lambda: ledger.grant(6.0, "", "", amount),  # type: ignore[arg-type]
        lambda: ledger.hold(6.0, "", "", "lease-2", amount),  # type: ignore[arg-type]
        lambda: ledger.release(6.0, "", "lease-1", amount),  # type: ignore[arg-type]
    ):
        answer = ask()
        assert isinstance(answer, Refusal)
        assert "amount" in answer.reason
    assert ledger.rows == used().rows


def test_one_lease_pays_one_site() -> None:
    ledger = used()
    ledger.hold(6.0, "", "", "lease-1", 10)

    answer = ledger.settle(6.0, "", "lease-1", "other", 5)
    assert answer == Refusal("lease-1 is an agreement with local", final=True)


def test_a_book_does_not_take_grants_back() -> None:
    ledger = Ledger(chart=MANY_PAYERS)
    ledger.grant(0.0, "1", "ann", 5)

    assert isinstance(ledger.withdraw(0.0, "2", "ann", 5), Refusal)


def changed(row: Transfer, **fields: object) -> Transfer:
    return Transfer(**{name: getattr(row, name) for name in row.__struct_fields__} | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("which", "fields", "reason"),
    [
        (0, {"amount": 59}, 'row 2: takes 60 from "budget", 59 are there'),
        (0, {"amount": -100}, "row 1: moves -100 micro-units"),
        (0, {"amount": 2**63}, "row 1: moves 9223372036854775808 micro-units"),
        (0, {"kind": "gift"}, 'row 1: no "gift" goes from "owner" to "budget"'),
        (0, {"source": "budget", "target": "owner"}, 'row 1: takes 100 from "budget"'),
        (1, {"target": "site:local"}, 'row 2: no "hold" goes from "budget" to "site:local"'),
        (1, {"target": "held:lease-2"}, 'row 2: does not belong to the agreement "lease-1"'),
        (1, {"agreement": "lease-2"}, 'row 2: does not belong to the agreement "lease-2"'),
        (2, {"agreement": ""}, 'row 3: does not belong to the agreement ""'),
        (2, {"amount": 61}, 'row 3: takes 61 from "held:lease-1", 60 are there'),
        (3, {"number": 5}, "row 4: is numbered 5"),
    ],
)
def test_rows_that_cannot_have_been_made_are_refused_by_number(
    which: int, fields: dict[str, object], reason: str
) -> None:
    rows = list(used().rows)
    rows[which] = changed(rows[which], **fields)

    with pytest.raises(InputError) as refused:
        Ledger(rows)
    assert str(refused.value).startswith(reason)


@given(st.data())
def test_the_chain_shows_every_change(data: st.DataObject) -> None:
    """Each row counts, in its place: nothing else gives the same head."""
    rows = list(used().rows)

    def head(of: list[Transfer]) -> bytes:
        found = first_link("1", "SU")
        for row in of:
            found = next_link(found, row)
        return found

    other = list(rows)
    place = data.draw(st.integers(0, len(rows) - 1))
    how = data.draw(st.sampled_from(["drop", "amount", "memo", "swap"]))
    if how == "drop":
        del other[place]
    elif how == "swap":
        other[place], other[place - 1] = other[place - 1], other[place]
    else:
        fresh = rows[place].amount + 1 if how == "amount" else "other"
        other[place] = changed(rows[place], **{how: fresh})

    assert head(other) != head(rows) == head(list(rows))
