"""
Certificates of users, workers and servers, and the keys that parties sign and decrypt with.

A certificate names one party by a URI among its alternative names (RFC 5280, section 4.2.1.6):
``bursar:user:NAME``, ``bursar:worker:NAME`` or ``bursar:server:NAME``. It is issued by one of the
authorities directly: there are no intermediate ones.

All keys are on the curve P-256 (FIPS 186-5), which TLS libraries have too. One key signs (ECDSA)
and unlocks (HPKE, RFC 9180: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM; its key
agreement is that of NIST SP 800-56A). That one key does both was shown to be sound for
elliptic-curve encryption and ECDSA [1]_; what is signed begins with its purpose, so that no
signature serves for anything else.

References
----------
.. [1] Degabriele, Lehmann, Paterson, Smart, Strefler (2012). On the joint security of encryption
   and signature in EMV. CT-RSA, LNCS 7178: 116-135.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.utils import CryptographyDeprecationWarning

from bursar.model.errors import BursarError, InputError
from bursar.sealing.envelope import SealError

# Certificates of users, workers and servers, and their verification.

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


# Keys of parties: signing, encryption to a key, and decryption.

_SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_SIGNING = ec.ECDSA(hashes.SHA256())
_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.+?-----END \1-----\s*", re.DOTALL)

PublicKey = ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Identity:
    """
    A certificate and the private key.

    Raises
    ------
    InputError
        When they do not belong together.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __post_init__(self) -> None:
        if self.key.public_key() != public_key(self.certificate):
            raise InputError("the private key does not belong to the certificate")

    @classmethod
    def from_pem(cls, certificate: bytes, key: bytes) -> "Identity":
        """
        Read the first certificate and the first private key of two PEM texts.

        Raises
        ------
        InputError
            When something is not there, or they do not belong together.
        """
        return cls(read_certificates(certificate)[0], read_keys(key)[0])

    def sign(self, purpose: bytes, data: bytes) -> bytes:
        """Sign bytes for one purpose."""
        # The purpose is signed with the data, so that a signature of one kind of message is none of
        # another.
        return self.key.sign(purpose + data, _SIGNING)

    def unlock(self, locked: bytes, info: bytes) -> bytes:
        """
        Decrypt bytes that were encrypted to this key.

        Raises
        ------
        SealError
            When it was locked to another key or with other info, or was altered.
        """
        try:
            return _SUITE.decrypt(locked, self.key, info=info)
        except (InvalidTag, ValueError):
            raise tampered_error() from None


def encrypt_to_key(secret: bytes, key: PublicKey, info: bytes) -> bytes:
    """Encrypt bytes to a key; decryption needs the same ``info``, which is not sent along."""
    return _SUITE.encrypt(secret, key, info=info)


def verify(key: PublicKey, signature: bytes, purpose: bytes, data: bytes) -> None:
    """
    Verify a signature.

    Raises
    ------
    SealError
        When it was made with another key, or of something else.
    """
    try:
        key.verify(signature, purpose + data, _SIGNING)
    except InvalidSignature:
        raise tampered_error() from None


def tampered_error() -> SealError:
    """Return one error for all failed checks: which one failed helps only attackers."""
    return SealError("the envelope was altered, or is not for this key")


def public_key(certificate: x509.Certificate) -> PublicKey:
    """
    Return the public key of a certificate.

    Raises
    ------
    InputError
        When it is not on P-256.
    """
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("expected a certificate whose key is on the curve P-256")
    return key


def read_keys(pem: bytes) -> list[ec.EllipticCurvePrivateKey]:
    """
    Return all private keys in a PEM text; other content is ignored.

    Raises
    ------
    InputError
        When there is none, or one is encrypted or not on P-256.
    """
    keys = [_read_key(found[0]) for found in _KEY.finditer(pem)]
    if not keys:
        raise InputError("expected a private key in PEM")
    return keys


def read_identities(pem: bytes) -> list[Identity]:
    """
    Return the pairs of certificate and private key in a PEM text, in the certificates' order.

    Raises
    ------
    InputError
        When there is none.
    """
    keys = {key_name(key.public_key()): key for key in read_keys(pem)}
    certificates = [each for each in read_certificates(pem) if not is_authority(each)]
    # Keys and certificates are matched by the public key, so that the file may hold them in any
    # order.
    named = [(each, key_name(public_key(each))) for each in certificates]
    found = [Identity(each, keys[name]) for each, name in named if name in keys]
    if not found:
        raise InputError("expected a private key with its certificate")
    return found


def key_name(key: PublicKey) -> bytes:
    """Return the SHA-256 of a public key; a renewal of the certificate does not change the key."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).digest()


def _read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a PEM text; refuse an encrypted one and other curves than P-256."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):  # TypeError: it is encrypted
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("expected a private key on the curve P-256, not encrypted")
    return key
