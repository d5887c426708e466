"""A hub with an engine among fakes, and workers that speak the wire over real sockets."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.service.engine.engine_rig import FakeDesk, FakeJournal, NoHomes

from bursar.dispatch.wire import (
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    JobAssignment,
    OutcomeReport,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.task import Outcome, Status
from bursar.remote import messages as api
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.workers import WorkerServer

SECRET = "the service's"

_from_server = msgspec.msgpack.Decoder(FromServer)
_job = msgspec.msgpack.Decoder(WireJob)


class Floor:
    """One life of a service, as its workers see it."""

    def __init__(
        self, journal: FakeJournal, homes: InstanceHomes | None = None, **hub: Any
    ) -> None:
        self.journal = journal
        self.billing = FakeDesk()
        self.engine = ServiceEngine(
            journal,
            self.billing,
            clock=time.time,
            entropy=lambda count: (b"%d" % time.monotonic_ns())[-count:].rjust(count, b"0"),
            homes=homes or NoHomes(),
        )
        self.worker_server = WorkerServer(self.engine, clock=time.time, secret=SECRET, **hub)
        self.address = ("", 0)
        self.handle = ""

    async def submit(self, count: int, line: str = "true") -> None:
        if not self.handle:
            self.handle = (await self.engine.create("ann", api.NewInstance(), "")).id
        specs = [api.TaskSpec(shell=line, directory=".")] * count
        await self.engine.submit("ann", self.handle, specs, "")

    async def results(self, after: int = 0, wait: float = 30.0) -> list[dict[str, Any]]:
        batch = await self.engine.results("ann", self.handle, after, 10_000, wait)
        return [msgspec.json.decode(line) for line in batch.lines]

    def expect(self, lease: str = "l", processors: int = 1, pool: str = "shared") -> str:
        return self.worker_server.expect(lease, pool=pool, site="here", processors=processors)

    async def worker(
        self,
        name: str = "here-l-0",
        *,
        token: str | None = None,
        lease: str = "l",
        processors: int = 1,
        holds: Sequence[tuple[int, int]] = (),
        has_seal_key: bool = False,
    ) -> "Wire":
        """A worker that has said hello."""
        wire = await Wire.connect(self.address)
        token = self.expect(lease, processors) if token is None else token
        hello = Hello(token, name, "here", processors, lease, "node", tuple(holds), has_seal_key)
        wire.say(hello)
        return wire


@asynccontextmanager
async def running(journal: FakeJournal, port: int = 0, **more: Any) -> AsyncIterator[Floor]:
    """A life of the service."""
    floor = Floor(journal, **more)
    journal.restore(random.Random(1))
    await floor.engine.open()
    server = await asyncio.get_running_loop().create_server(
        floor.worker_server.protocol, "127.0.0.1", port
    )
    floor.address = server.sockets[0].getsockname()[:2]
    try:
        yield floor
    finally:
        server.close()
        await floor.worker_server.close()
        await floor.engine.close()
        await asyncio.sleep(0.01)


class Wire:
    """A worker's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameDecoder()
        self._heard: list[FromServer] = []

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> "Wire":
        return cls(*await asyncio.open_connection(*address))

    def say(self, message: FromWorker) -> None:
        self._writer.write(frame(message))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def hear(self) -> FromServer | None:
        """The next message; None: the hub has hung up."""
        async with asyncio.timeout(30):
            while not self._heard:
                try:
                    data = await self._reader.read(1 << 16)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._heard.extend(_from_server.decode(body) for body in self._frames.feed(data))
        return self._heard.pop(0)

    async def welcome(self) -> Welcome:
        message = await self.hear()
        assert isinstance(message, Welcome)
        return message

    async def jobs(self, count: int) -> list[WireJob]:
        """So many jobs."""
        jobs: list[WireJob] = []
        while len(jobs) < count:
            message = await self.hear()
            assert isinstance(message, JobAssignment), message
            jobs.extend(map(_job.decode, message.jobs))
        return jobs

    def end(self, *jobs: WireJob, status: Status = Status.SUCCEEDED, seconds: float = 1.0) -> None:
        """Says that jobs have ended."""
        self.say(OutcomeReport([ended(job, status, seconds) for job in jobs]))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def ended(job: WireJob, status: Status = Status.SUCCEEDED, seconds: float = 1.0) -> Outcome:
    """A word on a job."""
    now = time.time()
    return Outcome(
        task=job.task, attempt=job.attempt, status=status, start=now - seconds, end=now, exit_code=0
    )
