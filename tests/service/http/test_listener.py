"""Connections over real sockets: slow, oversize, odd, many; and TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.http.api_rig import World

from bursar.dispatch.credential import client_context, make_certificate, server_context
from bursar.model.errors import InputError
from bursar.service.config import HttpLimits
from bursar.service.files.file_store import OpenFile
from bursar.service.http import limiters
from bursar.service.http.http_connection import HttpListener, serve_http

HEAD = b"GET /v1/account HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer all\r\n"


@asynccontextmanager
async def listening(
    world: World, limits: HttpLimits | None = None, **more: Any
) -> AsyncIterator[tuple[HttpListener, int]]:
    found = await serve_http(world.api, limits=limits or HttpLimits(), **more)
    try:
        yield found, found.addresses[0][1]
    finally:
        await found.close()
        world.api.close()


async def talk(port: int, *said: bytes, pause: float = 0.0) -> bytes:
    """Says something to the service, piece by piece; all it answers until it hangs up."""
    loop = asyncio.get_running_loop()
    # No stream: that drops what has come when the service, having closed, is still written to.
    with socket.socket() as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))

        async def listen() -> bytes:
            heard = b""
            with suppress(ConnectionError):
                while piece := await loop.sock_recv(connection, 1 << 16):
                    heard += piece
            return heard

        answered = asyncio.create_task(listen())
        with suppress(ConnectionError):
            for piece in said:
                await loop.sock_sendall(connection, piece)
                await asyncio.sleep(pause)
        return await answered


def test_a_client_asks_again_and_again_over_one_connection(world: World) -> None:
    """
    Keep-alive, with bodies and without, and an answer of many pieces.
    """

    async def main() -> None:
        async with listening(world) as (_, port):
            headers = {"authorization": "Bearer all"}
            base = f"http://127.0.0.1:{port}/v1"
            async with httpx.AsyncClient(base_url=base, headers=headers) as client:
                handle = (await client.post("/instances", json={})).json()["id"]
                path = f"/instances/{handle}/files/data"
                data = bytes(range(256)) * 4096
                assert (await client.put(path, content=data)).status_code == 200
                assert (await client.get(path)).content == data
                assert (await client.get("/nowhere")).status_code == 404
                assert (await client.request("HEAD", path)).headers["content-length"] == "1048576"
                answer = await client.get("/account")
                assert "server" not in answer.headers
                assert "date" not in answer.headers

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ((HEAD,), 408),  # no end of the headers
        ((b"G",), 408),
        ((HEAD, *[b"X-More: 1\r\n"] * 3), 408),
        ((HEAD + b"X: " + b"a" * 3000,), 431),
        ((HEAD + b"X: " + b"a" * 3000 + b"\r\n\r\n",), 431),
        ((HEAD + b"X:\r\n" * 600 + b"\r\n",), 431),  # little in each, but many
        ((HEAD.replace(b"account", b"a" * 3000) + b"\r\n",), 431),
        ((HEAD + b"Content-Length: 1000\r\nContent-Type: application/json\r\n\r\n{",), 200),
        (
            (
                b"POST /v1/instances HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer all\r\n"
                b"Content-Length: 1000\r\nContent-Type: application/json\r\n\r\n{",
            ),
            408,
        ),
        (
            (
                b"POST /v1/instances HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer all\r\n"
                b"Content-Length: 99999999\r\nContent-Type: application/json\r\n\r\n{",
            ),
            413,
        ),
        ((b"\x16\x03\x01\x02\x00\x01\x00",), 400),  # TLS to a port in clear
        ((b"GET / HTTP/9.9\r\n\r\n",), 400),
        ((b"GET /\xff HTTP/1.1\r\n\r\n",), 400),
        ((b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",), 400),
        ((b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",), 404),
        ((HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",), 400),
        ((HEAD + b"Content-Length: -5\r\n\r\n",), 400),
        ((HEAD + b"Bad Header: 1\r\n\r\n",), 400),
        ((HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",), 400),
        ((HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",), 501),
        ((HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",), 501),
        ((HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",), 400),
        ((HEAD + b"Transfer-Encoding: gzip\r\n\r\n",), 400),  # nobody knows where it ends
        ((HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",), 400),
        (
            (
                HEAD.replace(b"1.1", b"1.0")
                + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
            ),
            400,
        ),
        ((HEAD + b"Connection: close\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",), 200),
        ((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",), 400),
        ((HEAD + b"Connection: close\r\n\r\n",), 200),
    ],
    ids=lambda value: str(value)[:60],
)
def test_who_is_slow_odd_or_too_much_is_cut_off(
    world: World, said: tuple[bytes, ...], status: int
) -> None:
    """
    Each ends in an answer that says why, and the end of the connection: none hangs.
    """
    limits = HttpLimits(header_bytes=2000, header_seconds=0.1, body_seconds=0.1, body_rate=100.0)

    async def main() -> None:
        async with listening(world, limits) as (_, port), asyncio.timeout(30):
            answer = await talk(port, *said, pause=0.02)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            if status >= 400:
                assert b"application/problem+json" in answer
            assert not world.listener.failures

    asyncio.run(main())


def test_a_connection_that_says_nothing_ends(world: World) -> None:
    """
    Before its first request, after one, and when it only says what means nothing.
    """
    limits = HttpLimits(header_seconds=0.1, idle_seconds=0.1)

    async def main() -> None:
        async with listening(world, limits) as (found, port), asyncio.timeout(30):
            assert await talk(port) == b""
            assert (await talk(port, HEAD + b"\r\n")).startswith(b"HTTP/1.1 200 ")
            after = await talk(port, HEAD + b"\r\n", b"\r\n", pause=0.02)
            assert after.count(b"HTTP/1.1") == 1
            assert not found._state.connections

    asyncio.run(main())


def test_whoever_has_all_of_a_file_may_ask_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The answer is over with its last byte, also for a service that has yet to close the file.

    A client that asked again at once was taken for one that does not wait for its answer, and its
    connection ended without another one.
    """
    read = OpenFile.__anext__

    async def read_slowly(file: OpenFile) -> bytes:
        try:
            return await read(file)
        except StopAsyncIteration:
            await asyncio.sleep(0.1)
            raise

    monkeypatch.setattr(OpenFile, "__anext__", read_slowly)

    async def main() -> None:
        async with listening(world) as (_, port):
            base = f"http://127.0.0.1:{port}/v1"
            limits = httpx.Limits(max_connections=1)
            headers = {"authorization": "Bearer all"}
            async with httpx.AsyncClient(base_url=base, headers=headers, limits=limits) as client:
                handle = (await client.post("/instances", json={})).json()["id"]
                for data in (b"", b"data", bytes(1 << 20)):
                    path = f"/instances/{handle}/files/data"
                    assert (await client.put(path, content=data)).status_code == 200
                    for _ in range(3):
                        assert (await client.get(path)).content == data
                    part = await client.get(path, headers={"range": "bytes=1-2"})
                    assert part.content == (data[1:3] if data else b"") or part.status_code == 416

    asyncio.run(main())


