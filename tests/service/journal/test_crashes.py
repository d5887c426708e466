"""What was durable is there after a power cut at any operation; what was not is whole or absent."""

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.journal.journal_participant import KIND, Keeper
from tests.service.journal.memory_disk import FakeDisk, Platter

from bursar.service.journal import SegmentedJournal

SEGMENT = 700


def journal_on(platter: Platter) -> tuple[SegmentedJournal, Keeper]:
    journal = SegmentedJournal(
        FakeDisk(platter), segment_size=SEGMENT, reserve=0, least_free=0, tidy_above=0
    )
    keeper = Keeper()
    journal.register([KIND], keeper)
    return journal, keeper


@dataclass
class Life:
    """What a process did until its power went: contents after each turn, and the last durable."""

    contents: list[list[bytes]] = field(default_factory=list)
    durable: int = 0


@dataclass(frozen=True)
class Turn:
    """What is done between two moments at which others may run."""

    adds: tuple[int, ...]
    drops: tuple[int, ...]
    waits: bool


def turns(chance: random.Random) -> list[Turn]:
    """What one life would do if its power were not cut."""
    return [
        Turn(
            adds=tuple(chance.randrange(200) for _ in range(chance.randrange(5))),
            drops=tuple(chance.randrange(50) for _ in range(chance.randrange(6))),
            waits=chance.random() < 0.6,
        )
        for _ in range(chance.randrange(30))
    ]


async def live(
    platter: Platter, before: Life, todo: list[Turn], after: int | None, chance: random.Random
) -> Life:
    """One life on a disk, from opening to a power cut after so many operations, or to the end."""
    platter.left = after
    life = Life()

    async def work() -> None:
        journal, keeper = journal_on(platter)
        await journal.open()
        # Restored is what one turn left behind, and none before the last that was acknowledged.
        assert keeper.contents in before.contents[before.durable :]
        life.contents.append(keeper.contents)
        for turn in todo:
            for size in turn.adds:
                keeper.add(journal, chance.randbytes(8) + bytes(size))
            for index in turn.drops:
                keeper.drop(journal, index)
            life.contents.append(keeper.contents)
            now = len(life.contents) - 1
            if turn.waits:
                await journal.durable()
                life.durable = now
            else:
                await asyncio.sleep(0)
        for position, payload in list(keeper.living.items()):
            if position in keeper.living:  # else it was moved meanwhile
                assert await journal.read(position) == payload
        await journal.durable()
        life.durable = len(life.contents) - 1
        if after is None:
            await journal.close()

    working = asyncio.create_task(work())
    cut = asyncio.create_task(platter.cut.wait())
    await asyncio.wait([working, cut], return_when=asyncio.FIRST_COMPLETED)
    everything = asyncio.all_tasks() - {asyncio.current_task()}
    if working.done():
        working.result()
    for task in everything:
        task.cancel()
    await asyncio.gather(*everything, return_exceptions=True)
    return life if life.contents else before


@settings(max_examples=120)
@given(seed=st.integers(0, 2**64 - 1))
def test_nothing_durable_is_lost_and_nothing_is_half_there(seed: int) -> None:
    """Over several lives, with compaction all the time, torn and lost sectors, undone removals."""
    chance = random.Random(seed)

    async def scenario() -> None:
        platter, life = Platter(), Life([[]])
        for _ in range(chance.randint(1, 4)):
            todo = turns(chance)
            life = await live(platter, life, todo, chance.randrange(3 * len(todo) + 10), chance)
            platter = platter.crash(chance)
        last = await live(platter, life, [], None, chance)
        assert last.contents[0] in life.contents[life.durable :]

    asyncio.run(scenario())
