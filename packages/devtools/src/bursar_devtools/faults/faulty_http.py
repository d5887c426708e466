"""
Simulates the way from a client to an ASGI application, on which requests and answers get lost.

A request may get lost, arrive twice, or have its answer lost; an answer may be cut off in the
middle. What neither HTTP nor TCP allows does not happen: bytes of one answer keep their order.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

from bursar.remote.http_transport import (
    ClientRequest,
    ClientResponse,
    ConnectionFailed,
    TransportError,
)
from bursar_devtools.faults.faulty_network import DelayedChannel, FaultyNetwork
from bursar_devtools.faults.simulated_process import SimulatedProcess

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_LATEST = 30.0
"""Most seconds after which a repeated request arrives."""

_LONGEST_SILENCE = 60.0
"""Seconds without a message of the answer after which a request fails."""


class SimulatedEndpoint:
    """
    Simulates an address at which one process after another serves an application.

    Parameters
    ----------
    on_crash
        Called with a description when the application raises, which is always an error.
    on_moment
        Called with method and path of each request that arrives, and again on a success.
    is_struck
        Whether a request with this method and path is repeated or its answer lost, whatever the
        network's conditions.
    """

    def __init__(
        self,
        on_crash: Callable[[str], None],
        on_moment: Callable[[str, str], None] = lambda method, path: None,
        is_struck: Callable[[str, str], bool] = lambda method, path: False,
    ) -> None:
        self.on_crash = on_crash
        self.on_moment = on_moment
        self.is_struck = is_struck
        self._serving: tuple[SimulatedProcess, Application] | None = None

    def serve(self, process: SimulatedProcess, application: Application) -> None:
        """Route requests to an application until the serving process ends."""
        self._serving = (process, application)

    @property
    def serving(self) -> tuple[SimulatedProcess, Application] | None:
        """Process and application that serve now; None while there is none."""
        if self._serving is None or not self._serving[0].is_alive:
            return None
        return self._serving


class FaultyHttpTransport:
    """
    Carries a client's requests to the service, with faults.

    Parameters
    ----------
    network
        Network between client and service.
    process
        Process of the client.
    service
        Address of the service.
    """

    def __init__(
        self, network: FaultyNetwork, process: SimulatedProcess, service: SimulatedEndpoint
    ) -> None:
        self._network = network
        self._process = process
        self._service = service

    async def send(self, request: ClientRequest) -> ClientResponse:
        """
        Send a request, and wait for the head of the answer.

        Raises
        ------
        TransportError
            When the network failed.
        """
        body = await request.read()
        network, party = self._network, self._process.party
        serving = self._service.serving
        if serving is None:
            await asyncio.sleep(network.lateness())
            raise ConnectionFailed("connection refused")
        if network.blocked(party, serving[0].party):
            await asyncio.sleep(min(_LONGEST_SILENCE, network.blocked(party, serving[0].party)))
            raise TimeoutError("nothing comes through")
        what = f"{request.method} {_path_of(request)}"
        if network.happens(network.conditions.handshakes):
            network.trace.fault("handshake", party, f"fails: {what}")
            await asyncio.sleep(network.lateness())
            raise ConnectionFailed("handshake failure")
        if network.happens(network.conditions.loses):
            network.trace.fault("request lost", party, what)
            # A lost request shows by a reset at once or by silence for as long as the client waits.
            await asyncio.sleep(network.chance.uniform(0, _LONGEST_SILENCE))
            raise TransportError("connection reset by peer")
        struck = self._service.is_struck(request.method, _path_of(request))
        repeats = struck and network.chance.random() < 0.7
        if repeats or network.happens(network.conditions.repeats):
            network.trace.fault("request repeated", party, what)
            later = network.chance.uniform(0, _LATEST)
            # Without a client: the copy is carried out in full, and nobody reads the answer.
            _HttpExchange(network, None, party, self._service, request, body).begin_after(later)
        exchange = _HttpExchange(network, self._process, party, self._service, request, body)
        if (struck and network.chance.random() < 0.5) or network.happens(
            network.conditions.forgets
        ):
            network.trace.fault("answer lost", party, what)
            # Before the head, between head and body, or within the body: each leaves the client in
            # another doubt.
            exchange.forget_after(network.chance.choice((0, 1, 2, 3)))
        exchange.begin_after(network.lateness())
        answer = _FaultyBody(exchange)
        start = await answer.next()
        assert start["type"] == "http.response.start"
        headers = {name.decode(): value.decode() for name, value in start.get("headers", [])}
        return ClientResponse(start["status"], headers=headers, stream=answer)

    async def aclose(self) -> None:
        """Do nothing: no connection is kept."""


class _HttpExchange:
    """
    Runs one request at the service; the answer goes to the client, if there is one.
    """

    def __init__(
        self,
        network: FaultyNetwork,
        client: SimulatedProcess | None,
        party: str,
        service: SimulatedEndpoint,
        request: ClientRequest,
        body: bytes,
    ) -> None:
        self._network = network
        self._client = client
        self._party = party
        self._service = service
        self._request = request
        self._body = [body]
        self._server: SimulatedProcess | None = None
        self._lane: DelayedChannel[Message | Exception] | None = None
        self._messages_left = -1
        self._gone = asyncio.Event()
        self._ended = False
        self.heard: deque[Message | Exception] = deque()
        self.changed = asyncio.Event()
        if client is not None:
            client.on_death(self.leave)

    def forget_after(self, messages: int) -> None:
        """Break the connection after so many messages of the answer."""
        self._messages_left = messages

    def begin_after(self, seconds: float) -> None:
        """Deliver the request after some seconds, if the serving process is alive then."""
        serving = self._service.serving
        assert serving is not None
        self._server = serving[0]
        if self._client is not None:
            self._lane = DelayedChannel(self._network, self._server.party, self._client, self._hear)
        # The process that serves now, not the one at arrival: a request under way to a process that
        # was killed gets no answer from the next one.
        self._server.on_death(self._broken)
        self._server.call_later(seconds, self._begin, serving[1])

    def leave(self) -> None:
        """Stop waiting for the answer."""
        self._lane = None
        if self._server is not None and not self._ended:
            self._server.call_later(self._network.lateness(), self._gone.set)

    def _hear(self, message: Message | Exception) -> None:
        self.heard.append(message)
        self.changed.set()

    def _broken(self) -> None:
        if self._lane is not None and not self._ended:
            self._lane.send(TransportError("connection reset by peer"))
            self._lane = None

    # Steps of the service's process.

    def _begin(self, application: Application) -> None:
        assert self._server is not None
        self._service.on_moment(self._request.method, _path_of(self._request))
        self._server.spawn(self._serve(application))

    async def _serve(self, application: Application) -> None:
        try:
            await application(_asgi_scope(self._request, self._party), self._receive, self._send)
        except Exception as error:
            self._service.on_crash(
                f"{self._request.method} {_path_of(self._request)}: {type(error).__name__}: {error}"
            )
            self._broken()
        self._ended = True

    async def _receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 500:
            # No fault of the simulation excuses an internal error.
            self._service.on_crash(f"{self._request.method} {_path_of(self._request)}: status 500")
        if message["type"] == "http.response.start" and message["status"] < 300:
            self._service.on_moment(self._request.method, _path_of(self._request))
        if self._messages_left == 0:
            self._broken()
            self._gone.set()
        self._messages_left -= 1
        if self._lane is not None:
            self._lane.send(dict(message))
        await asyncio.sleep(0)


class _FaultyBody:
    """Yields the answer's bytes on arrival."""

    def __init__(self, exchange: _HttpExchange) -> None:
        self._exchange = exchange

    async def next(self) -> Message:
        """Return the next message of the answer."""
        exchange = self._exchange
        try:
            while not exchange.heard:
                exchange.changed.clear()
                async with asyncio.timeout(_LONGEST_SILENCE):
                    await exchange.changed.wait()
        except TimeoutError:
            exchange.leave()
            raise TimeoutError("no answer in time") from None
        except asyncio.CancelledError:
            exchange.leave()
            raise
        message = exchange.heard.popleft()
        if isinstance(message, Exception):
            raise message
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self.next()
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        """Stop without waiting for the rest."""
        self._exchange.leave()


def _path_of(request: ClientRequest) -> str:
    return unquote(urlsplit(request.url).path)


def _asgi_scope(request: ClientRequest, party: str) -> dict[str, Any]:
    url = urlsplit(request.url)
    headers = {"Host": url.netloc, **request.headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": _path_of(request),
        "raw_path": url.path.encode(),
        "query_string": url.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": (party, 0),
        "server": (url.hostname, url.port),
        "state": {},
        "extensions": {},
    }
