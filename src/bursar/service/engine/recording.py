"""
Recording of results, each once.

All that ended while the last records were made durable goes into the next ones: one sync for
many, the more the faster tasks end. While more tasks of an instance wait to start, its results
wait for others, too, for a moment: each record costs a sync, a frame to each worker and one to
each client that listens. Nobody hears of an end before it is durable: neither the client nor the
worker, which keeps the outcome until then.
"""

import asyncio
import contextlib
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import msgspec

from bursar.engine.attempt_ends import AttemptEnd, attempts_failed
from bursar.engine.attendance import OnDurable
from bursar.model.task import Outcome, Status
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.engine.instance import Instance
from bursar.service.engine.records import ENDED, LOST, ResultsRecorded, encode_states
from bursar.service.engine.results import (
    RecentResults,
    RecordedResults,
    encode_result_line,
    has_log,
)
from bursar.service.interfaces import (
    Clock,
    ServiceError,
    is_shared,
)
from bursar.store import RecordStore
from bursar.supervisor import TaskSupervisor

MOST = 4096
"""Results recorded together, about, and results in one record, at most."""

LARGEST = 16 << 20
"""Approximate number of bytes of results in one record, at most."""

_LINE = 512
"""Approximate number of bytes of a result without its output and label."""

RECORDING_INTERVAL = 0.05
"""Seconds between two records, at least, of instances that have tasks waiting."""

AGAIN = 1.0
"""Seconds after which a full disk is tried again."""

_encode = msgspec.msgpack.Encoder().encode


TaskEnd = AttemptEnd[Instance]
"""The end of an attempt at a task of an instance; or of a task that no worker has."""


def end_without_worker(
    instance: Instance, task: int, state: int, now: float, reason: str
) -> TaskEnd:
    """
    Return the end of a task that no worker has, with nothing to charge.

    Attempt 0 stands for no attempt; ``now`` is in seconds since the epoch.
    """
    outcome = Outcome(
        task=instance.base | task,
        attempt=0,
        status=Status.CANCELLED,
        start=now,
        end=now,
        reason=reason,
    )
    attempts = attempts_failed(instance.tasks, task)
    return AttemptEnd(outcome, True, "", "", instance, task, state, attempts, "", 0)


WrittenResults = tuple[Instance, RecordedResults, list[TaskEnd], dict[int, int]]


