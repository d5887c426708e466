"""Files of keys, certificates and tokens, written atomically and readable by their owner only."""

import os
import tempfile
from pathlib import Path

from bursar.model.errors import BursarError, InputError

SECRET = 0o600
"""Mode of a file that only the owner can read."""


def write_file(path: Path, data: bytes, *, mode: int = SECRET, replace: bool = False) -> None:
    """
    Write a file atomically and durably.

    Parameters
    ----------
    replace
        Whether a file of that name is replaced; False: it is an error.

    Raises
    ------
    InputError
        When there is such a file, and ``replace`` is False.
    BursarError
        When the file cannot be written.
    """
    try:
        file, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
        try:
            with os.fdopen(file, "wb") as opened:
                os.fchmod(file, mode)
                opened.write(data)
                opened.flush()
                # Content before name: a power cut must not leave an empty key under the final
                # name.
                os.fsync(opened.fileno())
            if replace:
                os.replace(name, path)
            else:
                os.link(name, path)  # unlike a renaming, it replaces nothing
                os.unlink(name)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except FileExistsError:
        raise InputError("exists already", where=str(path), hint="--force replaces it") from None
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a file's own fsync does not cover its name."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
