"""Lines and numbers of OptorSim's files."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

from bursar.model.errors import InputError

MEGABYTE = 10**6
"""Bytes."""
MEGABIT_PER_SECOND = 125_000.0
"""Bytes per second."""

_MOST = 10**9


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


@contextlib.contextmanager
def at(path: Path, line: int) -> Iterator[None]:
    """Place an error that is raised in this context at a line of a file."""
    try:
        yield
    except InputError as error:
        raise error.within(f"{path}:{line}") from None


def number_in(word: str, what: str, *, least: float = 0.0, most: float = math.inf) -> float:
    """
    A finite number within bounds.

    Raises
    ------
    InputError
        When it is none; says what was expected.
    """
    try:
        number = float(word)
    except ValueError:
        raise InputError(f'expected {what}, got "{shown(word)}"') from None
    if not math.isfinite(number):
        raise InputError(f'expected {what}, got "{shown(word)}"')
    if number < least or number > most:
        bounds = f"from {least:g} to {most:g}" if most < math.inf else f"at least {least:g}"
        raise InputError(f"expected {what}, {bounds}, got {number:g}")
    return number


def whole_in(word: str, what: str) -> int:
    """
    A whole number, not negative; also as ``0.`` or ``50000.0``.

    Raises
    ------
    InputError
        When it is none.
    """
    number = number_in(word, what, most=_MOST)
    if number != int(number):
        raise InputError(f'expected {what}, a whole number, got "{shown(word)}"')
    return int(number)


def shown(text: str) -> str:
    """A part of the file, on one line of bearable length."""
    return "".join(c if c.isprintable() else "?" for c in text)[:60]
