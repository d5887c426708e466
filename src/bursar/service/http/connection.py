"""
One connection: what uvicorn's protocol leaves to whoever faces strangers.

Who connects must say what it wants in good time, go on saying it, and take the answer.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from bursar.dispatch.keepalive import keep_alive
from bursar.service.http.accepting import Place
from bursar.service.http.limits import HttpLimits
from bursar.service.http.problems import reply_of
from bursar.service.parties import ServiceError


class Connection(HttpToolsProtocol):
    """
    A connection.

    One request at a time: what a client sends before it has its answer ends the connection.

    Parameters
    ----------
    config, state
        Of uvicorn.
    limits
        How long, how much.
    place
        Its own.
    """

    def __init__(
        self, config: Config, state: ServerState, limits: HttpLimits, place: Place
    ) -> None:
        super().__init__(config, state, {})
        self.access_log = False  # paths hold handles
        self.timeout_keep_alive = limits.idle_seconds  # type: ignore[assignment] # any number
        self._limits = limits
        self._place = place
        self._tls: dict[object, object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0  # of this request, those parsed
        self._unended_bytes = 0  # of this request, all that came before the end of its headers
        self._body_bytes = 0  # since the rate was looked at

    # Of the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there: has to ask something soon."""
        super().connection_made(transport)
        with suppress(OSError):  # gone again
            keep_alive(transport.get_extra_info("socket"), self._limits.idle_seconds)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            self._tls = {"client_certificate": secured.getpeercert(binary_form=True)}
        self._within(self._limits.header_seconds, self._cut)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._at_leisure()
        self._unset_keepalive_if_required()
        if self._sending is not None:
            self._sending.cancel()
        self._place.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request."""
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.cycle.keep_alive = False  # answered as if it had not asked for that
        except httptools.HttpParserError:
            self._refuse(ServiceError("bad-request", 400, "this is no HTTP request"))
            return
        if self._in_head:
            self._check_head(len(data))
        elif self._timer is None and not self._in_body and not self._is_busy:
            self._within(self._limits.header_seconds, self._cut)

    def pause_writing(self) -> None:
        """The client does not read what it is sent."""
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(self._limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read some."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        super().resume_writing()

    # Of the parser.

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_busy:
            raise ValueError("one request at a time")
        self._in_head = True
        self._head_bytes = self._unended_bytes = 0
        self._within(self._limits.header_seconds, self._late)
        super().on_message_begin()
        if self._tls is not None:
            self.scope["extensions"] = {"tls": self._tls}

    def on_url(self, url: bytes) -> None:
        """A piece of the address."""
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; one after the body says nothing to anybody."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.header_bytes:
            raise ValueError("too many headers")
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """What is asked is known; its body comes, if there is one."""
        self._in_head, self._in_body = False, True
        self._place.busy()
        self._body_bytes = 0
        self._within(self._limits.body_seconds, self._look_at_rate)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is there."""
        self._in_body = False
        self._at_leisure()
        super().on_message_complete()

    # Of the answer.

    def on_response_complete(self) -> None:
        """The answer was sent; what is left of a body that nobody wants has a moment to come."""
        super().on_response_complete()
        self._place.idle()
        if self._in_body and not self.transport.is_closing():
            self._within(self._limits.body_seconds, self._cut)

    # Inside.

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _within(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """Something has to happen in so many seconds."""
        self._at_leisure()
        self._timer = self.loop.call_later(seconds, otherwise)

    def _at_leisure(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at_rate(self) -> None:
        enough = self._body_bytes >= self._limits.body_rate * self._limits.body_seconds
        if not enough and not self.flow.read_paused:  # when paused, it is we who are slow
            self._late()
            return
        self._body_bytes = 0
        self._within(self._limits.body_seconds, self._look_at_rate)

    def _check_head(self, size: int) -> None:
        """So many more bytes, of which a part may be a header that has no end yet."""
        self._unended_bytes += size
        most = self._limits.header_bytes
        if self._unended_bytes > most:
            self._refuse(
                ServiceError("too-large", 431, f"expected at most {most} bytes of headers")
            )

    def _late(self) -> None:
        self._refuse(ServiceError("too-slow", 408, "the request came too slowly"))

    def _cut(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: ServiceError) -> None:
        """Says so, unless an answer has begun, and ends the connection."""
        self._at_leisure()
        if self.transport.is_closing():
            return
        if self.cycle is not None and self._is_busy and self.cycle.response_started:
            self.transport.abort()
            return
        reply = reply_of(error)
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (
            reply.kind.encode(),
            len(reply.body),
        )
        self.transport.write(STATUS_LINE[error.status] + head + reply.body)
        self.transport.close()
