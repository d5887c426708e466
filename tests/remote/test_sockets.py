"""Real connections: kept, cut, slow, and with TLS."""

import asyncio
import contextlib
import gzip
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.remote.conftest import Line

from bursar.dispatch.credential import make_certificate, server_context
from bursar.remote import connection, transfers
from bursar.remote.access import ENVIRONMENT, Access
from bursar.remote.aiohttp_transport import AiohttpTransport
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import (
    ClientRequest,
    ClientResponse,
    InvalidServiceResponse,
    ServiceUnreachable,
    TransportError,
    UnsendableRequest,
)

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Serve = Callable[[Reader, Writer], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def serving(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncGenerator[int, None]:
    """A server on a free port of this machine."""
    writers: list[Writer] = []

    async def accept(reader: Reader, writer: Writer) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


async def head_of(reader: Reader) -> bytes:
    """A request's."""
    return await reader.readuntil(b"\r\n\r\n")


def url_of(port: int) -> str:
    """Of the server."""
    return f"http://127.0.0.1:{port}/x"


async def ask(sockets: AiohttpTransport, request: ClientRequest) -> ClientResponse:
    """The whole answer."""
    response = await sockets.send(request)
    try:
        response.content = b"".join([piece async for piece in response.pieces()])
    finally:
        await response.aclose()
    return response


def test_a_connection_is_used_again() -> None:
    """A handshake each time would take longer than the request."""
    connections = []

    async def serve(reader: Reader, writer: Writer) -> None:
        connections.append(writer)
        while True:
            await head_of(reader)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            for _ in range(5):
                response = await ask(sockets, ClientRequest("GET", url_of(port)))
                assert response.content == b"ok"
            await sockets.aclose()

    asyncio.run(work())
    assert len(connections) == 1


@pytest.mark.parametrize("says_so", [True, False])
def test_a_connection_that_is_closed_is_not_used_again(says_so: bool) -> None:
    """Whether the service says that it closes it or just does."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") if says_so else OK)
        writer.close()

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            for _ in range(3):
                assert (await ask(sockets, ClientRequest("GET", url_of(port)))).content == b"ok"
                await asyncio.sleep(0.02)
            await sockets.aclose()

    asyncio.run(work())


def test_what_nobody_read_is_not_the_next_answer() -> None:
    """All of an answer had come when its reader left: the connection is kept, its bytes not."""

    async def serve(reader: Reader, writer: Writer) -> None:
        for body in (b"first", b"next!"):
            await head_of(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)
        await asyncio.sleep(60)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            unread = await sockets.send(ClientRequest("GET", url_of(port)))
            await asyncio.sleep(0.02)
            await unread.aclose()
            assert (await ask(sockets, ClientRequest("GET", url_of(port)))).content == b"next!"
            await sockets.aclose()

    asyncio.run(work())


def test_an_answer_to_no_request_is_not_the_next_answer() -> None:
    """A connection on which one comes is not used again."""
    surplus = asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        path = (await head_of(reader)).split()[1]
        writer.write(OK)
        if path == b"/first":
            await surplus.wait()
            writer.write(OK.replace(b"ok", b"no"))
        await asyncio.sleep(60)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            base = f"http://127.0.0.1:{port}"
            assert (await ask(sockets, ClientRequest("GET", f"{base}/first"))).content == b"ok"
            surplus.set()
            await asyncio.sleep(0.1)
            assert (await ask(sockets, ClientRequest("GET", f"{base}/second"))).content == b"ok"
            await sockets.aclose()

    asyncio.run(work())


def test_a_service_that_reads_no_more_is_left_at_once() -> None:
    """Closing the client does not wait until the rest of a request is sent."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(60)

    async def body() -> AsyncGenerator[bytes, None]:
        while True:
            yield bytes(1 << 20)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            headers = {"Content-Length": "1" + "0" * 15}
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await sockets.send(ClientRequest("PUT", url_of(port), headers, body))
            async with asyncio.timeout(30):
                await sockets.aclose()

    asyncio.run(work())


def test_requests_at_the_same_time_do_not_mix() -> None:
    """Each has a connection of its own."""

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            path = (await head_of(reader)).split()[1]
            await asyncio.sleep(0.01)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(path), path))

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            for _ in range(3):
                requests = [ClientRequest("GET", f"http://127.0.0.1:{port}/{n}") for n in range(8)]
                answers = await asyncio.gather(*(ask(sockets, each) for each in requests))
                assert [answer.content for answer in answers] == [b"/%d" % n for n in range(8)]
            await sockets.aclose()

    asyncio.run(work())


