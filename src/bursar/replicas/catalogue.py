"""
The catalogue of copies, in an SQLite file that several processes write.

See Cavalieri, Monforte and Scibilia (2003), section 2. A logical file has one content, so its size
and checksum belong to the name. A copy that turned out to have another content is kept as bad and
no longer offered.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.model.errors import InputError
from bursar.model.matching import Replica
from bursar.replicas.content import LogicalFileContent, content_of, logical, normalise_url
from bursar.sqlite_file import (
    LockWaitingConnection,
    SqliteSchema,
    connect,
    is_empty,
    keep_write_ahead_log,
    transaction,
    translate_sqlite_errors,
)

# SQLite files that several processes write durably, with a format version.


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


# The replica catalogue: which copies there are of each logical file.

FORMAT = "1"

_STATEMENTS = (
    """CREATE TABLE files (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER, checksum TEXT)""",
    """CREATE TABLE copies (
        file INTEGER NOT NULL, url TEXT NOT NULL, site TEXT NOT NULL, bad TEXT,
        PRIMARY KEY (file, url)) WITHOUT ROWID""",
    "CREATE INDEX copies_by_site ON copies (site, file)",
)
# No row comes back where the name has another size or checksum; what is unknown on either side
# agrees and is filled in. So one statement checks and writes, and no other process comes between.
_PUT_FILE = """
INSERT INTO files (name, size, checksum) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE
SET size = coalesce(size, ?2), checksum = coalesce(checksum, ?3)
WHERE coalesce(size = ?2, 1) AND coalesce(checksum = ?3, 1)
RETURNING number
"""
_PUT_COPY = """
INSERT INTO copies (file, url, site) VALUES (?,?,?)
ON CONFLICT (file, url) DO UPDATE SET site = excluded.site, bad = NULL
"""
_OF_NAME = "file = (SELECT number FROM files WHERE name = ?)"
_JOINED = "files JOIN copies ON copies.file = files.number"
_COLUMNS = "name, site, url, size, checksum"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """
    A copy with the state in the catalogue.

    Parameters
    ----------
    bad
        Why the copy is not to be used; None: no fault is known.
    """

    replica: Replica
    bad: str | None = None


class Catalogue:
    """
    The replica catalogue, an SQLite file that several processes may use at once.

    Changes are durable when a method returns. Thread-safe.

    Parameters
    ----------
    make
        Whether to make the file when it is missing.

    Raises
    ------
    InputError
        When there is none, or it is damaged, no catalogue, or of another format.
    """

    def __init__(self, path: Path | str, *, make: bool = True) -> None:
        if not make and not os.path.exists(path):
            hint = "bursar replicas add makes one"
            raise InputError("there is no catalogue", where=str(path), hint=hint)
        self._db = SharedDatabase(
            Path(path), what="catalogue", format=FORMAT, statements=_STATEMENTS
        )

    def __enter__(self) -> "Catalogue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def register(self, replica: Replica) -> None:
        """
        Add a copy; a copy with a known URL becomes good again.

        Raises
        ------
        InputError
            When the name is registered with another size or checksum, or something
            of the replica is out of form.
        """
        self.register_all((replica,))

    def register_all(self, replicas: Iterable[Replica]) -> None:
        """Add many copies, all or none; see :meth:`register`."""
        checked = [(logical(r.name), content_of(r), normalise_url(r.url), r.site) for r in replicas]
        with self._db.writing() as db:
            for name, content, url, site in checked:
                found = db.execute(_PUT_FILE, (name, content.size, content.checksum)).fetchone()
                if found is None:
                    raise _other_content(db, name, content)
                db.execute(_PUT_COPY, (found[0], url, site))

    def unregister(self, name: str, *, url: str | None = None, site: str | None = None) -> int:
        """
        Remove copies of a name, if given only at a URL or a site.

        Returns
        -------
        int
            How many. A name without copies is forgotten.
        """
        clauses, values = [_OF_NAME], [logical(name)]
        if url is not None:
            clauses.append("url = ?")
            values.append(normalise_url(url))
        if site is not None:
            clauses.append("site = ?")
            values.append(site)
        with self._db.writing() as db:
            query = f"DELETE FROM copies WHERE {' AND '.join(clauses)}"
            db.execute(query, values)
            count = db.changes()
            _forget_unheld(db, values[0])
        return count

    def spare(self, name: str, url: str) -> bool:
        """
        Remove a copy from the catalogue before deletion, unless the copy is the last good one.

        Returns
        -------
        bool
            Whether the file may be deleted; one that is not registered may.
        """
        with self._db.writing() as db:
            query = f"SELECT url, bad FROM {_JOINED} WHERE name = ?"
            # Read and deleted in one write transaction: two sites that each see the other's copy
            # cannot both give up theirs.
            copies = dict(db.execute(query, (name,)).fetchall())
            if url not in copies:
                return True
            if all(bad is not None for other, bad in copies.items() if other != url):
                return False
            db.execute(f"DELETE FROM copies WHERE url = ? AND {_OF_NAME}", (url, name))
            return True

    def report_bad(self, name: str, url: str, reason: str) -> None:
        """Mark a copy as bad; :meth:`locate` no longer returns it."""
        with self._db.writing() as db:
            db.execute(
                f"UPDATE copies SET bad = ? WHERE url = ? AND {_OF_NAME}", (reason, url, name)
            )

    def locate(self, name: str) -> list[Replica]:
        """Return the good copies of a name, by site and URL; none when the name is unknown."""
        return list(self.locate_all((name,)).get(name, ()))

    def locate_all(self, names: Iterable[str]) -> Mapping[str, Sequence[Replica]]:
        """Return the good copies of many names in one query; names without any are left out."""
        # One value for all names: SQLite limits how many parameters a statement has.
        query = f"""SELECT {_COLUMNS} FROM json_each(?) AS asked
                    JOIN files ON files.name = asked.value
                    JOIN copies ON copies.file = files.number
                    WHERE bad IS NULL ORDER BY name, site, url"""
        found: dict[str, list[Replica]] = {}
        for row in self._db.rows(query, (json.dumps(sorted(set(names))),)):
            found.setdefault(row[0], []).append(_replica(*row))
        return found

    def doubtful(self, names: Iterable[str], site: str) -> list[str]:
        """Return the names of which a site has a bad copy."""
        query = """SELECT DISTINCT name FROM json_each(?) AS asked
                   JOIN files ON files.name = asked.value
                   JOIN copies ON copies.file = files.number
                   WHERE bad IS NOT NULL AND site = ?"""
        return [name for (name,) in self._db.rows(query, (json.dumps(sorted(set(names))), site))]

    def content(self, name: str) -> LogicalFileContent | None:
        """Return the known size and checksum of a name; None: not registered."""
        return self.contents((name,)).get(name)

    def contents(self, names: Iterable[str]) -> Mapping[str, LogicalFileContent]:
        """Return the known sizes and checksums of many names; unregistered ones are left out."""
        query = """SELECT name, size, checksum FROM json_each(?) AS asked
                   JOIN files ON files.name = asked.value"""
        rows = self._db.rows(query, (json.dumps(sorted(set(names))),))
        return {name: LogicalFileContent(size, checksum) for name, size, checksum in rows}

    def entries(self, pattern: str = "*", *, site: str | None = None) -> list[CatalogueEntry]:
        """
        Return the copies, good and bad, of the names that match a pattern.

        Parameters
        ----------
        pattern
            With ``*``, ``?`` and ``[...]``; ``*`` also stands for ``/``.
        site
            Only those there; None: everywhere.
        """
        query = f"SELECT {_COLUMNS}, bad FROM {_JOINED} WHERE name GLOB ?"
        values = [pattern]
        if site is not None:
            query += " AND site = ?"
            values.append(site)
        rows = self._db.rows(f"{query} ORDER BY name, site, url", values)
        return [CatalogueEntry(_replica(*row[:-1]), row[-1]) for row in rows]

    def names(self, pattern: str = "*") -> list[str]:
        """Return the logical names that match a pattern, sorted."""
        query = "SELECT name FROM files WHERE name GLOB ? ORDER BY name"
        return [name for (name,) in self._db.rows(query, (pattern,))]

    def sites(self) -> Mapping[str, tuple[int, int]]:
        """Return the number and the known bytes of good copies, by site."""
        query = f"""SELECT site, count(*), coalesce(sum(size), 0) FROM {_JOINED}
                    WHERE bad IS NULL GROUP BY site"""
        return {site: (count, size) for site, count, size in self._db.rows(query)}

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._db.close()


def _replica(name: str, site: str, url: str, size: int | None, checksum: str | None) -> Replica:
    return Replica(name=name, site=site, url=url, size=size, checksum=checksum)


def _forget_unheld(db: LockWaitingConnection, name: str) -> None:
    """Delete a file's entry, size and checksum included, when it has no copy left."""
    db.execute(
        "DELETE FROM files WHERE name = ? AND NOT EXISTS "
        "(SELECT 1 FROM copies WHERE file = files.number)",
        (name,),
    )


def _other_content(db: LockWaitingConnection, name: str, content: LogicalFileContent) -> InputError:
    """Return the error for a file that is registered with another size or checksum."""
    row = db.execute("SELECT size, checksum FROM files WHERE name = ?", (name,)).fetchone()
    return InputError(
        f"is registered with {LogicalFileContent(*row)}, not with {content}: "
        "a logical file has one content",
        where=name,
    )
