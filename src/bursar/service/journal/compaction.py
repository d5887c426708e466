"""Compaction: segments that are mostly dead are emptied and removed, a little at a time."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from bursar.service.disk import Disk, DiskBroken, DiskFull
from bursar.service.interfaces import Position, ServiceError
from bursar.service.journal.record_format import (
    DEAD,
    decode_dead,
    parse_record,
    position_of,
    segment_name,
)
from bursar.service.journal.segment import Segment
from bursar.supervisor import TaskSupervisor

_CHUNK = 256 * 1024
"""Bytes read, moved and made durable at a time."""

_RECORDS = 500
"""Records moved in one turn of the loop."""


class CompactableJournal(Protocol):
    """The interface of the journal that compaction needs."""

    @property
    def segments(self) -> Mapping[int, Segment]:
        """Segments by number."""

    @property
    def current(self) -> Segment:
        """The segment that is being written."""

    @property
    def problem(self) -> str:
        """Why new work cannot be written; empty: it can."""

    async def durable(self) -> None:
        """Wait until everything appended and killed so far is on disk."""

    def move(self, position: Position, kind: int, payload: bytes) -> None:
        """Rewrite a living record, and kill the old one."""

    def move_list(self, position: Position, payload: bytes, target: Segment) -> None:
        """Rewrite a list of dead records."""

    def drop(self, segment: Segment) -> None:
        """Forget a segment whose file is gone."""

    def fail(self, reason: str) -> None:
        """Mark the journal as broken: nothing can be written any more."""


class SegmentCompaction:
    """
    Keeps the journal on disk within about twice the size of the living records.

    Nothing is lost by a crash at any point: a record's new copy and the death of the old one
    are in one batch, and a segment's file goes when the deaths of all its records are durable.

    Parameters
    ----------
    records
        The journal to compact.
    disk
        Disk from which files of empty segments are removed.
    above
        Bytes of all segments up to which only those without a living record are removed.
    spare
        Bytes that may be moved out of a segment while the disk is full.
    """

    def __init__(self, records: CompactableJournal, disk: Disk, *, above: int, spare: int) -> None:
        self._records = records
        self._disk = disk
        self._above = above
        self._spare = spare
        self._wake = asyncio.Event()
        self._was_current = 0
        self._tasks = TaskSupervisor(self._on_failure)

    def start(self) -> None:
        """Start compaction in the background."""
        self._wake.set()
        self._tasks.start(self._run(), "journal compaction")

    async def stop(self) -> None:
        """Stop compaction; segments that are half emptied stay, which loses nothing."""
        await self._tasks.close()

    def on_killed(self, segment: Segment) -> None:
        """Note that a record of a segment was killed."""
        if self._is_rubbish(segment):
            self._wake.set()

    def on_written(self) -> None:
        """Something became durable: there may be room again, or one segment more to look at."""
        current = self._records.current.number
        if current != self._was_current:
            self._was_current = current
            self._wake.set()

    def _on_failure(self, error: BaseException) -> None:
        """Break the journal, which would only ever grow from now on."""
        self._records.fail(f"compaction failed: {type(error).__name__}: {error}")

    def _is_rubbish(self, segment: Segment) -> bool:
        if segment is self._records.current:
            return False
        if segment.live == 0:
            return True
        # At most half of a segment is copied, so that the journal stays within twice what lives and
        # never more is copied than becomes free.
        if 2 * segment.live >= segment.end:
            return False
        # On a full disk a copy takes room before it gives any back. Little is moved out of what
        # was reserved; the rest stays for results.
        if self._records.problem and segment.live > self._spare:
            return False
        # Last, as it is the only test that looks at all segments; the others run at each death.
        return sum(s.end for s in self._records.segments.values()) > self._above

    def _worst(self) -> Segment | None:
        """Return the segment to empty next: least to move for what becomes free; None: none."""
        rubbish = [s for s in self._records.segments.values() if self._is_rubbish(s)]
        return min(rubbish, key=lambda s: s.live / s.end, default=None)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while (segment := self._worst()) is not None:
                    await self._empty(segment)
            except (ServiceError, DiskFull):  # no room now, or never again; the next commit tells
                # Forgotten, so that the next write, which shows that there is room, wakes it
                # again.
                self._was_current = 0
            except DiskBroken as error:
                self._records.fail(f"the disk failed: {error}")
                return

    async def _empty(self, segment: Segment) -> None:
        await self._records.durable()  # what is read next is in its file
        index = 0
        while (index := segment.next_alive(index)) >= 0:
            # In portions, each durable before the next: memory and the batch stay small, and
            # requests have their turn in between.
            index = await self._move_some(segment, index)
            await self._records.durable()
        # Its last records may have died meanwhile, of something that is not yet on disk.
        await self._records.durable()
        # Before it is forgotten: while the file may come back, so must who of it is dead.
        await self._disk.remove(segment_name(segment.number))
        self._records.drop(segment)
        # A reader that looked up its position before the drop still reads from the open file.
        await segment.wait_unread()
        if segment.file is not None:
            await segment.file.close()

    async def _move_some(self, segment: Segment, index: int) -> int:
        """Move living records from an index on; return where to go on."""
        begin = end = segment.offsets[index]
        chosen: list[int] = []
        while index >= 0 and len(chosen) < _RECORDS:
            reach = segment.offsets[index] + segment.size_of(index)
            # One read for neighbours, dead bytes between them included. A record larger than the
            # chunk is read by itself.
            if chosen and reach - begin > _CHUNK:
                break
            chosen.append(index)
            end = reach
            index = segment.next_alive(index + 1)
        data = memoryview(await segment.read(begin, end - begin))
        for i in chosen:
            if segment.is_alive(i):  # it may have died while the bytes were read
                at = segment.offsets[i] - begin
                self._move(segment, i, bytes(data[at : at + segment.size_of(i)]))
        return chosen[-1] + 1

    def _move(self, segment: Segment, index: int, data: bytes) -> None:
        """
        Move one living record out of a segment, to the end of the journal.

        Parameters
        ----------
        index
            Index of the record in the segment's columns.
        data
            All bytes of the record as read from the disk; empty: they could not be read.

        Raises
        ------
        DiskBroken
            When the record is damaged.
        """
        offset = segment.offsets[index]
        position = position_of(segment.number, offset)
        found = parse_record(data, position) if data else None
        if found is None:
            name = segment_name(segment.number)
            raise DiskBroken(f"{name}: the record at offset {offset} is damaged")
        kind, payload = found
        if kind != DEAD:
            self._records.move(position, kind, payload)
            return
        # A list of dead records matters only while the segment that it speaks of exists: with that
        # one, or when it lies in that one, it is dead itself.
        target = self._records.segments.get(decode_dead(payload)[0])
        if target is None or target is segment:
            segment.kill(offset)
        else:
            self._records.move_list(position, payload, target)
