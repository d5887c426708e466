"""
The table of records in SQLite: transactions, checks, and what SQLite's errors mean.

Every record carries a checksum of its position, kind and payload, and each transaction notes the
sum of the checksums of all living records. So a record that was changed, lost, or has come back
is found when the store is opened: what SQLite itself verifies is the structure of its pages
(``quick_check``) and the frames of its log, not the content of pages.

A log that is cut off in its middle leaves an older state that is whole in itself. So the number of
each transaction is also noted in a small file (:meth:`.disk.Disk.note`), without waiting for the
disk: exact after a kill, and perhaps older than the database after a power cut, never newer.

What is not found: a database, its log and the small file that were all replaced by those of an
earlier moment; after a power cut, the loss of transactions since the small file last reached the
disk by itself; two changes whose checksums of 32 bits agree by chance.
"""

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any
from zlib import crc32

import apsw

from bursar.database_files import DiskBroken, DiskFull, log
from bursar.model.errors import BursarError, InputError
from bursar.sqlite_file import connect, is_full
from bursar.store.disk import DATABASE, Disk

FORMAT = 1
"""Version of the tables, SQLite's ``user_version``."""

_APPLICATION = 0x62757273  # "burs"

_HEAD = struct.Struct("<QQI")

_SEGMENT = re.compile(r"journal-\d{8,}\.log")

_PAGE = 4096
_VACUUM = 256
"""Pages given back to the file system at a time."""

_SPARE = 1024
"""Free pages that are always kept for what comes next."""

_CHUNK = 8 << 20
"""Bytes of payloads read at a time when the store is opened."""

_ROWS = 8_000
"""Rows in one statement; SQLite allows four times as many parameters, and a few more."""

_BEGIN = """
BEGIN IMMEDIATE;
UPDATE commits SET number = number + 1, total = total + :added - (
    SELECT coalesce(sum("check"), 0) FROM records
    WHERE position IN (SELECT value FROM json_each(:dead)))
RETURNING number, total;
DELETE FROM records WHERE position IN (SELECT value FROM json_each(:dead));
"""
"""Begins a transaction, notes it, and deletes records."""

_TABLES = """
CREATE TABLE records (position INTEGER PRIMARY KEY, kind INTEGER NOT NULL,
    "check" INTEGER NOT NULL, payload BLOB NOT NULL) STRICT;
CREATE TABLE commits (number INTEGER NOT NULL, total INTEGER NOT NULL) STRICT;
INSERT INTO commits VALUES (0, 0);
"""


def check_of(position: int, kind: int, payload: bytes) -> int:
    """Return the checksum of a record, which is good at one position only."""
    return crc32(payload, (position << 8 | kind) & 0xFFFFFFFF)


