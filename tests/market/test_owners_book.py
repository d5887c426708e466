"""What a book acknowledged is there, whatever happens to the process that writes it."""

import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.market.account_records import BANK, LedgerAccount, SpendingQuota
from bursar.market.agreement import UsageRecord
from bursar.market.book import Book, read_book
from bursar.model.errors import BursarError, InputError
from bursar.model.money import Refusal, Transfer

WRITER = """
import sys
from pathlib import Path
from bursar.market.book import Book

with Book(Path(sys.argv[1])) as book:
    number = len(book)
    while True:
        with book.together():
            keys = []
            for _ in range(20):
                number += 1
                keys += [f"h{number}", f"s{number}"]
                book.hold(1.0, f"h{number}", "ann", f"a{number}", 3)
                book.settle(2.0, f"s{number}", f"a{number}", "uni", 2)
        print(*keys, flush=True)
"""


def make(path: Path, granted: int = 1000) -> None:
    """A book of two users and a provider."""
    with Book(path, currency="SU") as book, book.together():
        book.open_account(
            LedgerAccount(name="ann", group="lab", quota=SpendingQuota(amount=10**15))
        )
        book.open_account(LedgerAccount(name="ben", group="lab"))
        book.open_account(LedgerAccount(name="uni", kind="provider"))
        book.grant(0.0, "funds", "ann", granted)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a book with 1000 granted."""
    path = tmp_path / "a.book"
    make(path)
    return path


def check(path: Path) -> None:
    accounts = read_book(path).accounts
    assert accounts.faults() == []
    assert sum(accounts.balances.values()) == 0
    assert all(b >= 0 for account, b in accounts.balances.items() if account != BANK)


def test_a_book_opened_again_is_the_same(path: Path) -> None:
    """Balances, keys, quotas, usage."""
    record = UsageRecord(agreement="a", provider="uni", customer="ann", job="1", start=0.0, end=5.0)
    with Book(path) as book:
        held = book.hold(1.5, "h", "ann", "a", 600, memo="für eine Woche")
        book.settle(2, "s", "a", "uni", 450)
        book.refund(3.0, "r", "a", 50)
        assert book.meter(record) == record
        assert book.meter(record) == record
        book.set_quota("ben", SpendingQuota(amount=7, per="day"))
        before, rows, head = book.balances, book.rows, book.head
    with Book(path, currency="SU") as book:
        assert (book.balances, book.rows, book.head) == (before, rows, head)
        assert book.hold(9.0, "h", "ann", "a", 600) == held
        assert book.used("ann", 9.0) == 550
        assert book.accounts["ben"].quota == SpendingQuota(amount=7, per="day")
        assert book.usage == (record,)
        assert isinstance(
            book.open_account(LedgerAccount(name="uni", kind="provider")), LedgerAccount
        )
        assert len(book) == len(rows)
    state = read_book(path)
    assert (state.accounts.balances, state.head, state.usage) == (before, head, (record,))


def test_a_batch_left_by_an_exception_was_never_there(path: Path) -> None:
    """In memory as on disk; also the accounts opened in it, also of a batch within."""
    with Book(path) as book:
        before = book.balances
        with pytest.raises(ZeroDivisionError):
            begin_and_fail(book)
        assert book.balances == before
        assert "new" not in book.accounts
        assert isinstance(book.transfer(0.0, "t", "ann", "ben", 5), Transfer)
    check(path)


def begin_and_fail(book: Book) -> None:
    with book.together(), book.together():
        book.open_account(LedgerAccount(name="new"))
        book.transfer(0.0, "t", "ann", "ben", 5)
        raise ZeroDivisionError


def test_a_refusal_in_a_batch_takes_nothing_else_back(path: Path) -> None:
    with Book(path) as book:
        with book.together():
            assert isinstance(book.transfer(0.0, "1", "ann", "ben", 5), Transfer)
            assert isinstance(book.transfer(0.0, "2", "ann", "ben", 5000), Refusal)
        assert read_book(path).accounts.balance("user:ben") == 5


def test_nothing_is_seen_of_a_batch_before_it_is_left(path: Path) -> None:
    with Book(path) as book:
        with book.together():
            book.transfer(0.0, "1", "ann", "ben", 5)
            assert len(read_book(path).accounts) == 1
        assert len(read_book(path).accounts) == 2


def write_much(book: Book) -> None:
    with book.together():
        for number in range(900):
            assert isinstance(book.hold(0.0, str(number), "ann", "a", 1, memo="x" * 99), Transfer)


def test_what_cannot_be_written_did_not_happen(path: Path) -> None:
    """A full disk, say: one error, and memory says what the file says."""
    with Book(path) as book:
        before = book.balances
        book._db.execute("PRAGMA max_page_count=1")
        with pytest.raises(BursarError, match="full"):
            write_much(book)
        assert "a" not in book.agreements
        assert book.balances == before
    check(path)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=25))
def test_batches_and_single_operations_leave_the_same_book(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("books")
    for name in ("one", "many"):
        make(folder / name)
    with Book(folder / "one", durable=False) as one, Book(folder / "many", durable=False) as many:
        with many.together():
            for number, (amount, back) in enumerate(history):
                pair = ("ben", "ann") if back else ("ann", "ben")
                answers = [b.transfer(0.0, str(number), *pair, amount) for b in (one, many)]
                assert answers[0] == answers[1]
        assert one.balances == many.balances
        assert one.head == many.head


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_book_has_every_acknowledged_row_and_balances(tmp_path: Path, seed: int) -> None:
    """Killed at any moment, again and again: each key that was told is there, once."""
    path = tmp_path / "a.book"
    make(path, 10**12)
    chance, told = random.Random(seed), set()
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout as answers:
            for _ in range(chance.randint(1, 30)):
                told.update(answers.readline().split())
            threading.Event().wait(chance.random() * 0.01)
            os.kill(process.pid, signal.SIGKILL)
            rest = answers.read()
        process.wait()
        told.update(*(line.split() for line in rest.splitlines(keepends=True) if line[-1] == "\n"))
        with Book(path) as book:
            there = [row.key for row in book.rows]
            assert len(there) == len(set(there))
            assert told <= set(there)
            assert (len(there) - 1) % 40 == 0, "half a batch is there"
        check(path)
    assert len(told) >= 120


def test_a_second_writer_is_refused(path: Path) -> None:
    """It is told who writes; readers are not in the way."""
    with Book(path):
        with pytest.raises(InputError, match=f"is being written by process {os.getpid()}"):
            Book(path, wait=0.05)
        assert len(read_book(path).accounts) == 1
    Book(path).close()


def test_a_second_writer_may_wait(path: Path) -> None:
    first = Book(path)
    later = threading.Timer(0.05, first.close)
    later.start()
    with Book(path, wait=30.0) as second:
        assert len(second) == 1
    later.join()


def test_a_currency_is_for_good(path: Path) -> None:
    with pytest.raises(InputError, match="is in SU, not in EUR"):
        Book(path, currency="EUR")


def test_where_there_is_no_book_none_is_made(tmp_path: Path) -> None:
    for opening in (Book, read_book):
        with pytest.raises(InputError, match="there is no book"):
            opening(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="cannot be written"):
        Book(tmp_path / "no" / "folder", currency="SU")


def refuse(path: Path, match: str) -> None:
    """Neither to read nor to write; one line that begins with the file."""
    for opening in (read_book, Book):
        with pytest.raises(InputError, match=match) as caught:
            opening(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


def test_a_foreign_file_is_one_line_and_left_alone(tmp_path: Path) -> None:
    text, other, run = tmp_path / "text", tmp_path / "other", tmp_path / "run"
    text.write_bytes(b"Dear diary, today I spent 5 SU." * 200)
    for path, script in (
        (other, "CREATE TABLE songs (title TEXT)"),
        (run, "CREATE TABLE meta (key TEXT, value TEXT); INSERT INTO meta VALUES ('format', '2')"),
    ):
        db = sqlite3.connect(path)
        db.executescript(script)
        db.close()
    for path in (text, other, run):
        before = path.read_bytes()
        refuse(path, "no book")
        assert path.read_bytes() == before


def test_a_newer_format_is_refused(path: Path) -> None:
    change(path, "UPDATE meta SET value = '2' WHERE key = 'book'")
    refuse(path, "its format is 2; this version reads format 1")


def change(path: Path, script: str, values: tuple[Any, ...] = ()) -> None:
    db = sqlite3.connect(path)
    db.execute(script, values)
    db.commit()
    db.close()


@pytest.mark.parametrize(
    "script",
    [
        "UPDATE rows SET amount = 4 WHERE number = 3",
        "UPDATE rows SET amount = 'much' WHERE number = 3",
        "UPDATE rows SET memo = 'nothing to see' WHERE number = 2",
        "UPDATE rows SET chain = x'00' WHERE number = 2",
        "DELETE FROM rows WHERE number = 2",
        "UPDATE rows SET number = number + 9 WHERE number = 4",
        "DELETE FROM accounts WHERE name = 'ben'",
        "UPDATE accounts SET kind = 'provider' WHERE name = 'ann'",
        "UPDATE accounts SET quota = 'much' WHERE name = 'ann'",
        "UPDATE meta SET value = 'EUR' WHERE key = 'currency'",
        "DELETE FROM meta WHERE key = 'currency'",
        "DROP TABLE usage",
        "INSERT INTO usage VALUES ('a', 'b', x'00')",
    ],
)
def test_a_changed_book_is_refused(path: Path, script: str) -> None:
    with Book(path) as book:
        for number in range(5):
            book.transfer(0.0, str(number), "ann", "ben", 3)
    change(path, script)
    refuse(path, "changed|damaged|no account")


def test_a_torn_file_is_one_line(path: Path) -> None:
    """Cut anywhere, or with a stretch overwritten: refused, or (cut by nothing) whole."""
    with Book(path) as book, book.together():
        for number in range(500):
            book.transfer(0.0, str(number), "ann", "ben", 1)
    whole = path.read_bytes()
    assert len(whole) > 12 * 4096
    for kept in (100, 4096, 4096 * 3 + 7, len(whole) // 2, len(whole) - 4096):
        path.write_bytes(whole[:kept])
        refuse(path, "damaged|no book")
    for start in range(4096 * 6, len(whole) - 4096, 4096 * 3):
        path.write_bytes(whole[:start] + b"\x5a" * 4096 + whole[start + 4096 :])
        refuse(path, "damaged|changed|missing")
    path.write_bytes(whole)
    check(path)


def test_a_torn_log_loses_whole_batches_at_its_end(path: Path, tmp_path: Path) -> None:
    """The write-ahead log cut anywhere: what is left are the first batches, balanced."""
    copy = tmp_path / "copy"
    with Book(path) as book:
        for batch in range(8):
            with book.together():
                for number in range(5):
                    book.transfer(0.0, f"{batch}.{number}", "ann", "ben", 1)
        main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        written = book.rows
    lengths = set()
    for kept in range(0, len(log) + 1, 1500):
        copy.write_bytes(main)
        Path(f"{copy}-shm").unlink(missing_ok=True)
        Path(f"{copy}-wal").write_bytes(log[:kept])
        rows = read_book(copy).accounts.rows
        assert len(rows) % 5 == 1
        assert rows == written[: len(rows)]
        lengths.add(len(rows))
        check(copy)
    assert len(lengths) > 4


def test_a_book_whose_making_was_cut_off_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.book"
    path.touch()
    refuse(path, "there is no book")
    make(path)
    check(path)


def test_two_usage_records_of_one_job_are_refused(path: Path) -> None:
    one = UsageRecord(agreement="a", provider="uni", customer="ann", job="1", start=0.0, end=5.0)
    other = UsageRecord(agreement="a", provider="uni", customer="ann", job="1", start=0.0, end=6.0)
    with Book(path) as book, book.together():
        assert book.meter(one) == one
        assert isinstance(book.meter(other), Refusal)
    assert read_book(path).usage == (one,)


def test_the_lock_beside_a_book_is_its_owners(path: Path) -> None:
    assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600
