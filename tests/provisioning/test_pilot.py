"""The program that a batch job runs, as processes: it works, comes back, and leaves nothing."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dispatch.conftest import Room, until
from tests.dispatch.conftest import room as room

from bursar.dispatch.credential import SILENCE, Credential, PilotTerms, decode_credential
from bursar.engine.dispatcher import Dispatcher
from bursar.model.campaign import Retry
from bursar.model.errors import InputError
from bursar.model.task import Shell, Status, Task
from bursar.provisioning.pilot import GIVEN_UP, processors_here, read_credential

ONCE = Retry(attempts=1)


def shell(line: str, id: str = "t", **more: Any) -> Task:
    """A task of one line."""
    return Task(id=id, steps=(Shell(line),), **more)


def running(word: str) -> list[int]:
    """Processes that have this word on their command line or in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                texts = [(folder / name).read_bytes() for name in ("cmdline", "environ")]
            except OSError:
                continue
            if any(word.encode() in text for text in texts):
                found.append(int(folder.name))
    return found


class Pilots:
    """A dispatcher, and pilots that are started by hand."""

    def __init__(self, room: Room, dispatcher: Dispatcher) -> None:
        self.room = room
        self.dispatcher = dispatcher
        self.mark = f"PILOT_TEST={room.run}"
        self._closed = False
        self.processes: list[subprocess.Popen[bytes]] = []

    async def start(
        self,
        lease: str = "lease-1",
        processors: int = 2,
        *,
        port: int | None = None,
        host: str = "127.0.0.1",
        within: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "bursar.provisioning.pilot"),
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[bytes]:
        """One, as a job would start it."""
        terms = PilotTerms(lease=lease, site="far", host=host, processors=processors, **more)
        said = await self.dispatcher.pilot_listener.credential(terms)
        self.credential = decode_credential(said, "")
        if port is not None:
            said = msgspec.structs.replace(self.credential, port=port).encode()
        path = self.room.path / f"{lease}.json"
        path.touch(0o600)
        path.write_bytes(said)
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen(
            [*within, sys.executable, "-P", *program, str(path)],
            env={**os.environ, name: value, **(environment or {})},
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    async def close(self) -> None:
        """The dispatcher ends; once."""
        if not self._closed:
            self._closed = True
            await self.dispatcher.close()

    async def ended(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Exit status and what it said, once it has ended."""
        _, said = await asyncio.to_thread(process.communicate, timeout=30)
        return process.returncode, said.decode()

    def worker_of(self, process: subprocess.Popen[bytes]) -> int:
        """The process of a pilot's worker."""
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(child)

    @property
    def connected(self) -> int:
        """Processors whose workers are connected."""
        return sum(load.ready for load in self.dispatcher.figures.leases().values())


@asynccontextmanager
async def pilots(
    room: Room, *tasks: Task, retry: Retry = ONCE, silence: float = SILENCE
) -> AsyncIterator[Pilots]:
    """A dispatcher for pilots, of which nothing is left in the end."""
    dispatcher = room.dispatcher(list(tasks), retry=retry, silence=silence)
    await dispatcher.start()
    made = Pilots(room, dispatcher)
    try:
        yield made
        await made.close()
        for process in made.processes:
            await made.ended(process)
        assert running(made.mark) == []
    finally:
        await made.close()
        for process in made.processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for pid in running(made.mark):
            os.kill(pid, signal.SIGKILL)


class Net:
    """A network between pilots and dispatcher that can be cut and mended."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    async def mend(self) -> None:
        """Connections go through from now on."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Those that are there break, and no more are made."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, on = await asyncio.open_connection("127.0.0.1", self._to)
        for source, sink in ((reader, on), (there, writer)):
            self._writers.add(sink)
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            self._writers.discard(writer)


def test_a_pilot_works_and_leaves_with_the_dispatcher(room: Room) -> None:
    """
    One worker has all its processors; no secret can be seen from outside; nothing is left.
    """

    async def run() -> None:
        async with pilots(room, *(shell("true", f"t{i}") for i in range(20))) as there:
            process = await there.start(processors=3)
            await there.dispatcher.wait()
            assert there.dispatcher.figures.leases()["lease-1"].ready == 3
            assert running(there.credential.token) == []
            (worker,) = [there.worker_of(process)]
            assert worker in running(there.mark)
            await there.close()
            assert await there.ended(process) == (0, "")

    asyncio.run(run())

    assert all(o.status is Status.SUCCEEDED for o in room.state.attempts)


def test_pilots_of_one_lease_share_its_processors(room: Room) -> None:
    """
    A job of two nodes runs the program on each, with what the job has there.
    """

    async def run() -> None:
        async with pilots(room) as there:
            await there.start(processors=5, environment={"BURSAR_PROCESSORS": "3"})
            path = room.path / "lease-1.json"
            name, _, value = there.mark.partition("=")
            there.processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "bursar.provisioning.pilot", path],
                    env={**os.environ, name: value, "BURSAR_PROCESSORS": "2"},
                    stderr=subprocess.PIPE,
                )
            )
            await until(lambda: bool(there.connected))
            await until(lambda: there.dispatcher.figures.leases()["lease-1"].ready == 5)
            assert len({there.worker_of(process) for process in there.processes}) == 2

    asyncio.run(run())


