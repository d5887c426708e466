"""
A disk in memory that behaves as badly as disks may.

What was synced is there for good. What was not is in the operating system's hands: it outlives
the process, but a power cut may leave any beginning of it, with its last sectors blank or full of
something else [1]_.

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
from bursar.simulation.faults.event_trace import EventTrace
from bursar.simulation.faults.simulated_process import ProcessKilled, SimulatedProcess

SECTOR = 512
"""Bytes that are written together, or not."""

_WRITE = 20e-6
_SYNC = 2e-3  # seconds, of a plain disk's flush
_SLOWER = 200.0  # times, when it is slow
_ROOM = 1 << 40


@dataclass(slots=True)
class StoredBytes:
    """
    A file's bytes as the operating system has them, and how many of them are on the platter.
    """

    data: bytearray
    synced: int = 0


class SimulatedStorage:
    """
    What outlives processes.

    Parameters
    ----------
    chance
        Source of its moods.
    trace
        Told of faults.
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
        self.deadly = 0.0  # chance that who syncs is killed meanwhile
        self.on_segment: Callable[[], object] = lambda: None  # told when one is begun, cut, removed

    @property
    def used(self) -> int:
        """Bytes of all files, and what is kept back."""
        return sum(len(stored.data) for stored in self.files.values()) + self.reserved

    def fill_up(self, left: int) -> None:
        """Others leave only so many bytes of it."""
        self.capacity = self.used + left

    def make_room(self) -> None:
        """Others have gone."""
        self.capacity = _ROOM

    def heal(self) -> None:
        """Nothing is wrong with it any more."""
        self.make_room()
        self.is_slow = self.fails_next_sync = False
        self.deadly = 0.0

    def begin_change(self, name: str, before: StoredBytes | None) -> None:
        """Something of a file changes, which a power cut may undo until it is settled."""
        self.on_segment()
        self._before[name] = before

    def settle(self, name: str) -> None:
        """The change is durable."""
        self._before.pop(name, None)

    def settle_all(self) -> None:
        """All names are durable as they are."""
        self._before.clear()

    def cut_power(self) -> None:
        """
        Of what was not synced, any beginning is left; its end may be torn.

        A name that was being made, removed or replaced, and a cut, is undone or not.
        """
        for name, before in self._before.items():
            if self.chance.random() < 0.5:
                self.trace.fault("change undone", "disk", name)
                self.files.pop(name, None)
                if before is not None:
                    self.files[name] = before
        self._before.clear()
        for name in sorted(self.files):
            stored = self.files[name]
            loose = len(stored.data) - stored.synced
            if not loose:
                continue
            kept = self.chance.choice((0, self.chance.randint(0, loose), loose))
            del stored.data[stored.synced + kept :]
            torn = self._tear(stored)
            stored.synced = len(stored.data)
            self.trace.fault("torn write", "disk", f"{name}: {kept} of {loose} bytes kept{torn}")

    def _tear(self, stored: StoredBytes) -> str:
        """The last sectors of what was not synced hold something else."""
        size = len(stored.data)
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
    The disk as one life of a party sees it; see :class:`bursar.service.disk.Disk`.

    Parameters
    ----------
    platter
        What is on it.
    life
        Whose; when that is over, nothing can be done by it any more.
    """

    def __init__(self, platter: SimulatedStorage, life: SimulatedProcess) -> None:
        self.platter = platter
        self.life = life
        platter.settle_all()  # who takes a folder over syncs its names first

    async def names(self) -> list[str]:
        """Of all files, sorted."""
        await self.work(_WRITE)
        return sorted(self.platter.files)

    async def open(self, name: str, *, create: bool = False) -> "SimulatedFile":
        """
        Opens a file; with ``create`` a new, empty one.

        Raises
        ------
        FileNotFoundError
            When it is not there, and is not to be made.
        DiskFull
        """
        files = self.platter.files
        if create:
            await self.work(_WRITE)
            if self.platter.used >= self.platter.capacity:
                raise DiskFull("no room for another file")
            stored = StoredBytes(bytearray())
            self.platter.begin_change(name, files.get(name))
            files[name] = stored
            await self.work(_SYNC)
            self.platter.settle(name)
            return SimulatedFile(self, name, stored)
        await self.work(_WRITE)
        if name not in files:
            raise FileNotFoundError(name)
        return SimulatedFile(self, name, files[name])

    async def remove(self, name: str) -> None:
        """Durably; nothing when it is not there."""
        await self.work(_WRITE)
        self.platter.begin_change(name, self.platter.files.pop(name, None))
        await self.work(_SYNC)
        self.platter.settle(name)
        self.platter.on_segment()  # gone for good: whatever relied on it being there is wrong now

    async def replace(self, name: str, data: bytes) -> None:
        """A small file gets this content, whole or not at all."""
        await self.work(_SYNC)
        if self.platter.used + len(data) > self.platter.capacity:
            raise DiskFull(f"no room for {len(data)} bytes")
        self.platter.begin_change(name, self.platter.files.get(name))
        self.platter.files[name] = StoredBytes(bytearray(data), len(data))
        await self.work(_SYNC)
        self.platter.settle(name)

    async def load(self, name: str) -> bytes | None:
        """A small file's content; None when it is not there."""
        await self.work(_WRITE)
        stored = self.platter.files.get(name)
        return None if stored is None else bytes(stored.data)

    async def free(self) -> int:
        """Bytes that may still be written."""
        await self.work(_WRITE)
        return max(0, self.platter.capacity - self.platter.used)

    async def reserve(self, size: int) -> bool:
        """Keeps so many bytes back; 0: none."""
        await self.work(_WRITE)
        platter = self.platter
        if platter.used - platter.reserved + size > platter.capacity:
            return False
        platter.reserved = size
        return True

    async def work(self, seconds: float) -> None:
        """Takes about so long."""
        if not self.life.is_alive:
            raise ProcessKilled
        platter = self.platter
        slower = _SLOWER if platter.is_slow else 1.0
        await asyncio.sleep(seconds * slower * (0.5 + platter.chance.random()))
        if not self.life.is_alive:
            raise ProcessKilled


