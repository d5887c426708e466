"""The API as an ASGI application: each request is admitted, read, answered and logged."""

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bursar.service.files.file_store import FileStore
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.limiters import DynamicThreshold
from bursar.service.http.openapi import document
from bursar.service.http.request import (
    AuthorizedRequest,
    ClientDisconnected,
    HttpRequest,
    Receive,
    Scope,
    Send,
)
from bursar.service.http.request_admission import ANONYMOUS, AuthorizedStream, RequestAdmission
from bursar.service.http.responses import (
    HttpResponse,
    StreamingResponse,
    as_response,
    incident_response,
    problem_response,
)
from bursar.service.http.routes import ApiRoute, RequestBody, Router
from bursar.service.http.sending import PIECE, PendingWaits, send_response, send_streaming_response
from bursar.service.http_limits import HttpLimits
from bursar.service.interfaces import Principal, ServiceError
from bursar.version import VERSION


@dataclass(slots=True)
class _RequestContext:
    """The route and the principal of a request, as far as known so far."""

    route: str = ""
    principal: Principal = ANONYMOUS


class ServiceApi:
    """
    The HTTP API of the service as an ASGI application.

    Parameters
    ----------
    service
        The components of the service that the routes call.
    """

    def __init__(self, service: ApiDependencies) -> None:
        self._service = service
        self._admission = RequestAdmission(service)
        self._router = Router()
        self._file_store = FileStore()
        self._document = document(VERSION)
        self._waiting = PendingWaits()
        self._buffers = DynamicThreshold(service.limits.buffered_bytes)
        self._answers = DynamicThreshold(service.limits.answered_bytes)
        self._salt = service.entropy(16)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request; starting and stopping are the service runner's."""
        if scope["type"] == "http":
            await self._serve(HttpRequest(scope, receive), send)

    def relimit(self, limits: HttpLimits, own_limits: Mapping[str, HttpLimits]) -> None:
        """
        Set the limits of requests from now on.

        Limits of memory buffers stay as they are; limits of connections are the listener's.
        """
        self._service = replace(self._service, limits=limits, own_limits=own_limits)
        self._admission.relimit(self._service)

    def end_streams(self) -> None:
        """End all streams and waiting requests now, and answer later ones without waiting."""
        self._waiting.end()

    def close(self) -> None:
        """Release threads and waiting requests; called after the last request."""
        self._waiting.end()
        self._file_store.close()

    async def _serve(self, request: HttpRequest, send: Send) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        # Filled as the request is understood, so that failures are logged with what was known by
        # then.
        known = _RequestContext()
        with ExitStack() as held:
            reply: HttpResponse | StreamingResponse
            try:
                reply = await self._reply(request, known, held)
            except ClientDisconnected:
                return
            except ServiceError as error:
                reply = problem_response(error)
            except Exception as error:
                reply = incident_response(self._incident(known.route, error))
            try:
                await self._send(reply, request, known.route, send)
            finally:
                self._service.observer.served(
                    method=request.method if known.route else "",
                    route=known.route,
                    status=reply.status,
                    seconds=loop.time() - begun,
                    who=self._alias(known.principal.user),
                )

    async def _reply(
        self, request: HttpRequest, known: _RequestContext, held: ExitStack
    ) -> HttpResponse | StreamingResponse:
        # Cheapest first, and before any credential is looked at: a foreign page learns nothing,
        # not even whether a path exists.
        request.check_origin(self._service.names)
        request.check_headers()
        # Before authentication, which depends on the route: public ones need none.
        route, values = self._route(request)
        known.route = route.name
        known.principal = self._admission.authenticate(request, route)
        # Before the query and the body are read: whoever sends too much is refused cheaply.
        self._admission.admit(known.principal, route, held)
        query = request.query(route.query)
        given: dict[str, Any] = {"query": query} if route.query is not None else {}
        if route.pieces:
            _check_kind(request.kind, route.pieces)
        if route.body is not None:
            given["body"] = await self._read(request, route.body, known.principal.user)
        call = AuthorizedRequest(
            service=self._service,
            file_store=self._file_store,
            principal=known.principal,
            path=values,
            request=request,
            over=lambda: self._waiting.until(request.gone()),
            answers=self._answers,
            document=self._document,
        )
        reply = as_response(await route.handler(call, **given), route.status)
        # Counted until it is sent: a client that asks for pages and does not read them would fill
        # the memory of the service.
        if isinstance(reply, HttpResponse):
            self._hold(reply, known.principal.user, held)
        if isinstance(reply, StreamingResponse) and reply.size is None:
            try:
                self._admission.admit_stream(known.principal, held)
            except ServiceError:
                # The stream may hold a file or a place among the waiting, though none of it was
                # sent.
                await reply.pieces.aclose()
                raise
            if route.access != "public":
                is_valid = partial(self._admission.is_still_valid, request, known.principal)
                reply = reply._replace(pieces=AuthorizedStream(reply.pieces, is_valid))
        return reply

    def _route(self, request: HttpRequest) -> tuple[ApiRoute, dict[str, Any]]:
        try:
            # HEAD is GET without the body (RFC 9110, section 9.3.2); the body is left out when it
            # is sent.
            method = "GET" if request.method == "HEAD" else request.method
            return self._router.find(method, request.parts())
        except ServiceError:
            # Unknown paths need no credentials: guessing at them is limited by address.
            self._admission.count_unauthenticated(request)
            raise

    async def _read(self, request: HttpRequest, body: RequestBody, user: str) -> Any:
        """Return the decoded body of a request, which takes buffer memory until then."""
        limits = self._service.limits
        _check_kind(request.kind, tuple(body.readers))
        pieces = []
        size = 0
        try:
            async for piece in request.pieces(getattr(limits, body.limit)):
                # As it arrives and not as it is announced: a client that announces much and sends
                # nothing takes no memory.
                if not self._buffers.take(user, len(piece)):
                    detail = "the service has its hands full"
                    raise ServiceError("busy", 503, detail, retry_after=1.0)
                pieces.append(piece)
                size += len(piece)
            return body.readers[request.kind](b"".join(pieces))
        finally:
            self._buffers.give_back(user, size)

    def _hold(self, reply: HttpResponse, user: str, held: ExitStack) -> None:
        """Count a large reply against the user's share of reply memory until sent."""
        size = len(reply.body)
        if size <= PIECE:
            return
        if not self._answers.take(user, size, lone=True):
            detail = "too much that was asked for has not been taken yet"
            raise ServiceError("too-many", 429, detail, retry_after=1.0)
        held.callback(self._answers.give_back, user, size)

    async def _send(
        self, reply: HttpResponse | StreamingResponse, request: HttpRequest, route: str, send: Send
    ) -> None:
        bare = request.method == "HEAD"
        if isinstance(reply, HttpResponse):
            await send_response(reply, send, bare=bare)
            return

        goes_on = reply.size is None
        seconds = self._service.limits.stream_seconds if goes_on else None

        def over() -> Coroutine[Any, Any, None]:
            gone = request.gone()
            return self._waiting.until(gone) if goes_on else gone

        try:
            await send_streaming_response(reply, send, bare=bare, over=over, seconds=seconds)
        except ServiceError:
            # The instance is gone, but the status line is already sent: the next request gets 404.
            await send({"type": "http.response.body", "body": b""})
        except Exception as error:
            # Without an end of the body the connection breaks, so that the client notices.
            self._incident(route, error)

    def _incident(self, route: str, error: Exception) -> str:
        incident = self._service.entropy(8).hex()
        self._service.observer.failed(incident, route, error)
        return incident

    def _alias(self, user: str) -> str:
        """
        Return a pseudonym of a user for the log, equal for equal users until the service ends.
        """
        if not user:
            return ""
        # Keyed by a salt of this life of the service: names cannot be found by trying them.
        return hashlib.blake2b(user.encode(), key=self._salt, digest_size=6).hexdigest()


def _check_kind(kind: str, expected: tuple[str, ...]) -> None:
    # An HTML form of a foreign page can send none of these media types.
    if "*/*" not in expected and kind not in expected:
        detail = f"expected {' or '.join(expected)}"
        raise ServiceError("bad-type", 415, detail, where="Content-Type")
