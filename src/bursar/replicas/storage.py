"""
A folder in which a site keeps logical files, and a cache of those that were brought there.

``folder/<name>`` is the file. ``folder/.bursar`` holds what is known of them
(``storage.sqlite``), files on their way (``parts/``) and the signs of life of those
who use them (``owners/``).

What was put there stays (*kept*); what was brought there may go again (*cached*), the
least recently used first, when there is no room for another under the limit. A file
gets its name when it is whole and on disk. Its row is written before the first byte
and again after that, so whenever a process is killed, the next one finds out by the
lock of the part and by the name what had come of it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from bursar.model.errors import BursarError, InputError
from bursar.model.replica import Replica
from bursar.replicas.content import OWN_FOLDER, LogicalFileContent, logical
from bursar.replicas.copying import read_content
from bursar.replicas.database import SharedDatabase
from bursar.replicas.failures import CancellationToken, SourceFailed, StorageFull, TargetFailed
from bursar.replicas.locking import FileInUse, LivenessLock, is_owner_alive
from bursar.replicas.parts import PartialFile, remove_stale_parts
from bursar.replicas.site_storage import MayGo

FORMAT = "1"

_STATEMENTS = (
    """CREATE TABLE files (
        name TEXT PRIMARY KEY, size INTEGER NOT NULL, checksum TEXT,
        cached INTEGER NOT NULL, here INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX files_by_use ON files (used)",
    """CREATE TABLE pins (
        name TEXT NOT NULL, owner TEXT NOT NULL, job TEXT NOT NULL,
        PRIMARY KEY (name, owner, job)) WITHOUT ROWID""",
)
_NOW = "(SELECT coalesce(max(used), 0) + 1 FROM files)"
_UNPINNED = "NOT EXISTS (SELECT 1 FROM pins WHERE pins.name = files.name)"


@dataclass(frozen=True, slots=True)
class _StoredFile:
    """What is known of a file; not ``here``: on its way, or damaged."""

    content: LogicalFileContent
    cached: bool
    here: bool


