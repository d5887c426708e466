"""
Certificates of users, workers and servers, and their verification.

A certificate names one party by a URI among its alternative names (RFC 5280, section 4.2.1.6):
``bursar:user:NAME``, ``bursar:worker:NAME`` or ``bursar:server:NAME``. It is issued by one of the
authorities directly: there are no intermediate ones.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.utils import CryptographyDeprecationWarning

from bursar.model.errors import BursarError, InputError

Kind = Literal["user", "worker", "server"]
"""Role in which a certificate may be used; a certificate has one role only."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""Pattern of a party's name, which fits a URI, a file's name and a line of a log."""

_SCHEME = "bursar:"
_LIST = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----\s*", re.DOTALL)


_EXPIRED = "the certificate has expired or is not good yet"

_MOST_VOUCHED = 4096
"""Number of verified certificates that are cached."""

_ODD = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    InvalidSignature,
    x509.InvalidVersion,
    CryptographyDeprecationWarning,  # where warnings are errors
)
"""Exceptions that the library raises for malformed or hostile certificates."""


class UntrustedCertificate(BursarError):
    """A certificate is not trusted; the text says why, in a few words."""


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """
    The kind and the name of the party that a certificate is of.

    Parameters
    ----------
    kind
        Role for which the certificate may be used.
    name
        Name of the user, worker or server.
    """

    kind: Kind
    name: str

    @property
    def uri(self) -> str:
        """URI of the party in the certificate."""
        return f"{_SCHEME}{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCertificate:
    """
    A certificate that has been verified.

    Parameters
    ----------
    name
        Name of the party.
    begin, end
        Validity, seconds since the epoch.
    """

    certificate: x509.Certificate
    name: str
    begin: float
    end: float


