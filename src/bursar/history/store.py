"""
The file of a history: SQLite, shared by all runs of a user.

Kinds, executions, places and names of parameters are kept once, and rows refer to them by number:
a million observations take some 150 MB. An index of kinds and times leads to the newest of a kind,
so that nothing else is read for them. Times are whole microseconds.

Several runs may write at once: each batch is one transaction, and a lock is waited for. An
observation is known by execution, task and attempt, so that writing one again changes nothing.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.history.observation import TaskObservation
from bursar.history.selection import (
    Selection,
    count_selected,
    delete_selected,
    read_selected,
)
from bursar.history.writing import (
    ExecutionFacts,
    HistoryRules,
    ObservationWriter,
    digest_secret,
    trim,
)
from bursar.model.errors import BursarError
from bursar.sqlite_file import (
    LockWaitingConnection,
    LockWaitNotice,
    SqliteSchema,
    connect,
    is_empty,
    keep_write_ahead_log,
    transaction,
    translate_sqlite_errors,
)

if TYPE_CHECKING:
    from bursar.history.columns import ObservationColumns

_WHAT = "history"
_LAYOUT = SqliteSchema(
    what=_WHAT,
    key="history-format",
    format="1",
    statements=(
        """CREATE TABLE kinds (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL, template TEXT NOT NULL,
            added INTEGER NOT NULL DEFAULT 0,
            UNIQUE (name, template))""",
        """CREATE TABLE executions (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, campaign TEXT NOT NULL,
            source TEXT NOT NULL, begun INTEGER NOT NULL, site_kinds TEXT NOT NULL)""",
        """CREATE TABLE places (
            id INTEGER PRIMARY KEY, site TEXT NOT NULL, host TEXT NOT NULL,
            UNIQUE (site, host))""",
        """CREATE TABLE parameter_names (
            id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE)""",
        """CREATE TABLE observations (
            id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, start INTEGER NOT NULL,
            execution INTEGER NOT NULL, task TEXT NOT NULL, attempt INTEGER NOT NULL,
            status INTEGER NOT NULL, seconds INTEGER NOT NULL, place INTEGER NOT NULL,
            processors INTEGER NOT NULL, speed REAL NOT NULL, input_bytes INTEGER,
            estimate INTEGER, waited INTEGER, transferred INTEGER, max_rss INTEGER,
            user_seconds INTEGER, system_seconds INTEGER,
            parameter_names INTEGER, parameters BLOB)""",
        "CREATE UNIQUE INDEX attempts ON observations (execution, task, attempt)",
        "CREATE INDEX by_kind ON observations (kind, start)",
    ),
)


class History:
    """
    A history in a file. Nothing is opened or made before it is read or written.

    Parameters
    ----------
    path
        Path of the file. A missing one is an empty history, and made by the first write.
    rules
        What is kept.
    patience
        Seconds to wait while another process locks the file; None: as for other files.
    notify
        Called with a line for people when that wait is long; None: the line goes to stderr.

    Raises
    ------
    InputError
        By all methods: when the file is damaged, no history, or of another version. The file stays
        as it was found.
    BursarError
        By all methods: when it cannot be read or written, as when the disk is full.
    """

    def __init__(
        self,
        path: Path,
        *,
        rules: HistoryRules | None = None,
        patience: float | None = None,
        notify: LockWaitNotice | None = None,
    ) -> None:
        self.path = path
        self.rules = rules or HistoryRules()
        self._patience = patience
        self._notify = notify

    # Writing.

    def add(
        self,
        observations: Iterable[TaskObservation],
        executions: Iterable[ExecutionFacts] = (),
        *,
        only_new: bool = False,
    ) -> None:
        """
        Add observations in one transaction.

        Parameters
        ----------
        executions
            Facts of the executions; one of which nothing is told is made from its observations.
        only_new
            Whether observations that are known already stay as they are; else they are replaced.
        """
        batch = list(observations)
        with self._writing() as db, transaction(db):
            writer = ObservationWriter(db, digest_secret(db) if self.rules.hashes else None)
            for facts in executions:
                writer.note_execution(facts)
            writer.write(batch, only_new=only_new)
            trim(db, writer.kinds_written(), self.rules, time.time())

    def forget(self, selection: Selection) -> dict[str, int]:
        """
        Delete observations, and overwrite what they took in the file.

        Returns
        -------
        dict
            How many there were of each kind.
        """
        if not self.path.exists():
            return {}
        with self._writing() as db:
            db.execute("PRAGMA secure_delete=1")
            with transaction(db):
                counts = count_selected(db, selection)
                delete_selected(db, selection)
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return counts

    # Reading.

    def kinds(self) -> list[str]:
        """Return the names of all kinds, sorted."""
        with self._reading() as db:
            if db is None:
                return []
            return [name for (name,) in db.execute("SELECT DISTINCT name FROM kinds ORDER BY name")]

    def count(self, selection: Selection) -> dict[str, int]:
        """Return the number of observations of each kind in a selection."""
        with self._reading() as db:
            return {} if db is None else count_selected(db, selection)

    def total(self) -> int:
        """Return the number of all observations."""
        with self._reading() as db:
            return 0 if db is None else int(db.execute("SELECT count(*) FROM observations").get)

    def rows(self, selection: Selection | None = None) -> Iterator[TaskObservation]:
        """Yield observations in the order in which they were written; None: all."""
        with self._reading() as db:
            if db is not None:
                yield from read_selected(db, selection or Selection())

    def count_of(self, execution: str) -> int:
        """Return the number of observations of an execution."""
        with self._reading() as db:
            if db is None:
                return 0
            found: int = db.execute(
                "SELECT count(*) FROM observations WHERE execution = "
                "(SELECT id FROM executions WHERE name = ?)",
                (execution,),
            ).get
            return found

    def observations_of(
        self, kinds: Sequence[str], *, newest: int | None = None, parameters: bool = False
    ) -> "ObservationColumns":
        """
        Return the observations of some kinds.

        Parameters
        ----------
        kinds
            Names; one that the history does not know has no observations.
        newest
            Observations of each kind at most, the newest; None: all.
        parameters
            Whether the values of parameters are read as well, which takes longer.
        """
        from bursar.history.columns import read_columns  # late: what only writes needs no arrays

        with self._reading() as db:
            return read_columns(db, kinds, newest, parameters)

    # Opening.

    @contextlib.contextmanager
    def _writing(self) -> Iterator[LockWaitingConnection]:
        # Private: it tells what its user works on.
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise BursarError(f"{self.path}: cannot be written: {error.strerror}") from None
        with self._opened(writes=True) as db:
            if is_empty(db):
                with transaction(db):
                    if is_empty(db):  # no other process was faster
                        _LAYOUT.make(db)
            _LAYOUT.check(db, self.path)
            keep_write_ahead_log(db)
            yield db

    @contextlib.contextmanager
    def _reading(self) -> Iterator[LockWaitingConnection | None]:
        """Open to read; None: nothing was ever written."""
        if not self.path.exists():
            yield None
            return
        with self._opened(writes=False) as db:
            if is_empty(db):
                yield None
                return
            _LAYOUT.check(db, self.path)
            # One view, whatever others write meanwhile.
            db.execute("BEGIN")
            yield db

    @contextlib.contextmanager
    def _opened(self, *, writes: bool) -> Iterator[LockWaitingConnection]:
        with (
            translate_sqlite_errors(self.path, _WHAT),
            contextlib.closing(
                connect(
                    self.path,
                    synchronous="NORMAL" if writes else None,
                    notify=self._notify,
                    patience=self._patience,
                )
            ) as db,
        ):
            yield db
