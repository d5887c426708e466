"""Checks names of files that users send."""

import unicodedata

from bursar.service.interfaces import ServiceError

LONGEST = 4096
"""Bytes of a name, folders included."""

LONGEST_PART = 255
"""Bytes of one folder's or file's own name."""

DEEPEST = 64
"""Folders of a name."""

UNFINISHED = ".bursar-upload-"
"""Reserved prefix of the names of unfinished uploads."""


_MISLEADING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of text: a name that holds one reads as another name."""

_CONTROL = frozenset({"Cc", "Zl", "Zp"})
"""Unicode's categories of control characters, and of those that end a line or a paragraph."""


def parse_name(text: str, where: str = "name") -> tuple[str, ...]:
    """
    Split a relative name into its parts and check each of them.

    Raises
    ------
    ServiceError
        When it is absolute, leads upwards, is too long, or holds what no name should.
    """

    def bad(why: str) -> ServiceError:
        return ServiceError("bad-name", 400, why, where=where)

    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise bad("is not text in UTF-8") from None
    if not size:
        raise bad("expected the name of a file")
    if size > LONGEST:
        raise bad(f"is longer than {LONGEST} bytes")
    if not text.isascii() or not text.isprintable():
        if any(unicodedata.category(character) in _CONTROL for character in text):
            raise bad("holds a control character")
        if not _MISLEADING.isdisjoint(text):
            raise bad("holds a character that changes the direction of text")
    parts = tuple(text.split("/"))
    if len(parts) > DEEPEST:
        raise bad(f"is more than {DEEPEST} folders deep")
    for part in parts:
        if part in ("", ".", ".."):
            raise bad('expected a relative name without empty parts, "." and ".."')
        if len(part.encode()) > LONGEST_PART:
            raise bad(f"a part of it is longer than {LONGEST_PART} bytes")
        if part.startswith(UNFINISHED):
            raise bad(f'names that begin with "{UNFINISHED}" are the service\'s own')
    return parts
