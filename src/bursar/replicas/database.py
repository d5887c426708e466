"""
SQLite files that several processes write: durable, with a format, one line for each complaint.
"""

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bursar.model.errors import BursarError, InputError

BUSY = 60.0
"""Seconds to wait while another process writes."""


class Database:
    """
    Opens a file, made where there is none. Any thread may use it.

    Parameters
    ----------
    path
        Of the file.
    what
        It holds, one word: ``"catalogue"``.
    format
        Of its tables; a file of another one is refused.
    schema
        Statements that make them.

    Raises
    ------
    InputError
        When the file is damaged, of another format, something else, or cannot be opened.
    """

    def __init__(self, path: Path, *, what: str, format: str, schema: str) -> None:
        self._path = path
        self._what = what
        self._lock = threading.RLock()
        with _opening(path, what), contextlib.ExitStack() as opened:
            # One at a time: who finds it empty makes all of it.
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._db = sqlite3.connect(
                    path, isolation_level=None, check_same_thread=False, timeout=BUSY
                )
                opened.callback(self._db.close)
                if self._is_empty():
                    self._make(schema, format)
                self._check(format)
                # Only now: it changes the file, which might have been someone else's.
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            finally:
                os.close(lock)
            self._opened = opened.pop_all()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """What a query finds, all from one moment."""
        with self._lock, self._complaining():
            return self._db.execute(query, values).fetchall()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """
        One transaction: durable when it is left; undone when it is left by an exception.

        Raises
        ------
        BursarError
            When it cannot be written.
        """
        with self._lock, self._complaining():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Folds the write-ahead log in. Doing it again does nothing."""
        with self._lock:
            self._opened.close()

    def _is_empty(self) -> bool:
        return not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

    def _make(self, schema: str, format: str) -> None:
        meta = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
        stamp = f"INSERT INTO meta VALUES ('{self._what}', '{format}');"
        self._db.executescript(f"BEGIN IMMEDIATE; {meta} {stamp} {schema} COMMIT;")

    def _check(self, format: str) -> None:
        there = "SELECT count(*) FROM sqlite_master WHERE name = 'meta'"
        row = None
        if self._db.execute(there).fetchone()[0]:
            query = "SELECT value FROM meta WHERE key = ?"
            row = self._db.execute(query, (self._what,)).fetchone()
        if row is None:
            raise InputError(f"is a database, but no {self._what}", where=str(self._path))
        if row[0] != format:
            raise InputError(
                f"its format is {row[0]}; this version reads format {format}",
                where=str(self._path),
            )

    @contextlib.contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise BursarError(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"is damaged or no {self._what}: {error}", where=str(self._path)
            ) from error


@contextlib.contextmanager
def _opening(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}", where=str(path)) from None
    except sqlite3.Error as error:
        raise InputError(f"is damaged or no {what}: {error}", where=str(path)) from error
