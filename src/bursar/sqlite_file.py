"""
One way to open SQLite files: pragmas, waiting for locks, and one line for each complaint.

Every database that the product writes is opened here: the store of a service, the journal of a
run, the accounts' book, the owners' book, replica catalogues and storages.

A lock of another process (a copy being made, an editor, a second run) is waited for. SQLite's
own busy handler is kept short, and the statement is repeated, since some statements meet a lock
without calling that handler; only statements that had no effect when they met the lock are ever
repeated.

A process must not open a file by two copies of SQLite: when one of them closes the file, the
operating system drops the locks of the other. So nothing in the product uses Python's ``sqlite3``.
"""

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw

from bursar.model.errors import BursarError, InputError

PATIENCE = 600.0
"""Seconds to wait while another process locks a file, before the statement fails."""

NOTIFY_AFTER = 1.0
"""Seconds of waiting after which somebody is told."""

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""Errors that go away with more room on disk or for open files."""

_BUSY_TIMEOUT = 250
"""Milliseconds that SQLite itself waits each time; a signal is heard after that, at the latest."""

_PAUSE = 0.02
"""Seconds between two tries: a lock whose holder was found to be at work is not queued for."""

_ENVIRONMENT = (
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.NoMemError,
    apsw.InterruptError,
    apsw.ProtocolError,
    apsw.MisuseError,
    apsw.ConnectionClosedError,
    apsw.CursorClosedError,
)
"""Errors that are no word about what the file holds."""

_LOG_PAGES = 4000
"""Pages in the write-ahead log after which SQLite merges it into the file."""

LockWaitNotice = Callable[[str], None]
"""Tells people one line. May be called from the thread that uses the connection."""

_T = TypeVar("_T")


def warn_on_stderr(line: str) -> None:
    """Tell people one line where nobody else listens."""
    # What cannot be said, as to a log on a full disk, is no reason to stop.
    with contextlib.suppress(OSError):
        print(f"bursar: {line}", file=sys.stderr, flush=True)


class LockWaitingConnection(apsw.Connection):
    """
    A connection whose statements wait while another process locks the file.

    One line is said when a wait begins to be long, and one when it has ended.
    """

    path = Path()
    patience = PATIENCE
    notify: LockWaitNotice = staticmethod(warn_on_stderr)

    def execute(self, sql: str, parameters: Any = None) -> Any:  # type: ignore[override]
        """Run one statement and return its cursor, as the base class does; rows hold any types."""
        try:
            return super().execute(sql, parameters)
        except (apsw.BusyError, apsw.LockedError) as error:
            if not is_locked(error):
                raise
            return self._wait(lambda: apsw.Connection.execute(self, sql, parameters), error)

    def begin(self, patience: float | None = None) -> None:
        """
        Begin a transaction that excludes other writers.

        Parameters
        ----------
        patience
            Seconds to wait for another writer, without a word; None: as for other statements.

        Raises
        ------
        apsw.BusyError
            When another process writes for longer.
        """
        if patience is None:
            self.execute("BEGIN IMMEDIATE")
            return
        self.set_busy_timeout(int(1000 * patience))
        try:
            super().execute("BEGIN IMMEDIATE")
        finally:
            self.set_busy_timeout(_BUSY_TIMEOUT)

    def _wait(self, act: Callable[[], _T], error: apsw.Error) -> _T:
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
            except (apsw.BusyError, apsw.LockedError) as again:
                if not is_locked(again):
                    raise
                error = again
                continue
            if was_notified:
                waited = time.monotonic() - began
                self.notify(f"{self.path} is free again after {waited:.0f} s: going on")
            return result


def is_locked(error: apsw.Error) -> bool:
    """Return whether a statement only met a lock, so that it may be repeated as it is."""
    # A transaction whose view has grown old stays refused, however often it asks.
    return (
        isinstance(error, apsw.BusyError | apsw.LockedError)
        and getattr(error, "extendedresult", 0) != apsw.SQLITE_BUSY_SNAPSHOT
    )


def is_full(db: apsw.Connection, error: apsw.Error) -> bool:
    """Return whether the last statement of a connection failed for want of room on the disk."""
    if isinstance(error, apsw.FullError):
        return True
    # SQLite remembers the last error of the system, also that of an earlier statement, so the
    # number means something only where this statement failed in the system.
    failed_in_system = isinstance(error, apsw.IOError | apsw.CantOpenError)
    return failed_in_system and db.system_errno in FULL_ERRNOS


def connect(
    path: Path | str,
    *,
    synchronous: Literal["FULL", "NORMAL", "OFF"] | None,
    notify: LockWaitNotice | None = None,
    patience: float | None = None,
    vfs: str = "",
    exclusive: bool = False,
    merges: bool = True,
) -> LockWaitingConnection:
    """
    Open a file, without changing it yet.

    Parameters
    ----------
    path
        Path of the file; a missing file is made, empty.
    synchronous
        When SQLite waits for the disk: ``"FULL"`` at each commit, ``"NORMAL"`` now and then (a
        power cut may lose the last commits), ``"OFF"`` never. None: only to read.
    notify
        Called when the wait for a lock is long; None: a line goes to stderr.
    patience
        Seconds to wait for a lock; None: :data:`PATIENCE`.
    vfs
        Name of SQLite's virtual file system; empty: the operating system's files.
    exclusive
        Whether no other process may read or write the file, so that SQLite keeps the index of the
        write-ahead log in its own memory. A simulated disk shares no memory and needs this.
    merges
        Whether SQLite merges the log into the file when it is long and when the connection is
        closed; False: only the caller has it merged.

    Raises
    ------
    apsw.Error
        When it cannot be opened.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = LockWaitingConnection(str(path), flags=flags, vfs=vfs or None)
    db.set_busy_timeout(_BUSY_TIMEOUT)
    db.path = Path(path)
    if notify is not None:
        db.notify = notify
    db.patience = PATIENCE if patience is None else patience
    if not merges:
        # Before the file is read: one that proves to be damaged is left as it was found.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # What a damaged or foreign file holds is looked at before it is believed.
    for pragma in ("cell_size_check=1", "trusted_schema=0"):
        db.execute(f"PRAGMA {pragma}")
    if exclusive:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
    if synchronous is None:
        db.execute("PRAGMA query_only=1")
    else:
        set_synchronous(db, synchronous)
        db.wal_autocheckpoint(_LOG_PAGES if merges else 0)
    return db


