"""
Certificates are issued, and files of keys, certificates and tokens written for their owner only.

All keys are on P-256, which every TLS 1.3 library takes, and are signed with ECDSA and SHA-256.
"""

import datetime
import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bursar.model.errors import BursarError, InputError
from bursar.sealing.certificates import NAME, CertificateSubject, Identity, Kind, is_current

# Files of keys, certificates and tokens, written atomically and readable by their owner only.

SECRET = 0o600
"""Mode of a file that only the owner can read."""


def write_file(path: Path, data: bytes, *, mode: int = SECRET, replace: bool = False) -> None:
    """
    Write a file atomically and durably.

    Parameters
    ----------
    replace
        Whether a file of that name is replaced; False: it is an error.

    Raises
    ------
    InputError
        When there is such a file, and ``replace`` is False.
    BursarError
        When the file cannot be written.
    """
    try:
        file, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(file, "wb") as opened:
                os.fchmod(file, mode)
                opened.write(data)
                opened.flush()
                # Content before name: a power cut must not leave an empty key under the final
                # name.
                os.fsync(opened.fileno())
            if replace:
                os.replace(name, path)
            else:
                os.link(name, path)  # unlike a renaming, it replaces nothing
                os.unlink(name)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except FileExistsError:
        raise InputError("exists already", where=str(path), hint="--force replaces it") from None
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file's own fsync does not cover its name."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# Certificates of a private authority, as functions of data.

AUTHORITY_DAYS = 3650.0
CERTIFICATE_DAYS = 365.0
_MOST_DAYS = 36_500
_LONGEST = 64  # characters of a common name (RFC 5280, appendix A)

_SLOW_CLOCK = datetime.timedelta(days=1)
"""By how much the clock of another machine may be slow: certificates begin so much earlier."""

_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

_USES = {
    "user": ExtendedKeyUsageOID.CLIENT_AUTH,
    "worker": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
}


def make_authority(name: str, now: float, days: float = AUTHORITY_DAYS) -> Identity:
    """
    Make a new authority.

    Parameters
    ----------
    name
        Common name; no other authority that is trusted beside it should have the same.
    now, days
        Begin in seconds since the epoch, and days of validity.

    Raises
    ------
    InputError
        When the name is empty, too long or not printable.
    """
    if not (0 < len(name.strip()) == len(name) <= _LONGEST and name.isprintable()):
        raise InputError(f'expected a name of at most {_LONGEST} printable letters, got "{name}"')
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begin, end = _period(now, days)
    certificate = (
        _builder(subject, subject, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Identity(certificate, key)


def issue(
    authority: Identity,
    kind: Kind,
    name: str,
    *,
    now: float,
    days: float = CERTIFICATE_DAYS,
    hosts: Sequence[str] = (),
) -> Identity:
    """
    Make a certificate with a new key.

    Parameters
    ----------
    now, days
        Begin in seconds since the epoch, and days of validity, which ends with the authority's
        at the latest.
    hosts
        Names and addresses by which clients call a server; empty for others.

    Raises
    ------
    InputError
        When a name or an address is invalid, or a server has no host.
    """
    check_name(name)
    if (kind == "server") != bool(hosts):
        raise InputError(
            "a server needs a name or address by which clients call it, "
            f"and nobody else has one; got {len(hosts)} for a {kind}"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [_host(host) for host in hosts]
    # Kind and name stand in a URI: a common name alone does not tell a user from a worker of the
    # same name.
    names.append(x509.UniformResourceIdentifier(CertificateSubject(kind, name).uri))
    issuer = authority.certificate
    begin, end = _period(now, days)
    # Checked before signing: a certificate of an expired authority is good for nobody.
    if not is_current(issuer, now):
        raise InputError("the authority has expired: make the next one")
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            issuer.subject,
            key.public_key(),
            begin,
            # A certificate that outlives its authority would be refused while it says that it is
            # good.
            min(end, issuer.not_valid_after_utc),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        # Keys of users and workers also open sealed envelopes, by agreement on a key (ECDH).
        .add_extension(_usage(agrees_on_keys=kind != "server"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([_USES[kind]]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return Identity(certificate, key)


def make_revocation_list(
    authority: Identity, serials: Iterable[int], number: int, now: float
) -> x509.CertificateRevocationList:
    """
    Make the list of an authority's revoked certificates (RFC 5280, section 5).

    The list is valid until the authority itself ends. A newer list takes its place when a
    certificate is revoked, and no client is refused because no list was made for a while.

    Parameters
    ----------
    serials
        Serial numbers of the revoked certificates.
    number
        Number of the list, greater than that of the list before.
    """
    identifier = authority.certificate.extensions.get_extension_for_class(
        x509.SubjectKeyIdentifier
    ).value
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        # A list from the future, by the clock of a slow machine, would be refused there.
        .last_update(_time(now) - _SLOW_CLOCK)
        # An authority that has expired still signs its list: the end must not be before the begin.
        .next_update(max(authority.certificate.not_valid_after_utc, _time(now)))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(_time(now))
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(authority.key, hashes.SHA256())


def check_name(name: str) -> None:
    """
    Refuse a name that no certificate may have.

    Raises
    ------
    InputError
        When the name is too long or has characters that are not allowed.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            "expected a name of at most 64 letters, digits and . _ @ -, beginning with a letter "
            f'or digit, got "{name}"'
        )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def identity_pem(identity: Identity) -> bytes:
    """Return private key and certificate as PEM, for one file."""
    key = identity.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key + certificate_pem(identity.certificate)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    """Begin a certificate with a random serial number; extensions and signature are missing."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool = False, agrees_on_keys: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=agrees_on_keys,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not _HOST.fullmatch(name):
        raise InputError(f'expected a host name or an address, got "{host}"')
    return x509.DNSName(name)


def _time(now: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(now), datetime.UTC)


def _period(now: float, days: float) -> tuple[datetime.datetime, datetime.datetime]:
    if not 0 < days <= _MOST_DAYS:
        raise InputError(f"expected more than 0 and at most {_MOST_DAYS} days, got {days:g}")
    begin = _time(now)
    return begin - _SLOW_CLOCK, begin + datetime.timedelta(days=days)
