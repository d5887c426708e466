"""
One way to open SQLite files: pragmas, waiting for locks, and one line for each complaint.

Every database that the product writes is opened here: the journal of a run, the accounts'
book, the owners' book, replica catalogues and storages.

A lock of another process (a copy being made, an editor, a second run) is waited for. SQLite's
own busy handler cannot tell anybody that it waits, so it is kept short, and the statement is
repeated; only statements that had no effect when they met the lock are ever repeated.
"""

import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from bursar.model.errors import BursarError, InputError

PATIENCE = 600.0
"""Seconds to wait while another process locks a file, before the statement fails."""

NOTIFY_AFTER = 1.0
"""Seconds of waiting after which somebody is told."""

_BUSY_TIMEOUT = 0.25
"""Seconds that SQLite itself waits each time; a signal is heard after that, at the latest."""

_PAUSE = 0.02
"""Seconds between two tries: a lock whose holder was found to be at work is not queued for."""

_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_ENVIRONMENT = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_MISUSE,
    }
)
"""Primary result codes that are no word about what the file holds."""

_SHORT_READ = 522  # SQLITE_IOERR_SHORT_READ: the file ends where a page should go on

LockWaitNotice = Callable[[str], None]
"""Tells people one line. May be called from the thread that uses the connection."""

_T = TypeVar("_T")


def warn_on_stderr(line: str) -> None:
    """Tell people one line where nobody else listens."""
    print(f"bursar: {line}", file=sys.stderr, flush=True)


class LockWaitingConnection(sqlite3.Connection):
    """
    A connection whose statements wait while another process locks the file.

    One line is said when a wait begins to be long, and one when it has ended.
    """

    path = Path()
    patience = PATIENCE
    notify: LockWaitNotice = staticmethod(warn_on_stderr)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run one statement, as the base class does."""
        try:
            return super().execute(sql, parameters)
        except sqlite3.OperationalError as error:
            if not is_locked(error):
                raise
            return self._wait(lambda: sqlite3.Connection.execute(self, sql, parameters), error)

    def _wait(self, act: Callable[[], _T], error: sqlite3.OperationalError) -> _T:
        """Repeat what met a lock until it does not."""
        began, was_notified = time.monotonic(), False
        while True:
            waited = time.monotonic() - began
            if waited >= self.patience:
                raise error
            if not was_notified and waited >= NOTIFY_AFTER:
                was_notified = True
                self.notify(
                    f"{self.path} is locked by another process: "
                    f"waiting for it, up to {self.patience:g} s"
                )
            time.sleep(_PAUSE)
            try:
                result = act()
            except sqlite3.OperationalError as again:
                if not is_locked(again):
                    raise
                error = again
                continue
            if was_notified:
                waited = time.monotonic() - began
                self.notify(f"{self.path} is free again after {waited:.0f} s: going on")
            return result


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether a statement only met a lock, so that it may be repeated as it is."""
    code = getattr(error, "sqlite_errorcode", None)
    # A transaction whose view has grown old stays refused, however often it asks.
    return code is not None and code != sqlite3.SQLITE_BUSY_SNAPSHOT and code & 0xFF in _LOCKED


def connect(
    path: Path,
    *,
    synchronous: Literal["FULL", "NORMAL", "OFF"] | None,
    notify: LockWaitNotice | None = None,
    patience: float | None = None,
) -> LockWaitingConnection:
    """
    Open a file, without changing it yet.

    Parameters
    ----------
    path
        Of the file; an empty one is made where there is none.
    synchronous
        When SQLite waits for the disk: ``"FULL"`` at each commit, ``"NORMAL"`` now and then (a
        power cut may lose the last commits), ``"OFF"`` never. None: only to read.
    notify
        Called when the wait for a lock is long; None: a line goes to stderr.
    patience
        Seconds to wait for a lock; None: :data:`PATIENCE`.

    Raises
    ------
    sqlite3.Error
        When it cannot be opened.
    """
    db = sqlite3.connect(
        path,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_TIMEOUT,
        factory=LockWaitingConnection,
    )
    db.path = path
    if notify is not None:
        db.notify = notify
    db.patience = PATIENCE if patience is None else patience
    # What a damaged or foreign file holds is looked at before it is believed.
    db.execute("PRAGMA cell_size_check=1")
    db.execute("PRAGMA trusted_schema=0")
    if synchronous is None:
        db.execute("PRAGMA query_only=1")
    else:
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute("PRAGMA wal_autocheckpoint=4000")
    return db


def keep_write_ahead_log(db: sqlite3.Connection) -> None:
    """Let readers and a writer go side by side; this changes the file, so only once it is ours."""
    db.execute("PRAGMA journal_mode=WAL")


def is_empty(db: sqlite3.Connection) -> bool:
    """Return whether a database has no tables yet."""
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all that is done within, or nothing: nobody else writes meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSchema:
    """
    Tables of a kind of file, and how such a file is known.

    Every file has a table ``meta`` of keys and values, where one key names the format.

    Parameters
    ----------
    what
        The kind, for people: ``"catalogue"``.
    key
        Key in ``meta`` whose value is the format.
    format
        Of the tables.
    statements
        SQL statements that make the tables besides ``meta``.
    older
        Formats that can be read, too.
    """

    what: str
    key: str
    format: str
    statements: Sequence[str]
    older: frozenset[str] = frozenset()

    def make(self, db: sqlite3.Connection) -> None:
        """Make the tables; within a transaction of the caller, so that readers see all or none."""
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute("INSERT INTO meta VALUES (?,?)", (self.key, self.format))
        for statement in self.statements:
            db.execute(statement)

    def check(self, db: sqlite3.Connection, path: Path) -> str:
        """
        Return the format of a file that has tables.

        Raises
        ------
        InputError
            When the file is none of this kind, or of a format that cannot be read.
        """
        row = None
        if db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (self.key,)).fetchone()
        if row is None:
            raise InputError(f"is another program's database, no {self.what}", where=str(path))
        found = row[0]
        if found != self.format and found not in self.older:
            raise InputError(
                f"its format is {found}; this version reads format {self.format}", where=str(path)
            )
        return str(found)


@contextlib.contextmanager
def translate_sqlite_errors(path: Path, what: str) -> Iterator[None]:
    """
    Turn complaints of SQLite into one line about the file.

    Parameters
    ----------
    what
        What the file should be, for people: ``"journal"``.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise sqlite_error(error, path, what) from error


def sqlite_error(error: sqlite3.Error, path: Path, what: str) -> BursarError:
    """Return what a complaint of SQLite is to people: bad input when the file is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    if is_locked(error):
        return BursarError(f"{path}: another process has locked it for too long")
    if code is not None and code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        return InputError(str(error), where=str(path))
    if code is not None and code != _SHORT_READ and code & 0xFF in _ENVIRONMENT:
        return BursarError(f"{path}: {error}")
    if isinstance(error, sqlite3.ProgrammingError):  # a closed database, not a damaged one
        return BursarError(f"{path}: {error}")
    return InputError(f"is damaged or no {what}: {error}; restore it from a copy", where=str(path))
