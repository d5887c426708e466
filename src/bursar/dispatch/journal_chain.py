"""
The protection of a journal: chained digests, seals of this user, and the head beside the file.

The head is a small file. A write-ahead log that is lost, or damaged in its middle, leaves an
older state that is whole in itself; nothing inside of the database can tell. So after each
transaction that was synchronised to disk its number and digest are noted in the head, without
waiting for the disk. After a kill the head is exact. After a power cut it may be older than the
journal, never newer: a journal that ends before its head has lost what was acknowledged. A power
cut may also tear the head; a copy in another sector, synchronised when the journal was opened, then
takes its place.

A chained digest without a key shows every accident, and every change by a writer who does
not recompute the digest. A seal is a keyed digest of the chain, so that recomputing takes the
key as well. The key lies outside of all run folders and only the user can read it (mode 0600);
so can a task that runs as the same user.

Each transaction has a row in the table ``commits``: how many rows every table has with it, a
digest of the rows that it added to each, and a digest of all that and of the transaction
before. Rows are only ever added. Whatever was changed, taken out, put in or moved since is
found when the rows are read, and named by its table and row.

Starts that were written alone are covered by the next transaction with anything else: they may be
lost in a power cut, which does no harm. Until then a digest of their own covers them.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count, pairwise
from operator import eq, itemgetter, lt
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from bursar.database_files import SAFE
from bursar.dispatch.folders import state_folder
from bursar.model.errors import InputError
from bursar.sqlite_file import LockWaitingConnection

# The head of a journal: a small file beside it that says how far it went.

_DIGITS = 20
_HEAD_CHECK = 8  # bytes
_TRIES = 20  # readings of a head that is being written
_PAUSE = 0.01  # seconds between them


class JournalHead(NamedTuple):
    """
    The last transaction of a journal that is known to be on disk.

    Parameters
    ----------
    number
        Number of the transaction; 0 for none yet.
    digest
        Digest of the chain up to that transaction.
    """

    number: int
    digest: bytes


def head_path(journal: Path) -> Path:
    """Return the name of a journal's head."""
    return journal.with_name(f"{journal.name}.head")


def read_head(journal: Path) -> JournalHead | None:
    """
    Return the head of a journal, also while another process writes there; None without one.

    Raises
    ------
    InputError
        When it is damaged or cannot be read.
    """
    path = head_path(journal)
    for left in reversed(range(_TRIES)):
        try:
            return head_from_bytes(path.read_bytes(), journal)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
        except InputError:
            # A reader may meet the write half done; the check sum tells, and the next look finds
            # it whole.
            if not left:
                raise
            time.sleep(_PAUSE)
    raise AssertionError


def head_to_bytes(head: JournalHead) -> bytes:
    """Encode a head: all are of one size, so that one write replaces another as a whole."""
    text = f"bursar journal head {head.number:0{_DIGITS}d} {head.digest.hex()}".encode()
    return b"%s %s\n" % (text, _check(text))


def head_from_bytes(noted: bytes, journal: Path) -> JournalHead:
    """
    Decode the head of a journal, or the one noted durably where a power cut has torn the last.

    Raises
    ------
    InputError
        When both are damaged.
    """
    for line in (noted[:SAFE], noted[SAFE:]):
        text, _, check = line.rstrip(b"\0\n").rpartition(b" ")
        if _check(text) == check:
            *_, number, digest = text.split()
            return JournalHead(int(number), bytes.fromhex(digest.decode()))
    raise InputError(
        "is damaged, so that nobody can say whether the journal is whole; " + REMEDY,
        where=str(head_path(journal)),
    )


def _check(text: bytes) -> bytes:
    return blake2b(text, digest_size=_HEAD_CHECK).hexdigest().encode()


# Seals on a journal, which only a program that holds this user's key can write.

_NAME = "journal.key"
_LENGTH = 32
_MARK = 4  # bytes that name a key in its seals
_SEAL = 16  # bytes


class SealingKey:
    """
    A user's key for the journals of runs.

    Parameters
    ----------
    secret
        Random bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._mark = blake2b(secret, digest_size=_MARK, person=b"bursar key").digest()

    def seal(self, digest: bytes) -> bytes:
        """Return the seal of a digest; the seal names the key that was used."""
        return self._mark + blake2b(digest, digest_size=_SEAL, key=self._secret).digest()

    def is_mine(self, seal: bytes) -> bool:
        """Return whether a seal names this key as the one that was used."""
        return seal[:_MARK] == self._mark


def sealing_key(*, make: bool = False) -> SealingKey | None:
    """
    Return this user's key; None where there is none.

    Parameters
    ----------
    make
        Whether one is made where there is none; where that cannot be written, there is none.
    """
    folder = state_folder()
    if folder is None:
        return None
    path = folder / _NAME
    secret = _read(path)
    if secret is None and make:
        with contextlib.suppress(OSError):
            _make(path)
        secret = _read(path)
    return None if secret is None else SealingKey(secret)


def _read(path: Path) -> bytes | None:
    """Return the secret in a file; None: it cannot be read or has not the right length."""
    try:
        secret = path.read_bytes()
    except OSError:
        return None
    return secret if len(secret) == _LENGTH else None


def _make(path: Path) -> None:
    """Make a key, whole or not at all; of two programs that do so at once, one wins for both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{_NAME}.{os.getpid()}.{secrets.token_hex(4)}")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(file, secrets.token_bytes(_LENGTH))
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):
            # A link fails where the name exists, a rename would replace a key that another program
            # has used by now.
            os.link(fresh, path)
    finally:
        os.unlink(fresh)


