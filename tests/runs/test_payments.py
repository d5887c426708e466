"""A run's account in the book follows the run's ledger: once, and in the period that promised."""

from calendar import timegm
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import RunEvent
from bursar.market.account_records import LedgerAccount, SpendingQuota
from bursar.market.accounts import Accounts
from bursar.market.book import Book, read_book
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.money import MICROS, Payer
from bursar.model.task import Task
from bursar.runs.folder import RunFolder
from bursar.runs.payments import RunPayments, lock_account, settle_run

NOVEMBER = float(timegm((2026, 11, 30, 12, 0, 0)))
DECEMBER = float(timegm((2026, 12, 1, 12, 0, 0)))


class World:
    """Ann's account with 100 SU and 10 SU a month, and a run whose ledger a test writes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOVEMBER
        monkeypatch.setattr("bursar.runs.payments.time.time", lambda: self.now)
        self.path = path
        self.book = path / "test.book"
        with Book(self.book, currency="SU", durable=False) as book:
            book.open_account(
                LedgerAccount(name="ann", quota=SpendingQuota(amount=10 * MICROS, per="month"))
            )
            book.grant(NOVEMBER, "g", "ann", 100 * MICROS)
        self.run = self.make("r")
        self.ledger = Ledger()
        self._told = 0

    def make(self, name: str) -> RunFolder:
        campaign = Campaign(name="c", workflow=Workflow((Task(id="t", steps=()),)))
        with RunFolder.create(self.path / "runs", campaign, (), argv=[], name=name) as folder:
            pass
        return folder

    def payer(self, budget: float | None = None, account: str = "ann") -> Payer:
        return Payer(account=account, book=str(self.book), budget=budget)

    def pays(self, lease: str, amount: int) -> None:
        """The run settles a lease in its journal."""
        self.ledger.grant(self.now, "", "", amount)
        self.ledger.hold(self.now, "", "", lease, amount)
        self.ledger.settle(self.now, "", lease, "uni", amount)
        record = Lease(
            id=lease,
            site="uni",
            processors=1,
            unit_price=1.0,
            fixed_price=0.0,
            start=self.now - 1,
            end=self.now,
        )
        text = msgspec.json.encode(record).decode()
        with closing(RunJournal(self.run.journal_file, durable=False)) as journal:
            rows = self.ledger.rows_from(self._told)
            journal.commit(transfers=rows, events=[RunEvent(self.now, "lease", text)])
        self._told = len(self.ledger)

    @property
    def accounts(self) -> Accounts:
        return read_book(self.book).accounts

    def used(self, moment: float) -> float:
        return self.accounts.used("ann", moment) / MICROS


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_payment_counts_in_the_month_that_promised_it(world: World) -> None:
    """A run that lasts into December takes nothing from December's quota."""
    with RunPayments(world.run, world.payer(8.0)) as payments:
        assert payments.budget == 8.0
        assert (world.used(NOVEMBER), world.used(DECEMBER)) == (8.0, 0.0)
        world.now = DECEMBER
        world.pays("lease-1", 5 * MICROS)
    assert (world.used(NOVEMBER), world.used(DECEMBER)) == (5.0, 0.0)
    assert world.accounts.balance("provider:uni") == 5 * MICROS


def test_a_run_that_goes_on_next_month_uses_both_quotas(world: World) -> None:
    """Money still held is November's; money held anew, and only that, is December's."""
    dying = RunPayments(world.run, world.payer(8.0))
    dying.__enter__()
    world.pays("lease-1", 5 * MICROS)
    world.book.rename(world.path / "away")  # so that nothing is given back
    dying.__exit__(KeyboardInterrupt)
    (world.path / "away").rename(world.book)
    world.now = DECEMBER
    with RunPayments(world.run, world.payer(12.0)) as payments:
        assert payments.budget == 12.0
        assert (world.used(NOVEMBER), world.used(DECEMBER)) == (8.0, 4.0)
        world.pays("lease-2", 6 * MICROS)  # three of each
    assert (world.used(NOVEMBER), world.used(DECEMBER)) == (8.0, 3.0)
    found = {name: p.paid for name, p in world.accounts.agreements.items() if p.paid}
    assert found == {
        "r/lease-1": 5 * MICROS,
        "r/lease-2": 3 * MICROS,
        "r/lease-2~2": 3 * MICROS,
    }
    rows = settle_run(world.run, world.payer())
    assert sum(row.amount for row in rows if row.kind == "settle") == 11 * MICROS
    assert world.accounts.faults() == []


