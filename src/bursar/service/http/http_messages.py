"""A received HTTP request, checked as it is read, and what handlers answer."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlsplit

import msgspec

from bursar.remote.messages import PREFIX, Problem
from bursar.remote.route_queries import Empty
from bursar.remote.routes import JSON, LONGEST_KEY
from bursar.service.config import HttpLimits
from bursar.service.files.file_store import FileStore
from bursar.service.http.dependencies import ApiDependencies
from bursar.service.http.limiters import DynamicThreshold
from bursar.service.interfaces import Principal, ServiceError
from bursar.supervisor import TaskSupervisor

# Values that handlers return: whole responses and streams.

Headers = tuple[tuple[str, str], ...]

encode_json = msgspec.json.Encoder().encode
"""Encode a value as JSON; the encoder is made once."""


class HttpResponse(NamedTuple):
    """
    A response whose body is in memory.

    Parameters
    ----------
    headers
        Headers besides content type and length.
    """

    body: bytes = b""
    status: int = 200
    kind: str = JSON
    headers: Headers = ()


class ByteStream(Protocol):
    """An asynchronous iterator over bytes that can be closed."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the stream itself."""

    async def __anext__(self) -> bytes:
        """Return the next piece."""

    async def aclose(self) -> None:
        """Close the stream, even before the first piece."""


class StreamingResponse(NamedTuple):
    """
    A response whose body is sent piece by piece.

    Parameters
    ----------
    size
        Bytes of the whole body; None: unknown, as the stream goes on.
    """

    pieces: ByteStream
    kind: str
    status: int = 200
    size: int | None = None
    headers: Headers = ()


def json_response(answer: Any, status: int = 200, headers: Headers = ()) -> HttpResponse:
    """Return a response with a value as JSON."""
    return HttpResponse(encode_json(answer), status, JSON, headers)


def as_response(answer: Any, status: int) -> HttpResponse | StreamingResponse:
    """
    Return what a handler returned as a response.

    Parameters
    ----------
    answer
        A response; None for one without a body; or a value to be encoded as JSON.
    status
        Status of a value's response.
    """
    if isinstance(answer, HttpResponse | StreamingResponse):
        return answer
    return HttpResponse(b"", 204, "") if answer is None else json_response(answer, status)


# Errors as problem documents (RFC 9457).

T = TypeVar("T")

PROBLEM = "application/problem+json"

_PLACE = re.compile(r" - at `(?:key in )?\$?\.?(.*)`$", re.DOTALL)
_LONGEST = 500  # characters of what is said of one case


def problem_response(error: ServiceError) -> HttpResponse:
    """Return the response with an error's problem document."""
    problem = Problem(
        type=f"/problems/{error.kind}",
        title=error.kind.replace("-", " ").capitalize(),
        status=error.status,
        detail=_line(error.detail),
        where=_line(error.where),
        retry_after=error.retry_after,
    )
    headers: Headers = ()
    if error.allow:
        headers += (("allow", ", ".join(error.allow)),)
    # Whole seconds, rounded up: a client that comes a moment too early is refused again.
    if error.retry_after is not None:
        headers += (("retry-after", str(max(1, round(error.retry_after + 0.5)))),)
    # Every 401 must name a scheme (RFC 9110, section 15.5.2).
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers += (("www-authenticate", "Bearer"),)
    return HttpResponse(encode_json(problem), error.status, PROBLEM, headers)


def incident_response(incident: str) -> HttpResponse:
    """Return the response to an internal error, which tells only the incident's name in the log."""
    detail = f"the service failed; its log knows this as incident {incident}"
    return problem_response(ServiceError("internal", 500, detail))


def decoded(decode: Callable[[bytes], T], data: bytes, *, within: str = "") -> T:
    """
    Decode a body with a decoder of msgspec.

    Parameters
    ----------
    within
        Name of the decoded part; empty: the whole body.

    Raises
    ------
    ServiceError
        400 when the body cannot be read, 422 when a value in it is wrong.
    """
    try:
        return decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        status = 422 if isinstance(error, msgspec.ValidationError) else 400
        raise decoding_problem(error, status, within=within) from None


def decoding_problem(error: Exception, status: int, *, within: str = "") -> ServiceError:
    """Convert an error of a decoder into a service error that names the field."""
    text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    place = _PLACE.search(text)
    where = place[1] if place else ""
    detail = text[: place.start()] if place else text
    joint = "." if within and where and not where.startswith("[") else ""
    return ServiceError("bad-value", status, detail, where=f"{within}{joint}{where}")


