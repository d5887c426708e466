"""
The journal: every attempt's outcome, every movement of money, every event.

One SQLite file with a write-ahead log. What :meth:`RunJournal.commit` returned
from is on disk (``synchronous=FULL``) and there after any crash, once: an
attempt is a primary key. One process writes, held by a lock beside the file;
any number may read meanwhile.

Rows are only ever added, and a chained digest covers them (``journal_chain``),
sealed by the user's key (``journal_seal``); a small file beside the journal says
how far it went (``journal_head``). A complete read checks all of these.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from bursar.database_files import DatabaseFiles, DiskBroken, DiskFull, RealFiles
from bursar.dispatch.journal_chain import (
    TABLES,
    JournalCommit,
    JournalHead,
    SealingKey,
    check_head,
    checked,
    damage_error,
    genesis_commit,
    head_from_bytes,
    head_path,
    head_to_bytes,
    identity_of,
    insert_commit,
    last_commit,
    last_sign_of_life,
    next_commit,
    read_head,
    sealing_key,
    sign_of_life,
    uncommitted_starts,
    verify,
    with_check,
)
from bursar.dispatch.journal_records import (
    AttemptRecord,
    AttemptStart,
    JournalState,
    RunEvent,
    copies_of,
    transfer_from_bytes,
    transfer_to_bytes,
)
from bursar.locking import LockHeldElsewhere, LockHolder, is_locked, lock_holder
from bursar.model.errors import BursarError, InputError
from bursar.model.money import Transfer
from bursar.model.task import Outcome
from bursar.sqlite_file import (
    LockWaitingConnection,
    LockWaitNotice,
    SqliteSchema,
    connect,
    is_empty,
    is_full,
    keep_write_ahead_log,
    set_synchronous,
    transaction,
    translate_sqlite_errors,
)

FORMAT = "3"

RESERVE = 4 << 20
"""Bytes of the disk that are kept for outcomes of running tasks."""

_LAYOUT = SqliteSchema(
    what="journal",
    key="format",
    format=FORMAT,
    statements=(
        """CREATE TABLE attempts (
            number INTEGER NOT NULL, task INTEGER NOT NULL, attempt INTEGER NOT NULL,
            final INTEGER NOT NULL, status TEXT NOT NULL, site TEXT NOT NULL, lease TEXT NOT NULL,
            outcome BLOB NOT NULL, PRIMARY KEY (task, attempt)) WITHOUT ROWID""",
        "CREATE TABLE transfers (number INTEGER PRIMARY KEY, transfer BLOB NOT NULL)",
        """CREATE TABLE events (
            number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL,
            text TEXT NOT NULL)""",
        "CREATE TABLE starts (number INTEGER PRIMARY KEY, batch BLOB NOT NULL)",
        """CREATE TABLE commits (
            number INTEGER PRIMARY KEY, attempts INTEGER NOT NULL, transfers INTEGER NOT NULL,
            events INTEGER NOT NULL, starts INTEGER NOT NULL, parts BLOB NOT NULL,
            digest BLOB NOT NULL, seal BLOB NOT NULL)""",
    ),
)
_INSERT = {
    table: f"INSERT INTO {table} ({columns}) VALUES ({','.join('?' * len(columns.split(',')))})"
    for table, columns in TABLES.items()
}


class RunJournal:
    """
    A run's journal, open for writing; a missing journal is created.

    Its methods may be called from any thread, one at a time. Each waits while another process
    locks the file.

    Parameters
    ----------
    durable
        Whether committed transactions survive a power cut; waiting for the disk takes time.
    notify
        Called with one line for people about long waits for a lock, in the thread that waits;
        None: the line goes to stderr.
    files
        Disk of the journal; None: the operating system's files at the path.

    Attributes
    ----------
    is_full
        Whether the disk was full: what runs is still recorded, to a reserve, and nothing new
        should begin.
    identity
        Identity of the run in all its incarnations: random, since two runs may share a name.

    Raises
    ------
    InputError
        When another process writes the journal, or it is damaged.
    BursarError
        When the journal cannot be opened, or is of a newer format.
    """

    def __init__(
        self,
        path: Path,
        *,
        durable: bool = True,
        notify: LockWaitNotice | None = None,
        files: DatabaseFiles | None = None,
    ) -> None:
        self._path = path
        self._durable = durable
        self._encoder = msgspec.msgpack.Encoder()
        self._key = sealing_key(make=durable)
        # First: two writers would each extend the chain from the same transaction.
        self._files = files or _files_of(path)
        with contextlib.ExitStack() as opened:
            opened.callback(self._files.close)
            with _complaining(path):
                head = self._read_head()
                self._files.rewrite_log()
                self._db = connect(
                    self._files.database,
                    synchronous="FULL" if durable else "OFF",
                    notify=notify,
                    vfs=self._files.vfs,
                    # A simulated disk shares no memory between processes.
                    exclusive=bool(self._files.vfs),
                )
                opened.callback(self._db.close)
                is_fresh = is_empty(self._db)
                if is_fresh:
                    _check_was_empty(path, head)
                else:
                    _LAYOUT.check(self._db, path)
                keep_write_ahead_log(self._db)
                if is_fresh:
                    with transaction(self._db):  # a reader sees all the tables or none
                        _LAYOUT.make(self._db)
                        self.identity = secrets.token_hex(8)
                        self._put("identity", self.identity)
                        # Before the tables are there: a chained journal always has a head.
                        self._note_head(genesis_commit(self.identity), durably=durable)
                self.identity = identity_of(self._db, path)
                self._last = last_commit(self._db, self.identity)
                self._loose = uncommitted_starts(self._db, self._last)
                if is_fresh:
                    self._note_head(self._last)
                else:
                    head = check_head(path, head, self._last)
                    # The head and not the last transaction, which may never have reached the disk
                    # when the process before was killed: a power cut would then take it back.
                    self._files.note(head_to_bytes(head), durably=durable)
                # Not where nothing is durable: a full disk ends such a run at once.
                self._is_reserved = durable and self._files.reserve(RESERVE)
                self.is_full = durable and not self._is_reserved
            self._opened = opened.pop_all()

    def commit(
        self,
        records: Sequence[AttemptRecord] = (),
        transfers: Sequence[Transfer] = (),
        events: Sequence[RunEvent] = (),
        starts: Sequence[AttemptStart] = (),
    ) -> None:
        """
        Write one transaction, which is durable on return; write nothing when that fails.

        Starts alone are there when the process is killed, and may be lost in a power cut.

        Raises
        ------
        BursarError
            When the transaction cannot be written; the journal is then as before.
        InputError
            When another program has written into the journal.
        """
        encode, last = self._encoder.encode, self._last
        loose = self._loose
        if starts:
            # Starts are not covered by the chain until the next transaction, so they bring a digest
            # along.
            batch = with_check(encode(starts))
            loose = [*loose, (last.starts + len(loose) + 1, batch)]
        if not (records or transfers or events):
            self._commit_starts(loose)
            return
        added: list[list[tuple[Any, ...]]] = [
            [
                (
                    number,
                    r.outcome.task,
                    r.outcome.attempt,
                    int(r.final),
                    r.outcome.status,
                    r.site,
                    r.lease,
                    encode(r.outcome),
                )
                for number, r in enumerate(records, last.attempts + 1)
            ],
            [
                (number, transfer_to_bytes(t))
                for number, t in enumerate(transfers, last.transfers + 1)
            ],
            [
                # The column holds floats: an integer would be digested as another value than the
                # one read back.
                (number, e.time + 0.0, e.kind, e.text)
                for number, e in enumerate(events, last.events + 1)
            ],
            loose,
        ]
        commit = next_commit(last, added, self._key)
        self._store(lambda: self._write(added, commit))
        # Only after the transaction: one that failed leaves no trace in the chain that goes on.
        self._last, self._loose = commit, []
        # After the journal is on disk, never before: a journal behind its head counts as damaged.
        with _complaining(self._path):
            self._note_head(commit)

    def _commit_starts(self, loose: list[tuple[Any, ...]]) -> None:
        """Write starts alone, without waiting for the disk."""
        if self._durable:
            # A start that is lost in a power cut does no harm; to wait for the disk at each start
            # would slow every task down.
            set_synchronous(self._db, "NORMAL")
        try:
            self._store(lambda: self._write([[], [], [], loose], None))
        finally:
            if self._durable:
                set_synchronous(self._db, "FULL")
        self._loose = loose

    def _write(self, added: list[list[tuple[Any, ...]]], commit: JournalCommit | None) -> None:
        """Write the rows of one transaction, without starts that were written before."""
        db = self._db
        # The write lock at once: a transaction that begins by reading could fail when it comes to
        # write.
        db.execute("BEGIN IMMEDIATE")
        try:
            for table, rows in zip(TABLES, added, strict=True):
                new = rows[len(self._loose) :] if table == "starts" else rows
                if new:
                    db.executemany(_INSERT[table], new)
            if commit is not None:
                insert_commit(db, commit)
            db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(apsw.Error):
                db.execute("ROLLBACK")
            # A number or attempt that is taken: nobody else may write, as this process holds the
            # lock.
            if isinstance(error, apsw.ConstraintError):
                raise damage_error(
                    self._path, f"another program wrote into it ({error})"
                ) from error
            raise

    def _store(self, write: Callable[[], None]) -> None:
        """Do one write; on a full disk once more, with the room that was reserved."""
        with _complaining(self._path):
            try:
                write()
            except apsw.Error as error:
                if not (self._is_reserved and is_full(self._db, error)):
                    raise
                # The reserve is for just this: outcomes of what ran when the disk was full.
                self.is_full, self._is_reserved = True, False
                self._files.reserve(0)
                write()

    def beat(self, time: float) -> None:
        """Write a heartbeat."""
        alive = sign_of_life(self.identity, time, self._key)
        self._store(lambda: self._put("alive", alive))

    def load(self) -> JournalState:
        """
        Read and verify everything in the journal.

        Raises
        ------
        InputError
            When the journal was changed or damaged.
        """
        with _complaining(self._path):
            # Before the view of the journal begins, so that the head is not ahead of it.
            head = self._read_head()
            self._db.execute("BEGIN")
            try:
                return _load(self._db, self._path, head, self._key, self._last)
            finally:
                self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Merge the write-ahead log into the journal and release the lock. May be repeated."""
        if self._is_reserved:
            self._is_reserved = False
            with contextlib.suppress(DiskFull, DiskBroken):
                self._files.reserve(0)
        self._opened.close()

    def _put(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (key, value))

    def _read_head(self) -> JournalHead | None:
        noted = self._files.noted()
        return head_from_bytes(noted, self._path) if noted else None

    def _note_head(self, last: JournalCommit, *, durably: bool = False) -> None:
        # Without a sync but for the first: after a power cut the head may be older than the
        # journal, which does no harm, but a journal whose head is missing counts as damaged.
        self._files.note(head_to_bytes(JournalHead(last.number, last.digest)), durably=durably)


