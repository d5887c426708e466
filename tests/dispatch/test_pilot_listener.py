"""The door for pilots' workers: TLS, one secret a lease, and nothing for anybody else."""

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import cloudpickle
import msgspec
import pytest

from bursar.dispatch import worker_listener as entrance_module
from bursar.dispatch.credential import (
    Credential,
    PilotTerms,
    client_context,
    decode_credential,
    make_certificate,
)
from bursar.dispatch.wire import (
    FrameDecoder,
    FromServer,
    Hello,
    JobAssignment,
    LeaveOrder,
    LeaveRequest,
    OutcomeReport,
    Welcome,
    frame,
)
from bursar.dispatch.worker_listener import _interface
from bursar.engine.dispatcher import Dispatcher
from bursar.model.errors import BursarError, SiteError
from bursar.model.task import Call, Outcome, Shell, Status, Task
from bursar.worker.dispatcher_connection import TlsDispatcherConnection, WorkerSettings
from bursar.worker.python_calls import encode_call


@asynccontextmanager
async def open_to(
    room: Any, *tasks: Task, processors: int = 2, **more: Any
) -> AsyncIterator[tuple[Dispatcher, Credential]]:
    """A dispatcher that lets one lease in."""
    dispatcher = room.dispatcher(list(tasks))
    await dispatcher.start()
    try:
        yield dispatcher, await let_in(dispatcher, "lease-1", processors, **more)
    finally:
        await dispatcher.close()


async def let_in(
    dispatcher: Dispatcher, lease: str, processors: int = 2, **more: Any
) -> Credential:
    """The credential of one more lease."""
    terms = PilotTerms(lease=lease, site="far", host="127.0.0.1", processors=processors, **more)
    said = await dispatcher.pilot_listener.credential(terms)
    return decode_credential(said, "")


def hello(credential: Credential, **other: Any) -> Hello:
    """What a worker says first, all right but for what is given."""
    said = {
        "token": credential.token,
        "worker": f"far-{credential.lease}-node-1",
        "site": "far",
        "processors": 1,
        "lease": credential.lease,
    }
    return Hello(**{**said, **other})


