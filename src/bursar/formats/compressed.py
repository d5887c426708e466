"""Files that may be compressed: read whole, with a limit against bombs, or line by line."""

import contextlib
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from bursar.model.errors import InputError

LIMIT = 512 * 1024 * 1024
"""Largest file read, bytes after decompression."""

SUFFIXES = (".gz", ".xz")
"""Endings that mean a compressed file."""


def read_bytes(path: Path, *, limit: int = LIMIT) -> bytes:
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
        number = 0
        while line := stream.readline(longest):
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
