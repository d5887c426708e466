"""
The text of files: packed files with a limit against bombs, and TOML with the line of each key.

A place is a path of keys (``tasks.align.inputs[0].size``); where the text
shows on which line it stands, the error names the line too.
"""

import contextlib
import gzip
import io
import lzma
import os
import re
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar, cast

from bursar.model.errors import BursarError, InputError, spelling_hint

# Files that may be compressed: read whole, with a limit against bombs, or line by line.

UNPACKED_LIMIT = 512 * 1024 * 1024
"""Largest file read, bytes after decompression."""

SUFFIXES = (".gz", ".xz")
"""Endings that mean a compressed file."""


def read_bytes(path: Path, *, limit: int = UNPACKED_LIMIT) -> bytes:
    """
    Read a file; the endings ``.gz`` and ``.xz`` mean a compressed one.

    Parameters
    ----------
    limit
        Most bytes after decompression; a larger file is refused.

    Raises
    ------
    InputError
        When it cannot be read, is damaged or cut short, or is larger than
        ``limit``. Never more than ``limit`` + 1 bytes are decompressed.
    """
    with _speaking_of(path), _open(path) as stream:
        # One byte more than allowed tells a file that is too large from one that just fits, without
        # unpacking the rest.
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"is larger than {limit:,} bytes when unpacked", where=str(path))
    return data


def read_lines(path: Path, *, longest: int) -> Iterator[tuple[int, str]]:
    """
    Yield pairs of line number, from 1, and line; the file is read lazily.

    Parameters
    ----------
    longest
        Bytes of the longest line that a text of this kind can have.

    Raises
    ------
    InputError
        When the file cannot be read, is damaged or cut short, or is no text.
    """
    with _speaking_of(path), _open(path) as stream:
        # The readers of compressed files cut lines in Python; a buffer does it in C.
        lines = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 16)
        number = 0
        while line := lines.readline(longest):
            number += 1
            # A line without an end, or a binary file: readline would otherwise hand over the file
            # in pieces.
            if len(line) == longest or b"\0" in line:
                raise InputError("is not a text of lines", where=f"{path}:{number}")
            yield number, line.decode("utf-8", errors="replace")


def plain_name(path: Path) -> str:
    """Return the file's name without the ending of a compressed file."""
    return path.stem if path.suffix in SUFFIXES else path.name