@pytest.mark.parametrize("pause", [0.0, 0.01])
def test_requests_that_do_not_wait_for_their_answer_end_the_connection(
    world: World, pause: float
) -> None:
    """
    One at a time: a thousand in one packet would be a thousand under way. The first is answered,
    and its answer says that no other one will be (RFC 9112, section 9.3.2).
    """

    async def main() -> None:
        held = world.engine.make("ann", "mine")
        held.tasks = [None]  # type: ignore[list-item]
        waiting = HEAD.replace(b"account", b"instances/mine/results?wait=60") + b"\r\n"
        making = (
            b"POST /v1/instances HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer all\r\n"
            b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        async with listening(world) as (found, port), asyncio.timeout(30):
            before = set(world.engine.held)
            saying = asyncio.create_task(
                talk(port, waiting, *[making] * 3, HEAD + b"\r\n", b"\x00nonsense", pause=pause)
                if pause
                else talk(port, waiting + making * 3 + HEAD + b"\r\n" + b"\x00nonsense")
            )
            while not found._state.tasks:
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.1, world.engine.finish, "mine", 0)
            answer = await saying
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in head.lower()
            assert b'"cursor":1' in body
            assert answer.count(b"HTTP/1.1") == 1
            assert set(world.engine.held) == before

    asyncio.run(main())


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost/v1/account", 200),
        (b"HTTP://LOCALHOST:8000/v1/account", 200),
        (b"http://evil.example/v1/account", 421),
        (b"http://evil.example", 421),
        (b"http://localhost@evil.example/v1/account", 421),
        (b"http://evil.example?/v1/account", 421),
        (b"https://localhost/v1/account", 421),  # to a port in clear
        (b"ftp://localhost/v1/account", 421),
        (b"//evil.example/v1/account", 404),  # a path
    ],
    ids=str,
)
def test_an_address_with_a_host_counts_and_not_the_host_header(
    world: World, target: bytes, status: int
) -> None:
    """
    RFC 9112, section 3.2.2: else what lies between and the service would disagree on who is meant.
    """
    said = HEAD.replace(b"/v1/account", target) + b"Connection: close\r\n\r\n"

    async def main() -> None:
        async with listening(world) as (_, port), asyncio.timeout(30):
            assert (await talk(port, said)).startswith(b"HTTP/1.1 %d " % status)
            other = said.replace(b"Host: localhost", b"Host: evil.example")
            expected = status if b"://" in target else 421
            assert (await talk(port, other)).startswith(b"HTTP/1.1 %d " % expected)

    asyncio.run(main())


