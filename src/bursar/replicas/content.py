"""Names of logical files, and size and checksum of their content."""

import hashlib
import re
from dataclasses import dataclass

from bursar.model.errors import InputError
from bursar.model.replica import Replica
from bursar.model.task import File

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
