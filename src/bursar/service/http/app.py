"""The API as an ASGI application: each request is let in, read, answered and told of."""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bursar.service.http.call import Call
from bursar.service.http.file_store import FileStore
from bursar.service.http.gate import NOBODY, Gate, WhileKnown
from bursar.service.http.limits import HttpLimits
from bursar.service.http.openapi import document
from bursar.service.http.origins import check_caller
from bursar.service.http.parts import Parts
from bursar.service.http.problems import incident_reply, reply_of
from bursar.service.http.reply import Headers, Reply, Stream
from bursar.service.http.request import Gone, Receive, Request, Scope, Send, nothing_here
from bursar.service.http.room import Shares
from bursar.service.http.router import Router
from bursar.service.http.routes import Body, Route
from bursar.service.http.sending import PIECE, Waiting, send_reply, send_stream
from bursar.service.parties import Principal, ServiceError
from bursar.version import VERSION


@dataclass(slots=True)
class _Known:
    """What has been found out about a request."""

    route: str = ""
    principal: Principal = NOBODY
    headers: Headers = ()  # of the problem it leads to


class Api:
    """
    The API.

    Parameters
    ----------
    parts
        What lies behind it.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._gate = Gate(parts)
        self._router = Router()
        self._file_store = FileStore()
        self._document = document(VERSION)
        self._waiting = Waiting()
        self._buffers = Shares(parts.limits.buffered_bytes)
        self._answers = Shares(parts.limits.answered_bytes)
        self._salt = parts.entropy(16)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._serve(Request(scope, receive), send)

    def relimit(self, limits: HttpLimits, own_limits: Mapping[str, HttpLimits]) -> None:
        """
        How much, and how often, anybody may ask from now on.

        The room for what is in memory stays as it is; so does what a connection may, which is the
        listener's.
        """
        self._parts = replace(self._parts, limits=limits, own_limits=own_limits)
        self._gate.relimit(limits, own_limits)

    def end_streams(self) -> None:
        """Whoever waits for something to happen is answered now, and from now on at once."""
        self._waiting.end()

    def close(self) -> None:
        """After the last request."""
        self._waiting.end()
        self._file_store.close()

    async def _serve(self, request: Request, send: Send) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        known = _Known()
        with ExitStack() as held:
            reply: Reply | Stream
            try:
                reply = await self._reply(request, known, held)
            except Gone:
                return
            except ServiceError as error:
                reply = reply_of(error, known.headers)
            except Exception as error:
                reply = incident_reply(self._incident(known.route, error))
            try:
                await self._send(reply, request, known.route, send)
            finally:
                self._parts.observer.served(
                    method=request.method if known.route else "",
                    route=known.route,
                    status=reply.status,
                    seconds=loop.time() - begun,
                    who=self._alias(known.principal.user),
                )

    async def _reply(self, request: Request, known: _Known, held: ExitStack) -> Reply | Stream:
        check_caller(request.scheme, request.headers, self._parts.names)
        request.check_headers()
        route, values = self._route(request, known)
        known.route = route.name
        known.principal = self._gate.know(request, route)
        self._gate.let_in(known.principal, route, held)
        query = request.query(route.query)
        given: dict[str, Any] = {"query": query} if route.query is not None else {}
        if route.pieces:
            _check_kind(request.kind, route.pieces)
        if route.body is not None:
            given["body"] = await self._read(request, route.body, known.principal.user)
        call = Call(
            parts=self._parts,
            file_store=self._file_store,
            principal=known.principal,
            path=values,
            headers=request.headers,
            kind=request.kind,
            pieces=request.pieces,
            over=lambda: self._waiting.until(request.gone()),
            answers=self._answers,
            document=self._document,
        )
        reply = await route.handler(call, **given)
        if isinstance(reply, Reply):
            self._hold(reply, known.principal.user, held)
        if isinstance(reply, Stream) and reply.size is None:
            try:
                self._gate.let_stream(known.principal, held)
            except ServiceError:
                await reply.pieces.aclose()
                raise
            if route.access != "public":
                known_still = partial(self._gate.still_knows, request, known.principal)
                reply = reply._replace(pieces=WhileKnown(reply.pieces, known_still))
        return reply

    def _route(self, request: Request, known: _Known) -> tuple[Route, dict[str, Any]]:
        try:
            routes, values = self._router.find(request.parts())
            if not routes:
                raise nothing_here()
            route = routes.get("GET" if request.method == "HEAD" else request.method)
            if route is None:
                known.headers = (("allow", ", ".join(sorted(routes))),)
                raise ServiceError("bad-method", 405, f"expected {' or '.join(sorted(routes))}")
        except ServiceError:
            self._gate.count_stranger(request)
            raise
        return route, values

    async def _read(self, request: Request, body: Body, user: str) -> Any:
        """The value in a request's body."""
        limits = self._parts.limits
        _check_kind(request.kind, tuple(body.readers))
        pieces = []
        size = 0
        try:
            async for piece in request.pieces(getattr(limits, body.limit)):
                if not self._buffers.take(user, len(piece)):
                    detail = "the service has its hands full"
                    raise ServiceError("busy", 503, detail, retry_after=1.0)
                pieces.append(piece)
                size += len(piece)
            return body.readers[request.kind](b"".join(pieces))
        finally:
            self._buffers.give_back(user, size)

    def _hold(self, reply: Reply, user: str, held: ExitStack) -> None:
        """What is large takes its share of the memory until it is sent."""
        size = len(reply.body)
        if size <= PIECE:
            return
        if not self._answers.take(user, size, lone=True):
            detail = "too much that was asked for has not been taken yet"
            raise ServiceError("too-many", 429, detail, retry_after=1.0)
        held.callback(self._answers.give_back, user, size)

    async def _send(self, reply: Reply | Stream, request: Request, route: str, send: Send) -> None:
        bare = request.method == "HEAD"
        if isinstance(reply, Reply):
            await send_reply(reply, send, bare=bare)
            return

        goes_on = reply.size is None
        seconds = self._parts.limits.stream_seconds if goes_on else None

        def over() -> asyncio.Future[None]:
            gone = request.gone()
            return self._waiting.until(gone) if goes_on else asyncio.ensure_future(gone)

        try:
            await send_stream(reply, send, bare=bare, over=over, seconds=seconds)
        except ServiceError:
            # What it told of is gone, and so is the way to say so: whoever asks again is told.
            await send({"type": "http.response.body", "body": b""})
        except Exception as error:
            self._incident(route, error)  # the connection breaks: it was not the end

    def _incident(self, route: str, error: Exception) -> str:
        incident = self._parts.entropy(8).hex()
        self._parts.observer.failed(incident, route, error)
        return incident

    def _alias(self, user: str) -> str:
        """Stands for a user in the log: equal for equal users, until the service ends."""
        if not user:
            return ""
        return hashlib.blake2b(user.encode(), key=self._salt, digest_size=6).hexdigest()


def _check_kind(kind: str, expected: tuple[str, ...]) -> None:
    # What a form of another's page may send is none of these.
    if "*/*" not in expected and kind not in expected:
        detail = f"expected {' or '.join(expected)}"
        raise ServiceError("bad-type", 415, detail, where="Content-Type")


async def _live(receive: Receive, send: Send) -> None:
    """What holds the service starts and ends it; a server that asks is told that all is well."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})
