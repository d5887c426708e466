"""The journal between crashes: groups, damage, room, and its size over a long life."""

import asyncio
import random

import pytest
from tests.service.journal.journal_participant import KIND, Keeper
from tests.service.journal.memory_disk import FakeDisk, Platter

from bursar.model.errors import BursarError, InputError
from bursar.service.interfaces import ServiceError
from bursar.service.journal import SegmentedJournal, segmented
from bursar.service.journal.record_format import (
    BATCH_HEAD,
    RECORD_HEAD,
    SEGMENT_HEAD,
    encode_dead,
    position_of,
    record_head,
    records_in,
)


def journal_on(platter: Platter, **settings: int) -> tuple[SegmentedJournal, Keeper]:
    defaults = {"segment_size": 4_000, "reserve": 0, "least_free": 0}
    journal = SegmentedJournal(FakeDisk(platter), **{**defaults, **settings})
    keeper = Keeper()
    journal.register([KIND], keeper)
    return journal, keeper


async def written(platter: Platter, records: int) -> list[bytes]:
    """A journal of three records a batch that was closed, and what is in it."""
    journal, keeper = journal_on(platter, segment_size=300)
    await journal.open()
    for number in range(records):
        keeper.add(journal, b"record %d" % number)
        if number % 3 == 2:
            await journal.durable()
    await journal.close()
    return keeper.contents


def test_those_who_wait_share_a_sync() -> None:
    """A hundred who wait at once cost two syncs at the most, and each sees its record durable."""

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter, segment_size=1 << 20)
        await journal.open()
        syncs = 0

        async def one(number: int) -> None:
            keeper.add(journal, b"%d" % number)
            await journal.durable()
            (data, synced) = platter.files["journal-00000001.log"]
            assert data[:synced].count(b"%d" % number)

        real = FakeDisk.open

        async def counted(disk: FakeDisk, name: str, *, create: bool = False) -> object:
            file = await real(disk, name, create=create)
            inner = file.sync

            async def sync() -> None:
                nonlocal syncs
                syncs += 1
                await inner()

            file.sync = sync  # type: ignore[method-assign]
            return file

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeDisk, "open", counted)
            await asyncio.gather(*(one(1000 + number) for number in range(100)))
        assert syncs <= 2
        await journal.close()

    asyncio.run(scenario())


def test_a_byte_changed_anywhere_is_seen() -> None:
    """After a clean end: what had been durable is refused with its place, or all of it is there."""

    async def scenario() -> None:
        platter = Platter()
        contents = await written(platter, 20)
        assert len(platter.files) > 1
        tried = refused = cut = 0
        for name, (data, _) in platter.files.items():
            for at in range(len(data)):
                tried += 1
                spoilt = Platter()
                for other, (bytes_, synced) in platter.files.items():
                    spoilt.files[other] = bytearray(bytes_), synced
                spoilt.files[name][0][at] ^= 1 << at % 8
                journal, keeper = journal_on(spoilt)
                try:
                    said = await journal.open()
                except InputError as error:
                    refused += name in str(error)
                else:
                    # Only the mark of a clean end, after everything, can be lost.
                    assert keeper.contents == contents
                    assert [name in line for line in said] == [True]
                    cut += 1
                    await journal.close()
        assert refused + cut == tried
        assert refused > 10 * cut > 0

    asyncio.run(scenario())


def test_a_damaged_record_is_not_read_as_if_it_were_good() -> None:
    """While the service lives, too."""

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter)
        await journal.open()
        keeper.add(journal, b"payload")
        await journal.durable()
        data, _ = platter.files["journal-00000001.log"]
        data[data.index(b"payload")] ^= 1
        with pytest.raises(BursarError, match=r"journal-00000001.log: the record at offset \d+ is"):
            await journal.read(next(iter(keeper.living)))
        await journal.close()

    asyncio.run(scenario())


