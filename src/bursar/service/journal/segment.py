"""A segment's index in memory, and the batch that is being filled."""

import asyncio
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from bursar.service.disk import DiskFile
from bursar.service.journal.record_format import (
    BATCH_HEAD,
    DEAD,
    RECORD_HEAD,
    SEGMENT_HEAD,
    batch_head,
    encode_dead,
    position_of,
    record_head,
    segment_head,
)


class Segment:
    """
    Index of a segment: where the records are, and which live; thirteen bytes for each record.

    Attributes
    ----------
    file
        File of the segment; None until a batch is written.
    end
        Size in bytes, records that are not written yet included.
    live
        Bytes of living records.
    lists
        Positions of the records, in any segment, that list dead records of this one.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.file: DiskFile | None = None
        self.end = 0
        self.live = 0
        self.lists: list[int] = []
        self.offsets = array("Q")
        self._sizes = array("I")
        self._alive = bytearray()
        self._readers = 0
        self._unread: asyncio.Future[None] | None = None

    def add(self, offset: int, size: int) -> None:
        """Add a living record."""
        self.offsets.append(offset)
        self._sizes.append(size)
        self._alive.append(1)
        self.live += size

    def find(self, offset: int) -> int | None:
        """Return the index of the record at an offset; None: none begins there."""
        # A sorted array and a search: a dictionary of millions of records takes several times the
        # memory.
        index = bisect_left(self.offsets, offset)
        if index < len(self.offsets) and self.offsets[index] == offset:
            return index
        return None

    def kill(self, offset: int) -> bool:
        """Mark a record as dead; return False when no living record is at the offset."""
        index = self.find(offset)
        if index is None or not self._alive[index]:
            return False
        self._alive[index] = 0
        self.live -= self._sizes[index]
        return True

    def is_alive(self, index: int) -> bool:
        """Whether a record lives."""
        return bool(self._alive[index])

    def size_of(self, index: int) -> int:
        """Return the bytes of a record, head included."""
        return self._sizes[index]

    def next_alive(self, index: int) -> int:
        """Return the first living record from an index on; -1: none."""
        return self._alive.find(1, index)

    async def read(self, offset: int, size: int) -> bytes:
        """Read bytes of the segment's file, which is kept open meanwhile."""
        assert self.file is not None
        self._readers += 1
        try:
            return await self.file.read(offset, size)
        finally:
            self._readers -= 1
            if self._unread is not None and self._readers == 0 and not self._unread.done():
                self._unread.set_result(None)

    async def wait_unread(self) -> None:
        """Wait until no read of the file is under way."""
        if self._readers:
            self._unread = asyncio.get_running_loop().create_future()
            await self._unread


@dataclass(slots=True, eq=False)
class SegmentBatch:
    """
    Records that become durable together.

    Parameters
    ----------
    segment
        Segment into which the whole batch is written.
    start
        Offset of the first byte. A batch at 0 is preceded by the segment's head.

    Attributes
    ----------
    data
        All bytes, complete once the batch is closed.
    killed
        Offsets of dead records by segment.
    last
        Number of the last append or kill in the batch, counted over all batches.
    """

    segment: Segment
    start: int
    data: bytearray = field(init=False)
    killed: dict[int, list[int]] = field(default_factory=dict)
    last: int = 0

    def __post_init__(self) -> None:
        head = segment_head(self.segment.number) if self.start == 0 else b""
        # Room for the batch's head, which needs the checksum of what is still to come.
        self.data = bytearray(head) + bytes(BATCH_HEAD)
        self.segment.end = self.start + len(self.data)

    @property
    def is_empty(self) -> bool:
        """Whether the batch has nothing to write."""
        return not self.killed and len(self.data) == self._head + BATCH_HEAD

    def append(self, kind: int, payload: bytes) -> int:
        """Add a record in memory, and return the position that it will have on the disk."""
        offset = self.segment.end
        position = position_of(self.segment.number, offset)
        self.data += record_head(position, kind, payload)
        self.data += payload
        size = RECORD_HEAD + len(payload)
        self.segment.add(offset, size)
        self.segment.end = offset + size
        return position

    def close(self, segments: dict[int, Segment]) -> None:
        """Add the lists of killed records, and the head of the batch."""
        for number, offsets in self.killed.items():
            segment = segments.get(number)
            # The segment was dropped after its record was killed: its dead need no list any more.
            if segment is None:
                continue
            position = self.append(DEAD, encode_dead(number, offsets))
            if segment is self.segment:
                segment.kill(segment.offsets[-1])  # goes with the segment
            else:
                segment.lists.append(position)
        # No copy of a batch of megabytes; released before data changes, which a view would forbid.
        body = memoryview(self.data)[self._head + BATCH_HEAD :]
        head = batch_head(position_of(self.segment.number, self.start + self._head), body)
        body.release()
        self.data[self._head : self._head + BATCH_HEAD] = head

    def holds(self, segment: Segment, offset: int) -> bool:
        """Whether the bytes at an offset of a segment are in this batch."""
        return segment is self.segment and 0 <= offset - self.start < len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset of the segment, which must lie in this batch."""
        begin = offset - self.start
        return bytes(self.data[begin : begin + size])

    @property
    def _head(self) -> int:
        return SEGMENT_HEAD if self.start == 0 else 0
