"""
Content of files by digest, and stamps that tell whether a file can have changed since.

A stamp (size, time of change, inode, right to execute) is cheap, so that a file that 100,000 tasks
read is read once. It proves nothing for a file that was changed within the clock's granularity of
the moment at which it was read: a later change need not move the stamp. Such a file is read again
(git's rule for "racy" entries of its index).
"""

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

GRANULARITY = 2.0
"""Seconds: the coarsest time of change of a file system (FAT)."""

LARGE = 1_000_000_000
"""Bytes from which on people are told that something is read, which may take seconds."""

ABSENT = ""
"""Digest of a file that is not there."""

_NUMBER = b"BURSAR_TASK"
_CHUNK = 1 << 20
_TRIES = 3

# Written by Python beside the code that it imports, also while tasks run.
_LEFT_OUT = "__pycache__"


class FileState(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    Content of a file or folder at one moment.

    Parameters
    ----------
    digest
        SHA-256 digest of the content and the right to execute, hexadecimal; of a folder, of all
        that lies in it. Empty: nothing is there.
    stamp
        Stamp by which a change is noticed without reading.
    settled
        Whether an equal stamp proves equal content.
    numbered
        Whether the content mentions ``BURSAR_TASK``, so that a task that reads it may depend on
        its number in the campaign.
    touched
        Latest time of change of an inode, nanoseconds since the epoch. It also moves when a file is
        renamed or gets a further name, so that it is no part of the stamp.
    """

    digest: str
    stamp: str = ""
    settled: bool = False
    numbered: bool = False
    touched: int = 0


class _Entry(NamedTuple):
    """One file, folder or link below a path; the name is empty for the path itself."""

    name: str
    path: str
    kind: str
    stamp: str
    changed: float
    touched: int = 0
    size: int = 0


def file_state(
    path: Path | str,
    known: FileState | None = None,
    tell: Callable[[str], None] | None = None,
) -> FileState:
    """
    Return the state of a file or folder, by reading it unless a known state still holds.

    Parameters
    ----------
    known
        An earlier state of the same path or of a hard link to it; None: there is none.
    tell
        Called with a line for people before more than :data:`LARGE` bytes are read; None: nobody.
    """
    for _ in range(_TRIES):
        entries = list(_entries(os.fspath(path)))
        stamp, changed = _stamp_of(entries)
        if known is not None and known.settled and known.stamp == stamp:
            return known
        size = sum(entry.size for entry in entries)
        if tell is not None and size > LARGE:
            tell(f"reading {path} ({size / 1e9:.3g} GB), to know later whether it has changed")
        # Read from the clock before the content: what is changed from now on gets a later time.
        settled = changed + GRANULARITY < time.time()
        digest, numbered = _digest_of(entries)
        if _stamp_of(list(_entries(os.fspath(path))))[0] == stamp:
            return FileState(digest, stamp, settled, numbered, _touched(entries))
    # It is being written: no digest of it means anything, and none equals this one.
    return FileState(f"changing-{secrets.token_hex(8)}", stamp)


def is_untouched(path: Path | str, state: FileState) -> bool:
    """
    Return whether nothing has happened to a file since a state was taken, without reading it.

    A file that was moved away and back again meanwhile has the stamp, but was touched.
    """
    entries = list(_entries(os.fspath(path)))
    return _stamp_of(entries)[0] == state.stamp and _touched(entries) == state.touched


def _entries(path: str) -> Iterator[_Entry]:
    """Yield what a path holds, itself first; links are followed, but not in circles."""
    found = _stat(path)
    if found is None:
        return
    yield _entry("", path, found)
    if stat.S_ISDIR(found.st_mode):
        yield from _below(path, "", {(found.st_dev, found.st_ino)})


def _below(folder: str, place: str, above: set[tuple[int, int]]) -> Iterator[_Entry]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # it has gone, or nobody may look: the digest says so
        yield _Entry(place, folder, "unreadable", "", 0.0)
        return
    for name in names:
        if name == _LEFT_OUT:
            continue
        path = os.path.join(folder, name)
        inner = f"{place}/{name}"
        if os.path.islink(path):
            yield _Entry(inner, path, f"link {_target_of(path)}", "", 0.0)
        found = _stat(path)
        if found is None:
            continue
        yield _entry(inner, path, found)
        key = (found.st_dev, found.st_ino)
        if stat.S_ISDIR(found.st_mode) and key not in above:
            yield from _below(path, inner, above | {key})


def _target_of(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _entry(name: str, path: str, found: os.stat_result) -> _Entry:
    if stat.S_ISDIR(found.st_mode):
        # Not by its time, which differs in a folder of links to the same files.
        return _Entry(name, path, "folder", "", 0.0)
    if not stat.S_ISREG(found.st_mode):
        # Reading a pipe or a device may never end; no two looks at it are alike.
        return _Entry(name, path, f"device {secrets.token_hex(8)}", "", 0.0)
    kind = "program" if found.st_mode & 0o100 else "file"
    stamp = f"{found.st_size}:{found.st_mtime_ns}:{found.st_ino}"
    return _Entry(name, path, kind, stamp, found.st_mtime, found.st_ctime_ns, found.st_size)


def _touched(entries: list[_Entry]) -> int:
    return max((entry.touched for entry in entries), default=0)


def _stamp_of(entries: list[_Entry]) -> tuple[str, float]:
    """Return the stamp of a file or folder, and the latest time of change in it."""
    if len(entries) == 1:
        return f"{entries[0].kind}:{entries[0].stamp}", entries[0].changed
    whole = hashlib.sha256()
    for entry in entries:
        whole.update(
            f"{entry.name}\0{entry.kind}\0{entry.stamp}\0".encode(errors="surrogateescape")
        )
    return whole.hexdigest(), max((entry.changed for entry in entries), default=0.0)


def _digest_of(entries: list[_Entry]) -> tuple[str, bool]:
    """Return the digest of a file or folder, and whether some content mentions the number."""
    if not entries:
        return ABSENT, False
    whole, numbered = hashlib.sha256(), False
    for entry in entries:
        whole.update(f"{entry.name}\0{entry.kind}\0".encode(errors="surrogateescape"))
        if entry.kind in ("file", "program"):
            content, mentions = _content_of(entry.path)
            whole.update(content)
            numbered = numbered or mentions
    return whole.hexdigest(), numbered


def _content_of(path: str) -> tuple[bytes, bool]:
    digest, numbered, tail = hashlib.sha256(), False, b""
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                numbered = numbered or _NUMBER in tail + chunk[: len(_NUMBER)] or _NUMBER in chunk
                tail = chunk[-len(_NUMBER) :]
    except OSError:
        return b"unreadable", False
    return digest.digest(), numbered


class FileStates:
    """
    States of files below one folder, each file read once.

    Parameters
    ----------
    root
        The folder.
    known
        States of an earlier time, by name, which spare the reading of files with equal stamps.
    tell
        Called with a line for people before a large file is read.
    """

    def __init__(
        self,
        root: Path,
        known: Mapping[str, FileState] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._root = root
        self._tell = tell
        self._known = known or {}
        self._found: dict[str, FileState] = {}

    def of(self, name: str) -> FileState:
        """Return the state of a file by its name below the folder."""
        if name not in self._found:
            self._found[name] = file_state(self._root / name, self._known.get(name), self._tell)
        return self._found[name]
