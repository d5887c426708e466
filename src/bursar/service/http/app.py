"""The API as an ASGI application: each request is admitted, read, answered and logged."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from types import NoneType
from typing import Any

import msgspec

from bursar.dispatch.handshakes import subnet_of
from bursar.remote import messages as api
from bursar.remote.routes import (
    ANY_KIND,
    BYTES,
    JSON,
    LONGEST_KEY,
    NDJSON,
    PATH_VALUES,
    ROUTES,
    ApiRoute,
    RouteAccess,
)
from bursar.service.config import HttpLimits
from bursar.service.files.file_store import FileStore
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.endpoints import ApiEndpoint, Router
from bursar.service.http.http_messages import (
    PROBLEM,
    AuthorizedRequest,
    ByteStream,
    ClientDisconnected,
    HttpRequest,
    HttpResponse,
    Receive,
    Scope,
    Send,
    StreamingResponse,
    as_response,
    incident_response,
    problem_response,
)
from bursar.service.http.limiters import ConcurrencyLimit, DynamicThreshold, TokenBuckets
from bursar.service.http.page import is_of_page, page_response
from bursar.service.http.sending import PIECE, PendingWaits, send_response, send_streaming_response
from bursar.service.interfaces import Principal, ServiceError
from bursar.version import VERSION

# Authenticates requests, and limits the rate and number of requests.

ANONYMOUS = Principal(user="", scopes=frozenset())


class RequestAdmission:
    """
    Decides which requests are handled.
    """

    def __init__(self, service: ApiDependencies) -> None:
        self._service = service
        self._users = TokenBuckets(self._pace_of_user, service.clock)
        self._unauthenticated = TokenBuckets(self._pace_of_unauthenticated, service.clock)
        self._failures = TokenBuckets(self._pace_of_failures, service.clock)
        self._requests = ConcurrencyLimit(lambda user: self._service.limits_of(user).requests)
        self._streams = ConcurrencyLimit(lambda user: self._service.limits_of(user).streams)

    def relimit(self, service: ApiDependencies) -> None:
        """Set the components with the limits that hold from now on."""
        self._service = service

    def authenticate(self, request: HttpRequest, route: ApiRoute[Any]) -> Principal:
        """
        Return the sender of a request.

        Raises
        ------
        ServiceError
            401 or 403, or 429 after too many of these from one address. Valid credentials are
            still accepted from that address: otherwise one client could lock out all that share
            the address, and tokens cannot be guessed at any rate.
        """
        if route.access == "public":
            self.count_unauthenticated(request)
            return ANONYMOUS
        try:
            return self._service.authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            # Counted by subnet: a client may change its address within its own at will.
            wait = self._failures.take(subnet_of(request.peer))
            if wait:
                raise _too_many_requests(
                    "too many failed attempts from this address", wait
                ) from None
            raise

    def is_still_valid(self, request: HttpRequest, principal: Principal) -> bool:
        """Return whether a request's credentials are still valid: they can be revoked."""
        try:
            return principal == self._service.authenticator.authenticate(
                request.headers, request.certificate, request.peer
            )
        except ServiceError:
            return False

    def admit(self, principal: Principal, route: ApiRoute[Any], held: ExitStack) -> None:
        """
        Check scope and rate of a sender and count the request while ``held`` lasts.

        Raises
        ------
        ServiceError
            403 when the sender lacks the scope; 429 when the sender has too many requests.
        """
        if route.access == "public":
            return
        wait = self._users.take(principal.user)
        if wait:
            raise _too_many_requests("too many requests", wait)
        # After the rate: requests that are refused for their scope cost a token, too.
        if not self._may(principal, route.access):
            detail = f"this takes the scope {_scope_of(route.access)}"
            raise ServiceError("forbidden", 403, detail)
        _hold_one(self._requests, principal, held)

    def admit_stream(self, principal: Principal, held: ExitStack) -> None:
        """
        Count an open stream of a sender while ``held`` lasts.

        Raises
        ------
        ServiceError
            429 when the sender has too many streams.
        """
        _hold_one(self._streams, principal, held)

    def count_unauthenticated(self, request: HttpRequest) -> None:
        """
        Count an unauthenticated request of an address.

        Raises
        ------
        ServiceError
            429 when the address has sent too many.
        """
        wait = self._unauthenticated.take(subnet_of(request.peer))
        if wait:
            raise _too_many_requests("too many requests from this address", wait)

    def _may(self, principal: Principal, access: RouteAccess) -> bool:
        if access == "scrape":
            named = principal.user in self._service.scrapers
            return "admin" in principal.scopes or (named and "read" in principal.scopes)
        return access in principal.scopes

    def _pace_of_user(self, user: str) -> tuple[float, float]:
        limits = self._service.limits_of(user)
        return limits.rate, limits.burst

    def _pace_of_unauthenticated(self, subnet: str) -> tuple[float, float]:
        return self._service.limits.unauthenticated_rate, self._service.limits.unauthenticated_burst

    def _pace_of_failures(self, subnet: str) -> tuple[float, float]:
        return self._service.limits.failure_rate, self._service.limits.failure_burst


