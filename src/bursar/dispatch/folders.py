"""Files and folders: the user's state, files replaced as a whole, working directories."""

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from bursar.model.errors import BursarError

# The folders for this user's state and cache, which outlive a run and belong to no run folder.


def state_folder() -> Path | None:
    """Return the folder, which may not exist yet; None where the user has no home."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        base = Path(state) if state else Path.home() / ".local" / "state"
    except RuntimeError:  # no home: a container knows its user by a number only
        return None
    return base / "bursar"


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder for what can be made again; None where the user has no home."""
    cache = environment.get("XDG_CACHE_HOME") or ""
    if os.path.isabs(cache):
        return Path(cache) / "bursar"
    home = environment.get("HOME") or os.path.expanduser("~")
    return Path(home) / ".cache" / "bursar" if os.path.isabs(home) else None


# A file that is replaced as a whole, or not at all.


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


# Names of working directories, and removal of folders in any state.

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

_PATIENCE = 60.0  # seconds for a folder that is filled while it is emptied

# Not through a link, and without waiting for a pipe's writer.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def folder_name(task: int, task_id: str) -> str:
    """Return the name of a task's working directory: the number is unique, the id readable."""
    return f"{task}-{_UNSAFE.sub('_', task_id)[:60]}"


def attempt_folder(name: str, attempt: int) -> str:
    """Return the name for one attempt, from the task's name; the first attempt adds no number."""
    return name if attempt == 1 else f"{name}.{attempt}"


def remove_tree(path: str, *, dir_fd: int | None = None) -> None:
    """
    Remove a file, or a folder with all content, whatever the owner did to hinder that.

    Links are removed, not followed, and pipes not opened, also when they take a folder's place at
    that very moment. Folders without access are opened up, and those that lie deeper than Python's
    recursion limit are moved up first. What cannot be removed stays, and so does a folder that a
    process goes on to fill.

    Parameters
    ----------
    dir_fd
        Descriptor of the folder that the path begins at; None: the present one.
    """
    try:
        os.unlink(path, dir_fd=dir_fd)
        return
    except FileNotFoundError:
        return
    except OSError:  # a folder
        pass
    try:
        # The quick way: nearly every folder is shallow and may be entered.
        _remove_folder(path, dir_fd)
    except (OSError, RecursionError):
        _remove_by_force(path, dir_fd)


def _remove_folder(name: str, parent: int | None) -> None:
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry, is_folder in found:
            if is_folder:
                _remove_folder(entry, folder)
            else:
                os.unlink(entry, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def _remove_by_force(path: str, dir_fd: int | None) -> None:
    with contextlib.suppress(OSError):
        top = _open_up(path, dir_fd)
        try:
            give_up = time.monotonic() + _PATIENCE
            while sum(_flatten(name, top) for name in os.listdir(top)):
                if time.monotonic() > give_up:
                    break
        finally:
            os.close(top)
        os.rmdir(path, dir_fd=dir_fd)


def _flatten(name: str, top: int) -> bool:
    """Remove an entry of the top folder, moving subfolders up; return whether that succeeded."""
    try:
        with contextlib.suppress(IsADirectoryError):
            os.unlink(name, dir_fd=top)
            return True
        folder = _open_up(name, top)
        try:
            for entry in os.listdir(folder):
                try:
                    os.unlink(entry, dir_fd=folder)
                except IsADirectoryError:
                    # A folder can be moved only by who may write to it: its entry .. changes.
                    os.close(_open_up(entry, folder))
                    up = f".{os.urandom(8).hex()}"
                    # Under a random name, as another folder may have brought up one of the same
                    # name.
                    os.rename(entry, up, src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    except OSError:
        return False
    return True


def _open_up(name: str, parent: int | None) -> int:
    """Restore the right to enter a folder, and return a descriptor of the folder."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(path)
