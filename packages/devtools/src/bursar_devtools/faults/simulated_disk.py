"""
Simulates a disk in memory, below SQLite, that loses and tears unsynced writes in power cuts.

SQLite reaches the disk by a virtual file system (VFS). Synced bytes are durable. Unsynced bytes
outlive the process, as the operating system has them, but a power cut keeps any subset of the
sectors that were written since the last sync, in any order, and may leave garbage in the others
[1]_. Names that were given or removed since the last sync may be undone.

References
----------
.. [1] Pillai and others (2014). All file systems are not created equal: on the complexity of
   crafting crash-consistent applications. OSDI '14: 433-448, section 2.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw

from bursar.database_files import SAFE
from bursar.store import DiskBroken, DiskFull
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_process import ProcessKilled, SimulatedProcess

T = TypeVar("T")

SECTOR = 512
"""Bytes that the disk writes atomically."""

_WRITE = 20e-6
_SYNC = 2e-3  # seconds for the flush of a plain disk
_SLOWER = 200.0  # factor on all times of a slow disk
_ROOM = 1 << 40

_DATABASE, _LOG, _HEAD = "/store.sqlite", "/store.sqlite-wal", "head"

_FURTHEST = 40.0
"""Most operations on files before the process is killed; the number drawn is mostly smaller."""

_NUMBERS = itertools.count()
"""Numbers in the names of virtual file systems, which SQLite keeps for the whole process."""


@dataclass(slots=True)
class StoredFile:
    """
    Holds a file's bytes in the operating system's cache, and the durable ones.

    Parameters
    ----------
    data
        Bytes that processes read.
    durable
        Bytes on the disk itself; None: the name of a new file is not there either.
    """

    data: bytearray
    durable: bytes | None = None


class SimulatedStorage:
    """
    Holds a disk's content, which outlives processes, and the disk's faults.

    Parameters
    ----------
    chance
        Random source of faults and delays.
    trace
        Records faults.
    """

    def __init__(self, chance: random.Random, trace: EventTrace) -> None:
        self.chance = chance
        self.trace = trace
        self.files: dict[str, StoredFile] = {}
        self._removed: dict[str, bytes] = {}  # durable bytes of files whose names are gone
        self.reserved = 0
        self.capacity = _ROOM
        self.is_slow = False
        self.fails_next_sync = False
        self.deadly = 0.0  # probability that a process is killed during work on the disk
        self.on_merge: Callable[[], object] = lambda: None  # when the log is merged

    @property
    def used(self) -> int:
        """Bytes of all files, plus reserved bytes."""
        return sum(len(stored.data) for stored in self.files.values()) + self.reserved

    def fill_up(self, left: int) -> None:
        """Reduce the capacity so that only ``left`` more bytes fit."""
        self.capacity = self.used + left

    def make_room(self) -> None:
        """Restore the full capacity."""
        self.capacity = _ROOM

    def heal(self) -> None:
        """End all faults of the disk."""
        self.make_room()
        self.is_slow = self.fails_next_sync = False
        self.deadly = 0.0

    def write(self, name: str, file: StoredFile, data: bytes, offset: int) -> bool:
        """Write as much as there is room for; return whether that was all."""
        stored = file.data
        room = len(stored) + max(0, self.capacity - self.used) - offset
        if offset > len(stored) and room > 0:
            stored.extend(bytes(offset - len(stored)))
        part = data[: max(0, room)]
        stored[offset : offset + len(part)] = part
        if len(part) < len(data):
            self.trace.fault("disk full", "disk", f"{name}: {len(data)} bytes")
            return False
        return True

    def sync(self, name: str, file: StoredFile) -> None:
        """Make a file's bytes and name durable."""
        # SQLite syncs the folder when it syncs a new log or journal for the first time, and with
        # it the names that were removed before.
        if file.durable is None:
            self._removed.clear()
        file.durable = bytes(file.data)

    def remove(self, name: str, *, durably: bool) -> None:
        """Remove a file's name, which a power cut may bring back unless it is gone durably."""
        gone = self.files.pop(name, None)
        if gone is not None and gone.durable is not None and not durably:
            self._removed[name] = gone.durable

    def cut_power(self) -> None:
        """Keep what was synced, and of everything else what chance leaves."""
        removed, self._removed = self._removed, {}
        for name, content in sorted(removed.items()):
            stored = self.files.get(name)
            if (stored is None or stored.durable is None) and self.chance.random() < 0.5:
                self.trace.fault("change undone", "disk", name)
                self.files[name] = StoredFile(bytearray(content), content)
        # Sorted, so that equal seeds draw equal numbers, whatever order files were made in.
        for name in sorted(self.files):
            stored = self.files[name]
            if stored.durable is None and self.chance.random() < 0.5:
                self.trace.fault("change undone", "disk", name)
                del self.files[name]
                continue
            before = stored.durable or b""
            if before != stored.data:
                left, told = self._tear(before, bytes(stored.data))
                self.trace.fault("torn write", "disk", f"{name}: {told}")
                stored.data[:] = left
            stored.durable = bytes(stored.data)

    def _tear(self, before: bytes, after: bytes) -> tuple[bytes, str]:
        """Return what is left of unsynced writes, and a description."""
        chance = self.chance
        # Nothing, all, or any sectors: the extremes are drawn often.
        match chance.randrange(3):
            case 0:
                return before, "nothing kept"
            case 1:
                return after, "all kept"
        low, high = sorted((len(before), len(after)))
        size = chance.choice((len(before), len(after), chance.randint(low, high)))
        left = bytearray(before[:size].ljust(size, b"\0"))
        count = kept = 0
        for at in range(0, size, SECTOR):
            new = after[at : at + SECTOR][: size - at]
            old = left[at : at + len(new)]
            if new == old:
                continue
            count += 1
            match chance.randrange(4):
                case 0:
                    # Durable bytes in the sector were not written, and stay.
                    noise = chance.randbytes(len(new))
                    pairs = zip(new, old, noise, strict=True)
                    new = bytes(n if n == o else r for n, o, r in pairs)
                case 1:
                    continue
                case _:
                    kept += 1
            left[at : at + len(new)] = new
        return bytes(left), f"{kept} of {count} sectors kept"