class Client:
    """A worker's end of the wire, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = FrameDecoder()
        self._heard: list[FromServer] = []

    @classmethod
    async def to(cls, credential: Credential) -> "Client":
        """One that has made a connection, and said nothing."""
        return cls(
            *await asyncio.open_connection(
                credential.host, credential.port, ssl=client_context(credential.certificate)
            )
        )

    def say(self, message: Any) -> None:
        """Sends a frame."""
        self.writer.write(frame(message))

    async def hear(self) -> FromServer | None:
        """The next message; None when it is hung up on."""
        while not self._heard:
            try:
                data = await asyncio.wait_for(self.reader.read(1 << 20), 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            for body in self._frames.feed(data):
                self._heard.append(msgspec.msgpack.decode(body, type=FromServer))
        return self._heard.pop(0)

    async def close(self) -> None:
        """Ends it."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def worker_process(credential: Credential, name: str = "node", **more: Any) -> Any:
    """A worker that comes through the door."""
    settings = WorkerSettings(
        host=credential.host,
        port=credential.port,
        token=credential.token,
        worker=f"far-{credential.lease}-{name}",
        site="far",
        lease=credential.lease,
        processors=credential.processors,
        certificate=credential.certificate,
        **more,
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bursar.worker.worker"], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings))
    process.stdin.close()
    return process


def test_a_worker_from_elsewhere_runs_tasks(room: Any) -> None:
    """
    Through TLS come the same outcomes as on the loopback interface, and who waits hears of it.
    """
    told: list[str] = []
    tasks = [Task(id=f"t{i}", steps=(Shell(f"echo {i}"),)) for i in range(50)]

    async def run() -> int:
        async with open_to(room, *tasks, on_join=lambda: told.append("joined")) as (
            dispatcher,
            credential,
        ):
            process = worker_process(credential)
            await dispatcher.wait()
        return await asyncio.to_thread(process.wait)

    assert asyncio.run(run()) == 0
    attempts = room.state.attempts
    assert sorted(o.stdout for o in attempts) == sorted(b"%d\n" % i for i in range(50))
    assert told == ["joined"]


def test_large_frames_pass_both_ways(room: Any) -> None:
    """
    What is longer than a record of TLS, and than the system takes at once, arrives whole.
    """
    data = random.Random(1).randbytes(9_000_000)
    call = Call(encode_call(cloudpickle.dumps((bytes.upper, (data,), {}))))

    async def run() -> None:
        async with open_to(room, Task(id="t", steps=(call,))) as (dispatcher, credential):
            process = worker_process(credential)
            await dispatcher.wait()
        assert await asyncio.to_thread(process.wait) == 0

    asyncio.run(run())

    (outcome,) = room.state.attempts
    assert outcome.status is Status.SUCCEEDED
    assert cloudpickle.loads(outcome.value) == data.upper()


@pytest.mark.parametrize(
    "other",
    [
        {"token": "a guess"},
        {"token": ""},
        {"lease": "lease-2", "worker": "far-lease-2-node"},
        {"lease": "lease-3", "worker": "far-lease-3-node"},
        {"site": "near"},
        {"worker": "local-lease-1-0"},
        {"processors": 3},
        {"processors": 0},
    ],
    ids=["wrong", "empty", "another's", "unknown", "site", "name", "too many", "none"],
)
def test_a_token_is_good_for_its_own_lease_only(room: Any, other: dict[str, Any]) -> None:
    """
    Whoever says anything else than what the credential is for is hung up on, unanswered.
    """

    async def knock() -> None:
        async with open_to(room) as (dispatcher, credential):
            await let_in(dispatcher, "lease-2")
            client = await Client.to(credential)
            client.say(hello(credential, **other))
            assert await client.hear() is None
            assert dispatcher.figures.leases() == {}
            await client.close()

    asyncio.run(knock())


def test_the_local_secret_opens_only_the_local_way_in(room: Any) -> None:
    """
    A pilot's secret is worth nothing on the loopback port, nor the run's at the door.
    """

    async def knock() -> None:
        async with open_to(room) as (dispatcher, credential):
            client = await Client.to(credential)
            client.say(hello(credential, token=dispatcher.token))
            assert await client.hear() is None
            await client.close()
            local = Client(*await asyncio.open_connection(*dispatcher.address))
            local.say(hello(credential))
            assert await local.hear() is None
            await local.close()

    asyncio.run(knock())


def test_a_lease_has_no_more_workers_than_processors(room: Any) -> None:
    """
    One secret, stolen or not, gets no more work than its lease has room for; what left makes room.
    """

    async def knock() -> None:
        async with open_to(room, processors=3) as (dispatcher, credential):
            first, second, third = [await Client.to(credential) for _ in range(3)]
            first.say(hello(credential, worker="far-lease-1-a", processors=2))
            assert isinstance(await first.hear(), Welcome)
            second.say(hello(credential, worker="far-lease-1-b", processors=2))
            assert await second.hear() is None
            await first.close()
            async with asyncio.timeout(20):
                while dispatcher.figures.leases()["lease-1"].ready:
                    await asyncio.sleep(0.005)
            third.say(hello(credential, worker="far-lease-1-b", processors=3))
            assert isinstance(await third.hear(), Welcome)
            assert dispatcher.figures.leases()["lease-1"].ready == 3
            await second.close()
            await third.close()

    asyncio.run(knock())


def test_whoever_is_not_wanted_any_more_is_told_to_leave(room: Any) -> None:
    """
    A revoked lease's workers go, and those that come later need not ask again and again.
    """

    async def knock() -> None:
        async with open_to(room) as (dispatcher, credential):
            there = await Client.to(credential)
            there.say(hello(credential))
            assert isinstance(await there.hear(), Welcome)
            late = await Client.to(credential)
            dispatcher.pilot_listener.revoke("lease-1")
            dispatcher.pilot_listener.revoke("lease-1")
            dispatcher.pilot_listener.revoke("nobody's")
            dispatcher.submit([Task(id="t")])
            assert await there.hear() == LeaveOrder()
            assert await there.hear() is None
            late.say(hello(credential, worker="far-lease-1-late"))
            assert await late.hear() == LeaveOrder()
            assert await late.hear() is None
            guess = await Client.to(credential)
            guess.say(hello(credential, token="a guess"))
            assert await guess.hear() is None
            for client in (there, late, guess):
                await client.close()

    asyncio.run(knock())


def test_a_lost_worker_is_told_of_and_counted_as_missing(room: Any, until: Any) -> None:
    """Two nodes of a lease: one is lost and comes back as another worker; then all is dismissed."""
    left: list[str] = []

    async def lose() -> None:
        async with open_to(room, on_leave=lambda: left.append("left")) as (dispatcher, credential):
            clients = []
            for node in "12":
                client = await Client.to(credential)
                client.say(hello(credential, worker=f"far-lease-1-node-{node}"))
                assert isinstance(await client.hear(), Welcome)
                clients.append(client)
            load = dispatcher.figures.leases()["lease-1"]
            assert (load.ready, load.joined, load.silent_since) == (2, 2, None)
            before = dispatcher.now()
            await clients[0].close()
            await until(lambda: dispatcher.figures.leases()["lease-1"].ready == 1)
            load = dispatcher.figures.leases()["lease-1"]
            assert load.joined == 2
            assert load.silent_since is not None
            assert before <= load.silent_since <= dispatcher.now()
            assert left == ["left"]
            again = await Client.to(credential)
            again.say(hello(credential, worker="far-lease-1-node-1-2"))
            assert isinstance(await again.hear(), Welcome)
            load = dispatcher.figures.leases()["lease-1"]
            assert (load.ready, load.joined, load.silent_since) == (2, 2, None)
            await again.close()
            await clients[1].close()
            await until(lambda: dispatcher.figures.leases()["lease-1"].ready == 0)
            load = dispatcher.figures.leases()["lease-1"]
            assert (load.busy, load.joined) == (0, 2)
            dispatcher.dismiss("lease-1")
            assert dispatcher.figures.leases() == {}
            assert left == ["left"] * 3

    asyncio.run(lose())


def test_a_site_that_fails_when_it_is_told_of_a_lost_worker_stops_the_run(room: Any) -> None:
    """The error reaches who waits for the run, and not only the event loop's log."""

    def fail() -> None:
        raise KeyError("the job is not watched")

    async def lose() -> None:
        async with open_to(room, on_leave=fail) as (dispatcher, credential):
            client = await Client.to(credential)
            client.say(hello(credential, worker="far-lease-1-node-1"))
            assert isinstance(await client.hear(), Welcome)
            await client.close()
            await dispatcher.wait()

    with pytest.raises(BursarError, match="the job is not watched"):
        asyncio.run(asyncio.wait_for(lose(), 60))


@pytest.mark.parametrize("must", [False, True])
def test_a_worker_that_takes_leave_is_missing_but_not_silent(
    room: Any, until: Any, must: bool
) -> None:
    """
    An idle worker goes by itself: nobody waits for its return, and nothing is wrong.

    One that has to go is being killed, and its pilot may stay behind.
    """

    async def leave() -> None:
        async with open_to(room) as (dispatcher, credential):
            client = await Client.to(credential)
            client.say(hello(credential))
            assert isinstance(await client.hear(), Welcome)
            client.say(LeaveRequest(must=must))
            assert await client.hear() == LeaveOrder()
            await client.close()
            await until(lambda: dispatcher.figures.leases()["lease-1"].ready == 0)
            load = dispatcher.figures.leases()["lease-1"]
            assert load.joined == 1
            assert (load.silent_since is not None) == must
            assert load.idle_since == pytest.approx(dispatcher.now(), abs=20)

    asyncio.run(leave())


def test_who_is_sent_away_is_not_told_of(room: Any, until: Any) -> None:
    left: list[str] = []

    async def send_away() -> None:
        async with open_to(room, on_leave=lambda: left.append("left")) as (dispatcher, credential):
            client = await Client.to(credential)
            client.say(hello(credential))
            assert isinstance(await client.hear(), Welcome)
            dispatcher.dismiss("lease-1")
            dispatcher.pilot_listener.revoke("lease-1")
            await client.close()
            await until(lambda: not dispatcher.figures.leases())
            assert left == []

    asyncio.run(send_away())


def test_a_new_credential_takes_the_place_of_the_old_one(room: Any) -> None:
    """
    A lease has one secret at a time.
    """

    async def knock() -> None:
        async with open_to(room) as (dispatcher, old):
            new = await let_in(dispatcher, "lease-1")
            assert (new.port, new.certificate) == (old.port, old.certificate)
            for credential, answer in ((old, None), (new, Welcome)):
                client = await Client.to(credential)
                client.say(hello(credential))
                heard = await client.hear()
                assert heard is None if answer is None else isinstance(heard, answer)
                await client.close()

    asyncio.run(knock())


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100_000, b"\0" * 300_000],
    ids=["http", "half a record", "zeros"],
)
def test_what_is_not_tls_gets_nothing_but_an_alert(room: Any, words: bytes) -> None:
    """
    Nothing is said in clear at the door, whatever comes in clear.
    """

    async def knock() -> bytes:
        async with open_to(room) as (_, credential):
            reader, writer = await asyncio.open_connection(credential.host, credential.port)
            writer.write(words)
            try:
                return await asyncio.wait_for(reader.read(), 20)
            except ConnectionResetError:
                return b""
            finally:
                writer.close()

    assert len(asyncio.run(knock())) <= 7  # one alert: a record's head and two bytes