def test_without_a_budget_all_that_is_left_is_held(world: World) -> None:
    with RunPayments(world.run, world.payer()) as payments:
        assert payments.budget == 10.0
        other = world.make("other")
        with pytest.raises(BudgetStop, match="10 SU are set aside for other runs"):
            RunPayments(other, world.payer(3.0)).__enter__()
    with RunPayments(other, world.payer(3.0)) as payments:
        assert payments.budget == 3.0


def test_what_is_needed_and_not_there_stops_the_run_before_it_begins(world: World) -> None:
    with pytest.raises(BudgetStop, match=r"has 10 SU left; the run needs 12\.5 SU"):
        RunPayments(world.run, world.payer(20.0), needed=12.5).__enter__()
    assert world.used(NOVEMBER) == 0


def test_amending_holds_what_is_added(world: World) -> None:
    with RunPayments(world.run, world.payer(4.0)) as payments:
        assert payments.amend(6.0) is None
        assert world.accounts.held_by("ann") == 6 * MICROS
        refused = payments.amend(11.0)
        assert refused is not None
        assert "over the quota of ann" in refused.reason
        assert world.accounts.held_by("ann") == 6 * MICROS
        assert payments.amend(2.0) is None  # given back at the end
    assert world.accounts.held_by("ann") == 0


def test_one_process_keeps_the_account_of_a_run(world: World) -> None:
    with lock_account(world.run), pytest.raises(InputError, match="carried out by another process"):
        RunPayments(world.run, world.payer()).__enter__()


def test_a_name_that_was_another_run_is_refused(world: World) -> None:
    """Before anything is held or done."""
    with RunPayments(world.run, world.payer(4.0)):
        world.pays("lease-1", MICROS)
    info = world.run.read_info()
    info.created += 1
    world.run.write_info(info)
    with pytest.raises(InputError, match="another run"):
        RunPayments(world.run, world.payer(4.0)).__enter__()


class Killed(Exception):
    """The process is gone."""


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    payments=st.lists(st.integers(1, 2 * MICROS), min_size=1, max_size=4),
    kills=st.lists(st.integers(0, 12), max_size=6),
)
def test_a_process_killed_at_any_row_leaves_each_payment_there_once(
    payments: list[int],
    kills: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """
    A writer dies before its n-th row, again and again; the last one gets through.

    The book then has what the run's ledger has, and nothing is held.
    """
    with pytest.MonkeyPatch.context() as patch:
        world = World(tmp_path_factory.mktemp("w"), patch)
        with RunPayments(world.run, world.payer(9.0)):
            for number, amount in enumerate(payments):
                world.pays(f"lease-{number}", amount)
                for kill in kills:
                    with pytest.MonkeyPatch.context() as death:
                        _die_before_row(death, kill)
                        try:
                            settle_run(world.run, world.payer())
                        except Killed:
                            continue
        accounts = world.accounts
        assert accounts.balance("provider:uni") == sum(payments) == world.ledger.spent
        assert accounts.held_by("ann") == 0
        assert accounts.used("ann", NOVEMBER) == sum(payments)
        assert accounts.faults() == []


def _die_before_row(patch: pytest.MonkeyPatch, number: int) -> None:
    post = Accounts._post
    left = [number]

    def dying(self: Accounts, *args: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return post(self, *args)  # type: ignore[arg-type]

    patch.setattr(Accounts, "_post", dying)


def test_a_book_out_of_reach_at_the_end_is_said_with_what_to_do(world: World) -> None:
    payments = RunPayments(world.run, world.payer(4.0))
    payments.__enter__()
    world.pays("lease-1", MICROS)
    world.book.rename(world.path / "away")
    with pytest.raises(BursarError, match="bursar ledger charge r --user ann"):
        payments.__exit__(None)
    (world.path / "away").rename(world.book)
    settle_run(world.run, world.payer())
    assert world.accounts.balance("provider:uni") == MICROS
