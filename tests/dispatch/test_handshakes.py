"""TLS handshakes: few at a time, fairly shared, and nothing left of those that fail."""

import asyncio
import contextlib
import gc
import re
import socket
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.dispatch.many_workers import HELLO, SAYINGS, come_and_go

from bursar import dispatch
from bursar.dispatch.credential import client_context, make_certificate, server_context
from bursar.dispatch.handshakes import Handshakes

CERTIFICATE, KEY = make_certificate()


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@dataclass
class Listener:
    """Accepts everybody and leaves the rest to the handshakes."""

    handshakes: Handshakes
    port: int
    ended: int = 0
    most: int = 0

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(seconds: float = 1000.0, **more: int) -> AsyncIterator[Listener]:
    loop = asyncio.get_running_loop()
    server = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server.setblocking(False)
    handshakes = Handshakes(server_context(CERTIFICATE, KEY), seconds, **more)
    listener = Listener(handshakes, server.getsockname()[1])
    tasks: set[asyncio.Task[None]] = set()

    async def serve(connection: socket.socket, source: str) -> None:
        made = await handshakes.shake(connection, source, Echo)
        listener.ended += made is None

    async def accept() -> None:
        while True:
            connection, address = await loop.sock_accept(server)
            tasks.add(asyncio.create_task(serve(connection, address[0])))
            listener.most = max(listener.most, handshakes.under_way)

    accepting = asyncio.create_task(accept())
    try:
        yield listener
    finally:
        for task in (accepting, *tasks):
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)
        server.close()


async def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    connection.bind((source, 0))
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def echoed(port: int, source: str = "127.0.0.1") -> None:
    """A client that means to say something gets its answer."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, local_addr=(source, 0), ssl=client_context(CERTIFICATE)
    )
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def hung_up(connection: socket.socket) -> None:
    """Return when the listener has ended a connection."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(connection, 1 << 16):
            pass
    connection.close()


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(limited())


def remnants() -> int:
    """Number of TLS connections, whole or not, that are in memory."""
    kinds = (sslproto.SSLProtocol, ssl.SSLObject)
    # By type: isinstance would ask a weak proxy of something that is gone for its class.
    return sum(issubclass(type(found), kinds) for found in gc.get_objects())


def test_nothing_is_left_of_a_handshake_that_failed() -> None:
    """Reference counts alone free everything, so that no garbage collector has to find it."""

    async def main() -> None:
        async with listening() as listener:
            gc.collect()
            before = remnants()
            gc.disable()
            try:
                count = 20 * len(SAYINGS)
                await asyncio.to_thread(come_and_go, listener.port, count, 10)
                await listener.until(lambda: listener.ended == count)
                await asyncio.sleep(0)
                assert remnants() == before
            finally:
                gc.enable()

    run(main)


@pytest.mark.parametrize("said", ["nothing", "half a hello", "a hello"])
def test_who_does_not_go_on_is_hung_up_on(said: str) -> None:
    """In good time, at whatever point of the handshake."""

    async def main() -> None:
        async with listening(seconds=0.1) as listener:
            connection = await connect(listener.port)
            await asyncio.get_running_loop().sock_sendall(connection, SAYINGS[said])
            await hung_up(connection)
            await listener.until(lambda: listener.ended == 1)
            assert not listener.handshakes.under_way

    run(main)


