"""Values that handlers return: whole responses and streams."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

import msgspec

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"

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