def test_as_many_bytes_of_headers_as_are_documented(world: World) -> None:
    """
    32 KiB are taken; 33,000 bytes are 431, in one piece or in many, with an end or without.
    """

    async def main() -> None:
        async with listening(world) as (_, port), asyncio.timeout(30):
            closing = HEAD + b"Connection: close\r\n"
            rest = HttpLimits().header_bytes - len(closing) - len(b"X: \r\n\r\n")
            fits = closing + b"X: " + b"a" * rest + b"\r\n\r\n"
            assert (await talk(port, fits)).startswith(b"HTTP/1.1 200 ")
            large = closing + b"".join(b"X-%04d: %s\r\n" % (n, b"a" * 90) for n in range(330))
            for said in (large, large + b"\r\n"):
                assert (await talk(port, said)).startswith(b"HTTP/1.1 431 ")
                pieces = [said[at : at + 5000] for at in range(0, len(said), 5000)]
                assert (await talk(port, *pieces)).startswith(b"HTTP/1.1 431 ")

    asyncio.run(main())


def test_headers_behind_a_body_change_nothing(world: World) -> None:
    """
    What was let in is not somebody else afterwards.
    """
    body = b"2\r\n{}\r\n0\r\nAuthorization: Bearer admin\r\n\r\n"

    async def main() -> None:
        async with listening(world) as (_, port), asyncio.timeout(30):
            answer = await talk(
                port,
                b"POST /v1/instances HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                body,
            )
            assert answer.startswith(b"HTTP/1.1 401 ")

    asyncio.run(main())


def test_there_are_only_so_many_connections(world: World) -> None:
    """
    One more is hung up on, and has a place when another has gone.
    """

    async def main() -> None:
        limits = HttpLimits(connections=2)
        async with listening(world, limits) as (found, port), asyncio.timeout(30):
            first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            while len(found._state.connections) < 2:
                await asyncio.sleep(0)
            assert await talk(port, HEAD + b"\r\n") == b""
            for _, writer in first:
                writer.close()
                await writer.wait_closed()
            while found._state.connections:
                await asyncio.sleep(0)
            closing = HEAD + b"Connection: close\r\n\r\n"
            assert (await talk(port, closing)).startswith(b"HTTP/1.1 200 ")

    asyncio.run(main())


@pytest.mark.parametrize("asks", [False, True])
def test_nobody_keeps_others_out_by_silence(world: World, asks: bool) -> None:
    """
    Who has taken most places and asks nothing, or nothing more, gives them up to others, at once;
    a request that is under way stays.
    """
    limits = HttpLimits(connections=4, header_seconds=1000.0, idle_seconds=1000.0)

    async def main() -> None:
        world.engine.make("ann", "mine")
        world.api.relimit(HttpLimits(heartbeat=0.05), {})
        async with listening(world, limits) as (_, port), asyncio.timeout(30):
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/v1") as client:
                following = client.stream(
                    "GET", "/instances/mine/events", headers={"authorization": "Bearer all"}
                )
                async with following as events:
                    assert events.status_code == 200
                    greedy = [
                        await asyncio.open_connection(
                            "127.0.0.1", port, local_addr=("127.0.0.2", 0)
                        )
                        for _ in range(3)
                    ]
                    for reader, writer in greedy if asks else ():
                        writer.write(HEAD + b"\r\n")
                        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
                    closing = HEAD + b"Connection: close\r\n\r\n"
                    assert (await talk(port, closing)).startswith(b"HTTP/1.1 200 ")
                    await greedy[0][0].read()  # has ended
                    assert await anext(events.aiter_bytes())  # says that it is still there
            for _, writer in greedy:
                writer.close()

    asyncio.run(main())


