"""
Requests and responses of the client, and the interface of transports.

A :class:`HttpTransport` is :class:`~bursar.remote.aiohttp_transport.AiohttpTransport` on real
networks; simulations and tests have their own, so these types belong to no HTTP library.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

Body = Callable[[], AsyncIterator[bytes]]
"""Makes the pieces of a body, anew for each try."""


class TransportError(Exception):
    """A request or the response was lost on the way."""


class ConnectionFailed(TransportError):
    """No connection to the service could be made: the service has not seen the request."""


class ClosedWithoutResponse(TransportError):
    """The service closed a TLS connection without a response, as after a refused certificate."""


class UnsendableRequest(TransportError):
    """The request cannot be written as HTTP, as with a line end in a header."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """
    A request to a service.

    Parameters
    ----------
    method, url
        Method, and absolute URL in quoted form.
    headers
        Headers by name.
    content
        Body, as bytes or as a function that makes its pieces; the latter has a
        ``Content-Length`` among the headers.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Body = b""

    async def read(self) -> bytes:
        """Return the whole body."""
        if isinstance(self.content, bytes):
            return self.content
        return b"".join([piece async for piece in self.content()])


class ResponseStream(Protocol):
    """The body of a response, read on arrival."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes; raise a :class:`TransportError` when the connection breaks."""
        ...

    async def aclose(self) -> None:
        """Release the connection; unread bytes are dropped."""
        ...


class ClientResponse:
    """
    A response of a service.

    Parameters
    ----------
    status
        HTTP status.
    headers
        Headers by name; the case of names does not count.
    content
        Body, when it has been read.
    stream
        Body as it arrives; None: all of it is ``content``.

    Attributes
    ----------
    headers
        Headers by name in lower case.
    """

    __slots__ = ("_stream", "content", "headers", "status")

    def __init__(
        self,
        status: int,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        stream: ResponseStream | None = None,
    ) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}
        self.content = content
        self._stream = stream

    @property
    def is_success(self) -> bool:
        """Whether the status says that the request was carried out."""
        return 200 <= self.status < 300

    def header(self, name: str, default: str = "") -> str:
        """Return the value of a header."""
        return self.headers.get(name.lower(), default)

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body on arrival."""
        return _one_piece(self.content) if self._stream is None else aiter(self._stream)

    async def aclose(self) -> None:
        """Release the connection; unread bytes of the body are dropped."""
        if self._stream is not None:
            await self._stream.aclose()


async def _one_piece(content: bytes) -> AsyncIterator[bytes]:
    if content:
        yield content


class HttpTransport(Protocol):
    """Carries requests to one service."""

    async def send(self, request: ClientRequest) -> ClientResponse:
        """
        Send a request; return the response when the headers have arrived.

        Raises
        ------
        TransportError, OSError
            When something went wrong on the way.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...
