"""
Records of a run's journal, the time in which they are measured, and attempts that a kill cut off.

Within one incarnation of a run, journal time follows the loop's clock, which is monotonic: the
time of day is read once, at the start, and may be set back or put forward afterwards. From one
incarnation to the next, journal time never goes back behind what the journal has seen. A time of
day that is behind is not believed; one that is ahead makes the break between the incarnations look
longer, and nothing is charged for a break.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from bursar.model.money import Transfer
from bursar.model.task import Outcome, Status

if TYPE_CHECKING:  # commands that only read a journal begin sooner without it
    from asyncio import AbstractEventLoop

# Records of a run's journal (:mod:`bursar.dispatch.journal`), and attempts that a kill cut off.

REUSED_LEASE = "reused"
"""Name in place of a lease for a result that was taken from an earlier run."""

OUTRUN = "the other attempt of the task was faster"
"""Reason of an attempt that was stopped because another one, at the same time, had succeeded."""

KILLED_COPY = "the run was killed while this copy of another attempt ran"
"""Reason of a copy that a kill has cut off."""

FAILED_COPY = "the copy ended without success: "
"""Begin of the reason of a copy whose end says nothing of the task: another attempt decides."""

COPIED = "copy"
"""Kind of the events that name copies of tasks that took long."""

BOUGHT_FOR_COPY = "bought for copy"
"""Kind of the events that name leases which were bought for copies."""

HELD_SUCCESS = "held success"
"""Kind of the events that keep the success of a copy while the other attempt is being stopped."""

REUSED = "reused"
"""Kind of the events that name results taken from an earlier run."""

JournalSealState = Literal["valid", "foreign"]
"""Whether a journal is sealed by this user's key, or not: another user's, or nobody's."""


class AttemptRecord(msgspec.Struct, frozen=True):
    """
    A journalled outcome, with the place where the attempt ran.

    Parameters
    ----------
    final
        Whether the task has ended with this attempt.
    site
        Name of the site where the attempt ran.
    lease
        Name of the lease whose processors were used.
    """

    outcome: Outcome
    final: bool
    site: str
    lease: str

    @property
    def is_reused(self) -> bool:
        """Whether the result was taken from an earlier run, so that nothing ran here."""
        return self.lease == REUSED_LEASE

    @property
    def is_outrun(self) -> bool:
        """Whether the attempt says nothing of its task, as another one ran at the same time."""
        reason = self.outcome.reason
        if self.final or self.outcome.status is not Status.CANCELLED:
            return False
        return reason in (OUTRUN, KILLED_COPY) or reason.startswith(FAILED_COPY)


class CopyStart(msgspec.Struct, frozen=True):
    """
    The text of an event: a copy of a task that took long was handed to a worker.

    Parameters
    ----------
    attempt, of
        Numbers of the copy, and of the attempt that ran already.
    elapsed
        Seconds for which the other attempt had run.
    left, fresh
        Seconds that the other attempt was expected to take yet, and that the copy was.
    """

    task: int
    attempt: int
    of: int
    lease: str
    worker: str
    elapsed: float
    left: float
    fresh: float


class CopyPurchase(msgspec.Struct, frozen=True):
    """
    The text of an event: processors are asked for, on which a copy of a task is to run.

    Parameters
    ----------
    lease, site
        Name of their lease, and of its site.
    seconds
        Seconds after which they go back at the latest.
    odds, odds_with
        Probability of the deadline without the copy and with it; None: there is no deadline.
    end, end_with
        Expected end of the run without the copy and with it, seconds since the run's begin.
    """

    task: int
    lease: str
    site: str
    processors: int
    seconds: float
    odds: float | None
    odds_with: float | None
    end: float
    end_with: float


class ReusedResults(msgspec.Struct, frozen=True):
    """
    The text of an event: results that a run has taken from another.

    Parameters
    ----------
    run
        Name of the earlier run.
    tasks
        Number of each task, and the id of the earlier task whose result it has.
    """

    run: str
    tasks: list[tuple[int, str]]


