"""
A worker's way to its dispatcher: credential, TLS contexts, and probes that the other end is there.

Each run makes a self-signed certificate, which pilots know from their credentials. Pilots accept
this certificate and no other, so that names and authorities do not matter.
"""

import datetime
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from bursar.model.errors import InputError
from bursar.model.provisioning import PATIENCE

if TYPE_CHECKING:
    import ssl

# Credentials of pilots: the dispatcher's address and the secret that admits their workers.

SILENCE = 15.0
"""Seconds, about, after which an end of a connection that says nothing is taken to be gone."""


LAST_WORDS = 1.0
"""Seconds between SIGTERM and SIGKILL for a task whose processors are taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotTerms:
    """
    Terms on which the workers of a lease's pilots are admitted.

    Parameters
    ----------
    host
        Name or address under which the pilots find this machine. With a loopback address, only
        connections of this machine are accepted.
    processors
        Most that the lease's workers may have together.
    idle
        Seconds without a task after which a worker leaves by itself; None: never.
    patience
        Seconds for which a pilot tries to come back when it loses the connection.
    grace
        Seconds between SIGTERM and SIGKILL for tasks whose processors are taken away.
    on_join
        Called when the lease's first worker has joined; None: no call.
    on_leave
        Called when a worker has gone whose lease was not revoked; None: no call.
    """

    lease: str
    site: str
    host: str
    processors: int
    idle: float | None = None
    patience: float = PATIENCE
    grace: float = LAST_WORDS
    on_join: Callable[[], None] | None = None
    on_leave: Callable[[], None] | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """
    Secret credential of a pilot, kept in a file that only the owner can read.

    Parameters
    ----------
    host, port
        Address that the dispatcher listens on.
    token
        Secret that admits the workers of one lease only.
    certificate
        The dispatcher's certificate, PEM; no other is accepted.
    processors
        Most that the lease's workers may have together.
    idle
        Seconds without a task after which it leaves by itself (DRP section 3.1, distributed
        release); None: never.
    patience
        Seconds for which it tries to come back when the connection is lost; then it ends.
    silence
        Seconds, about, after which a connection without a sign of life is lost.
    grace
        Seconds between SIGTERM and SIGKILL for tasks whose processors are taken away.
    """

    host: str
    port: int
    token: str
    certificate: str
    run: str
    site: str
    lease: str
    processors: int
    idle: float | None = None
    patience: float = PATIENCE
    silence: float = SILENCE
    grace: float = LAST_WORDS

    def encode(self) -> bytes:
        """Encode the credential as JSON, the form of the credential file."""
        return msgspec.json.encode(self)


def decode_credential(data: bytes, where: str) -> Credential:
    """
    Decode the content of a credential file.

    Raises
    ------
    InputError
        When the content is no credential; the message does not repeat it.
    """
    try:
        return msgspec.json.decode(data, type=Credential)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputError("is not a pilot's credential", where=where) from None


# A run's certificate, and the TLS contexts of both ends of a connection.

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


def server_context(certificate: str, key: bytes) -> "ssl.SSLContext":
    """Return the dispatcher's TLS context: TLS 1.3 only, without session resumption."""
    import ssl  # late: workers of this machine, who come to this module too, do without

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


def client_context(certificate: str) -> "ssl.SSLContext":
    """Return a worker's TLS context, which trusts a peer with this certificate only."""
    import ssl

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


# Noticing that the other end of a connection is gone when nothing says so.


def keep_alive(connection: socket.socket, silence: float) -> None:
    """
    Have a connection break when the other machine has not answered for some time.

    The kernels see to it, not the programs: a program may be busy for longer. One that
    is unreachable while something is on its way to it breaks by ``TCP_USER_TIMEOUT`` (RFC
    5482), one without anything to say by the probes of RFC 9293, section 3.8.4.

    Parameters
    ----------
    silence
        Seconds; whole ones count, three at the least.
    """
    third = max(1, int(silence / 3))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * silence))
