"""Files that may be compressed, read whole, with a limit against bombs."""

import gzip
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from bursar.model.errors import InputError

LIMIT = 512 * 1024 * 1024
"""Largest file read, bytes after decompression."""

SUFFIXES = (".gz", ".xz")
"""Endings that mean a compressed file."""


def read_bytes(path: Path, *, limit: int = LIMIT) -> bytes:
    """
    The contents of a file, decompressed when its name ends in ``.gz`` or ``.xz``.

    Parameters
    ----------
    path
        The file.
    limit
        Bytes, after decompression, beyond which it is refused.

    Raises
    ------
    InputError
        When it cannot be read, is damaged or cut short, or is larger than
        ``limit``. Never more than ``limit`` + 1 bytes are decompressed.
    """
    try:
        with _open(path) as stream:
            data = stream.read(limit + 1)
    except (zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"the compressed data is damaged: {error}", where=str(path)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=str(path)) from None
    if len(data) > limit:
        raise InputError(f"is larger than {limit:,} bytes when unpacked", where=str(path))
    return data


def plain_name(path: Path) -> str:
    """The file's name without the ending that says how it is compressed."""
    return path.stem if path.suffix in SUFFIXES else path.name


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    return path.open("rb")
