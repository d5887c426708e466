"""
Names of logical files, size and checksum of their content, and locations of their copies.

Local copies are kept as absolute paths. Passwords and signatures in a URL are needed to read it and
are never printed.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from bursar.model.errors import InputError, spelling_hint
from bursar.model.replica import Replica
from bursar.model.task import File

# Names of logical files, and size and checksum of their content.

OWN_FOLDER = ".bursar"
"""Folder of a storage for files that are not logical files."""

_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LogicalFileContent:
    """
    The known ones of size and checksum of a logical file.

    Parameters
    ----------
    size
        Bytes; None when unknown.
    checksum
        ``"sha256:<hex>"``; None when unknown.

    Raises
    ------
    InputError
        When one is out of form.
    """

    size: int | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not 0 <= self.size < 2**63:
            raise InputError(f"a size must be between 0 and 2^63, got {self.size}")
        if self.checksum is not None and not _CHECKSUM.fullmatch(self.checksum):
            raise InputError(
                f'expected a checksum such as "sha256:" and 64 of 0-9a-f, got "{self.checksum}"'
            )

    def agrees_with(self, other: "LogicalFileContent") -> bool:
        """Return whether both may be the same content, as far as sizes and checksums are known."""
        return (None in (self.size, other.size) or self.size == other.size) and (
            None in (self.checksum, other.checksum) or self.checksum == other.checksum
        )

    def __str__(self) -> str:
        parts = [] if self.size is None else [f"{self.size} bytes"]
        if self.checksum is not None:
            parts.append(self.checksum[:15] + "…")
        return ", ".join(parts) or "unknown"


def content_of(replica: Replica) -> LogicalFileContent:
    """Return the size and checksum that a copy should have."""
    return LogicalFileContent(replica.size, replica.checksum)


def new_digest() -> "hashlib._Hash":
    """Return a SHA-256 digest of no bytes."""
    return hashlib.sha256()


def checksum_of(digest: "hashlib._Hash") -> str:
    """Return a digest in the catalogue's form, ``"sha256:<hex>"``."""
    return f"sha256:{digest.hexdigest()}"


def logical(name: str) -> str:
    """
    Return the shortest form of a logical name.

    Raises
    ------
    InputError
        When it is no relative path, or one that storages use themselves.
    """
    try:
        short = File(name).name
    except ValueError as error:
        raise InputError(str(error)) from None
    if short.split("/")[0] == OWN_FOLDER:
        raise InputError(f'file name must not begin with "{OWN_FOLDER}/", got "{name}"')
    try:
        short.encode()
    except UnicodeEncodeError:
        raise InputError(f"file name must be Unicode, got {name!r}") from None
    return short


# Locations of copies as text: paths of this machine and URLs.

SCHEMES = ("file", "http", "https", "ssh", "sftp", "s3")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_ANYWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")


def is_local(url: str) -> bool:
    """Return whether a location is a path of this machine."""
    return _URL.match(url) is None


def split_url(url: str) -> tuple[str, str, str]:
    """
    Split a URL into scheme, host with user and port, and the rest, as written.

    Raises
    ------
    ValueError
        When it is a path.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError("a path, no URL")
    return match[1].lower(), match[2], match[3]


def normalise_url(url: str) -> str:
    """
    Return a URL in the catalogue's form; a path, also as ``file:``, becomes absolute.

    Raises
    ------
    InputError
        When nothing can be read or written there.
    """
    if not url or "\0" in url:
        raise InputError("expected a path or a URL")
    if url.startswith("file:") and is_local(url):  # file:/path, which is allowed
        return os.path.abspath(unquote(url.removeprefix("file:")))
    if is_local(url):
        return os.path.abspath(os.path.expanduser(url))
    scheme, host, path = split_url(url)
    if scheme not in SCHEMES:
        raise InputError(
            f"expected a path or a URL of {', '.join(SCHEMES)}",
            where=redact_url(url),
            hint=spelling_hint(scheme, SCHEMES),
        )
    if scheme == "file":
        if host not in ("", "localhost"):
            raise InputError(f"is a file of {host}, not of this machine", where=redact_url(url))
        return os.path.abspath(unquote(path))
    if not host.rpartition("@")[2]:
        raise InputError(
            "expected a host" if scheme != "s3" else "no bucket", where=redact_url(url)
        )
    return f"{scheme}://{host}{path}"


def redact_url(url: str) -> str:
    """
    Return a URL for printing: without password, for http also without user and query.

    >>> redact_url("ssh://ann:secret@host/x"), redact_url("https://ann:secret@host/x?Signature=1")
    ('ssh://ann@host/x', 'https://host/x')
    """
    if is_local(url):
        return url
    scheme, host, path = split_url(url)
    user, _, machine = host.rpartition("@")
    user = user.partition(":")[0]
    if scheme in ("http", "https"):
        user, path = "", re.split(r"[?#]", path, maxsplit=1)[0]
    return f"{scheme}://{user + '@' if user else ''}{machine}{path}"


def redact_urls(text: str) -> str:
    """Return a foreign message as one line, with all URLs redacted."""
    line = " ".join(text.split())
    return _ANYWHERE.sub(lambda match: redact_url(match[0]), line)[:300]


def join_url(place: str, name: str) -> str:
    """Return URL or path of a logical file in a storage."""
    return f"{place.rstrip('/')}/{name}"