def test_much_comes_and_goes_without_much_memory() -> None:
    """Either end waits for the other: eight megabytes up and down, in chunks."""
    size = 8 << 20
    most = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        await asyncio.sleep(0.05)
        await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(size // 65536):
            writer.write(b"10000\r\n" + bytes(65536) + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def body() -> AsyncGenerator[bytes, None]:
        for _ in range(size // 65536):
            yield bytes(65536)

    async def work() -> int:
        nonlocal most
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            headers = {"Content-Length": str(size)}
            request = ClientRequest("PUT", url_of(port), headers=headers, content=body)
            response = await sockets.send(request)
            received = 0
            async for piece in response.pieces():
                received += len(piece)
                most = max(most, len(piece))
                await asyncio.sleep(0.001)
            await response.aclose()
            await sockets.aclose()
            return received

    assert asyncio.run(work()) == size
    assert most < 4 << 20


def test_a_body_of_many_bytes_is_sent_whole() -> None:
    """In pieces, between which the loop may do other things."""
    content = bytes(range(256)) * (3 << 12)

    async def serve(reader: Reader, writer: Writer) -> None:
        head = await head_of(reader)
        assert b"Content-Length: %d\r\n" % len(content) in head
        assert await reader.readexactly(len(content)) == content
        writer.write(OK)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            headers = {"Content-Length": str(len(content))}
            request = ClientRequest("POST", url_of(port), headers, content)
            assert (await ask(sockets, request)).content == b"ok"
            await sockets.aclose()

    asyncio.run(work())


def test_an_answer_before_the_request_is_over_is_heard() -> None:
    """A refusal of a body that is too large, say; the connection is not used again."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(60)

    async def body() -> AsyncGenerator[bytes, None]:
        while True:
            yield bytes(1 << 20)
            await asyncio.sleep(0)

    async def work() -> int:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            request = ClientRequest(
                "PUT", url_of(port), headers={"Content-Length": "1" + "0" * 15}, content=body
            )
            async with asyncio.timeout(30):
                status = (await ask(sockets, request)).status
            await sockets.aclose()
            return status

    # The kernel's buffers are full soon, then the service has to read or say something.
    assert asyncio.run(work()) == 413


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_an_error(said: bytes) -> None:
    """One that may be tried again, and no hang."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(said)
        await writer.drain()
        writer.close()

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            with pytest.raises(TransportError):
                async with asyncio.timeout(30):
                    await ask(sockets, ClientRequest("GET", url_of(port)))
            await sockets.aclose()

    asyncio.run(work())


def test_who_is_not_waited_for_any_more_is_left() -> None:
    """A cancelled request takes its connection with it: its answer is nobody else's."""

    async def serve(reader: Reader, writer: Writer) -> None:
        path = (await head_of(reader)).split()[1]
        await asyncio.sleep(0.05 if path == b"/slow" else 0)
        writer.write(OK)
        await asyncio.sleep(60)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ask(sockets, ClientRequest("GET", f"http://127.0.0.1:{port}/slow"))
            assert (await ask(sockets, ClientRequest("GET", url_of(port)))).content == b"ok"
            await sockets.aclose()

    asyncio.run(work())


def test_a_header_with_a_line_end_is_not_sent() -> None:
    """It would be another header."""

    seen = b""

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal seen
        seen = await reader.read()

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            headers = {"X": "a\r\nAuthorization: b"}
            with pytest.raises(UnsendableRequest):
                await sockets.send(ClientRequest("GET", url_of(port), headers=headers))
            await sockets.aclose()

    asyncio.run(work())
    assert seen == b""


def test_nobody_there_is_told_in_the_systems_words() -> None:
    """With the site."""

    async def work() -> None:
        async with serving(lambda reader, writer: asyncio.sleep(0)) as port:
            pass
        async with AsyncServiceClient(f"http://127.0.0.1:{port}", patience=0.0) as client:
            with pytest.raises(
                ServiceUnreachable, match=rf"^127\.0\.0\.1:{port}: .*connection refused"
            ):
                await client.site()

    asyncio.run(work())


def test_a_host_that_is_none_is_told_at_once() -> None:
    """A misspelt name is no reason to wait."""

    async def work() -> None:
        async with AsyncServiceClient("https://no-such-host.invalid") as client:
            with pytest.raises(InvalidServiceResponse, match="no such host"):
                await client.site()

    asyncio.run(work())


def test_who_hangs_up_once_is_asked_again() -> None:
    """A service that is ended between TLS and its answer has not turned anybody away."""
    certificate, key = make_certificate()
    print_ = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    seen = 0

    async def serve(reader: Reader, writer: Writer) -> None:
        nonlocal seen
        seen += 1
        if seen < 3:
            writer.transport.abort()
        else:
            await site(reader, writer)

    async def work() -> None:
        async with serving(serve, server_context(certificate, key)) as port:
            access = Access(url=f"https://127.0.0.1:{port}", fingerprint=print_)
            async with AsyncServiceClient(access) as client:
                assert (await client.site()).name == "physics"

    asyncio.run(work())


ALERTS = [
    ("TLSV13_ALERT_CERTIFICATE_REQUIRED", None, "set BURSAR_CERTIFICATE"),
    ("TLSV1_ALERT_UNKNOWN_CA", None, "set BURSAR_CERTIFICATE"),
    ("TLSV1_ALERT_UNKNOWN_CA", "me.pem", r"unknown ca: me\.pem, which BURSAR_CERTIFICATE names"),
    ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "me.pem", r"certificate expired: me\.pem"),
    ("TLSV1_ALERT_PROTOCOL_VERSION", None, "TLS cannot be agreed on: tlsv1 alert protocol version"),
    ("NO_SHARED_CIPHER", None, "TLS cannot be agreed on: no shared cipher"),
]


@pytest.mark.parametrize(("reason", "certificate", "told"), ALERTS)
def test_what_tls_says_is_final(reason: str, certificate: str | None, told: str) -> None:
    """It is told at once, with what to set."""
    error = ssl.SSLError()
    error.reason = reason
    access = Access(
        url="https://site.example.org",
        place=ENVIRONMENT,
        certificate=Path(certificate) if certificate else None,
    )

    def handler(_: ClientRequest) -> ClientResponse:
        raise TransportError("lost") from error

    line = Line(handler)

    async def work() -> None:
        with pytest.raises(InvalidServiceResponse, match=told):
            await AsyncServiceClient(access, transport=line).site()

    asyncio.run(work())
    assert len(line.requests) == 1


def test_an_alert_comes_with_the_first_read() -> None:
    """In TLS 1.3 the client's handshake is over by then; one try is enough to know."""
    certificate, key = make_certificate()
    context = server_context(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    print_ = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    said: list[str | None] = []

    def turn_away(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        connection.settimeout(30)
        with connection.dup() as kept:  # what is closed unread takes the alert with it
            try:  # unlike the loop's, this one sends an alert
                context.wrap_socket(connection, server_side=True)
            except ssl.SSLError as error:
                said.append(error.reason)
            while kept.recv(65536):
                pass

    async def work(port: int) -> None:
        access = Access(url=f"https://127.0.0.1:{port}", fingerprint=print_)
        async with AsyncServiceClient(access) as client:
            with pytest.raises(
                InvalidServiceResponse, match=r'wants a certificate.*: set "certificate" of'
            ):
                await client.site()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=turn_away, args=(listening,))
        thread.start()
        try:
            asyncio.run(work(listening.getsockname()[1]))
        finally:
            thread.join()
    assert said == ["PEER_DID_NOT_RETURN_A_CERTIFICATE"]


async def site(reader: Reader, writer: Writer) -> None:
    """Answers with what a service says of itself."""
    body = b'{"name": "physics", "processors": 4, "free": 2}'
    while True:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_a_pinned_certificate_is_all_that_is_needed() -> None:
    """And any other one is refused, at once."""
    certificate, key = make_certificate()
    context = server_context(certificate, key)
    der = ssl.PEM_cert_to_DER_cert(certificate)
    right, wrong = hashlib.sha256(der).hexdigest(), hashlib.sha256(b"x").hexdigest()

    async def work() -> None:
        async with serving(site, context) as port:
            url = f"https://127.0.0.1:{port}"
            async with AsyncServiceClient(Access(url=url, fingerprint=right)) as client:
                assert (await client.site()).name == "physics"
            async with AsyncServiceClient(Access(url=url, fingerprint=wrong)) as client:
                with pytest.raises(InvalidServiceResponse, match=r"not trusted: .*pinned"):
                    await client.site()

    asyncio.run(work())


def test_a_certificate_of_nobody_known_is_refused(tmp_path: Path) -> None:
    """Both by the system's authorities and by another one given."""
    certificate, key = make_certificate()
    other, _ = make_certificate()
    ca = tmp_path / "ca.pem"
    ca.write_text(other)

    async def work() -> None:
        async with serving(site, server_context(certificate, key)) as port:
            url = f"https://127.0.0.1:{port}"
            for access in (Access(url=url), Access(url=url, ca=ca)):
                async with AsyncServiceClient(access) as client:
                    with pytest.raises(
                        InvalidServiceResponse, match="its certificate is not trusted"
                    ) as why:
                        await client.site()
                    told = 'set "ca" of Access' if access.ca is None else f"is not in {ca}"
                    assert told in str(why.value)

    asyncio.run(work())


def test_a_service_that_wants_a_certificate_says_so() -> None:
    """Its loop closes the connection without a word; a hint is all there can be, and is final."""
    certificate, key = make_certificate()
    context = server_context(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    print_ = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()

    async def work() -> None:
        async with serving(site, context) as port:
            access = Access(url=f"https://127.0.0.1:{port}", fingerprint=print_)
            async with AsyncServiceClient(access) as client:
                with pytest.raises(
                    ServiceUnreachable, match=r'wants a certificate.*: set "certificate" of'
                ):
                    await client.site()

    asyncio.run(work())


def test_tls_to_who_does_not_speak_it_is_told() -> None:
    """The port of something else."""

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def work() -> None:
        async with (
            serving(serve) as port,
            AsyncServiceClient(f"https://127.0.0.1:{port}") as client,
        ):
            with pytest.raises(InvalidServiceResponse, match="does not speak TLS"):
                await client.site()

    asyncio.run(work())


def test_nothing_is_left_open() -> None:
    """Closing the client closes all of its sockets, busy ones too."""
    before = len(os.listdir("/proc/self/fd"))

    async def serve(reader: Reader, writer: Writer) -> None:
        while True:
            path = (await head_of(reader)).split()[1]
            if path == b"/wait":
                await asyncio.sleep(60)
            writer.write(OK)

    async def work() -> None:
        async with serving(serve) as port:
            sockets = AiohttpTransport(None)
            await ask(sockets, ClientRequest("GET", url_of(port)))
            waiting = asyncio.create_task(
                ask(sockets, ClientRequest("GET", f"http://127.0.0.1:{port}/wait"))
            )
            await asyncio.sleep(0.05)
            await sockets.aclose()
            with pytest.raises(TransportError):
                await waiting

    asyncio.run(work())
    assert len(os.listdir("/proc/self/fd")) == before


async def endless(writer: Writer) -> None:
    """An answer that never ends."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await writer.drain()


@pytest.mark.parametrize("status", [b"200 OK", b"500 Broken"])
def test_an_answer_without_an_end_is_refused(
    status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it fills the memory: one of success as well as a problem, and for good."""
    monkeypatch.setattr(connection, "LONGEST_ANSWER", 1 << 20)

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 %b\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        await endless(writer)

    async def work() -> None:
        async with (
            serving(serve) as port,
            AsyncServiceClient(f"http://127.0.0.1:{port}") as client,
        ):
            with pytest.raises(InvalidServiceResponse, match="answers more than 1 MiB"):
                await client.site()

    asyncio.run(work())


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results and changes come as streams of lines, each of which is in memory as a whole."""
    monkeypatch.setattr(transfers, "LONGEST", 1 << 20)

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await endless(writer)

    async def work() -> None:
        async with (
            serving(serve) as port,
            AsyncServiceClient(f"http://127.0.0.1:{port}") as client,
        ):
            with pytest.raises(InvalidServiceResponse, match="a line is longer than 1 MiB"):
                await anext(client.events("x"))

    asyncio.run(work())


def test_a_packed_answer_is_not_unpacked() -> None:
    """Nobody asked for one, and a few bytes could become very many."""
    body = gzip.compress(b'{"name": "physics", "processors": 4, "free": 2}')

    async def serve(reader: Reader, writer: Writer) -> None:
        await head_of(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )

    async def work() -> None:
        async with (
            serving(serve) as port,
            AsyncServiceClient(f"http://127.0.0.1:{port}") as client,
        ):
            with pytest.raises(InvalidServiceResponse, match="encoding that was not asked for"):
                await client.site()

    asyncio.run(work())
