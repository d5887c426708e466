"""
Keys of parties: signing, encryption to a key, and decryption.

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
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from bursar.model.errors import InputError
from bursar.sealing.certificates import (
    is_authority,
    read_certificates,
)
from bursar.sealing.envelope import SealError

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