def set_synchronous(db: apsw.Connection, level: Literal["FULL", "NORMAL", "OFF"]) -> None:
    """Set when SQLite waits for the disk, see :func:`connect`."""
    # With a write-ahead log, EXTRA means FULL. Where SQLite cannot keep one (it says so by no
    # error), FULL would not wait until the removal of a rollback journal is durable: a power cut
    # could bring the journal back, and it would take back what was acknowledged.
    db.execute(f"PRAGMA synchronous={'EXTRA' if level == 'FULL' else level}")


def keep_write_ahead_log(db: LockWaitingConnection) -> None:
    """Let readers and a writer go side by side; this changes the file, so only once it is ours."""
    db.execute("PRAGMA journal_mode=WAL")


def is_empty(db: LockWaitingConnection) -> bool:
    """Return whether a database has no tables yet."""
    return not db.execute("SELECT count(*) FROM sqlite_master").get


@contextlib.contextmanager
def transaction(db: LockWaitingConnection, patience: float | None = None) -> Iterator[None]:
    """
    Write all that is done within, or nothing: nobody else writes meanwhile.

    Parameters
    ----------
    patience
        Seconds to wait for another writer; None: as long as the connection's statements wait.
    """
    db.begin(patience)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(apsw.Error):
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
    """

    what: str
    key: str
    format: str
    statements: Sequence[str]

    def make(self, db: LockWaitingConnection) -> None:
        """Make the tables; within a transaction of the caller, so that readers see all or none."""
        db.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        db.execute("INSERT INTO meta VALUES (?,?)", (self.key, self.format))
        for statement in self.statements:
            db.execute(statement)

    def open(
        self,
        path: Path,
        synchronous: Literal["FULL", "NORMAL"],
        extend: Callable[[LockWaitingConnection], None] | None = None,
    ) -> LockWaitingConnection:
        """
        Open a file for writing, with a write-ahead log, and make its tables if it is empty.

        Parameters
        ----------
        synchronous
            When a transaction counts as durable; see :func:`connect`.
        extend
            Makes tables that are apart from the format, in the same transaction; None: there are
            none.

        Raises
        ------
        InputError
            When the file is none of this kind, or of a format that cannot be read.
        """
        db = connect(path, synchronous=synchronous)
        try:
            if not is_empty(db):  # a file of another program is left as found
                self.check(db, path)
            keep_write_ahead_log(db)
            with transaction(db):
                if is_empty(db):
                    self.make(db)
                if extend is not None:
                    extend(db)
            self.check(db, path)
        except BaseException:
            db.close()
            raise
        return db

    def check(self, db: LockWaitingConnection, path: Path) -> None:
        """
        Check that a file that has tables is of this kind and format.

        Raises
        ------
        InputError
            When the file is none of this kind, or of a format that cannot be read.
        """
        found = None
        if db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").get:
            found = db.execute("SELECT value FROM meta WHERE key = ?", (self.key,)).get
        if found is None:
            raise InputError(f"is another program's database, no {self.what}", where=str(path))
        if found != self.format:
            raise InputError(
                f"its format is {found}; this version reads format {self.format}", where=str(path)
            )


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
    except UnicodeDecodeError as error:  # a text that is none
        raise _damage(error, path, what) from error
    except apsw.Error as error:
        raise sqlite_error(error, path, what) from error


def sqlite_error(error: apsw.Error, path: Path, what: str) -> BursarError:
    """Return what a complaint of SQLite is to people: bad input when the file is damaged."""
    if is_locked(error):
        return BursarError(f"{path}: another process has locked it for too long")
    if isinstance(error, apsw.CantOpenError):
        return InputError(str(error), where=str(path))
    # The file ends where a page should go on.
    is_short = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ
    if isinstance(error, _ENVIRONMENT) and not is_short:
        return BursarError(f"{path}: {error}")
    return _damage(error, path, what)


def _damage(error: Exception, path: Path, what: str) -> InputError:
    return InputError(f"is damaged or no {what}: {error}; restore it from a copy", where=str(path))
