"""SQLite files that several processes write durably, with a format version."""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bursar.model.errors import InputError
from bursar.sqlite_file import (
    LockWaitingConnection,
    SqliteSchema,
    connect,
    is_empty,
    keep_write_ahead_log,
    transaction,
    translate_sqlite_errors,
)


class SharedDatabase:
    """
    An SQLite file, made when missing; thread-safe.

    Parameters
    ----------
    path
        Path of the SQLite file.
    what
        Kind of content in one word, for messages: ``"catalogue"``.
    format
        Version of the tables; a file of another version is refused.
    statements
        SQL statements that make the tables.

    Raises
    ------
    InputError
        When the file is damaged, of another format, something else, or cannot be opened.
    """

    def __init__(self, path: Path, *, what: str, format: str, statements: Sequence[str]) -> None:
        self._path = path
        self._what = what
        # Reentrant: within writing() the storage calls rows(), for instance to measure what is
        # taken.
        self._lock = threading.RLock()
        layout = SqliteSchema(what=what, key=what, format=format, statements=statements)
        with _opening(path, what), contextlib.ExitStack() as opened:
            # One at a time: who finds it empty makes all of it.
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._db = connect(path, synchronous="FULL")
                opened.callback(self._db.close)
                if is_empty(self._db):
                    with transaction(self._db):
                        layout.make(self._db)
                layout.check(self._db, path)
                # Only now: it changes the file, which might have been someone else's.
                keep_write_ahead_log(self._db)
            finally:
                os.close(lock)
            self._opened = opened.pop_all()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self._lock, translate_sqlite_errors(self._path, self._what):
            return list(self._db.execute(query, values))

    @contextlib.contextmanager
    def writing(self) -> Iterator[LockWaitingConnection]:
        """
        Run a transaction, committed durably on exit and rolled back on an exception.

        Raises
        ------
        BursarError
            When it cannot be written.
        """
        with self._lock, translate_sqlite_errors(self._path, self._what), transaction(self._db):
            yield self._db

    def close(self) -> None:
        """Checkpoint the write-ahead log and close; a second call does nothing."""
        with self._lock:
            self._opened.close()


@contextlib.contextmanager
def _opening(path: Path, what: str) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into input errors while a database is opened."""
    try:
        with translate_sqlite_errors(path, what):
            yield
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}", where=str(path)) from None
