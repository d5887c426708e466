"""
What accounting costs: rows posted in memory and to disk, beside what bounds them.

In memory the limit is what any double entry must do: take from one entry of a
dict and give to another, keep the row and its key. On disk it is the same lines
in bare SQLite: ``executemany`` and a commit. Each takes turns with its limit,
so that whatever else the machine does meets both alike; the ratio is the
figure to trust, the rates are this machine's.

    python benchmarks/ledger.py [--quick] [--json FILE]
"""

import gc
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figures import Benchmark, Figure, at_least

from bursar.market.account_records import LedgerAccount, SpendingQuota
from bursar.market.accounts import Accounts
from bursar.market.book import Book, read_book

USERS = 100
PLENTY = 10**15


def rate(work: Callable[[], int]) -> float:
    """Pieces per second of one go."""
    gc.collect()
    began = time.perf_counter()
    pieces = work()
    return pieces / (time.perf_counter() - began)


def fill(accounts: Accounts) -> None:
    """Users with a quota, and one provider."""
    for user in range(USERS):
        quota = SpendingQuota(amount=PLENTY, per="month")
        accounts.open_account(LedgerAccount(name=f"user-{user}", group="lab", quota=quota))
        accounts.grant(0.0, f"grant-{user}", f"user-{user}", PLENTY)
    accounts.open_account(LedgerAccount(name="site", kind="provider"))


def filled() -> Accounts:
    """Such accounts."""
    accounts = Accounts()
    fill(accounts)
    return accounts


def transfers(accounts: Accounts, first: int, count: int) -> int:
    """Between users; the names are made here, as a caller would."""
    for n in range(first, first + count):
        accounts.transfer(1.0, f"t{n}", f"user-{n % USERS}", f"user-{(n + 1) % USERS}", 1)
    return count


def agreements(accounts: Accounts, first: int, count: int) -> int:
    """Held, settled, the rest released: three rows each."""
    for n in range(first, first + count // 3):
        name = f"a{n}"
        accounts.hold(1.0, f"h{n}", f"user-{n % USERS}", name, 10)
        accounts.settle(2.0, f"s{n}", name, "site", 9)
        accounts.release(2.0, f"r{n}", name, 1)
    return count // 3 * 3


def bare_moves(count: int) -> int:
    """What any double entry does, and nothing that refuses."""
    balances = {f"user-{user}": PLENTY for user in range(USERS)}
    rows, by_key = [], {}
    for n in range(count):
        source, target, key = f"user-{n % USERS}", f"user-{(n + 1) % USERS}", f"t{n}"
        balances[source] -= 1
        balances[target] += 1
        row = (n, 1.0, key, "transfer", source, target, 1, "", "")
        rows.append(row)
        by_key[key] = row
    return count


def durable_transfers(path: Path, batches: int, size: int) -> float:
    """Rows per second through a book, each batch on disk before the next begins."""
    with Book(path, currency="SU") as book:
        with book.together():
            fill(book)

        def work() -> int:
            for batch in range(batches):
                with book.together():
                    transfers(book, batch * size, size)
            return batches * size

        return rate(work)


def bare_commits(path: Path, batches: int, size: int) -> float:
    """The same columns, without a book."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA wal_autocheckpoint=4000")
    db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, time, key, kind, s, t, n, a, m, c)")
    chain = bytes(32)

    def work() -> int:
        for batch in range(batches):
            first = batch * size
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?,?)",
                [
                    (n, 1.0, f"t{n}", "transfer", "user:user-1", "user:user-2", 1, "", "", chain)
                    for n in range(first, first + size)
                ],
            )
            db.execute("COMMIT")
        return batches * size

    try:
        return rate(work)
    finally:
        db.close()


def measure_memory(count: int, rounds: int) -> list[Figure]:
    """Rows per second in memory, the limit in turns."""
    moved, agreed, bare = [], [], []
    for _ in range(rounds):
        bare.append(rate(lambda: bare_moves(count)))
        for work, found in ((transfers, moved), (agreements, agreed)):
            accounts = filled()
            found.append(rate(lambda work=work, accounts=accounts: work(accounts, 0, count)))
            assert not accounts.faults()
    middle = statistics.median
    return [
        Figure("bare dict moves", middle(bare), "1/s"),
        at_least("transfers in memory", middle(moved), 100_000, "1/s"),
        Figure("share of the bare moves", 100 * middle(moved) / middle(bare), "%"),
        at_least("hold, settle, release in memory", middle(agreed), 100_000, "1/s"),
    ]


def measure_disk(count: int, rounds: int) -> list[Figure]:
    """Rows per second on disk, in batches and one by one, the limit in turns."""
    figures = []
    for size, total, aim in ((1000, count, 10_000), (100, count // 4, 10_000), (1, 400, None)):
        booked, bare = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="bursar-ledger-") as name:
                bare.append(bare_commits(Path(name) / "bare", total // size, size))
                booked.append(durable_transfers(Path(name) / "book", total // size, size))
        found, limit = statistics.median(booked), statistics.median(bare)
        what = f"durable, {size} a batch"
        figures += [
            Figure(f"bare SQLite, {size} a batch", limit, "1/s"),
            Figure(what, found, "1/s") if aim is None else at_least(what, found, aim, "1/s"),
            Figure("share of bare SQLite", 100 * found / limit, "%"),
        ]
    return figures


def measure_opening(count: int) -> list[Figure]:
    """Rows per second read back, checked and summed."""
    with tempfile.TemporaryDirectory(prefix="bursar-ledger-") as name:
        path = Path(name) / "book"
        durable_transfers(path, count // 1000, 1000)
        return [
            Figure("rows read back and checked", rate(lambda: len(read_book(path).accounts)), "1/s")
        ]


def main() -> None:
    """Measure one thing after the other."""
    bench = Benchmark(__file__, __doc__)
    memory, disk, opening = bench.of(
        (300_000, 100_000, 200_000), (30_000, 10_000, 20_000), (1_000, 1_000, 1_000)
    )
    rounds = bench.of(5, 2, 1)
    bench.figures(f"{memory:,} transfers in memory", measure_memory(memory, rounds))
    bench.figures(f"{disk:,} durable transfers", measure_disk(disk, rounds))
    bench.figures(f"a book of {opening:,} transfers", measure_opening(opening))
    bench.write()


if __name__ == "__main__":
    main()
