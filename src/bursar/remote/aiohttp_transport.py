"""Carries a client's requests over kept HTTP/1.1 connections, by aiohttp."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import partial

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from bursar.remote.http_transport import (
    Body,
    CertificatePinMismatch,
    ClientRequest,
    ClientResponse,
    ClosedWithoutResponse,
    ConnectionFailed,
    TransportError,
    UnsendableRequest,
)

KEPT = 30.0
"""Seconds for which a connection without a request is kept: less than a service keeps it."""

BUFFER = 512 * 1024
"""Bytes of an answer that wait to be read; aiohttp stops reading from the socket at twice this.
With aiohttp's own 64 KiB, 10 MB take a quarter more processor time."""

_PIECE = 256 * 1024
"""Bytes of a body that aiohttp writes at once."""

_OWN_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add to a request that lacks them."""


class AiohttpTransport:
    """
    Sends requests to one service over kept connections.

    Connections go to the service itself, whatever proxies the environment names; redirects are
    not followed, cookies not kept and packed bodies not unpacked.

    Parameters
    ----------
    context
        TLS context; None: no TLS.
    pin
        SHA-256 of the server's certificate; empty: not checked.
    """

    def __init__(self, context: ssl.SSLContext | None, pin: bytes = b"") -> None:
        self._context = context
        self._pin = pin
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: ClientRequest) -> ClientResponse:
        """
        Send a request; return the response when the headers have arrived.

        Raises
        ------
        TransportError
            When something went wrong on the way.
        """
        if self._session is None:
            self._session = self._open()
        try:
            response = await self._session.request(
                request.method,
                # What is not ASCII can be a host only, which yarl encodes.
                URL(request.url, encoded=request.url.isascii()),
                headers=request.headers,
                data=_body_of(request.content),
                allow_redirects=False,
                # Here and not at the connector, which has the fingerprint: so both are checked.
                ssl=self._context or True,
            )
        except aiohttp.ServerFingerprintMismatch as error:
            other = CertificatePinMismatch("the certificate is another one")
            raise ConnectionFailed(str(error)) from other
        except (aiohttp.ClientError, ValueError) as error:
            # The cause of aiohttp's errors is the system's or the TLS library's, with its reason.
            raise self._translated(error) from error.__cause__ or error
        return ClientResponse(
            response.status, headers=response.headers, stream=_AiohttpBody(response)
        )

    async def aclose(self) -> None:
        """Close all connections; requests under way fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=KEPT,
            resolver=aiohttp.ThreadedResolver(),
            use_dns_cache=False,
            ssl=aiohttp.Fingerprint(self._pin) if self._pin else True,
        )
        connector._factory = partial(_connection_protocol, loop=asyncio.get_running_loop())
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(),  # the caller has limits of its own
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_OWN_HEADERS,
            auto_decompress=False,
            read_bufsize=BUFFER,
        )
        # The caller alone tries again, with pauses: aiohttp would send a GET twice at once, and a
        # service that refuses this client's certificate would be asked twice.
        session._retry_connection = False
        return session

    def _translated(self, error: Exception) -> TransportError:
        """Return the transport's error for one of aiohttp; its class decides about a retry."""
        if isinstance(error, aiohttp.ClientConnectorError):
            return ConnectionFailed(str(error))
        if not isinstance(error, aiohttp.ClientError) or isinstance(error, aiohttp.InvalidURL):
            return UnsendableRequest(str(error))
        is_closed = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
        is_silent = is_closed and not isinstance(error.__cause__, ssl.SSLError)
        if is_silent and self._context is not None:
            return ClosedWithoutResponse(str(error))
        return TransportError(str(error))


class _ConnectionProtocol(ResponseHandler):
    """Closes a connection at once, and lets none be used again that is out of step."""

    def close(self) -> None:
        # A close that waits until all is sent would wait for ever where the service does not read.
        self.abort()

    def is_connected(self) -> bool:
        # aiohttp looks for unexpected bytes at the end of a request only: an answer that comes
        # later, to no request, would be taken for that to the next one.
        return not self.should_close and super().is_connected()


def _body_of(content: bytes | Body) -> bytes | AsyncIterator[bytes] | None:
    if not isinstance(content, bytes):
        return content()
    # aiohttp writes bytes at once, during which the loop stands still, and warns of many.
    return _pieces_of(content) if len(content) > _PIECE else content or None


async def _pieces_of(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]


def _connection_protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return _ConnectionProtocol(loop)


class _AiohttpBody:
    """The body of a response, read on arrival."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._response.content.readany()
        except aiohttp.ClientError as error:
            raise TransportError(str(error)) from error.__cause__ or error
        if not piece:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Keep the connection if the whole body has arrived; otherwise close the connection."""
        self._response.release()