def test_a_stranger_cannot_make_it_keep_much(room: Any) -> None:
    """
    A frame that announces more than a hello may have ends the connection, behind TLS too.
    """

    async def knock() -> None:
        async with open_to(room) as (_, credential):
            client = await Client.to(credential)
            client.writer.write((5000).to_bytes(4, "big"))
            assert await client.hear() is None
            await client.close()

    asyncio.run(knock())


def test_strangers_do_not_stay(room: Any, monkeypatch: Any) -> None:
    """
    One that is slow to shake hands is hung up on, and so is one that then says nothing.
    """
    monkeypatch.setattr(entrance_module, "HANDSHAKE", 0.2)
    monkeypatch.setattr("bursar.engine.worker_connection.AUTHENTICATION", 0.2)

    async def knock() -> None:
        async with open_to(room) as (_, credential):
            reader, writer = await asyncio.open_connection(credential.host, credential.port)
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            client = await Client.to(credential)
            assert await client.hear() is None
            await client.close()

    asyncio.run(knock())


def test_nobody_but_the_one_with_the_certificate_is_taken_for_the_dispatcher(room: Any) -> None:
    """
    A worker hangs up on whoever has another certificate, before it shows its token.
    """

    async def knock() -> None:
        async with open_to(room) as (_, credential):
            other, _key = make_certificate()
            with pytest.raises(ssl.SSLError, match="certificate verify failed"):
                await asyncio.to_thread(
                    TlsDispatcherConnection,
                    credential.host,
                    credential.port,
                    other,
                    credential.silence,
                )

    asyncio.run(knock())