def read_journal(path: Path) -> JournalState:
    """
    Read and verify a whole journal, also while another process writes there.

    Raises
    ------
    InputError
        When the journal was changed or damaged.
    BursarError
        When the journal cannot be read, or has a newer format.
    """
    with _reading(path) as (db, head):
        return _load(db, path, head, sealing_key()) if db else JournalState([], [], [])


class JournalPosition(NamedTuple):
    """Numbers of the last rows that were read of a journal; None: nobody wants such rows."""

    attempts: int | None = 0
    transfers: int | None = 0
    events: int | None = 0
    starts: int | None = 0


@dataclass(frozen=True, slots=True)
class JournalAdditions:
    """
    Rows of a journal behind a position, in the order of writing.

    Parameters
    ----------
    starts
        Attempts that were handed out or, with no room, given back; also those that ended since.
    position
        Position behind these rows.
    """

    records: list[AttemptRecord]
    transfers: list[Transfer]
    events: list[RunEvent]
    starts: list[AttemptStart]
    position: JournalPosition


def read_additions(path: Path, position: JournalPosition) -> JournalAdditions:
    """
    Read what a journal has behind a position.

    Rows are only added, so that their number says where to go on. They are not verified, as that
    takes a complete read.

    Raises
    ------
    BursarError
        When the journal cannot be read, or has a newer format.
    """
    behind = tuple(zip(TABLES, position, strict=True))
    with _reading(path) as (db, _):
        if db is None:
            return JournalAdditions([], [], [], [], position)
        # All in one view: what one transaction wrote is there whole.
        rows: dict[str, list[tuple[Any, ...]]] = {
            table: []
            if after is None
            else db.execute(
                f"SELECT {TABLES[table]} FROM {table} WHERE number > ? ORDER BY number", (after,)
            ).fetchall()
            for table, after in behind
        }
    starts = msgspec.msgpack.Decoder(list[AttemptStart]).decode
    return JournalAdditions(
        list(_records(map(itemgetter(7, 3, 5, 6), rows["attempts"]))),
        [transfer_from_bytes(*row) for row in rows["transfers"]],
        [RunEvent(*row[1:]) for row in rows["events"]],
        [one for n, batch in rows["starts"] for one in starts(checked(n, batch, path))],
        JournalPosition(*(rows[t][-1][0] if rows[t] else n for t, n in behind)),
    )