def _line(text: str) -> str:
    """Return one printable line of limited length."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: _LONGEST + 1])
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."


# A received HTTP request: its path, headers and body, checked as they are read.

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY_HOST = "*"

_MOST_PARAMETERS = 20
_MOST_PARTS = 100  # of a path

_ONCE = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "last-event-id",
        "origin",
        "range",
    }
)


class ClientDisconnected(Exception):
    """The client has disconnected, so no answer can be sent."""


class HttpRequest:
    """
    A received request, not yet authenticated.

    Parameters
    ----------
    scope, receive
        Arguments of an ASGI application.

    Attributes
    ----------
    headers
        Values by name in lower case; of a repeated header the first.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self._is_whole = False
        self.method: str = scope["method"]
        self.scheme: str = scope.get("scheme", "http")
        self.headers: dict[str, str] = {}
        self._twice = ""
        for raw, value in scope["headers"]:
            name = raw.decode("latin-1")
            if name in self.headers and name in _ONCE:
                self._twice = name
            self.headers.setdefault(name, value.decode("latin-1"))

    @property
    def peer(self) -> str:
        """The client's address; empty: unknown."""
        client = self._scope.get("client")
        return client[0] if client else ""

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate, verified by TLS, in DER; None: no certificate."""
        tls = self._scope.get("extensions", {}).get("tls", {})
        certificate: bytes | None = tls.get("client_certificate")
        return certificate

    @property
    def path(self) -> str:
        """The path, decoded."""
        path: str = self._scope["path"]
        return path

    @property
    def kind(self) -> str:
        """Media type of the body, without parameters; empty: not stated."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def check_headers(self) -> None:
        """
        Refuse a request that repeats a header which must not be repeated.

        A proxy and this service might read different ones of them, and so two different requests.

        Raises
        ------
        ServiceError
            400 with the name of the header.
        """
        if self._twice:
            raise ServiceError("bad-value", 400, "is there twice", where=self._twice)

    def check_origin(self, names: frozenset[str]) -> None:
        """
        Refuse a request to a foreign host name or from a foreign web page.

        A page can make the browser of a user send requests to any address, also to a service on
        the same machine. The page cannot hide where it came from, nor make the browser send JSON
        to another host without asking that host first.

        Parameters
        ----------
        names
            Host names of the service, besides those of the loopback interface; ``"*"`` among them
            stands for any.

        Raises
        ------
        ServiceError
            421 for a host that is not this service; 403 for a page of another origin.
        """
        self.check_host(names)
        host = self.headers.get("host", "")
        origin = self.headers.get("origin")
        is_foreign = origin is not None and origin.lower() != f"{self.scheme}://{host.lower()}"
        if is_foreign or self.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise ServiceError("wrong-origin", 403, "pages of others may not ask", where="Origin")

    def check_host(self, names: frozenset[str]) -> None:
        """Refuse a request to a foreign host name: see :meth:`check_origin`."""
        name = _normalised_host(self.headers.get("host", ""))
        if _ANY_HOST not in names and name not in _LOOPBACK and name not in names:
            raise ServiceError("wrong-host", 421, "this service has no such name", where="Host")

    def parts(self) -> list[str]:
        """
        Return the decoded parts of the path below the API's prefix.

        Raises
        ------
        ServiceError
            400 when the path is not UTF-8; 404 when it is not below the prefix.
        """
        # Split before decoding: an encoded slash does not change which route is found.
        raw: bytes = self._scope.get("raw_path") or quote(self._scope["path"]).encode()
        parts = raw.partition(b"?")[0].split(b"/")
        if parts[:2] != [b"", PREFIX[1:].encode()] or not 2 < len(parts) <= _MOST_PARTS:
            raise no_such_address()
        try:
            return [unquote_to_bytes(part).decode() for part in parts[2:]]
        except UnicodeDecodeError:
            raise ServiceError("bad-value", 400, "the path is not UTF-8", where="path") from None

    def query(self, kind: type[msgspec.Struct] | None) -> msgspec.Struct:
        """
        Decode the query string.

        Parameters
        ----------
        kind
            Struct whose fields are the parameters; None: no parameter is allowed.

        Raises
        ------
        ServiceError
            400 when a parameter is unknown, repeated or of another type.
        """
        try:
            pairs = parse_qsl(
                self._scope.get("query_string", b"").decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MOST_PARAMETERS,
            )
            found = dict(pairs)
            if len(found) < len(pairs):
                raise ServiceError("bad-value", 400, "a parameter is there twice", where="query")
            # NaN passes every check of a range, as no comparison with it is true.
            if "nan" in (value.strip().lower().lstrip("+-") for value in found.values()):
                raise ServiceError("bad-value", 400, "expected a number", where="query")
            return msgspec.convert(found, kind or Empty, strict=False)
        except msgspec.ValidationError as error:
            raise decoding_problem(error, 400, within="query") from None
        except ValueError:
            raise ServiceError("bad-value", 400, "cannot be read", where="query") from None

    async def pieces(self, most: int) -> AsyncIterator[bytes]:
        """
        Yield the body as it arrives, at most ``most`` bytes.

        Raises
        ------
        ServiceError
            413 when the body is longer; 415 when it is compressed.
        ClientDisconnected
            When the client disconnects before the end of the body.
        """
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ServiceError(
                "bad-type", 415, "a body must not be packed", where="Content-Encoding"
            )
        length = self.headers.get("content-length", "")
        size = int(length) if length.isdecimal() and length.isascii() and len(length) < 20 else 0
        while not self._is_whole:
            # What is announced to be too large is refused before it is read.
            if size > most:
                raise ServiceError("too-large", 413, f"expected at most {most:,} bytes")
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            self._is_whole = not message.get("more_body", False)
            piece = message.get("body", b"")
            most -= len(piece)
            size = max(size - len(piece), 0)
            if most < 0:
                raise ServiceError("too-large", 413, "the body is larger than is taken here")
            if piece:
                yield piece

    async def gone(self) -> None:
        """Return when the client has disconnected; the rest of the body is dropped."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def no_such_address() -> ServiceError:
    """Return the 404 for an unknown path."""
    return ServiceError("not-found", 404, "there is nothing at this address")


@lru_cache(256)
def _normalised_host(host: str) -> str:
    """Return a ``Host`` header's name in lower case, without port and brackets; empty: invalid."""
    try:
        parsed = urlsplit(f"//{host}")
        parsed.port  # noqa: B018 - checked by being asked for
    except ValueError:
        return ""
    odd = parsed.path or parsed.query or parsed.fragment or "@" in host
    return "" if odd else (parsed.hostname or "").removesuffix(".")