class AttemptStart(NamedTuple):
    """
    An attempt that was handed to a worker.

    Parameters
    ----------
    task, attempt
        Numbers of the task and of the attempt, from 1.
    room
        Processors of the worker; 0: the attempt was given back and has not begun.
    time
        Seconds since the epoch.
    """

    task: int
    attempt: int
    site: str
    lease: str
    worker: str
    room: int
    processors: int
    time: float

    @classmethod
    def given_back(cls, task: int, attempt: int) -> "AttemptStart":
        """Return a record that withdraws a start, because the worker gave the task back unbegun."""
        return cls(task, attempt, "", "", "", 0, 1, 0.0)


class RunEvent(msgspec.Struct, frozen=True):
    """
    Something worth keeping that is neither an outcome nor money.

    Parameters
    ----------
    time
        Seconds since the epoch.
    kind
        One word: ``"lease"``, ``"message"``.
    text
        For people, or JSON where the kind says so.
    """

    time: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class JournalState:
    """
    All that a journal holds.

    Parameters
    ----------
    records
        Every attempt, by task and attempt.
    transfers
        Movements of money, in order.
    events
        In the order in which they were noted.
    last_seen
        Seconds since the epoch of the writer's last heartbeat; 0 when there is
        none.
    open_starts
        Attempts that were handed out and whose end is not known, in order of time.
    seal
        Whether and with which key the journal is sealed.
    """

    records: list[AttemptRecord]
    transfers: list[Transfer]
    events: list[RunEvent]
    last_seen: float = 0.0
    open_starts: Sequence[AttemptStart] = ()
    seal: JournalSealState = "valid"

    @property
    def attempts(self) -> list[Outcome]:
        """The outcome of every attempt."""
        return [record.outcome for record in self.records]

    @property
    def outcomes(self) -> list[Outcome]:
        """
        The last outcome of each task that has ended for good, by task.

        A task whose failures were forgotten has attempts past a final one: the
        last attempt decides. One that another attempt has outrun never does.
        """
        last = {r.outcome.task: r for r in self.records if not r.is_outrun}
        return [record.outcome for record in last.values() if record.final]


def copies_of(events: Iterable[RunEvent]) -> list[CopyStart]:
    """Return the copies that a run has made of tasks that took long, in order of time."""
    return [
        msgspec.json.decode(event.text, type=CopyStart) for event in events if event.kind == COPIED
    ]


def purchases_for_copies(events: Iterable[RunEvent]) -> dict[str, CopyPurchase]:
    """Return what a run has bought for copies, by lease."""
    texts = (event.text for event in events if event.kind == BOUGHT_FOR_COPY)
    found = [msgspec.json.decode(text, type=CopyPurchase) for text in texts]
    return {one.lease: one for one in found}


def last_numbers(journal: JournalState) -> dict[int, int]:
    """Return the highest number of an attempt that each task has had; empty without copies."""
    numbers: dict[int, int] = {}
    copies = copies_of(journal.events)
    for attempts in (journal.attempts, journal.open_starts, copies) if copies else ():
        for one in attempts:
            numbers[one.task] = max(one.attempt, numbers.get(one.task, 0))
    return numbers


def unjudged_tasks(journal: JournalState) -> set[int]:
    """Return the tasks whose last attempt failed while a copy ran, which a kill has ended."""
    copied = {copy.task for copy in copies_of(journal.events)}
    last = {r.outcome.task: r for r in journal.records if not r.is_outrun} if copied else {}
    return {task for task, record in last.items() if task in copied and not record.final}


def held_successes(journal: JournalState) -> list[AttemptRecord]:
    """
    Return the successes of copies that are durable, and of which nobody has decided yet.

    The other attempt of the task was being stopped when the process that wrote the journal was
    killed; until that attempt has ended nobody knows whose outputs are the task's.
    """
    told = [event.text for event in journal.events if event.kind == HELD_SUCCESS]
    if not told:
        return []
    decided = {(record.outcome.task, record.outcome.attempt) for record in journal.records}
    # Not by other ends: a task that was cancelled in one life may run again in the next.
    decided |= {(o.task, 0) for o in journal.outcomes if o.status is Status.SUCCEEDED}
    held = {}
    for text in told:
        record = msgspec.json.decode(text, type=AttemptRecord)
        task = record.outcome.task
        if not decided & {(task, record.outcome.attempt), (task, 0)}:
            held[task] = record
    return list(held.values())