def count_statuses(path: Path) -> dict[str, int]:
    """Count the tasks that ended for good, by status, without reading the outcomes."""
    last = "SELECT status, final, max(attempt) FROM attempts GROUP BY task"
    with _reading(path) as (db, _):
        if db is None:
            return {}
        rows = db.execute(f"SELECT status, count(*) FROM ({last}) WHERE final GROUP BY status")
        return dict(rows.fetchall())


def read_attempts(path: Path, task: int) -> list[AttemptRecord]:
    """Return the attempts of one task, in order of their numbers."""
    query = "SELECT outcome, final, site, lease FROM attempts WHERE task = ? ORDER BY attempt"
    with _reading(path) as (db, _):
        return list(_records(db.execute(query, (task,)))) if db else []


def is_written(path: Path) -> bool:
    """Return whether a process writes a journal now."""
    return is_locked(_lock_path(path))


def writer_of(path: Path) -> LockHolder | None:
    """Return the process that writes a journal now; None: there is none, or it is not known yet."""
    return lock_holder(_lock_path(path))


def _load(
    db: LockWaitingConnection,
    path: Path,
    head: JournalHead | None,
    key: SealingKey | None,
    written: JournalCommit | None = None,
) -> JournalState:
    """
    Read and verify everything in a journal.

    Parameters
    ----------
    written
        Last transaction that this process wrote; None: this process only reads.
    """
    _LAYOUT.check(db, path)
    identity = identity_of(db, path)
    verified = verify(db, path, identity, head, key)
    if written is not None and verified.last.digest != written.digest:
        raise damage_error(path, "its last transaction is not the one that this process wrote")
    rows = verified.rows
    starts = msgspec.msgpack.Decoder(list[AttemptStart]).decode
    # Verified in the order of writing, and wanted in the order of tasks.
    attempts = sorted(rows["attempts"], key=itemgetter(1, 2))
    records = list(_records(map(itemgetter(7, 3, 5, 6), attempts)))
    events = [RunEvent(*row[1:]) for row in rows["events"]]
    # A copy has a higher number than the attempt that may go on when the copy has ended.
    copies = {(copy.task, copy.attempt) for copy in copies_of(events)}
    ended = {(record.outcome.task, record.outcome.attempt) for record in records}
    last = dict(sorted(ended - copies))
    # The last word on an attempt counts: it may have been given back.
    left = {
        (start.task, start.attempt): start
        for number, batch in rows["starts"]
        for start in starts(checked(number, batch, path))
        if start.attempt > last.get(start.task, 0) and start[:2] not in ended
    }
    open_starts = sorted(left.values(), key=lambda start: (start.time, start.task))
    # A writer that was killed between two heartbeats has lived as long as its last record says.
    seen = max(
        last_sign_of_life(db, path, identity, key),
        max((record.outcome.end for record in records), default=0.0),
        max((event.time for event in events), default=0.0),
        max((start.time for start in open_starts), default=0.0),
    )
    return JournalState(
        records,
        [transfer_from_bytes(*row) for row in rows["transfers"]],
        events,
        seen,
        open_starts,
        "valid" if verified.is_sealed else "foreign",
    )


