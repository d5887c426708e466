"""
Simulates power cuts and a full disk under the files of an instance, for one seed at a time.

The service's real file store works in a real folder. Between the store and the operating system
stands a layer that knows what was synced. At some call the power fails. Then any beginning is left
of a file that was not synced. In a folder that was not synced, a name that was given, replaced or
removed is as before, or not.
"""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from bursar.service.config import HttpLimits
from bursar.service.files import instance_files
from bursar.service.files.file_store import FileOwner, FileStore
from bursar.service.interfaces import ServiceError
from bursar.simulation.virtual_loop import VirtualLoop
from bursar_devtools.faults.fault_plan import seeded_random

_NAMES = (("a",), ("b",), ("c",), ("in", "a"), ("in", "deep", "b"))
_PIECE = 700  # bytes
_MOST_PIECES = 4
_FEWEST, _MOST_CALLS = 1, 120
"""Fewest and most calls of the operating system before the power fails."""

_FULL = 507

FileContent = bytes | None
"""Content of a file; None when the file does not exist."""


class PowerCut(BaseException):
    """The power has failed, and nothing of this process reaches the disk any more."""


class TearingFilesystem:
    """
    Replaces ``os`` for :mod:`bursar.service.files.instance_files`, and tracks what was synced.

    Parameters
    ----------
    chance
        Random source of partial writes, full disks, and what remains after the power cut.
    last
        Number of changing calls after which the power fails.
    fills
        Probability that a write finds the disk full.
    """

    def __init__(self, chance: random.Random, last: int, fills: float) -> None:
        self._chance = chance
        self._left = last
        self._fills = fills
        self._unsynced: dict[int, int] = {}  # bytes that are durable, by inode
        self._names: list[tuple[str, str, FileContent, str]] = []  # folder, name, before, from

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file; a new one has no durable bytes yet."""
        if flags & os.O_CREAT:
            self._count()
        file = os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            self._unsynced[os.fstat(file).st_ino] = 0
        return file

    def write(self, file: int, data: Any) -> int:
        """Write a part of the data, or find the disk full."""
        self._count()
        if self._chance.random() < self._fills:
            raise OSError(errno.ENOSPC, "no space left on device")
        # POSIX lets a write be partial; the store has to go on with the rest.
        part = data[: self._chance.randint(1, len(data))]
        return os.write(file, part)

    def fsync(self, file: int) -> None:
        """Make a file's content durable, or the names in a folder."""
        self._count()
        found = os.fstat(file)
        self._unsynced.pop(found.st_ino, None)
        here = _path(file)
        self._names = [change for change in self._names if change[0] != here]

    def rename(self, source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """Rename a file; the change is durable once the folder is synced."""
        self._count()
        here = _path(dst_dir_fd)
        before = _read(f"{here}/{target}")
        os.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self._names.append((here, target, before, source))

    def unlink(self, name: str, *, dir_fd: int) -> None:
        """Remove a file."""
        self._count()
        here = _path(dir_fd)
        before = _read(f"{here}/{name}")
        os.unlink(name, dir_fd=dir_fd)
        self._names.append((here, name, before, ""))

    def cut(self) -> None:
        """Undo a random choice of the unsynced changes of names."""
        # From the last change back, so that of several changes of one name the oldest content is
        # left.
        for here, name, before, source in reversed(self._names):
            if self._chance.random() < 0.5:
                continue
            path = Path(here, name)
            if source and path.exists():
                path.rename(Path(here, source))
            if before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)

    def tear(self, root: Path) -> None:
        """Cut each file that was not synced to a random length."""
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            found = path.stat()
            durable = self._unsynced.get(found.st_ino)
            if durable is not None:
                os.truncate(path, self._chance.randint(durable, found.st_size))

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PowerCut


def simulate_files(seed: int) -> str:
    """
    Put, replace, copy and remove files until the power fails, and read what is left.

    Returns
    -------
    str
        What must not have happened; empty: nothing.
    """
    chance = seeded_random(seed, "files")
    system = TearingFilesystem(
        chance, chance.randint(_FEWEST, _MOST_CALLS), chance.choice((0.0, 0.0, 0.1))
    )
    with (
        TemporaryDirectory(prefix="bursar-dst-") as folder,
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        root = Path(folder, "instances", "one", "files")
        root.mkdir(parents=True)
        return runner.run(_run_changes(root, system, chance))


async def _run_changes(root: Path, system: TearingFilesystem, chance: random.Random) -> str:
    allowed: dict[str, set[FileContent]] = {"/".join(parts): {None} for parts in _NAMES}
    owner = FileOwner(user="ann", limits=HttpLimits(), homes=lambda: [root.parent])
    store = FileStore()
    wrong = ""
    with mock.patch.object(instance_files, "os", system):
        try:
            while not wrong:
                wrong = await _change_file(store, root, owner, allowed, chance)
        except PowerCut:
            pass
    store.close()
    if wrong:
        return wrong
    # Contents before names: durable lengths are known by inode, and undoing a change of a name
    # makes a new file.
    system.tear(root)
    system.cut()
    return await _check_files(root, allowed)


async def _change_file(
    store: FileStore,
    root: Path,
    owner: FileOwner,
    allowed: dict[str, set[FileContent]],
    chance: random.Random,
) -> str:
    """Change one file; while the change runs, the content before and after are both allowed."""
    parts = chance.choice(_NAMES)
    name = "/".join(parts)
    before = set(allowed[name])
    if chance.random() < 0.2:
        allowed[name].add(None)
        try:
            await store.delete(root, parts)
        except ServiceError as error:
            allowed[name] = before
            return "" if error.status == 404 and None in before else f"{name}: {error.detail}"
        allowed[name] = {None}
        return ""
    pieces = [chance.randbytes(_PIECE) for _ in range(chance.randint(1, _MOST_PIECES))]
    content = b"".join(pieces)
    allowed[name].add(content)
    try:
        info = await store.put(root, parts, _each(pieces), executable=False, owner=owner)
    except ServiceError as error:
        allowed[name] = before
        # A full disk may refuse a change but must leave the file as it was.
        if error.status != _FULL:
            return f"{name}: {error.detail}"
        return await _check_files(root, allowed)
    # Acknowledged: from here on the old content would be a loss.
    allowed[name] = {content}
    if info.size != len(content):
        return f"{name}: {info.size} bytes of {len(content)} were taken"
    return ""


async def _check_files(root: Path, allowed: dict[str, set[FileContent]]) -> str:
    """Read all files as a client does, and describe the first that is not as allowed."""
    store = FileStore()
    try:
        listed = {info.name: info.size for info in await store.files(root, "", 1_000)}
        for name in listed:
            if name not in allowed:
                return f"{name} is listed, and nobody has put it there"
        for name, contents in allowed.items():
            found: FileContent = None
            try:
                file = await store.open(root, tuple(name.split("/")))
                async with aclosing(file):
                    found = b"".join([piece async for piece in file])
            except ServiceError as error:
                if error.status != 404:
                    return f"{name}: {error.detail}"
            if found not in contents:
                return f"{name} has other content than was acknowledged"
            if (found is None) == (name in listed):
                return f"{name} is {'' if name in listed else 'not '}listed"
    finally:
        store.close()
    return ""


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _path(folder: int) -> str:
    return os.readlink(f"/proc/self/fd/{folder}")


def _read(path: str) -> FileContent:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None
