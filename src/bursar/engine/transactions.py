"""The journal's transactions: what is noted while one is written goes into the next."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord, AttemptStart, RunEvent
from bursar.engine.loop_clock import EngineClock
from bursar.model.errors import BursarError
from bursar.model.money import Transfer

_FULL = (
    "the disk is full: nothing new is started, and what runs is recorded; "
    "resume the run when there is room"
)


@dataclass(slots=True)
class EngineTransaction:
    """
    The content of one transaction, and what waits until the transaction is durable.

    Parameters
    ----------
    records, transfers, events, starts
        What is journalled.
    withheld
        Called in order once the transaction is durable: orders to workers that must not be
        carried out before.
    waiting
        Futures of callers that wait for the transaction.
    """

    records: list[AttemptRecord] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    starts: list[AttemptStart] = field(default_factory=list)
    withheld: list[Callable[[], None]] = field(default_factory=list)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        durable = self.records or self.transfers or self.events or self.starts
        return bool(durable or self.withheld or self.waiting)


class TransactionStore(Protocol):
    """
    Makes what the engine of a run has decided durable, a transaction at a time.

    Attributes
    ----------
    pending
        The next transaction, to which the engine appends.
    fault
        Why nothing can be journalled any more; None while all is well.
    """

    pending: EngineTransaction
    fault: BursarError | None

    def commit_soon(self) -> None:
        """Write the pending transaction once the present one is durable."""

    def fail(self, error: BaseException) -> None:
        """Journal nothing any more: the engine has met a fault."""


class GroupCommit:
    """
    Writes transactions of a run's journal, one at a time, in a thread of its own.

    Parameters
    ----------
    journal
        Journal of the run.
    clock
        Tells the journal's time.

    Attributes
    ----------
    on_durable
        Called with each transaction that has become durable.
    on_full
        Called with one line when the disk was full: what runs is still recorded, and nothing new
        should begin.
    on_change
        Called after each transaction, and when writing has failed.
    """

    def __init__(self, journal: RunJournal, clock: EngineClock) -> None:
        self._journal = journal
        self._clock = clock
        self.on_durable: Callable[[EngineTransaction], None] = lambda transaction: None
        self.on_full: Callable[[str], None] = lambda reason: None
        self.on_change: Callable[[], None] = lambda: None
        # One thread: transactions and heartbeats reach SQLite in the order in which they were
        # handed in.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bursar-journal")
        self.pending = EngineTransaction()
        self.fault: BursarError | None = None
        self._is_committing = False
        self._beats = True
        self._is_closed = False
        self._was_full = False

    def note(self, kind: str, text: str, transfers: Sequence[Transfer] = ()) -> None:
        """Journal an event of now, with the movements of money that belong to the event."""
        self.pending.events.append(RunEvent(self._clock.now(), kind, text))
        self.post(transfers)

    def post(self, transfers: Sequence[Transfer]) -> None:
        """Journal movements of money."""
        self.pending.transfers.extend(transfers)
        self.commit_soon()

    async def written(self) -> None:
        """
        Wait until all that was noted and posted so far is durable.

        Raises
        ------
        BursarError
            When the journal cannot be written.
        """
        if self.fault is not None:
            raise self.fault
        if self._is_closed or not self.is_busy:
            return
        durable = asyncio.get_running_loop().create_future()
        # Even if a commit is under way: what was noted last goes with the next one.
        self.pending.waiting.append(durable)
        self.commit_soon()
        await durable

    def beat(self) -> None:
        """Write a heartbeat to the journal."""
        # After close() the writer's thread has ended.
        if self._beats:
            loop = asyncio.get_running_loop()
            beat = loop.run_in_executor(self._writer, self._journal.beat, self._clock.now())
            beat.add_done_callback(self._on_beat)

    def _on_beat(self, beat: "asyncio.Future[None]") -> None:
        error = None if beat.cancelled() else beat.exception()
        if error is not None:
            self.fail(error)

    @property
    def is_busy(self) -> bool:
        """Whether something is not durable yet."""
        return self._is_committing or bool(self.pending)

    def commit_soon(self) -> None:
        """Write the pending transaction once the present one is durable."""
        if self._is_committing or self.fault is not None:
            return
        if self._is_closed:  # what is noted of the end of what outlives the engine
            last, self.pending = self.pending, EngineTransaction()
            self._journal.commit(last.records, last.transfers, last.events, last.starts)
            return
        # One transaction at a time: what comes meanwhile gathers for the next, so that a slow disk
        # makes transactions larger and not a queue of them.
        self._is_committing = True
        self._clock.soon(self._commit)

    def fail(self, error: BaseException) -> None:
        """Journal nothing any more: the engine has met a fault."""
        if self.fault is None:
            self.fault = (
                error
                if isinstance(error, BursarError)
                else BursarError(f"the dispatcher stopped: {type(error).__name__}: {error}")
            )
            if error is not self.fault:
                self.fault.__cause__ = error
        self._raise_in(self.pending)
        self.on_change()

    async def flush(self) -> None:
        """Wait until nothing is left to be journalled, or the journal cannot be written."""
        while self.is_busy and self.fault is None:
            with contextlib.suppress(BursarError):
                await self.written()

    async def close(self) -> None:
        """Write the rest, and end the writer's thread; later notes are written at once."""
        self._beats = False
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, lambda: None)  # a beat may be under way
        await self.flush()
        self._is_closed = True
        self._writer.shutdown()  # has nothing to do any more: returns at once

    def _commit(self) -> None:
        transaction, self.pending = self.pending, EngineTransaction()
        loop = asyncio.get_running_loop()
        try:
            done = loop.run_in_executor(
                self._writer,
                self._journal.commit,
                transaction.records,
                transaction.transfers,
                transaction.events,
                transaction.starts,
            )
        except RuntimeError as error:  # no thread to be had: the error would be lost
            done = loop.create_future()
            done.set_exception(error)
        if done.done():  # at once, on a loop whose time is not real: before anything is given out
            self._on_committed(transaction, done)
        else:
            done.add_done_callback(lambda future: self._on_committed(transaction, future))

    def _on_committed(self, transaction: EngineTransaction, future: "asyncio.Future[None]") -> None:
        self._is_committing = False
        error = future.exception()
        if error is not None:
            self.fail(error)
            self._raise_in(transaction)
            return
        for waiter in transaction.waiting:
            if not waiter.done():
                waiter.set_result(None)
        if self._journal.is_full and not self._was_full:
            self._was_full = True
            # Before what is durable is told, which has tasks begin.
            self.on_full(_FULL)
        try:
            self.on_durable(transaction)
        except Exception as failure:  # in a callback of the loop nobody else would hear of it
            self.fail(failure)
        if self.pending:
            self.commit_soon()
        self.on_change()

    def _raise_in(self, transaction: EngineTransaction) -> None:
        """Raise the fault in the callers that wait for a transaction."""
        for waiter in transaction.waiting:
            if not waiter.done() and self.fault is not None:
                waiter.set_exception(self.fault)
