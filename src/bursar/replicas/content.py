"""
Names, sizes, checksums and locations of logical files, and the ways in which a copy fails.

Local copies are kept as absolute paths. Passwords and signatures in a URL are needed to read it and
are never printed.

After a failure of the source another one is tried; a failure of the target ends the copy.
"""

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from bursar.model.errors import InputError, SiteError, spelling_hint
from bursar.model.matching import Replica
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


# Failures of copies: of the source, of the target, or by cancellation.


class SourceFailed(Exception):
    """
    A source could not deliver the file.

    Parameters
    ----------
    reason
        One line for people, without secrets.
    bad
        Whether the copy's content is wrong or missing: trying again cannot help.
    transient
        Whether trying again may help.
    """

    def __init__(self, reason: str, *, bad: bool = False, transient: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.bad = bad
        self.transient = transient


class CopyCancelled(Exception):
    """The copy was cancelled."""


class TargetFailed(SiteError):
    """The file cannot be written to the target: the disk is full, or access is denied."""


class StorageFull(TargetFailed):
    """A storage has reached the limit; other files may be evicted later."""


class FileUnreachable(SiteError):
    """No copy of a file could be brought; the message says from where and why not."""


class CancellationToken:
    """Cancels a copy in another thread, whose waits and reads end at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._closers: list[Callable[[], object]] = []

    def ask(self) -> None:
        """Cancel the copy."""
        self._asked.set()
        with self._lock:
            # A copy of the list: leaving by() takes the lock, too, and closers may take their time.
            closers = list(self._closers)
        for close in closers:
            with contextlib.suppress(Exception):
                close()

    def check(self) -> None:
        """
        Raise an exception if the copy was cancelled.

        Raises
        ------
        CopyCancelled
            When :meth:`ask` was called.
        """
        self.wait(0.0)

    def wait(self, seconds: float) -> None:
        """Wait so many seconds; raises CopyCancelled as :meth:`check` does."""
        if self._asked.is_set() or (seconds > 0 and self._asked.wait(seconds)):
            raise CopyCancelled

    @contextlib.contextmanager
    def by(self, close: Callable[[], object]) -> Iterator[None]:
        """Call ``close`` from the cancelling thread if the copy is cancelled in this context."""
        with self._lock:
            self._closers.append(close)
        try:
            self.check()
            yield
        except CopyCancelled:
            raise
        except Exception:
            self.check()  # what closing it raised is no failure of the source
            raise
        finally:
            with self._lock:
                self._closers.remove(close)
