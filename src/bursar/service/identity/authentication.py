"""Authentication of the sender of a request."""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Literal

from bursar.sealing.certificates import UntrustedCertificate
from bursar.service.identity.tokens import Bearer, JournalTokenStore
from bursar.service.identity.trust import TrustFiles
from bursar.service.interfaces import SCOPES, Principal, ServiceError

Security = Literal["none", "tls", "mutual"]


class Authenticator:
    """
    Says who sends a request.

    ========== ====================================================================
    security   who one is
    ========== ====================================================================
    ``none``   The owner, who may do all; only from this machine. With a token: its user.
    ``tls``    The token's user, with its scopes.
    ``mutual`` The certificate's user, with the scopes that the user is given; with a token
               of the same user's, no more than that allows, either.
    ========== ====================================================================

    Parameters
    ----------
    clients
        Checks certificates; needed for ``mutual``.
    scopes_of
        What the certificate of a user allows.
    owner
        The user whom everybody on this machine is, without security.
    """

    def __init__(
        self,
        security: Security,
        tokens: JournalTokenStore,
        *,
        clients: TrustFiles | None = None,
        scopes_of: Callable[[str], frozenset[str]] = lambda user: frozenset(),
        owner: str = "owner",
    ) -> None:
        if security == "mutual" and clients is None:
            raise ValueError("mutual TLS needs to know which certificates are good")
        self._security = security
        self._tokens = tokens
        self._clients = clients
        self._scopes_of = scopes_of
        self._owner = owner

    def authenticate(
        self, headers: Mapping[str, str], certificate: bytes | None, peer: str
    ) -> Principal:
        """
        Return the authenticated sender of a request.

        Parameters
        ----------
        headers
            Of the request, by name in lower case.
        certificate
            The client's, verified by TLS, in DER; None: it has none.
        peer
            The client's address; empty: unknown.

        Raises
        ------
        ServiceError
            401 ``"unauthenticated"`` when that was not shown: too many of these from one address
            are an attack. 403 ``"forbidden"`` when it was, and does not go together.
        """
        bearer = self._bearer(headers)
        if self._security == "mutual":
            return self._by_certificate(certificate, bearer)
        if bearer is not None:
            return Principal(user=bearer.user, scopes=bearer.scopes, means="token")
        if self._security == "none":
            if not _is_loopback(peer):
                raise ServiceError("forbidden", 403, "without a token only from this machine")
            return Principal(user=self._owner, scopes=frozenset(SCOPES), means="loopback")
        raise _unauthenticated("expected a token: Authorization: Bearer TOKEN")

    def _bearer(self, headers: Mapping[str, str]) -> Bearer | None:
        """Return the owner of a request's token; None: the request has none."""
        value = headers.get("authorization")
        if value is None:
            return None
        scheme, _, token = value.partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthenticated("expected a token: Authorization: Bearer TOKEN")
        bearer = self._tokens.find(token.strip())
        if bearer is None:
            raise _unauthenticated("the token is not known, has expired or was revoked")
        return bearer

    def _by_certificate(self, certificate: bytes | None, bearer: Bearer | None) -> Principal:
        assert self._clients is not None
        if certificate is None:
            raise _unauthenticated("expected a client certificate")
        try:
            user = self._clients.user_of(certificate)
        except UntrustedCertificate as error:
            raise _unauthenticated(str(error)) from None
        scopes = self._scopes_of(user)
        if bearer is not None:
            if bearer.user != user:
                raise ServiceError("forbidden", 403, "the token is another user's")
            scopes &= bearer.scopes
        return Principal(user=user, scopes=scopes, means="certificate")


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def _unauthenticated(detail: str) -> ServiceError:
    return ServiceError("unauthenticated", 401, detail)
