"""Transactions of the engine: one at a time, and whoever waits for one hears how it ended."""

import asyncio
import threading
from typing import Any, cast

import pytest

from bursar.dispatch.journal import RunJournal
from bursar.engine.loop_clock import LoopClock
from bursar.engine.transactions import EngineTransaction, GroupCommit
from bursar.model.errors import BursarError


class SlowJournal:
    """Commits when it is let, and then fails if it is told to."""

    is_full = False

    def __init__(self, fault: Exception | None = None) -> None:
        self.let = threading.Event()
        self.begun = threading.Event()
        self.committed: list[list[str]] = []
        self._fault = fault

    def commit(self, records: Any, transfers: Any, events: Any, starts: Any) -> None:
        self.begun.set()
        assert self.let.wait(60)
        if self._fault is not None:
            raise self._fault
        self.committed.append([event.kind for event in events])


def store_over(journal: SlowJournal) -> GroupCommit:
    clock = LoopClock()
    clock.start(0.0)
    return GroupCommit(cast(RunJournal, journal), clock)


def test_what_is_noted_during_a_transaction_goes_into_the_next_one() -> None:
    journal = SlowJournal()
    durable: list[int] = []

    async def story() -> None:
        store = store_over(journal)
        store.on_durable = lambda transaction: durable.append(len(transaction.events))
        store.note("first", "")
        await asyncio.to_thread(journal.begun.wait, 60)
        for kind in ("second", "third"):
            store.note(kind, "")
        journal.let.set()
        await store.written()
        assert not store.is_busy
        await store.close()
        store.note("last", "")  # after the end: at once

    asyncio.run(story())
    assert journal.committed == [["first"], ["second", "third"], ["last"]]
    assert durable == [1, 2]


def test_who_waits_for_the_transaction_after_a_failed_one_hears_of_it() -> None:
    """The second of two callers once waited for ever."""
    journal = SlowJournal(ArithmeticError("of ours"))

    async def story() -> None:
        store = store_over(journal)
        store.note("first", "")
        first = asyncio.ensure_future(store.written())
        await asyncio.to_thread(journal.begun.wait, 60)
        second = asyncio.ensure_future(store.written())
        await asyncio.sleep(0)
        journal.let.set()
        for waiting in (first, second):
            with pytest.raises(BursarError, match="ArithmeticError: of ours"):
                await asyncio.wait_for(waiting, 60)
        await store.close()

    asyncio.run(story())


def test_an_empty_transaction_is_none() -> None:
    assert not EngineTransaction()
    assert EngineTransaction(withheld=[lambda: None])
