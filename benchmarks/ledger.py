"""
What accounting costs: rows posted in memory and to disk, beside what bounds them.

In memory the limit is what any double entry must do: take from one entry of a
dict and give to another, keep the row and its key. On disk it is the same lines
in bare SQLite: ``executemany`` and a commit. Each takes turns with its limit,
so that whatever else the machine does meets both alike; the ratio is the
figure to trust, the rates are this machine's.

    python benchmarks/ledger.py [--quick] [--json FILE]
"""

import argparse
import gc
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bursar.market.accounts import Account, Accounts, Quota
from bursar.market.book import Book, read_book

USERS = 100
PLENTY = 10**15


@dataclass(frozen=True)
class Figure:
    """
    One measured number, and what it should be.

    Parameters
    ----------
    met
        Whether it is; None where there is no aim.
    """

    name: str
    value: float
    unit: str
    aim: str = ""
    met: bool | None = None


def at_least(name: str, value: float, aim: float, unit: str) -> Figure:
    """A figure that should not be smaller."""
    return Figure(name, value, unit, f">= {aim:g}", value >= aim)


def rate(work: Callable[[], int]) -> float:
    """Pieces per second of one go."""
    gc.collect()
    began = time.perf_counter()
    pieces = work()
    return pieces / (time.perf_counter() - began)


def fill(accounts: Accounts) -> None:
    """Users with a quota, and one provider."""
    for user in range(USERS):
        quota = Quota(amount=PLENTY, per="month")
        accounts.open_account(Account(name=f"user-{user}", group="lab", quota=quota))
        accounts.grant(0.0, f"grant-{user}", f"user-{user}", PLENTY)
    accounts.open_account(Account(name="site", kind="provider"))


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


def show(figures: Sequence[Figure]) -> None:
    """The table."""
    for figure in figures:
        verdict = {None: "", True: "met", False: "MISSED"}[figure.met]
        print(
            f"{figure.name:34} {figure.value:12,.4g} {figure.unit:6} {figure.aim:>12} {verdict}",
            flush=True,
        )


def main() -> None:
    """Measures one thing after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    given = parser.parse_args()
    few = 10 if given.quick else 1
    rounds = 2 if given.quick else 5
    figures: list[Figure] = []
    for part in (
        lambda: measure_memory(300_000 // few, rounds),
        lambda: measure_disk(100_000 // few, rounds),
        lambda: measure_opening(200_000 // few),
    ):
        found = part()
        show(found)
        figures += found
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")


if __name__ == "__main__":
    main()