# The chained digest over a journal's transactions, and the search for changed rows.

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


def uncommitted_starts(db: LockWaitingConnection, last: JournalCommit) -> list[_Row]:
    """Return the batches of starts that no transaction has taken in."""
    query = f"SELECT {TABLES['starts']} FROM starts WHERE number > ? ORDER BY number"
    return list(db.execute(query, (last.starts,)))


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


def last_commit(db: LockWaitingConnection, identity: str) -> JournalCommit:
    """Return the last transaction of a journal, unverified."""
    row = db.execute(f"SELECT {_COMMITS} FROM commits ORDER BY number DESC LIMIT 1").fetchone()
    return genesis_commit(identity) if row is None else JournalCommit(*row)


def insert_commit(db: LockWaitingConnection, commit: JournalCommit) -> None:
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
    is_sealed
        Whether its seal is by this user's key.
    """

    rows: dict[str, list[_Row]]
    last: JournalCommit
    is_sealed: bool


def verify(
    db: LockWaitingConnection,
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
) -> JournalHead:
    """
    Compare the end of a journal with the head, which says how far it went; return the head.

    Parameters
    ----------
    head
        The head as read; None: there is none, which is an error.
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
    return head


def damage_error(path: Path, what: str) -> InputError:
    """Return the complaint about a journal that is not what was written."""
    return InputError(f"is damaged: {what}; {REMEDY}", where=str(path))


def _part(rows: Sequence[_Row]) -> bytes:
    # Most transactions touch one or two tables: for the others nothing is digested.
    return blake2b(_encode(rows), digest_size=_PART).digest() if rows else _NO_PART


def _link(before: bytes, number: int, rows: Sequence[int], parts: bytes) -> bytes:
    return blake2b(_encode((before, number, rows, parts)), digest_size=32).digest()


def _fetch(db: LockWaitingConnection, path: Path, table: str, columns: str) -> list[_Row]:
    # In the order of the primary key, which SQLite reads without sorting.
    order = "task, attempt" if table == "attempts" else "number"
    try:
        return list(db.execute(f"SELECT {columns} FROM {table} ORDER BY {order}"))
    # SQLError: the table or a column is missing.
    except (apsw.SQLError, apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        raise damage_error(path, f"table {table} cannot be read ({error})") from error


def _rows(db: LockWaitingConnection, path: Path, table: str) -> list[_Row]:
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


# The run's identity, and heartbeats of the process that writes.


def identity_of(db: LockWaitingConnection, path: Path) -> str:
    """Return the identity of the run whose journal it is."""
    row = db.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    if row is None:
        raise damage_error(path, "row identity of table meta is missing")
    return str(row[0])


def sign_of_life(identity: str, time: float, key: SealingKey | None) -> str:
    """Return a heartbeat's text: time (seconds since the epoch), digest and seal."""
    text = f"{identity} {time!r}".encode()
    digest = blake2b(text, digest_size=16).digest()
    return f"{time!r} {digest.hex()} {key.seal(digest).hex() if key else ''}"


def last_sign_of_life(
    db: LockWaitingConnection, path: Path, identity: str, key: SealingKey | None
) -> float:
    """
    Return the time of the last heartbeat, seconds since the epoch; 0 when there is none.

    Raises
    ------
    InputError
        When the heartbeat was changed.
    """
    row = db.execute("SELECT value FROM meta WHERE key = 'alive'").fetchone()
    if row is None:
        return 0.0
    with contextlib.suppress(ValueError, AttributeError):
        time, _, seal = row[0].split(" ")
        unsealed = sign_of_life(identity, float(time), None) + seal
        is_mine = key is not None and bool(seal) and key.is_mine(bytes.fromhex(seal))
        expected = sign_of_life(identity, float(time), key) if is_mine else unsealed
        # By another user's key it cannot be checked, and is taken as it stands; its digest still
        # fits.
        if row[0] == unsealed == expected:
            return float(time)
    raise damage_error(path, "row alive of table meta was changed")
