"""
Authentication of the sender of a request, tokens, and the first token of an administrator.

A token is ``bursar_ID_SECRET`` in hexadecimal digits. The secret has 256 random bits; what is kept
is its SHA-256. A slow hash would add nothing: it makes guessing dear where there is little to
guess, as with passwords, and nobody can guess these.

No scope of a token implies another: ``admin`` allows making tokens and administering the service,
but not submitting tasks.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from bursar.remote.admin_messages import NewToken, TokenInfo
from bursar.sealing.certificates import NAME, UntrustedCertificate
from bursar.service.config import Security
from bursar.service.identity.issuing import write_file
from bursar.service.identity.tls import TrustFiles
from bursar.service.interfaces import (
    SCOPES,
    TOKEN_KINDS,
    Clock,
    Entropy,
    Principal,
    ServiceError,
)
from bursar.store import Position, RecordStore

# Tokens: secrets by which users authenticate.

DEFAULT_SECONDS = 30 * 86_400.0
"""Seconds for which a token is valid by default."""

MOST_SECONDS = 366 * 86_400.0
"""Greatest number of seconds for which a token is valid: no token is valid for ever."""

MOST_TOKENS = 1_000
"""Greatest number of valid tokens of one user."""

_KIND = TOKEN_KINDS[0]

_FORM = re.compile(r"bursar_([0-9a-f]{16})_([0-9a-f]{64})")

_NOTHING = bytes(32)
"""Stands for the hash of an unknown token; the hash of no known secret."""


class _TokenRecord(msgspec.Struct, frozen=True, array_like=True):
    """The journal's record of a token."""

    id: str
    hash: bytes
    user: str
    scopes: tuple[str, ...]
    expires: float
    label: str


