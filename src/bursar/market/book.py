"""
Stores accounts durably: every row is on disk before an operation returns.

One SQLite file with a write-ahead log and ``synchronous=FULL``: an operation
that returned, or a batch that was left, is there after a kill or a power cut.
Each row is stored with the hash of itself and of the hash before it, so that a
row changed, left out or moved in the file is noticed when it is opened.

One process writes, held by a lock beside the file: a second one waits as long
as it is told to, and is then refused. Any number may read meanwhile.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bursar.locking import LockHeldElsewhere, take_lock
from bursar.market.account_records import LedgerAccount, Per, SpendingQuota
from bursar.market.accounts import Accounts
from bursar.market.agreement import UsageRecord
from bursar.market.ledger import first_link, next_link, read_chained
from bursar.model.errors import InputError, errors_within
from bursar.model.money import Refusal, Transfer, check_currency
from bursar.sqlite_file import (
    LockWaitingConnection,
    SqliteSchema,
    connect,
    is_empty,
    keep_write_ahead_log,
    transaction,
    translate_sqlite_errors,
)

FORMAT = "1"

_LAYOUT = SqliteSchema(
    what="book",
    key="book",
    format=FORMAT,
    statements=(
        """CREATE TABLE accounts (
            number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
            "group" TEXT NOT NULL, quota INTEGER, per TEXT)""",
        """CREATE TABLE rows (
            number INTEGER PRIMARY KEY, time REAL NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL,
            source TEXT NOT NULL, target TEXT NOT NULL, amount INTEGER NOT NULL,
            agreement TEXT NOT NULL, memo TEXT NOT NULL, chain BLOB NOT NULL)""",
        """CREATE TABLE usage (
            agreement TEXT NOT NULL, job TEXT NOT NULL, record BLOB NOT NULL,
            PRIMARY KEY (agreement, job)) WITHOUT ROWID""",
    ),
)
_PUT_ACCOUNT = """
INSERT INTO accounts (name, kind, "group", quota, per) VALUES (?,?,?,?,?)
ON CONFLICT (name) DO UPDATE SET quota = excluded.quota, per = excluded.per
"""


@dataclass(frozen=True, slots=True)
class BookState:
    """
    Holds the whole content of a book.

    Parameters
    ----------
    usage
        Metered usage records, by agreement and job.
    head
        Hash of the last row and with it of all, in hexadecimal: noted elsewhere, it
        shows later that no row went missing since.
    """

    accounts: Accounts
    usage: tuple[UsageRecord, ...]
    head: str


class Book(Accounts):
    """
    Opens a book for writing, or makes one if a currency is given.

    Operations of :class:`Accounts` are durable when they return, or inside
    :meth:`together` when that block ends.

    Parameters
    ----------
    currency
        Currency of a new book, which an existing one must share. None: the book must exist.
    wait
        Seconds to wait while another process writes.
    durable
        Whether what was acknowledged survives a power cut, which takes time.

    Raises
    ------
    InputError
        When there is no book, the file is damaged or foreign, the currency is another,
        or another process writes.
    BursarError
        When the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        currency: str | None = None,
        wait: float = 0.0,
        durable: bool = True,
    ) -> None:
        if currency is not None:
            try:
                check_currency(currency)
            except ValueError as error:
                raise InputError(str(error), where=str(path)) from None
        elif not path.exists():
            raise _none_at(path)
        if path.is_dir():
            raise InputError(
                "is a folder, expected the file of a book",
                where=str(path),
                hint="the accounts in a service's folder are written by the service alone",
            )
        self._path = path
        self._head = b""
        self._written = 0
        self._together = False
        self._changed: list[LedgerAccount] = []
        self._noted: list[UsageRecord] = []
        with contextlib.ExitStack() as opened:
            # The lock comes before SQLite opens the file: two writers would each chain rows onto
            # the same head.
            opened.callback(os.close, _take_lock(path, wait))
            with _opening(path):
                self._db = connect(path, synchronous="FULL" if durable else "OFF")
                opened.callback(self._db.close)
                if is_empty(self._db):
                    if currency is None:
                        raise _none_at(path)
                    with transaction(self._db):  # a reader sees all the tables or none
                        _LAYOUT.make(self._db)
                        self._db.execute("INSERT INTO meta VALUES ('currency', ?)", (currency,))
                _LAYOUT.check(self._db, path)
                keep_write_ahead_log(self._db)
            self._reload()
            if currency is not None and currency != self.currency:
                raise InputError(f"is in {self.currency}, not in {currency}", where=str(path))
            # Only a book that passed all checks stays open; any error above closes file and lock.
            self._opened = opened.pop_all()

    def __enter__(self) -> "Book":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def together(self) -> Iterator["Book"]:
        """
        Commit all operations of a block together at the end of the block.

        An exception takes the whole batch back; a refusal within is an answer and takes
        nothing else back. A batch within a batch belongs to the outer one.

        Raises
        ------
        BursarError
            When the batch cannot be written; nothing of it is kept then.
        """
        if self._together:
            yield self
            return
        self._together = True
        try:
            yield self
        except BaseException:
            self._undo()
            raise
        finally:
            self._together = False
        self._flush()

    def open_account(self, account: LedgerAccount) -> LedgerAccount | Refusal:
        """Open an account durably; see :meth:`Accounts.open_account`."""
        return self._keep(super().open_account(account))

    def set_quota(self, user: str, quota: SpendingQuota | None) -> LedgerAccount | Refusal:
        """Set a quota durably; see :meth:`Accounts.set_quota`."""
        return self._keep(super().set_quota(user, quota))

    def meter(self, record: UsageRecord) -> UsageRecord | Refusal:
        """Keep a usage record once; refuse another one for the same job."""
        which = record.agreement, record.job
        found = self._usage.get(which)
        if found is not None:
            reason = f"{record.agreement}: {record.job} was metered otherwise"
            return found if found == record else Refusal(reason, final=True)
        self._usage[which] = record
        self._noted.append(record)
        if not self._together:
            self._flush()
        return record

    @property
    def usage(self) -> tuple[UsageRecord, ...]:
        """Return all metered usage records."""
        return tuple(self._usage.values())

    @property
    def head(self) -> str:
        """Hash over all the rows that are written, in hexadecimal."""
        return self._head.hex()

    def close(self) -> None:
        """Fold in the write-ahead log and let others write. A second call does nothing."""
        self._opened.close()

    # Inside.

    def _keep(self, answer: LedgerAccount | Refusal) -> LedgerAccount | Refusal:
        if isinstance(answer, LedgerAccount):
            self._changed.append(answer)
            if not self._together:
                self._flush()
        return answer

    def _posted(self, row: Transfer) -> None:
        """Write a new row at once, unless it belongs to a batch."""
        if not self._together:
            self._flush()

    def _flush(self) -> None:
        """Write everything new in one transaction."""
        fresh = self._rows[self._written :]
        if not (fresh or self._changed or self._noted):
            return
        # The new head becomes ours only after the commit: a failed one must not leave a gap in the
        # chain.
        head, lines = self._head, []
        for row in fresh:
            head = next_link(head, row)
            lines.append((*msgspec.structs.astuple(row), head))
        try:
            with translate_sqlite_errors(self._path, "book"), transaction(self._db):
                self._db.executemany(_PUT_ACCOUNT, [_columns(a) for a in self._changed])
                self._db.executemany("INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?,?)", lines)
                self._db.executemany(
                    "INSERT INTO usage VALUES (?,?,?)",
                    [(u.agreement, u.job, msgspec.msgpack.encode(u)) for u in self._noted],
                )
        except BaseException:
            self._undo()
            raise
        self._head = head
        self._written = len(self._rows)
        self._changed.clear()
        self._noted.clear()

    def _undo(self) -> None:
        """Reload memory from the file; close a book that cannot be read again."""
        # Nothing new in memory: spare the reading of the whole file.
        if len(self._rows) == self._written and not (self._changed or self._noted):
            return
        try:
            self._reload()
        except BaseException:
            self.close()
            raise

    def _reload(self) -> None:
        with _opening(self._path):
            currency, opened, rows, usage, head = _load(self._db, self._path)
        with _within(self._path):
            # The rows are replayed one by one: each is checked again by the rules that made it.
            Accounts.__init__(self, currency, opened, rows, self._posted)
        self._usage = {(record.agreement, record.job): record for record in usage}
        self._head = head
        self._written = len(self._rows)
        self._changed.clear()
        self._noted.clear()


