"""
Ways to break the service on purpose, each of which the simulation of faults must notice.

A break changes one thing of the real code, as a slip might: an await left out, a check forgotten,
an index off by one.
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from bursar.dispatch.holding import Holding
from bursar.remote import messages as api
from bursar.service.desk.deal import Deal
from bursar.service.desk.desk import ServiceDesk
from bursar.service.desk.tallies import TALLY, Tallies, Tally
from bursar.service.engine.books import Books
from bursar.service.engine.dispatching import Dispatching
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.instance import Instance
from bursar.service.engine.recording import Recorder, Told
from bursar.service.engine.records import UNWANTED
from bursar.service.engine.restoring import Restoring
from bursar.service.journal import recovery
from bursar.service.journal.compaction import Compaction
from bursar.service.journal.segment import Segment
from bursar.service.journal.segmented import SegmentedJournal
from bursar.service.parties import ResultBatch


@dataclass(frozen=True, slots=True)
class Break:
    """
    A way to break it.

    Parameters
    ----------
    name
        What it does.
    apply
        Does it, as long as the patch lasts.
    first
        Seed from which on to look: one that noticed it when this was written, to save time.
    """

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    first: int = 0


def _acknowledges_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    async def durable(self: SegmentedJournal) -> None:
        self._commit_soon()
        await asyncio.sleep(0)

    patch.setattr(SegmentedJournal, "durable", durable)


def _accepts_a_torn_batch(patch: pytest.MonkeyPatch) -> None:
    real = recovery.batch_at

    def batch_at(data: memoryview, number: int, offset: int) -> tuple[int, int] | None:
        found = real(data, number, offset)
        if found is None:
            return None
        begin = offset + recovery.BATCH_HEAD
        return found[0], zlib.crc32(data[begin : begin + found[0]])

    patch.setattr(recovery, "batch_at", batch_at)


def _compaction_drops_what_lives(patch: pytest.MonkeyPatch) -> None:
    async def move_some(self: Compaction, segment: Segment, index: int) -> int:
        segment.kill(segment.offsets[index])
        return index + 1

    patch.setattr(Compaction, "_move_some", move_some)


def _forgets_keys_of_submissions(patch: pytest.MonkeyPatch) -> None:
    real = Restoring._fill

    def fill(self: Restoring, instance: Instance, gathered: Any) -> None:
        real(self, instance, gathered)
        instance.keys.clear()

    patch.setattr(Restoring, "_fill", fill)


def _takes_outcomes_for_recorded_at_once(patch: pytest.MonkeyPatch) -> None:
    real = Recorder.record

    def record(self: Recorder, endings: Sequence[Any], told: Told | None = None) -> None:
        if told is not None:
            told()
        real(self, endings)

    patch.setattr(Recorder, "record", record)


def _results_go_on_one_too_late(patch: pytest.MonkeyPatch) -> None:
    real = ServiceEngine.results

    async def results(
        self: ServiceEngine, user: str, handle: str, after: int, limit: int, wait: float
    ) -> ResultBatch:
        return await real(self, user, handle, after + (after > 0), limit, wait)

    patch.setattr(ServiceEngine, "results", results)


def _lost_workers_keep_their_tasks(patch: pytest.MonkeyPatch) -> None:
    def lose(self: Dispatching, seat: Any, claims: Sequence[Any], *, counts: bool) -> None:
        for claim in claims:
            self._scheduler.release(claim)

    patch.setattr(Dispatching, "_lose", lose)


def _workers_forget_what_was_said(patch: pytest.MonkeyPatch) -> None:
    def lost_connection(self: Holding) -> None:
        self._said.clear()
        self.unsaid_size = self.size = 0

    patch.setattr(Holding, "lost_connection", lost_connection)


def _a_new_life_gives_out_what_runs(patch: pytest.MonkeyPatch) -> None:
    real = ServiceEngine.open

    async def opened(self: ServiceEngine) -> None:
        await real(self)
        self.settle()

    patch.setattr(ServiceEngine, "open", opened)


def _restored_cancellations_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = Restoring.take

    def take(self: Restoring, kind: int, position: int, payload: bytes) -> None:
        if kind != UNWANTED:
            real(self, kind, position, payload)

    patch.setattr(Restoring, "take", take)


def _what_was_used_counts_twice_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    real = Tallies.restore

    def restore(self: Tallies, kind: int, position: int, payload: bytes) -> None:
        if kind == TALLY:
            tally = msgspec.msgpack.decode(payload, type=Tally)
            payload = msgspec.msgpack.encode(
                msgspec.structs.replace(tally, cost=2 * tally.cost, amount=2 * tally.amount)
            )
        real(self, kind, position, payload)

    patch.setattr(Tallies, "restore", restore)


def _deposits_count_each_time(patch: pytest.MonkeyPatch) -> None:
    real = ServiceDesk.deposit
    times = iter(range(10**9))

    def deposit(self: ServiceDesk, user: str, deposit: api.Deposit) -> api.AccountInfo:
        again = msgspec.structs.replace(deposit, key=f"{deposit.key}-{next(times)}")
        return real(self, user, again)

    patch.setattr(ServiceDesk, "deposit", deposit)


def _handles_are_good_for_everybody(patch: pytest.MonkeyPatch) -> None:
    real = Books.mine

    def mine(self: Books, user: str, handle: str) -> Instance:
        instance = self._by_handle.get(handle)
        return real(self, user if instance is None else instance.user, handle)

    patch.setattr(Books, "mine", mine)


def _agreements_end_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deal, "end", property(lambda deal: deal.agreement.terms.end + 60.0))


BREAKS = (
    Break("answers before it is durable", _acknowledges_before_it_is_durable, 1),
    Break("takes a torn batch of the journal for whole", _accepts_a_torn_batch, 1),
    Break("compaction drops records that live", _compaction_drops_what_lives, 6),
    Break("forgets keys of submissions in a crash", _forgets_keys_of_submissions),
    Break(
        "tells a worker that outcomes are recorded at once", _takes_outcomes_for_recorded_at_once, 1
    ),
    Break("goes on with results one too late", _results_go_on_one_too_late),
    Break("does not give back what a lost worker had", _lost_workers_keep_their_tasks, 3),
    Break("a worker forgets what it said before the break", _workers_forget_what_was_said),
    Break("a new life gives out tasks that still run", _a_new_life_gives_out_what_runs, 1),
    Break("forgets cancellations in a crash", _restored_cancellations_are_forgotten, 359),
    Break("counts shared use twice after a crash", _what_was_used_counts_twice_after_a_crash, 3),
    Break("a deposit counts each time it is asked for", _deposits_count_each_time, 1),
    Break("a handle is good for everybody", _handles_are_good_for_everybody),
    Break("lets agreements run for a minute too long", _agreements_end_late, 3),
)