class AuthorizedStream:
    """
    A stream that ends when the receiver's credentials cease to be valid.

    Parameters
    ----------
    is_valid
        Returns whether the credentials are still valid; called after each piece is read and before
        it is sent.
    """

    def __init__(self, pieces: ByteStream, is_valid: Callable[[], bool]) -> None:
        self._pieces = pieces
        self._is_valid = is_valid

    def __aiter__(self) -> "AuthorizedStream":
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        if not self._is_valid():
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Close the stream."""
        await self._pieces.aclose()


def _scope_of(access: RouteAccess) -> str:
    return '"admin"' if access == "scrape" else f'"{access}"'


def _hold_one(limit: ConcurrencyLimit, principal: Principal, held: ExitStack) -> None:
    if not limit.enter(principal.user):
        raise _too_many_requests("too many requests are under way", 1.0)
    held.callback(limit.leave, principal.user)


def _too_many_requests(why: str, wait: float) -> ServiceError:
    return ServiceError("too-many", 429, why, retry_after=wait)


# Generates the OpenAPI document of the API from the table of routes.

_REF = "#/components/schemas/{name}"

_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {"type": "string", "maxLength": LONGEST_KEY, "pattern": "^[ -~]*$"},
    "Last-Event-ID": {"type": "integer", "minimum": 0},
    "Range": {"type": "string"},
    "If-Range": {"type": "string"},
}


@cache
def document(version: str) -> bytes:
    """
    Return the OpenAPI 3.1 document as JSON.
    """
    types = list(dict.fromkeys(_types(ROUTES)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    found = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = api.PREFIX + route.path.replace("*}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, found)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Bursar execution service",
                "version": version,
                "summary": "Instances, tasks and results of many users; processors for sale",
            },
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "certificate": {"type": "mutualTLS"},
                },
            },
        }
    )


def _types(routes: Iterable[ApiRoute[Any]]) -> list[Any]:
    # Types that no route names: those of errors and of the lines of NDJSON bodies.
    types: list[Any] = [api.Problem, api.Result, api.TaskSpec]
    for route in routes:
        if route.answer is not NoneType:
            types.append(route.answer)
        if route.body is not None:
            types.append(route.body)
    return types


def _operation(route: ApiRoute[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
    }
    if route.access != "public":
        operation["security"] = [{"token": [route.access]}, {"certificate": [route.access]}]
    if route.body_kinds:
        operation["requestBody"] = {
            "required": True,
            "content": dict(_body_kind(route, kind, schemas) for kind in route.body_kinds),
        }
    return operation


def _body_kind(
    route: ApiRoute[Any], kind: str, schemas: dict[Any, Any]
) -> tuple[str, dict[str, Any]]:
    """Return a media type of a route's body, and the description of that body."""
    if route.body is None:
        return (BYTES if kind == ANY_KIND else kind), {"schema": {}}
    return kind, {"schema": _lines() if kind == NDJSON else schemas[route.body]}


def _lines() -> dict[str, Any]:
    return {"type": "string", "description": "JSON, one document a line"}