def test_older_tls_is_refused(room: Any) -> None:
    """
    TLS 1.3 or nothing.
    """

    async def knock() -> None:
        async with open_to(room) as (_, credential):
            context = client_context(credential.certificate)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await asyncio.open_connection(credential.host, credential.port, ssl=context)

    asyncio.run(knock())


def test_a_silent_network_is_noticed_by_the_system(room: Any) -> None:
    """
    Both ends of a connection probe each other: a node without power takes no task with it for
    longer than the time that is set.
    """
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    ]

    async def look() -> None:
        async with open_to(room) as (dispatcher, credential):
            line = await asyncio.to_thread(
                TlsDispatcherConnection,
                credential.host,
                credential.port,
                credential.certificate,
                15.0,
            )
            line.send(bytearray(frame(hello(credential))))
            async with asyncio.timeout(20):
                while not dispatcher.figures.leases():
                    await asyncio.sleep(0.005)
            (worker,) = dispatcher._core.workers.values()
            theirs = worker.link._transport.get_extra_info("socket")
            # 5 s of silence, two probes 5 s apart: 15 s.
            for end in (theirs, line._socket):
                assert [end.getsockopt(*option) for option in options] == [1, 5, 5, 2, 15_000]
            line.close()

    asyncio.run(look())


@pytest.mark.ci
def test_closing_leaves_no_connection_open(room: Any) -> None:
    """
    Whoever is in the middle of coming in when the dispatcher closes is let go of, too.
    """

    async def knock(rounds: int) -> None:
        dispatcher = room.dispatcher([])
        await dispatcher.start()
        credential = await let_in(dispatcher, "lease-1")
        silent = socket.create_connection((credential.host, credential.port))
        halfway = socket.create_connection((credential.host, credential.port))
        halfway.sendall(b"\x16\x03\x01\x01\x00")
        for _ in range(rounds):
            await asyncio.sleep(0)
        await dispatcher.close()
        with pytest.raises(SiteError, match="the run is ending"):
            await let_in(dispatcher, "lease-2")
        for connection in (silent, halfway):
            connection.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
            connection.close()
        gc.collect()

    for rounds in (0, 1, 2, 3, 5, 20):
        asyncio.run(knock(rounds))