def test_a_torn_end_is_cut_off_and_told() -> None:
    """Half a batch at the end goes, with one line on what, where and how much."""

    async def scenario() -> None:
        platter = Platter()
        await written(platter, 2)
        whole = len(platter.files["journal-00000001.log"][0])
        journal, keeper = journal_on(platter)
        await journal.open()
        keeper.add(journal, bytes(100))
        await journal.durable()
        data = platter.files["journal-00000001.log"][0]
        del data[-30:]
        platter.files["journal-00000001.log"] = data, len(data)

        again, fresh = journal_on(platter)
        said = await again.open()

        torn = len(data) - whole
        assert said == [
            f"journal-00000001.log: a torn end of {torn} bytes was cut off at offset {whole}"
        ]
        assert fresh.contents == [b"record 0", b"record 1"]
        assert len(platter.files["journal-00000001.log"][0]) == whole
        await again.close()

    asyncio.run(scenario())


def test_records_of_nobody_are_refused() -> None:
    """Those of a newer program are not dropped."""

    async def scenario() -> None:
        platter = Platter()
        await written(platter, 1)
        journal = SegmentedJournal(FakeDisk(platter), reserve=0, least_free=0)
        with pytest.raises(InputError, match="nobody knows records of kind 7"):
            await journal.open()

    asyncio.run(scenario())


def test_a_full_disk_refuses_new_work_keeps_old_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is essential still fits into what was kept back; with room, all is as before."""
    monkeypatch.setattr(segmented, "ASK_AGAIN", 0.0)

    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 20_000
        journal, keeper = journal_on(platter, reserve=5_000, least_free=2_000)
        await journal.open()
        assert journal.problem == ""

        refused = None
        while refused is None:
            try:
                keeper.add(journal, bytes(500))
                await journal.durable()
            except ServiceError as error:
                refused = error
        assert (refused.status, refused.kind, refused.retry_after) == (507, "disk-full", 0.0)
        assert journal.problem

        platter.capacity = 20_000 - platter.room  # somebody else takes what is left
        for number in range(8):
            keeper.add(journal, b"essential %d" % number + bytes(500), essential=True)
            await journal.durable()
        with pytest.raises(ServiceError):
            journal.append(KIND, b"new", essential=False)

        platter.capacity = 40_000
        assert journal.problem  # asked, it is looked at
        while journal.problem:
            await asyncio.sleep(0)
        keeper.add(journal, b"new")
        await journal.durable()
        contents = keeper.contents
        await journal.close()

        again, fresh = journal_on(platter, reserve=5_000, least_free=2_000)
        await again.open()
        assert fresh.contents == contents
        await again.close()

    asyncio.run(scenario())


def test_what_cannot_be_written_waits_for_room() -> None:
    """Even the reserve used up: durable() fails, nothing is taken back, and all is there later."""

    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 3_000
        journal, keeper = journal_on(platter, reserve=1_000)
        await journal.open()
        for number in range(10):
            keeper.add(journal, b"%d" % number + bytes(500), essential=True)
        for _ in range(3):
            with pytest.raises(ServiceError) as caught:
                await journal.durable()
            assert caught.value.status == 507
        for position, payload in keeper.living.items():
            assert await journal.read(position) == payload

        platter.capacity = 20_000
        await journal.durable()
        contents = keeper.contents
        assert len(contents) == 10
        await journal.close()
        again, fresh = journal_on(platter)
        await again.open()
        assert fresh.contents == contents
        await again.close()

    asyncio.run(scenario())


def test_a_disk_that_fails_ends_it() -> None:
    """After a failed sync nothing is known: no call says that something is durable."""

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter)
        await journal.open()
        failed = asyncio.create_task(journal.failed())
        keeper.add(journal, b"1")
        platter.fails = True
        with pytest.raises(ServiceError, match=r"the disk failed: .*input/output error"):
            await journal.durable()
        platter.fails = False
        with pytest.raises(ServiceError) as caught:
            await journal.durable()
        assert caught.value.status == 503
        assert "input/output error" in await failed
        with pytest.raises(ServiceError):
            await journal.close()

    asyncio.run(scenario())


def test_a_service_that_lives_for_ever_needs_no_more_disk() -> None:
    """Megabytes go through it; what is on disk stays within a few times what lives."""

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter, segment_size=20_000)
        await journal.open()
        chance = random.Random(1)
        written = most = 0
        living: list[int] = []
        for _ in range(600):
            for _ in range(40):
                payload = chance.randbytes(chance.randrange(200))
                position = journal.append(KIND, payload, essential=False)
                keeper.living[position] = payload
                written += len(payload)
            await journal.durable()
            living = sorted(keeper.living)
            while len(living) > 300:  # mostly the oldest go; some stay for long
                index = 0 if chance.random() < 0.9 else chance.randrange(len(living))
                position = living.pop(index)
                del keeper.living[position]
                journal.kill(position)
            most = max(most, journal.size)
        lives = 340 * 110
        assert written > 2_000_000
        assert most < 3 * lives + 3 * 20_000
        assert sum(len(data) for data, _ in platter.files.values()) < 3 * lives + 3 * 20_000
        await journal.close()

    asyncio.run(scenario())


def test_everything_dead_leaves_next_to_nothing() -> None:
    """Also of what is never worth copying: a journal with nothing in it is small."""

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter, segment_size=1_000)
        await journal.open()
        for _ in range(50):
            keeper.add(journal, bytes(100))
            await journal.durable()
        for position in list(keeper.living):
            journal.kill(position)
        keeper.living.clear()
        await journal.durable()
        while len(platter.files) > 2:
            await asyncio.sleep(0)
        await journal.close()
        again, fresh = journal_on(platter)
        await again.open()
        assert fresh.contents == []
        await again.close()

    asyncio.run(scenario())


def test_room_is_what_neither_others_nor_waiting_batches_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits to be written counts as written, in each look: to the byte."""
    monkeypatch.setattr(segmented, "ASK_AGAIN", 0.0)

    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 20_000
        journal, keeper = journal_on(platter, segment_size=1 << 20, least_free=2_000)
        await journal.open()
        heads = SEGMENT_HEAD + BATCH_HEAD
        with pytest.raises(ServiceError, match="full"):
            journal.append(KIND, bytes(18_001 - heads), essential=False)
        while journal.problem:
            await asyncio.sleep(0)
        keeper.add(journal, bytes(10_000), essential=True)
        room = 18_000 - heads - RECORD_HEAD - 10_000
        for _ in range(2):  # as it was reckoned with, and as it is seen when it is looked at
            with pytest.raises(ServiceError, match="full"):
                keeper.add(journal, bytes(room + RECORD_HEAD + 1))
            while journal.problem:
                await asyncio.sleep(0)
        keeper.add(journal, bytes(room))
        await journal.durable()
        await journal.close()

    asyncio.run(scenario())


