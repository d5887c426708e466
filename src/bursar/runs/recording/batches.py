"""Records beside a run's journal: durable ends of attempts, written in batches by a thread."""

import asyncio
import threading
from collections.abc import Callable, Sequence

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BursarError

PAUSE = 0.5
"""Seconds for which ends are gathered before they are recorded together."""


class RecordBatches:
    """
    Gathers ends of attempts, and has them recorded off the event loop.

    Parameters
    ----------
    write
        Called in a thread with the ends noted since the last call, at least one, never twice at
        once. After a cancelled wait some of them may be passed once more.
    give_up
        Called in the loop with the error of ``write`` that ends the recording; the run goes on.
    """

    def __init__(
        self,
        write: Callable[[Sequence[AttemptRecord]], None],
        give_up: Callable[[BursarError], None],
    ) -> None:
        self._write = write
        self._give_up = give_up
        self._waiting: list[AttemptRecord] = []
        self._woken = asyncio.Event()
        self._writing = threading.Lock()
        self.is_open = True
        """Whether ends are recorded; False after an error."""

    def add(self, record: AttemptRecord) -> None:
        """Note an attempt whose end is durable."""
        if self.is_open:
            self._waiting.append(record)
            self._woken.set()

    def close(self) -> None:
        """Record nothing any more."""
        self.is_open = False
        self._waiting = []

    async def watch(self) -> None:
        """Record what is noted until cancelled."""
        while True:
            await self._woken.wait()
            # Together: a transaction, and a look at each file that many tasks share, cost the same
            # for one end as for many.
            await asyncio.sleep(PAUSE)
            self._woken.clear()
            await self.flush()

    async def flush(self) -> None:
        """Record all that was noted so far, and wait for a record that is being made."""
        if not self.is_open:
            return
        batch, self._waiting = self._waiting, []
        try:
            await asyncio.to_thread(self._flush, batch)
        except asyncio.CancelledError:
            # The thread may never have begun: the last flush records them, perhaps once more.
            self._waiting = batch + self._waiting
            raise
        except BursarError as error:
            if self.is_open:
                self.close()
                self._give_up(error)

    def _flush(self, batch: Sequence[AttemptRecord]) -> None:
        # A cancelled call goes on in its thread.
        with self._writing:
            if batch:
                self._write(batch)
