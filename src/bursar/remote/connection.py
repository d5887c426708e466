"""
Sends requests to a service, with retries.

Time comes from the running loop and randomness from ``entropy``, so that a simulation controls
both.

References
----------
.. [1] Brooker (2015). Exponential Backoff And Jitter. AWS Architecture Blog.
"""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from bursar.model.errors import SiteError
from bursar.remote.access import Access
from bursar.remote.calls import ApiCall
from bursar.remote.http_transport import (
    ClientRequest,
    ClientResponse,
    ClosedWithoutResponse,
    ConnectionFailed,
    HttpTransport,
    InvalidServiceResponse,
    RemoteProblem,
    ServiceUnreachable,
    TransportError,
    UnsendableRequest,
    explain_closed_connection,
    explain_refused_client,
    explain_untrusted_server,
    is_permanent,
)
from bursar.remote.messages import PREFIX, Problem

# When to try again, and when to give up: exponential backoff with full jitter [1]_.

FIRST = 0.1
"""Seconds, at most, before the second try."""

LONGEST = 10.0
"""Seconds, at most, between two tries where the server does not say."""

Entropy = Callable[[int], bytes]
"""Returns a number of random bytes."""


def random_fraction(entropy: Entropy) -> float:
    """Return a random number from 0 to 1, 1 excluded."""
    # 53 bits, as many as a float holds: more would be rounded, and could reach 1.
    return (int.from_bytes(entropy(7), "big") >> 3) / (1 << 53)


class RetryBackoff:
    """
    The retry state of one request.

    Parameters
    ----------
    patience
        Seconds after the first failure at which the request is given up.
    entropy
        Returns random bytes, which spread the retries of many clients.
    """

    def __init__(self, patience: float, entropy: Entropy) -> None:
        self.failures = 0
        self._patience = patience
        self._entropy = entropy
        self._give_up: float | None = None

    def after_failure(self, now: float, advised: float | None = None) -> float | None:
        """
        Return the seconds to wait before the next try; None: give up.

        Parameters
        ----------
        now
            Seconds, on any clock.
        advised
            Seconds for which the server asks to wait; None: not stated.
        """
        # Counted from the first failure: a request that waits long for its answer, or sends much,
        # has its patience still before it.
        if self._give_up is None:
            self._give_up = now + self._patience
        # The exponent is limited because a float overflows at 2^1024.
        ceiling = min(LONGEST, FIRST * 2.0 ** min(self.failures, 32))
        self.failures += 1
        # The server's wait plus jitter: clients with the same wait must not return all at once.
        wait = random_fraction(self._entropy) * ceiling + (
            max(0.0, advised) if advised is not None else 0.0
        )
        return wait if now + wait <= self._give_up else None


S = TypeVar("S")
T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds within which a service answers, or the next bytes of a stream come."""

PATIENCE = 120.0
"""Seconds for which a request that fails is tried again."""

LONGEST_ANSWER = 64 << 20
"""Bytes of an answer read as a whole, at most; files and results come as streams."""

LONGEST_REFUSAL = 1 << 20
"""Bytes of a problem document, at most."""

SLOWEST_LINE = 64 * 1024
"""Bytes per second at which a request's body is sent, at least; extends the timeout."""

LONGEST_LINE = 500
"""Characters of a service's text for people, at most."""

_HUNG_UP = 3
"""
Connections closed in a row after the TLS handshake by a service that has never answered, before
this counts as a refusal: a service that is being stopped does so once.
"""