class ResultRecorder:
    """
    Writes results and their charges to the journal in common batches.

    Parameters
    ----------
    on_recorded
        Called with an instance, the new batch of results, the endings in it, and, by task, the
        serials of attempts whose long streams are in files; all of this is durable.
    on_noted
        Called with attempts after which tasks of an instance run again; all are durable.
    on_fault
        Called with an internal error.
    """

    def __init__(
        self,
        *,
        journal: RecordStore,
        billing: PoolAdmission,
        clock: Clock,
        recent: RecentResults,
        on_recorded: Callable[[Instance, RecordedResults, Sequence[TaskEnd], dict[int, int]], None],
        on_noted: Callable[[Sequence[TaskEnd]], None],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._billing = billing
        self._clock = clock
        self._recent = recent
        self._on_recorded = on_recorded
        self._on_noted = on_noted
        self._on_fault = on_fault
        self._queue: deque[tuple[Sequence[TaskEnd], OnDurable | None]] = deque()
        self._tasks = TaskSupervisor(on_fault)  # one at the most
        self._queued = 0
        self._urgent = asyncio.Event()
        self._next = 0.0  # on the loop's clock: when those that can wait are written

    def record(self, endings: Sequence[TaskEnd], on_durable: OnDurable | None = None) -> None:
        """Record ends of tasks; call ``on_durable`` once these and all earlier ones are durable."""
        self._queue.append((endings, on_durable))
        self._queued += len(endings)
        # Urgent is what may be the last result for a while: no more tasks of the instance wait to
        # start, so a client may be waiting for exactly this one.
        if self._queued >= MOST or not all(
            tasks.ready for tasks in {e.instance.tasks for e in endings}
        ):
            self._urgent.set()
        # One writer at the most: what ends while it waits for the disk is queued, and goes into
        # the next record. So the batches grow with the rate of endings.
        if self._tasks.is_idle:
            self._tasks.start(self._run(), "result recording")

    async def settle(self) -> None:
        """Wait until all recorded endings are durable, or the journal has failed."""
        self._urgent.set()
        await self._tasks.wait()

    def stop(self) -> None:
        """Stop recording."""
        self._tasks.cancel()

    async def close(self) -> None:
        """Stop recording for good, and wait until the last write is over."""
        await self._tasks.close()

    async def _run(self) -> None:
        while self._queue:
            await self._wait_for_others()
            endings: list[TaskEnd] = []
            callbacks: list[OnDurable] = []
            while self._queue and len(endings) < MOST:
                some, callback = self._queue.popleft()
                endings.extend(some)
                if callback is not None:
                    callbacks.append(callback)
            self._queued -= len(endings)
            # A full batch was taken, and more is left: there is nothing to wait for.
            if self._queue:
                self._urgent.set()
            try:
                # On False the journal is broken for good. No callback is called: workers keep
                # their outcomes and say them to the next life.
                if endings and not await self._write(endings):
                    return
                for callback in callbacks:
                    callback()
            except Exception as error:
                self._on_fault(error)
                return

    async def _wait_for_others(self) -> None:
        """Wait for more results until the next write is due, unless a result is urgent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._next):
                await self._urgent.wait()
        self._urgent.clear()
        # Counted from the last write and not from the first ending: a result after a quiet time is
        # written at once.
        self._next = asyncio.get_running_loop().time() + RECORDING_INTERVAL

    async def _write(self, endings: Sequence[TaskEnd]) -> bool:
        by_instance: dict[int, list[TaskEnd]] = defaultdict(list)
        only_charged: dict[int, list[TaskEnd]] = defaultdict(list)
        for ending in endings:
            # Work of an instance that was destroyed while it ran is paid for all the same, else
            # destroying would make it free.
            charged = ending.instance.destroyed or not ending.final
            which = only_charged if charged else by_instance
            which[ending.instance.number].append(ending)
        for some in only_charged.values():
            self._note(some)
            self._charge(some)
        written: list[WrittenResults] = []
        now = self._clock()
        for some in by_instance.values():
            for piece in _pieces(some):
                written.append(self._append(piece[0].instance, piece, now, written))
        # Nothing is awaited from the first of them to here: they are durable all or none.
        if (written or only_charged) and not await self.durable():
            return False
        for instance, batch, piece, logs in written:
            if instance.destroyed:  # meanwhile
                self._journal.kill(batch.position)
                continue
            # Only durable results are shown: one that was read and then lost in a crash could come
            # back as another, under the same cursor.
            self._recent.add(batch)
            self._on_recorded(instance, batch, piece, logs)
        for some in only_charged.values():
            if not some[0].instance.destroyed:
                self._on_noted(some)
        return True

    def _append(
        self,
        instance: Instance,
        endings: list[TaskEnd],
        now: float,
        before: Sequence[WrittenResults],
    ) -> WrittenResults:
        """
        Append one record with results of an instance, and charge for the tasks.

        Nothing is durable yet, and no reader sees the results before it is.

        Parameters
        ----------
        now
            Time noted as that of the results, seconds since the epoch.
        before
            What the same round has appended so far, for any instance.
        """
        last = instance.results.last
        # An instance whose results take several records: the cursors go on from the record before,
        # which is not yet in instance.results.
        if before and before[-1][0] is instance:
            last = before[-1][1].last
        labels = instance.tasks.labels
        lines = [
            encode_result_line(
                last + 1 + i, e.task, e.state, e.attempts, labels.get(e.task, ""), e.host, e.outcome
            )
            for i, e in enumerate(endings)
        ]
        tasks = array("I", [e.task for e in endings])
        logs = {e.task: e.outcome.attempt for e in endings if has_log(e.outcome)}
        record = ResultsRecorded(
            instance.number,
            last + 1,
            now,
            tasks.tobytes(),
            encode_states([e.state for e in endings]),
            lines,
            logs,
        )
        # Result and charge without an await in between: they are in one batch of the journal, so
        # that neither survives a crash without the other and nothing is charged twice.
        position = self._journal.append(ENDED, _encode(record), essential=True)
        self._charge(endings)
        size = sum(map(len, lines))
        batch = RecordedResults(last + 1, len(lines), now, tasks, position, size, lines)
        return instance, batch, endings, logs

    def _note(self, endings: Sequence[TaskEnd]) -> None:
        """Append the attempts so far of tasks that run again, in one batch with their charges."""
        for ending in endings:
            instance, task = ending.instance, ending.task
            if ending.final or instance.destroyed:
                continue
            before = instance.lost.get(task)
            # Essential: a full disk must not undo a loss. The new record is appended before the
            # old one is killed, in one batch with it, so one of them is always there.
            note = _encode(instance.tasks.note_attempts(instance.number, task))
            instance.lost[task] = self._journal.append(LOST, note, essential=True)
            if before is not None:
                self._journal.kill(before)

    def _charge(self, endings: Sequence[TaskEnd]) -> None:
        """Charge the usage of tasks of one instance, destroyed or not."""
        instance = endings[0].instance
        # Under an agreement the processors are paid while they are ready, not by the task.
        if not is_shared(instance.pool):
            return
        cost = sum([(e.outcome.end - e.outcome.start) * e.processors for e in endings])
        if cost:
            self._billing.used(instance.pool, instance.user, instance.handle, 1, cost)

    async def durable(self) -> bool:
        """Wait until all appended records are durable, and the disk has room; False if never."""
        while True:
            try:
                await self._journal.durable()
            except ServiceError as error:
                # A full disk is waited out: the batch stays in the journal's memory and is written
                # when there is room. Any other error is final.
                if error.status != 507:
                    return False
                await asyncio.sleep(AGAIN)
            else:
                return True


def _pieces(endings: list[TaskEnd]) -> list[list[TaskEnd]]:
    """Cut endings of an instance into pieces for one record each, none too large or too long."""
    pieces: list[list[TaskEnd]] = [[]]
    labels = endings[0].instance.tasks.labels
    piece, size = pieces[0], 0
    for ending in endings:
        outcome = ending.outcome
        more = len(outcome.stdout) + len(outcome.stderr) + len(outcome.value) + len(outcome.sealed)
        more += _LINE
        if labels:
            more += len(labels.get(ending.task, ""))
        if (size + more > LARGEST or len(piece) >= MOST) and piece:
            piece, size = [], 0
            pieces.append(piece)
        piece.append(ending)
        size += more
    return pieces
