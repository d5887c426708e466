"""What handlers return: whole responses, streams, and problem documents (RFC 9457)."""

import re
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from bursar.remote.messages import Problem
from bursar.remote.routes import JSON
from bursar.service.interfaces import ServiceError

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