class FolderStorage:
    """
    Opens a storage; makes it where there is none. Several processes may use it at once.

    Parameters
    ----------
    folder
        Of the files.
    limit
        Bytes that cached files may take; None: as many as there are.

    Raises
    ------
    InputError
        When the folder cannot be used, or what it says of itself is damaged.
    """

    def __init__(self, folder: Path | str, *, limit: int | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.limit = limit
        own = self.folder / OWN_FOLDER
        self._parts, self._owners = own / "parts", own / "owners"
        try:
            for path in (self._parts, self._owners):
                path.mkdir(parents=True, exist_ok=True)
            self._db = SharedDatabase(
                own / "storage.sqlite", what="storage", format=FORMAT, statements=_STATEMENTS
            )
            self._owner = LivenessLock(self._owners)
        except OSError as error:
            raise InputError(f"cannot be used: {error.strerror}", where=str(folder)) from None

    def __enter__(self) -> "FolderStorage":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def used(self) -> int:
        """Bytes that cached files take or will, once they have come."""
        return self._taken("")

    @property
    def cached(self) -> list[str]:
        """Names of the cached files that are there, the least recently used first."""
        query = "SELECT name FROM files WHERE cached AND here ORDER BY used, name"
        return [name for (name,) in self._db.rows(query)]

    def place_of(self, name: str) -> str:
        """Path of a logical file, there or not."""
        return str(self.folder / logical(name))

    def pin(self, wanted: Mapping[str, LogicalFileContent], job: str) -> Mapping[str, str]:
        """
        Of the files wanted those that are there, with their paths; held until released.

        One that somebody deleted or cut short is not there.
        """
        found = {}
        with self._db.writing() as db:
            for name, content in wanted.items():
                row, path = self._row(name), self.place_of(name)
                if row is None or not row.here or not row.content.agrees_with(content):
                    continue
                size = _size(path)
                if size is None:
                    db.execute("DELETE FROM files WHERE name = ?", (name,))
                elif size != row.content.size:
                    db.execute("UPDATE files SET here = 0 WHERE name = ?", (name,))
                else:
                    db.execute(f"UPDATE files SET used = {_NOW} WHERE name = ?", (name,))
                    pin = (name, self._owner.token, job)
                    db.execute("INSERT OR IGNORE INTO pins VALUES (?,?,?)", pin)
                    found[name] = path
        return found

    def release(self, job: str) -> None:
        """Lets go of what was held for a job."""
        with self._db.writing() as db:
            whose = (self._owner.token, job)
            db.execute("DELETE FROM pins WHERE owner = ? AND job = ?", whose)

    def doubt(self, names: Sequence[str]) -> None:
        """Takes note that files may be damaged: they are read before they are used again."""
        with self._db.writing() as db:
            rows = [(name,) for name in names]
            db.executemany("UPDATE files SET here = 0 WHERE name = ?", rows)

    def is_usable(self, replica: Replica) -> bool:
        """Whether it is a file of this machine with its size; those of here are to be pinned."""
        size = _size(replica.url)  # none, of a URL
        fits = size is not None and replica.size in (None, size)
        return fits and replica.url != self.place_of(replica.name)

    def begin(
        self, name: str, content: LogicalFileContent, may_go: MayGo, *, keep: bool = False
    ) -> "PendingFolderFile | None":
        """
        Begins to bring a file: room is made for it, and nobody else brings it meanwhile.

        Parameters
        ----------
        content
            What it has, as far as is known.
        may_go
            Asked of each cached file that would have to go.
        keep
            Whether it is to stay; it needs no room under the limit then.

        Returns
        -------
        FolderIncoming or None
            None: it is there. One to keep may be there with another content, which
            shows when it is committed.

        Raises
        ------
        Busy
            When somebody else brings it.
        Full
            When there is no room.
        TargetFailed
            When it cannot be written.
        InputError
            When the name leads out of the folder, or there is another file by it.
        """
        path = self._target(name)
        with _writing():
            part = PartialFile(self._parts, name)
        try:
            self._find_out(name, path)
            if not (keep or self._is_wanted(name, content, may_go)):
                part.discard()
                return None
            with _writing():
                part.take_up(content)
        except BaseException:
            part.close()
            raise
        return PendingFolderFile(self, name, part, keep=keep)

    def commit(
        self,
        name: str,
        part: PartialFile,
        content: LogicalFileContent,
        may_go: MayGo,
        *,
        keep: bool,
    ) -> None:
        """Puts a part in its place; see :class:`PendingFolderFile`."""
        path = Path(self.place_of(name))
        with _writing():
            part.sync()
            with self._db.writing() as db:
                row = self._row(name)
                if row is not None and row.here and keep:
                    if row.content != content:
                        raise self._other(name, row.content)
                    db.execute("UPDATE files SET cached = 0 WHERE name = ?", (name,))
                    part.discard()
                    return
                roomy = keep or self._make_room(db, name, content.size or 0, may_go)
                if roomy:
                    part.put(path)
                    entry = (name, content.size, content.checksum, not keep)
                    db.execute(f"REPLACE INTO files VALUES (?,?,?,?,1,{_NOW})", entry)
        if not roomy:
            raise self._full(name, content.size or 0)

    def forget(self, name: str) -> None:
        """Takes note that a file is not there, nor on its way."""
        with self._db.writing() as db:
            db.execute("DELETE FROM files WHERE name = ?", (name,))

    def close(self) -> None:
        """Lets go of everything that was held. Doing it again does nothing."""
        self._owner.close()
        self._db.close()

    # Inside.

    def _target(self, name: str) -> str:
        """Path of the file, its folder made."""
        path = self.place_of(name)
        parent = os.path.dirname(path)
        # Where it leads counts, not how it is spelled: there may be a link on the way.
        inside = os.path.realpath(self.folder) + os.sep
        if not (os.path.realpath(parent) + os.sep).startswith(inside):
            raise InputError("would be written outside of its storage", where=path)
        with _writing():
            os.makedirs(parent, exist_ok=True)
        return path

    def _find_out(self, name: str, path: str) -> None:
        """
        Makes the row of a file say what is there; it is read if that is not known.

        Somebody else's is kept. One on its way got its name before a process was killed;
        a damaged one counts as what it holds now.
        """
        row, size = self._row(name), _size(path)
        if row is not None and row.here and row.content.size == size:
            return
        if not os.path.lexists(path):
            self.forget(name)
            return
        try:
            found = read_content(path, stop=CancellationToken())
        except SourceFailed as failure:
            raise TargetFailed(f"is there already, and {failure.reason}") from None
        entry = (name, found.size, found.checksum, row is not None and row.cached)
        with self._db.writing() as db:
            db.execute("REPLACE INTO files VALUES (?,?,?,?,1,0)", entry)

    def _is_wanted(self, name: str, content: LogicalFileContent, may_go: MayGo) -> bool:
        """Whether a file must be brought; there is room for it then, and it is on its way."""
        size = content.size or 0
        with self._db.writing() as db:
            row = self._row(name)
            if row is not None and row.here:
                if row.content.agrees_with(content):
                    return False
                if not row.cached:
                    raise self._other(name, row.content)
            roomy = self._make_room(db, name, size, may_go)
            if roomy:
                entry = (name, size, content.checksum)
                db.execute("REPLACE INTO files VALUES (?,?,?,1,0,0)", entry)
        if not roomy:
            raise self._full(name, size)
        return True

    def _make_room(self, db: Connection, name: str, size: int, may_go: MayGo) -> bool:
        """Lets cached files go until another fits; none when they would not be enough."""
        if self.limit is None or self._taken(name) + size <= self.limit:
            return True
        self._bury(db, name, may_go)
        excess = self._taken(name) + size - self.limit
        query = f"""SELECT name, size FROM files
                    WHERE cached AND here AND name != ? AND {_UNPINNED} ORDER BY used, name"""
        idle = db.execute(query, (name,)).fetchall()
        if sum(size for _, size in idle) < excess:
            return False
        for other, freed in idle:
            if excess <= 0:
                break
            path = self.place_of(other)
            if may_go(other, path):
                Path(path).unlink(missing_ok=True)
                db.execute("DELETE FROM files WHERE name = ?", (other,))
                excess -= freed
        return excess <= 0

    def _taken(self, name: str) -> int:
        """Bytes of cached files, but for one name."""
        query = "SELECT coalesce(sum(size), 0) FROM files WHERE cached AND name != ?"
        return int(self._db.rows(query, (name,))[0][0])

    def _bury(self, db: Connection, name: str, may_go: MayGo) -> None:
        """Clears away what processes left that are no more: their pins, files on their way."""
        for (owner,) in db.execute("SELECT DISTINCT owner FROM pins").fetchall():
            if not is_owner_alive(self._owners, owner):
                db.execute("DELETE FROM pins WHERE owner = ?", (owner,))
        query = f"SELECT name FROM files WHERE cached AND NOT here AND name != ? AND {_UNPINNED}"
        for (other,) in db.execute(query, (name,)).fetchall():
            path = self.place_of(other)
            try:
                with PartialFile(self._parts, other) as part:
                    part.discard()
                    if may_go(other, path):
                        Path(path).unlink(missing_ok=True)
                        db.execute("DELETE FROM files WHERE name = ?", (other,))
            except FileInUse:
                continue
        remove_stale_parts(self._parts)

    def _other(self, name: str, found: LogicalFileContent) -> InputError:
        return InputError(f"is there already, with {found}", where=self.place_of(name))

    def _full(self, name: str, size: int) -> StorageFull:
        return StorageFull(
            f"no room for {size} bytes: files that are needed or on their way take "
            f"{self._taken(name)} of {self.limit}",
            transient=size <= (self.limit or 0),
        )

    def _row(self, name: str) -> _StoredFile | None:
        query = "SELECT size, checksum, cached, here FROM files WHERE name = ?"
        rows = self._db.rows(query, (name,))
        return (
            _StoredFile(LogicalFileContent(*rows[0][:2]), *map(bool, rows[0][2:])) if rows else None
        )


class PendingFolderFile:
    """
    A file on its way into a storage; nobody else brings it until this is closed.

    Parameters
    ----------
    keep
        Whether it is to stay.
    """

    def __init__(self, storage: FolderStorage, name: str, part: PartialFile, *, keep: bool) -> None:
        self._storage = storage
        self._name = name
        self._part = part
        self._keep = keep

    @property
    def sink(self) -> PartialFile:
        """Where to write it."""
        return self._part

    def commit(self, content: LogicalFileContent, may_go: MayGo) -> None:
        """
        Puts it in its place, whole and on disk.

        Raises
        ------
        Full
            When it is larger than was known, and there is no room.
        TargetFailed
            When it cannot be written.
        InputError
            When another content is kept by this name.
        """
        self._storage.commit(self._name, self._part, content, may_go, keep=self._keep)

    def close(self) -> None:
        """Gives it up for now; what is there may be gone on with."""
        self._part.close()

    def discard(self) -> None:
        """Gives it up, unless it was closed before; nothing is left of it."""
        if self._part.is_closed:
            return
        try:
            self._part.begin_anew()  # a full disk has no room for what is said of it either
            if not self._keep:
                with suppress(BursarError):  # it is cleared away when room is needed
                    self._storage.forget(self._name)
        finally:
            self._part.discard()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TargetFailed(f"cannot be written: {error.strerror or error}") from None


def _size(path: str) -> int | None:
    """Bytes of a regular file; None when it is not there."""
    try:
        return os.stat(path).st_size if os.path.isfile(path) else None
    except OSError:
        return None
