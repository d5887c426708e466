"""A run folder with a dispatcher and real workers in it."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import JournalState
from bursar.dispatch.spending_guard import SpendingGuard
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher, DispatchOptions
from bursar.model.campaign import Retry
from bursar.model.task import Outcome, Task
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar_devtools.unlimited_spending import UnlimitedSpending

AT_ONCE = Retry(attempts=3, backoff=0.0)


class Room:
    """A run folder; dispatchers come and go in it as a run's processes do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = f"test-{os.getpid()}-{path.name}"
        self.folders = RunPaths(
            root=path / "campaign", files=path / "files", work=path / "work", logs=path / "logs"
        )
        for folder in (path / "campaign", path / "files", path / "work", path / "logs"):
            folder.mkdir()
        self.open()
        self.told: list[tuple[Outcome, bool]] = []
        self.events: list[str] = []

    def open(self) -> None:
        """Takes the journal, as a process that carries out the run does."""
        self.journal = RunJournal(self.path / "journal.sqlite")

    def dispatcher(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        guard: SpendingGuard | None = None,
        retry: Retry = AT_ONCE,
        past: Sequence[Outcome] = (),
        **options: Any,
    ) -> Dispatcher:
        """One that writes this room's journal."""
        return Dispatcher(
            tasks,
            parents,
            journal=self.journal,
            guard=guard or UnlimitedSpending(),
            retry=retry,
            folders=self.folders,
            run=self.run,
            past=past,
            on_outcome=lambda record: self.told.append((record.outcome, record.final)),
            options=DispatchOptions(**options),
        )

    @asynccontextmanager
    async def running(
        self, dispatcher: Dispatcher, processors: int = 2, *, rigid: bool = False
    ) -> AsyncIterator[LocalWorkers]:
        """The dispatcher started, with workers on the way."""
        await dispatcher.start()
        workers = LocalWorkers(
            "local", "lease-1", processors, rigid=rigid, on_event=self.events.append
        )
        try:
            await workers.start(
                Endpoint(address=dispatcher.address, token=dispatcher.token, run=self.run)
            )
            yield workers
        finally:
            await dispatcher.close()
            await workers.release()

    def carry_out(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        processors: int = 2,
        guard: SpendingGuard | None = None,
        retry: Retry = AT_ONCE,
        past: Sequence[Outcome] = (),
        meanwhile: Callable[[Dispatcher, LocalWorkers], Awaitable[None]] | None = None,
        **options: Any,
    ) -> list[Outcome]:
        """Runs them all; what the journal then holds, by task and attempt."""

        async def run() -> None:
            dispatcher = self.dispatcher(
                tasks, parents, guard=guard, retry=retry, past=past, **options
            )
            rigid = any(task.processors > 1 for task in tasks)
            async with self.running(dispatcher, processors, rigid=rigid) as workers:
                if meanwhile is not None:
                    await meanwhile(dispatcher, workers)
                await dispatcher.wait()
            self.counts = dispatcher.figures.counts

        asyncio.run(run())
        return self.state.attempts

    @property
    def state(self) -> JournalState:
        """What the journal holds."""
        return self.journal.load()


@pytest.fixture
def room(tmp_path: Path) -> Room:
    """An empty one."""
    room = Room(tmp_path)
    yield room
    room.journal.close()


async def until(true: Callable[[], bool]) -> None:
    """Waits for something that processes bring about."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


@pytest.fixture(name="until")
def until_fixture() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """See :func:`until`."""
    return until