def test_kinds_are_registered_once_and_within_bounds() -> None:
    """Those of the journal itself are nobody's."""
    journal = SegmentedJournal(FakeDisk(Platter()))
    journal.register([1, 254], Keeper())
    for kind in (0, 255, 1, 254, -1, 256):
        with pytest.raises(ValueError, match=f"kind {kind} is taken"):
            journal.register([kind], Keeper())


def test_a_record_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "LARGEST", 100)

    async def scenario() -> None:
        journal, keeper = journal_on(Platter())
        await journal.open()
        keeper.add(journal, bytes(100))
        with pytest.raises(ValueError, match="a record is 101 bytes, expected at most 100"):
            keeper.add(journal, bytes(101))
        await journal.close()

    asyncio.run(scenario())


def test_records_are_read_while_they_live() -> None:
    """From the batch that is open, from the file, and never after their death."""

    async def scenario() -> None:
        journal, _ = journal_on(Platter(), segment_size=200)
        await journal.open()
        positions = [journal.append(KIND, b"%050d" % i, essential=False) for i in range(12)]
        for i, position in enumerate(positions):
            assert await journal.read(position) == b"%050d" % i
        await journal.durable()
        assert len(journal.segments) > 1
        for i, position in enumerate(positions):
            assert await journal.read(position) == b"%050d" % i
        for wrong in (positions[3] + 1, positions[3] - 1, position_of(99, 0)):
            with pytest.raises(KeyError):
                await journal.read(wrong)
            journal.kill(wrong)
        journal.kill(positions[3])
        journal.kill(positions[3])
        with pytest.raises(KeyError):
            await journal.read(positions[3])
        assert await journal.read(positions[4]) == b"%050d" % 4
        await journal.close()

    asyncio.run(scenario())