def subject_of(certificate: x509.Certificate) -> CertificateSubject | None:
    """Return the party of a certificate; None when none or several are named."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    ours = [uri for uri in uris if uri.startswith(_SCHEME)]
    # With two names it would depend on the reader which of them is meant.
    if len(ours) != 1:
        return None
    kind, _, name = ours[0].removeprefix(_SCHEME).partition(":")
    if kind not in get_args(Kind) or not NAME.fullmatch(name):
        return None
    return CertificateSubject(kind, name)  # type: ignore[arg-type]


def host_names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *map(str, addresses))


class TrustStore:
    """
    The trusted authorities and their revocation lists.

    Parameters
    ----------
    authorities
        Certificates of the authorities.
    lists
        Revocation lists (RFC 5280, section 5); several of one authority add up.

    Raises
    ------
    InputError
        When there is no authority, a certificate is not that of an authority, or a list is
        signed by none of them.
    """

    def __init__(
        self,
        authorities: Sequence[x509.Certificate],
        lists: Iterable[x509.CertificateRevocationList] = (),
    ) -> None:
        if not authorities:
            raise InputError("expected the certificate of an authority, there is none")
        for authority in authorities:
            if not is_authority(authority):
                name = authority.subject.rfc4514_string()
                raise InputError(f"expected certificates of authorities, {name} is none")
        self.authorities = tuple(authorities)
        self._vouched: dict[tuple[bytes, Kind], VerifiedCertificate] = {}
        self._revoked: set[tuple[x509.Name, int]] = set()
        for revocations in lists:
            if not any(_signed_by(revocations, each) for each in authorities):
                raise InputError("the revocation list is signed by none of the authorities")
            issuer = revocations.issuer
            self._revoked.update((issuer, entry.serial_number) for entry in revocations)

    @classmethod
    def from_pem(cls, pem: bytes) -> "TrustStore":
        """
        Read authorities and revocation lists from a PEM text; other certificates are ignored.

        Raises
        ------
        InputError
            When there is no authority in it, or something cannot be read.
        """
        authorities = [each for each in read_certificates(pem) if is_authority(each)]
        return cls(authorities, read_lists(pem))

    def is_revoked(self, certificate: x509.Certificate) -> bool:
        """Return whether the authority has revoked a certificate."""
        # A serial number is unique for one issuer only (RFC 5280, section 4.1.2.2).
        return (certificate.issuer, certificate.serial_number) in self._revoked

    def check(self, certificate: x509.Certificate, kind: Kind, now: float) -> CertificateSubject:
        """
        Verify a certificate and return the named party.

        Parameters
        ----------
        kind
            Role in which the certificate is used.
        now
            Seconds since the epoch.

        Raises
        ------
        UntrustedCertificate
            When it was not issued by one of the authorities, is of another kind, is not good yet
            or any more, or was revoked.
        """
        issuers = [each for each in self.authorities if _issued_by(certificate, each)]
        # Two authorities may have one name and key, as after a renewal: one that is current
        # suffices.
        if not issuers:
            raise UntrustedCertificate(
                "the certificate was not issued by an authority that is trusted"
            )
        if not any(is_current(each, now) for each in issuers):
            raise UntrustedCertificate("the certificate of the authority is not good at this time")
        party = subject_of(certificate)
        if party is None or party.kind != kind:
            raise UntrustedCertificate(f"the certificate is not that of a {kind}")
        if not is_current(certificate, now):
            raise UntrustedCertificate(_EXPIRED)
        if self.is_revoked(certificate):
            raise UntrustedCertificate("the certificate was revoked")
        return party

    def vouch(self, der: bytes, kind: Kind, now: float) -> VerifiedCertificate:
        """
        Verify a received certificate (DER), with a cache; see :meth:`check`.

        Raises
        ------
        UntrustedCertificate
            Also when it cannot be read.
        """
        known = self._vouched.get((der, kind))
        if known is None:
            certificate = parse_certificate(der)
            # The lists of this store never change, so a certificate that has passed can only
            # expire.
            party = self.check(certificate, kind, now)
            known = VerifiedCertificate(
                certificate=certificate,
                name=party.name,
                begin=certificate.not_valid_before_utc.timestamp(),
                end=certificate.not_valid_after_utc.timestamp(),
            )
            if len(self._vouched) >= _MOST_VOUCHED:
                self._vouched.clear()
            self._vouched[der, kind] = known
        if not known.begin <= now <= known.end:
            raise UntrustedCertificate(_EXPIRED)
        return known


def is_current(certificate: x509.Certificate, now: float) -> bool:
    """Return whether a certificate is valid at a time, seconds since the epoch."""
    begin = certificate.not_valid_before_utc.timestamp()
    return begin <= now <= certificate.not_valid_after_utc.timestamp()


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may issue others."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except (x509.ExtensionNotFound, ValueError):
        return False
    return constraints.value.ca


def parse_certificate(der: bytes) -> x509.Certificate:
    """
    Parse a received certificate in DER, whose key must be on P-256.

    Raises
    ------
    UntrustedCertificate
        When it is none, or one of a sort that is not known here.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        key = certificate.public_key()
    except _ODD:
        raise UntrustedCertificate("the certificate cannot be read") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UntrustedCertificate("the certificate's key is not on the curve P-256")
    return certificate


def read_pem(path: Path) -> bytes:
    """
    Read a file of keys or certificates.

    Raises
    ------
    InputError
        When it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def read_certificates(pem: bytes) -> list[x509.Certificate]:
    """
    Return all certificates in a PEM text; other content is ignored.

    Raises
    ------
    InputError
        When there is none.
    """
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise InputError("expected a certificate in PEM") from None


def read_lists(pem: bytes) -> list[x509.CertificateRevocationList]:
    """
    Return all revocation lists in a PEM text; other content is ignored.

    Raises
    ------
    InputError
        When one cannot be read.
    """
    try:
        return [x509.load_pem_x509_crl(found) for found in _LIST.findall(pem)]
    except ValueError:
        raise InputError("expected a revocation list in PEM") from None


def _issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except _ODD:
        return False
    return True


def _signed_by(revocations: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    if revocations.issuer != authority.subject or not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    return revocations.is_signature_valid(key)