@pytest.mark.parametrize(
    "said",
    [
        b"\x00",
        b"\x15",
        b"\x16\x02",
        b"\x16\x03\x01\x00\x00",  # a record without content
        b"\x16\x03\x01\x40\x01",  # one longer than there may be
        b"\x16\x03\x01\x00\x10\x02",  # a ServerHello
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=repr,
)
def test_who_does_not_begin_a_handshake_is_hung_up_on_at_once(said: bytes) -> None:
    """Its first bytes tell; nothing was made for it."""

    async def main() -> None:
        async with listening() as listener:
            connection = await connect(listener.port)
            await asyncio.get_running_loop().sock_sendall(connection, said)
            await hung_up(connection)
            await listener.until(lambda: listener.ended == 1)
            assert not listener.most

    run(main)


@pytest.mark.parametrize("size", [1, 3, 5, 6, len(HELLO) - 1])
def test_a_hello_may_come_in_pieces(size: int) -> None:
    """A slow network is no attack; a whole handshake follows, however the hello was cut."""

    async def main() -> None:
        async with listening() as listener:
            loop = asyncio.get_running_loop()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = client_context(CERTIFICATE).wrap_bio(incoming, outgoing)
            connection = await connect(listener.port)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            hello = outgoing.read()
            for begin in range(0, len(hello), size):
                await loop.sock_sendall(connection, hello[begin : begin + size])
                await asyncio.sleep(0)
            done = False
            while not done:
                incoming.write(await loop.sock_recv(connection, 1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                    done = True
            client.write(b"hello")
            await loop.sock_sendall(connection, outgoing.read())
            answer = b""
            while not answer:
                incoming.write(await loop.sock_recv(connection, 1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer = client.read()
            assert answer == b"hello"
            connection.close()

    run(main)


def test_one_address_has_no_more_handshakes_than_its_share() -> None:
    """What it has begun and not ended keeps its other connections waiting, and nobody else's."""

    async def main() -> None:
        async with listening(most=4, most_of_one=2) as listener:
            loop = asyncio.get_running_loop()
            stuck = [await connect(listener.port, "127.0.0.2") for _ in range(5)]
            for connection in stuck:
                await loop.sock_sendall(connection, HELLO)
            await listener.until(lambda: listener.handshakes.under_way == 2)
            await asyncio.gather(*(echoed(listener.port) for _ in range(20)))
            assert listener.handshakes.under_way == 2
            for connection in stuck:
                connection.close()
            await listener.until(lambda: listener.ended == 5)
            assert listener.most <= 4

    run(main)


def test_turns_go_round_by_address() -> None:
    """An address with hundreds of connections that wait delays another one by a single turn."""

    async def main() -> None:
        async with listening(most=1, most_of_one=1) as listener:
            loop = asyncio.get_running_loop()
            crowd = [await connect(listener.port, "127.0.0.2") for _ in range(100)]
            for connection in crowd:
                await loop.sock_sendall(connection, HELLO)
            await listener.until(lambda: listener.handshakes.under_way == 1)
            other = asyncio.create_task(echoed(listener.port))
            turns = listener.handshakes._turns
            await listener.until(lambda: "127.0.0.1" in turns._waiting)
            # Those that hold the turn leave, one after the other, until it is the other one's.
            left = 0
            while "127.0.0.1" in turns._waiting:
                held = await first_answered(crowd)
                if held is not None:
                    held.close()
                    crowd.remove(held)
                    left += 1
                    await listener.until(lambda gone=left: listener.ended == gone)
            await other
            assert left <= 2
            for connection in crowd:
                connection.close()

    run(main)


async def first_answered(crowd: list[socket.socket]) -> socket.socket | None:
    """Return the connection that the listener has sent something, if there is one."""
    await asyncio.sleep(0.01)
    for connection in crowd:
        with contextlib.suppress(BlockingIOError):
            connection.recv(1, socket.MSG_PEEK)
            return connection
    return None


def test_who_waits_for_a_turn_waits_no_longer_than_it_may() -> None:
    """When all turns are taken for good."""

    async def main() -> None:
        async with listening(seconds=0.2, most=1, most_of_one=1) as listener:
            listener.handshakes._turns.taken = 1  # by nobody who ever ends
            connection = await connect(listener.port)
            await asyncio.get_running_loop().sock_sendall(connection, HELLO)
            await hung_up(connection)
            await listener.until(lambda: listener.ended == 1)
            assert not listener.handshakes._turns._waiting

    run(main)


def test_who_is_cancelled_gives_its_turn_back() -> None:
    """Before and after the turn has come."""

    async def main() -> None:
        handshakes = Handshakes(server_context(CERTIFICATE, KEY), 1000.0, most=1, most_of_one=1)
        pairs = [socket.socketpair() for _ in range(2)]
        for ours, theirs in pairs:
            ours.setblocking(False)
            theirs.sendall(HELLO)
        tasks = [asyncio.create_task(handshakes.shake(ours, "here", Echo)) for ours, _ in pairs]
        while not handshakes.under_way:
            await asyncio.sleep(0.01)
        for task in reversed(tasks):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert not handshakes.under_way
        for _, theirs in pairs:
            with contextlib.suppress(ConnectionError):
                while theirs.recv(1 << 16):
                    pass
            theirs.close()

    run(main)


def test_every_listener_leaves_its_handshakes_to_the_one_mechanism() -> None:
    """Nothing else in the source speaks TLS as a server."""
    pattern = re.compile(r"server_side|ssl_handshake_timeout|start_tls|asyncio\.start_server")
    source = Path(dispatch.__path__[0]).parent
    found = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if pattern.search(path.read_text())
    }
    assert found == {"dispatch/handshakes.py"}
