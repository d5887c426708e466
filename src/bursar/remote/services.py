"""
Services by name: a file of the user's says how each is reached.

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

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable, decode
from bursar.formats.toml_reading import joined, read_toml
from bursar.model.errors import InputError, spelling_hint
from bursar.model.site import SealLevel
from bursar.remote.access import ENVIRONMENT, Access, FoundToken, read_token, token_from

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
    access
        Address and credentials of the service.
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
