"""The store between crashes: groups, room on disk, and its size over a long life."""

import asyncio
import random
from typing import Any

import pytest
from tests.store.keeper import KIND, Keeper, process_of_its_own, simulated, store_on

from bursar.model.errors import InputError
from bursar.store import DiskBroken, DiskFull, RecordStore, record_store
from bursar_devtools.faults.simulated_disk import SimulatedDisk, SimulatedStorage


async def reopened(storage: SimulatedStorage, **settings: Any) -> tuple[RecordStore, Keeper]:
    store, keeper = store_on(storage, **settings)
    await store.open()
    return store, keeper


def test_those_who_wait_share_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred who wait at once cost two transactions at the most."""
    syncs = 0
    real = SimulatedStorage.sync

    def counted(self: SimulatedStorage, name: str, file: Any) -> None:
        nonlocal syncs
        syncs += 1
        real(self, name, file)

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage, log_size=1 << 20)

        async def one(number: int) -> None:
            keeper.add(store, b"%d" % number)
            await store.durable()

        with monkeypatch.context() as patch:
            patch.setattr(SimulatedStorage, "sync", counted)
            await asyncio.gather(*(one(number) for number in range(100)))
        await store.close()

    simulated(story)
    assert 1 <= syncs <= 2


def test_records_come_back_in_the_order_in_which_they_were_appended() -> None:
    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        for number in range(5_000):
            keeper.add(store, b"%d" % number)
        for _ in range(1_000):
            keeper.drop(store, 0)
        last = max(keeper.living)
        await store.close()
        again, restored = await reopened(storage)  # the keeper asserts the order
        assert restored.contents == keeper.contents
        assert restored.add(again, b"next") == last + 1
        await again.close()

    simulated(story)


def test_records_are_read_while_they_live() -> None:
    """Before they are written, while they are, afterwards, and never after their death."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        positions = [keeper.add(store, b"%050d" % number) for number in range(12)]
        waiting = asyncio.ensure_future(store.durable())
        while not waiting.done():
            await asyncio.sleep(1e-5)
            for number, position in enumerate(positions):
                assert await store.read(position) == b"%050d" % number
        await waiting
        for number, position in enumerate(positions):
            assert await store.read(position) == b"%050d" % number
        store.kill(positions[3])
        for durable in (False, True):
            if durable:
                await store.durable()
            store.kill(positions[3])
            for wrong in (positions[3], 0, 99):
                with pytest.raises(KeyError):
                    await store.read(wrong)
        assert await store.read(positions[4]) == b"%050d" % 4
        await store.close()

    simulated(story)


def test_a_record_that_dies_before_it_is_written_is_never_written() -> None:
    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        keeper.add(store, bytes(1_000_000))
        keeper.drop(store, 0)
        await store.durable()
        assert storage.used < 100_000
        await store.close()
        again, restored = await reopened(storage)
        assert restored.contents == []
        await again.close()

    simulated(story)


def test_records_of_nobody_are_refused() -> None:
    """Those of a newer program are not dropped."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        keeper.add(store, b"payload")
        await store.close()
        other = RecordStore(SimulatedDisk(storage, process_of_its_own()), reserve=0, least_free=0)
        with pytest.raises(InputError, match="nobody knows records of kind 7"):
            await other.open()
        await other.close()
        again, restored = await reopened(storage)
        assert restored.contents == keeper.contents
        await again.close()

    simulated(story)


def test_kinds_are_registered_once_and_within_bounds() -> None:
    async def story(storage: SimulatedStorage) -> None:
        store = RecordStore(SimulatedDisk(storage, process_of_its_own()))
        store.register([1, 255], Keeper())
        for kind in (0, 1, 255, -1, 256):
            with pytest.raises(ValueError, match=f"kind {kind} is taken"):
                store.register([kind], Keeper())

    simulated(story)


def test_a_record_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_store, "LARGEST", 100)

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        keeper.add(store, bytes(100))
        with pytest.raises(ValueError, match="a record is 101 bytes, expected at most 100"):
            keeper.add(store, bytes(101))
        await store.close()

    simulated(story)


def test_many_bytes_are_written_though_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not fill up with what nobody asks to be durable; fewer bytes wait."""
    monkeypatch.setattr(record_store, "_PENDING", 50_000)

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        before = storage.used
        keeper.add(store, bytes(50_000))
        await asyncio.sleep(10.0)
        assert storage.used == before
        keeper.add(store, b".")
        await asyncio.sleep(10.0)
        assert storage.used > before + 50_000
        await store.close()

    simulated(story)