class SimulatedDisk:
    """
    Gives one process access to the storage; see :class:`bursar.store.Disk`.

    Parameters
    ----------
    storage
        Content of the disk.
    process
        Process that uses the disk; after its end, :meth:`run` raises ``ProcessKilled``, and
        nothing is written.
    """

    def __init__(self, storage: SimulatedStorage, process: SimulatedProcess) -> None:
        self.storage = storage
        self.process = process
        self._left = 0  # operations until the process is killed; 0: it is not
        # Emptied at the end: SQLite's connections keep the file system where the garbage collector
        # does not see it, and must not keep the whole process with it.
        living = [self]
        process.on_death(living.clear)
        self._vfs = _SimulatedVfs(living, f"bursar-simulated-{next(_NUMBERS)}")

    @property
    def database(self) -> str:
        """Path of the database."""
        return _DATABASE

    @property
    def vfs(self) -> str:
        """Name of the virtual file system."""
        return self._vfs.name

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Do some work at once, between two delays; the process may be killed in its midst."""
        await self._pause(_WRITE)
        chance, deadly = self.storage.chance, self.storage.deadly
        if deadly and chance.random() < deadly:
            self._left = int(_FURTHEST ** chance.random())
        try:
            result = work(*arguments)
        except Exception:
            if self.process.is_alive:
                raise
        if not self.process.is_alive:
            # The dead take no further step, not even to handle an error.
            await asyncio.get_running_loop().create_future()
        if self._left:
            # The kill takes the place of the next step: all is durable, and nobody was told.
            self._left = 0
            self.process.end_after(1)
        await self._pause(_SYNC)
        return result

    def prepare(self) -> None:
        """Make the database's file durably, unless it is there."""
        if self.operates():
            self.storage.files.setdefault(_DATABASE, StoredFile(bytearray(), b""))

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(name.removeprefix("/") for name in self.storage.files)

    def load(self, name: str) -> bytes | None:
        """Return a small file's content; None for a missing file."""
        stored = self.storage.files.get(name)
        return None if stored is None else bytes(stored.data)

    def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically and durably."""
        if self.operates():
            if self.storage.used + len(data) > self.storage.capacity:
                raise DiskFull(f"no room for {len(data)} bytes")
            self.storage.files[name] = StoredFile(bytearray(data), data)

    def note(self, data: bytes, *, durably: bool = False) -> None:
        """Write some bytes over those noted before; durable ones also where no later note is."""
        if self.operates():
            stored = self.storage.files.setdefault(_HEAD, StoredFile(bytearray()))
            stored.data[: len(data)] = data
            if durably:
                stored.data[:] = data.ljust(SAFE, b"\0") + data
                stored.durable = bytes(stored.data)

    def noted(self) -> bytes:
        """Return the bytes noted last; none at first."""
        return self.load(_HEAD) or b""

    def rewrite_log(self) -> None:
        """Write SQLite's write-ahead log again as it is, and make the log durable."""
        stored = self.storage.files.get(_LOG)
        if stored is not None and self.operates():
            if self.storage.fails_next_sync:
                self.storage.fails_next_sync = False
                self.storage.trace.fault("sync failed", "disk", _LOG)
                raise DiskBroken("store.sqlite-wal: input/output error")
            self.storage.sync(_LOG, stored)

    def free(self) -> int:
        """Return the number of bytes that may still be written."""
        return max(0, self.storage.capacity - self.storage.used)

    def reserve(self, size: int) -> bool:
        """Replace the reservation by another size; False when there is no room."""
        storage = self.storage
        if not self.operates() or storage.used - storage.reserved + size > storage.capacity:
            return False
        storage.reserved = size
        return True

    def close(self) -> None:
        """Do nothing: the process that is last alive has the disk."""

    def operates(self) -> bool:
        """
        Count an operation; return whether it has an effect, which those of a dead process have not.

        Raises
        ------
        ProcessKilled
            When the process is killed just before.
        """
        if not self.process.is_alive:
            return False
        if self._left:
            self._left -= 1
            if not self._left:
                self.storage.trace.fault("killed at the disk", self.process.party, "in its midst")
                self.process.kill()
                raise ProcessKilled
        return True

    async def _pause(self, seconds: float) -> None:
        if not self.process.is_alive:
            raise ProcessKilled
        slower = _SLOWER if self.storage.is_slow else 1.0
        await asyncio.sleep(seconds * slower * (0.5 + self.storage.chance.random()))
        if not self.process.is_alive:
            raise ProcessKilled


