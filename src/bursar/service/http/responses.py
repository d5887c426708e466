"""What a route answers."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

import msgspec

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"

Headers = tuple[tuple[str, str], ...]

_ENCODER = msgspec.json.Encoder()


class HttpResponse(NamedTuple):
    """
    An answer that is there.

    Parameters
    ----------
    headers
        Further ones.
    """

    body: bytes = b""
    status: int = 200
    kind: str = JSON
    headers: Headers = ()


class ByteStream(Protocol):
    """Bytes that come one after the other."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Itself."""

    async def __anext__(self) -> bytes:
        """The next."""

    async def aclose(self) -> None:
        """Nobody wants more; also before the first."""


class StreamingResponse(NamedTuple):
    """
    An answer that comes piece by piece.

    Parameters
    ----------
    size
        Bytes of all of it; None: nobody knows, it goes on.
    """

    pieces: ByteStream
    kind: str
    status: int = 200
    size: int | None = None
    headers: Headers = ()


def json_response(answer: Any, status: int = 200, headers: Headers = ()) -> HttpResponse:
    """A value as JSON."""
    return HttpResponse(_ENCODER.encode(answer), status, JSON, headers)


NO_CONTENT = HttpResponse(b"", 204, "")
"""Done, and nothing to say."""
