"""Records of issued certificates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from bursar.model.errors import InputError
from bursar.sealing.certificates import (
    CertificateSubject,
    TrustStore,
    UntrustedCertificate,
    host_names_of,
    is_authority,
    is_current,
    read_certificates,
    read_pem,
    subject_of,
)

CertificateState = Literal["good", "expired", "revoked", "untrusted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRecord:
    """
    A certificate that was issued.

    Parameters
    ----------
    serial
        Serial number, hexadecimal.
    party
        Kind and name of the holder.
    hosts
        Names and addresses of a server; empty for others.
    begin, end
        Period of validity, seconds since the epoch.
    state
        ``"untrusted"``: the authority that issued the certificate was retired.
    """

    serial: str
    party: CertificateSubject
    hosts: tuple[str, ...]
    begin: float
    end: float
    state: CertificateState


def describe_certificate(
    certificate: x509.Certificate, trust: TrustStore, now: float
) -> CertificateRecord:
    """
    Describe a certificate, with the state at a time in seconds since the epoch.

    Raises
    ------
    InputError
        When the certificate does not name a holder in our form.
    """
    party = subject_of(certificate)
    if party is None:
        raise InputError(f"certificate {serial_of(certificate)} does not say whose it is")
    return CertificateRecord(
        serial=serial_of(certificate),
        party=party,
        hosts=host_names_of(certificate),
        begin=certificate.not_valid_before_utc.timestamp(),
        end=certificate.not_valid_after_utc.timestamp(),
        state=_state(certificate, party, trust, now),
    )


def describe_file(path: Path) -> list[dict[str, Any]]:
    """
    Describe the certificates in a PEM file, and pass over keys.

    Each has ``kind``, ``name``, ``serial``, ``hosts``, ``begin``, ``end`` (seconds since the
    epoch) and ``sha256``.

    Raises
    ------
    InputError
        When the file cannot be read, or holds no certificate.
    """
    pem = read_pem(path)
    try:
        certificates = read_certificates(pem)
    except InputError as error:
        raise error.within(str(path)) from None
    return [_described(each) for each in certificates]


def _described(certificate: x509.Certificate) -> dict[str, Any]:
    party = subject_of(certificate)
    # Certificates of other authorities are described, too, as far as they can be.
    other = "authority" if is_authority(certificate) else "unknown"
    return {
        "kind": other if party is None else party.kind,
        "name": certificate.subject.rfc4514_string() if party is None else party.name,
        "serial": serial_of(certificate),
        "hosts": host_names_of(certificate),
        "begin": certificate.not_valid_before_utc.timestamp(),
        "end": certificate.not_valid_after_utc.timestamp(),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def serial_of(certificate: x509.Certificate) -> str:
    """Return a certificate's serial number in hexadecimal digits, all of one length."""
    return f"{certificate.serial_number:040x}"


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of an authority."""
    name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return name if isinstance(name, str) else name.decode()


def _state(
    certificate: x509.Certificate, party: CertificateSubject, trust: TrustStore, now: float
) -> CertificateState:
    # In this order: a revoked certificate is called so even after its end.
    if trust.is_revoked(certificate):
        return "revoked"
    if not is_current(certificate, now):
        return "expired"
    try:
        trust.check(certificate, party.kind, now)
    except UntrustedCertificate:
        return "untrusted"
    return "good"
