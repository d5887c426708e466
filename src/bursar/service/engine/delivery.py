"""Delivery of results to clients, from memory or from the journal."""

import asyncio
import contextlib
from collections.abc import Sequence

from bursar.service.engine.counters import TaskCounters
from bursar.service.engine.instance import Instance
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.results import RecordedResults, decode_result_lines
from bursar.service.interfaces import ResultBatch
from bursar.store import RecordStore

MOST_BYTES = 1 << 20
"""Bytes of results after which an answer is not extended any more."""


class ResultDelivery:
    """Answers requests for results."""

    def __init__(
        self,
        *,
        index: InstanceIndex,
        journal: RecordStore,
        counters: TaskCounters,
    ) -> None:
        self._index = index
        self._journal = journal
        self._counters = counters
        self._last: tuple[RecordedResults, Sequence[bytes]] | None = None  # that was read

    async def results(
        self, user: str, handle: str, after: int, limit: int, wait: float
    ) -> ResultBatch:
        """Return results after a cursor; see :meth:`.engine.ServiceEngine.results`."""
        instance = self._index.mine(user, handle)
        results = instance.results
        # An instance that is over gets no more results: its client is told at once.
        if wait > 0 and results.last <= after and not instance.is_over:
            await self._wait(instance, after, wait)
        lines: list[bytes] = []
        cursor, size = max(after, results.forgotten), 0
        # Each round may await the journal; the instance is looked up, and the cursor moved past
        # what was forgotten, anew each time.
        while len(lines) < limit and size < MOST_BYTES:
            self._index.mine(user, handle)  # it may have been destroyed meanwhile
            cursor = max(cursor, results.forgotten)
            batch = results.find(cursor)
            if batch is None:
                break
            found = batch.lines or await self._read(batch)
            if found is None:
                continue  # it was forgotten meanwhile
            for line in found[cursor + 1 - batch.first :]:
                lines.append(line)
                cursor += 1
                size += len(line)
                if len(lines) >= limit or size >= MOST_BYTES:
                    break
        self._counters.delivered += len(lines)
        # Read after the last await: the last task may have ended while the journal was read.
        done = instance.is_over and cursor >= results.last
        return ResultBatch(lines=lines, next=cursor, done=done)

    async def _wait(self, instance: Instance, after: int, seconds: float) -> None:
        results = instance.results
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while results.last <= after and not instance.is_over and not instance.destroyed:
                    await instance.changed()

    async def _read(self, batch: RecordedResults) -> Sequence[bytes] | None:
        """Read the lines of a batch from the journal; None: the record was killed meanwhile."""
        if self._last is not None and self._last[0] is batch:
            return self._last[1]
        try:
            payload = await self._journal.read(batch.position)
        except KeyError:  # forgotten, or destroyed with its instance, while the read waited
            return None
        lines = decode_result_lines(payload)
        # Clients page through old results in order, with several answers to a record: the last
        # record stays decoded.
        self._last = batch, lines
        return lines