def _records(rows: Iterable[tuple[bytes, int, str, str]]) -> Iterator[AttemptRecord]:
    outcome = msgspec.msgpack.Decoder(Outcome).decode
    for blob, final, site, lease in rows:
        yield AttemptRecord(outcome(blob), bool(final), site, lease)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[LockWaitingConnection | None, JournalHead | None]]:
    """Open one unchanging view of a journal and read the head; None where nothing was written."""
    head = read_head(path)  # first: the view is then no older than it
    if not path.exists():
        _check_was_empty(path, head)
        yield None, None
        return
    with (
        _complaining(path),
        # Not mode=ro: reading a WAL file may have to make its shared-memory index.
        contextlib.closing(connect(path, synchronous=None)) as db,
    ):
        db.execute("BEGIN")
        if head is None and not is_empty(db):
            # The journal may have been made after that look: its head is there before its tables.
            # Without a second look a reader took the head of such a journal for missing.
            db.execute("ROLLBACK")
            head = read_head(path)
            db.execute("BEGIN")
        if is_empty(db):
            _check_was_empty(path, head)
            yield None, None
            return
        _LAYOUT.check(db, path)
        # Cheap enough for every reader: only whether the end of the journal is missing.
        check_head(path, head, last_commit(db, ""))
        yield db, head


def _check_was_empty(path: Path, head: JournalHead | None) -> None:
    """
    Check by the head that a journal without tables, or a missing one, was always empty.

    Raises
    ------
    InputError
        When transactions were written.
    """
    if head is not None and head.number:
        raise damage_error(path, f"all its {head.number} transactions are missing")


def _lock_path(path: Path) -> str:
    return f"{path}.lock"


def _files_of(path: Path) -> RealFiles:
    """Return the files of a journal, which no other process writes until they are closed."""
    head, lock = head_path(path).name, Path(_lock_path(path)).name
    try:
        return RealFiles(path, head=head, reserve=f"{path.name}.reserve", lock=lock, mode=0o644)
    except LockHeldElsewhere as error:
        held = f"is being carried out by {error.holder}"
        raise InputError(held, where=str(path.parent)) from None
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _complaining(path: Path) -> Iterator[None]:
    """Translate errors of SQLite and of decoding into messages of one line."""
    try:
        with translate_sqlite_errors(path, "journal"):
            yield
    except (DiskFull, DiskBroken) as error:
        raise BursarError(f"{path.parent}/{error}") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"is damaged: {error}", where=str(path)) from error