def test_it_listens_no_wider_than_it_must() -> None:
    """
    Pilots of this machine are listened to here only; those that come by its name, everywhere.
    """
    assert [_interface(host) for host in ("127.0.0.1", "localhost", "::1")] == [
        "127.0.0.1",
        "127.0.0.1",
        "::1",
    ]
    assert [_interface(host) for host in ("10.1.2.3", "fe80::1", "login.example.org")] == [
        "0.0.0.0",
        "::",
        "0.0.0.0",
    ]


def test_two_interfaces_are_two_ways_in(room: Any) -> None:
    """
    A site on this machine and one elsewhere can be reached at a time.
    """

    async def knock() -> None:
        async with open_to(room) as (dispatcher, here):
            said = await dispatcher.pilot_listener.credential(
                PilotTerms(lease="lease-2", site="far", host=socket.gethostname(), processors=1)
            )
            wide = decode_credential(said, "")
            assert wide.port != here.port
            assert wide.certificate == here.certificate

    asyncio.run(knock())


def test_nobody_leaves_with_a_task(room: Any) -> None:
    """
    A worker that would like to go gets either leave or a task, however they cross on the way.
    """
    dice = random.Random(3)
    worked = 0

    async def rounds() -> None:
        nonlocal worked
        async with open_to(room) as (dispatcher, credential):
            for number in range(150):
                client = await Client.to(credential)
                client.say(hello(credential, worker=f"far-lease-1-{number}"))
                assert isinstance(await client.hear(), Welcome)
                delay = dice.choice([0, 0, 1, 1, 2, 3, 5])
                if dice.random() < 0.5:
                    client.say(LeaveRequest(must=False))
                    for _ in range(delay):
                        await asyncio.sleep(0)
                    (task,) = dispatcher.submit([Task(id=f"t{number}")])
                else:
                    (task,) = dispatcher.submit([Task(id=f"t{number}")])
                    for _ in range(delay):
                        await asyncio.sleep(0)
                    client.say(LeaveRequest(must=False))
                heard = await client.hear()
                if isinstance(heard, JobAssignment):
                    worked += 1
                    assert dispatcher.figures.busy_leases() == {"lease-1"}
                else:
                    assert heard == LeaveOrder()
                    assert dispatcher.figures.busy_leases() == set()
                    assert dispatcher.figures.demand().tasks == 1
                dispatcher.cancel(task)
                await client.close()
                async with asyncio.timeout(20):
                    while any(x.ready for x in dispatcher.figures.leases().values()) or (
                        dispatcher.figures.demand().tasks
                    ):
                        await asyncio.sleep(0)

    asyncio.run(rounds())

    assert 0 < worked < 150


