"""Folders of test grids: locked by one process at a time, and marked before anything is written."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bursar.model.errors import InputError
from bursar_devtools.testgrid.processes import wait_until


@contextlib.contextmanager
def create_locked(folder: Path) -> Iterator[None]:
    """
    Make a folder if missing, and lock the folder as :func:`lock_folder` does.

    Raises
    ------
    InputError
        When it cannot be made, or somebody has it.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", where=str(folder)) from None
    with lock_folder(folder):
        yield


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """
    Lock an existing folder against other processes; the lock ends with the process.

    Raises
    ------
    InputError
        When another process brings it up or down just now, or it is another user's.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise InputError(f"cannot be used: {error.strerror}", where=str(folder)) from None
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            raise _not_ours(folder)
        busy = InputError("another process brings it up or down just now", where=str(folder))
        # A process that was killed may live on for a moment in one that it was about to start.
        if not wait_until(lambda: _locks(handle), 2.0):
            raise busy
        # Removed by the other one before we had it.
        if not folder.exists() or not os.path.samestat(os.fstat(handle), folder.stat()):
            raise busy
        yield
    finally:
        os.close(handle)


def need_own(folder: Path) -> None:
    """
    Check that a folder, if there is one, is a real folder of this user's.

    Raises
    ------
    InputError
        When a folder that is there is another user's, or a link stands in its place.
    """
    if folder.is_symlink():
        raise InputError("is a link, where a folder was expected", where=str(folder))
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise _not_ours(folder)


def _not_ours(folder: Path) -> InputError:
    """
    Return the error for another user's folder.

    The owner of a folder may name programs in the configurations there, and Slurm's commands would
    run them as us, root included. The default name is easy to foresee where all may make folders.
    """
    return InputError("is another user's", where=str(folder))


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mark(folder: Path, name: str, content: bytes) -> None:
    """Write the file that marks a folder as a test grid's, whole or not at all."""
    new = folder / f"{name}.new"
    new.write_bytes(content)
    new.replace(folder / name)


def is_marked(folder: Path, name: str) -> bool:
    """Return whether a folder has a test grid's mark."""
    return (folder / name).is_file()


def need_empty(folder: Path) -> None:
    """
    Check that a folder is empty.

    Raises
    ------
    InputError
        When anything is in the folder, but for a mark that was not finished.
    """
    for path in folder.iterdir():
        if not _is_unfinished(path):
            raise InputError(f"is not empty, {path.name} is in it", where=str(folder))


def is_unused(folder: Path) -> bool:
    """Return whether a folder is empty, but for an unfinished mark."""
    return all(map(_is_unfinished, folder.iterdir()))


def _is_unfinished(path: Path) -> bool:
    return path.name.endswith(".json.new")


def empty(folder: Path) -> None:
    """Empty a folder; files that a job writes meanwhile are removed by a further round."""
    for _ in range(20):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            return


def remove(folder: Path) -> None:
    """Remove a folder with all content."""
    empty(folder)
    folder.rmdir()


def remove_empty(folder: Path) -> None:
    """Remove a folder if empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()