Notice = Callable[[str], None]
"""Told one line when a request has failed and is tried again."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")

_PROBLEM = msgspec.json.Decoder(Problem)


class ServiceConnection:
    """
    A connection to one service, over which requests are sent with retries.

    Parameters
    ----------
    entropy
        Returns random bytes, which spread the retries in time.
    transport
        Carries requests; None: HTTP/1.1 over sockets, kept open.
    timeout
        Seconds within which the service answers, or the next bytes of a stream come.
    patience
        Seconds for which a failed request is tried again; 0: no further try.
    notice
        Called with one line when a request has failed and is tried again.
    """

    def __init__(
        self,
        access: Access,
        *,
        entropy: Entropy,
        transport: HttpTransport | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
        notice: Notice | None = None,
    ) -> None:
        self.name = access.name
        self._access = access
        self._base = access.url + PREFIX
        self._headers = {"User-Agent": "bursar", "Accept": "application/json"}
        if access.token:
            self._headers["Authorization"] = f"Bearer {access.token}"
        self._transport = transport or _sockets(access)
        self._timeout = timeout
        self._patience = patience
        self._entropy = entropy
        self._notice = notice
        self._reached = False

    async def close(self) -> None:
        """Close the sockets."""
        await self._transport.aclose()

    async def call(self, call: ApiCall[T]) -> T:
        """
        Send a request and return the decoded answer.

        Raises
        ------
        RemoteProblem
            When the service refuses the request.
        SiteError
            When the service cannot be reached, or the peer is no Bursar service.
        """
        return self.understand(call.decode, await self._ask(call, whole=True))

    def understand(self, decode: Callable[[S], T], response: S) -> T:
        """
        Decode a part of an answer.

        Raises
        ------
        InvalidServiceResponse
            When that is not what it should be.
        """
        try:
            return decode(response)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidServiceResponse(
                f"{self.name}: is no Bursar service: {_plain(str(error))}"
            ) from None

    async def stream(
        self, call: ApiCall[None], head: Callable[[ClientResponse], None] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """
        Send a request and yield the bytes of the answer on arrival.

        Parameters
        ----------
        head
            Called with the response before its bytes.

        Raises
        ------
        ServiceUnreachable
            When it breaks off; also what :meth:`call` raises, at the begin.
        """
        response = await self._ask(call, whole=False)
        async with aclosing(response):
            if head is not None:
                head(response)
            pieces = response.pieces()
            while True:
                try:
                    # A limit for each piece: a stream of results may last as long as its tasks do.
                    async with asyncio.timeout(self._timeout):
                        piece = await anext(pieces, None)
                except (TransportError, OSError) as error:
                    raise self._broken(error) from None
                if piece is None:
                    return
                yield piece

    def tries(self) -> RetryBackoff:
        """Return the retry state of a new request."""
        return RetryBackoff(self._patience, self._entropy)

    async def pause(self, tries: RetryBackoff, failure: RemoteProblem | SiteError) -> None:
        """
        Wait before the next try.

        Raises
        ------
        RemoteProblem, SiteError
            The failure itself, when trying again does not help or there were enough tries.
        """
        advised = failure.problem.retry_after if isinstance(failure, RemoteProblem) else None
        now = asyncio.get_running_loop().time()
        wait = tries.after_failure(now, advised) if failure.transient else None
        if wait is None:
            raise failure
        # People are told once for each request, not at every try.
        if tries.failures == 1 and self._notice is not None:
            self._notice(f"{failure}; trying again for {self._patience:g} s")
        await asyncio.sleep(wait)

    async def _ask(self, call: ApiCall[T], *, whole: bool) -> ClientResponse:
        """Return a successful response, read to the end or still open."""
        tries = self.tries()
        hung_up_on = 0
        while True:
            failure: RemoteProblem | SiteError
            try:
                response = await self._send(call, whole=whole)
            except (TransportError, OSError) as error:
                # A service that refuses this client's certificate closes after the handshake
                # without a word (TLS 1.3), and so does one that is being stopped: only repetition
                # tells them apart.
                hung_up_on = hung_up_on + 1 if isinstance(error, ClosedWithoutResponse) else 0
                if 0 < hung_up_on < _HUNG_UP and self._may_ask_again(call):
                    await asyncio.sleep(FIRST)
                    continue
                failure = self._broken(error)
                if hung_up_on >= _HUNG_UP and not self._reached:
                    failure.transient = False
                # Once a connection was made, the request may have been carried out and only its
                # answer lost.
                if not call.repeatable and not isinstance(error, ConnectionFailed):
                    failure.transient = False
            else:
                self._reached = True
                status = response.status
                # A repeated DELETE finds nothing because an earlier try succeeded whose answer was
                # lost. A 404 to the first try is a wrong name.
                went = call.ending and tries.failures and status == HTTPStatus.NOT_FOUND
                if response.is_success or went or status == call.also:
                    return response
                failure = self._refusal(response)
            await self.pause(tries, failure)

    def _may_ask_again(self, call: ApiCall[T]) -> bool:
        """Return whether to retry silently after the service closed the connection."""
        return call.repeatable and not self._reached and self._patience > 0

    async def _send(self, call: ApiCall[T], *, whole: bool) -> ClientResponse:
        size = len(call.content) if isinstance(call.content, bytes) else call.size
        # The transport does not know the size of a body that is made piece by piece.
        length = {"Content-Length": str(size)} if call.content else {}
        request = ClientRequest(
            call.method,
            self._base + call.path + ("?" + urlencode(call.query) if call.query else ""),
            headers={**self._headers, **call.headers, **length},
            content=call.content,
        )
        async with asyncio.timeout(self._timeout + call.wait + size / SLOWEST_LINE):
            response = await self._transport.send(request)
            # Unpacking could turn a few bytes into very many; nobody asked for it.
            if response.header("Content-Encoding", "identity") != "identity":
                await response.aclose()
                raise _InvalidHttpResponse("answers in an encoding that was not asked for")
            if not (whole or response.is_success):
                await _read(response, LONGEST_REFUSAL)
            elif whole:
                await _read(response, LONGEST_ANSWER)
        return response

    def _refusal(self, response: ClientResponse) -> RemoteProblem | SiteError:
        status = response.status
        # Redirects are not followed: the token would be sent to wherever they lead.
        if status < 400:
            return InvalidServiceResponse(
                f"{self.name}: answers {status}: is this the service's own address?"
            )
        try:
            problem = _PROBLEM.decode(response.content)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            problem = Problem(title=f"answers {status} {_phrase(response.status)}", status=0)
        after = problem.retry_after
        if after is None:
            after = _seconds(response.header("Retry-After"))
        problem = msgspec.structs.replace(
            problem,
            status=status,
            detail=_plain(problem.detail),
            where=_plain(problem.where),
            retry_after=after,
        )
        # Tells apart a token that was forgotten from one that is good no more.
        shown = self._access.shown() if status == HTTPStatus.UNAUTHORIZED else ""
        return RemoteProblem(self.name, problem, shown)

    def _broken(self, error: Exception) -> SiteError:
        """Return the error for a failed transfer, transient if a retry may help."""
        if isinstance(error, _InvalidHttpResponse):
            return InvalidServiceResponse(f"{self.name}: {error}")
        for cause in _causes(error):
            # Before SSLError, of which this is a kind.
            if isinstance(cause, ssl.SSLCertVerificationError):
                return InvalidServiceResponse(
                    f"{self.name}: {explain_untrusted_server(cause, self._access)}"
                )
            if isinstance(cause, ssl.SSLError) and is_permanent(cause):
                return InvalidServiceResponse(
                    f"{self.name}: {explain_refused_client(cause, self._access)}"
                )
            # A name that has been resolved before is no typing mistake: name services fail for a
            # while, too.
            if isinstance(cause, socket.gaierror) and not self._reached:
                return InvalidServiceResponse(f"{self.name}: no such host: {cause.strerror}")
        if isinstance(error, UnsendableRequest):
            return SiteError(f"{self.name}: the request could not be sent: {error}")
        if isinstance(error, TimeoutError):
            return ServiceUnreachable(f"{self.name}: no answer within {self._timeout:g} s")
        if isinstance(error, ConnectionFailed):
            return ServiceUnreachable(f"{self.name}: cannot be reached: {_reason(error)}")
        if isinstance(error, ClosedWithoutResponse) and not self._reached:
            return ServiceUnreachable(f"{self.name}: {explain_closed_connection(self._access)}")
        return ServiceUnreachable(f"{self.name}: the connection was lost")


class _InvalidHttpResponse(TransportError):
    """An HTTP response that no Bursar service sends."""


async def _read(response: ClientResponse, most: int) -> None:
    """
    Read the rest of a response of at most ``most`` bytes.

    Raises
    ------
    _InvalidHttpResponse
        When there are more than ``most``.
    """
    pieces, size = [], 0
    async with aclosing(response):
        async for piece in response.pieces():
            size += len(piece)
            if size > most:
                raise _InvalidHttpResponse(f"answers more than {most >> 20} MiB")
            pieces.append(piece)
    response.content = b"".join(pieces)


def _sockets(access: Access) -> HttpTransport:
    from bursar.remote.aiohttp_transport import AiohttpTransport  # takes time to load

    return AiohttpTransport(access.tls(), access.pin)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all errors that caused the error."""
    now: BaseException | None = error
    while now is not None:
        yield now
        if isinstance(now, BaseExceptionGroup):
            for inner in now.exceptions:
                yield from _causes(inner)
        now = now.__cause__ or now.__context__


def _reason(error: BaseException) -> str:
    """Return the system's error text; several addresses may have been tried."""
    numbers = _ERRNO.findall(" ".join(str(cause) for cause in _causes(error)))
    return os.strerror(int(numbers[-1])).lower() if numbers else str(error) or "no connection"


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() else None


def _plain(text: str) -> str:
    """Return one line without characters that control a terminal."""
    # Escape sequences from a foreign service could rewrite what the terminal shows.
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line[:LONGEST_LINE].strip()