def test_who_must_go_gets_nothing_more(room: Any) -> None:
    """
    A worker whose processors are taken away is told to leave when its last task is told of.
    """

    async def part() -> None:
        async with open_to(room, Task(id="a")) as (dispatcher, credential):
            client = await Client.to(credential)
            client.say(hello(credential))
            assert isinstance(await client.hear(), Welcome)
            assert isinstance(await client.hear(), JobAssignment)
            client.say(LeaveRequest(must=True))
            async with asyncio.timeout(20):
                while next(iter(dispatcher._core.workers.values())).leaving is False:
                    await asyncio.sleep(0.005)
            dispatcher.submit([Task(id="b")])
            (worker,) = dispatcher._core.workers.values()
            (task,) = worker.claims
            client.say(OutcomeReport([Outcome(task=task, attempt=1, status=Status.CANCELLED)]))
            assert await client.hear() == LeaveOrder()
            await dispatcher.store.written()  # after which the stopped task may start again
            assert dispatcher.figures.demand().tasks == 2
            await client.close()

    asyncio.run(part())


@pytest.mark.parametrize("how", ["vacate", "stop"])
def test_a_worker_that_stands_still_holds_nobody_up(room: Any, monkeypatch: Any, how: str) -> None:
    """
    Its job is suspended: the system answers for it, it does not. Its task is lost.
    """
    monkeypatch.setattr("bursar.engine.dispatcher.STUBBORN", 0.2)

    async def suspend() -> None:
        async with open_to(room, Task(id="a")) as (dispatcher, credential):
            client = await Client.to(credential)
            client.say(hello(credential))
            assert isinstance(await client.hear(), Welcome)
            assert isinstance(await client.hear(), JobAssignment)
            async with asyncio.timeout(20):
                if how == "vacate":
                    await dispatcher.vacate("lease-1", "its time is over")
                else:
                    await dispatcher.stop("enough", grace=0.0)
            assert dispatcher.figures.busy_leases() == set()
            assert dispatcher.figures.counts.running == 0
            await client.close()

    asyncio.run(suspend())


def test_no_more_strangers_are_let_near_than_it_can_bear(room: Any, monkeypatch: Any) -> None:
    """
    Who speaks TLS and does not say who it is takes a place; workers that are known take none.
    """
    monkeypatch.setattr(entrance_module, "MOST_UNAUTHENTICATED", 2)

    async def crowd() -> None:
        async with open_to(room, processors=4) as (_, credential):
            there = []
            for number in range(3):
                there.append(await Client.to(credential))
                there[-1].say(hello(credential, worker=f"far-lease-1-{number}"))
                assert isinstance(await there[-1].hear(), Welcome)
            silent = [await Client.to(credential) for _ in range(2)]
            coming = asyncio.create_task(Client.to(credential))
            await asyncio.wait({coming}, timeout=0.3)
            assert not coming.done()
            await silent[0].close()
            late = await asyncio.wait_for(coming, 20)
            late.say(hello(credential, worker="far-lease-1-late"))
            assert isinstance(await late.hear(), Welcome)
            for client in (*there, silent[1], late):
                await client.close()

    asyncio.run(crowd())
