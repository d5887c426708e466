"""Records that are durable together, with one sync for all that wait."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bursar.database_files import DiskBroken, DiskFull
from bursar.model.errors import InputError
from bursar.store.disk import DATABASE, Disk, RealDisk
from bursar.store.record_table import RecordTable
from bursar.supervisor import TaskSupervisor

Position = int
"""Position of a record in the store: greater for later records, the same for its whole life."""

MEBIBYTE = 2**20

LARGEST = 2**29
"""Bytes of the largest payload; SQLite's own limit is about twice as high."""

ASK_AGAIN = 1.0
"""Seconds between two checks of a full disk, which are made when somebody asks."""

_LOOK_EVERY = MEBIBYTE
"""Bytes written between two checks of the free space."""

_PENDING = 4 * MEBIBYTE
"""Bytes of records above which they are written although nobody waits."""

NO_ROOM = "the service's disk is full: nothing new is taken"


def read_records(folder: Path, kinds: Collection[int]) -> list[tuple[int, bytes]]:
    """
    Read the living records of some kinds from the store of a program that is not running.

    Parameters
    ----------
    folder
        Folder of the store, in which there is a database.

    Returns
    -------
    list
        Kind and payload of each record, verified, in the order appended.

    Raises
    ------
    InputError
        When the store is in use or damaged.
    """
    disk = RealDisk(folder)
    table = RecordTable(disk, 16 * MEBIBYTE)
    found: list[tuple[int, bytes]] = []
    try:
        try:
            table.open()
            # All records are read, so that lost ones show, too.
            while some := table.read_on():
                found += [(kind, payload) for _, kind, payload in some if kind in kinds]
        finally:
            table.close()
    except InputError as error:
        raise error.within(str(folder)) from None
    except (DiskFull, DiskBroken) as error:
        raise InputError(f"cannot be read: {error}", where=str(folder)) from None
    finally:
        disk.close()
    return found