class SimulatedFile:
    """A file that is open; see :class:`bursar.service.disk.DiskFile`."""

    def __init__(self, disk: SimulatedDisk, name: str, stored: StoredBytes) -> None:
        self._disk = disk
        self._name = name
        self._stored = stored

    async def append(self, data: bytes) -> None:
        """Writes at the end, in two goes: a crash may come between them."""
        platter = self._disk.platter
        await self._disk.work(_WRITE)
        half = platter.chance.randint(0, len(data))
        for part in (data[:half], data[half:]):
            room = max(0, platter.capacity - platter.used)
            self._stored.data += part[:room]
            if len(part) > room:
                platter.trace.fault("disk full", "disk", f"{self._name}: {len(data)} bytes")
                raise DiskFull(f"{self._name}: no room for {len(data)} bytes")
            await self._disk.work(_WRITE)

    async def sync(self) -> None:
        """What was appended before is durable on return."""
        size = len(self._stored.data)
        platter = self._disk.platter
        if platter.deadly and platter.chance.random() < platter.deadly:
            self._disk.life.end_after(1)
        await self._disk.work(_SYNC)
        if platter.fails_next_sync:
            platter.fails_next_sync = False
            platter.trace.fault("sync failed", "disk", self._name)
            raise DiskBroken(f"{self._name}: input/output error")
        self._stored.synced = max(self._stored.synced, min(size, len(self._stored.data)))

    async def read(self, offset: int, size: int) -> bytes:
        """Bytes from an offset; fewer at the end."""
        await self._disk.work(_WRITE)
        return bytes(self._stored.data[offset : offset + size])

    async def truncate(self, size: int) -> None:
        """Cuts the end off, durably."""
        await self._disk.work(_WRITE)
        stored = self._stored
        self._disk.platter.begin_change(
            self._name, StoredBytes(bytearray(stored.data), stored.synced)
        )
        del stored.data[size:]
        stored.synced = min(stored.synced, size)
        await self._disk.work(_SYNC)
        stored.synced = len(stored.data)
        self._disk.platter.settle(self._name)

    async def close(self) -> None:
        """Lets go of it."""

    @property
    def size(self) -> int:
        """Bytes, those not synced included."""
        return len(self._stored.data)
