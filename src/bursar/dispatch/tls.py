"""
A run's certificate, and the TLS contexts of both ends of a connection.

Each run makes a self-signed certificate, which pilots know from their credentials. Pilots accept
this certificate and no other, so that names and authorities do not matter.
"""

import datetime
import os
import ssl

BUFFER = 32 * 1024
"""Bytes that each connection over TLS reads into; a record of TLS holds half as many."""

_VALID = datetime.timedelta(days=3650)
_SLOW_CLOCK = datetime.timedelta(days=30)
"""Longest time by which the clock of a node may be behind."""


def make_certificate() -> tuple[str, bytes]:
    """
    Make a certificate and the private key, both PEM.

    The key is on the curve P-256 (FIPS 186-4), which every TLS 1.3 library has.
    """
    # Workers come to this module too; they do without the library, which takes time to load.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bursar")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of compute nodes may be far behind: the certificate is pinned, so its begin
        # protects nothing.
        .not_valid_before(now - _SLOW_CLOCK)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def server_context(certificate: str, key: bytes) -> ssl.SSLContext:
    """Return the dispatcher's TLS context: TLS 1.3 only, without session resumption."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    # It can only be loaded from a file; this one is in memory and has no name.
    file = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(file, key + certificate.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def client_context(certificate: str) -> ssl.SSLContext:
    """Return a worker's TLS context, which trusts a peer with this certificate only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is pinned, its name says nothing
    context.load_verify_locations(cadata=certificate)
    return context


def spare_memory() -> None:
    """
    Connections over TLS that are made from now on set :data:`BUFFER` aside.

    By itself asyncio sets 256 KiB aside for each of them, all of it in use from the start: a
    thousand workers that do nothing would take a quarter of a gigabyte.
    """
    from asyncio import sslproto  # not for workers, who come to this module too

    sslproto.SSLProtocol.max_size = BUFFER