def test_a_full_disk_refuses_new_work_keeps_old_and_recovers() -> None:
    """What is essential still fits into what was kept back; with room, all is as before."""

    async def story(storage: SimulatedStorage) -> None:
        storage.fill_up(700_000)
        settings = {"reserve": 300_000, "least_free": 100_000}
        store, keeper = await reopened(storage, **settings)
        assert store.problem == ""
        refused = None
        while refused is None:
            try:
                keeper.add(store, bytes(500))
                await store.durable()
            except DiskFull as error:
                refused = error
        assert "disk is full" in store.problem
        storage.fill_up(0)  # somebody else takes what is left
        for number in range(8):
            keeper.add(store, b"essential %d" % number + bytes(2_000), essential=True)
            await store.durable()
        assert storage.reserved == 0
        with pytest.raises(DiskFull):
            store.append(KIND, b"new", essential=False)
        storage.make_room()
        while store.problem:  # asked, it is looked at
            await asyncio.sleep(0.1)
        assert storage.reserved == 300_000
        keeper.add(store, b"new")
        await store.close()
        again, restored = await reopened(storage, **settings)
        assert restored.contents == keeper.contents
        await again.close()

    simulated(story)


def test_what_cannot_be_written_waits_for_room() -> None:
    """Even the reserve used up: durable() fails, nothing is taken back, and all is there later."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage, reserve=10_000)
        storage.fill_up(0)
        for number in range(10):
            keeper.add(store, b"%d" % number + bytes(5_000), essential=True)
        for _ in range(3):
            with pytest.raises(DiskFull):
                await store.durable()
        dropped = min(keeper.living)
        keeper.drop(store, 0)
        keeper.add(store, b"later", essential=True)
        with pytest.raises(DiskFull):
            await store.durable()
        for position, payload in keeper.contents:
            assert await store.read(position) == payload
        with pytest.raises(KeyError):
            await store.read(dropped)
        storage.make_room()
        await store.durable()
        assert len(keeper.contents) == 10
        await store.close()
        again, restored = await reopened(storage)
        assert restored.contents == keeper.contents
        await again.close()

    simulated(story)


def test_new_work_is_refused_while_earlier_records_wait_for_room() -> None:
    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        storage.fill_up(0)
        keeper.add(store, bytes(50_000), essential=True)
        with pytest.raises(DiskFull):
            await store.durable()
        storage.make_room()
        while store._room <= 0:
            assert store.problem
            await asyncio.sleep(0.5)
        assert store.problem
        await store.durable()
        assert not store.problem
        await store.close()

    simulated(story)


def test_a_disk_that_fails_ends_it() -> None:
    """After a failed sync nothing is known: no call says that something is durable."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        keeper.add(store, b"1")
        storage.fails_next_sync = True
        for _ in range(2):
            with pytest.raises(DiskBroken, match=r"the disk failed: store\.sqlite: input/output"):
                await store.durable()
        with pytest.raises(DiskBroken):
            keeper.add(store, b"2")
        assert "input/output error" in await store.failed()
        assert "input/output error" in store.problem
        with pytest.raises(DiskBroken):
            await store.close()

    simulated(story)


def test_a_record_that_comes_after_the_end_is_refused() -> None:
    """A request that is still served while the service ends gets an error of the disk."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        await store.close()
        with pytest.raises(DiskBroken, match="the store is closed"):
            keeper.add(store, b"late")
        store.append(KIND, b"late, of accepted work", essential=True)
        with pytest.raises(DiskBroken, match="the store is closed"):
            await store.durable()

    simulated(story)


@pytest.mark.parametrize("is_full", [False, True])
def test_what_is_restored_survives_a_power_cut(is_full: bool) -> None:
    """Also a transaction whose sync failed, which the next life finds in the log."""

    async def story(storage: SimulatedStorage) -> None:
        process = process_of_its_own()
        store, keeper = store_on(storage, process)
        await store.open()
        keeper.add(store, b"1")
        storage.fails_next_sync = True
        with pytest.raises(DiskBroken):
            await store.durable()
        process.kill()
        if is_full:
            storage.fill_up(0)
        process = process_of_its_own()
        store, keeper = store_on(storage, process)
        await store.open()
        process.kill()
        for attempt in range(20):
            storage.cut_power()
            process = process_of_its_own()
            store, again = store_on(storage, process)
            await store.open()
            assert again.contents == keeper.contents == [(1, b"1")], attempt
            process.kill()

    simulated(story)


def test_a_merge_of_the_log_that_fails_is_not_ignored() -> None:
    """SQLite itself would say nothing of it."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage, log_size=100_000)
        keeper.add(store, bytes(10_000))
        await store.durable()

        def fail(path: str, real: Any = storage.sync) -> None:
            storage.fails_next_sync = path == "/store.sqlite-wal"

        real = storage.sync
        storage.sync = lambda name, file: (real(name, file), fail(name))[0]  # type: ignore[method-assign]
        keeper.add(store, bytes(100_000))
        with pytest.raises(DiskBroken):
            await store.durable()
        with pytest.raises(DiskBroken):
            await store.close()

    simulated(story)


def test_an_error_is_told_as_the_caller_wants_it() -> None:
    class Refused(Exception): ...

    async def story(storage: SimulatedStorage) -> None:
        store, _ = store_on(
            storage, least_free=1 << 60, translate=lambda error: Refused(str(error))
        )
        await store.open()
        with pytest.raises(Refused, match="the service's disk is full"):
            store.append(KIND, b"new", essential=False)
        await store.close()

    simulated(story)