def interrupted_attempts(journal: JournalState, since: float) -> list[AttemptRecord]:
    """
    Return the attempts that ran when the process that wrote a journal was killed.

    A worker runs what it was handed in the order of handing out, as far as it has processors:
    what is beyond that had not begun, and is no attempt.

    Parameters
    ----------
    since
        When that process began, seconds since the epoch: what an earlier one had handed out, and
        left without an end, had never begun.
    """
    used: dict[str, int] = {}
    last_end: dict[str, float] = {}
    copies = {(copy.task, copy.attempt) for copy in copies_of(journal.events)}
    ended = {(held.outcome.task, held.outcome.attempt) for held in held_successes(journal)}
    for record in journal.records:
        last_end[record.lease] = max(last_end.get(record.lease, 0.0), record.outcome.end)
    found = []
    for start in journal.open_starts:
        # A worker begins jobs in the order of handing out: beyond its processors they only waited
        # there, and what only waits is not billed.
        busy = used.get(start.worker, 0) + start.processors
        # Tasks of an earlier life that had only waited once passed for attempts of a second killed
        # one (kill -9, 1 of 489 rounds): they were said to run on a lease that had ended.
        if (start.task, start.attempt) in ended:
            continue
        if start.time < since or busy > start.room:
            continue
        used[start.worker] = busy
        # The run is known to have lived until then, and no longer.
        end = max(journal.last_seen, start.time)
        outcome = Outcome(
            task=start.task,
            attempt=start.attempt,
            status=Status.CANCELLED,
            # What was handed out ahead of time begins when another attempt there ends, not when it
            # was handed out.
            start=min(max(start.time, last_end.get(start.lease, 0.0)), end),
            end=end,
            reason=KILLED_COPY if (start.task, start.attempt) in copies else "the run was killed",
        )
        found.append(AttemptRecord(outcome, False, start.site, start.lease))
    return found


def transfer_to_bytes(transfer: Transfer) -> bytes:
    """
    Encode a movement of money for the journal, which numbers its rows itself.

    A run's movements need no key: they are in the transaction of what caused them.
    """
    # The names that journals have used from the first: "lease" where a ledger says "agreement".
    fields: dict[str, Any] = {
        "time": transfer.time,
        "source": transfer.source,
        "target": transfer.target,
        "amount": transfer.amount,
        "kind": transfer.kind,
    }
    if transfer.agreement:
        fields["lease"] = transfer.agreement
    if transfer.memo:
        fields["memo"] = transfer.memo
    return msgspec.msgpack.encode(fields)


def transfer_from_bytes(number: int, data: bytes) -> Transfer:
    """
    Decode the movement of money in the row with a number.

    Raises
    ------
    msgspec.MsgspecError
        When the bytes are no such record.
    """
    fields = _FIELDS.decode(data)
    fields["agreement"] = fields.pop("lease", "")
    return msgspec.convert({"number": number, "key": "", **fields}, Transfer)


_FIELDS = msgspec.msgpack.Decoder(dict[str, Any])


# The time of a run's journal, mapped from a loop's clock: all spans and charges are measured in it.


def epoch_of(loop: "AbstractEventLoop", last_seen: float = 0.0) -> float:
    """
    Return what the loop's time 0 is, seconds since the epoch.

    A loop whose time is not that of the day says so by an attribute ``epoch``.

    Parameters
    ----------
    last_seen
        Latest time in the journal, seconds since the epoch: the present is not before it.
    """
    epoch: float | None = getattr(loop, "epoch", None)
    if epoch is None:
        epoch = time.time() - loop.time()
    return max(epoch, last_seen - loop.time())
