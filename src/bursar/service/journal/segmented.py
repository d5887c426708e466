"""The journal: writes batches of records into segments, with one sync for all that wait."""

import asyncio
from collections import deque
from collections.abc import Sequence

from bursar.model.errors import BursarError, InputError
from bursar.service.disk import Disk, DiskBroken, DiskFull
from bursar.service.interfaces import JournalParticipant, Position, ServiceError
from bursar.service.journal.compaction import SegmentCompaction
from bursar.service.journal.record_format import (
    BATCH,
    DEAD,
    LARGEST,
    parse_record,
    position_of,
    segment_and_offset,
    segment_name,
    segment_number,
)
from bursar.service.journal.recovery import scan_segment
from bursar.service.journal.segment import Segment, SegmentBatch
from bursar.supervisor import TaskSupervisor

MEBIBYTE = 2**20

ASK_AGAIN = 1.0
"""Seconds between two checks of a full disk, which are made when somebody asks."""

_LOOK_EVERY = MEBIBYTE
"""Bytes written between two checks of the free space."""

_PENDING = 4 * MEBIBYTE
"""Bytes of a batch above which the batch is written although nobody waits."""

_STEP = 2_000
"""Records restored between two turns of the event loop."""


class SegmentedJournal:
    """
    Implements :class:`bursar.service.interfaces.ServiceJournal`.

    Parameters
    ----------
    disk
        Disk whose files ``journal-*.log`` are written by this object only.
    segment_size
        Bytes after which a new segment is begun.
    reserve
        Bytes of the disk reserved for essential records.
    least_free
        Free bytes of the disk below which new work is refused.
    tidy_above
        Bytes of all segments below which half-dead ones are left alone; None: two segments.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_size: int = 32 * MEBIBYTE,
        reserve: int = 64 * MEBIBYTE,
        least_free: int = 64 * MEBIBYTE,
        tidy_above: int | None = None,
    ) -> None:
        self._disk = disk
        self._segment_size = segment_size
        self._reserve = reserve
        self._least_free = least_free
        self._participants: dict[int, JournalParticipant] = {}
        self._segments: dict[int, Segment] = {}
        self._open: SegmentBatch  # made by open()
        self._closed: deque[SegmentBatch] = deque()
        # Appends and kills so far, and how many of them are durable.
        self._count = 0
        self._written = 0
        self._commit: asyncio.Task[ServiceError | None] | None = None
        self._problem = ""
        self._broken = ""
        self._end = asyncio.Event()
        # Bytes that may still be written before new work is refused, an estimate; and bytes
        # written since the disk was last asked for its free space.
        self._room = 0
        self._unseen = 0
        self._is_reserved = False
        self._looking: asyncio.Task[None] | None = None
        self._tasks = TaskSupervisor(self._on_failure)
        self._next_check = 0.0
        above = 2 * segment_size if tidy_above is None else tidy_above
        self._compaction = SegmentCompaction(self, disk, above=above, spare=reserve // 4)

    # What it is asked.

    def register(self, kinds: Sequence[int], participant: JournalParticipant) -> None:
        """Register the participant for some kinds of records, before the journal is opened."""
        for kind in kinds:
            if not BATCH < kind < DEAD or kind in self._participants:
                raise ValueError(f"kind {kind} is taken")
            self._participants[kind] = participant

    async def open(self) -> list[str]:
        """
        Restore every participant; return lines on what had to be repaired.

        Raises
        ------
        InputError
            When something that had been durable is damaged; nothing was changed then.
        """
        scanned = await self._scan_all()
        await self._restore_all()
        self._is_reserved = await self._disk.reserve(self._reserve)
        if not self._is_reserved:
            self._problem = _NO_ROOM
        await self._inspect()
        self._compaction.start()
        return scanned

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Position:
        """
        Append a record, which is durable once :meth:`durable` has returned.

        Raises
        ------
        ServiceError
            507, when the disk is full; never for an essential record.
        """
        if len(payload) > LARGEST:
            raise ValueError(f"a record is {len(payload)} bytes, expected at most {LARGEST}")
        # Submissions are refused on a full disk; results and charges of accepted work never are:
        # they go to the reserve.
        if not essential:
            self._admit(len(payload))
        # An estimate between two looks at the disk; heads are small, and _inspect() corrects it.
        self._room -= len(payload)
        position = self._open.append(kind, payload)
        self._count += 1
        # Bounds the memory of what is appended without being waited for.
        if len(self._open.data) > _PENDING:
            self._commit_soon()
        return position

    async def durable(self) -> None:
        """
        Wait until all that was appended and killed so far survives a power cut.

        Raises
        ------
        ServiceError
            507, when the disk is full now: the records stay, and are written when there is room.
            503, when the disk has failed: no record will be written any more.
        """
        wanted = self._count
        # A commit that was under way when the record was appended does not hold it: the next one
        # does, and all who wait by then share its sync.
        while self._written < wanted:
            if self._broken:
                raise self._failing()
            # One waiter that is cancelled must not cancel the write for the others.
            error = await asyncio.shield(self._commit_soon())
            # What failed may be a later batch than the one waited for here.
            if error is not None and self._written < wanted:
                raise error

    async def read(self, position: Position) -> bytes:
        """
        Return the payload of a living record.

        Raises
        ------
        KeyError
            When no living record is there.
        BursarError
            When the record is damaged.
        """
        number, offset = segment_and_offset(position)
        segment = self._segments.get(number)
        index = None if segment is None else segment.find(offset)
        if segment is None or index is None or not segment.is_alive(index):
            raise KeyError(position)
        size = segment.size_of(index)
        # Newest records are not in the file yet; a batch that is being written may be torn there.
        for batch in (*self._closed, self._open):
            if batch.holds(segment, offset):
                data = batch.read(offset, size)
                break
        else:
            data = await segment.read(offset, size)
        found = parse_record(data, position) if len(data) == size else None
        if found is None:
            raise BursarError(f"{segment_name(number)}: the record at offset {offset} is damaged")
        return found[1]

    def kill(self, position: Position) -> None:
        """Kill a record that is no longer needed; killing a dead record changes nothing."""
        number, offset = segment_and_offset(position)
        segment = self._segments.get(number)
        if segment is None or not segment.kill(offset):
            return
        # Deaths count like records: durable() waits for them, too.
        self._count += 1
        self._open.killed.setdefault(number, []).append(offset)
        self._compaction.on_killed(segment)

    @property
    def size(self) -> int:
        """Size of the journal on disk, in bytes."""
        return sum(segment.end for segment in self._segments.values())

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
        """Wait until the disk has failed and return the reason: the service must end then."""
        await self._end.wait()
        return self._broken

    async def close(self) -> None:
        """Write and sync what is left, and mark the end, so that later damage is recognised."""
        # First, as it appends; then nothing comes after the batch that marks the end.
        await self._compaction.stop()
        if self._looking is not None:
            self._looking.cancel()
        try:
            await self.durable()
            # An empty batch: it tells that all before it had been durable.
            self._count += 1
            self._close_batch(even_empty=True)
            await self.durable()
        finally:
            await self._tasks.close()
            for segment in self._segments.values():
                if segment.file is not None:
                    await segment.file.close()

    # What its compaction asks.

    @property
    def segments(self) -> dict[int, Segment]:
        """Segments by number, ascending; the last is being written."""
        return self._segments

    @property
    def current(self) -> Segment:
        """The segment that is being written."""
        return self._open.segment

    def move(self, position: Position, kind: int, payload: bytes) -> None:
        """Append what the participant makes of a living record, and kill the old record."""
        participant = self._participants[kind]
        fresh = participant.rewrite(kind, position, payload)
        if fresh is not None:
            # Appended before the old record is killed, without an await in between: both are in
            # one batch, so a crash leaves one of the two, never none and never both.
            participant.moved(position, self.append(kind, fresh, essential=True))
        self.kill(position)

    def move_list(self, position: Position, payload: bytes, target: Segment) -> None:
        """
        Append a list of dead records again, and kill the copy at the old position.

        Parameters
        ----------
        target
            Segment that holds the dead records. The list lives as long as this segment: without
            the list, a restart would take the records for living ones.
        """
        fresh = self.append(DEAD, payload, essential=True)
        # A list in the segment of which it speaks goes with that segment.
        number, offset = segment_and_offset(fresh)
        if number == target.number:
            target.kill(offset)
        else:
            target.lists.append(fresh)
        number, offset = segment_and_offset(position)
        self._segments[number].kill(offset)

    def drop(self, segment: Segment) -> None:
        """Forget a segment whose file is gone, and kill the lists of dead records there."""
        del self._segments[segment.number]
        # What they say is moot: the records are gone with their file.
        for position in segment.lists:
            number, offset = segment_and_offset(position)
            if number in self._segments:
                self._segments[number].kill(offset)

    def fail(self, reason: str) -> None:
        """Mark the journal as broken: nothing can be written any more."""
        self._broken = self._broken or reason
        self._end.set()

    # Opening.

    async def _scan_all(self) -> list[str]:
        numbers = sorted(
            n for name in await self._disk.names() if (n := segment_number(name)) is not None
        )
        scanned = []
        lists: list[tuple[int, Sequence[int], Position]] = []
        for number in numbers:
            name, is_last = segment_name(number), number == numbers[-1]
            file = await self._disk.open(name)
            # Everything is checked before a participant sees anything, so that a damaged journal
            # is left exactly as it was found.
            data = await file.read(0, file.size)
            try:
                found = scan_segment(data, number, is_last=is_last)
            except InputError as error:
                raise error.within(name) from None
            if found.end < len(data):
                scanned.append(
                    f"{name}: a torn end of {len(data) - found.end} bytes was cut off "
                    f"at offset {found.end}"
                )
            # Not even its first batch was durable: nobody was promised anything in it.
            if found.end == 0:
                await file.close()
                await self._disk.remove(name)
                continue
            if found.end < len(data):
                await file.truncate(found.end)
            elif is_last:
                await file.sync()  # a killed process may have written it, and not synced
            segment = Segment(number)
            segment.file = file
            segment.end = found.end
            for offset, size in zip(found.offsets, found.sizes, strict=True):
                segment.add(offset, size)
            self._segments[number] = segment
            lists += [(n, dead, position_of(number, at)) for n, dead, at in found.dead]
        # After all segments are known: a list may name a segment before or after its own.
        self._open = self._next_batch()
        for target, offsets, position in lists:
            self._apply_list(target, offsets, position)
        return scanned

    def _apply_list(self, target: int, offsets: Sequence[int], position: Position) -> None:
        """
        Mark the records that a list names as dead, when the journal is opened.

        Parameters
        ----------
        target, offsets
            Number of the segment that holds the dead records, and their offsets there.
        position
            Position of the list, which is a record itself.
        """
        number, offset = segment_and_offset(position)
        segment = self._segments.get(target)
        if segment is not None:
            for dead in offsets:
                segment.kill(dead)
        # Its segment is gone, or it goes with its own: the list is not needed itself.
        if segment is None or target == number:
            self._segments[number].kill(offset)
        else:
            segment.lists.append(position)

    async def _restore_all(self) -> None:
        # What participants append meanwhile is not restored to them.
        written = [(s, len(s.offsets)) for s in self._segments.values() if s.file is not None]
        for segment, count in written:
            data = memoryview(await segment.read(0, segment.end))
            index = -1
            while 0 <= (index := segment.next_alive(index + 1)) < count:
                offset = segment.offsets[index]
                self._restore(
                    segment, offset, bytes(data[offset : offset + segment.size_of(index)])
                )
                if index % _STEP == 0:
                    await asyncio.sleep(0)

    def _restore(self, segment: Segment, offset: int, data: bytes) -> None:
        position = position_of(segment.number, offset)
        found = parse_record(data, position)
        where = f"{segment_name(segment.number)}: offset {offset}"
        if found is None:
            raise InputError("the record is damaged", where=where)
        kind, payload = found
        if kind == DEAD:
            return
        participant = self._participants.get(kind)
        if participant is None:
            # Written by a newer version, perhaps: the service must not run on a part of its state.
            raise InputError(f"nobody knows records of kind {kind}", where=where)
        participant.restore(kind, position, payload)

    # Writing.

    def _next_batch(self) -> SegmentBatch:
        """Return an empty batch, in a new segment when the last one is full."""
        last = max(self._segments, default=0)
        if last and self._segments[last].end < self._segment_size:
            return SegmentBatch(self._segments[last], self._segments[last].end)
        segment = self._segments[last + 1] = Segment(last + 1)
        return SegmentBatch(segment, 0)

    def _close_batch(self, *, even_empty: bool = False) -> None:
        """Close the batch for writing; later records go into the next one."""
        batch = self._open
        if batch.is_empty and not even_empty:
            return
        batch.close(self._segments)
        batch.last = self._count
        self._closed.append(batch)
        self._open = self._next_batch()

    def _commit_soon(self) -> "asyncio.Task[ServiceError | None]":
        """Return the commit that is under way, or a new one."""
        # One commit at a time: batches must reach the file in their order, as the start of each
        # tells at recovery that those before are durable.
        if self._commit is None or self._commit.done():
            self._commit = self._tasks.start(self._commit_all(), "journal commit")
        return self._commit

    async def _commit_all(self) -> ServiceError | None:
        """Write all batches; return an error instead of raising, so that every waiter gets one."""
        # Closed when the commit begins and not when it was asked for: what is appended until then
        # shares the sync.
        self._close_batch()
        try:
            while self._closed:
                batch = self._closed[0]
                await self._write(batch)
                # Only now: after a failure the batch is still first, and is written when there is
                # room.
                self._closed.popleft()
                self._written = batch.last
                self._unseen += len(batch.data)
            if self._problem or self._unseen >= _LOOK_EVERY:
                await self._inspect()
        except DiskFull:
            return self._full()
        except DiskBroken as error:
            self.fail(f"the disk failed: {error}")
            return self._failing()
        self._compaction.on_written()
        return None

    async def _write(self, batch: SegmentBatch) -> None:
        try:
            await self._put(batch)
        except DiskFull:
            self._problem = _NO_ROOM
            # The reserve is for just this: what was accepted as essential. It is given up once, as
            # a whole, and kept back again by _inspect().
            if not self._is_reserved:
                raise
            self._is_reserved = False
            await self._disk.reserve(0)
            await self._put(batch)

    async def _put(self, batch: SegmentBatch) -> None:
        file = batch.segment.file
        if file is None:
            file = await self._disk.open(segment_name(batch.segment.number), create=True)
            batch.segment.file = file
        if file.size != batch.start:  # of a try that found no room
            await file.truncate(batch.start)
        await file.append(bytes(batch.data))
        await file.sync()

    def _on_failure(self, error: BaseException) -> None:
        """Break the journal after an internal error: what is on disk is not known any more."""
        self.fail(f"{type(error).__name__}: {error}")

    # Room.

    def _admit(self, size: int) -> None:
        if self._broken:
            raise self._failing()
        if not self._problem and size > self._room:
            self._problem = _NO_ROOM
        if self._problem:
            self._check_soon()
            raise self._full()

    def _check_soon(self) -> None:
        now = asyncio.get_running_loop().time()
        # Every refused request asks; the disk is asked once a second.
        if self._tasks.is_closed or now < self._next_check:
            return
        if self._looking is None or self._looking.done():
            self._next_check = now + ASK_AGAIN
            self._looking = self._tasks.start(self._check_again(), "journal room")

    async def _check_again(self) -> None:
        try:
            await self._inspect()
        except DiskBroken as error:
            self.fail(f"the disk failed: {error}")

    async def _inspect(self) -> None:
        """Check the free room on disk, and whether new work may be written again."""
        self._unseen = 0
        free = await self._disk.free()
        # The reserve comes before new work: without it, results of that work might find no room.
        if not self._is_reserved and free >= self._least_free + self._reserve:
            self._is_reserved = await self._disk.reserve(self._reserve)
            free = await self._disk.free()
        pending = sum(len(batch.data) for batch in (*self._closed, self._open))
        self._room = free - self._least_free - pending
        if self._room < 0:
            self._problem = _NO_ROOM
        # Nor while batches wait that found no room: they would have to share it with new work.
        elif self._is_reserved and not self._closed:
            self._problem = ""

    def _full(self) -> ServiceError:
        return ServiceError("disk-full", 507, _NO_ROOM, retry_after=ASK_AGAIN)

    def _failing(self) -> ServiceError:
        return ServiceError("disk-failed", 503, self._broken)


_NO_ROOM = "the service's disk is full: nothing new is taken"