@contextlib.contextmanager
def _speaking_of(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one line of ours."""
    try:
        yield
    except (zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"the compressed data is damaged: {error}", where=str(path)) from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    return path.open("rb")


_OPEN: dict[str, Callable[..., TextIO]] = {".gz": gzip.open, ".xz": lzma.open}


@contextlib.contextmanager
def replacing(path: Path, *, newline: str | None = None) -> Iterator[TextIO]:
    """
    Open a new text file, which replaces the old one once it is completely written.

    The endings ``.gz`` and ``.xz`` mean a compressed one. ``newline`` is that of :func:`open`.

    Raises
    ------
    BursarError
        When the file cannot be written; the old one is then unharmed.
    """
    # In the same folder, as a rename is atomic within one file system only; with the process
    # number, as two commands may write at once.
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _OPEN.get(path.suffix, open)(fresh, "wt", encoding="utf-8", newline=newline) as file:
            yield file
        fresh.replace(path)
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)


# The text of TOML files: read, parsed, and searched for the line on which a key stands.

LIMIT = 16 * 1024 * 1024
"""Largest TOML file read, bytes."""

T = TypeVar("T")


def read_text(path: Path, *, limit: int = LIMIT) -> str:
    """
    Read the whole of a UTF-8 file.

    Raises
    ------
    InputError
        When it is missing, a folder, unreadable, too large or not UTF-8.
    """
    check_readable(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > limit:
        raise InputError(f"is larger than {limit:,} bytes", where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", where=f"{path}:{line}") from None


def check_readable(path: Path) -> None:
    """
    Check that a path is a file that can be opened.

    Raises
    ------
    InputError
        When there is no such file, or it is a folder, or no regular file.
    """
    try:
        if path.is_dir():
            raise InputError("is a folder, expected a file", where=str(path))
        if not path.exists():
            raise InputError("no such file", where=str(path), hint=_neighbour(path))
        if not path.is_file():
            raise InputError("is no regular file", where=str(path))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _neighbour(path: Path) -> str | None:
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:
        return None
    return spelling_hint(path.name, names)


def parse_toml(text: str) -> dict[str, Any]:
    """
    Parse a TOML text into a document.

    Raises
    ------
    InputError
        At ``line:column``, when it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text) from None
    except RecursionError:
        raise InputError("is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits, an impossible date
        raise InputError(f"is not TOML: {str(error).splitlines()[0]}") from None


def _syntax_error(message: str, text: str) -> InputError:
    """Turn a message of :mod:`tomllib` about a text into an error at line and column."""
    # The message alone tells the position: the exception has attributes for it only from Python
    # 3.14 on.
    match = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if match is None:
        return InputError(f"is not TOML: {message}")
    reason = re.sub(r"\('(.*)',\)", r"\1", message[: match.start()])
    reason = "is not TOML: " + reason[:1].lower() + reason[1:]
    if match[1]:
        return InputError(reason, where=f"{match[1]}:{match[2]}")
    lines = text.rstrip().splitlines() or [""]
    return InputError(f"{reason} at the end", where=f"{len(lines)}:{len(lines[-1]) + 1}")


def json_error(message: str, data: bytes) -> InputError:
    """
    Return the error for a text that is not JSON, at line and column where that is known.

    Parameters
    ----------
    message
        What msgspec says of it.
    """
    if "'utf-8'" in message:  # of bytes, or of half a character that is written as an escape
        return InputError("is not JSON in UTF-8")
    match = re.search(r" ?\(byte (\d+)\)| - at `.*`$", message)
    reason = (message if match is None else message[: match.start()]).strip()
    reason = reason.removeprefix("JSON is malformed: ")
    if reason == "Number out of range":
        return InputError("a number is too large, expected one below 1e308")
    if reason == "Input data was truncated":
        reason = "ends too early, expected what closes it"
    reason = f"is not JSON: {reason[:1].lower()}{reason[1:]}"
    if match is None or match[1] is None:
        return InputError(reason)
    before = data[: int(match[1])]
    column = len(before) - (before.rfind(b"\n") + 1) + 1
    line = before.count(b"\n") + 1
    return InputError(reason, where=f"{line}:{column}")


# Remembered: the same few places are named for each of a sweep's tasks, should one be at fault.
@lru_cache(maxsize=1024)
def joined(place: str, key: str | int) -> str:
    """Path of ``key`` within ``place``; an odd key is quoted as in TOML."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
        key = '"' + "".join(c if c.isprintable() else "?" for c in key)[:60] + '"'
    return f"{place}.{key}" if place else key


def read_toml(path: Path, read: Callable[[dict[str, Any]], T]) -> T:
    """
    Read a TOML file.

    Parameters
    ----------
    read
        Makes the result of the document; its errors name places in the document.

    Raises
    ------
    InputError
        With the file, the line where it can be told, and the field.
    """
    text = read_text(path)
    try:
        return read(parse_toml(text))
    except InputError as error:
        raise at_line(error, text, path) from None


def at_line(error: InputError, text: str, path: Path) -> InputError:
    """Return the error with the file and, if found, the line in front."""
    where = error.where
    if re.match(r"\d+(:\d+)?$", where):  # a syntax error
        return InputError(error.message, where=f"{path}:{where}", hint=error.hint)
    line = find_line(text, where)
    return error.within(f"{path}:{line}" if line else str(path))


_KEY = r"(?:[A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*\]\]?")
_ASSIGNMENT = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=")


def find_line(text: str, place: str) -> int | None:
    """
    Return the line of the text on which the longest known part of a path stands.

    Only headers and keys at the starts of lines are looked at, which suffices for files of the
    usual layout; None when nothing matches.
    """
    wanted = _parts(place)
    if not wanted:
        return None
    # The deepest known part: a missing key has no line, but its table has.
    best, found = 0, None
    for number, path in _lines_of_keys(text):
        if len(path) > best and wanted[: len(path)] == path:
            best, found = len(path), number
    return found


def _lines_of_keys(text: str) -> Iterable[tuple[int, list[str]]]:
    table: list[str] = []
    counts: dict[str, int] = {}
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if fence:
            if fence in line:
                fence = ""
            continue
        header = _HEADER.match(line)
        if header:
            table = _parts(header[2])
            if header[1] == "[[":
                name = header[2].strip()
                counts[name] = counts.get(name, -1) + 1
                table = [*table, f"[{counts[name]}]"]
            yield number, table
            continue
        assignment = _ASSIGNMENT.match(line)
        if assignment:
            yield number, table + _parts(assignment[1])
        # An odd number of marks opens a text of several lines, in which nothing is a key.
        for mark in ('"""', "'''"):
            if line.count(mark) % 2:
                fence = mark


def _parts(place: str) -> list[str]:
    return [
        m[1] or m[2] or m[3] or m[4]
        for m in re.finditer(r'"([^"]*)"|\'([^\']*)\'|(\[\d+\])|([^\s.\[\]"\']+)', place)
        if any(m.groups())
    ]
