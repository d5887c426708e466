"""
The chained digest over a journal's transactions, and the search for changed rows.

Each transaction has a row in the table ``commits``: how many rows every table has with it, a
digest of the rows that it added to each, and a digest of all that and of the transaction
before. Rows are only ever added. Whatever was changed, taken out, put in or moved since is
found when the rows are read, and named by its table and row.

Starts that were written alone are covered by the next transaction with anything else: they may be
lost in a power cut, which does no harm. Until then a digest of their own covers them.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, pairwise
from operator import eq, itemgetter, lt
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bursar.dispatch.journal_head import JournalHead, head_path
from bursar.dispatch.journal_seal import SealingKey
from bursar.model.errors import InputError

TABLES = {
    "attempts": "number, task, attempt, final, status, site, lease, outcome",
    "transfers": "number, transfer",
    "events": "number, time, kind, text",
    "starts": "number, batch",
}
"""Tables that the chain covers, and their columns in the order in which rows are digested."""

REMEDY = "restore the run's folder from a copy"

_Row = tuple[Any, ...]
_CHECK = 8  # bytes of the digest of a batch of starts
_PART = 16  # bytes of the digest of a table's rows
_NO_PART = bytes(_PART)
_number_of = itemgetter(0)
_encode = msgspec.msgpack.Encoder().encode
_COMMITS = "number, attempts, transfers, events, starts, parts, digest, seal"
_INSERT_COMMIT = f"INSERT INTO commits ({_COMMITS}) VALUES (?,?,?,?,?,?,?,?)"


class JournalCommit(NamedTuple):
    """
    One transaction: a row of the table ``commits``.

    Parameters
    ----------
    number
        1 for the first.
    attempts, transfers, events, starts
        Rows of each table, those of this transaction included.
    parts
        Digests of the rows that the transaction added to each table, one after the other.
    digest
        Digest of all this and of the transaction before.
    seal
        Seal of the digest by a user's key; empty without a key.
    """

    number: int
    attempts: int
    transfers: int
    events: int
    starts: int
    parts: bytes
    digest: bytes
    seal: bytes

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each table, in the order of :data:`TABLES`."""
        return self[1:5]


def with_check(batch: bytes) -> bytes:
    """Return a batch of starts with a digest in front."""
    return blake2b(batch, digest_size=_CHECK).digest() + batch


def checked(number: int, batch: bytes, path: Path) -> bytes:
    """
    Return a batch of starts without the digest in front.

    Raises
    ------
    InputError
        When the digest does not fit the batch.
    """
    if with_check(batch[_CHECK:]) != batch:
        raise damage_error(path, f"row {number} of table starts was changed")
    return batch[_CHECK:]


def uncommitted_starts(db: sqlite3.Connection, last: JournalCommit) -> list[_Row]:
    """Return the batches of starts that no transaction has taken in."""
    query = f"SELECT {TABLES['starts']} FROM starts WHERE number > ? ORDER BY number"
    return db.execute(query, (last.starts,)).fetchall()


def genesis_commit(identity: str) -> JournalCommit:
    """Return the start of the chain, in place of a transaction before the first."""
    # With the run's identity, so that transactions of another run's journal do not fit in.
    digest = blake2b(f"bursar journal 3 {identity}".encode(), digest_size=32).digest()
    return JournalCommit(0, 0, 0, 0, 0, b"", digest, b"")


def next_commit(
    last: JournalCommit, added: Sequence[Sequence[_Row]], key: SealingKey | None
) -> JournalCommit:
    """
    Return the transaction that follows another.

    Parameters
    ----------
    added
        Rows by table, in the order of :data:`TABLES`, as they are read back.
    key
        Key to seal the transaction with; None for no seal.
    """
    attempts, transfers, events, starts = (
        before + len(more) for before, more in zip(last.rows, added, strict=True)
    )
    rows = attempts, transfers, events, starts
    parts = b"".join(_part(more) for more in added)
    digest = _link(last.digest, last.number + 1, rows, parts)
    seal = key.seal(digest) if key else b""
    return JournalCommit(last.number + 1, attempts, transfers, events, starts, parts, digest, seal)


def last_commit(db: sqlite3.Connection, identity: str) -> JournalCommit:
    """Return the last transaction of a journal, unverified."""
    row = db.execute(f"SELECT {_COMMITS} FROM commits ORDER BY number DESC LIMIT 1").fetchone()
    return genesis_commit(identity) if row is None else JournalCommit(*row)


def insert_commit(db: sqlite3.Connection, commit: JournalCommit) -> None:
    """Write a transaction's row."""
    db.execute(_INSERT_COMMIT, commit)


@dataclass(frozen=True, slots=True)
class VerifiedJournal:
    """
    The content of a journal whose chained digest was verified.

    Parameters
    ----------
    rows
        Rows of each table, in the order of writing.
    last
        The last transaction.
    is_sealed
        Whether its seal is by this user's key.
    """

    rows: dict[str, list[_Row]]
    last: JournalCommit
    is_sealed: bool


