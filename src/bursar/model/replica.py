"""A copy of a logical file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """
    Where one copy of a logical file is.

    Parameters
    ----------
    name
        Logical name: a relative path, as a file of a task has.
    site
        Site whose storage holds the copy; empty: no site's.
    url
        Of the copy: ``file:``, ``http:``, ``https:``, ``ssh:``, ``s3:``, or a path.
    size
        Bytes; None when unknown.
    checksum
        ``"sha256:<hex>"`` of the content; None when unknown.
    """

    name: str
    site: str
    url: str
    size: int | None = None
    checksum: str | None = None