def test_a_long_batch_is_written_though_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not fill up with what nobody asks to be durable; shorter ones wait."""
    monkeypatch.setattr(segmented, "_PENDING", 1_000)

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter)
        await journal.open()
        keeper.add(journal, bytes(1_000 - SEGMENT_HEAD - BATCH_HEAD - RECORD_HEAD))
        for _ in range(50):
            await asyncio.sleep(0)
        assert platter.files == {}
        keeper.add(journal, b"")
        for _ in range(50):
            await asyncio.sleep(0)
        assert [synced for _, synced in platter.files.values()] == [1_000 + RECORD_HEAD]
        await journal.close()

    asyncio.run(scenario())


def test_the_size_is_that_of_all_segments() -> None:
    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter, segment_size=300)
        await journal.open()
        for i in range(10):
            keeper.add(journal, bytes(100 + i))
            await journal.durable()
            written = sum(len(data) for data, _ in platter.files.values())
            # The open batch has its head, and that of a segment where it begins one.
            assert journal.size - written in {BATCH_HEAD, SEGMENT_HEAD + BATCH_HEAD}
        assert len(platter.files) == 5  # two records fill one
        await journal.close()

    asyncio.run(scenario())


def test_what_is_kept_back_is_kept_back_as_soon_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside what must stay free, to the byte; new work is taken from the next one on."""
    monkeypatch.setattr(segmented, "ASK_AGAIN", 0.0)

    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 1_000
        journal, _ = journal_on(platter, reserve=5_000, least_free=2_000)
        await journal.open()
        heads = SEGMENT_HEAD + BATCH_HEAD  # of the batch that waits for its first record
        for capacity, reserved, is_full in (
            (6_999, 0, True),
            (7_000, 5_000, True),
            (7_000 + heads - 1, 5_000, True),
            (7_000 + heads, 5_000, False),
            (7_000 + heads - 1, 5_000, False),  # nobody looks while all seems well
        ):
            platter.capacity = capacity
            for _ in range(20):
                assert journal.problem or not is_full
                await asyncio.sleep(0)
            assert platter.reserved == reserved
            assert bool(journal.problem) == is_full
        await journal.close()

    asyncio.run(scenario())


