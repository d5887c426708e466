"""Jobs on their way to an instance: whose faults are whose, and how they are cancelled there."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

from bursar.dispatch.wire import OutputPiece, OutputQuery, Welcome, WireJob
from bursar.model.errors import InputError
from bursar.model.task import Outcome, Status
from bursar.remote.async_client import AsyncSession
from bursar.remote.messages import Result, TaskSpec
from bursar.remote.output_messages import RunningOutput, StreamPart
from bursar.sites.remote.remote_executor import RemoteJobExecutor
from bursar.sites.remote.remote_files import InstanceFileIndex, RemoteInstanceFiles


class Session:
    """An instance whose tasks never end."""

    handle = "h"

    def __init__(self) -> None:
        self.submitted = asyncio.Event()
        self.cancelled: asyncio.Queue[tuple[Sequence[int], float | None]] = asyncio.Queue()
        self._count = 0

    async def submit(self, tasks: Sequence[TaskSpec]) -> Sequence[int]:
        self.submitted.set()
        first, self._count = self._count, self._count + len(tasks)
        return range(first, self._count)

    async def cancel(self, numbers: Sequence[int], *, grace: float | None = None) -> int:
        self.cancelled.put_nowait((list(numbers), grace))
        return len(numbers)

    async def batches(self, **_: Any) -> AsyncGenerator[list[Result], None]:
        await asyncio.Event().wait()
        yield []


def test_a_task_has_as_long_to_end_as_it_would_have_here() -> None:
    async def work() -> None:
        session = Session()
        told: list[Outcome] = []
        lost: list[str] = []
        executor = RemoteJobExecutor(
            cast(AsyncSession, session),
            InstanceFileIndex(),
            report=told.extend,
            hand_back=pytest.fail,
            on_lost=lost.append,
        )
        executor.welcome(Welcome("run", "/nowhere", "/nowhere", "/nowhere", "/nowhere", 1))
        executor.execute(
            [WireJob(task=1, attempt=1, processors=1, limit=0.0, folder="1", steps=())]
        )
        await session.submitted.wait()
        await asyncio.sleep(0)  # it has its number
        executor.cancel([1], 7.5, "not wanted")
        assert await session.cancelled.get() == ([0], 7.5)
        await executor.stop()
        assert told == []
        assert lost == []

    asyncio.run(work())


def test_a_file_that_goes_meanwhile_fails_its_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were to be submitted with it are."""

    async def send(files: RemoteInstanceFiles, jobs: Sequence[WireJob]) -> dict[int, str]:
        if any(job.task == 2 for job in jobs):
            raise InputError("cannot read it", where="in")
        return {}

    async def work() -> None:
        monkeypatch.setattr(RemoteInstanceFiles, "send", send)
        session = Session()
        told: list[Outcome] = []
        executor = RemoteJobExecutor(
            cast(AsyncSession, session),
            InstanceFileIndex(),
            report=told.extend,
            hand_back=pytest.fail,
            on_lost=pytest.fail,
        )
        executor.welcome(Welcome("run", "/nowhere", "/nowhere", "/nowhere", "/nowhere", 1))
        executor.execute(
            [
                WireJob(task=task, attempt=1, processors=1, limit=0.0, folder="", steps=())
                for task in (1, 2, 3)
            ]
        )
        async with asyncio.timeout(10.0):
            await session.submitted.wait()
        await executor.stop()
        assert [(outcome.task, outcome.status) for outcome in told] == [(2, Status.FAILED)]

    asyncio.run(work())


class Shows:
    """A client of a service that shows what ten bytes of a running task are."""

    def __init__(self, *, sealed: bool = False, fails: bool = False, start: float = 5.0) -> None:
        self.sealed, self.fails, self.start = sealed, fails, start
        self.asked: list[tuple[int, tuple[int, int]]] = []

    async def running_output(
        self, handle: str, task: int, serial: int, offsets: tuple[int, int]
    ) -> RunningOutput:
        self.asked.append((serial, offsets))
        if self.fails:
            raise OSError("it has gone")
        if self.sealed:
            return RunningOutput(task, "running", serial=7, sealed=True)
        first = offsets[0] if serial == 7 else min(offsets[0], 0)
        first = max(0, 10 + first) if first < 0 else first
        part = StreamPart(first, 10, text="0123456789"[first:])
        return RunningOutput(task, "running", serial=7, shown=True, stdout=part, start=self.start)


@pytest.mark.parametrize(
    ("client", "offset", "expected"),
    [
        (Shows(), 0, OutputPiece(3, 5.0, 0, 10, b"0123")),
        (Shows(), 8, OutputPiece(3, 5.0, 8, 10, b"89")),
        (Shows(), -3, OutputPiece(3, 5.0, 7, 10, b"789")),
        (Shows(fails=True), 0, None),
        (Shows(start=0.0), 0, None),
    ],
)
def test_output_is_asked_of_the_service(
    client: Shows, offset: int, expected: OutputPiece | None
) -> None:
    """From the byte on that is wanted, whoever served its begin; a failed question ends no job."""
    assert asyncio.run(_asked(client, offset)) == expected


def test_sealed_output_is_told_apart() -> None:
    """So that people hear why nothing is shown."""
    piece = asyncio.run(_asked(Shows(sealed=True), 0))
    assert piece is not None
    assert piece.is_sealed
    assert piece.content == b""


async def _asked(client: Shows, offset: int) -> OutputPiece | None:
    """Ask before a job is there and after; return what came."""
    session, lost = Session(), list[str]()
    session.client = client  # type: ignore[attr-defined]
    executor = RemoteJobExecutor(
        cast(AsyncSession, session),
        InstanceFileIndex(),
        report=pytest.fail,
        hand_back=pytest.fail,
        on_lost=lost.append,
    )
    executor.welcome(Welcome("run", "/nowhere", "/nowhere", "/nowhere", "/nowhere", 1))
    came: asyncio.Queue[OutputPiece | None] = asyncio.Queue()
    query = OutputQuery(3, 1, 1, 0, offset, 4)
    executor.show_output(query, came.put_nowait)
    assert await came.get() == OutputPiece(3)
    executor.execute([WireJob(task=1, attempt=1, processors=1, limit=0.0, folder="1", steps=())])
    await session.submitted.wait()
    await asyncio.sleep(0)
    executor.show_output(query, came.put_nowait)
    piece = await came.get()
    await executor.stop()
    assert not lost
    return piece
