"""
A folder in which a site keeps logical files, with a cache of files brought there.

``folder/<name>`` is the file. ``folder/.bursar`` holds the database of the files
(``storage.sqlite``), partial files (``parts/``) and the locks of live processes (``owners/``).

Files that were put there stay (*kept*); files that were brought there are *cached* and are evicted,
the least recently used first, when another needs their space under the limit. A file gets its name
when it is whole and on disk. Its row is written before the first byte and again afterwards, so that
after a killed process the next one finds the state from the part's lock and the name.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bursar.model.errors import BursarError, InputError
from bursar.model.matching import Replica
from bursar.replicas.catalogue import SharedDatabase
from bursar.replicas.content import (
    OWN_FOLDER,
    CancellationToken,
    LogicalFileContent,
    SourceFailed,
    StorageFull,
    TargetFailed,
    logical,
)
from bursar.replicas.copying import read_content
from bursar.replicas.parts import (
    FileInUse,
    LivenessLock,
    PartialFile,
    is_owner_alive,
    remove_stale_parts,
)
from bursar.replicas.site_storage import MayGo
from bursar.sqlite_file import LockWaitingConnection

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
# A counter and not a clock: several processes share the order, and no clock can turn it round.
_NOW = "(SELECT coalesce(max(used), 0) + 1 FROM files)"
_UNPINNED = "NOT EXISTS (SELECT 1 FROM pins WHERE pins.name = files.name)"


@dataclass(frozen=True, slots=True)
class _StoredFile:
    """A row of the database; not ``here``: the file is being brought, or damaged."""

    content: LogicalFileContent
    cached: bool
    here: bool


class FolderStorage:
    """
    A storage in a folder, made when missing; several processes may share the folder.

    Parameters
    ----------
    limit
        Bytes that cached files may take; None: no limit.

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
        """Bytes of cached files, including files that are being brought."""
        return self._taken("")

    @property
    def cached(self) -> list[str]:
        """Names of the cached files, the least recently used first."""
        query = "SELECT name FROM files WHERE cached AND here ORDER BY used, name"
        return [name for (name,) in self._db.rows(query)]

    def place_of(self, name: str) -> str:
        """Return the path of a logical file, existing or not."""
        return str(self.folder / logical(name))

    def pin(self, wanted: Mapping[str, LogicalFileContent], job: str) -> Mapping[str, str]:
        """
        Pin the wanted files that are there for a job; return the paths by name.

        A file that was deleted or truncated by others counts as missing.
        """
        found = {}
        with self._db.writing() as db:
            for name, content in wanted.items():
                row, path = self._row(name), self.place_of(name)
                if row is None or not row.here or not row.content.agrees_with(content):
                    continue
                size = _size(path)
                # A stat and not a read, which would cost as much as a copy. Damage that keeps the
                # size is found by a failed checksum elsewhere and comes in by doubt().
                if size is None:
                    db.execute("DELETE FROM files WHERE name = ?", (name,))
                elif size != row.content.size:
                    db.execute("UPDATE files SET here = 0 WHERE name = ?", (name,))
                else:
                    db.execute(f"UPDATE files SET used = {_NOW} WHERE name = ?", (name,))
                    self._pin(db, name, job)
                    found[name] = path
        return found

    def release(self, job: str) -> None:
        """Release the pins of a job."""
        with self._db.writing() as db:
            whose = (self._owner.token, job)
            db.execute("DELETE FROM pins WHERE owner = ? AND job = ?", whose)

    def doubt(self, names: Sequence[str]) -> None:
        """Mark files as possibly damaged: they are read before they are used again."""
        with self._db.writing() as db:
            rows = [(name,) for name in names]
            db.executemany("UPDATE files SET here = 0 WHERE name = ?", rows)

    def is_usable(self, replica: Replica) -> bool:
        """
        Return whether a copy is a local file of the right size outside of this storage.

        Files of this storage must be pinned instead.
        """
        size = _size(replica.url)  # none, of a URL
        fits = size is not None and replica.size in (None, size)
        return fits and replica.url != self.place_of(replica.name)

    def begin(
        self,
        name: str,
        content: LogicalFileContent,
        may_go: MayGo,
        *,
        keep: bool = False,
        job: str | None = None,
    ) -> "PendingFolderFile | None":
        """
        Begin to bring a file: free space for it and lock it against other processes.

        Parameters
        ----------
        content
            Expected size and checksum, as far as they are known.
        may_go
            Called for each cached file before it is evicted; returns whether it may be.
        keep
            Whether the file is kept, and so not counted under the limit.
        job
            Job for which the file is pinned from the moment at which it is there; None: no pin.

        Returns
        -------
        PendingFolderFile or None
            None: it is there. One to keep may be there with another content, which
            shows when it is committed.

        Raises
        ------
        FileInUse
            When another process brings it.
        StorageFull
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
            # The part is locked before its row is read: of two processes that miss the file only
            # one finds it missing and brings it.
            self._find_out(name, path)
            if not (keep or self._is_wanted(name, content, may_go, job)):
                part.discard()
                return None
            with _writing():
                part.take_up(content)
        except BaseException:
            part.close()
            raise
        return PendingFolderFile(self, name, part, keep=keep, job=job)

    def commit(
        self,
        name: str,
        part: PartialFile,
        content: LogicalFileContent,
        may_go: MayGo,
        *,
        keep: bool,
        job: str | None,
    ) -> None:
        """Give a complete part the file's name; see :class:`PendingFolderFile`."""
        path = Path(self.place_of(name))
        with _writing():
            # Before the name, so that no name stands for bytes that a power cut has taken; and
            # before the transaction, in which other processes would wait for the disk.
            part.sync()
            with self._db.writing() as db:
                row = self._row(name)
                if row is not None and row.here and keep:
                    if row.content != content:
                        raise self._other(name, row.content)
                    db.execute("UPDATE files SET cached = 0 WHERE name = ?", (name,))
                    part.discard()
                    return
                # Room again: before the copy the size may have been unknown or stated too small.
                roomy = keep or self._make_room(db, name, content.size or 0, may_go)
                if roomy:
                    # The name, then its row: killed in between, the row still says that the file is
                    # being brought, and _find_out reads the file under its name.
                    part.put(path)
                    entry = (name, content.size, content.checksum, not keep)
                    db.execute(f"REPLACE INTO files VALUES (?,?,?,?,1,{_NOW})", entry)
                    self._pin(db, name, job)
        if not roomy:
            # Outside the transaction, so that rows of files which were evicted in vain are gone
            # too.
            raise self._full(name, content.size or 0)

    def forget(self, name: str) -> None:
        """Remove the row of a file that is neither there nor being brought."""
        with self._db.writing() as db:
            db.execute("DELETE FROM files WHERE name = ?", (name,))

    def close(self) -> None:
        """Release all pins and close the database; a second call does nothing."""
        self._owner.close()
        self._db.close()

    # Inside.

    def _target(self, name: str) -> str:
        """Return the path of a file, in a folder that is made if missing."""
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
        Make the row of a file match the disk; read a file of unknown content.

        A file of unknown origin counts as kept. A file that was being brought had got its name
        before the process was killed; a damaged one counts as what it holds now.
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

    def _pin(self, db: LockWaitingConnection, name: str, job: str | None) -> None:
        if job is not None:
            db.execute("INSERT OR IGNORE INTO pins VALUES (?,?,?)", (name, self._owner.token, job))

    def _is_wanted(
        self, name: str, content: LogicalFileContent, may_go: MayGo, job: str | None
    ) -> bool:
        """
        Return whether a file must be brought.

        Space is reserved for a file that must be, and its row is written; one that is there
        is pinned.
        """
        size = content.size or 0
        with self._db.writing() as db:
            row = self._row(name)
            if row is not None and row.here:
                if row.content.agrees_with(content):
                    self._pin(db, name, job)
                    return False
                if not row.cached:
                    raise self._other(name, row.content)
            # The row is written before the first byte, so that concurrent transfers cannot promise
            # the same space twice.
            roomy = self._make_room(db, name, size, may_go)
            if roomy:
                entry = (name, size, content.checksum)
                db.execute("REPLACE INTO files VALUES (?,?,?,1,0,0)", entry)
        if not roomy:
            raise self._full(name, size)
        return True

    def _make_room(self, db: LockWaitingConnection, name: str, size: int, may_go: MayGo) -> bool:
        """Evict cached files until another fits; evict none when all would not be enough."""
        if self.limit is None or self._taken(name) + size <= self.limit:
            return True
        self._bury(db, name, may_go)
        excess = self._taken(name) + size - self.limit
        query = f"""SELECT name, size FROM files
                    WHERE cached AND here AND name != ? AND {_UNPINNED} ORDER BY used, name"""
        idle = db.execute(query, (name,)).fetchall()
        # All or nothing: evicting a part of what is needed would cost other jobs their files and
        # help nobody.
        if sum(size for _, size in idle) < excess:
            return False
        # The catalogue forgets a copy (may_go), then the file goes, then its row: a crash in
        # between leaves a file too many, never a registered copy too few.
        for other, freed in idle:
            if excess <= 0:
                break
            path = self.place_of(other)
            if may_go(other, path):
                Path(path).unlink(missing_ok=True)
                db.execute("DELETE FROM files WHERE name = ?", (other,))
                excess -= freed
        # The catalogue may have refused some of them, as the last copy of a file.
        return excess <= 0

    def _taken(self, name: str) -> int:
        """Return the bytes of cached files, one name left out."""
        query = "SELECT coalesce(sum(size), 0) FROM files WHERE cached AND name != ?"
        return int(self._db.rows(query, (name,))[0][0])

    def _bury(self, db: LockWaitingConnection, name: str, may_go: MayGo) -> None:
        """Remove the pins and unfinished files of processes that have died."""
        for (owner,) in db.execute("SELECT DISTINCT owner FROM pins").fetchall():
            if not is_owner_alive(self._owners, owner):
                db.execute("DELETE FROM pins WHERE owner = ?", (owner,))
        query = f"SELECT name FROM files WHERE cached AND NOT here AND name != ? AND {_UNPINNED}"
        for (other,) in db.execute(query, (name,)).fetchall():
            path = self.place_of(other)
            try:
                # The part's lock tells a file that a killed process has left from one that is being
                # brought.
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
            # Pins end with their jobs; a file larger than the limit will never fit.
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
    A file that is being brought into a storage, locked until this is closed.

    Parameters
    ----------
    keep
        Whether the file is kept; otherwise it is cached.
    job
        Job for which the file is pinned when it gets its name; None: no pin.
    """

    def __init__(
        self,
        storage: FolderStorage,
        name: str,
        part: PartialFile,
        *,
        keep: bool,
        job: str | None,
    ) -> None:
        self._storage = storage
        self._name = name
        self._part = part
        self._keep = keep
        self._job = job

    @property
    def sink(self) -> PartialFile:
        """Target of the file's bytes."""
        return self._part

    def commit(self, content: LogicalFileContent, may_go: MayGo) -> None:
        """
        Give the complete file the final name, durably.

        Raises
        ------
        StorageFull
            When it is larger than was known, and there is no room.
        TargetFailed
            When it cannot be written.
        InputError
            When another content is kept by this name.
        """
        self._storage.commit(
            self._name, self._part, content, may_go, keep=self._keep, job=self._job
        )

    def close(self) -> None:
        """Stop writing; the arrived bytes may be continued later."""
        self._part.close()

    def discard(self) -> None:
        """Stop writing and delete the arrived bytes, unless closed before."""
        if self._part.is_closed:
            return
        try:
            self._part.begin_anew()  # first: on a full disk the database cannot be written
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
    """Return the bytes of a regular file; None for a missing one."""
    try:
        return os.stat(path).st_size if os.path.isfile(path) else None
    except OSError:
        return None
