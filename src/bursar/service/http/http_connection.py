"""
Serves an ASGI application over HTTP: uvicorn's protocol with limits for untrusted clients.

A client must send its request in good time, keep sending it, and read the answer.
"""

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from bursar.dispatch.credential import keep_alive
from bursar.model.errors import InputError
from bursar.service.config import HttpLimits
from bursar.service.http.http_messages import problem_response
from bursar.service.http.limiters import ConnectionAcceptor, ConnectionSlot
from bursar.service.interfaces import ServiceError

# One HTTP connection: uvicorn's protocol with limits for untrusted clients.

_HEADER_OVERHEAD = 4  # bytes of ": " and CRLF around the name and value of a header
_END_OF_AUTHORITY = re.compile(rb"[/?#]")


class HttpConnection(HttpToolsProtocol):
    """
    The protocol of one connection, with timeouts and limits of sizes and rates.

    A client may have one request at a time: when it sends another one before it has its answer, the
    answer ends the connection, and says so; the other request is ignored.

    Parameters
    ----------
    config, state
        Objects of uvicorn.
    """

    def __init__(
        self, config: Config, state: ServerState, limits: HttpLimits, slot: ConnectionSlot
    ) -> None:
        super().__init__(config, state, {})
        self.access_log = False  # paths hold handles
        self.timeout_keep_alive = limits.idle_seconds  # type: ignore[assignment] # any number
        self._limits = limits
        self._slot = slot
        self._tls: dict[object, object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._ignores_input = False  # of a request that came before the answer to the last one
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0  # of this request, parsed so far
        self._unended_bytes = 0  # of this request, received before the end of its headers
        self._body_bytes = 0  # since the last check of the rate

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request."""
        super().connection_made(transport)
        with suppress(OSError):  # the client has disconnected
            keep_alive(transport.get_extra_info("socket"), self._limits.idle_seconds)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._tls = {"client_certificate": secured.getpeercert(binary_form=True)}
        self._start_timer(self._limits.header_seconds, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers and free the slot."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        if self._send_timer is not None:
            self._send_timer.cancel()
        self._slot.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a request."""
        self._unset_keepalive_if_required()
        if self.transport.is_closing() or self._ignores_input:
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # answered as if no upgrade had been requested
        except httptools.HttpParserError as error:
            if not self._ignores_input:
                # httptools wraps what a callback of this class has raised.
                cause = error.__context__
                if not isinstance(cause, ServiceError):
                    cause = ServiceError("bad-request", 400, "this is no HTTP request")
                self._refuse(cause)
            return
        if self._in_head:
            self._check_head(len(data))
        # Bytes that begin no request (empty lines may come before one, RFC 9112, section 2.2) do
        # not keep the connection open.
        elif self._timer is None and not self._in_body and not self._is_busy:
            self._start_timer(self._limits.header_seconds, self._close)

    def pause_writing(self) -> None:
        """Abort the connection unless the client reads within ``send_seconds``."""
        super().pause_writing()
        # One timer from the first pause: a client that reads a byte now and then is resumed, which
        # stops the timer, only when the buffer is nearly empty.
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(self._limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer: the client has read."""
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        super().resume_writing()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Start a request; a second one at the same time ends the connection."""
        if self._is_busy:
            # Input is still read: closing with unread input would reset the connection, and the
            # client might lose the answer (RFC 9112, section 9.6).
            self._ignores_input = True
            self.cycle.keep_alive = False
            raise ValueError("one request at a time")
        self._in_head = True
        self._head_bytes = self._unended_bytes = 0
        self._start_timer(self._limits.header_seconds, self._refuse_as_slow)
        super().on_message_begin()
        if self._tls is not None:
            self.scope["extensions"] = {"tls": self._tls}

    def on_url(self, url: bytes) -> None:
        """Count and keep a piece of the request's target."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and keep a header; trailers after the body are ignored."""
        self._count_head(len(name) + len(value) + _HEADER_OVERHEAD)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the headers, mark the slot busy and watch the rate of the body."""
        self._check_coding()
        self._use_host_of_target()
        self._in_head, self._in_body = False, True
        # From the end of the headers: a connection that only begins requests stays closable for
        # others.
        self._slot.busy()
        self._body_bytes = 0
        self._start_timer(self._limits.body_seconds, self._check_rate)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count and pass on a piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the timers: the whole request has arrived."""
        self._in_body = False
        self._stop_timer()
        super().on_message_complete()

    # Called when an answer has been sent.

    def on_response_complete(self) -> None:
        """Mark the slot idle; an unread rest of the body must arrive in ``body_seconds``."""
        super().on_response_complete()
        self._slot.idle()
        if self._in_body and not self.transport.is_closing():
            self._start_timer(self._limits.body_seconds, self._close)

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """Call ``otherwise`` after some seconds; a timer that runs already is stopped."""
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, otherwise)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_rate(self) -> None:
        enough = self._body_bytes >= self._limits.body_rate * self._limits.body_seconds
        if not enough and not self.flow.read_paused:  # while paused, the service is the slow one
            self._refuse_as_slow()
            return
        # Each period by itself: an early burst does not pay for a body that trickles later.
        self._body_bytes = 0
        self._start_timer(self._limits.body_seconds, self._check_rate)

    def _check_coding(self) -> None:
        """
        Refuse a body whose transfer coding is not ``chunked`` alone.

        Raises
        ------
        ServiceError
            501 or 400; RFC 9112, section 6.1.
        """
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if not codings:
            return
        found = [coding.strip().lower() for value in codings for coding in value.split(b",")]
        is_old = self.parser.get_http_version() == "1.0"
        if is_old or found[-1] != b"chunked" or found.count(b"chunked") > 1:
            detail = "expected HTTP/1.1 and chunks, once and as the last coding"
            raise ServiceError("bad-request", 400, detail, where="Transfer-Encoding")
        if found != [b"chunked"]:
            detail = "expected no other transfer coding than chunked"
            raise ServiceError("bad-coding", 501, detail, where="Transfer-Encoding")

    def _use_host_of_target(self) -> None:
        """
        Let the host of an address in absolute form take the place of the Host header.

        The application refuses foreign hosts by the Host header. Otherwise a proxy that reads the
        address and a service that reads the header would see two different requests.

        Raises
        ------
        ServiceError
            421, when the address is of another scheme; RFC 9112, section 3.2.2, and RFC 9110,
            section 7.4.
        """
        scheme, found, rest = self.url.partition(b"://")
        if not found or self.url.startswith((b"/", b"*")):
            return
        host = _END_OF_AUTHORITY.split(rest, 1)[0]
        if not rest.startswith(b"/", len(host)):  # an empty path is that of the root
            self.url = b"%b://%b/%b" % (scheme, host, rest[len(host) :])
        if scheme.decode().lower() != self.scheme or not host:
            raise ServiceError("wrong-host", 421, "this service has no such name", where="Host")
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) < 2:  # a repeated one is refused by the application
            self.headers[:] = [(name, value) for name, value in self.headers if name != b"host"]
            self.headers.append((b"host", host))

    def _count_head(self, size: int) -> None:
        """
        Count bytes of a request's line and headers that were parsed.

        Raises
        ------
        ServiceError
            431, when there are too many.
        """
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes:
            raise self._too_large()

    def _check_head(self, size: int) -> None:
        """Count received bytes, some of which may be a header that has not ended yet."""
        self._unended_bytes += size
        if self._unended_bytes > self._limits.header_bytes:
            self._refuse(self._too_large())

    def _too_large(self) -> ServiceError:
        most = self._limits.header_bytes
        return ServiceError("too-large", 431, f"expected at most {most} bytes of headers")

    def _refuse_as_slow(self) -> None:
        self._refuse(ServiceError("too-slow", 408, "the request came too slowly"))

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: ServiceError) -> None:
        """Send an error, unless an answer has begun, and end the connection."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        # Half of an answer is out: an error in the middle of it would be taken for its content.
        if self.cycle is not None and self._is_busy and self.cycle.response_started:
            self.transport.abort()
            return
        reply = problem_response(error)
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (
            reply.kind.encode(),
            len(reply.body),
        )
        self.transport.write(STATUS_LINE[error.status] + head + reply.body)
        self.transport.close()


# Serves an ASGI application over HTTP.


class HttpListener:
    """
    The listening sockets of an application and the connections accepted there.

    Parameters
    ----------
    state
        Connections and tasks of uvicorn.
    """

    def __init__(self, acceptor: ConnectionAcceptor, state: ServerState) -> None:
        self._acceptor = acceptor
        self._state = state

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Address and port of each listening socket."""
        return [listening.getsockname()[:2] for listening in self._acceptor.sockets]

    async def close(self, grace: float = 0.0) -> None:
        """Accept no more connections; running requests have ``grace`` seconds to end."""
        await self._acceptor.close()
        for connection in list(self._state.connections):
            # Idle ones end now; one with a request ends after its answer.
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # until connection_lost of each has been called
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_http(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    limits: HttpLimits | None = None,
) -> HttpListener:
    """
    Listen for requests to an application.

    Parameters
    ----------
    app
        ASGI application.
    host, port
        Address to listen on; port 0: any free one.
    tls
        None: not encrypted, which is allowed on the loopback interface only.

    Raises
    ------
    InputError
        When it cannot listen there, or must not.
    """
    limits = limits or HttpLimits()

    async def until_cancelled(scope: Any, receive: Any, send: Any) -> None:
        # Only :meth:`HttpListener.close` cancels; uvicorn would take the cancellation for a fault
        # of the application.
        with suppress(asyncio.CancelledError):
            await app(scope, receive, send)

    config = Config(
        until_cancelled,
        loop="none",
        http="httptools",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # clients could forge their address
        server_header=False,
        date_header=False,
    )
    config.load()
    state = ServerState()
    acceptor = ConnectionAcceptor(
        lambda slot: HttpConnection(config, state, limits, slot), tls, limits
    )
    where = f"{host}:{port}"
    try:
        await acceptor.bind(host, port)
    except OSError as error:
        raise InputError(f"cannot listen: {error.strerror or error}", where=where) from None
    open_to = [listening.getsockname()[0] for listening in acceptor.sockets]
    # The addresses that were really bound: a name may stand for several, and not only for those
    # that its owner thinks of.
    if tls is None and not all(ipaddress.ip_address(at).is_loopback for at in open_to):
        acceptor.leave()
        raise InputError(
            "expected a loopback address, or TLS: others could read and forge all that is said",
            where=where,
        )
    acceptor.start()
    return HttpListener(acceptor, state)
