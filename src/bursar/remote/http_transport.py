"""
Requests and responses of the client, the interface of transports, and errors explained.

A service refuses a client's certificate after the handshake has ended for the client (TLS 1.3): the
client sees an alert with the first bytes it reads, or a closed connection where the service's
library drops the alert.

A :class:`HttpTransport` is :class:`~bursar.remote.aiohttp_transport.AiohttpTransport` on real
networks; simulations and tests have their own, so these types belong to no HTTP library.
"""

import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bursar.model.errors import BursarError, InputError, SiteError
from bursar.remote.access import Access
from bursar.remote.messages import Problem

# Explains TLS failures in one line that says what to set.

_NO_CERTIFICATE = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")
"""Alerts of a peer that requires a certificate and received none; RFC 8446, section 6.2."""

_BAD_CERTIFICATE = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "ACCESS_DENIED",
    "DECRYPT_ERROR",
)
"""Alerts of a peer that rejects the received certificate."""

_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons for an answer that is no TLS."""

# Of OpenSSL (x509_vfy.h): why a certificate is not believed.
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21, 27})
_OTHER_NAME = frozenset({62, 64})
_WRONG_TIME = frozenset({9, 10})


class CertificatePinMismatch(ssl.SSLCertVerificationError):
    """The server's certificate is not the one that is expected."""

    verify_message = "it is not the certificate that is pinned"


def is_permanent(error: ssl.SSLError) -> bool:
    """Return whether a retry would fail too; a connection that broke off is retried."""
    # These three are a broken connection, which ssl reports as its own error.
    return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def explain_untrusted_server(error: ssl.SSLCertVerificationError, access: Access) -> str:
    """Explain why the service's certificate is not trusted."""
    text = f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, CertificatePinMismatch):
        return f"{text}: {access.setting('fingerprint')}"
    if error.verify_code in _OTHER_NAME:
        return f"{text}: call it by a name that its certificate has"
    if error.verify_code in _WRONG_TIME:
        return f"{text}: it is to be renewed there"
    if error.verify_code in _UNKNOWN_ISSUER and access.ca is None:
        return f"{text}: set {access.setting('ca')} to the file of its authority"
    if error.verify_code in _UNKNOWN_ISSUER:
        return f"{text}: its authority is not in {access.ca}"
    return text


def explain_refused_client(error: ssl.SSLError, access: Access) -> str:
    """Explain why a TLS handshake failed or the service refused the client."""
    reason = error.reason or ""
    text = reason.lower().replace("_", " ") or "no reason is known"
    if reason in _PLAIN:
        return "does not speak TLS"
    if "ALERT" in reason and reason.endswith((*_NO_CERTIFICATE, *_BAD_CERTIFICATE)):
        if access.certificate is None and not reason.endswith("DECRYPT_ERROR"):
            return explain_missing_certificate(access)
        return f"does not take this client's certificate: {text}: {_certificate_of(access)}"
    return f"TLS cannot be agreed on: {text}"


def explain_closed_connection(access: Access) -> str:
    """Explain the likely cause of a connection closed without a response after TLS."""
    if access.certificate is None:
        return explain_missing_certificate(access)
    return f"hangs up: it may not take this client's certificate: {_certificate_of(access)}"


def explain_missing_certificate(access: Access) -> str:
    """Explain that the service requires a client certificate."""
    return f"wants a certificate of this client: set {access.setting('certificate')}"


def _certificate_of(access: Access) -> str:
    """Name the client's certificate with the setting, or with the date of expiry."""
    assert access.certificate is not None
    ended = _end_of(access.certificate)
    if ended is not None and ended <= time.time():
        when = time.strftime("%Y-%m-%d", time.gmtime(ended))
        return f"{access.certificate} has ended on {when}"
    return f"{access.certificate}, which {access.setting('certificate')} names"


def _end_of(file: Path) -> float | None:
    """Return the end of a certificate, seconds since the epoch; None when unreadable."""
    from bursar.sealing.certificates import read_certificates, read_pem  # takes time to load

    try:
        return read_certificates(read_pem(file.expanduser()))[0].not_valid_after_utc.timestamp()
    except (InputError, IndexError):
        return None


# Requests and responses of the client, and the interface of transports.

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


# Errors between a client and an execution service.

LATER = frozenset({408, 425, 429, 502, 503, 504, 507})
"""HTTP statuses after which a retry may succeed."""

_NOT_INPUT = frozenset({402, 408, 425, 429})
"""HTTP statuses 4xx that are no fault of the request."""


class RemoteProblem(BursarError):
    """
    An execution service has refused a request.

    Parameters
    ----------
    shown
        Credentials that were used, for messages; empty: not relevant.

    Attributes
    ----------
    kind
        Last part of the problem's type: ``"not-found"``, ``"over-quota"``; empty when it names
        none.
    transient
        Whether the same request may succeed later.
    exit_status
        Exit status for a command: 2 where the input is at fault, otherwise 1.
    """

    def __init__(self, site: str, problem: Problem, shown: str = "") -> None:
        self.site = site
        self.problem = problem
        self.kind = problem.type.rpartition("/problems/")[2] if "/" in problem.type else ""
        self.transient = problem.status in LATER
        bad_input = 400 <= problem.status < 500 and problem.status not in _NOT_INPUT
        self.exit_status = 2 if bad_input else 1
        detail = problem.detail or problem.title or f"refused, status {problem.status}"
        line = ": ".join(part for part in (site, problem.where, detail) if part)
        super().__init__(f"{line} ({shown})" if shown else line)

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """Description of this case in one line."""
        return self.problem.detail

    @property
    def where(self) -> str:
        """Field of the request that caused the problem; empty: none."""
        return self.problem.where


class ServiceUnreachable(SiteError):
    """A service cannot be reached, or the answer broke off; a retry may help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class InvalidServiceResponse(SiteError):
    """The peer is not a Bursar service, not the expected one, or refuses this client in TLS."""
