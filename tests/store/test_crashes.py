"""What was durable is there after a crash at any operation; what was not is whole or absent."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.store.keeper import Keeper, process_of_its_own, simulated, store_on
from tests.thoroughness import examples

from bursar.store import Position
from bursar_devtools.faults.simulated_disk import SimulatedStorage
from bursar_devtools.faults.simulated_process import SimulatedProcess

Contents = list[tuple[Position, bytes]]


@dataclass
class Life:
    """What a process did until its end: contents after each turn, and the last durable."""

    contents: list[Contents] = field(default_factory=list)
    durable: int = 0
    has_ended: bool = False


@dataclass(frozen=True)
class Turn:
    """What is done between two moments at which others may run."""

    adds: tuple[int, ...]
    drops: tuple[int, ...]
    waits: bool


def turns(chance: random.Random) -> list[Turn]:
    """What one process would do if it were not killed."""
    return [
        Turn(
            adds=tuple(chance.choice((50, 300, 9_000)) for _ in range(chance.randrange(5))),
            drops=tuple(chance.randrange(50) for _ in range(chance.randrange(6))),
            waits=chance.random() < 0.6,
        )
        for _ in range(chance.randrange(20))
    ]


async def live(
    storage: SimulatedStorage, before: Life, todo: list[Turn], chance: random.Random
) -> Life:
    """One process, from the opening of the store to its kill, or to a clean end."""
    life, process = Life(), process_of_its_own()
    ended = asyncio.Event()
    process.on_death(ended.set)

    async def work() -> None:
        store, keeper = store_on(storage, process, log_size=chance.choice((4_096, 65_536)))
        await store.open()
        # Restored is what one turn left behind, and none before the last that was acknowledged.
        assert keeper.contents in before.contents[before.durable :]
        life.contents.append(keeper.contents)
        for turn in todo:
            for size in turn.adds:
                keeper.add(store, chance.randbytes(8) + bytes(size))
            for index in turn.drops:
                keeper.drop(store, index)
            life.contents.append(keeper.contents)
            now = len(life.contents) - 1
            if turn.waits:
                await store.durable()
                life.durable = now
            else:
                await asyncio.sleep(0)
        for position, payload in keeper.contents:
            assert await store.read(position) == payload
        await store.durable()
        life.durable = len(life.contents) - 1
        await store.close()
        life.has_ended = True
        ended.set()

    working = process.spawn(work())
    working.add_done_callback(lambda task: ended.set())
    await ended.wait()
    if working.done() and not working.cancelled():
        working.result()
    process.kill()
    return life if life.contents else before


async def lives(storage: SimulatedStorage, chance: random.Random) -> int:
    """Some processes after one another; return how many were killed."""
    life, killed = Life([[]]), 0
    for _ in range(chance.randint(1, 5)):
        storage.deadly = chance.choice((0.02, 0.2, 0.5))
        life = await live(storage, life, turns(chance), chance)
        killed += not life.has_ended
        if chance.random() < 0.7:
            storage.cut_power()
    storage.heal()
    last = await live(storage, life, [], chance)
    assert last.has_ended
    assert last.contents[0] in life.contents[life.durable :]
    return killed


@settings(max_examples=examples(150))
@given(seed=st.integers(0, 2**64 - 1))
# Killed twice while the database is made, and the journal of that comes back in a power cut.
@example(seed=89727531)
def test_nothing_durable_is_lost_and_nothing_is_half_there(seed: int) -> None:
    """Over several processes, killed at any operation, with torn, reordered and lost sectors."""
    simulated(lambda storage: lives(storage, random.Random(seed)), seed)


@pytest.mark.long
def test_nothing_is_lost_over_many_seeds() -> None:
    """Seeds 0 to 4,999; most processes are killed."""
    killed = 0
    for seed in range(5_000):
        chance = random.Random(seed)
        killed += simulated(lambda storage, chance=chance: lives(storage, chance), seed)  # type: ignore[misc]
    assert killed > 5_000


def test_a_log_that_is_not_synced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a store that waits for no sync loses what it acknowledged."""
    monkeypatch.setattr(SimulatedStorage, "sync", lambda self, name, file: None)

    def fails(seed: int) -> bool:
        try:
            simulated(lambda storage: lives(storage, random.Random(seed)), seed)
        except Exception:
            return True
        return False

    assert any(fails(seed) for seed in range(20))


def test_the_same_seed_is_the_same_story() -> None:
    def story(seed: int) -> list[bytes]:
        async def told(storage: SimulatedStorage) -> list[bytes]:
            await lives(storage, random.Random(seed))
            store, keeper = store_on(storage)
            assert isinstance(keeper, Keeper)
            await store.open()
            await store.close()
            return [payload for _, payload in keeper.contents]

        return simulated(told, seed)

    assert [story(seed) for seed in range(5)] == [story(seed) for seed in range(5)]


def test_a_killed_process_changes_nothing() -> None:
    """Not even when SQLite closes the connection that the process has left."""

    async def story(storage: SimulatedStorage) -> None:
        process = process_of_its_own()
        assert isinstance(process, SimulatedProcess)
        store, keeper = store_on(storage, process)
        await store.open()
        keeper.add(store, b"payload")
        await store.durable()
        process.kill()
        before = {name: bytes(file.data) for name, file in storage.files.items()}
        store._table.close()
        assert {name: bytes(file.data) for name, file in storage.files.items()} == before

    simulated(story)
