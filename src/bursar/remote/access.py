"""Address, trusted authorities and credentials of a service."""

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bursar.model.errors import InputError

LONGEST_TOKEN = 4096
"""Characters of a token, at most."""

ENVIRONMENT = "the environment"
"""Place of an access that is given by environment variables."""

_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """
    The address of a service, the authority to trust, and the credentials to use.

    Parameters
    ----------
    url
        Address: ``https://host:port``. Plain ``http`` goes to this machine only.
    name
        Name in messages; empty: host and port.
    token
        Token of the user; empty: none. Left out of ``repr``.
    ca
        File of certificates (PEM) to trust: authorities' with their revocation lists, or the
        server's own; None: the system's authorities.
    fingerprint
        SHA-256 of the server's certificate, in hexadecimal; without ``ca``, the server is
        identified by it alone. Empty: not checked.
    certificate, key
        Files of the user's own certificate and its private key (PEM), for mutual TLS; None:
        none, or both are in one file.
    place
        Where all this is said, for people: a table and its file, or :data:`ENVIRONMENT`; empty: by
        a program.
    token_place
        Where the token was found, or looked for in vain, for people; empty: a program gave it.

    Raises
    ------
    InputError
        When an address or a token is none, or TLS is asked for without ``https``.
    """

    url: str
    name: str = ""
    token: str = field(default="", repr=False)
    ca: Path | None = None
    fingerprint: str = ""
    certificate: Path | None = None
    key: Path | None = None
    place: str = ""
    token_place: str = ""

    def __post_init__(self) -> None:
        host, netloc = _checked(self.url)
        if self.plain and not _loopback(host):
            raise InputError(
                f'plain http goes to this machine only, got "{self.url}"',
                where="url",
                hint="use https",
            )
        if self.plain and (self.ca or self.fingerprint or self.certificate or self.key):
            raise InputError(f'certificates need https, got "{self.url}"', where="url")
        if self.key is not None and self.certificate is None:
            raise InputError("a private key needs its certificate", where="key")
        if self.token and (len(self.token) > LONGEST_TOKEN or not _TOKEN.fullmatch(self.token)):
            raise InputError(
                "expected printable characters without spaces", where=self.token_place or "token"
            )
        if self.fingerprint and not _FINGERPRINT.fullmatch(self.fingerprint):
            raise InputError("expected a SHA-256, 64 hexadecimal digits", where="fingerprint")
        object.__setattr__(self, "url", self.url.rstrip("/"))
        if not self.name:
            object.__setattr__(self, "name", netloc)

    @property
    def plain(self) -> bool:
        """Whether connections are without TLS."""
        return self.url.startswith("http:")

    @property
    def pin(self) -> bytes:
        """The fingerprint as bytes; empty: none."""
        return bytes.fromhex(self.fingerprint.replace(":", ""))

    def setting(self, key: str) -> str:
        """Return the name of the setting of a field, for messages."""
        if self.place == ENVIRONMENT:
            return f"BURSAR_{key.upper()}"
        return f'"{key}" of {self.place}' if self.place else f'"{key}" of Access'

    def shown(self) -> str:
        """Return which credentials are used, for messages; without secrets."""
        means = []
        if self.token:
            means.append(f"the token of {self.token_place or self.setting('token')}")
        if self.certificate is not None:
            means.append(f"the certificate {self.certificate}")
        if means:
            return " and ".join(means)
        return "no token" + (f": {self.token_place}" if self.token_place else "")

    def tls(self) -> ssl.SSLContext | None:
        """
        Return the TLS context of connections; None: no TLS.

        Raises
        ------
        InputError
            When a file cannot be read, or holds something else.
        """
        if self.plain:
            return None
        context = _trusting(self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.fingerprint and self.ca is None:
            # In this order: ssl refuses CERT_NONE while names are checked.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # its fingerprint says who it is
        if self.certificate is not None:
            certificate = _readable(self.certificate, "certificate")
            key = None if self.key is None else _readable(self.key, "key")
            try:
                # A password would be asked for at the terminal.
                context.load_cert_chain(certificate, key, password="")
            except (ssl.SSLError, ValueError):
                raise InputError(
                    "expected a certificate and its private key, PEM, without a password",
                    where=str(self.key or self.certificate),
                ) from None
        return context


class FoundToken(NamedTuple):
    """A token and the place found; an empty token and the places searched."""

    token: str
    place: str


def read_token(path: Path) -> str:
    """
    Return the token in a user's own file of one line.

    Raises
    ------
    InputError
        When it cannot be read, holds none, or others may read it.
    """
    token = _token_in(path)
    if path.stat().st_mode & 0o077:
        raise InputError("others may read the token", where=str(path), hint=f"chmod 600 {path}")
    return token


def token_from(environment: Mapping[str, str] = os.environ) -> FoundToken:
    """
    Return the token of ``BURSAR_TOKEN`` or of the file ``BURSAR_TOKEN_FILE``; empty: none.

    The permissions of that file are not checked: it may be a container's secret.

    Raises
    ------
    InputError
        When the file cannot be read, or holds none.
    """
    if token := environment.get("BURSAR_TOKEN", "").strip():
        return FoundToken(token, "BURSAR_TOKEN")
    if not (file := environment.get("BURSAR_TOKEN_FILE", "")):
        return FoundToken("", "neither BURSAR_TOKEN nor BURSAR_TOKEN_FILE is set")
    try:
        return FoundToken(_token_in(Path(file).expanduser()), f"BURSAR_TOKEN_FILE, {file}")
    except InputError as error:
        raise error.within("BURSAR_TOKEN_FILE") from None


def _token_in(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text"
        raise InputError(f"cannot read the token: {reason}", where=str(path)) from None
    if not text:
        raise InputError("holds no token", where=str(path))
    return text


def _checked(url: str) -> tuple[str, str]:
    """Return host, and host with port, of a valid address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    fit = host and parts.scheme in ("http", "https") and not (parts.query or parts.fragment)
    if not fit or "@" in parts.netloc or any(ord(letter) <= 32 for letter in url):
        # What may hold a password is not said again.
        shown = "one with a user" if "@" in url else f'"{url}"'
        raise InputError(f"expected https://HOST:PORT, got {shown}", where="url")
    assert host is not None
    bracketed = f"[{host}]" if ":" in host else host
    return host, bracketed if port is None else f"{bracketed}:{port}"


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _trusting(ca: Path | None) -> ssl.SSLContext:
    """
    Return a context that trusts only ``ca``, which may be the server's own certificate.

    None: it trusts the authorities of the system. Revocation lists in the file are heeded.
    """
    if ca is None:
        return ssl.create_default_context()
    file = _readable(ca, "ca")
    try:
        context = ssl.create_default_context(cafile=file)
    except ssl.SSLError:
        raise InputError("expected certificates, PEM", where=f"ca {ca}") from None
    # Trusts a certificate in the file as it is, though its issuer is not there: the server's own,
    # for one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Only where there is a list: OpenSSL refuses every certificate when it is to check one and has
    # none.
    if b"-----BEGIN X509 CRL-----" in Path(file).read_bytes():
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _readable(path: Path, what: str) -> str:
    """
    Return the path with ``~`` expanded, once the file could be opened.

    It is opened here because errors of :mod:`ssl` do not name the file. ``what`` names the
    setting in the message.
    """
    path = path.expanduser()
    try:
        with path.open("rb"):
            return str(path)
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=f"{what} {path}") from None