class RecordTable:
    """
    The database of a store; every method blocks, and is called by one thread at a time.

    Parameters
    ----------
    disk
        Disk on which the database lies.
    log_size
        Bytes of the write-ahead log after which it is merged into the database.
    """

    def __init__(self, disk: Disk, log_size: int) -> None:
        self._disk = disk
        self._log_size = log_size
        self._logged = 0  # bytes in the write-ahead log since it was merged, about
        self._is_sparse = False  # whether most pages of the database were free when last asked
        self._db = connect(":memory:", synchronous="OFF")  # until open() connects to the disk
        self._rows: Iterator[tuple[int, int, int, bytes]] = iter(())
        # Of the last transaction: its number, and the sum of the checksums of living records.
        self._number = self._total = 0
        self._found = 0
        self.size = 0
        self.last = 0

    def open(self) -> list[str]:
        """
        Open the database, or make it; return lines on what had to be repaired.

        Afterwards ``last`` is the last position, and :meth:`read_on` returns all records.

        Raises
        ------
        InputError
            When something that had been durable is damaged; nothing was changed then.
        """
        for name in self._disk.names():
            if _SEGMENT.fullmatch(name):
                raise InputError(
                    "is a journal in segments; only development versions of Bursar before "
                    "24 November 2026 read it",
                    where=name,
                )
        self._disk.prepare()
        self._disk.rewrite_log()
        with self._translated():
            # No other process reads the database, so that the index of the log can be kept in
            # memory. The log is merged by us, since SQLite would not tell of errors.
            path, vfs = self._disk.database, self._disk.vfs
            self._db = connect(path, synchronous="FULL", vfs=vfs, exclusive=True, merges=False)
            self._pragma("temp_store=MEMORY")
            # A process that was killed while it made the database has left one page at the most.
            tables = self._value("SELECT count(*) FROM sqlite_master")
            if not tables and self._pragma("page_count") <= 1 and not self._disk.noted():
                self._make()
            elif self._pragma("application_id") != _APPLICATION:
                raise InputError("is another program's database, or damaged", where=DATABASE)
            elif (found := self._pragma("user_version")) != FORMAT:
                raise InputError(f"is of format {found}, expected {FORMAT}", where=DATABASE)
            # The first line of several: one is enough to refuse.
            if (said := self._pragma("quick_check(1)")) != "ok":
                raise _damage(str(said).splitlines()[-1])
            rows = list(self._db.execute("SELECT number, total FROM commits"))
            if len(rows) != 1:
                raise _damage("its last transaction is not noted")
            self._number, self._total = rows[0]
            self.last = self._value("SELECT coalesce(max(position), 0) FROM records")
            self.size = _PAGE * self._pragma("page_count")
            repaired = self._check_head()
            # Already so, but where a process was killed twice while it made the database: SQLite
            # uses a log that it finds, although the file does not say yet that it has one.
            self._pragma("journal_mode=WAL")
            self._rows = self._db.execute(
                'SELECT position, kind, "check", payload FROM records ORDER BY position'
            )
        return repaired

    def read_on(self) -> list[tuple[int, int, bytes]]:
        """
        Return position, kind and payload of the next records, verified; empty: there are no more.

        Raises
        ------
        InputError
            When records were changed, lost, or have come back.
        """
        found: list[tuple[int, int, bytes]] = []
        size = 0
        with self._translated():
            for position, kind, check, payload in islice(self._rows, 2_000):
                if not isinstance(payload, bytes) or check != check_of(position, kind, payload):
                    raise _damage(f"the record at position {position} was changed")
                self._found += check
                found.append((position, kind, payload))
                size += len(payload)
                if size > _CHUNK:
                    break
            if not found:
                if self._found != self._total:
                    raise _damage("records were lost, or have come back")
                self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        return found

    def write(
        self, added: Mapping[int, tuple[int, bytes]], dead: Collection[int], *, tidy: bool
    ) -> None:
        """
        Write one transaction, which is durable on return; nothing of it is there on an error.

        Parameters
        ----------
        added
            Kind and payload by position.
        dead
            Positions of records to delete; there need be none.
        tidy
            Whether free pages may be given back to the file system, which takes room first.

        Raises
        ------
        DiskFull, DiskBroken
        """
        db = self._db
        rows = [
            (position, kind, check_of(position, kind, payload), payload)
            for position, (kind, payload) in added.items()
        ]
        change = {"dead": json.dumps(list(dead)), "added": sum(row[2] for row in rows)}
        with self._translated(writing=True):
            try:
                # Few statements: each gives the interpreter's lock away and waits for it again,
                # for up to 5 ms while the event loop is busy.
                noted: Any = db.execute(_BEGIN, change).fetchall()
                for begin in range(0, len(rows), _ROWS):
                    some = rows[begin : begin + _ROWS]
                    values = ",".join(["(?,?,?,?)"] * len(some))
                    db.execute(f"INSERT INTO records VALUES {values}", tuple(chain(*some)))
                db.execute("COMMIT")
            except BaseException:
                with suppress(apsw.Error):
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                raise
            ((self._number, self._total),) = noted
            # After the transaction, never before: a database behind its head counts as damaged.
            self._note_head()
        # Leaves and the row of the transaction are written as whole pages.
        self._logged += sum(len(row[3]) + _PAGE for row in rows) + 2 * _PAGE
        # The transaction is there, whatever happens now: without room the log goes on to grow.
        with suppress(DiskFull), self._translated(writing=True):
            is_due = self._logged >= self._log_size
            if tidy and (is_due or self._is_sparse):
                self._give_back()
            if is_due:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._logged = 0
                self.size = _PAGE * self._pragma("page_count")

    def read(self, position: int) -> bytes:
        """
        Return the payload of a record.

        Raises
        ------
        KeyError
            When no record is there.
        BursarError
            When the record is damaged.
        DiskBroken
        """
        query = 'SELECT kind, "check", payload FROM records WHERE position = ?'
        with self._translated():
            for kind, check, payload in self._db.execute(query, (position,)):
                if not isinstance(payload, bytes) or check != check_of(position, kind, payload):
                    raise BursarError(f"{DATABASE}: the record at position {position} is damaged")
                return payload
        raise KeyError(position)

    def close(self) -> None:
        """Merge the log into the database, which removes the log, and close it."""
        try:
            self._db.close(True)
        except apsw.Error as error:  # the log stays: what is in there was synced before
            log.error("%s: %s", self._disk.database, error)

    def _make(self) -> None:
        for pragma in (f"page_size={_PAGE}", "auto_vacuum=INCREMENTAL", "journal_mode=WAL"):
            self._pragma(pragma)
        with self._db:
            self._db.execute(_TABLES)
            self._pragma(f"application_id={_APPLICATION}")
            self._pragma(f"user_version={FORMAT}")

    def _give_back(self) -> None:
        """Shrink the database by a little when most of its pages are free."""
        free = self._pragma("freelist_count")
        self._is_sparse = free > _SPARE and 2 * free > self._pragma("page_count")
        if self._is_sparse:
            self._db.execute(f"PRAGMA incremental_vacuum({_VACUUM})").fetchall()

    def _note_head(self) -> None:
        check = crc32(_HEAD.pack(self._number, self._total, 0))
        self._disk.note(_HEAD.pack(self._number, self._total, check))

    def _check_head(self) -> list[str]:
        """Compare the database with the number of the last transaction that was noted."""
        data = self._disk.noted()
        if not data:  # a new store, or one whose power was cut before the file reached the disk
            return []
        try:
            number, total, check = _HEAD.unpack(data)
        except struct.error:
            return ["the note of the last transaction was damaged, and is written anew"]
        if check != crc32(_HEAD.pack(number, total, 0)):
            return ["the note of the last transaction was damaged, and is written anew"]
        if number > self._number or (number == self._number and total != self._total):
            lost = f"it ends at transaction {self._number}, and {number} were written"
            raise _damage(f"{lost}: its log was lost or cut")
        return []

    def _pragma(self, pragma: str) -> Any:
        return self._value(f"PRAGMA {pragma}")

    def _value(self, query: str) -> Any:
        # All rows are read: a statement that is not finished would hold the transaction open.
        rows = self._db.execute(query).fetchall()
        return rows[0][0] if rows else None

    @contextmanager
    def _translated(self, *, writing: bool = False) -> Iterator[None]:
        """
        Raise errors of SQLite as those of the disk, or as damage.

        Parameters
        ----------
        writing
            Whether damage, too, is told as a broken disk: the process that writes must end.
        """
        try:
            yield
        except apsw.Error as error:
            damaged = isinstance(error, apsw.CorruptError | apsw.NotADBError)
            if damaged and not writing:
                raise _damage(str(error)) from error
            # Users are not told where the store lies; the log is.
            kind = DiskFull if is_full(self._db, error) else DiskBroken
            log.error("%s: %s", self._disk.database, error)
            raise kind(f"{DATABASE}: {error}") from error


def _damage(what: str) -> InputError:
    return InputError(f"is damaged: {what}; restore the folder from a copy", where=DATABASE)