def read_book(path: Path) -> BookState:
    """
    Read everything that a book holds, also while another process writes to the book.

    Raises
    ------
    InputError
        When there is no book, or the file is damaged or foreign.
    """
    if not path.exists():
        raise _none_at(path)
    with (
        _opening(path),
        # Not mode=ro: reading a WAL file may have to make its shared-memory index.
        contextlib.closing(connect(path, synchronous=None)) as db,
    ):
        # One snapshot for all queries: a writer may commit between them.
        db.execute("BEGIN")
        if is_empty(db):
            raise _none_at(path)
        _LAYOUT.check(db, path)
        currency, opened, rows, usage, head = _load(db, path)
    with _within(path):
        return BookState(Accounts(currency, opened, rows), tuple(usage), head.hex())


_Loaded = tuple[str, list[LedgerAccount], list[Transfer], list[UsageRecord], bytes]


def _load(db: LockWaitingConnection, path: Path) -> _Loaded:
    """Read the whole book and verify each row against the chain of hashes."""
    found = db.execute("SELECT value FROM meta WHERE key = 'currency'").fetchone()
    if found is None:
        raise InputError("is damaged: it names no currency", where=str(path))
    currency: str = found[0]
    query = 'SELECT name, kind, "group", quota, per FROM accounts ORDER BY number'
    opened = [_account(*columns) for columns in db.execute(query)]
    stored = db.execute("SELECT * FROM rows ORDER BY number")
    chained = ((Transfer(*columns), chain) for *columns, chain in stored)
    with errors_within(str(path)):
        rows, head = read_chained(chained, first_link(FORMAT, currency))
    decode = msgspec.msgpack.Decoder(UsageRecord).decode
    blobs = db.execute("SELECT record FROM usage ORDER BY agreement, job")
    return currency, opened, rows, [decode(blob) for (blob,) in blobs], head


