"""Patterns of file names, matched against names instead of a folder."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

from bursar.model.errors import InputError

MOST_DEPTHS = 3
"""``**`` in one pattern; each multiplies the ways to match."""

_Part = Callable[[str], object]


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """
    Names that match, in their order; ``*`` stays within a part, ``**`` crosses parts.

    Raises
    ------
    InputError
        When it is no pattern.
    """
    parts: list[_Part | None] = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append(None)
        else:
            try:
                parts.append(re.compile(fnmatch.translate(part)).match)
            except re.error as error:
                raise InputError(f"is no pattern: {error}") from None
    if parts.count(None) > MOST_DEPTHS:
        raise InputError(f'has "**" more than {MOST_DEPTHS} times')
    return [name for name in names if _matches(name.split("/"), parts)]


def _matches(words: Sequence[str], parts: Sequence[_Part | None]) -> bool:
    if not parts:
        return not words
    head, rest = parts[0], parts[1:]
    if head is None:
        return any(_matches(words[i:], rest) for i in range(len(words) + 1))
    return bool(words) and bool(head(words[0])) and _matches(words[1:], rest)
