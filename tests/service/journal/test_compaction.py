"""Compaction decides which segment is emptied, and empties it a piece at a time."""

import asyncio
from collections.abc import Coroutine, Sequence

import pytest
from tests.service.journal.memory_disk import FakeDisk, Platter

from bursar.service.disk import DiskBroken, DiskFull
from bursar.service.interfaces import Position, ServiceError
from bursar.service.journal import compaction
from bursar.service.journal.compaction import SegmentCompaction
from bursar.service.journal.record_format import (
    DEAD,
    encode_dead,
    position_of,
    record_head,
    segment_and_offset,
    segment_name,
)
from bursar.service.journal.segment import Segment


class Held:
    """A segment's file, which tells what is read of it."""

    def __init__(self) -> None:
        self.data = b""
        self.reads: list[tuple[int, int]] = []
        self.closed = False

    async def read(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        await asyncio.sleep(0)
        return self.data[offset : offset + size]

    async def close(self) -> None:
        self.closed = True


class Books:
    """What compaction asks of the journal, on segments made by hand; number 9 is written."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {9: Segment(9)}
        self.number = 9
        self.problem = ""
        self.moved: list[bytes] = []
        self.lists: list[tuple[int, int]] = []
        self.dropped: list[int] = []
        self.failed: list[str] = []
        self.synced = 0
        self.error: Exception | None = None
        self.files: dict[int, Held] = {}

    @property
    def current(self) -> Segment:
        return self.segments[self.number]

    async def durable(self) -> None:
        await asyncio.sleep(0)
        self.synced += 1
        if self.error is not None:
            raise self.error

    def move(self, position: Position, kind: int, payload: bytes) -> None:
        assert kind == 7
        number, offset = segment_and_offset(position)
        assert self.segments[number].kill(offset)
        self.moved.append(payload)

    def move_list(self, position: Position, payload: bytes, target: Segment) -> None:
        number, offset = segment_and_offset(position)
        assert self.segments[number].kill(offset)
        self.lists.append((number, target.number))

    def drop(self, segment: Segment) -> None:
        self.dropped.append(segment.number)
        del self.segments[segment.number]

    def fail(self, reason: str) -> None:
        self.failed.append(reason)

    def add(self, number: int, payloads: Sequence[bytes], dead: Sequence[int] = ()) -> Segment:
        """A segment of records, of which those numbered ``dead`` are."""
        segment = self.segments[number] = Segment(number)
        file = self.files[number] = Held()
        segment.file = file  # type: ignore[assignment]
        for payload in payloads:
            offset = len(file.data)
            kind, data = (7, payload) if payload[:1] != b"D" else (DEAD, payload[1:])
            record = record_head(position_of(number, offset), kind, data) + data
            segment.add(offset, len(record))
            file.data += record
        segment.end = len(file.data)
        for index in dead:
            segment.kill(segment.offsets[index])
        return segment


class Emptied:
    """Compaction at work on such books."""

    def __init__(self, books: Books, *, above: int = 0, spare: int = 0) -> None:
        self.books = books
        platter = Platter()
        for number in books.segments:
            platter.files[segment_name(number)] = bytearray(), 0
        self.platter = platter
        self.compaction = SegmentCompaction(books, FakeDisk(platter), above=above, spare=spare)

    async def idle(self) -> None:
        """Returns when nothing has been done for a while."""
        for _ in range(200):
            await asyncio.sleep(0)

    async def whole(self) -> list[int]:
        """Starts, waits, and stops; numbers of the segments that are gone, in order."""
        self.compaction.start()
        await self.idle()
        await self.compaction.stop()
        return self.books.dropped


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(work)


TEN = [b"%09d" % i for i in range(10)]


def test_a_segment_goes_when_less_than_half_of_it_lives() -> None:
    """Exactly half is left alone; what is written is never touched; what lives is moved."""

    async def main() -> None:
        books = Books()
        books.add(1, TEN, dead=range(5))
        books.add(2, TEN, dead=range(6))
        books.add(9, TEN, dead=range(10))
        work = Emptied(books)
        assert await work.whole() == [2]
        assert books.moved == TEN[6:]
        assert sorted(books.segments) == [1, 9]
        assert sorted(work.platter.files) == [segment_name(1), segment_name(9)]
        assert books.failed == []

    run(main())


def test_the_segment_that_costs_least_for_what_becomes_free_goes_first() -> None:
    """By the part that lives, not by its bytes."""

    async def main() -> None:
        books = Books()
        books.add(1, TEN, dead=range(6))
        books.add(2, TEN * 4, dead=range(30))
        books.add(3, TEN, dead=range(8))
        assert await Emptied(books).whole() == [3, 2, 1]

    run(main())


def test_small_journals_lose_only_segments_without_a_living_record() -> None:
    """Up to so many bytes of all segments; one more, and half-dead ones go."""

    async def main() -> None:
        for more, gone in ((10**6, [1]), (0, [1]), (-1, [1, 2])):
            books = Books()
            books.add(1, TEN, dead=range(10))
            books.add(2, TEN, dead=range(8))
            books.add(3, TEN)
            size = books.segments[1].end
            # Segment 1 goes at once, so that two count when segment 2 is judged.
            assert await Emptied(books, above=2 * size + more).whole() == gone

    run(main())


def test_on_a_full_disk_only_little_is_moved() -> None:
    """Up to the spare bytes out of one segment; without a problem any number."""

    async def main() -> None:
        live = len(TEN[0]) + len(record_head(0, 7, b""))
        for problem, spare, gone in (
            ("full", 2 * live, [1]),
            ("full", 2 * live - 1, []),
            ("", 0, [1]),
        ):
            books = Books()
            books.add(1, TEN, dead=range(8))
            books.problem = problem
            assert await Emptied(books, spare=spare).whole() == gone

    run(main())


def test_a_death_wakes_it_as_soon_as_a_segment_is_mostly_dead() -> None:
    async def main() -> None:
        books = Books()
        segment = books.add(1, TEN, dead=range(4))
        work = Emptied(books)
        work.compaction.start()
        for index in (4, 5):
            await work.idle()
            assert books.dropped == []
            segment.kill(segment.offsets[index])
            work.compaction.on_killed(segment)
        await work.idle()
        assert books.dropped == [1]
        await work.compaction.stop()

    run(main())


def test_a_new_segment_has_the_one_before_it_looked_at() -> None:
    """The first time that something is durable, and whenever another segment is written."""

    async def main() -> None:
        books = Books()
        books.add(1, TEN)
        work = Emptied(books)
        work.compaction.start()
        await work.idle()
        work.compaction.on_written()
        await work.idle()
        books.segments[10] = Segment(10)
        old = books.add(9, TEN, dead=range(9))
        work.compaction.on_written()  # still of segment 9
        await work.idle()
        assert books.dropped == []
        books.number = 10
        work.compaction.on_written()
        await work.idle()
        assert books.dropped == [old.number]
        await work.compaction.stop()

    run(main())


def test_the_first_segment_that_is_written_is_a_new_one() -> None:
    async def main() -> None:
        books = Books()
        books.segments = {1: Segment(1)}
        books.number = 1
        old = books.add(2, TEN)
        work = Emptied(books)
        work.compaction.start()
        await work.idle()
        for offset in old.offsets[:6]:
            old.kill(offset)
        work.compaction.on_written()
        await work.idle()
        assert books.dropped == [2]
        await work.compaction.stop()

    run(main())


@pytest.mark.parametrize("error", [ServiceError("full", 507, "full"), DiskFull("full")])
def test_without_room_it_tries_again_when_something_is_written(error: Exception) -> None:
    async def main() -> None:
        books = Books()
        books.add(1, TEN, dead=range(8))
        work = Emptied(books)
        work.compaction.start()
        work.compaction.on_written()
        books.error = error
        await work.idle()
        assert books.synced == 1
        books.error = None
        await work.idle()
        assert books.dropped == []
        work.compaction.on_written()
        await work.idle()
        assert books.dropped == [1]
        assert books.failed == []
        await work.compaction.stop()

    run(main())


def test_a_damaged_record_ends_it() -> None:
    """Its place is told; nothing more is moved."""

    async def main() -> None:
        books = Books()
        segment = books.add(1, TEN, dead=range(8))
        file = books.files[1]
        at = segment.offsets[9]
        file.data = file.data[:-1] + b"?"
        work = Emptied(books)
        assert await work.whole() == []
        assert books.failed == [
            f"the disk failed: {segment_name(1)}: the record at offset {at} is damaged"
        ]
        assert books.moved == [TEN[8]]

    run(main())


def test_a_disk_that_gives_nothing_ends_it() -> None:
    async def main() -> None:
        books = Books()
        books.add(1, TEN, dead=range(8))
        books.files[1].data = b""
        assert await Emptied(books).whole() == []
        assert len(books.failed) == 1

    run(main())


def test_records_are_read_by_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more bytes at once than are allowed, from the first that lives to the last."""

    async def main() -> None:
        size = len(TEN[0]) + len(record_head(0, 7, b""))
        for chunk, records, reads in (
            (3 * size, 500, [(16, 3), (19, 1)]),
            (3 * size - 1, 500, [(16, 2), (18, 2)]),
            (1, 500, [(16, 1), (17, 1), (18, 1), (19, 1)]),
            (1000 * size, 2, [(16, 2), (18, 2)]),
        ):
            monkeypatch.setattr(compaction, "_CHUNK", chunk)
            monkeypatch.setattr(compaction, "_RECORDS", records)
            books = Books()
            books.add(1, TEN * 2, dead=range(16))
            assert await Emptied(books).whole() == [1]
            assert books.files[1].reads == [(at * size, n * size) for at, n in reads]
            assert books.moved == TEN[6:]
            assert books.files[1].closed
            # Before the first, after each piece, and before the file goes.
            assert books.synced == 2 + len(reads)

    run(main())


def test_what_died_between_two_living_records_is_not_moved() -> None:
    """It is read with them, and left behind; so is what dies while it is read."""

    async def main() -> None:
        books = Books()
        segment = books.add(1, TEN, dead=[0, 1, 2, 3, 5, 7, 9])
        work = Emptied(books)
        work.compaction.start()
        while not books.files[1].reads:
            await asyncio.sleep(0)
        segment.kill(segment.offsets[6])
        await work.idle()
        assert books.moved == [TEN[4], TEN[8]]
        assert books.dropped == [1]
        await work.compaction.stop()

    run(main())


def test_lists_of_the_dead_go_on_as_long_as_those_they_name() -> None:
    """A list of a segment that is there is moved; of itself, or of one that is gone, it dies."""

    async def main() -> None:
        books = Books()
        books.add(2, TEN)
        lists = [b"D" + encode_dead(number, [3]) for number in (2, 1, 5)]
        books.add(1, [*TEN, *lists], dead=range(10))
        assert await Emptied(books).whole() == [1]
        assert books.lists == [(1, 2)]
        assert books.moved == []

    run(main())


def test_the_file_is_closed_only_when_nobody_reads_it() -> None:
    """Two read it: the first to end leaves it to the other."""

    async def main() -> None:
        books = Books()
        segment = books.add(1, TEN, dead=range(10))
        file, gates = books.files[1], [asyncio.Event(), asyncio.Event()]
        real = file.read

        async def slow(offset: int, size: int) -> bytes:
            await gates[offset].wait()
            return await real(offset, size)

        file.read = slow  # type: ignore[method-assign]
        reading = [asyncio.create_task(segment.read(n, 5)) for n in (0, 1)]
        await asyncio.sleep(0)
        work = Emptied(books)
        work.compaction.start()
        for gate in gates:
            await work.idle()
            assert books.dropped == [1]
            assert not file.closed
            gate.set()
        assert [len(data) for data in await asyncio.gather(*reading)] == [5, 5]
        await work.idle()
        assert file.closed
        await work.compaction.stop()

    run(main())


def test_a_record_dies_once() -> None:
    """Where none begins, none dies."""
    segment = Books().add(1, TEN)
    live, at = segment.live, segment.offsets[3]
    assert [segment.kill(at), segment.kill(at), segment.kill(at + 1)] == [True, False, False]
    assert live - segment.live == segment.size_of(3)
    assert [segment.is_alive(i) for i in (2, 3, 4)] == [True, False, True]
    assert [segment.next_alive(i) for i in (2, 3, 10)] == [2, 4, -1]


def test_a_disk_that_fails_while_it_removes_ends_it() -> None:
    async def main() -> None:
        books = Books()
        books.add(1, TEN, dead=range(10))
        work = Emptied(books)

        async def broken(name: str) -> None:
            raise DiskBroken(f"{name}: input/output error")

        work.compaction._disk.remove = broken  # type: ignore[method-assign]
        assert await work.whole() == []
        assert books.failed == [f"the disk failed: {segment_name(1)}: input/output error"]

    run(main())


def test_what_was_never_started_can_be_stopped() -> None:
    async def main() -> None:
        books = Books()
        await Emptied(books).compaction.stop()
        assert books.dropped == []

    run(main())
