"""
A run's journal over a simulated disk: what was acknowledged is there after any crash, once.

The disk tears and loses unsynced writes, is full, or fails a sync, and the process is killed
between any two operations on files.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.store.keeper import process_of_its_own, simulated
from tests.thoroughness import examples

from bursar.dispatch import journal as journal_module
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord, AttemptStart, RunEvent
from bursar.model.errors import BursarError
from bursar.model.money import Transfer
from bursar.model.task import Outcome, Status
from bursar.store import DiskBroken, DiskFull
from bursar_devtools.faults.simulated_disk import SimulatedDisk, SimulatedStorage

# SQLite ignores some errors, as when the log is merged after a commit, and apsw reports what was
# raised there as "unraisable".
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATH = Path("/store.sqlite")


@pytest.fixture(scope="module", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The user's key is this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        # Small, so that the log is merged into the database in the midst of a story.
        patch.setattr("bursar.sqlite_file._LOG_PAGES", 40)
        yield


@dataclass
class Told:
    """
    What a run asked its journal to write, and what the journal said was durable.

    Attributes
    ----------
    asked
        Outcomes by task and attempt.
    acknowledged
        Keys of outcomes whose transaction has become durable.
    transactions
        Transactions that became durable.
    """

    asked: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    transactions: int = 0


@dataclass
class Tally:
    """How the processes of some stories ended."""

    killed: int = 0
    full: int = 0
    broken: int = 0


def some_outcomes(chance: random.Random, told: Told) -> list[AttemptRecord]:
    records = []
    for _ in range(chance.randrange(1, 6)):
        task, attempt = chance.randrange(60), 1
        while (task, attempt) in told.asked or any(
            (r.outcome.task, r.outcome.attempt) == (task, attempt) for r in records
        ):
            attempt += 1
        output = chance.randbytes(chance.choice((0, 30, 3_000)))
        outcome = Outcome(
            task=task, attempt=attempt, status=Status.SUCCEEDED, start=1.0, end=2.0, stdout=output
        )
        records.append(AttemptRecord(outcome, True, "here", "lease-1"))
    return records


def check(journal: RunJournal, told: Told) -> None:
    """Compare a restored journal, whose chain is verified, with what was told."""
    state = journal.load()
    found = {(o.task, o.attempt): o for o in state.attempts}
    assert len(found) == len(state.attempts)  # each attempt once
    assert told.acknowledged <= found.keys()
    assert all(told.asked[key] == outcome for key, outcome in found.items())
    # Each outcome is paid for in its own transaction: a ledger that balances has as many payments.
    assert sum(t.amount for t in state.transfers) == len(found)
    assert not {(s.task, s.attempt) for s in state.open_starts} & found.keys()


async def live(
    storage: SimulatedStorage, told: Told, chance: random.Random, turns: int
) -> BaseException | None:
    """
    One process, from the opening of the journal to its kill, its failure or its clean end.

    Returns
    -------
    BaseException or None
        How the disk failed; None after a clean end or a kill.
    """
    process, ended = process_of_its_own(), asyncio.Event()
    process.on_death(ended.set)
    failure: list[BaseException] = []

    async def work() -> None:
        disk = SimulatedDisk(storage, process)
        journal = await disk.run(lambda: RunJournal(PATH, files=disk))
        await disk.run(check, journal, told)
        for turn in range(turns):
            records = some_outcomes(chance, told)
            keys = [(r.outcome.task, r.outcome.attempt) for r in records]
            if chance.random() < 0.5:
                starts = [AttemptStart(t, a, "here", "l", "w", 2, 1, 1.0) for t, a in keys]
                await disk.run(lambda starts=starts: journal.commit(starts=starts))  # type: ignore[misc]
            if chance.random() < 0.1:
                await disk.run(journal.beat, float(turn))
            told.asked |= {key: r.outcome for key, r in zip(keys, records, strict=True)}
            paid = [Transfer(0, 1.0, "", "pay", "budget", "here", len(records))]
            events = [RunEvent(1.0, "message", "x" * 200)] if chance.random() < 0.3 else []
            await disk.run(journal.commit, records, paid, events)
            told.acknowledged |= set(keys)
            told.transactions += 1
        await disk.run(check, journal, told)
        await disk.run(journal.close)
        ended.set()

    async def guarded() -> None:
        try:
            await work()
        except (BursarError, DiskFull, DiskBroken, apsw.Error) as error:
            failure.append(error)
            ended.set()

    working = process.spawn(guarded())
    working.add_done_callback(lambda task: ended.set())
    await ended.wait()
    if working.done() and not working.cancelled():
        working.result()
    elif not process.is_alive:
        failure.append(asyncio.CancelledError())
    process.kill()
    return failure[0] if failure else None


async def lives(storage: SimulatedStorage, chance: random.Random, tally: Tally) -> int:
    """
    Some processes after one another, on a disk with faults; at last one without any.

    Returns
    -------
    int
        Transactions that were acknowledged.
    """
    told = Told()
    for _ in range(chance.randint(1, 5)):
        storage.deadly = chance.choice((0.0, 0.02, 0.2, 0.5))
        match chance.randrange(4):
            case 0:
                storage.fill_up(chance.choice((0, 10_000, 60_000, 200_000)))
            case 1:
                storage.fails_next_sync = True
        failure = await live(storage, told, chance, chance.randrange(15))
        tally.killed += isinstance(failure, asyncio.CancelledError)
        tally.full += "full" in str(failure) or "no room" in str(failure)
        tally.broken += "input/output" in str(failure)
        storage.heal()
        if chance.random() < 0.7:
            storage.cut_power()
    before = told.transactions
    assert await live(storage, told, chance, 2) is None
    assert told.transactions == before + 2
    return told.transactions


def story(seed: int, tally: Tally | None = None) -> int:
    chance = random.Random(seed)
    return simulated(lambda storage: lives(storage, chance, tally or Tally()), seed)


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**64 - 1))
@example(seed=0)
def test_no_acknowledged_outcome_is_lost(seed: int) -> None:
    """Over several processes: each attempt once, its payment with it, and the chain whole."""
    assert story(seed) >= 2


@pytest.mark.long
def test_no_acknowledged_outcome_is_lost_over_many_seeds() -> None:
    """Seeds 0 to 1,999; each kind of fault has ended many processes."""
    tally = Tally()
    for seed in range(2_000):
        story(seed, tally)
    assert min(tally.killed, tally.full, tally.broken) > 100, tally


def test_a_log_that_is_not_synced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a journal that waits for no sync loses what it acknowledged."""
    monkeypatch.setattr(SimulatedStorage, "sync", lambda self, name, file: None)

    def fails(seed: int) -> bool:
        with suppress(Exception):
            story(seed)
            return False
        return True

    assert any(fails(seed) for seed in range(20))


def test_the_reserve_takes_what_runs_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction that met the full disk is durable, and the journal says that it was full."""
    monkeypatch.setattr(journal_module, "RESERVE", 1 << 20)

    async def scenario(storage: SimulatedStorage) -> None:
        disk = SimulatedDisk(storage, process_of_its_own())
        journal = await disk.run(lambda: RunJournal(PATH, files=disk))
        assert storage.reserved == 1 << 20
        assert not journal.is_full
        storage.fill_up(0)
        await disk.run(journal.beat, 1.0)
        assert journal.is_full
        for number in range(20):
            events = [RunEvent(1.0, "message", "y" * 5_000)]
            await disk.run(lambda events=events: journal.commit(events=events))  # type: ignore[misc]
            assert len(journal.load().events) == number + 1
        assert storage.reserved == 0
        with pytest.raises(BursarError, match=r"store\.sqlite: "):  # no reserve any more
            await disk.run(lambda: journal.commit(events=[RunEvent(1.0, "message", "z" * 2**21)]))
        storage.make_room()
        journal.commit(events=[RunEvent(1.0, "message", "last")])
        assert journal.load().events[-1].text == "last"
        journal.close()

    simulated(scenario)
