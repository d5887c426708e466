"""A dispatcher of few words, for tests that hold a real worker against it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bursar.dispatch.wire import (
    MAX_PIECE,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    JobAssignment,
    LeaveRequest,
    OutcomeAck,
    OutcomeReport,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.task import Outcome, Shell
from bursar.worker.dispatcher_connection import WorkerSettings


class Server:
    """
    It says what a test wants said, and notes what it hears.

    Attributes
    ----------
    hellos
        All that were said.
    heard
        Outcomes as they came, repetitions and all.
    results
        The first of each task.
    returned
        Jobs of each answer to being asked for jobs back, or of one sent unasked.
    gives_again
        Whether what was returned is given again as soon as a job has ended.
    """

    def __init__(self, folder: Path, outlives: float = 20.0) -> None:
        self.folder = folder
        self.outlives = outlives
        self.records = True
        self.largest_value = MAX_PIECE
        self.port = 0
        self.hellos: list[Hello] = []
        self.heard: list[Outcome] = []
        self.results: dict[int, Outcome] = {}
        self.goodbyes: list[LeaveRequest] = []
        self.returned: list[list[tuple[int, int]]] = []
        self.gives_again = True
        self._given: dict[tuple[int, int], WireJob] = {}
        self._again: list[WireJob] = []
        self.cut_after: Callable[[], int] | None = None  # frames
        self.on_hello: Callable[[Hello], None] = lambda hello: None
        self.on_results: Callable[[], None] = lambda: None
        self.writer: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        for name in ("files", "work", "logs"):
            (folder / name).mkdir(exist_ok=True)

    async def open(self) -> None:
        """Listens, on the port that it had."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """It is killed."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """The connection breaks."""
        if self.writer is not None:
            self.writer.transport.abort()
            self.writer = None

    def say(self, *messages: FromServer) -> None:
        """To the worker that is there."""
        assert self.writer is not None
        self.writer.write(b"".join(frame(message) for message in messages))

    def give(self, *jobs: WireJob) -> None:
        """Work to do."""
        self._given |= {(job.task, job.attempt): job for job in jobs}
        self.say(JobAssignment([msgspec.Raw(msgspec.msgpack.encode(job)) for job in jobs]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, decoder = FrameDecoder(), msgspec.msgpack.Decoder(FromWorker)
        left = self.cut_after() if self.cut_after else -1
        while data := await self._read(reader):
            for body in frames.feed(data):
                if left == 0:
                    writer.transport.abort()
                    return
                left -= 1
                self._hear(decoder.decode(body), writer)
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(1 << 16)
        except ConnectionError:
            return b""

    def _hear(self, message: FromWorker, writer: asyncio.StreamWriter) -> None:
        match message:
            case Hello():
                self.writer = writer
                self.hellos.append(message)
                folder = str(self.folder)
                names = (f"{folder}/{name}" for name in ("files", "work", "logs"))
                self.say(
                    Welcome("test-run", folder, *names, 65536, self.outlives, self.largest_value)
                )
                self.on_hello(message)
            case OutcomeReport(outcomes):
                for outcome in outcomes:
                    self.heard.append(outcome)
                    self.results.setdefault(outcome.task, outcome)
                if self.records:
                    writer.write(frame(OutcomeAck(len(outcomes))))
                if self._again:
                    self.give(*self._again)
                    self._again.clear()
                self.on_results()
            case LeaveRequest():
                self.goodbyes.append(message)
            case ReturnedJobs(jobs):
                self.returned.append(jobs)
                if self.gives_again:  # in the order they had
                    self._again[:0] = [self._given[which] for which in reversed(jobs)]


def job(task: int, line: str = "true", **more: Any) -> WireJob:
    """A task of one line for a shell."""
    given = {"attempt": 1, "processors": 1, "limit": 0.0, "folder": f"t{task}", **more}
    return WireJob(**{"task": task, "steps": (Shell(line),), **given})


@asynccontextmanager
async def working(
    server: Server, processors: int = 2, *, seal_key: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that reports to the server, in a process of its own."""
    await server.open()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "bursar.worker.worker", stdin=asyncio.subprocess.PIPE
    )
    settings = WorkerSettings(
        host="127.0.0.1",
        port=server.port,
        token="secret",
        worker="w1",
        site="here",
        lease="l1",
        processors=processors,
        seal_key=seal_key,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings))
    process.stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await server.close()
