"""A file that is replaced as a whole, or not at all."""

import os
from pathlib import Path

from bursar.model.errors import BursarError


def write_atomically(path: Path, data: bytes) -> None:
    """
    Replace a file so that a reader sees the old or the new content, never half.

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
            # Before the rename: after a power cut the name could else stand for an empty file.
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of processes that were killed while replacing a file."""
    for path in folder.glob(".*.*"):
        writer = path.name.rpartition(".")[2]
        # A file of a process that lives is about to be renamed.
        if writer.isdecimal() and not os.path.exists(f"/proc/{writer}"):
            path.unlink(missing_ok=True)
