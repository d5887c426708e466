"""A file that is replaced as a whole, or not at all."""

import os
from pathlib import Path

from bursar.model.errors import BursarError


def write_atomically(path: Path, data: bytes) -> None:
    """
    Replaces a file so that a reader sees the old or the new one, never half.

    Raises
    ------
    BursarError
        When it cannot be written; the old file is then unharmed.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed left of files that they were replacing."""
    for path in folder.glob(".*.*"):
        writer = path.name.rpartition(".")[2]
        if writer.isdecimal() and not os.path.exists(f"/proc/{writer}"):
            path.unlink(missing_ok=True)