def verify(
    db: sqlite3.Connection,
    path: Path,
    identity: str,
    head: JournalHead | None,
    key: SealingKey | None,
) -> VerifiedJournal:
    """
    Read all rows, and verify the chain, the seal and the head.

    Parameters
    ----------
    db
        Within a transaction, begun after the head was read.
    path
        Path of the journal, for messages.
    head, key
        Head of the journal, and key of the user; None where missing.

    Raises
    ------
    InputError
        When something was changed or is missing; the message names it.
    """
    rows = {table: _rows(db, path, table) for table in TABLES}
    commits = [JournalCommit(*row) for row in _fetch(db, path, "commits", _COMMITS)]
    try:
        last = _check_chain(path, identity, commits)
        # Before the rows: where the end is missing, that is what the message should say.
        check_head(path, head, last, commits)
        _check_rows(path, commits, rows)
    except (TypeError, ValueError, OverflowError) as error:  # a value of another type
        raise damage_error(path, f"a row holds what was never written ({error})") from error
    is_mine = key is not None and key.is_mine(last.seal)
    if key is not None and is_mine and key.seal(last.digest) != last.seal:
        raise damage_error(
            path, f"row {last.number} of table commits has a seal that does not fit its digest"
        )
    return VerifiedJournal(rows, last, is_mine)


def check_head(
    path: Path, head: JournalHead | None, last: JournalCommit, commits: Sequence[JournalCommit] = ()
) -> None:
    """
    Compare the end of a journal with the head, which says how far the journal went.

    Parameters
    ----------
    head
        The head as read; None: there is none, which is an error.
    last
        Last transaction in the journal.
    commits
        All transactions; without them, only their number is compared.

    Raises
    ------
    InputError
        When the head is missing, or transactions are missing or differ from the one it notes.
    """
    if head is None:
        raise InputError(
            "is missing, so that nobody can say whether the journal is whole; " + REMEDY,
            where=str(head_path(path)),
        )
    if head.number > last.number:
        missing = head.number - last.number
        raise damage_error(
            path,
            f"the last {missing} of {head.number} transactions are missing: its write-ahead log "
            f"({path.name}-wal) was damaged or removed, or rows were deleted",
        )
    # The head may be older than the journal after a power cut, so it is compared with the
    # transaction of its number.
    if commits and head.number and commits[head.number - 1].digest != head.digest:
        raise damage_error(
            path, f"row {head.number} of table commits is not the one noted in {path.name}.head"
        )


def damage_error(path: Path, what: str) -> InputError:
    """Return the complaint about a journal that is not what was written."""
    return InputError(f"is damaged: {what}; {REMEDY}", where=str(path))


def _part(rows: Sequence[_Row]) -> bytes:
    # Most transactions touch one or two tables: for the others nothing is digested.
    return blake2b(_encode(rows), digest_size=_PART).digest() if rows else _NO_PART


def _link(before: bytes, number: int, rows: Sequence[int], parts: bytes) -> bytes:
    return blake2b(_encode((before, number, rows, parts)), digest_size=32).digest()


def _fetch(db: sqlite3.Connection, path: Path, table: str, columns: str) -> list[_Row]:
    # In the order of the primary key, which SQLite reads without sorting.
    order = "task, attempt" if table == "attempts" else "number"
    try:
        return db.execute(f"SELECT {columns} FROM {table} ORDER BY {order}").fetchall()
    except sqlite3.DatabaseError as error:
        # The lower byte is the primary code: extended ones say more of the same. SQLITE_ERROR: the
        # table or a column is missing.
        if (getattr(error, "sqlite_errorcode", None) or 1) & 0xFF in (
            sqlite3.SQLITE_ERROR,
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
        ):
            raise damage_error(path, f"table {table} cannot be read ({error})") from error
        raise


def _rows(db: sqlite3.Connection, path: Path, table: str) -> list[_Row]:
    """Return the rows of a table by number, and check that the key's order is kept on disk."""
    rows = _fetch(db, path, table, TABLES[table])
    try:
        if table == "attempts":
            # A search would not find what a scan finds when the tree is out of order.
            keys = list(map(itemgetter(1, 2), rows))
            if not all(map(lt, keys, keys[1:])):
                task, attempt = next(after for before, after in pairwise(keys) if before >= after)
                raise damage_error(
                    path, f"task {task}, attempt {attempt} is out of order in table {table}"
                )
            rows.sort(key=_number_of)
        if not all(map(eq, map(_number_of, rows), count(1))):
            lost = next(place for place, row in enumerate(rows, 1) if row[0] != place)
            raise damage_error(path, f"row {lost} of table {table} is missing or out of order")
    except TypeError as error:
        raise damage_error(path, f"table {table} holds a key of another type") from error
    return rows


def _check_chain(path: Path, identity: str, commits: Sequence[JournalCommit]) -> JournalCommit:
    last = genesis_commit(identity)
    for commit in commits:
        expected = _link(last.digest, last.number + 1, commit.rows, commit.parts)
        if commit.number != last.number + 1 or commit.digest != expected:
            which = f"row {last.number + 1} of table commits was changed, or is missing"
            if not last.number:
                which += ", or the run's identity in table meta was changed"
            raise damage_error(path, which)
        last = commit
    return last


def _check_rows(path: Path, commits: Sequence[JournalCommit], rows: dict[str, list[_Row]]) -> None:
    for place, (table, found) in enumerate(rows.items()):
        begin = 0
        for commit in commits:
            end = commit.rows[place]
            part = commit.parts[place * _PART : (place + 1) * _PART]
            if end > len(found):
                raise damage_error(
                    path, f"rows {len(found) + 1} to {end} of table {table} are missing"
                )
            # Nothing to digest where a transaction says that it added nothing, and no row is there.
            if (part != _NO_PART or end != begin) and _part(found[begin:end]) != part:
                named = f"row {end}" if end == begin + 1 else f"one of rows {begin + 1} to {end}"
                raise damage_error(path, f"{named} of table {table} was changed")
            begin = end
        # Starts may be ahead of the last transaction; each batch has a digest of its own.
        if len(found) > begin and table != "starts":
            raise damage_error(
                path, f"row {begin + 1} of table {table} was added by another program"
            )