class JournalTokenStore:
    """
    All tokens, kept in the journal.

    No method waits: a token that was made or revoked is durably so once the journal's ``durable``
    has returned, which the caller awaits before answering.

    Parameters
    ----------
    journal
        Journal, not yet open.
    """

    def __init__(self, journal: RecordStore, *, clock: Clock, entropy: Entropy) -> None:
        self._journal = journal
        self._clock = clock
        self._entropy = entropy
        self._tokens: dict[str, _TokenRecord] = {}
        self._places: dict[Position, str] = {}
        journal.register(TOKEN_KINDS, self)

    def find(self, text: str) -> Principal | None:
        """Return the owner of a token; None: the token is not valid, for whatever reason."""
        form = _FORM.fullmatch(text)
        if form is None:
            return None
        token = self._tokens.get(form[1])
        # Compared also when there is none of this id: so both take the same time.
        known = _NOTHING if token is None else token.hash
        same = hmac.compare_digest(known, _hash(form[2]))
        # One answer for all three: whoever tries tokens does not learn which of them exist.
        if not same or token is None or token.expires <= self._clock():
            return None
        return Principal(user=token.user, scopes=frozenset(token.scopes))

    def create(self, new: NewToken) -> TokenInfo:
        """
        Make a token, and return the token with the secret, which is not shown again.

        A request without ``seconds`` gets a token of :data:`DEFAULT_SECONDS`.

        Raises
        ------
        ServiceError
            422 when a value is out of range, 409 when the user has too many; 507 as the journal.
        """
        self._sweep()
        seconds = DEFAULT_SECONDS if new.seconds is None else new.seconds
        if seconds > MOST_SECONDS:
            days = MOST_SECONDS / 86_400
            raise _invalid_token_request(
                f"expected at most {days:g} days, {MOST_SECONDS:.0f} seconds", "seconds"
            )
        if not NAME.fullmatch(new.user):
            raise _invalid_token_request(
                "expected at most 64 letters, digits and . _ @ - after the first", "user"
            )
        if sum(token.user == new.user for token in self._tokens.values()) >= MOST_TOKENS:
            raise ServiceError("over-quota", 409, f"the user has {MOST_TOKENS} tokens already")
        # The id finds the token without comparing secrets; only the hash of the secret is kept, so
        # the journal gives nobody access.
        secret = self._entropy(32).hex()
        token = _TokenRecord(
            id=self._entropy(8).hex(),
            hash=_hash(secret),
            user=new.user,
            scopes=tuple(scope for scope in SCOPES if scope in new.scopes),
            expires=self._clock() + seconds,
            label=new.label,
        )
        # First of the changes: a full disk refuses the token before anybody could use it.
        place = self._journal.append(_KIND, msgspec.msgpack.encode(token), essential=False)
        self._tokens[token.id] = token
        self._places[place] = token.id
        return _token_info(token, f"bursar_{token.id}_{secret}")

    def tokens(self) -> list[TokenInfo]:
        """Return all valid tokens without their secrets, the first to expire first."""
        self._sweep()
        return sorted(
            map(_token_info, self._tokens.values()), key=lambda info: (info.expires, info.id)
        )

    def revoke(self, token: str) -> None:
        """
        Revoke the token of an id.

        Raises
        ------
        ServiceError
            404 when there is none of this id.
        """
        self._sweep()
        if token not in self._tokens:
            raise ServiceError("not-found", 404, "there is no token of this id")
        del self._tokens[token]
        self._bury()

    # As an owner of records.

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of a token."""
        del kind
        token = msgspec.msgpack.decode(payload, type=_TokenRecord)
        self._tokens[token.id] = token
        self._places[position] = token.id

    def _sweep(self) -> None:
        """Forget expired tokens."""
        now = self._clock()
        expired = [token.id for token in self._tokens.values() if token.expires <= now]
        for name in expired:
            del self._tokens[name]
        if expired:
            self._bury()

    def _bury(self) -> None:
        """Kill the records of tokens that have been dropped."""
        for place in [place for place, name in self._places.items() if name not in self._tokens]:
            del self._places[place]
            self._journal.kill(place)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _token_info(token: _TokenRecord, secret: str = "") -> TokenInfo:
    return TokenInfo(
        id=token.id,
        user=token.user,
        scopes=list(token.scopes),
        expires=token.expires,
        label=token.label,
        token=secret,
    )


def _invalid_token_request(detail: str, where: str) -> ServiceError:
    return ServiceError("bad-value", 422, detail, where=where)


# Authentication of the sender of a request.


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
            return bearer
        if self._security == "none":
            if not _is_loopback(peer):
                raise ServiceError("forbidden", 403, "without a token only from this machine")
            return Principal(user=self._owner, scopes=frozenset(SCOPES))
        raise _unauthenticated("expected a token: Authorization: Bearer TOKEN")

    def _bearer(self, headers: Mapping[str, str]) -> Principal | None:
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

    def _by_certificate(self, certificate: bytes | None, bearer: Principal | None) -> Principal:
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
        return Principal(user=user, scopes=scopes)


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def _unauthenticated(detail: str) -> ServiceError:
    return ServiceError("unauthenticated", 401, detail)


# The first administrator's token.


async def provide_first_token(
    tokens: JournalTokenStore, journal: RecordStore, path: Path, user: str
) -> bool:
    """
    Write a token of all scopes into a file, unless an administrator has a good one.

    This happens on the first start, and after all administrators' tokens have expired. It grants
    nothing new: anybody who can read the service's folder controls the service.

    Parameters
    ----------
    path
        File for the token, with mode 0600; a file of that name is replaced.
    user
        Name of the user whose token is made.

    Returns
    -------
    bool
        Whether a token was made.

    Raises
    ------
    BursarError
        When the file cannot be written.
    ServiceError
        507, when the journal cannot.
    """
    if any("admin" in token.scopes for token in tokens.tokens()):
        return False
    made = tokens.create(
        NewToken(user=user, scopes=list(SCOPES), seconds=MOST_SECONDS, label="first")
    )
    # The file first: a crash in between leaves a token that nobody takes, and the next start
    # makes another; the other way round it would leave one that nobody knows.
    write_file(path, f"{made.token}\n".encode(), replace=True)
    await journal.durable()
    return True