class _SimulatedVfs(apsw.VFS):
    """
    SQLite's way to the files of one simulated process.

    Operations of a dead process change nothing and raise nothing, since SQLite goes on with them
    when it closes a connection that nobody needs any more.
    """

    # What is left once the garbage collector has cleared the object: SQLite closes its files after.
    _living: Sequence[SimulatedDisk] = ()

    def __init__(self, living: list[SimulatedDisk], name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self._living = living

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        path = name if isinstance(name, str) else name.filename()
        stored = StoredFile(bytearray())
        for disk in self._living:
            files = disk.storage.files
            if path not in files and disk.storage.used >= disk.storage.capacity:
                raise apsw.FullError("no room for another file")
            if path in files or disk.operates():
                stored = files.setdefault(path, stored)
        return _SimulatedVfsFile(self._living, path, stored)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        for disk in self._living:
            if disk.operates():
                disk.storage.remove(name, durably=sync)

    def xAccess(self, name: str, flags: int) -> bool:  # noqa: N802
        return any(name in disk.storage.files for disk in self._living)

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name


class _SimulatedVfsFile:
    """SQLite's way to one file; locks are not needed, as one process lives at a time."""

    _living: Sequence[SimulatedDisk] = ()
    _stored = StoredFile(bytearray())

    def __init__(self, living: Sequence[SimulatedDisk], path: str, stored: StoredFile) -> None:
        self._living = living
        self._path = path
        self._stored = stored

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self._stored.data[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        for disk in self._living:
            write = disk.storage.write
            if disk.operates() and not write(self._path, self._stored, data, offset):
                raise apsw.FullError("no room")

    def xTruncate(self, size: int) -> None:  # noqa: N802
        for disk in self._living:
            if disk.operates():
                del self._stored.data[size:]

    def xSync(self, flags: int) -> None:  # noqa: N802
        for disk in self._living:
            if disk.operates():
                self._sync(disk.storage)

    def _sync(self, storage: SimulatedStorage) -> None:
        if storage.fails_next_sync:
            storage.fails_next_sync = False
            storage.trace.fault("sync failed", "disk", self._path)
            # The bytes stay unsynced: after a failed fsync the kernel may have dropped them, so a
            # second try must not be believed.
            raise apsw.IOError("input/output error")
        storage.sync(self._path, self._stored)
        if self._path == _DATABASE:
            storage.on_merge()

    def xFileSize(self) -> int:  # noqa: N802
        return len(self._stored.data)

    def xLock(self, level: int) -> None: ...  # noqa: N802

    def xUnlock(self, level: int) -> None: ...  # noqa: N802

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, operation: int, pointer: int) -> bool:  # noqa: N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        # As SQLite presumes of real files: a write leaves the bytes beside it alone.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None: ...  # noqa: N802