# A request that has passed admission, as the handler sees the request.


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedRequest:
    """
    A request whose sender is authenticated and may use the route.

    Parameters
    ----------
    path
        Values of the path's variables, by name.
    request
        The request as it was received, with a body that the handler may read piece by piece.
    over
        Returns when the client has disconnected or the service ends all waiting; has a task of
        its own.
    answers
        Memory for replies that users have requested and not yet read.
    """

    service: ApiDependencies
    file_store: FileStore
    principal: Principal
    path: Mapping[str, Any]
    request: HttpRequest
    over: Callable[[], Coroutine[Any, Any, None]]
    answers: DynamicThreshold
    document: bytes

    @property
    def user(self) -> str:
        """Name of the user who sent the request."""
        return self.principal.user

    @property
    def limits(self) -> HttpLimits:
        """Limits that apply to the user."""
        return self.service.limits_of(self.user)

    @property
    def handle(self) -> str:
        """Handle of the instance in the path."""
        handle: str = self.path["id"]
        return handle

    @property
    def key(self) -> str:
        """
        Idempotency key of the request; empty: none.

        Raises
        ------
        ServiceError
            When it is too long or holds odd characters.
        """
        key = self.request.headers.get("idempotency-key", "")
        if len(key) > LONGEST_KEY or not key.isascii() or not (key.isprintable() or not key):
            raise ServiceError(
                "bad-value",
                400,
                f"expected at most {LONGEST_KEY} plain characters",
                where="Idempotency-Key",
            )
        return key

    async def until_over(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a coroutine; None if the request is over first."""
        async with TaskSupervisor() as tasks:
            doing = tasks.start(work)
            over = tasks.start(self.over())
            await asyncio.wait((doing, over), return_when=asyncio.FIRST_COMPLETED)
            # A result that came at the same moment as the end is not lost.
            return doing.result() if doing.done() else None
