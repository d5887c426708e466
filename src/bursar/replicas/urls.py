"""
Locations of copies as text: paths of this machine and URLs.

Local copies are kept as absolute paths. Passwords and signatures in a URL are needed to read it and
are never printed.
"""

import os
import re
from urllib.parse import unquote

from bursar.model.errors import InputError, spelling_hint

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