class RecordOwner(Protocol):
    """
    A part of the program whose state consists of records in the store.

    A record is a kind, a small integer, and bytes. Every living record is restored once, in the
    order in which they were appended. A record that was killed durably never comes back.
    """

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in a record written before the restart, while the store is opened."""


@dataclass(slots=True)
class _Batch:
    """
    What is written in one transaction.

    Parameters
    ----------
    added
        Kind and payload of each new record, by position.
    dead
        Positions of records of earlier batches that are to be deleted; a dictionary keeps order.
    size
        Bytes of all payloads that were appended, those of records killed meanwhile included.
    """

    added: dict[Position, tuple[int, bytes]] = field(default_factory=dict)
    dead: dict[Position, None] = field(default_factory=dict)
    size: int = 0

    def kill(self, position: Position) -> None:
        """Delete a record: one of this batch is never written."""
        if self.added.pop(position, None) is None:
            self.dead[position] = None

    def take(self, later: "_Batch") -> None:
        """Add what came after this batch, which could not be written."""
        for position in later.dead:
            self.kill(position)
        self.added |= later.added
        self.size += later.size


class RecordStore:
    """
    A store of records in one folder.

    What is appended and killed between two ``await`` is there whole after a crash, or not at all,
    and never without what came before it. Nothing that was appended is taken back while the
    process lives: where it cannot be written it waits, unacknowledged, so that what is in memory is
    always what is on disk and what will be.

    Parameters
    ----------
    disk
        Disk on which the store lies.
    log_size
        Bytes of the write-ahead log after which it is merged into the database.
    reserve
        Bytes of the disk reserved for essential records.
    least_free
        Free bytes of the disk below which new work is refused.
    translate
        Returns what is raised in place of a :class:`DiskFull` or :class:`DiskBroken`; None: these
        are raised themselves.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        log_size: int = 16 * MEBIBYTE,
        reserve: int = 64 * MEBIBYTE,
        least_free: int = 64 * MEBIBYTE,
        translate: Callable[[DiskFull | DiskBroken], Exception] | None = None,
    ) -> None:
        self._disk = disk
        self._table = RecordTable(disk, log_size)
        self._reserve = reserve
        self._least_free = least_free
        self._translate = translate or (lambda error: error)
        self._owners: dict[int, RecordOwner] = {}
        self._last = 0
        self._is_open = False
        self._open = _Batch()  # takes what is appended now
        self._writing = _Batch()
        # Appends and kills so far, and how many of them are durable.
        self._count = self._written = 0
        self._commit: asyncio.Task[Exception | None] | None = None
        self._problem = ""
        self._broken = ""
        self._end = asyncio.Event()
        # Bytes that may still be written before new work is refused, an estimate; and bytes
        # written since the disk was last asked for its free space.
        self._room = self._unseen = 0
        self._is_reserved = self._is_behind = False
        self._next_check = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._tasks = TaskSupervisor(self._on_failure)

    def register(self, kinds: Sequence[int], owner: RecordOwner) -> None:
        """Register the owner of some kinds of records, before the store is opened."""
        for kind in kinds:
            if not 0 < kind < 256 or kind in self._owners:
                raise ValueError(f"kind {kind} is taken")
            self._owners[kind] = owner

    async def open(self) -> list[str]:
        """
        Restore every record to its owner; return lines on what had to be repaired.

        Raises
        ------
        InputError
            When something that had been durable is damaged; nothing was changed then.
        DiskFull, DiskBroken
        """
        repaired = await self._disk.run(self._table.open)
        self._last = self._table.last
        while found := await self._disk.run(self._table.read_on):
            for position, kind, payload in found:
                owner = self._owners.get(kind)
                if owner is None:
                    # Written by a newer version, perhaps: nobody must run on a part of the state.
                    raise InputError(f"nobody knows records of kind {kind}", where=DATABASE)
                owner.restore(kind, position, payload)
        self._is_open = True
        self._is_reserved = await self._disk.run(self._disk.reserve, self._reserve)
        if not self._is_reserved:
            self._problem = NO_ROOM
        await self._inspect()
        return repaired

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Position:
        """
        Append a record, which is durable once :meth:`durable` has returned.

        Parameters
        ----------
        essential
            Whether the record belongs to accepted work (a result, a charge, an end) and is
            written even when the disk is full for new work, to room reserved for such records.

        Raises
        ------
        DiskFull
            Nothing was appended; never for an essential record.
        """
        if len(payload) > LARGEST:
            raise ValueError(f"a record is {len(payload)} bytes, expected at most {LARGEST}")
        # Submissions are refused on a full disk; results and charges of accepted work never are:
        # they go to the reserve.
        if not essential:
            self._admit(len(payload))
        # An estimate between two looks at the disk; _inspect() corrects it.
        self._room -= len(payload)
        self._last += 1
        self._open.added[self._last] = kind, payload
        self._open.size += len(payload)
        self._count += 1
        # Bounds the memory of what is appended without being waited for.
        if self._open.size > _PENDING and self._is_open:
            self._commit_soon()
        return self._last

    def kill(self, position: Position) -> None:
        """Kill a record, durably like an append; killing a dead record changes nothing."""
        self._open.kill(position)
        # Deaths count like records: durable() waits for them, too.
        self._count += 1

    async def durable(self) -> None:
        """
        Wait until all that was appended and killed so far survives a power cut.

        Raises
        ------
        DiskFull
            Even the reserve is used up: the records stay, and the next call tries again.
        DiskBroken
            No record will be written any more, see :meth:`failed`.
        """
        wanted = self._count
        # A commit that was under way when the record was appended does not hold it: the next one
        # does, and all who wait by then share its sync.
        while self._written < wanted:
            if self._broken:
                raise self._translate(DiskBroken(self._broken))
            # One waiter that is cancelled must not cancel the write for the others.
            error = await asyncio.shield(self._commit_soon())
            # What failed may be a later batch than the one waited for here.
            if error is not None and self._written < wanted:
                raise error

    async def read(self, position: Position) -> bytes:
        """
        Return the payload of a living record, durable or not.

        Raises
        ------
        KeyError
            When no living record is there.
        BursarError
            When the record is damaged.
        """
        for batch in (self._open, self._writing):
            if position in batch.dead:
                raise KeyError(position)
            if position in batch.added:
                return batch.added[position][1]
        try:
            return await self._disk.run(self._table.read, position)
        except (DiskFull, DiskBroken) as error:
            raise self._translate(error) from error

    @property
    def size(self) -> int:
        """Size of the database in bytes, without its write-ahead log."""
        return self._table.size

    @property
    def problem(self) -> str:
        """
        Why new work cannot be written; empty: it can.

        Asking has the disk looked at again, so that it is known when there is room.
        """
        if self._problem:
            self._check_soon()
        return self._broken or self._problem

    async def failed(self) -> str:
        """Wait until the disk has failed and return the reason."""
        await self._end.wait()
        return self._broken

    async def close(self) -> None:
        """Write and sync what is left, and close the database."""
        if self._looking is not None:
            self._looking.cancel()
        try:
            if self._is_open:
                await self.durable()
        finally:
            # A request that still waits for its record is told so, as by a disk that has failed.
            self._broken = self._broken or "the store is closed"
            await self._tasks.close()
            await self._disk.run(self._table.close)

    # Writing.

    def _commit_soon(self) -> "asyncio.Task[Exception | None]":
        """Return the commit that is under way, or a new one."""
        if self._commit is None or self._commit.done():
            self._commit = self._tasks.start(self._commit_all(), "store commit")
        return self._commit

    async def _commit_all(self) -> Exception | None:
        """Write one batch; return an error instead of raising, so that every waiter gets one."""
        # Taken when the commit begins and not when it was asked for: what is appended until then
        # shares the sync.
        batch, self._writing, self._open = self._open, self._open, _Batch()
        last = self._count
        try:
            await self._write(batch)
        except (DiskFull, DiskBroken) as error:
            self._is_behind = True
            # Written with what came later, when there is room.
            batch.take(self._open)
            self._open, self._writing = batch, _Batch()
            if isinstance(error, DiskBroken):
                self._fail(f"the disk failed: {error}")
                return self._translate(DiskBroken(self._broken))
            return self._translate(DiskFull(NO_ROOM))
        self._writing, self._is_behind = _Batch(), False
        self._written = last
        self._unseen += batch.size
        if self._problem or self._unseen >= _LOOK_EVERY:
            await self._check_room()
        return None

    async def _write(self, batch: _Batch) -> None:
        write, tidy = self._table.write, not self._problem
        try:
            await self._disk.run(lambda: write(batch.added, batch.dead, tidy=tidy))
        except DiskFull:
            self._problem = NO_ROOM
            # The reserve is for just this: what was accepted as essential. It is given up once, as
            # a whole, and kept back again by _inspect().
            if not self._is_reserved:
                raise
            self._is_reserved = False
            await self._disk.run(self._disk.reserve, 0)
            await self._disk.run(lambda: write(batch.added, batch.dead, tidy=False))

    def _on_failure(self, error: BaseException) -> None:
        """Break the store after an internal error: what is on disk is not known any more."""
        self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._end.set()

    # Room.

    def _admit(self, size: int) -> None:
        if self._broken:
            raise self._translate(DiskBroken(self._broken))
        if not self._problem and size > self._room:
            self._problem = NO_ROOM
        if self._problem:
            self._check_soon()
            raise self._translate(DiskFull(NO_ROOM))

    def _check_soon(self) -> None:
        now = asyncio.get_running_loop().time()
        # Every refused request asks; the disk is asked once a second.
        if self._tasks.is_closed or now < self._next_check:
            return
        if self._looking is None or self._looking.done():
            self._next_check = now + ASK_AGAIN
            self._looking = self._tasks.start(self._check_room(), "store room")

    async def _check_room(self) -> None:
        try:
            await self._inspect()
        except DiskFull:  # no room to keep any back; the next look may find some
            self._problem = NO_ROOM
        except DiskBroken as error:
            self._fail(f"the disk failed: {error}")

    async def _inspect(self) -> None:
        """Check the free room on disk, and whether new work may be written again."""
        self._unseen = 0
        free = await self._disk.run(self._disk.free)
        # The reserve comes before new work: without it, results of that work might find no room.
        if not self._is_reserved and free >= self._least_free + self._reserve:
            self._is_reserved = await self._disk.run(self._disk.reserve, self._reserve)
            free = await self._disk.run(self._disk.free)
        self._room = free - self._least_free - self._open.size - self._writing.size
        if self._room < 0:
            self._problem = NO_ROOM
        # Nor while records wait that found no room: they would have to share it with new work.
        elif self._is_reserved and not self._is_behind:
            self._problem = ""
