"""
The journal: every attempt's outcome, every movement of money, every event.

One SQLite file with a write-ahead log. What :meth:`Journal.commit` returned
from is on disk (``synchronous=FULL``) and there after any crash, once: an
attempt is a primary key. One process writes, held by a lock beside the file;
any number may read meanwhile.
"""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from bursar.locking import HeldElsewhere, is_locked, take_lock
from bursar.model.errors import BursarError, InputError
from bursar.model.outcome import Outcome, Status
from bursar.model.transfer import Transfer

FORMAT = "2"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    task INTEGER NOT NULL, attempt INTEGER NOT NULL, final INTEGER NOT NULL,
    status TEXT NOT NULL, site TEXT NOT NULL, lease TEXT NOT NULL,
    start REAL NOT NULL, "end" REAL NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (task, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS transfers (number INTEGER PRIMARY KEY, transfer BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS starts (
    task INTEGER NOT NULL, attempt INTEGER NOT NULL, site TEXT NOT NULL, lease TEXT NOT NULL,
    worker TEXT NOT NULL, room INTEGER NOT NULL, processors INTEGER NOT NULL, time REAL NOT NULL,
    PRIMARY KEY (task, attempt)) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('format', '2');
"""


class Record(msgspec.Struct, frozen=True):
    """
    An outcome as it is journalled.

    Parameters
    ----------
    outcome
        The attempt's end.
    final
        Whether the task is at its end with it.
    site
        Where it ran.
    lease
        On whose processors there.
    """

    outcome: Outcome
    final: bool
    site: str
    lease: str


class Start(NamedTuple):
    """
    An attempt that was handed to a worker.

    Parameters
    ----------
    task, attempt
        Which.
    site, lease, worker
        Where.
    room
        Processors of the worker; 0: the attempt was given back and has not begun.
    processors
        That the task holds.
    time
        Seconds since the epoch.
    """

    task: int
    attempt: int
    site: str
    lease: str
    worker: str
    room: int
    processors: int
    time: float

    @classmethod
    def given_back(cls, task: int, attempt: int) -> "Start":
        """In place of one that the worker gave back before it began."""
        return cls(task, attempt, "", "", "", 0, 1, 0.0)


class Event(msgspec.Struct, frozen=True):
    """
    Something worth keeping that is neither an outcome nor money.

    Parameters
    ----------
    time
        Seconds since the epoch.
    kind
        One word: ``"lease"``, ``"message"``.
    text
        For people, or JSON where the kind says so.
    """

    time: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class JournalState:
    """
    All that a journal holds.

    Parameters
    ----------
    records
        Every attempt, by task and attempt.
    transfers
        In the order made.
    events
        In the order told.
    last_seen
        Seconds since the epoch: the last sign of life of who wrote it; 0 when
        there is none.
    open_starts
        Attempts that were handed out and of which no end is known, in the order of their times.
    """

    records: list[Record]
    transfers: list[Transfer]
    events: list[Event]
    last_seen: float = 0.0
    open_starts: Sequence[Start] = ()

    @property
    def attempts(self) -> list[Outcome]:
        """The outcome of every attempt."""
        return [record.outcome for record in self.records]

    @property
    def outcomes(self) -> list[Outcome]:
        """
        The outcome of each task that is at its end, by task.

        A task whose failures were forgotten has attempts past a final one: the
        last attempt decides.
        """
        last = {record.outcome.task: record for record in self.records}
        return [record.outcome for record in last.values() if record.final]


class Journal:
    """
    Opens a journal to write; makes it where there is none.

    Its methods may be called from any thread, one at a time.

    Parameters
    ----------
    path
        Of the file.
    durable
        Whether what was committed survives a power cut, which takes time.

    Attributes
    ----------
    identity
        Of the run, through all its lives: random, since two runs may share a name.

    Raises
    ------
    InputError
        When another process writes it.
    BursarError
        When it cannot be opened, or is of a newer format.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self._path = path
        self._durable = durable
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = _take_lock(path)
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, self._lock)
            with _speaking_of(path):
                self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                opened.callback(self._db.close)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
                self._db.execute("PRAGMA wal_autocheckpoint=4000")
                if not _is_empty(self._db):
                    _check_format(self._db, path)
                # One transaction: a reader sees all the tables or none.
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
                self._db.execute(
                    "INSERT OR IGNORE INTO meta VALUES ('identity', ?)", (secrets.token_hex(8),)
                )
                (self.identity,) = self._db.execute(
                    "SELECT value FROM meta WHERE key = 'identity'"
                ).fetchone()
            self._opened = opened.pop_all()

    def commit(
        self,
        records: Sequence[Record] = (),
        transfers: Sequence[Transfer] = (),
        events: Sequence[Event] = (),
        starts: Sequence[Start] = (),
    ) -> None:
        """
        Writes all of it, or nothing; on return it is durable.

        Starts alone are there when the process is killed, and may be lost in a power cut.

        Raises
        ------
        BursarError
            When it cannot be written; nothing of it is there then.
        """
        encode = self._encoder.encode
        with _speaking_of(self._path), self._lightly(not (records or transfers or events)):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if records:
                    self._db.executemany(
                        "INSERT INTO attempts VALUES (?,?,?,?,?,?,?,?,?)",
                        [
                            (
                                o.task,
                                o.attempt,
                                r.final,
                                o.status,
                                r.site,
                                r.lease,
                                o.start,
                                o.end,
                                encode(o),
                            )
                            for r in records
                            for o in (r.outcome,)
                        ],
                    )
                if transfers:
                    self._db.executemany(
                        "INSERT INTO transfers (transfer) VALUES (?)",
                        [(encode(transfer),) for transfer in transfers],
                    )
                if events:
                    self._db.executemany(
                        "INSERT INTO events (time, kind, text) VALUES (?,?,?)",
                        [(event.time, event.kind, event.text) for event in events],
                    )
                if starts:
                    self._db.executemany(
                        "INSERT OR REPLACE INTO starts VALUES (?,?,?,?,?,?,?,?)", starts
                    )
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _lightly(self, is_light: bool) -> Iterator[None]:
        """Does not wait for the disk."""
        if not (is_light and self._durable):
            yield
            return
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            yield
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    def beat(self, time: float) -> None:
        """Leaves a sign of life."""
        with _speaking_of(self._path):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('alive', ?)", (repr(time),))

    def load(self) -> JournalState:
        """Everything that is there."""
        with _speaking_of(self._path):
            return _load(self._db)

    def close(self) -> None:
        """Folds the write-ahead log in and lets others write. Doing it again does nothing."""
        self._opened.close()


def cut_off(journal: JournalState) -> list[Record]:
    """
    Attempts that ran when the process that wrote a journal was killed.

    A worker runs what it was handed in the order of handing out, as far as it has processors:
    what is beyond that had not begun, and is no attempt.
    """
    used: dict[str, int] = {}
    last_end: dict[str, float] = {}
    for record in journal.records:
        last_end[record.lease] = max(last_end.get(record.lease, 0.0), record.outcome.end)
    found = []
    for start in journal.open_starts:
        busy = used.get(start.worker, 0) + start.processors
        if busy > start.room:
            continue
        used[start.worker] = busy
        end = max(journal.last_seen, start.time)
        outcome = Outcome(
            task=start.task,
            attempt=start.attempt,
            status=Status.CANCELLED,
            start=min(max(start.time, last_end.get(start.lease, 0.0)), end),
            end=end,
            reason="the run was killed",
        )
        found.append(Record(outcome, False, start.site, start.lease))
    return found


def read_journal(path: Path) -> JournalState:
    """
    Everything a journal holds, also while another process writes it.

    Raises
    ------
    BursarError
        When it cannot be read, is damaged, or of a newer format.
    """
    with _reading(path) as db:
        return _load(db) if db else JournalState([], [], [])


def count_statuses(path: Path) -> dict[str, int]:
    """How many tasks ended for good, by status; without reading the outcomes."""
    last = "SELECT status, final, max(attempt) FROM attempts GROUP BY task"
    with _reading(path) as db:
        if db is None:
            return {}
        rows = db.execute(f"SELECT status, count(*) FROM ({last}) WHERE final GROUP BY status")
        return dict(rows.fetchall())


def read_attempts(path: Path, task: int) -> list[Record]:
    """The attempts of one task, the first one first."""
    query = "SELECT outcome, final, site, lease FROM attempts WHERE task = ? ORDER BY attempt"
    with _reading(path) as db:
        return list(_records(db.execute(query, (task,)))) if db else []


def is_written(path: Path) -> bool:
    """Return whether a process writes a journal now."""
    return is_locked(_lock_path(path))


def _load(db: sqlite3.Connection) -> JournalState:
    transfer = msgspec.msgpack.Decoder(Transfer).decode
    query = "SELECT outcome, final, site, lease FROM attempts ORDER BY task, attempt"
    alive = db.execute("SELECT value FROM meta WHERE key = 'alive'").fetchone()
    times = """SELECT max(t) FROM (SELECT max("end") t FROM attempts
               UNION SELECT max(time) FROM events)"""
    seen = db.execute(times).fetchone()[0] or 0.0
    known = "SELECT 1 FROM attempts a WHERE a.task = s.task AND a.attempt >= s.attempt"
    try:
        rows = db.execute(f"SELECT * FROM starts s WHERE NOT EXISTS ({known}) ORDER BY time, task")
        starts = [Start(*row) for row in rows]
    except sqlite3.OperationalError:  # of a run that was made before starts were kept
        starts = []
    seen = max([seen, *(start.time for start in starts)])
    return JournalState(
        last_seen=max(seen, float(alive[0])) if alive else seen,
        open_starts=starts,
        records=list(_records(db.execute(query))),
        transfers=[
            transfer(blob)
            for (blob,) in db.execute("SELECT transfer FROM transfers ORDER BY number")
        ],
        events=[
            Event(*row) for row in db.execute("SELECT time, kind, text FROM events ORDER BY number")
        ],
    )


def _records(rows: Iterable[tuple[bytes, int, str, str]]) -> Iterator[Record]:
    outcome = msgspec.msgpack.Decoder(Outcome).decode
    for blob, final, site, lease in rows:
        yield Record(outcome(blob), bool(final), site, lease)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """One unchanging view of a journal; None when nothing was ever written."""
    if not path.exists():
        yield None
        return
    with (
        _speaking_of(path),
        # Not mode=ro: reading a WAL file may have to make its shared-memory index.
        contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as db,
    ):
        db.execute("PRAGMA query_only=1")
        db.execute("BEGIN")
        if _is_empty(db):
            yield None
            return
        _check_format(db, path)
        yield db


def _is_empty(db: sqlite3.Connection) -> bool:
    """Whether it has no tables yet."""
    return bool(db.execute("SELECT count(*) = 0 FROM sqlite_master").fetchone()[0])


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    row = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    found = row[0] if row else "none"
    if found != FORMAT:
        raise BursarError(f"{path}: its format is {found}; this version reads format {FORMAT}")


def _lock_path(path: Path) -> str:
    return f"{path}.lock"


def _take_lock(path: Path) -> int:
    try:
        return take_lock(_lock_path(path))
    except HeldElsewhere as error:
        held = f"is being carried out by {error.holder}"
        raise InputError(held, where=str(path.parent)) from None
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _speaking_of(path: Path) -> Iterator[None]:
    """Complaints about a journal as one line of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise BursarError(f"{path}: {error}") from error
    except msgspec.MsgspecError as error:
        raise BursarError(f"{path}: damaged: {error}") from error
