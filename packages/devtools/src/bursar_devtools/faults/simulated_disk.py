"""
Simulates a disk in memory that loses unsynced bytes in power cuts.

Synced bytes are durable. Unsynced bytes outlive the process, as the operating system has them, but
a power cut may leave any beginning of them, whose last sectors may be zeros or garbage [1]_.

References
----------
.. [1] Pillai and others (2014). All file systems are not created equal: on the complexity of
   crafting crash-consistent applications. OSDI '14: 433-448, section 2.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from bursar.service.disk import DiskBroken, DiskFull
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.simulated_process import ProcessKilled, SimulatedProcess

SECTOR = 512
"""Bytes that the disk writes atomically."""

_WRITE = 20e-6
_SYNC = 2e-3  # seconds for the flush of a plain disk
_SLOWER = 200.0  # factor on all times of a slow disk
_ROOM = 1 << 40


@dataclass(slots=True)
class StoredBytes:
    """
    Holds a file's bytes in the operating system's cache, and the number of durable ones.
    """

    data: bytearray
    synced: int = 0


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
        self.files: dict[str, StoredBytes] = {}
        self._before: dict[str, StoredBytes | None] = {}
        self.reserved = 0
        self.capacity = _ROOM
        self.is_slow = False
        self.fails_next_sync = False
        self.deadly = 0.0  # probability that a process is killed during a sync
        self.on_segment: Callable[[], object] = lambda: None  # for every change of one

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

    def begin_change(self, name: str, before: StoredBytes | None) -> None:
        """Record a change of a file's name that a power cut may undo until :meth:`settle`."""
        self.on_segment()
        self._before[name] = before

    def settle(self, name: str) -> None:
        """Make the last change of a name durable."""
        self._before.pop(name, None)

    def settle_all(self) -> None:
        """Make the present state of all names durable."""
        self._before.clear()

    def cut_power(self) -> None:
        """
        Keep a random beginning of each file's unsynced bytes, whose end may be torn.

        Changes of names that were not durable, and cuts of files, are undone at random.
        """
        for name, before in self._before.items():
            if self.chance.random() < 0.5:
                self.trace.fault("change undone", "disk", name)
                self.files.pop(name, None)
                if before is not None:
                    self.files[name] = before
        self._before.clear()
        # Sorted, so that equal seeds draw equal numbers, whatever order files were made in.
        for name in sorted(self.files):
            stored = self.files[name]
            loose = len(stored.data) - stored.synced
            if not loose:
                continue
            # Nothing, all, or any length: the extremes are drawn often.
            kept = self.chance.choice((0, self.chance.randint(0, loose), loose))
            del stored.data[stored.synced + kept :]
            torn = self._tear(stored)
            stored.synced = len(stored.data)
            self.trace.fault("torn write", "disk", f"{name}: {kept} of {loose} bytes kept{torn}")

    def _tear(self, stored: StoredBytes) -> str:
        """Fill the last unsynced sector with zeros or garbage, or leave the bytes."""
        size = len(stored.data)
        # A sector is written as a whole, but durable bytes in it were there before and stay.
        begin = max(stored.synced, (size - 1) // SECTOR * SECTOR)
        if begin >= size or self.chance.random() < 0.25:
            return ""
        if self.chance.random() < 0.5:
            stored.data[begin:] = bytes(size - begin)
            return f", the last {size - begin} blank"
        stored.data[begin:] = self.chance.randbytes(size - begin)
        return f", the last {size - begin} garbage"


class SimulatedDisk:
    """
    Gives one process access to the storage; see :class:`bursar.service.disk.Disk`.

    Parameters
    ----------
    storage
        Content of the disk.
    process
        Process that uses the disk; after its end, every operation raises ``ProcessKilled``.
    """

    def __init__(self, storage: SimulatedStorage, process: SimulatedProcess) -> None:
        self.storage = storage
        self.process = process
        storage.settle_all()  # a process that takes a folder over syncs its names first

    async def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        await self.work(_WRITE)
        return sorted(self.storage.files)

    async def open(self, name: str, *, create: bool = False) -> "SimulatedFile":
        """
        Open a file; with ``create``, a new, empty one.

        Raises
        ------
        FileNotFoundError
            When the file does not exist and ``create`` is false.
        DiskFull
        """
        files = self.storage.files
        if create:
            await self.work(_WRITE)
            if self.storage.used >= self.storage.capacity:
                raise DiskFull("no room for another file")
            stored = StoredBytes(bytearray())
            self.storage.begin_change(name, files.get(name))
            files[name] = stored
            await self.work(_SYNC)
            self.storage.settle(name)
            return SimulatedFile(self, name, stored)
        await self.work(_WRITE)
        if name not in files:
            raise FileNotFoundError(name)
        return SimulatedFile(self, name, files[name])

    async def remove(self, name: str) -> None:
        """Remove a file durably; a missing one is no error."""
        await self.work(_WRITE)
        self.storage.begin_change(name, self.storage.files.pop(name, None))
        await self.work(_SYNC)
        self.storage.settle(name)
        self.storage.on_segment()  # durably gone: a crash now shows code that still needs the file

    async def replace(self, name: str, data: bytes) -> None:
        """Replace a small file's content atomically."""
        await self.work(_SYNC)
        if self.storage.used + len(data) > self.storage.capacity:
            raise DiskFull(f"no room for {len(data)} bytes")
        self.storage.begin_change(name, self.storage.files.get(name))
        self.storage.files[name] = StoredBytes(bytearray(data), len(data))
        await self.work(_SYNC)
        self.storage.settle(name)

    async def load(self, name: str) -> bytes | None:
        """Return a small file's content; None for a missing file."""
        await self.work(_WRITE)
        stored = self.storage.files.get(name)
        return None if stored is None else bytes(stored.data)

    async def free(self) -> int:
        """Return the number of bytes that may still be written."""
        await self.work(_WRITE)
        return max(0, self.storage.capacity - self.storage.used)

    async def reserve(self, size: int) -> bool:
        """Replace the reservation by another size; False when there is no room."""
        await self.work(_WRITE)
        storage = self.storage
        if storage.used - storage.reserved + size > storage.capacity:
            return False
        storage.reserved = size
        return True

    async def work(self, seconds: float) -> None:
        """
        Sleep for about the given seconds; raises ``ProcessKilled`` once the process has ended.
        """
        if not self.process.is_alive:
            raise ProcessKilled
        storage = self.storage
        slower = _SLOWER if storage.is_slow else 1.0
        await asyncio.sleep(seconds * slower * (0.5 + storage.chance.random()))
        if not self.process.is_alive:
            raise ProcessKilled


class SimulatedFile:
    """Gives access to an open file; see :class:`bursar.service.disk.DiskFile`."""

    def __init__(self, disk: SimulatedDisk, name: str, stored: StoredBytes) -> None:
        self._disk = disk
        self._name = name
        self._stored = stored

    async def append(self, data: bytes) -> None:
        """Append bytes in two writes, between which a crash may come."""
        storage = self._disk.storage
        await self._disk.work(_WRITE)
        half = storage.chance.randint(0, len(data))
        for part in (data[:half], data[half:]):
            room = max(0, storage.capacity - storage.used)
            self._stored.data += part[:room]
            if len(part) > room:
                storage.trace.fault("disk full", "disk", f"{self._name}: {len(data)} bytes")
                raise DiskFull(f"{self._name}: no room for {len(data)} bytes")
            await self._disk.work(_WRITE)

    async def sync(self) -> None:
        """Make the bytes that were appended before the call durable."""
        size = len(self._stored.data)
        storage = self._disk.storage
        if storage.deadly and storage.chance.random() < storage.deadly:
            # The kill takes the place of the next step: the bytes may or may not be durable, and
            # nobody was told.
            self._disk.process.end_after(1)
        await self._disk.work(_SYNC)
        if storage.fails_next_sync:
            storage.fails_next_sync = False
            storage.trace.fault("sync failed", "disk", self._name)
            # The bytes stay unsynced: after a failed fsync the kernel may have dropped them, so a
            # second try must not be believed.
            raise DiskBroken(f"{self._name}: input/output error")
        # Only what was there when the call began: bytes appended meanwhile are not covered by this
        # fsync. A truncation meanwhile may have cut them.
        self._stored.synced = max(self._stored.synced, min(size, len(self._stored.data)))

    async def read(self, offset: int, size: int) -> bytes:
        """Read bytes from an offset; fewer than ``size`` at the end of the file."""
        await self._disk.work(_WRITE)
        return bytes(self._stored.data[offset : offset + size])

    async def truncate(self, size: int) -> None:
        """Cut the file to a size, durably."""
        await self._disk.work(_WRITE)
        stored = self._stored
        self._disk.storage.begin_change(
            self._name, StoredBytes(bytearray(stored.data), stored.synced)
        )
        del stored.data[size:]
        stored.synced = min(stored.synced, size)
        await self._disk.work(_SYNC)
        stored.synced = len(stored.data)
        self._disk.storage.settle(self._name)

    async def close(self) -> None:
        """Do nothing: no operating system resource is held."""

    @property
    def size(self) -> int:
        """Size in bytes, unsynced ones included."""
        return len(self._stored.data)
