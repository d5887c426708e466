"""TLS settings of the service, and trust in client certificates."""

import logging
import os
import ssl
import stat
import time
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from bursar.model.errors import InputError
from bursar.sealing.certificates import TrustStore, read_certificates, read_lists, read_pem
from bursar.service.interfaces import Clock
from bursar.service.logs import LOGGER

# Trust in client certificates: the authorities and revocation lists, read from files.

_log = logging.getLogger(f"{LOGGER}.identity")

_LOOKED_AT = 1.0
"""Least number of seconds between two checks of the files for changes."""


class TrustFiles:
    """
    Checks clients' certificates against files, which are read again after each change.

    TLS verifies a certificate when a connection begins. This check is made at each request, so
    that a revoked certificate is refused on open connections, too.

    Parameters
    ----------
    authorities
        PEM file of the certificates of trusted authorities; may hold revocation lists, too.
    revoked
        PEM file of more revocation lists; None: there is no such file.

    Raises
    ------
    InputError
        When a file is not what is expected. Later on this is a :attr:`problem`, and the content
        that was read before holds.
    """

    def __init__(self, authorities: Path, revoked: Path | None, *, clock: Clock) -> None:
        self._paths = (authorities,) if revoked is None else (authorities, revoked)
        self._clock = clock
        self._seen = self._stamp()
        self._trust = self._read()
        self._check_at = clock() + _LOOKED_AT
        self.problem = ""
        """Why what has changed on disk does not hold here; empty: all does."""

    def user_of(self, certificate: bytes) -> str:
        """
        Return the name of the user whose certificate (DER) this is.

        Raises
        ------
        Untrusted
            When the certificate is not a user's, or no longer valid.
        """
        now = self._clock()
        if now >= self._check_at:
            self._check_at = now + _LOOKED_AT
            self.refresh()
        return self._trust.vouch(certificate, "user", now).name

    def refresh(self) -> None:
        """Read the files again if one has changed; keep the last content if one cannot be read."""
        try:
            # The stamp is taken before the files are read: a file that is replaced in between is
            # read once more next time, and never missed.
            seen = self._stamp()
            if seen != self._seen:
                self._trust = self._read()
        except InputError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("what was read before holds: %s", error)
            return
        self._seen = seen
        self.problem = ""

    def _stamp(self) -> list[tuple[int, int, int]]:
        """Return modification time, size and inode of each file, which change with the content."""
        stamps = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return stamps

    def _read(self) -> TrustStore:
        certificates, lists = [], []
        for number, path in enumerate(self._paths):
            pem = read_pem(path)
            try:
                # Only the first file says whom to trust: a file of lists cannot bring in an
                # authority.
                if number == 0:
                    certificates = read_certificates(pem)
                lists += read_lists(pem)
            except InputError as error:
                raise error.within(str(path)) from None
        try:
            return TrustStore(certificates, lists)
        except InputError as error:
            raise error.within(", ".join(map(str, self._paths))) from None


# TLS settings of the service.

SOON = 30.0
"""Days before the end of a certificate from which on warnings are given."""


class ServerTls:
    """
    The certificate of a service, and the TLS context of the listener.

    TLS 1.3 only, without session resumption, so that each connection shows its certificate.

    Parameters
    ----------
    certificate, key
        Files in PEM; may be the same one.
    authorities
        File of the authorities whose clients may connect, PEM: each must show a certificate
        (mutual TLS). None: clients need none.

    Raises
    ------
    InputError
        When a file is not what is expected, or everybody can read the key.
    """

    def __init__(self, certificate: Path, key: Path, authorities: Path | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._authorities = authorities
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """Context for the listener; reloading changes this object instead of replacing it."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        # No tickets, no resumption: each connection makes a whole handshake.
        self.context.num_tickets = 0
        self.context.set_alpn_protocols(["http/1.1"])
        if authorities is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
        self.expires = 0.0
        """When the certificate ends, seconds since the epoch."""
        self.reload()

    def reload(self) -> None:
        """
        Read the files again, for connections that begin from now on.

        An authority that is not in its file any more is trusted by TLS until the service is
        started again; requests of its clients are refused all the same, as
        :class:`bursar.service.identity.tls.TrustFiles` looks at the file, too.

        Raises
        ------
        InputError
            When a file is not what is expected: the context stays as it was.
        """
        _check_mode(self._key)
        # Tried on another context first: one that has loaded half of its files cannot be put back.
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        expires = self._load(trial)
        self._load(self.context)
        self.expires = expires

    def days_left(self, now: float) -> float:
        """Return the days until the certificate ends; negative after the end."""
        return (self.expires - now) / 86_400

    def warning(self, now: float) -> str:
        """Return a warning from :data:`SOON` days before the certificate's end on; else empty."""
        days = self.days_left(now)
        if days > SOON:
            return ""
        when = time.strftime("%Y-%m-%d", time.gmtime(self.expires))
        return f"{self._certificate}: the certificate {'ends' if days > 0 else 'ended'} on {when}"

    def _load(self, context: ssl.SSLContext) -> float:
        """Load the files into a context; return when the certificate ends (seconds since 1970)."""
        pem = read_pem(self._certificate)
        try:
            certificate = read_certificates(pem)[0]
            # A password would be asked for at the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (InputError, ssl.SSLError, OSError, ValueError):
            raise InputError(
                "expected a certificate and its private key, PEM, without a password",
                where=f"{self._certificate}, {self._key}",
            ) from None
        if self._authorities is not None:
            try:
                trust = TrustStore.from_pem(read_pem(self._authorities))
            except InputError as error:
                raise error.within(str(self._authorities)) from None
            for authority in trust.authorities:
                context.load_verify_locations(cadata=authority.public_bytes(Encoding.DER))
        return certificate.not_valid_after_utc.timestamp()


def _check_mode(key: Path) -> None:
    try:
        mode = key.stat().st_mode
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(key)) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InputError(
            "everybody on this machine can read or change the private key",
            where=str(key),
            hint=f"chmod 600 {key}",
        )
