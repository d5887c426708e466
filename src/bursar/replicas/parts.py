"""
A file on its way: written beside its place, then put there in one step.

A part is locked while a process works on it; the lock goes with the process, however
it ends. Beside it stands what it is a part of, so that who comes next can go on.
"""

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Protocol

import msgspec

from bursar.replicas.content import LogicalFileContent, checksum_of, new_digest
from bursar.replicas.locking import FileInUse, open_locked

_BLOCK = 1024 * 1024


class CopyOrigin(msgspec.Struct, frozen=True):
    """
    What a part was read from.

    Parameters
    ----------
    url
        As it may be shown.
    tag
        That changes with what is there; empty when nothing tells.
    """

    url: str = ""
    tag: str = ""


class CopySink(Protocol):
    """Where a copy is written to, from its beginning on."""

    @property
    def length(self) -> int:
        """Bytes that are there."""

    @property
    def origin(self) -> CopyOrigin:
        """Of these bytes."""

    @property
    def checksum(self) -> str:
        """Of these bytes."""

    def come_from(self, origin: CopyOrigin) -> None:
        """Notes where the bytes that follow are read."""

    def write(self, data: bytes) -> None:
        """
        Adds bytes.

        Raises
        ------
        OSError
            When it cannot.
        """

    def begin_anew(self) -> None:
        """Forgets what is there."""


class _PartialFileRecord(msgspec.Struct):
    """Beside a part: what it is a part of."""

    name: str
    checksum: str | None
    origin: CopyOrigin


class PartialFile:
    """
    Opens the part of a file and locks it.

    Parameters
    ----------
    folder
        For parts; on the disk of the target.
    name
        Of the logical file.

    Raises
    ------
    Busy
        When somebody is at it.
    OSError
        When it cannot be opened.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
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
        """Whether it may be somebody else's by now."""
        return self._file.closed

    @property
    def length(self) -> int:
        """Bytes that are there."""
        return self._length

    @property
    def origin(self) -> CopyOrigin:
        """Of these bytes."""
        return self._origin

    @property
    def checksum(self) -> str:
        """Of these bytes."""
        return checksum_of(self._digest)

    def take_up(self, content: LogicalFileContent) -> None:
        """
        Keeps what is there if it is a part of this content; forgets it otherwise.

        Without a checksum nobody could tell in the end, so nothing is kept then.
        """
        note = self._read_note()
        size = os.fstat(self._file.fileno()).st_size
        fits = content.size is None or size <= content.size
        if note and content.checksum and note.checksum == content.checksum and fits:
            self._file.seek(0)
            while data := self._file.read(_BLOCK):
                self._digest.update(data)
                self._length += len(data)
            self._origin = note.origin
        elif size:
            self.begin_anew()
        self._wanted = content.checksum

    def come_from(self, origin: CopyOrigin) -> None:
        """Notes where the bytes that follow are read, before there are any."""
        if origin == self._origin and self._length:
            return
        self._origin = origin
        note = _PartialFileRecord(self._name, self._wanted, origin)
        self._note.write_bytes(msgspec.json.encode(note))

    def write(self, data: bytes) -> None:
        """Adds bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._digest.update(data)
        self._length += len(data)

    def begin_anew(self) -> None:
        """Forgets what is there."""
        self._file.truncate(0)
        self._file.seek(0)
        self._start()

    def sync(self) -> None:
        """What is there is on disk when this returns."""
        os.fsync(self._file.fileno())

    def put(self, target: Path) -> None:
        """Gives the whole file its name, in place of what had it."""
        self._note.unlink(missing_ok=True)  # first: afterwards it may be somebody else's
        os.replace(self._path, target)
        sync_folder(target.parent)
        self._file.close()

    def discard(self) -> None:
        """Deletes it, unless it was closed before."""
        if self.is_closed:
            return
        self._delete()
        self._file.close()

    def close(self) -> None:
        """Lets others at it; what is there stays for them. Doing it again does nothing."""
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
    """Deletes the parts at which nobody is."""
    for path in folder.glob("*.part"):
        try:
            lock = open_locked(path)
        except FileInUse:
            continue
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        os.close(lock)


def sync_folder(folder: Path) -> None:
    """What was renamed in it is there after a power cut."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