def test_a_cut_network_loses_no_task(room: Room) -> None:
    """
    What ran when the connection broke is killed and runs again when the pilot has come back.
    """
    log = room.path / "log"
    line = f"echo start >> {log}; test $(wc -l < {log}) -gt 1 || exec sleep 97.1"

    async def run() -> None:
        async with pilots(room, shell(line), retry=Retry(attempts=3, backoff=0.0)) as there:
            said = await there.dispatcher.pilot_listener.open("127.0.0.1")
            net = Net(said[1])
            await net.mend()
            await there.start(port=net.port)
            await until(log.exists)
            await net.cut()
            await until(lambda: not there.connected)
            await until(lambda: not running("97.1"))
            await net.mend()
            await there.dispatcher.wait()
            await there.close()
            await net.cut()

    asyncio.run(run())

    assert [o.status for o in room.state.attempts] == [Status.LOST, Status.SUCCEEDED]


def test_a_pilot_without_a_dispatcher_gives_up(room: Room) -> None:
    """
    Nobody holds processors for long for a dispatcher that was killed.
    """

    async def run() -> None:
        async with pilots(room) as there:
            _, port = await there.dispatcher.pilot_listener.open("127.0.0.1")
            net = Net(port)
            await net.mend()
            process = await there.start(port=net.port, patience=0.5)
            await until(lambda: bool(there.connected))
            await net.cut()
            code, said = await there.ended(process)
            assert code == GIVEN_UP
            assert said == f"pilot: nobody lets it in at 127.0.0.1:{net.port}\n"

    asyncio.run(run())


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, str]]:
    """Another network, which a cable joins to this one: its name, and the address of this end."""
    name = f"bp{os.getpid()}"
    net = f"10.213.{os.getpid() % 250}"
    steps = [
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b",
        f"ip link set {name}b netns {name}",
        f"ip addr add {net}.1/24 dev {name}a",
        f"ip link set {name}a up",
        f"ip netns exec {name} ip addr add {net}.2/24 dev {name}b",
        f"ip netns exec {name} ip link set {name}b up",
    ]
    if shutil.which("ip") is None:
        pytest.skip("needs ip")
    try:
        for step in steps:
            if subprocess.run(step.split(), capture_output=True).returncode:
                pytest.skip(f"needs the right to {step}")
        yield name, f"{net}.1"
    finally:
        subprocess.run(["ip", "link", "del", f"{name}a"], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.ci
def test_a_pulled_cable_frees_the_tasks_on_both_sides(
    room: Room, elsewhere: tuple[str, str]
) -> None:
    """
    On a network that just falls silent the task is lost here, and ends there, without a word.
    """
    name, address = elsewhere

    async def run() -> None:
        async with pilots(room, shell("sleep 97.6"), silence=3.0) as there:
            process = await there.start(
                host=address, within=("ip", "netns", "exec", name), patience=1.0
            )
            await until(lambda: bool(running("97.6")))
            subprocess.run(["ip", "link", "set", f"{name}a", "down"], check=True)
            assert there.dispatcher.figures.leases()["lease-1"].busy == 1
            await until(lambda: not there.connected)
            await until(lambda: not running("97.6"))
            code, _ = await there.ended(process)
            assert code == GIVEN_UP

    asyncio.run(run())

    (outcome,) = room.state.attempts
    assert outcome.status is Status.LOST


def test_a_pilot_that_nobody_knows_gives_up(room: Room) -> None:
    """
    One whose secret is refused does not try for ever.
    """

    async def run() -> None:
        async with pilots(room) as there:
            process = await there.start(patience=0.5)
            await there.dispatcher.pilot_listener.credential(
                PilotTerms(lease="lease-1", site="far", host="127.0.0.1", processors=2)
            )
            code, _ = await there.ended(process)
            assert code == GIVEN_UP
            assert not there.connected

    asyncio.run(run())


def test_an_idle_pilot_leaves(room: Room) -> None:
    """
    Distributed release (DRP section 3.1): a while after its last task it goes by itself.
    """

    async def run() -> None:
        async with pilots(room, shell("sleep 0.6")) as there:
            process = await there.start(idle=0.4)
            assert await there.ended(process) == (0, "")
            assert there.dispatcher.figures.counts.succeeded == 1
            assert not there.connected

    asyncio.run(run())


def test_a_pilot_that_is_told_to_end_says_what_becomes_of_its_tasks(room: Room) -> None:
    """
    A scheduler's SIGTERM is no failure of a task: it runs elsewhere, and at once.
    """
    log = room.path / "log"
    line = f"echo start >> {log}; test $(wc -l < {log}) -gt 1 || exec sleep 97.2"

    async def run() -> None:
        async with pilots(room, shell(line)) as there:
            process = await there.start()
            await until(log.exists)
            process.terminate()
            assert await there.ended(process) == (0, "")
            assert running("97.2") == []
            await until(lambda: there.dispatcher.figures.demand().tasks == 1)
            await there.start("lease-2")
            await there.dispatcher.wait()

    asyncio.run(run())

    first, second = room.state.attempts
    assert (first.status, first.reason) == (Status.CANCELLED, "its processors were taken away")
    assert second.status is Status.SUCCEEDED


def test_a_task_that_ignores_the_end_is_killed(room: Room) -> None:
    """
    The pilot is gone before the scheduler's own patience is over.
    """
    log = room.path / "log"
    line = f"trap '' TERM; touch {log}; sleep 97.3; sleep 97.3"

    async def run() -> None:
        async with pilots(room, shell(line)) as there:
            process = await there.start()
            await until(log.exists)
            process.terminate()
            assert await there.ended(process) == (0, "")
            assert running("97.3") == []
            there.dispatcher.drain()

    asyncio.run(run())


def test_a_scheduler_that_hits_the_task_first_has_not_made_it_fail(room: Room) -> None:
    """
    ``scancel`` signals all processes of a job, in any order.
    """
    log = room.path / "log"
    line = f"echo $$ >> {log}; test $(wc -l < {log}) -gt 1 || exec sleep 97.4"

    async def run() -> None:
        async with pilots(room, shell(line)) as there:
            process = await there.start()
            await until(lambda: log.exists() and bool(log.read_text()))
            worker = there.worker_of(process)
            os.kill(int(log.read_text()), signal.SIGTERM)
            await asyncio.sleep(0.02)
            for pid in (worker, process.pid):
                os.kill(pid, signal.SIGTERM)
            assert await there.ended(process) == (0, "")
            await there.start("lease-2")
            await there.dispatcher.wait()

    asyncio.run(run())

    assert [o.status for o in room.state.attempts] == [Status.CANCELLED, Status.SUCCEEDED]


@pytest.mark.parametrize("who", ["worker", "pilot"])
def test_nothing_outlives_who_started_it(room: Room, who: str) -> None:
    """
    After kill -9 of the worker the pilot has another one; after that of the pilot, its worker
    and its tasks go by themselves. What left its process group goes too.
    """
    log = room.path / "log"
    line = f"setsid sleep 97.5 & echo start >> {log}; test $(wc -l < {log}) -gt 1 || sleep 97.5"

    async def run() -> None:
        async with pilots(room, shell(line), retry=Retry(attempts=3, backoff=0.0)) as there:
            process = await there.start()
            await until(log.exists)
            worker = there.worker_of(process)
            os.kill(worker if who == "worker" else process.pid, signal.SIGKILL)
            await until(lambda: not Path(f"/proc/{worker}").exists())
            if who == "pilot":
                await until(lambda: not running(there.mark))
                await there.start("lease-2")
            await there.dispatcher.wait()
            await until(lambda: not running("97.5"))

    asyncio.run(run())

    first, last = room.state.attempts
    assert first.status is (Status.LOST if who == "worker" else Status.CANCELLED)
    assert last.status is Status.SUCCEEDED


def test_a_pilot_whose_workers_die_gives_up(room: Room) -> None:
    """
    A broken node does not start processes for ever.
    """
    program = (
        "-c",
        "import sys, bursar.provisioning.pilot as pilot\n"
        "pilot.MOST_DEATHS = 2\n"
        "pilot.PilotSupervisor._work = lambda self: 9\n"
        "sys.exit(pilot.main())",
    )

    async def run() -> None:
        async with pilots(room) as there:
            process = await there.start(program=program)
            assert await there.ended(process) == (
                GIVEN_UP,
                "pilot: its worker died 3 times in a row, last with status 9\n",
            )

    asyncio.run(run())


def test_a_revoked_pilot_leaves_at_once(room: Room) -> None:
    """
    One that is not wanted any more does not wait for its patience to end.
    """

    async def run() -> None:
        async with pilots(room) as there:
            process = await there.start()
            there.dispatcher.pilot_listener.revoke("lease-1")
            began = time.monotonic()
            assert await there.ended(process) == (0, "")
            assert time.monotonic() - began < 20

    asyncio.run(run())


def write(text: str | None, mode: int) -> Callable[[Path], Path]:
    """Makes a file of that content and mode."""

    def make(folder: Path) -> Path:
        path = folder / "credential.json"
        if text is not None:
            path.touch(mode)
            path.chmod(mode)
            path.write_text(text)
        return path

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (write(None, 0o600), "cannot be read: No such file"),
        (write("{}", 0o600), "is not a pilot's credential"),
        (write('{"token": "hidden"', 0o600), "is not a pilot's credential"),
        (write("{}", 0o640), "others than its owner have access to it"),
    ],
)
def test_a_bad_credential_is_told_of_and_not_shown(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    """
    The job's log says what is wrong, without the secret.
    """
    path = make(tmp_path)
    with pytest.raises(InputError) as caught:
        read_credential(str(path))

    assert str(caught.value).startswith(f"{path}: {message}")
    assert "hidden" not in str(caught.value)


def test_a_job_says_how_many_processors_it_has_here() -> None:
    """
    What the scheduler gave on top, as whole nodes, the lease is not paid for.
    """
    credential = Credential(
        host="h", port=1, token="t", certificate="c", run="r", site="s", lease="l", processors=4
    )
    assert [processors_here(credential, said) for said in ("", "3", "8")] == [4, 3, 4]
    for said in ("0", "-1", "many", "2.5"):
        with pytest.raises(InputError, match="BURSAR_PROCESSORS: expected a number"):
            processors_here(credential, said)