def test_room_is_looked_at_again_after_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over all batches: what others took meanwhile is noticed."""
    monkeypatch.setattr(segmented, "_LOOK_EVERY", 1_000)

    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 50_000
        journal, keeper = journal_on(platter, segment_size=1 << 20, least_free=2_000)
        await journal.open()
        platter.capacity = 3_000
        body = 1_000 - SEGMENT_HEAD - 3 * (BATCH_HEAD + RECORD_HEAD)
        for size in (body - 501, 500):
            keeper.add(journal, bytes(size))
            await journal.durable()
            assert journal.problem == ""
        keeper.add(journal, b".")
        await journal.durable()
        assert journal.problem
        with pytest.raises(ServiceError, match="full"):
            keeper.add(journal, b"more")
        await journal.close()

    asyncio.run(scenario())


def test_without_settings_room_is_kept_for_others_and_for_what_is_essential() -> None:
    """64 MiB each; segments of 32 MiB."""

    async def scenario() -> None:
        for lacking in (0, 1):
            platter = Platter()
            platter.capacity = 128 * 2**20 + SEGMENT_HEAD + BATCH_HEAD - lacking
            journal = SegmentedJournal(FakeDisk(platter))
            journal.register([KIND], keeper := Keeper())
            await journal.open()
            assert platter.reserved == 64 * 2**20
            assert bool(journal._problem) == bool(lacking)
            keeper.add(journal, bytes(32 * 2**20 - SEGMENT_HEAD - BATCH_HEAD - RECORD_HEAD - 1),
                       essential=True)  # fmt: skip
            await journal.durable()
            assert len(journal.segments) == 1
            keeper.add(journal, b"", essential=True)
            await journal.durable()
            assert len(journal.segments) == 2
            await journal.close()

    asyncio.run(scenario())


def test_what_is_appended_while_it_is_restored_is_not_restored() -> None:
    """A participant may add to the segment that is being read."""

    async def scenario() -> None:
        platter = Platter()
        journal, keeper = journal_on(platter)
        await journal.open()
        for number in range(3):
            keeper.add(journal, b"%d" % number)
        await journal.close()

        again = SegmentedJournal(FakeDisk(platter), segment_size=4_000, reserve=0, least_free=0)
        restored: list[bytes] = []

        class Adding(Keeper):
            def restore(self, kind: int, position: int, payload: bytes) -> None:
                restored.append(payload)
                again.append(KIND, b"of " + payload, essential=True)

        again.register([KIND], Adding())
        await again.open()
        assert restored == [b"0", b"1", b"2"]
        await again.close()

    asyncio.run(scenario())


def test_a_list_of_the_dead_that_comes_to_its_own_segment_dies_there() -> None:
    """It goes with the segment; elsewhere it lives as long as the segment that it is about."""

    async def scenario() -> None:
        journal, keeper = journal_on(Platter(), segment_size=200)
        await journal.open()
        for number in range(6):
            keeper.add(journal, b"%050d" % number)
            await journal.durable()
        current, old = journal.current, journal.segments[1]
        assert current is not old
        position = next(iter(sorted(keeper.living)))
        for target, listed in ((current, 0), (old, 1)):
            journal.move_list(position, encode_dead(target.number, [1]), target)
            index = len(current.offsets) - 1
            assert current.is_alive(index) == bool(listed)
            assert len(target.lists) == listed
            assert not old.is_alive(0)

    asyncio.run(scenario())


def test_nothing_is_written_where_there_is_nothing_to_write() -> None:
    async def scenario() -> None:
        platter = Platter()
        journal, _ = journal_on(platter)
        await journal.open()
        assert await journal._commit_soon() is None
        assert platter.files == {}
        await journal.close()
        assert len(platter.files) == 1  # but for the mark of a clean end

    asyncio.run(scenario())


def test_a_full_disk_is_looked_at_once_in_a_while() -> None:
    """However often somebody asks."""

    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 1_000
        journal, _ = journal_on(platter, least_free=2_000)
        looks = 0
        real = journal._disk.free

        async def counted() -> int:
            nonlocal looks
            looks += 1
            return await real()

        journal._disk.free = counted  # type: ignore[method-assign]
        await journal.open()
        assert looks == 1
        for _ in range(30):
            assert journal.problem
            await asyncio.sleep(0)
        assert looks == 2
        await journal.close()

    asyncio.run(scenario())


def test_all_that_was_kept_back_is_given_up_for_what_is_essential() -> None:
    async def scenario() -> None:
        platter = Platter()
        platter.capacity = 3_000
        journal, keeper = journal_on(platter, reserve=2_000)
        await journal.open()
        assert platter.reserved == 2_000
        keeper.add(journal, bytes(1_500), essential=True)
        await journal.durable()
        assert platter.reserved == 0
        await journal.close()

    asyncio.run(scenario())


def test_records_fill_their_batch() -> None:
    """Also by one without a payload; a rest that is too short for a head is told."""
    position = position_of(1, 5)
    data = record_head(position, KIND, b"ab") + b"ab" + record_head(position, KIND, b"")
    view = memoryview(b"....." + data + b"rest")
    end = 5 + len(data)
    second = 5 + RECORD_HEAD + 2
    found = [(5, RECORD_HEAD + 2, KIND), (second, RECORD_HEAD, KIND)]
    assert list(records_in(view, 5, end)) == found
    with pytest.raises(InputError, match=f"records end at {end}, their batch at {end + 4}"):
        list(records_in(view, 5, end + 4))
    with pytest.raises(InputError, match=f"records end at {second}, their batch at {end - 1}"):
        list(records_in(view, 5, end - 1))