def test_a_service_that_lives_for_ever_needs_no_more_disk() -> None:
    """Megabytes go through it; what is on disk stays within a few times what lives."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage, log_size=50_000)
        chance = random.Random(1)
        written = most = 0
        for _ in range(300):
            for _ in range(40):
                payload = chance.randbytes(chance.randrange(400))
                keeper.add(store, payload)
                written += len(payload)
            await store.durable()
            while len(keeper.living) > 300:  # mostly the oldest go; some stay for long
                keeper.drop(store, 0 if chance.random() < 0.9 else chance.randrange(300))
            most = max(most, storage.used)
        assert written > 2_000_000
        assert most < 5 * 340 * 200
        await store.close()

    simulated(story)


def test_free_pages_are_given_back_when_they_are_most() -> None:
    """Space of a long queue comes back once the queue is done, a little with each transaction."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage)
        for _ in range(20):
            keeper.add(store, bytes(1 << 20))
            await store.durable()
        assert store.size > 20 << 20
        for _ in range(19):
            keeper.drop(store, 0)
        for _ in range(40):
            keeper.add(store, b"later")
            await store.durable()
        assert store.size < 8 << 20
        assert len(storage.files["/store.sqlite"].data) < 8 << 20
        await store.close()
        again, restored = await reopened(storage)
        assert restored.contents == keeper.contents
        await again.close()

    simulated(story)


def test_a_full_disk_is_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody asks."""
    looks = 0
    real = SimulatedDisk.free

    def counted(self: SimulatedDisk) -> int:
        nonlocal looks
        looks += 1
        return real(self)

    async def story(storage: SimulatedStorage) -> None:
        storage.fill_up(100_000)
        with monkeypatch.context() as patch:
            patch.setattr(SimulatedDisk, "free", counted)
            store, _ = await reopened(storage, least_free=200_000)
            assert looks == 1
            for _ in range(30):
                assert store.problem
                await asyncio.sleep(0.01)
            assert looks == 2
        await store.close()

    simulated(story)


def test_room_is_looked_at_again_after_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others took meanwhile is noticed."""
    monkeypatch.setattr(record_store, "_LOOK_EVERY", 10_000)

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage, least_free=100_000)
        storage.fill_up(80_000)
        keeper.add(store, bytes(9_999))
        await store.durable()
        assert store.problem == ""
        keeper.add(store, b".")
        await store.durable()
        assert store.problem
        with pytest.raises(DiskFull):
            keeper.add(store, b"more")
        await store.close()

    simulated(story)


def test_what_waits_to_be_written_takes_room_from_new_work() -> None:
    """To the byte, as it was reckoned with and as it is seen when the disk is looked at."""

    async def story(storage: SimulatedStorage) -> None:
        store, keeper = await reopened(storage, least_free=100_000)
        storage.fill_up(200_000)
        await store._check_room()
        keeper.add(store, bytes(60_000), essential=True)
        for _ in range(2):
            with pytest.raises(DiskFull):
                keeper.add(store, bytes(40_001))
            while store.problem:
                await asyncio.sleep(0.5)
        keeper.add(store, bytes(40_000))
        storage.make_room()
        await store.close()

    simulated(story)


def test_the_reserve_is_taken_back_as_soon_as_there_is_room() -> None:
    """Beside what must stay free, to the byte."""

    async def story(storage: SimulatedStorage) -> None:
        store, _ = await reopened(storage, reserve=50_000, least_free=20_000)
        storage.fill_up(0)
        await store._disk.run(store._disk.reserve, 0)
        store._is_reserved, store._problem = False, record_store.NO_ROOM  # as when it is used up
        for left, reserved in ((69_999, 0), (70_000, 50_000)):
            storage.fill_up(left)
            await store._check_room()
            assert storage.reserved == reserved
            assert bool(store._problem) == (not reserved)
        storage.make_room()
        await store.close()

    simulated(story)


def test_without_settings_room_is_kept_for_others_and_for_essential_records() -> None:
    """64 MiB each."""

    async def story(storage: SimulatedStorage) -> None:
        store = RecordStore(SimulatedDisk(storage, process_of_its_own()))
        store.register([KIND], Keeper())
        await store.open()
        assert storage.reserved == 64 * 2**20
        for lacking in (1, 0):
            storage.fill_up(64 * 2**20 - lacking)
            await store._check_room()
            assert bool(store._problem) == bool(lacking)
        storage.make_room()
        await store.close()

    simulated(story)


def test_without_records_nothing_is_written() -> None:
    async def story(storage: SimulatedStorage) -> None:
        store, _ = await reopened(storage)
        before = {name: bytes(stored.data) for name, stored in storage.files.items()}
        await store.durable()
        assert {name: bytes(stored.data) for name, stored in storage.files.items()} == before
        await store.close()

    simulated(story)