def test_silence_does_not_keep_neighbours_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Behind one gateway may be many; who has asked nothing for long makes room for one of them.
    """
    monkeypatch.setattr(limiters, "SILENT", 0.0)
    limits = HttpLimits(connections=4, connections_per_address=2, header_seconds=1000.0)

    async def main() -> None:
        async with listening(world, limits) as (_, port), asyncio.timeout(30):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            closing = HEAD + b"Connection: close\r\n\r\n"
            assert (await talk(port, closing)).startswith(b"HTTP/1.1 200 ")
            assert await silent[0][0].read() == b""
            for _, writer in silent:
                writer.close()

    asyncio.run(main())


def test_who_never_speaks_tls_has_a_place_nonetheless(world: World) -> None:
    """
    Connections that are no TLS yet count, per address too, and end: else they are without bound.
    """
    certificate, key = make_certificate()
    limits = HttpLimits(connections_per_address=3, header_seconds=0.2)

    async def main() -> None:
        async with (
            listening(world, limits, tls=server_context(certificate, key)) as (found, port),
            asyncio.timeout(30),
        ):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            ended = [asyncio.create_task(reader.read()) for reader, _ in silent]
            done, waiting = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 5:
                done, waiting = await asyncio.wait(ended, timeout=0.01)
            assert len(waiting) == 3
            await asyncio.wait(waiting)
            base = f"https://localhost:{port}/v1"
            context = client_context(certificate)
            async with httpx.AsyncClient(base_url=base, verify=context) as client:
                assert (await client.get("/health")).status_code == 200
            assert not found._acceptor._connecting
            for _, writer in silent:
                writer.close()

    asyncio.run(main())


def test_closing_ends_what_is_no_connection_yet(world: World) -> None:
    """
    At every step of it.
    """
    certificate, key = make_certificate()

    async def main() -> None:
        for turns in range(6):
            found = await serve_http(world.api, tls=server_context(certificate, key))
            reader, writer = await asyncio.open_connection("127.0.0.1", found.addresses[0][1])
            for _ in range(turns):
                await asyncio.sleep(0)
            await found.close()
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            assert not found._acceptor._limit.taken

    asyncio.run(main())
    world.api.close()


def test_who_does_not_read_its_answer_is_cut_off(world: World) -> None:
    """
    Else a file that nobody takes would lie in memory, and its connection stay, for ever.
    """

    async def main() -> None:
        limits = HttpLimits(send_seconds=0.1)
        async with listening(world, limits) as (found, port), asyncio.timeout(30):
            held = world.engine.make("ann", "mine")
            (held.home / "files" / "large").write_bytes(bytes(32 << 20))
            with socket.create_connection(("127.0.0.1", port)) as silent:
                silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                silent.sendall(
                    b"GET /v1/instances/mine/files/large HTTP/1.1\r\nHost: localhost\r\n"
                    b"Authorization: Bearer all\r\n\r\n"
                )
                while not found._state.connections:
                    await asyncio.sleep(0.01)
                while found._state.connections or found._state.tasks:
                    await asyncio.sleep(0.01)
                assert not found._acceptor._limit.taken

    asyncio.run(main())


def test_closing_lets_requests_end(world: World) -> None:
    """
    What is under way is answered within the grace; what goes on longer is ended.
    """

    async def main() -> None:
        found = await serve_http(world.api)
        port = found.addresses[0][1]
        held = world.engine.make("ann", "mine")
        held.tasks = [None]  # type: ignore[list-item]
        waiting = HEAD.replace(b"account", b"instances/mine/results?wait=60") + b"\r\n"
        first = asyncio.create_task(talk(port, waiting))
        while not found._state.tasks:
            await asyncio.sleep(0.001)
        asyncio.get_running_loop().call_later(0.05, world.engine.finish, "mine", 0)
        await found.close(grace=30)
        assert b'"cursor":1' in await first
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        again = await serve_http(world.api)
        held.tasks.append(None)  # type: ignore[arg-type]
        waiting = waiting.replace(b"?", b"?after=1&")
        second = asyncio.create_task(talk(again.addresses[0][1], waiting))
        while not again._state.tasks:
            await asyncio.sleep(0.001)
        await again.close()
        assert await second == b""

    asyncio.run(main())
    world.api.close()


def test_in_clear_only_on_this_machine(world: World) -> None:
    """
    What others could read and forge is refused before anybody hears of it.
    """

    async def main() -> None:
        for host in ("0.0.0.0", "::"):
            with pytest.raises(InputError, match="loopback address, or TLS"):
                await serve_http(world.api, host=host)
        with pytest.raises(InputError, match=r"192\.0\.2\.1:1: cannot listen"):
            await serve_http(world.api, host="192.0.2.1", port=1)

    asyncio.run(main())
    world.api.close()


def test_the_clients_certificate_is_known(world: World, tmp_path: Path) -> None:
    """
    Over TLS on any address; who comes with a certificate is that one.
    """
    certificate, key = make_certificate()
    theirs, secret = make_certificate()
    context = server_context(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=theirs)
    client = client_context(certificate)
    pem = tmp_path / "client.pem"
    pem.write_bytes(secret + theirs.encode())
    client.load_cert_chain(pem)

    async def main() -> None:
        async with listening(world, host="0.0.0.0", tls=context) as (_, port):
            base = f"https://127.0.0.1:{port}/v1"
            async with httpx.AsyncClient(base_url=base, verify=client) as asking:
                assert (await asking.get("/account")).json()["user"] == "card"

    asyncio.run(main())
