"""
Address, authorities and credentials of a service, and services that a file of the user names.

::

    [service.physics]
    url = "https://cluster.example.org:8443"
    token_file = "physics.token"
    ca = "physics-ca.pem"

It is ``~/.config/bursar/services.toml``, or where ``BURSAR_SERVICES`` says; paths in it are
relative to it. Of a service that is named by its URL, the environment says the rest:
``BURSAR_TOKEN`` or ``BURSAR_TOKEN_FILE``, ``BURSAR_CA``, ``BURSAR_FINGERPRINT``,
``BURSAR_CERTIFICATE`` and ``BURSAR_KEY``.
"""

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.file_text import joined, read_toml
from bursar.model.errors import InputError, spelling_hint
from bursar.model.site import SealLevel

# Address, trusted authorities and credentials of a service.

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


# Services by name: a file of the user's says how each is reached.

File = Annotated[str, Meta(min_length=1)]


class KnownServiceTable(TomlTable, frozen=True):
    """A service."""

    url: Annotated[str, Meta(description="Its address: https://HOST:PORT.")]
    token_file: Annotated[File | None, Meta(description="File of the user's token.")] = None
    ca: Annotated[
        File | None, Meta(description="File of the certificates to trust, PEM; the system's.")
    ] = None
    fingerprint: Annotated[
        str, Meta(description="SHA-256 of the service's certificate, hexadecimal.")
    ] = ""
    certificate: Annotated[
        File | None, Meta(description="File of the user's own certificate, PEM.")
    ] = None
    key: Annotated[
        File | None, Meta(description="File of its private key, PEM; that of the certificate.")
    ] = None
    seal: Annotated[
        SealLevel | None,
        Meta(description="Tasks and results are sealed: the service cannot read them."),
    ] = None

    def __post_init__(self) -> None:
        if self.seal is not None and None in (self.certificate, self.ca):
            raise InputError('needs "ca" and "certificate"', where="seal")


class ServicesFile(TomlTable, frozen=True):
    """A file of services."""

    service: Annotated[dict[str, KnownServiceTable], Meta(description="The services, by name.")] = (
        msgspec.field(default_factory=dict)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownService:
    """
    Access to a service and the level at which tasks are sealed.

    Parameters
    ----------
    seal
        Level at which tasks are sealed; None: not sealed.
    """

    access: Access
    seal: SealLevel | None = None


def find_service(site: str | None, environment: Mapping[str, str] = os.environ) -> KnownService:
    """
    Return the service of a name or a URL.

    Parameters
    ----------
    site
        Its URL, or its name in the file; None: the only one in the file.

    Raises
    ------
    InputError
        When there is none of the name, or what is said of it is wrong.
    """
    path = services_file(environment)
    tables = _tables(path) if path.exists() else {}
    if site is None:
        # With two services a guess could submit work, and spend money, at the wrong one.
        if len(tables) != 1:
            raise InputError(
                "name a service: its URL, or one of a services file",
                where="--site",
                hint=f"of {path}: {', '.join(tables)}" if tables else None,
            )
        (site,) = tables
    if "://" in site:
        return _by_url(site, tables, path, environment)
    if site not in tables:
        raise InputError(
            f'there is no service "{site}" in {path}, and it is no URL',
            where="--site",
            hint=spelling_hint(site, tables),
        )
    return _service(site, tables[site], path, environment)


def known_services(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names in the services file; none where there is no such file."""
    path = services_file(environment)
    return list(_tables(path)) if path.exists() else []


def services_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the services file, which need not exist."""
    if value := environment.get("BURSAR_SERVICES", ""):
        return Path(value).expanduser()
    folder = environment.get("XDG_CONFIG_HOME", "") or "~/.config"
    return Path(folder).expanduser() / "bursar" / "services.toml"


def _tables(path: Path) -> dict[str, KnownServiceTable]:
    return read_toml(path, lambda document: decode(document, ServicesFile)).service


def _same(one: str, other: str) -> bool:
    """Return whether two URLs name one address; scheme and host are compared without case."""
    return _address(one) == _address(other)


def _address(url: str) -> tuple[str, str]:
    head, slashes, rest = url.partition("://")
    netloc, slash, path = rest.partition("/")
    return f"{head}{slashes}{netloc}".lower(), f"{slash}{path}".rstrip("/")


def _by_url(
    url: str, tables: Mapping[str, KnownServiceTable], path: Path, environment: Mapping[str, str]
) -> KnownService:
    named = [name for name, table in tables.items() if _same(table.url, url)]
    if len(named) > 1:
        raise InputError(
            f"{len(named)} services of {path} have this URL: {', '.join(named)}",
            where="--site",
            hint="name one of them",
        )
    if named:
        return _service(named[0], tables[named[0]], path, environment)
    token, looked = token_from(environment)
    if not token:
        looked += f", and {path} " + (
            "has no service of this URL" if path.exists() else "is not there"
        )

    def file(variable: str) -> Path | None:
        value = environment.get(variable, "")
        return Path(value).expanduser() if value else None

    return KnownService(
        access=Access(
            url=url,
            token=token,
            token_place=looked,
            place=ENVIRONMENT,
            ca=file("BURSAR_CA"),
            fingerprint=environment.get("BURSAR_FINGERPRINT", ""),
            certificate=file("BURSAR_CERTIFICATE"),
            key=file("BURSAR_KEY"),
        )
    )


def _service(
    name: str, table: KnownServiceTable, path: Path, environment: Mapping[str, str]
) -> KnownService:
    def file(value: str | None) -> Path | None:
        return None if value is None else path.parent / Path(value).expanduser()

    place = f"{path}: {joined('service', name)}"

    def found() -> FoundToken:
        """Return the token and where it was found; empty, and why there is none."""
        if (own := file(table.token_file)) is not None:
            return FoundToken(read_token(own), f"token_file {own}")
        if table.certificate:  # the environment's goes nowhere where another way in is known
            return FoundToken("", f"{place} names no token_file")
        token, looked = token_from(environment)
        return FoundToken(token, looked if token else f"{place} names no token_file, and {looked}")

    try:
        token, looked = found()
        access = Access(
            url=table.url,
            name=name,
            token=token,
            token_place=looked,
            place=place,
            ca=file(table.ca),
            fingerprint=table.fingerprint,
            certificate=file(table.certificate),
            key=file(table.key),
        )
    except InputError as error:
        raise error.within(place) from None
    return KnownService(access=access, seal=table.seal)
