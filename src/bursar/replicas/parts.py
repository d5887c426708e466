"""
Partial files, renamed to their target in one step, and locks on files in use.

A part is locked while a process writes it; the lock ends with the process. A note beside the part
names its file, checksum and source, so that a later process can continue it.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import secrets
from pathlib import Path
from typing import Protocol

import msgspec

from bursar.replicas.content import LogicalFileContent, checksum_of, new_digest

# File locks that show that a process uses a file, and that end with the process.


class FileInUse(Exception):
    """Another process or thread has locked the file."""


def open_locked(path: Path) -> int:
    """
    Open a file, made when missing, and lock the file.

    Raises
    ------
    FileInUse
        When it is locked.
    OSError
        When it cannot be opened.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            # flock, not fcntl's record locks: a record lock belongs to the process, so two threads
            # would not exclude each other, and closing any other descriptor of the file would
            # release it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            raise FileInUse from None
        # The former holder may have renamed or deleted the file meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        os.close(file)


class LivenessLock:
    """
    A locked file in a folder that shows other processes that this one is alive.

    Parameters
    ----------
    folder
        Folder of the lock files of all processes.

    Attributes
    ----------
    token
        Random name of the owner, by which others look it up.
    """

    def __init__(self, folder: Path) -> None:
        for path in folder.glob("*.lock"):
            is_owner_alive(folder, path.stem)  # what others left behind goes
        self.token = secrets.token_hex(8)
        self._path = _path(folder, self.token)
        self._lock = open_locked(self._path)

    def close(self) -> None:
        """Delete the lock file; a second call does nothing."""
        if self._lock >= 0:
            # Deleted while still locked: nobody else can have locked this very file, so no other
            # owner loses a lock.
            self._path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def is_owner_alive(folder: Path, token: str) -> bool:
    """Return whether an owner's process is alive; a dead one's lock file is deleted."""
    path = _path(folder, token)
    if not path.exists():
        return False
    try:
        # Makes the file anew if its owner deletes it just now; it is deleted again below.
        lock = open_locked(path)
    except FileInUse:
        return True
    path.unlink(missing_ok=True)
    os.close(lock)
    return False


def _path(folder: Path, token: str) -> Path:
    return folder / f"{token}.lock"


# Partial files: written beside their target and renamed to it in one step.

_BLOCK = 1024 * 1024


class CopyOrigin(msgspec.Struct, frozen=True):
    """
    The source that the bytes of a part were read from.

    Parameters
    ----------
    url
        URL without secrets.
    tag
        Version of the source's content; empty: unknown.
    """

    url: str = ""
    tag: str = ""


class CopySink(Protocol):
    """A target to which a copy is written from the beginning."""

    @property
    def length(self) -> int:
        """Size in bytes of the part that has arrived."""

    @property
    def origin(self) -> CopyOrigin:
        """Source from which the arrived bytes were read."""

    @property
    def checksum(self) -> str:
        """SHA-256 checksum of the arrived bytes."""

    def set_origin(self, origin: CopyOrigin) -> None:
        """Record the source of the bytes that follow."""

    def write(self, data: bytes) -> None:
        """
        Append bytes.

        Raises
        ------
        OSError
            When it cannot.
        """

    def begin_anew(self) -> None:
        """Discard the arrived bytes."""


class _PartialFileRecord(msgspec.Struct):
    """The note beside a part: its logical file, expected checksum and source."""

    name: str
    checksum: str | None
    origin: CopyOrigin


class PartialFile:
    """
    A partial file, opened and locked.

    Parameters
    ----------
    folder
        Folder for parts, on the disk of the target.
    name
        Logical name of the file.

    Raises
    ------
    FileInUse
        When another process has locked it.
    OSError
        When it cannot be opened.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        # A logical name may hold slashes and be longer than the name of a file may be.
        stem = folder / hashlib.sha256(name.encode()).hexdigest()[:32]
        self._path = stem.with_suffix(".part")
        self._note = stem.with_suffix(".json")
        self._file = io.FileIO(open_locked(self._path), "r+")
        self._wanted: str | None = None
        self._start()

    def __enter__(self) -> "PartialFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether the lock was released, so that others may have the part."""
        return self._file.closed

    @property
    def length(self) -> int:
        """Size in bytes of the part that has arrived."""
        return self._length

    @property
    def origin(self) -> CopyOrigin:
        """Source from which the arrived bytes were read."""
        return self._origin

    @property
    def checksum(self) -> str:
        """SHA-256 checksum of the arrived bytes."""
        return checksum_of(self._digest)

    def take_up(self, content: LogicalFileContent) -> None:
        """
        Keep the bytes of an earlier attempt at this content; discard others.

        Without an expected checksum they could not be verified in the end, so they are discarded.
        """
        note = self._read_note()
        size = os.fstat(self._file.fileno()).st_size
        fits = content.size is None or size <= content.size
        if note and content.checksum and note.checksum == content.checksum and fits:
            self._file.seek(0)
            # The digest died with the earlier process, so the arrived bytes are read once more.
            while data := self._file.read(_BLOCK):
                self._digest.update(data)
                self._length += len(data)
            self._origin = note.origin
        elif size:
            self.begin_anew()
        self._wanted = content.checksum

    def set_origin(self, origin: CopyOrigin) -> None:
        """Record the source of the bytes that follow, before there are any."""
        if origin == self._origin and self._length:
            return
        self._origin = origin
        note = _PartialFileRecord(self._name, self._wanted, origin)
        # Not synced: without a readable note take_up discards the part, which costs time only.
        self._note.write_bytes(msgspec.json.encode(note))

    def write(self, data: bytes) -> None:
        """Append bytes."""
        rest = memoryview(data)
        while rest:
            # A raw file may take fewer bytes than it is given; the next write then raises the
            # reason.
            rest = rest[self._file.write(rest) :]
        self._digest.update(data)
        self._length += len(data)

    def begin_anew(self) -> None:
        """Discard the arrived bytes."""
        self._file.truncate(0)
        self._file.seek(0)
        self._start()

    def sync(self) -> None:
        """Write the part to disk (fsync)."""
        os.fsync(self._file.fileno())

    def put(self, target: Path) -> None:
        """Rename the complete part to the target, replacing a file there."""
        self._note.unlink(missing_ok=True)  # first: after the rename another process may own it
        os.replace(self._path, target)
        sync_folder(target.parent)
        self._file.close()

    def discard(self) -> None:
        """Delete the part, unless closed before."""
        if self.is_closed:
            return
        self._delete()
        self._file.close()

    def close(self) -> None:
        """Release the lock and keep the bytes for others; a second call does nothing."""
        # An empty part has nothing that a later process could continue.
        if not self.is_closed and os.fstat(self._file.fileno()).st_size == 0:
            self._delete()
        self._file.close()

    def _delete(self) -> None:
        self._path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def _start(self) -> None:
        self._digest = new_digest()
        self._length = 0
        self._origin = CopyOrigin()

    def _read_note(self) -> _PartialFileRecord | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            note = msgspec.json.decode(self._note.read_bytes(), type=_PartialFileRecord)
            return note if note.name == self._name else None
        return None


def remove_stale_parts(folder: Path) -> None:
    """Delete the parts that no process has locked."""
    for path in folder.glob("*.part"):
        try:
            lock = open_locked(path)
        except FileInUse:
            continue
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        os.close(lock)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable (fsync)."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