def _account(name: str, kind: str, group: str, quota: int | None, per: Per | None) -> LedgerAccount:
    """Return the account in a row of the file; a quota of None (micro-units) sets no limit."""
    return LedgerAccount(
        name=name,
        kind="user" if kind == "user" else "provider",
        group=group,
        quota=None if quota is None else SpendingQuota(amount=quota, per=per or "all"),
    )


def _columns(account: LedgerAccount) -> tuple[str, str, str, int | None, str | None]:
    quota = account.quota
    amount, per = (None, None) if quota is None else (quota.amount, quota.per)
    return account.name, account.kind, account.group, amount, per


def _none_at(path: Path) -> InputError:
    return InputError("there is no book", where=str(path))


def _take_lock(path: Path, wait: float) -> int:
    try:
        return take_lock(f"{path}.lock", wait=wait)
    except LockHeldElsewhere as error:
        raise InputError(f"is being written by {error.holder}", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[None]:
    """Translate errors in the file's content to one line that names the file."""
    try:
        with translate_sqlite_errors(path, "book"):
            yield
    except msgspec.MsgspecError as error:
        raise InputError(f"is damaged or no book: {error}", where=str(path)) from error
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # of a noun checking itself
        raise InputError(f"is damaged: {error}", where=str(path)) from error


@contextlib.contextmanager
def _within(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise error.within(str(path)) from None
    except (TypeError, AttributeError) as error:  # a column of another type than it was written
        raise InputError(f"is damaged: {error}", where=str(path)) from None