def _parameters(route: ApiRoute[Any]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": msgspec.json.schema(PATH_VALUES[name]),
        }
        for part in route.path.split("/")
        if part.startswith("{")
        for name in (part.strip("{}*"),)
    ]
    if route.query is not None:
        whole = msgspec.json.schema(route.query)
        struct = whole["$defs"][route.query.__name__]
        parameters += [
            {
                "name": name,
                "in": "query",
                "required": name in struct["required"],
                "schema": schema,
            }
            for name, schema in struct["properties"].items()
        ]
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": _HEADERS[name]}
        for name in route.headers
    ]
    return parameters


def _responses(route: ApiRoute[Any], schemas: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for kind in route.kinds if route.status != 204 else ():
        if kind == JSON:
            content[kind] = {"schema": schemas[route.answer]}
        elif kind == NDJSON:
            content[kind] = {"schema": _lines()}
        else:
            content[kind] = {"schema": {}}
    good: dict[str, Any] = {"description": route.summary}
    if content:
        good["content"] = content
    problem = {"schema": schemas[api.Problem]}
    responses: dict[str, Any] = {str(route.status): good}
    if "Range" in route.headers:
        responses["206"] = good
    if route.also:
        responses[str(route.also)] = good
    if "Idempotency-Key" in route.headers:
        responses["422"] = {
            "description": "A value makes no sense, or the key came with other content before",
            "content": {PROBLEM: problem},
        }
    responses["default"] = {
        "description": "What went wrong (RFC 9457)",
        "content": {PROBLEM: problem},
    }
    return responses


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
                self._service.manager.served(
                    method=request.method if known.route else "",
                    route=known.route,
                    status=reply.status,
                    seconds=loop.time() - begun,
                    who=self._alias(known.principal.user),
                )

    async def _reply(
        self, request: HttpRequest, known: _RequestContext, held: ExitStack
    ) -> HttpResponse | StreamingResponse:
        if is_of_page(request):
            # Also from a link on a foreign page: nothing in the files is anybody's own.
            request.check_host(self._service.names)
            self._admission.count_unauthenticated(request)
            known.route = "page"
            return page_response(request)
        # Cheapest first, and before any credential is looked at: a foreign page learns nothing,
        # not even whether a path exists.
        request.check_origin(self._service.names)
        request.check_headers()
        # Before authentication, which depends on the route: public ones need none.
        endpoint, values = self._endpoint(request)
        route = endpoint.route
        known.route = route.name
        known.principal = self._admission.authenticate(request, route)
        # Before the query and the body are read: whoever sends too much is refused cheaply.
        self._admission.admit(known.principal, route, held)
        query = request.query(route.query)
        given: dict[str, Any] = {"query": query} if route.query is not None else {}
        if route.body_kinds:
            _check_kind(request.kind, route.body_kinds)
        if endpoint.readers:
            given["body"] = await self._read(request, endpoint, known.principal.user)
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
        reply = as_response(await endpoint.handler(call, **given), route.status)
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

    def _endpoint(self, request: HttpRequest) -> tuple[ApiEndpoint, dict[str, Any]]:
        try:
            # HEAD is GET without the body (RFC 9110, section 9.3.2); the body is left out when it
            # is sent.
            method = "GET" if request.method == "HEAD" else request.method
            return self._router.find(method, request.parts())
        except ServiceError:
            # Unknown paths need no credentials: guessing at them is limited by address.
            self._admission.count_unauthenticated(request)
            raise

    async def _read(self, request: HttpRequest, endpoint: ApiEndpoint, user: str) -> Any:
        """Return the decoded body of a request, which takes buffer memory until then."""
        limits = self._service.limits
        pieces = []
        size = 0
        try:
            async for piece in request.pieces(getattr(limits, endpoint.limit)):
                # As it arrives and not as it is announced: a client that announces much and sends
                # nothing takes no memory.
                if not self._buffers.take(user, len(piece)):
                    detail = "the service has its hands full"
                    raise ServiceError("busy", 503, detail, retry_after=1.0)
                pieces.append(piece)
                size += len(piece)
            return endpoint.readers[request.kind](b"".join(pieces))
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
        self._service.manager.failed(incident, route, error)
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
    if ANY_KIND not in expected and kind not in expected:
        detail = f"expected {' or '.join(expected)}"
        raise ServiceError("bad-type", 415, detail, where="Content-Type")
