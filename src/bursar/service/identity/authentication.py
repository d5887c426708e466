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
    Finds out who sends a request, by certificate, token or address.

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
        Returns the scopes that a user has by certificate.
    owner
        Name of the user that requests from this machine count as, without security.
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
            Headers of the request, by name in lower case.
        certificate
            Certificate of the client, verified by TLS, in DER; None: the client has none.
        peer
            Address of the client; empty: unknown.

        Raises
        ------
        ServiceError
            401 ``"unauthenticated"`` when the sender is not proven; too many of these from one
            address are an attack. 403 ``"forbidden"`` when credentials contradict each other, or
            the address must not send requests without a token.
        """
        # A wrong token is refused even where none is needed: whoever sends one means to be that
        # user.
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
            # TLS has verified the certificate when the connection began; it may have been revoked
            # since.
            user = self._clients.user_of(certificate)
        except UntrustedCertificate as error:
            raise _unauthenticated(str(error)) from None
        scopes = self._scopes_of(user)
        if bearer is not None:
            if bearer.user != user:
                raise ServiceError("forbidden", 403, "the token is another user's")
            # A token of the same user can only narrow what the certificate allows.
            scopes &= bearer.scopes
        return Principal(user=user, scopes=scopes, means="certificate")


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def _unauthenticated(detail: str) -> ServiceError:
    return ServiceError("unauthenticated", 401, detail)
