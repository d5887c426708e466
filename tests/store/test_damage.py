"""Damaged bytes are found: what the store restores is what was acknowledged, or it refuses."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.store.keeper import KIND, process_of_its_own, simulated, store_on

from bursar.model.errors import BursarError, InputError
from bursar.store import RealDisk, RecordStore
from bursar.store import record_table as table
from bursar_devtools.faults.simulated_disk import SimulatedStorage, StoredFile

Contents = list[tuple[int, bytes]]
Files = dict[str, bytes]


async def written(storage: SimulatedStorage, *, cleanly: bool) -> Contents:
    """Fill a store with records of many sizes, some of them dead; a clean end leaves no log."""
    process = process_of_its_own()
    store, keeper = store_on(storage, process, log_size=1 << 20 if not cleanly else 16_384)
    await store.open()
    chance = random.Random(1)
    for number in range(60):
        keeper.add(store, chance.randbytes(chance.choice((20, 200, 6_000))))
        if number % 3 == 2:
            keeper.drop(store, chance.randrange(50))
            await store.durable()
    if cleanly:
        await store.close()
    process.kill()
    return keeper.contents


def kept(storage: SimulatedStorage) -> Files:
    return {name: bytes(file.data) for name, file in storage.files.items() if file.data}


async def outcome(files: Files, contents: Contents) -> str:
    """Open a store on some files: ``refused``, or ``harmless`` when all records are there."""
    process = process_of_its_own()
    storage = SimulatedStorage(random.Random(0), None)  # type: ignore[arg-type]
    storage.files = {name: StoredFile(bytearray(data), data) for name, data in files.items()}
    store, keeper = store_on(storage, process)
    try:
        try:
            await store.open()
        except InputError:
            # What is damaged is left as it was found.
            await store._disk.run(store._table.close)
            assert kept(storage) == files
            return "refused"
        assert keeper.contents == contents
        await store.close()
        return "harmless"
    finally:
        process.kill()


@pytest.mark.parametrize("cleanly", [True, False])
@pytest.mark.parametrize("how", ["bit", "byte", "sector", "page", "cut"])
def test_damage_anywhere_is_named_or_harmless(how: str, cleanly: bool) -> None:
    """Sixty damages each, seeds 0 to 59; after a clean end, and in the log of a killed process."""

    async def story(storage: SimulatedStorage) -> dict[str, int]:
        contents = await written(storage, cleanly=cleanly)
        files = kept(storage)
        assert ("/store.sqlite-wal" in files) != cleanly
        name = "/store.sqlite" if cleanly else "/store.sqlite-wal"
        counts = {"refused": 0, "harmless": 0}
        for seed in range(60):
            spoilt = {**files, name: spoil(files[name], how, random.Random(f"{how} {seed}"))}
            counts[await outcome(spoilt, contents)] += 1
        return counts

    counts = simulated(story)
    # Free bytes of pages hold nothing.
    assert counts["refused"] > counts["harmless"]


def spoil(data: bytes, how: str, chance: random.Random) -> bytes:
    """Return changed bytes of a file."""
    spoilt, at = bytearray(data), chance.randrange(len(data))
    match how:
        case "bit":
            spoilt[at] ^= 1 << chance.randrange(8)
        case "byte":
            spoilt[at] = (spoilt[at] + chance.randint(1, 255)) % 256
        case "sector":
            at -= at % 512
            spoilt[at : at + 512] = chance.randbytes(len(spoilt[at : at + 512]))
        case "page":  # written to the wrong place
            one, other = (chance.randrange(len(data) // 4096) * 4096 for _ in range(2))
            if data[one : one + 4096] == data[other : other + 4096]:
                other = 0 if one else 4096
            spoilt[one : one + 4096] = data[other : other + 4096]
        case _:
            del spoilt[at:]
    return bytes(spoilt)


def test_a_log_that_is_gone_is_noticed_after_a_kill() -> None:
    async def story(storage: SimulatedStorage) -> str:
        contents = await written(storage, cleanly=False)
        files = kept(storage)
        assert await outcome(files, contents) == "harmless"
        del files["/store.sqlite-wal"]
        return await outcome(files, contents)

    assert simulated(story) == "refused"


def test_pages_of_an_earlier_moment_are_noticed() -> None:
    """A write that the disk has lost leaves a page that is whole, but old."""

    async def story(storage: SimulatedStorage) -> list[str]:
        store, keeper = store_on(storage)
        await store.open()
        for number in range(200):
            keeper.add(store, b"%0100d" % number)
        await store.close()
        before = kept(storage)["/store.sqlite"]
        store, keeper = store_on(storage)
        await store.open()
        for number in range(0, 100, 9):
            keeper.drop(store, number)
        await store.close()
        files, found = kept(storage), []
        after = files["/store.sqlite"]
        for at in range(0, len(after), 4096):
            if after[at : at + 4096] != before[at : at + 4096]:
                mixed = after[:at] + before[at : at + 4096] + after[at + 4096 :]
                found.append(await outcome({**files, "/store.sqlite": mixed}, keeper.contents))
        return found

    found = simulated(story)
    assert found.count("refused") >= 5
    assert found.count("harmless") <= 1  # the page with SQLite's own counters


def test_a_spoilt_note_of_the_last_transaction_is_told_and_written_anew() -> None:
    async def story(storage: SimulatedStorage) -> None:
        contents = await written(storage, cleanly=True)
        storage.files["head"].data[3] ^= 1
        store, keeper = store_on(storage)
        assert await store.open() == [
            "the note of the last transaction was damaged, and is written anew"
        ]
        assert keeper.contents == contents
        keeper.add(store, b"more")
        await store.close()
        store, keeper = store_on(storage)
        assert await store.open() == []
        await store.close()

    simulated(story)


def test_a_record_that_is_spoilt_while_the_store_is_open_is_not_read_as_if_good() -> None:
    async def story(storage: SimulatedStorage) -> None:
        store, keeper = store_on(storage)
        await store.open()
        position = keeper.add(store, b"payload")
        await store.durable()
        store._table._db.execute("UPDATE records SET payload = x'00'")
        with pytest.raises(BursarError, match=f"the record at position {position} is damaged"):
            await store.read(position)
        await store.close()

    simulated(story)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA user_version=2", "is of format 2, expected 1"),
        ("PRAGMA application_id=1", "is another program's database"),
        ("DELETE FROM commits", "its last transaction is not noted"),
    ],
)
def test_a_database_that_is_no_store_is_refused(statement: str, said: str) -> None:
    async def story(storage: SimulatedStorage) -> None:
        store, _ = store_on(storage)
        await store.open()
        store._table._db.execute(statement)
        await store.close()
        store, _ = store_on(storage)
        with pytest.raises(InputError, match=f"store.sqlite: .*{said}"):
            await store.open()
        await store.close()

    simulated(story)


def test_a_journal_of_segments_is_refused_with_one_line(tmp_path: Path) -> None:
    """An old service's folder is not taken for an empty one."""
    (tmp_path / "journal-00000001.log").write_bytes(b"bursarJ\x01")

    async def scenario() -> None:
        disk = RealDisk(tmp_path)
        store = RecordStore(disk)
        with pytest.raises(InputError, match=r"journal-00000001\.log: is a journal in segments"):
            await store.open()
        await store.close()
        disk.close()

    asyncio.run(scenario())
    assert not (tmp_path / "store.sqlite").exists()


def test_checks_hold_for_one_position_and_kind() -> None:
    check = table.check_of(5, KIND, b"payload")
    assert check != table.check_of(6, KIND, b"payload")
    assert check != table.check_of(5, KIND + 1, b"payload")
    assert check != table.check_of(5, KIND, b"payloae")
